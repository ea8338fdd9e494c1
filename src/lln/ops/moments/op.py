"""What matching needs of q and k, as operations.

    moments     for each sample, head and feature: how many positions count, sum_i x_i and sum_i x_i^2
    match       alpha and beta (eq. 10) for each sample and key head, by the table or on a sample of the inputs
    entropies   what the row entropies of softmax and of LLN are with given alpha and beta, on a sample of the inputs

None of them carries gradients. `match` is one step from q and k, because for short inputs what costs is the number of steps.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from lln.ops import checks
from lln.ops.lln.op import accumulation_dtype
from lln.ops.operation import Operation


class Operands(NamedTuple):
    x: Tensor  # (B, H, N, D)
    key_mask: Tensor | None = None  # (B, N) bool, True where a position counts
    cu_seqlens: Tensor | None = None  # (S + 1,) int64; then B = 1


class Moments(NamedTuple):
    """Sums over the positions that count, per sample (or packed sequence) S, in the accumulation dtype."""

    count: Tensor  # type: ignore[assignment]  # (S,); hides tuple.count, which nobody needs here
    total: Tensor  # (S, H, D)
    squares: Tensor  # (S, H, D)


class MatchOperands(NamedTuple):
    """sigma_q is pooled over the query heads of a key head. See `lln.match_moments` for the words."""

    q: Tensor  # (B, Hq, Nq, D)
    k: Tensor  # (B, Hk, Nk, D)
    key_mask: Tensor | None  # (B, Nk), of the queries too where Nq = Nk
    cu_seqlens: Tensor | None
    method: str  # "sample" or "table"
    target: str  # "entropy", "variance" or "paper"
    per: str  # "head" or "tensor"
    scale: float  # of the softmax to be matched
    center_keys: bool


class Matched(NamedTuple):
    alpha: Tensor  # (S, Hk)
    beta: Tensor  # (S, Hk)
    entropies: Tensor  # (S, Hk, 2): of softmax and LLN, in nats; NaN where nobody looked


class EntropyOperands(NamedTuple):
    q: Tensor
    k: Tensor
    key_mask: Tensor | None
    cu_seqlens: Tensor | None
    alpha: Tensor  # (S, Hk)
    beta: Tensor  # (S, Hk)
    scale: float
    center_keys: bool


class Entropies(NamedTuple):
    """Mean row entropies (S, Hk), in nats."""

    softmax: Tensor
    lln: Tensor


def _sequences(x: Tensor, cu_seqlens: Tensor | None) -> int:
    return x.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1


def _empty(x: Operands) -> Moments:
    sequences, dtype = _sequences(x.x, x.cu_seqlens), accumulation_dtype(x.x.device)
    shape = (sequences, x.x.shape[1], x.x.shape[3])
    return Moments(
        x.x.new_empty(sequences, dtype=dtype), x.x.new_empty(shape, dtype=dtype), x.x.new_empty(shape, dtype=dtype)
    )


def _empty_match(x: MatchOperands) -> Matched:
    shape, dtype = (_sequences(x.q, x.cu_seqlens), x.k.shape[1]), accumulation_dtype(x.q.device)
    return Matched(
        x.q.new_empty(shape, dtype=dtype), x.q.new_empty(shape, dtype=dtype), x.q.new_empty((*shape, 2), dtype=dtype)
    )


def _empty_entropies(x: EntropyOperands) -> Entropies:
    return Entropies(torch.empty_like(x.alpha), torch.empty_like(x.alpha))


def _check(x: Operands) -> None:
    checks.check_masks(x.x, x.x, x.key_mask, False, x.cu_seqlens)


def _check_pair(x: MatchOperands | EntropyOperands) -> None:
    checks.check_queries_and_keys(x.q, x.k)
    checks.check_masks(x.q, x.k, x.key_mask, False, x.cu_seqlens)


def _check_values(x: Operands) -> None:
    checks.check_boundaries(x.cu_seqlens, x.x.shape[2])


def _check_values_of_pair(x: MatchOperands | EntropyOperands) -> None:
    checks.check_boundaries(x.cu_seqlens, x.k.shape[2])


moments = Operation("moments", Operands, Moments, empty=_empty, check=_check, check_values=_check_values)
match = Operation(
    "match", MatchOperands, Matched, empty=_empty_match, check=_check_pair, check_values=_check_values_of_pair
)
entropies = Operation(
    "entropies",
    EntropyOperands,
    Entropies,
    empty=_empty_entropies,
    check=_check_pair,
    check_values=_check_values_of_pair,
)
