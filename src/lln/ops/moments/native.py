"""Sums over positions, and matching in one call, on the compiled kernel."""

import math

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
    table = kept_values(x.target, x.q.shape[-1], torch.float64, torch.device("cpu"))
    log2_t, log2_length = load()["log2_t"], load()["log2_length"]
    query_mask = x.key_mask if x.q.shape[2] == x.k.shape[2] else None
    run(
        "match", q=x.q, k=x.k, query_mask=query_mask, key_mask=x.key_mask, cu_seqlens=edges,
        center_keys=x.center_keys, scale=x.scale, table=table, first_log2_t=log2_t["first"], step_log2_t=log2_t["step"],
        first_log2_length=log2_length["first"], step_log2_length=log2_length["step"], alpha=alpha, beta=beta,
        entropies=entropies if x.method == "sample" else None,
    )  # fmt: skip
    return Matched(alpha, beta, entropies)


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
