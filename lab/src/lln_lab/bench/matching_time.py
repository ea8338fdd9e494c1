"""What matching adds to the time of attention, as ratios measured in one run."""

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lln.attention import lln_attention
from lln.matching import match_moments
from lln_lab.bench.matching_inputs import INPUTS, draw

GOALS = {1024: 1.3, 4096: 1.15}


def run(
    lengths: tuple[int, ...] = (1024, 4096),
    head_dim: int = 64,
    heads: int = 8,
    rounds: int = 40,
    tell: Callable[[str], None] = lambda _: None,
) -> list[dict[str, Any]]:
    """Time of attention that is matched over that with given alpha and beta: the best of each over all rounds."""
    rows = []
    for length in lengths:
        for name in INPUTS:
            tell(f"time, {name}, N = {length:,}")
            pairs = [draw(name, head_dim, length, seed) for seed in range(heads)]
            q, k = (torch.cat(x, dim=1) for x in zip(*pairs, strict=True))
            rows.append(
                {"inputs": name, "length": length, "head_dim": head_dim, "heads": heads, **_ratios(q, k, rounds)}
            )
    return rows


def _ratios(q: Tensor, k: Tensor, rounds: int) -> dict[str, Any]:
    v = torch.randn(k.shape, generator=torch.Generator().manual_seed(0))
    alpha, beta = match_moments(q, k)
    ways: dict[str, Callable[[], object]] = {
        "given": lambda: lln_attention(q, k, v, alpha, beta),
        "sample": lambda: lln_attention(q, k, v),
        "table": lambda: lln_attention(q, k, v, *match_moments(q, k, method="table")),
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):  # one after the other, so that all see the same machine
        for name, way in ways.items():
            started = time.thread_time() if torch.get_num_threads() == 1 else time.perf_counter()
            way()
            now = time.thread_time() if torch.get_num_threads() == 1 else time.perf_counter()
            seconds[name].append(now - started)
    best = {name: min(x) for name, x in seconds.items()}
    middle = {name: statistics.median(x) for name, x in seconds.items()}
    return {
        "given_seconds": best["given"],
        **{name: best[name] / best["given"] for name in ("sample", "table")},
        **{f"{name}_median": middle[name] / middle["given"] for name in ("sample", "table")},
    }
