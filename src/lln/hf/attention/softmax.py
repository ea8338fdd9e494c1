"""Softmax attention for the layers of a converted model that keep it; padding, packing and a growing cache included."""

import torch.nn.functional as F
from torch import Tensor

from lln.hf.attention.call import Call
from lln.ops.masks import allowed_pairs, masked_softmax, sequence_of_positions
from lln.ops.stretches import refuse_stretches


def softmax_attention(call: Call) -> Tensor:
    """(B, Nq, Hq, Dv) contiguous."""
    refuse_stretches("a layer that keeps softmax")
    queries, keys = call.q.shape[2], call.k.shape[2]
    plain = call.key_mask is None and call.cu_seqlens is None and (call.window is None or keys <= call.window)
    if plain and (not call.causal or queries == keys or queries == 1):
        mask, is_causal = None, call.causal and queries > 1
    else:
        mask, is_causal = _allowed(call), False
        mask = mask | ~mask.any(dim=-1, keepdim=True)  # a row without keys is padding: any number will do, but no NaN
    out = F.scaled_dot_product_attention(
        call.q, call.k, call.v, attn_mask=mask, is_causal=is_causal, scale=call.scale,
        dropout_p=call.dropout if call.module.training else 0.0, enable_gqa=call.q.shape[1] != call.k.shape[1],
    )  # fmt: skip
    return out.transpose(1, 2).contiguous()


def softmax_matrix(call: Call) -> Tensor:
    """(B, Hq, Nq, Nk), the weights in full."""
    keys = call.k.repeat_interleave(call.q.shape[1] // call.k.shape[1], dim=1)
    return masked_softmax(call.q @ keys.mT * call.scale, _allowed(call))


def _allowed(call: Call) -> Tensor:
    """(B or 1, 1, Nq, Nk): which pairs count. With earlier keys in the cache the queries are the last positions."""
    batch, _, queries, _ = call.q.shape
    sequence = None
    if call.cu_seqlens is not None:  # of the flattened batch
        sequence = sequence_of_positions(call.cu_seqlens.to(call.q.device), batch * queries).view(batch, queries)
    scores = call.q.new_empty(()).expand(queries, call.k.shape[2])  # the shape alone: no memory
    return allowed_pairs(
        scores, call.key_mask, sequence, call.causal, window=call.window, earlier=call.k.shape[2] - queries
    )
