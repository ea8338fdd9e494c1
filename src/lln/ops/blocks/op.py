"""Softmax attention inside blocks of consecutive positions (the Diag of LLN+Diag, Section 4.2) as an operation:

    out_i = sum_{j in block(i)} softmax_j(scale * q_i . k_j) v_j,      block(i) = floor((i - first) / block_size)

over the keys j of the block that count, or, when causal, those of them up to i. `first` is the sample's first key that
counts, or the start of its packed sequence, so that left padding and packing change nothing. Backward, with P the weights:

    dv = P^T dout,    dS = P * (dout v^T - rowsum(P * dout v^T)),    dq = scale dS k,    dk = scale dS^T q
"""

from typing import NamedTuple

from torch import Tensor

from lln.ops import checks
from lln.ops.operation import Operation, empty_rows


class Operands(NamedTuple):
    """Hq is a multiple of Hk; strides are any."""

    q: Tensor  # (B, Hq, N, D)
    k: Tensor  # (B, Hk, N, D)
    v: Tensor  # (B, Hk, N, Dv)
    key_mask: Tensor | None  # (B, N) bool, True where a key counts
    cu_seqlens: Tensor | None  # (S + 1,) int64, boundaries of packed sequences; then B = 1
    block_size: int
    scale: float
    is_causal: bool


class Results(NamedTuple):
    out: Tensor  # (B, Hq, N, Dv), laid out as q is


def _empty(x: Operands) -> Results:
    return Results(empty_rows(x.q, x.v.shape[-1]))


def _check(x: Operands) -> None:
    checks.check_block_size(x.block_size)
    checks.check_qkv(x.q, x.k, x.v)
    checks.check_one_length(x.q, x.k)
    checks.check_masks(x.q, x.k, x.key_mask, x.is_causal, x.cu_seqlens)


def _check_values(x: Operands) -> None:
    checks.check_boundaries(x.cu_seqlens, x.k.shape[2])


blocks = Operation(
    "blocks",
    Operands,
    Results,
    empty=_empty,
    check=_check,
    check_values=_check_values,
    differentiable=("q", "k", "v"),
    flowing=("out",),
)


class OpenOperands(NamedTuple):
    """New tokens and all the keys of the block that is open, for decoding."""

    q: Tensor  # (B, Hq, Nq, D)
    k: Tensor  # (B, Hk, block, D)
    v: Tensor  # (B, Hk, block, Dv)
    key_mask: Tensor  # (B, block) bool, True where there is a key that counts
    scale: float


def _check_open(x: OpenOperands) -> None:
    checks.check_qkv(x.q, x.k, x.v)
    checks.check_masks(x.q, x.k, x.key_mask, False, None)


def _empty_open(x: OpenOperands) -> Results:
    return Results(empty_rows(x.q, x.v.shape[-1]))


# Every query sees every key that counts. Without gradients of its own: a step that needs them takes `blocks`.
open_block = Operation(
    "open_block", OpenOperands, Results, empty=_empty_open, check=_check_open, check_values=lambda x: None
)
