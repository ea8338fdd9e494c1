"""Inputs of many distributions, and how concentrated LLN attention is on them beside softmax attention.

    Gaussian                    q, k ~ N(0, 1)
    mean of one deviation       + mu_q, mu_k ~ N(0, 1) per feature
    shared mean of three        + mu ~ N(0, 9) per feature, the same for q and k
    anisotropic 100 : 1         feature deviations fall from 100 to 1, geometrically; unit variance overall
    Student t, 3 degrees        unit variance
    low rank d/16               z A / sqrt(r) with z ~ N(0, 1) of r = d/16 features and one A ~ N(0, 1) for both
    q = k                       N(0, 1)

What is told is the mean row entropy over all keys, in bits, of rows spread evenly over the queries (all, if there are
no more than `rows`).
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from lln.matching import match_moments

TOLERATED_BITS, TOLERATED_SHARE = 0.15, 0.03
_AT_A_TIME = 1 << 22  # entries of the matrix


@dataclass(frozen=True)
class Plan:
    head_dims: tuple[int, ...] = (16, 64, 256)
    lengths: tuple[int, ...] = (256, 1024, 4096, 16384)
    seeds: int = 8
    rows: int = 2048
    methods: tuple[str, ...] = ("table", "sample")


def run(plan: Plan, tell: Callable[[str], None] = lambda _: None) -> dict[str, Any]:
    rows = []
    for head_dim, length, name in cells(plan):
        tell(f"{name}, d = {head_dim}, N = {length:,}")
        rows.append({"inputs": name, "head_dim": head_dim, "length": length, **_cell(plan, name, head_dim, length)})
    return {"plan": asdict(plan), "rows": rows, "within": {m: _within(rows, m) for m in plan.methods}}


def cells(plan: Plan) -> Iterator[tuple[int, int, str]]:
    for head_dim in plan.head_dims:
        for length in plan.lengths:
            for name in INPUTS:
                yield head_dim, length, name


def tolerated(softmax_bits: float) -> float:
    return max(TOLERATED_BITS, TOLERATED_SHARE * softmax_bits)


def _within(rows: list[dict[str, Any]], method: str) -> dict[str, int]:
    met = [abs(row[method]["difference"]) <= tolerated(row["softmax"]) for row in rows]
    return {"cells": len(met), "met": sum(met)}


def _cell(plan: Plan, name: str, head_dim: int, length: int) -> dict[str, Any]:
    softmax: list[float] = []
    lln: dict[str, list[float]] = {method: [] for method in plan.methods}
    for seed in range(plan.seeds):
        q, k = draw(name, head_dim, length, seed)
        softmax.append(softmax_entropy(q, k, plan.rows))
        for method, found in lln.items():
            found.append(lln_entropy(q, k, *match_moments(q, k, method=method), plan.rows))
    base = torch.tensor(softmax)
    result: dict[str, Any] = {"softmax": float(base.mean()), "tolerated": tolerated(float(base.mean()))}
    for method, found in lln.items():
        off = torch.tensor(found) - base
        result[method] = {"difference": float(off.mean()), "deviation": float(off.std()), "each": off.tolist()}
    return result


def draw(name: str, head_dim: int, length: int, seed: int) -> tuple[Tensor, Tensor]:
    """q and k (1, 1, N, D) in float32."""
    generator = torch.Generator().manual_seed(7919 * seed + 17)
    q, k = INPUTS[name](length, head_dim, generator)
    return q[None, None], k[None, None]


def _pair(n: int, d: int, g: torch.Generator) -> tuple[Tensor, Tensor]:
    return torch.randn(n, d, generator=g), torch.randn(n, d, generator=g)


def _mean_of_one(n: int, d: int, g: torch.Generator) -> tuple[Tensor, Tensor]:
    q, k = _pair(n, d, g)
    return q + torch.randn(d, generator=g), k + torch.randn(d, generator=g)


def _shared_mean_of_three(n: int, d: int, g: torch.Generator) -> tuple[Tensor, Tensor]:
    q, k = _pair(n, d, g)
    mean = 3 * torch.randn(d, generator=g)
    return q + mean, k + mean


def _anisotropic(n: int, d: int, g: torch.Generator) -> tuple[Tensor, Tensor]:
    q, k = _pair(n, d, g)
    deviation = 100.0 ** (-torch.arange(d) / (d - 1))
    deviation = deviation / deviation.square().mean().sqrt()
    return q * deviation, k * deviation


def _student_t(n: int, d: int, g: torch.Generator) -> tuple[Tensor, Tensor]:
    def one() -> Tensor:
        """Normal over the root of a chi square of three degrees over three; over its own deviation, sqrt 3."""
        chi_square = torch.randn(3, n, d, generator=g).square().sum(dim=0)
        return torch.randn(n, d, generator=g) / (chi_square / 3).sqrt() / math.sqrt(3)

    return one(), one()


def _low_rank(n: int, d: int, g: torch.Generator) -> tuple[Tensor, Tensor]:
    rank = max(1, d // 16)
    spread = torch.randn(rank, d, generator=g) / math.sqrt(rank)
    return torch.randn(n, rank, generator=g) @ spread, torch.randn(n, rank, generator=g) @ spread


def _equal(n: int, d: int, g: torch.Generator) -> tuple[Tensor, Tensor]:
    q = torch.randn(n, d, generator=g)
    return q, q.clone()


INPUTS: dict[str, Callable[[int, int, torch.Generator], tuple[Tensor, Tensor]]] = {
    "Gaussian": _pair,
    "mean of one deviation": _mean_of_one,
    "shared mean of three deviations": _shared_mean_of_three,
    "anisotropic 100 : 1": _anisotropic,
    "Student t, 3 degrees": _student_t,
    "low rank d/16": _low_rank,
    "q = k": _equal,
}


def softmax_entropy(q: Tensor, k: Tensor, rows: int, scale: float | None = None) -> float:
    """Mean row entropy in bits of q (1, 1, N, D) and k (1, 1, N, D)."""
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    return _mean_entropy(q, k, rows, lambda some: scale * some @ k[0, 0].T)


def lln_entropy(q: Tensor, k: Tensor, alpha: Tensor, beta: Tensor, rows: int) -> float:
    """The same of LLN attention with alpha and beta (1, 1, 1, 1)."""
    key = beta[0, 0] * k[0, 0]
    peak = key.amax(dim=0)
    features = (key - peak).exp().T

    def log_kernel(some: Tensor) -> Tensor:
        query = alpha[0, 0] * some + peak
        return ((query - query.amax(dim=1, keepdim=True)).exp() @ features).clamp_min(1e-37).log()

    return _mean_entropy(q, k, rows, log_kernel)


def _mean_entropy(q: Tensor, k: Tensor, rows: int, log_weights: Callable[[Tensor], Tensor]) -> float:
    count = q.shape[2]
    chosen = q[0, 0, torch.arange(min(rows, count)) * count // min(rows, count)]
    total = 0.0
    for some in chosen.split(max(1, _AT_A_TIME // k.shape[2])):
        log_p = torch.log_softmax(log_weights(some), dim=-1)
        total -= float((log_p.exp() * log_p).sum())
    return total / len(chosen) / math.log(2)
