"""Moment matching: alpha and beta that give LLN attention the concentration softmax attention would have.

    alpha = sigma~ / (sqrt 2 sigma_q),    beta = sigma~ / (sqrt 2 sigma_k)                                   (eq. 10)

so that alpha^2 sigma_q^2 = beta^2 sigma_k^2 = s/2 with

    s = sigma~^2 = alpha^2 sigma_q^2 + beta^2 sigma_k^2                                                      (eq. 26)

What differs is how s follows from q and k, through T = scale^2 d sigma_q^2 sigma_k^2, the variance of softmax's logits:

    target "entropy"   the mean row entropy of LLN attention equals softmax's                        sample or table
    target "variance"  the variance of log P equals softmax's, the paper's aim                       calibrated table
    target "paper"     s = (T - b) / a with the published constants and whole-tensor deviations      eq. 10

The paper takes the variance of log P to be a s + b (eq. 33) and sets it equal to softmax's, T (eq. 34). That line holds
for one head size and a small range of T; the table (`lln.ops.moments.table`) holds for head sizes 8 to 256, lengths to
65,536 and T up to 64. With r = s/T, which the table gives,

    alpha = sqrt(r scale^2 d / 2) sigma_k,    beta = sqrt(r scale^2 d / 2) sigma_q

is the same as eq. 10 but divides by nothing, so constant queries or keys, a single token or only padding give finite
values. The table is calibrated on Gaussian q and k, and real ones are not Gaussian: exponential features follow the
extremes of single features, which variances do not capture. The default therefore starts from the table and finds a
correcting factor on alpha and beta on a sample of the inputs themselves (`lln.ops.moments.search`).
"""

import math
from typing import Any, Literal, NamedTuple, overload

import torch
from torch import Tensor

from lln.matching.instance import matched_on_instance
from lln.matching.reached import warn_of_search, warn_of_table
from lln.ops import stretches
from lln.ops.checks import check_boundaries, check_masks, check_queries_and_keys, refuse_unknown, softmax_scale
from lln.ops.lln.op import compute_dtype
from lln.ops.moments import EntropyOperands, MatchOperands, entropies, match
from lln.ops.moments.formula import DEFAULT_TARGET, degrees_of_freedom, match_statistics
from lln.ops.moments.statistics import Statistics, differentiable_moments, statistics_of
from lln.ops.stretches import over_group, own_boundaries

TARGETS = ("entropy", "variance", "paper")
PER = ("head", "tensor")
METHODS = ("sample", "table", "instance")


class MatchingReport(NamedTuple):
    """The outcome of matching: mean row entropies on a sample of the inputs, in bits, (S, Hk) each."""

    softmax: Tensor
    lln: Tensor


@overload
def match_moments(
    q: Tensor,
    k: Tensor,
    *,
    target: str = DEFAULT_TARGET,
    per: str | None = None,
    method: str | None = None,
    key_mask: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    scale: float | None = None,
    center_keys: bool = False,
    detach: bool = True,
    return_report: Literal[False] = False,
    group: Any = None,
) -> tuple[Tensor, Tensor]: ...
@overload
def match_moments(
    q: Tensor,
    k: Tensor,
    *,
    target: str = DEFAULT_TARGET,
    per: str | None = None,
    method: str | None = None,
    key_mask: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    scale: float | None = None,
    center_keys: bool = False,
    detach: bool = True,
    return_report: Literal[True],
    group: Any = None,
) -> tuple[Tensor, Tensor, MatchingReport]: ...
def match_moments(
    q: Tensor,
    k: Tensor,
    *,
    target: str = DEFAULT_TARGET,
    per: str | None = None,
    method: str | None = None,
    key_mask: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    scale: float | None = None,
    center_keys: bool = False,
    detach: bool = True,
    return_report: bool = False,
    group: Any = None,
    **refused: Any,
) -> tuple[Tensor, Tensor] | tuple[Tensor, Tensor, MatchingReport]:
    """alpha (S, Hq, 1, 1) and beta (S, Hk, 1, 1) for q (B, Hq, Nq, D) and k (B, Hk, Nk, D), in float32 at least.

    S is the batch size or the number of packed sequences. sigma_q is pooled over the query heads that share a key head.

    target: "entropy", "variance" or "paper", see above.
    per: "head" uses statistics of each sample and head, independent of the rest of the batch; "tensor" those of the whole
        tensor, as the paper does. None means "tensor" for target "paper" and "head" otherwise.
    method: "sample": what is matched is the entropy on a sample of these inputs, whatever their distribution, for
        target "entropy" per head. "table": what would be right were they Gaussian. "instance": root finding on
        2,048 rows of these inputs and all keys, for "entropy" and "variance"; it costs several passes of O(rows N d),
        carries no gradient and does not compile. None means "sample" where it can be, else "table".
    key_mask: (B, Nk) bool, False for masked keys. If Nq = Nk, queries and keys are assumed to be the same tokens, and it
        masks the queries too; otherwise all queries count.
    cu_seqlens: (S + 1,) boundaries of packed sequences, whose tensors are (1, H, total, D).
    scale: scale of the softmax to match; None means 1/sqrt(D).
    center_keys: measure sigma_k about the mean key, for callers that subtract it (feature_bias = -beta * mean key).
    detach: False lets gradients flow through the statistics of the table; the factor on them that method "sample" finds
        is a constant.
    return_report: return (alpha, beta, `MatchingReport`); this measures both attentions once more.
    group: process group, or device-mesh dimension, that shares the sequence; q and k are this process's part of it
        (`lln.parallel`).
    """
    if group is not None:
        return over_group(match_moments, locals())
    refuse_unknown(refused)
    per = "tensor" if per is None and target == "paper" else "head" if per is None else per
    method = _resolve_method(method, target, per)
    _check_names(target, per, method)
    check_queries_and_keys(q, k)
    if cu_seqlens is not None:
        cu_seqlens = own_boundaries(cu_seqlens, k.shape[2])
    check_masks(q, k, key_mask, False, cu_seqlens)
    if not torch.compiler.is_compiling():  # reading the boundaries would break the graph; there the operator does it
        check_boundaries(cu_seqlens, k.shape[2])
    edges = None if cu_seqlens is None else cu_seqlens.to(q.device, torch.int64)
    x = MatchOperands(
        q.detach(), k.detach(), key_mask, edges, "table" if method == "instance" else method, target, per,
        softmax_scale(scale, q.shape[-1]), center_keys,
    )  # fmt: skip
    alpha, beta, reached = match(x)
    if not detach:
        from_table = _differentiable_table(q, k, x)
        alpha, beta = (
            table * (found / table.detach()) if method == "sample" else table
            for table, found in zip(from_table, (alpha, beta), strict=True)
        )
    if method == "instance":
        if stretches.holders is not None:
            raise ValueError(
                "method='instance' compares rows with all keys, which no process has here: use method='sample' or 'table'"
            )
        alpha, beta = matched_on_instance(
            q, k, (alpha.detach(), beta.detach()), target, scale, key_mask, cu_seqlens, center_keys
        )

    def measured() -> tuple[Tensor, Tensor]:
        given = (x.q, x.k, key_mask, edges, alpha.detach(), beta.detach(), x.scale, center_keys)
        softmax, lln = entropies(EntropyOperands(*given))
        return softmax, lln

    if method == "sample":
        warn_of_search(reached)
    elif method == "table" and target == "entropy" and per == "head":
        warn_of_table(alpha, lambda: torch.stack(measured(), dim=-1))
    shaped = shape_for_attention(alpha, beta, q.shape[1], compute_dtype(q.dtype))
    return (*shaped, MatchingReport(*(h / math.log(2) for h in measured()))) if return_report else shaped


def sample_factor(
    q: Tensor,
    k: Tensor,
    *,
    key_mask: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    scale: float | None = None,
    center_keys: bool = False,
    statistics: Statistics | None = None,
) -> Tensor:
    """(S, Hk, 2): logs of the factors on the table's alpha and beta that method "sample" finds; 0 where it is right.

    It is what a causal layer can keep a running mean of, since a sample of the sequence itself would look into the
    future. `statistics` are those of q and k, where they are known already.
    """
    check_queries_and_keys(q, k)
    q, k = q.detach(), k.detach()
    if statistics is None:
        statistics = statistics_of(q, k, key_mask=key_mask, cu_seqlens=cu_seqlens, center_keys=center_keys)
    table = match_statistics(statistics._replace(log_factor=None), q.shape[-1], scale=scale)
    edges = None if cu_seqlens is None else cu_seqlens.to(q.device, torch.int64)
    scale = softmax_scale(scale, q.shape[-1])
    found = match(MatchOperands(q, k, key_mask, edges, "sample", DEFAULT_TARGET, "head", scale, center_keys))
    return torch.stack([found.alpha / table[0], found.beta / table[1]], dim=-1).log()


def _differentiable_table(q: Tensor, k: Tensor, x: MatchOperands) -> tuple[Tensor, Tensor]:
    statistics = statistics_of(
        q, k, per=x.per, key_mask=x.key_mask, cu_seqlens=x.cu_seqlens, center_keys=x.center_keys,
        ddof=degrees_of_freedom(x.target), measure=differentiable_moments,
    )  # fmt: skip
    return match_statistics(statistics, q.shape[-1], target=x.target, scale=x.scale, detach=False)


def shape_for_attention(alpha: Tensor, beta: Tensor, query_heads: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """(S, Hk) -> alpha (S, Hq, 1, 1), repeated for the query heads of each key head, and beta (S, Hk, 1, 1)."""
    if query_heads != alpha.shape[1]:
        alpha = alpha.repeat_interleave(query_heads // alpha.shape[1], dim=1)
    return alpha.to(dtype).reshape(*alpha.shape, 1, 1), beta.to(dtype).reshape(*beta.shape, 1, 1)


def _resolve_method(method: str | None, target: str, per: str) -> str:
    if method is None:
        return "sample" if target == "entropy" and per == "head" else "table"
    return method


def _check_names(target: str, per: str, method: str) -> None:
    for name, given, known in (("target", target, TARGETS), ("per", per, PER), ("method", method, METHODS)):
        if given not in known:
            raise ValueError(f"unknown {name} {given!r}: choose one of {', '.join(map(repr, known))}")
    if method == "sample" and target != "entropy":
        raise ValueError(f"method='sample' matches the entropy, not target {target!r}: use method='table'")
    if method == "instance" and target == "paper":
        raise ValueError("target 'paper' is a formula, so method='instance' has nothing to find: use method='table'")
    if method != "table" and per != "head":
        raise ValueError(f"method={method!r} matches each sample and head by itself: it needs per='head', got {per!r}")
