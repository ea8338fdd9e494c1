"""Moment matching: alpha and beta that give LLN attention the concentration softmax attention would have.

    alpha = sigma~ / (sqrt 2 sigma_q),    beta = sigma~ / (sqrt 2 sigma_k)                                   (eq. 10)

so that alpha^2 sigma_q^2 = beta^2 sigma_k^2 = s/2 with

    s = sigma~^2 = alpha^2 sigma_q^2 + beta^2 sigma_k^2                                                      (eq. 26)

What differs is how s follows from q and k, through T = scale^2 d sigma_q^2 sigma_k^2, the variance of softmax's logits:

    target "entropy"   the mean row entropy of LLN attention equals softmax's                        calibrated table
    target "variance"  the variance of log P equals softmax's, the paper's aim                       calibrated table
    target "paper"     s = (T - b) / a with the published constants and whole-tensor deviations      eq. 10

The paper takes the variance of log P to be a s + b (eq. 33) and sets it equal to softmax's, T (eq. 34). That line holds
for one head size and a small range of T; the table (`lln.tables`) holds for head sizes 8 to 256, lengths to 65,536 and T
up to 64. With r = s/T, which the table gives,

    alpha = sqrt(r scale^2 d / 2) sigma_k,    beta = sqrt(r scale^2 d / 2) sigma_q

is the same as eq. 10 but divides by nothing, so constant queries or keys, a single token or only padding give finite
values.
"""

from functools import cache
from typing import Any

import torch
from torch import Tensor

from lln import backends
from lln.backends.operator import batching_rule, compute_dtype
from lln.instance_matching import matched_on_instance
from lln.statistics import Statistics, accumulation_dtype, computed_moments, differentiable_moments, statistics_of
from lln.tables import calibrated_range, differentiable_matched_ratio, kept_values, load, matched_ratio

DEFAULT_TARGET = "entropy"
TARGETS = ("entropy", "variance", "paper")
PER = ("head", "tensor")
METHODS = ("table", "instance")

PAPER_A = 0.14855178144710912  # the authors' constants of eq. 34
PAPER_B = -0.35487039130661086

_SMALLEST_VARIANCE = 1e-30  # keeps the gradient of the square root finite; a spread this small matches nothing anyway

__all__ = ["DEFAULT_TARGET", "TARGETS", "calibrated_range", "match_moments"]


def match_moments(
    q: Tensor,
    k: Tensor,
    *,
    target: str = DEFAULT_TARGET,
    per: str | None = None,
    method: str = "table",
    key_padding_mask: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    scale: float | None = None,
    center_keys: bool = False,
    detach: bool = True,
) -> tuple[Tensor, Tensor]:
    """alpha (S, Hq, 1, 1) and beta (S, Hk, 1, 1) for q (B, Hq, Nq, D) and k (B, Hk, Nk, D), in float32 at least.

    S is the batch size, or the number of packed sequences. sigma_q is pooled over the query heads of each key head.

    target: "entropy", "variance" or "paper", see above.
    per: "head" takes the statistics of each sample and head, so that batch mates have no influence; "tensor" those of
        the whole tensor, as the paper does. None means "tensor" for the paper's target and "head" otherwise.
    method: "table", or "instance": root finding on 2,048 rows of these very inputs, for "entropy" and "variance". It
    costs
        several passes of O(rows N d), carries no gradient and does not compile.
    key_padding_mask: (B, Nk) bool, True where a key counts. With Nq = Nk queries and keys are taken to be the same
        tokens and it masks the queries' statistics too; with Nq != Nk all queries count.
    cu_seqlens: (S + 1,) boundaries of packed sequences, whose tensors are (1, H, total, D).
    scale: of the softmax to be matched; None is 1/sqrt(D).
    center_keys: measure sigma_k about the mean key, for callers who subtract it (feature_bias = -beta * mean key).
    detach: False lets gradients flow through the statistics.
    """
    per = _resolve_per(per, target)
    _check_names(target, per, method)
    _check_tensors(q, k, key_padding_mask, cu_seqlens)
    if detach:
        alpha, beta = _match_op(q.detach(), k.detach(), key_padding_mask, cu_seqlens, target, per, scale, center_keys)
    else:
        statistics = statistics_of(
            q, k, per=per, key_padding_mask=key_padding_mask, cu_seqlens=cu_seqlens, center_keys=center_keys,
            ddof=degrees_of_freedom(target), measure=differentiable_moments,
        )  # fmt: skip
        alpha, beta = match_statistics(statistics, q.shape[-1], target=target, scale=scale, detach=False)
    if method == "instance":
        alpha, beta = matched_on_instance(
            q, k, (alpha.detach(), beta.detach()), target, scale, key_padding_mask, cu_seqlens, center_keys
        )
    return shape_for_attention(alpha, beta, q.shape[1], compute_dtype(q.dtype))


@torch.library.custom_op("lln::match_moments", mutates_args=())
def _match_op(
    q: Tensor,
    k: Tensor,
    key_padding_mask: Tensor | None,
    cu_seqlens: Tensor | None,
    target: str,
    per: str,
    scale: float | None,
    center_keys: bool,
) -> tuple[Tensor, Tensor]:
    """alpha and beta (S, Hk): one step from q and k, because for short inputs what costs is the number of steps."""
    if per == "head" and target != "paper" and backends.refusal("native", q, k, k) is None:
        return _match_natively(q, k, key_padding_mask, cu_seqlens, target, scale, center_keys)
    statistics = statistics_of(
        q, k, per=per, key_padding_mask=key_padding_mask, cu_seqlens=cu_seqlens, center_keys=center_keys,
        ddof=degrees_of_freedom(target), measure=computed_moments,
    )  # fmt: skip
    return match_statistics(statistics, q.shape[-1], target=target, scale=scale, detach=False)


def _match_natively(
    q: Tensor,
    k: Tensor,
    key_padding_mask: Tensor | None,
    cu_seqlens: Tensor | None,
    target: str,
    scale: float | None,
    center_keys: bool,
) -> tuple[Tensor, Tensor]:
    """`match_statistics` of `statistics_of`, in the kernel."""
    head_dim = q.shape[-1]
    query_mask = key_padding_mask if q.shape[2] == k.shape[2] else None
    squared_scale = 1.0 / head_dim if scale is None else scale**2
    return backends.native.match(
        q, k, query_mask, key_padding_mask, cu_seqlens, *_table(target, head_dim), squared_scale, center_keys
    )


@cache
def _table(target: str, head_dim: int) -> tuple[Tensor, tuple[float, float], tuple[float, float]]:
    """log2 r over (lengths, temperatures), and the first point and the step of both grids, temperatures first."""
    values = kept_values(target, head_dim, torch.float64, torch.device("cpu")).contiguous()
    log2_t, log2_length = ((grid["first"], grid["step"]) for grid in (load()["log2_t"], load()["log2_length"]))
    return values, log2_t, log2_length


@_match_op.register_fake
def _fake_match(q: Tensor, k: Tensor, mask: Tensor | None, cu_seqlens: Tensor | None, *_: Any) -> tuple[Tensor, Tensor]:
    sequences = q.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
    shape, dtype = (sequences, k.shape[1]), accumulation_dtype(q.device)
    return q.new_empty(shape, dtype=dtype), q.new_empty(shape, dtype=dtype)


_match_op.register_vmap(batching_rule(_match_op, outputs=2))


def match_statistics(
    statistics: Statistics,
    head_dim: int,
    *,
    target: str = DEFAULT_TARGET,
    scale: float | None = None,
    detach: bool = True,
) -> tuple[Tensor, Tensor]:
    """alpha and beta (S, Hk) from given variances, in their dtype; `target` "paper" solves eq. 33 for the sum of eq. 26."""
    squared_scale = 1.0 / head_dim if scale is None else scale**2
    var_q = statistics.var_q.clamp_min(_SMALLEST_VARIANCE)
    var_k = statistics.var_k.clamp_min(_SMALLEST_VARIANCE)
    t = squared_scale * head_dim * var_q * var_k
    if target == "paper":
        half = ((t - PAPER_B) / PAPER_A / 2).sqrt()
        # a constant tensor has no deviation to divide by, and any alpha gives the same attention
        return half * _inverse_deviation(statistics.var_q), half * _inverse_deviation(statistics.var_k)
    keys = statistics.keys[:, None].expand_as(t)
    ratio = (matched_ratio if detach else differentiable_matched_ratio)(t, keys, target, head_dim)
    common = (ratio * (squared_scale * head_dim / 2)).sqrt()
    return common * var_k.sqrt(), common * var_q.sqrt()


def shape_for_attention(alpha: Tensor, beta: Tensor, query_heads: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """(S, Hk) -> alpha (S, Hq, 1, 1), repeated for the query heads of each key head, and beta (S, Hk, 1, 1)."""
    if query_heads != alpha.shape[1]:
        alpha = alpha.repeat_interleave(query_heads // alpha.shape[1], dim=1)
    return alpha.to(dtype)[:, :, None, None], beta.to(dtype)[:, :, None, None]


def degrees_of_freedom(target: str) -> int:
    """The paper's deviations are sample deviations; with thousands of numbers it hardly matters, but values agree."""
    return 1 if target == "paper" else 0


def _inverse_deviation(variance: Tensor) -> Tensor:
    constant = variance <= _SMALLEST_VARIANCE
    return torch.where(constant, 1.0, torch.where(constant, 1.0, variance).rsqrt())


def _resolve_per(per: str | None, target: str) -> str:
    if per is None:
        return "tensor" if target == "paper" else "head"
    return per


def _check_names(target: str, per: str, method: str) -> None:
    for name, given, known in (("target", target, TARGETS), ("per", per, PER), ("method", method, METHODS)):
        if given not in known:
            raise ValueError(f"unknown {name} {given!r}: choose one of {', '.join(map(repr, known))}")
    if method == "instance" and target == "paper":
        raise ValueError("target 'paper' is a formula, so method='instance' has nothing to find: use method='table'")
    if method == "instance" and per != "head":
        raise ValueError(f"method='instance' matches each sample and head by itself: it needs per='head', got {per!r}")


def _check_tensors(q: Tensor, k: Tensor, key_padding_mask: Tensor | None, cu_seqlens: Tensor | None) -> None:
    if q.dim() != 4 or k.dim() != 4:
        raise ValueError(
            f"q and k must be (batch, heads, length, head size), got {tuple(q.shape)} and {tuple(k.shape)}"
        )
    if q.shape[0] != k.shape[0] or q.shape[3] != k.shape[3]:
        raise ValueError(f"q and k must agree in batch and head size, got {tuple(q.shape)} and {tuple(k.shape)}")
    if q.shape[1] % k.shape[1]:
        raise ValueError(f"query heads must be a multiple of key heads, got {q.shape[1]} and {k.shape[1]}")
    if key_padding_mask is not None:
        if cu_seqlens is not None:
            raise ValueError(
                "packed sequences (cu_seqlens) have no padding: give cu_seqlens or key_padding_mask, not both"
            )
        if key_padding_mask.dtype != torch.bool or key_padding_mask.shape != (k.shape[0], k.shape[2]):
            raise ValueError(
                f"key_padding_mask must be bool of shape ({k.shape[0]}, {k.shape[2]}), True where a key counts, "
                f"got {key_padding_mask.dtype} of shape {tuple(key_padding_mask.shape)}"
            )
    if cu_seqlens is not None and (q.shape[0] != 1 or q.shape[2] != k.shape[2]):
        raise ValueError(
            f"packed q and k must be (1, heads, total, head size) of one length, "
            f"got {tuple(q.shape)} and {tuple(k.shape)}"
        )
