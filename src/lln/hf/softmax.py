"""Softmax attention for the layers of a converted model that keep it; padding, packing and a growing cache included."""

import torch
import torch.nn.functional as F
from torch import Tensor

from lln.backends.oracle import masked_softmax
from lln.hf.call import Call


def softmax_attention(call: Call) -> Tensor:
    """(B, Nq, Hq, Dv) contiguous."""
    queries, keys = call.q.shape[2], call.k.shape[2]
    plain = call.key_mask is None and call.cu_seqlens is None
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
    queries, keys = call.q.shape[2], call.k.shape[2]
    row = torch.arange(queries, device=call.q.device)[:, None] + keys - queries
    column = torch.arange(keys, device=call.q.device)
    allowed = torch.ones(1, 1, queries, keys, dtype=torch.bool, device=call.q.device)
    if call.causal:
        allowed = allowed & (column <= row)
    if call.window is not None:
        allowed = allowed & ((column - row).abs() < call.window)
    if call.key_mask is not None:
        allowed = allowed & call.key_mask[:, None, None, :]
    if call.cu_seqlens is not None:
        position = torch.arange(call.q.shape[0] * queries, device=call.q.device)
        sequence = torch.bucketize(position, call.cu_seqlens[1:].to(position), right=True).view(-1, queries)  # (B, N)
        allowed = allowed & (sequence[:, None, :, None] == sequence[:, None, None, :])
    return allowed
