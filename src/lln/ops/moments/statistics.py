"""Statistics of queries and keys: sums over the positions that count, and the variances that moment matching needs.

For each sample s, head h and feature l, over the positions i of the sample that count:

    count_s = sum_i 1,    total_shl = sum_i x_shil,    squares_shl = sum_i x_shil^2

Sums are accumulated in float64, piece by piece, so that neither length nor dtype costs accuracy and no float64 copy of
the whole length is made. From them come the variances of q and k that eq. 10 asks for:

    about the scalar mean:  var = mean_il x^2 - (mean_il x)^2         what the paper calls sigma^2
    about the mean key:     var = mean_l (mean_i x^2 - (mean_i x)^2)  what is left when the mean key is subtracted

A key head shared by several query heads has one sigma_q: the variance pooled over those query heads.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from lln.ops.lln.op import accumulation_dtype
from lln.ops.masks import sequence_of_positions
from lln.ops.moments.op import Moments, Operands
from lln.ops.moments.op import moments as moments_operation
from lln.ops.moments.plain_sums import counts, without_padding
from lln.ops.stretches import same_tokens, sums_of_all


class Statistics(NamedTuple):
    """What matching needs to know of a batch, per sample S and key head."""

    mean_q: Tensor  # (S, Hk), the scalar mean over positions, features and the query heads of the key head
    var_q: Tensor  # (S, Hk), about mean_q
    mean_key: Tensor  # (S, Hk, D)
    var_k: Tensor  # (S, Hk), about the scalar mean or about the mean key
    keys: Tensor  # (S,), how many keys count
    log_factor: Tensor | None = None  # (S, Hk, 2), by what alpha and beta are to be more than the table says; None: 0


def moments(x: Tensor, key_mask: Tensor | None = None, cu_seqlens: Tensor | None = None) -> Moments:
    """Sums of x (B, H, N, D) over the positions where key_mask (B, N) is True, or over each packed sequence.

    They carry no gradient; `differentiable_moments` does.
    """
    edges = None if cu_seqlens is None else cu_seqlens.to(x.device, torch.int64)
    return moments_operation(Operands(x.detach(), key_mask, edges))


def computed_moments(x: Tensor, key_mask: Tensor | None = None, cu_seqlens: Tensor | None = None) -> Moments:
    """`moments` without its operator around it: for the bodies of operators, which compilers do not look into."""
    given = Operands(x, key_mask, cu_seqlens)
    found: Moments = moments_operation.backends.pick("auto", given).forward(given)
    return found


def differentiable_moments(x: Tensor, key_mask: Tensor | None = None, cu_seqlens: Tensor | None = None) -> Moments:
    """The same sums by plain torch operations, for those who want gradients through the statistics."""
    dtype = accumulation_dtype(x.device)
    x = without_padding(x.to(dtype), key_mask)
    count = counts(x, key_mask, cu_seqlens)
    if cu_seqlens is None:
        return sums_of_all(Moments(count, x.sum(dim=2), x.square().sum(dim=2)))
    rows = x[0].transpose(0, 1)  # (N, H, D)
    zeros = rows.new_zeros(cu_seqlens.numel() - 1, *rows.shape[1:])
    segment = sequence_of_positions(cu_seqlens, x.shape[2])
    return sums_of_all(Moments(count, zeros.index_add(0, segment, rows), zeros.index_add(0, segment, rows.square())))


def statistics_of(
    q: Tensor,
    k: Tensor,
    *,
    per: str = "head",
    key_mask: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    center_keys: bool = False,
    ddof: int = 0,
    measure: Callable[..., Moments] = moments,
) -> Statistics:
    """Means and variances of q (B, Hq, Nq, D) and k (B, Hk, Nk, D), per sample and key head.

    key_mask (B, Nk) says which keys count. With Nq = Nk queries and keys are the same tokens, so it says which
    queries count too; with Nq != Nk every query counts. per="tensor" pools over samples and heads and repeats the
    result. `measure` is one of the functions above.
    """
    query_mask = key_mask if same_tokens(q, k) else None
    of_q = _share_query_heads(measure(q, query_mask, cu_seqlens), k.shape[1])
    of_k = measure(k, key_mask, cu_seqlens)
    mean_q, var_q = _about_scalar_mean(_pool(of_q) if per == "tensor" else of_q, ddof)
    if center_keys:
        var_k = _about_mean_key(of_k)
        if per == "tensor":
            weight = of_k.count / of_k.count.sum().clamp_min(1)
            var_k = (var_k.mean(dim=1) * weight).sum()[None, None]
    else:
        _, var_k = _about_scalar_mean(_pool(of_k) if per == "tensor" else of_k, ddof)
    shape = of_k.total.shape[:2]
    keys = of_k.count.mean()[None].expand(shape[0]) if per == "tensor" else of_k.count
    mean_key = of_k.total / of_k.count.clamp_min(1)[:, None, None]
    return Statistics(mean_q.expand(shape), var_q.expand(shape), mean_key, var_k.expand(shape), keys)


def _share_query_heads(m: Moments, key_heads: int) -> Moments:
    """Add up the query heads of each key head; count then counts positions of all of them."""
    groups = m.total.shape[1] // key_heads
    return Moments(
        m.count * groups,
        m.total.unflatten(1, (key_heads, groups)).sum(dim=2),
        m.squares.unflatten(1, (key_heads, groups)).sum(dim=2),
    )


def _pool(m: Moments) -> Moments:
    """One sample and one head that stand for all."""
    heads = m.total.shape[1]
    return Moments(
        m.count.sum()[None] * heads, m.total.sum(dim=(0, 1))[None, None], m.squares.sum(dim=(0, 1))[None, None]
    )


def _about_scalar_mean(m: Moments, ddof: int) -> tuple[Tensor, Tensor]:
    numbers = (m.count * m.total.shape[-1])[:, None]  # (S, 1)
    mean = m.total.sum(dim=-1) / numbers.clamp_min(1)
    centred = m.squares.sum(dim=-1) - numbers * mean.square()
    return mean, centred.clamp_min(0) / (numbers - ddof).clamp_min(1)


def _about_mean_key(m: Moments) -> Tensor:
    count = m.count.clamp_min(1)[:, None, None]
    return (m.squares / count - (m.total / count).square()).mean(dim=-1).clamp_min(0)
