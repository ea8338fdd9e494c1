"""One token that goes on from a state, as an operation without gradients of its own: a step that needs them takes plain torch.

The row of `lln.ops.near_far.op`, near being the keys of the window and the first tokens that have left it, far what the moments
say of all others.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from lln.ops import checks
from lln.ops.backends import Backend
from lln.ops.lln.op import accumulation_dtype, compute_dtype
from lln.ops.near_far.moments import Moments
from lln.ops.near_far.op import WEIGHTS, Results
from lln.ops.near_far.rows import Scales, mixed, softmax
from lln.ops.operation import Operation, empty_rows


class StepOperands(NamedTuple):
    """Strides are any. alpha, beta, bias, weights and maximum are in the compute dtype, the other moments in that of sums."""

    q: Tensor  # (B, Hq, 1, D)
    k: Tensor  # (B, Hk, window, D)
    v: Tensor  # (B, Hk, window, Dv)
    key_mask: Tensor  # (B, window) bool, which slots hold a key that counts
    first_k: Tensor  # (B, Hk, first, D)
    first_v: Tensor  # (B, Hk, first, Dv)
    first_mask: Tensor  # (B, first) bool, which are outside of the window
    alpha: Tensor  # (B, Hq, D)
    beta: Tensor  # (B, Hk, D)
    bias: Tensor | None  # (B, Hq, D)
    weights: Tensor  # (B, Hq, 4)
    total: Tensor  # (B, 1, 1), and so on as in `Moments`
    key_mean: Tensor
    key_spread: Tensor
    value_mean: Tensor
    product: Tensor
    maximum: Tensor
    summed: Tensor
    normaliser: Tensor
    scale: float

    @property
    def moments(self) -> Moments:
        """Of the far keys."""
        return Moments(*(getattr(self, name) for name in Moments._fields))


def _empty(x: StepOperands) -> Results:
    return Results(empty_rows(x.q, x.v.shape[-1]))


def _check(x: StepOperands) -> None:
    checks.check_qkv(x.q, x.k, x.v)
    checks.check_masks(x.q, x.k, x.key_mask, False, None)
    batch, heads, _, dim = x.k.shape
    of_queries, of_keys, value_dim = (batch, x.q.shape[1], dim), (batch, heads, dim), x.v.shape[3]
    first, wide, sums = x.first_k.shape[2], compute_dtype(x.q.dtype), accumulation_dtype(x.q.device)
    shapes = {
        "first_k": ((batch, heads, first, dim), x.q.dtype),
        "first_v": ((batch, heads, first, value_dim), x.q.dtype),
        "first_mask": ((batch, first), torch.bool),
        "alpha": (of_queries, wide),
        "beta": (of_keys, wide),
        "bias": (of_queries, wide),
        "weights": ((*of_queries[:2], len(WEIGHTS)), wide),
        "total": ((batch, 1, 1), sums),
        "key_mean": (of_keys, sums),
        "key_spread": (of_keys, sums),
        "value_mean": ((batch, heads, value_dim), sums),
        "product": ((*of_keys, value_dim), sums),
        "maximum": (of_keys, wide),
        "summed": ((*of_keys, value_dim), sums),
        "normaliser": (of_keys, sums),
    }
    for name, (shape, dtype) in shapes.items():
        if (given := getattr(x, name)) is not None:
            checks.check_operand(name, given, shape, dtype, x.q.device)


near_far_step = Operation(
    "near_far_step", StepOperands, Results, empty=_empty, check=_check, check_values=lambda x: None
)


def row(x: StepOperands) -> Results:
    """In plain torch, which differentiates it."""

    def by_key_head(t: Tensor) -> Tensor:
        return t.unflatten(1, (x.k.shape[1], -1))

    dtype = x.alpha.dtype
    k, v, seen = x.k, x.v, x.key_mask
    if x.first_k.shape[2]:
        k, v = torch.cat([k, x.first_k], dim=2), torch.cat([v, x.first_v], dim=2)
        seen = torch.cat([seen, x.first_mask], dim=1)
    q = by_key_head(x.q).to(dtype)[:, :, :, None]  # (B, Hk, groups, 1, 1, D)
    k, v = (torch.where(seen[:, None, :, None], t, 0.0).to(dtype)[:, :, None] for t in (k, v))
    near = softmax(q, k, v, seen[:, None, None], x.scale)
    bias = None if x.bias is None else by_key_head(x.bias)[:, :, :, None]
    scales = Scales(by_key_head(x.alpha)[:, :, :, None], bias, by_key_head(x.weights))
    far = Moments(*(t[:, :, None] for t in x.moments.to(dtype)))
    out = mixed(q, near, far, scales, x.scale)[..., 0, :].flatten(1, 2)  # (B, Hq, 1, Dv)
    return Results(out.to(x.q.dtype))


PLAIN = Backend("chunked", row, transparent=True, by_autograd=True)
