"""Attention over a set by its moments: cross-attention, where queries have no place among the keys and no key is near.

The far part of near-far attention (docs/near-far.md), with all keys far:

    out = w_lln LLN + w_mean v_mean + w_slope 2 E'(x) s Cov(v, k) q

LLN is eq. 8. The three weights of each head are fitted to softmax's output; the fourth, of near keys, has nothing to act on.
Time and memory are linear in the number of keys, of which a state of constant size is kept.
"""

from functools import reduce
from typing import Any

import torch
from torch import Tensor

from lln.conversion.asked import Call
from lln.conversion.parameters import LLNParameters
from lln.ops.lln.op import compute_dtype
from lln.ops.near_far.moments import Moments, merged
from lln.ops.near_far.op import WEIGHTS
from lln.ops.near_far.rows import Near, Scales, mixed

ROWS = 8192  # queries or keys at a time: what is between them and the state is as large as they are


def set_attention(call: Call, own: LLNParameters, weights: Tensor | None = None) -> Tensor:
    """(B, Hq, Nq, Dv). weights (Hq, 4): others than the parameters' own."""
    dtype, heads, batch = compute_dtype(call.q.dtype), call.k.shape[1], call.q.shape[0]
    alpha, beta, bias = (x.expand(batch, -1, -1, call.q.shape[3])[:, :, 0] for x in own.for_attention(dtype))
    weights = own.weights if weights is None else weights
    assert weights is not None
    far = _moments(call, beta, dtype)

    def by_key_head(x: Tensor) -> Tensor:
        return x.unflatten(1, (heads, -1))

    scales = Scales(
        by_key_head(alpha)[:, :, :, None], by_key_head(bias)[:, :, :, None],
        by_key_head(weights.to(dtype).expand(batch, -1, -1)),
    )  # fmt: skip
    none = torch.zeros(batch, 1, 1, 1, 1, dtype=torch.bool, device=call.q.device)
    found = []
    for q in _pieces(call.q):
        rows = by_key_head(q.to(dtype))[:, :, :, None]  # (B, Hk, groups, 1, N, D)
        nothing = Near(rows.new_zeros(*rows.shape[:-1], call.v.shape[3]), rows.new_zeros(rows.shape[:-1]), none)
        found.append(mixed(rows, nothing, far, scales, call.scale)[:, :, :, 0].flatten(1, 2))
    return torch.cat(found, dim=2).to(call.q.dtype)


def set_parts(call: Call, own: LLNParameters) -> tuple[Tensor, Tensor]:
    """What the weights multiply, as `NearFarFit.add` takes it: nothing fixed, and the parts (B, Hq, Nq, Dv, 4)."""
    alone = torch.eye(len(WEIGHTS), device=call.q.device)
    parts = torch.stack([set_attention(call, own, w.expand(call.q.shape[1], -1)) for w in alone], dim=-1)
    return torch.zeros_like(parts[..., 0]), parts


def _moments(call: Call, beta: Tensor, dtype: torch.dtype) -> Moments:
    mask = call.key_mask
    if mask is None:
        mask = torch.ones(1, call.k.shape[2], dtype=torch.bool, device=call.k.device)
    pieces: list[Any] = [
        Moments.of(k.to(dtype)[:, :, None], v.to(dtype)[:, :, None], beta[:, :, None], counts[:, None])
        for k, v, counts in zip(_pieces(call.k), _pieces(call.v), _pieces(mask, 1), strict=True)
    ]
    return reduce(merged, [piece.wide() for piece in pieces]).to(dtype)


def _pieces(x: Tensor, dim: int = 2) -> tuple[Tensor, ...]:
    """A graph has one piece, whatever its length."""
    return (x,) if torch.compiler.is_compiling() else x.split(ROWS, dim)
