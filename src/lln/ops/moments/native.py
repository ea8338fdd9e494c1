"""Sums over positions, and matching in one call, on the compiled kernel."""

import math
from functools import cache

import torch
from torch import Tensor

from lln.ops.backends import Backend
from lln.ops.moments.op import Matched, MatchOperands, Moments, Operands, match, moments
from lln.ops.moments.table import kept_values, load
from lln.ops.native.call import available, boundaries, run, supports


def forward(x: Operands) -> Moments:
    """One pass over x; sums are in float64 throughout."""
    edges = boundaries(x.cu_seqlens)
    sequences = _sequences(x.x, edges)
    count = torch.empty(sequences, dtype=torch.int64)
    total = torch.empty(sequences, x.x.shape[1], x.x.shape[3], dtype=torch.float64)
    squares = torch.empty_like(total)
    run("moments", x=x.x, key_mask=x.key_mask, cu_seqlens=edges, count=count, total=total, squares=squares)
    return Moments(count.double(), total, squares)


def forward_match(x: MatchOperands) -> Matched:
    """By the table or on a sample, all heads in one call."""
    edges = boundaries(x.cu_seqlens)
    shape = (_sequences(x.k, edges), x.k.shape[1])
    alpha, beta = torch.empty(shape, dtype=torch.float64), torch.empty(shape, dtype=torch.float64)
    entropies = torch.full((*shape, 2), math.nan, dtype=torch.float64)
    table, log2_t, log2_length = _table(x.target, x.q.shape[-1])
    query_mask = x.key_mask if x.q.shape[2] == x.k.shape[2] else None
    run(
        "match", q=x.q, k=x.k, query_mask=query_mask, key_mask=x.key_mask, cu_seqlens=edges,
        center_keys=x.center_keys, scale=x.scale, table=table, first_log2_t=log2_t[0], step_log2_t=log2_t[1],
        first_log2_length=log2_length[0], step_log2_length=log2_length[1], alpha=alpha, beta=beta,
        entropies=entropies if x.method == "sample" else None,
    )  # fmt: skip
    return Matched(alpha, beta, entropies)


@cache
def _table(target: str, head_dim: int) -> tuple[Tensor, tuple[float, float], tuple[float, float]]:
    """log2 r over (lengths, temperatures), and the first point and the step of both grids, temperatures first."""
    values = kept_values(target, head_dim, torch.float64, torch.device("cpu")).contiguous()
    log2_t, log2_length = ((grid["first"], grid["step"]) for grid in (load()["log2_t"], load()["log2_length"]))
    return values, log2_t, log2_length


def _sequences(x: Tensor, edges: Tensor | None) -> int:
    return x.shape[0] if edges is None else max(edges.numel() - 1, 0)


def _refuses(x: Operands) -> str | None:
    return supports(x.x)


def _refuses_match(x: MatchOperands) -> str | None:
    if x.per != "head" or x.target == "paper":
        return "the native backend matches each head by itself, to the entropy or the variance"
    return supports(x.q, x.k)


moments.backends.register(Backend("native", forward, None, _refuses, available, expected_on="cpu"))
match.backends.register(Backend("native", forward_match, None, _refuses_match, available, expected_on="cpu"))
