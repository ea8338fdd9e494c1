"""The weight of LLN in each row of LLN+Diag, for a call of a model (`lln.hf.attention.far_weight`)."""

import torch
from torch import Tensor

from lln.hf.attention.call import Call
from lln.hf.attention.far_weight import FarPast, far_share, far_share_of_piece
from lln.ops.stretches import in_the_whole
from lln.state import LLNState


def row_weights(call: Call, mix: Tensor | float, block_size: int) -> tuple[Tensor, Tensor | None]:
    """mix min(1, f / block_size), (B or 1, Hq or 1, N), and what the cache's layer is to keep of f.

    call: packed sequences in one row. mix: a number or (Hq,).
    """
    full = None
    if call.layer is not None:
        before = call.layer.state
        past = None
        if isinstance(before, LLNState) and before.block is not None and call.layer.full is not None:
            past = FarPast(call.layer.full, before.block)
        share, full = far_share_of_piece(call.key_mask, past, call.k, block_size)
    else:
        key_mask, start, total = in_the_whole(call.key_mask, call.k)
        share = far_share(
            total,
            block_size,
            is_causal=call.causal,
            key_mask=key_mask,
            cu_seqlens=call.cu_seqlens,
            device=call.q.device,
        )
        share = share[:, start : start + call.k.shape[2]]
    return torch.as_tensor(mix, device=share.device).reshape(1, -1, 1) * share[:, None], full
