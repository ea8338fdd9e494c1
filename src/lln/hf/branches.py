"""The two branches of LLN+Diag by themselves, each with its own inputs: what lln_diag_attention mixes without maps.

LLN runs on mapped q and k (eq. 8), softmax inside blocks on q and k as they are (Section 4.2).
"""

from dataclasses import replace
from typing import Any

from torch import Tensor

from lln.attention import lln_attention
from lln.block_diagonal import block_diagonal_attention, continue_blocks
from lln.hf.call import Call
from lln.hf.parameters import LLNParameters
from lln.hf.scales import Scales
from lln.state import LLNState


def branches(
    call: Call,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    parameters: LLNParameters | None,
    scales: Scales,
    block_size: int | None,
) -> tuple[Tensor, Tensor | None, LLNState | None]:
    """LLN's output, that of the blocks (None without block_size), and the state after it where the call carries one."""
    mapped = (q, k) if parameters is None else (parameters.map_queries(q), parameters.map_keys(k))
    lln: dict[str, Any] = {
        "feature_bias": scales.feature_bias, "key_padding_mask": call.key_mask,
        "is_causal": call.causal, "cu_seqlens": call.cu_seqlens,
    }  # fmt: skip
    block: dict[str, Any] = {"block_size": block_size, "scale": call.scale, "key_padding_mask": call.key_mask}
    if call.layer is None:
        global_ = lln_attention(*mapped, v, scales.alpha, scales.beta, **lln)
        if block_size is None:
            return global_, None, None
        local = block_diagonal_attention(q, k, v, is_causal=call.causal, cu_seqlens=call.cu_seqlens, **block)
        return global_, local, None
    past = call.layer.state
    sums = None if past is None else replace(past, block=None)
    global_, state = lln_attention(*mapped, v, scales.alpha, scales.beta, state=sums, return_state=True, **lln)
    if block_size is None:
        return global_, None, state
    local, opened = continue_blocks(q, k, v, None if past is None else past.block, **block)
    return global_, local, replace(state, block=opened)
