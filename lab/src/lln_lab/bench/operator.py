"""The chunked backend against the plain eager form of eq. 8 with autograd, and how its time grows with the length."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lln.attention import lln_attention
from lln.measuring.memory import peak_extra_bytes
from lln.measuring.timing import Timing, interleaved

ALPHA = BETA = 2.0


@dataclass(frozen=True)
class Plan:
    heads: int = 12
    head_dim: int = 64
    length: int = 16_384
    longest: int = 262_144
    repeats: int = 7


def eager(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Eq. 8 as one would write it down, stable, with autograd's backward."""
    keys = BETA * k
    c = keys.amax(dim=2, keepdim=True).detach()
    queries = ALPHA * q + c
    f = (queries - queries.amax(dim=-1, keepdim=True).detach()).exp()
    g = (keys - c).exp()
    return (f @ (g.mT @ v)) / (f @ g.sum(dim=2)[..., None])


METHODS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "plain eager": eager,
    "chunked": lambda q, k, v: lln_attention(q, k, v, ALPHA, BETA, backend="chunked"),
    "chunked, causal": lambda q, k, v: lln_attention(q, k, v, ALPHA, BETA, is_causal=True, backend="chunked"),
    "automatic backend": lambda q, k, v: lln_attention(q, k, v, ALPHA, BETA),
}


def step(method: str, heads: int, length: int, head_dim: int) -> Callable[[], Any]:
    """Inputs, and a call that runs forward and backward of `method` on them."""
    generator = torch.Generator().manual_seed(0)
    inputs = [torch.randn(1, heads, length, head_dim, generator=generator, requires_grad=True) for _ in range(3)]
    upstream = torch.randn(1, heads, length, head_dim, generator=generator)
    return lambda: torch.autograd.grad(METHODS[method](*inputs), inputs, upstream)


def run(plan: Plan, on_progress: Callable[[str], None]) -> dict[str, Any]:
    return {"against_eager": against_eager(plan, on_progress), "growth": growth(plan, on_progress)}


def against_eager(plan: Plan, on_progress: Callable[[str], None]) -> dict[str, Any]:
    shape = (plan.heads, plan.length, plan.head_dim)
    on_progress(f"time at N = {plan.length:,}")
    timings = interleaved({name: step(name, *shape) for name in METHODS}, repeats=plan.repeats)
    rows: dict[str, tuple[Timing, int]] = {}
    for name, timing in timings.items():
        on_progress(f"memory of {name}")
        rows[name] = (timing, peak_extra_bytes(step, name, *shape))
    first_timing, first_bytes = rows["plain eager"]
    methods = {
        name: {
            "seconds": timing.median,
            "quartiles": timing.quartiles,
            "time_ratio": timing.median / first_timing.median,
            "megabytes": size / 1e6,
            "memory_ratio": size / first_bytes,
        }
        for name, (timing, size) in rows.items()
    }
    return {"length": plan.length, "heads": plan.heads, "head_dim": plan.head_dim, "methods": methods}


def growth(plan: Plan, on_progress: Callable[[str], None]) -> dict[str, Any]:
    """Median time of forward + backward with one head, and the exponent of N between neighbouring lengths."""
    lengths = [2**power for power in range(12, 40, 2) if 2**power < plan.longest] + [plan.longest]
    methods = ("chunked", "chunked, causal", "automatic backend")
    seconds: dict[str, list[float]] = {name: [] for name in methods}
    for length in lengths:
        on_progress(f"time at N = {length:,}")
        timings = interleaved({name: step(name, 1, length, plan.head_dim) for name in methods}, repeats=3)
        for name, timing in timings.items():
            seconds[name].append(timing.median)
    exponents = {
        name: [
            math.log(taken[i + 1] / taken[i]) / math.log(lengths[i + 1] / lengths[i]) for i in range(len(lengths) - 1)
        ]
        for name, taken in seconds.items()
    }
    return {"lengths": lengths, "seconds": seconds, "exponents": exponents}
