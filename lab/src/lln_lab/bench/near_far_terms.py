"""What each term of near-far attention does for its distance to softmax, and how well the far mass is estimated.

gaussian   Gaussian q, k and values that are half a linear map of k: squared error of the output over softmax's power, against
           the spread x of the scores and the length, term by term
log_sums   the mean log of a sum of n log-normal numbers by simulation, by the log-normal mean and by the bounded form
layers     with a model: the estimate of the far mass less the true one (`lln_lab.bench.near_far_terms_model`)
real       with a model: as gaussian, on its q, k and v, against their scale and the length
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lln.near_far import near_far_attention
from lln.ops.near_far.mass import excess

TERMS: dict[str, tuple[float, float, float, float]] = {
    "near alone": (1.0, 0.0, 0.0, 0.0),
    "mean by mass": (0.0, 0.0, 1.0, 0.0),
    "LLN by mass": (0.0, 1.0, 0.0, 0.0),
    "mean and slope by mass": (0.0, 0.0, 1.0, 1.0),
    "half LLN, half mean and slope": (0.0, 0.5, 0.5, 0.5),
}
SPREADS = (1 / 16, 1 / 4, 1.0, 4.0, 16.0, 64.0, 4096.0)


@dataclass(frozen=True)
class Plan:
    lengths: tuple[int, ...] = (256, 1024, 4096)
    dim: int = 32
    block_size: int = 64
    counts: tuple[int, ...] = (8, 64, 448, 4096)
    model: str | None = None
    data: str | None = None
    texts: int = 4
    seed: int = 0


def run(plan: Plan, on_progress: Callable[[str], None]) -> dict[str, Any]:
    torch.manual_seed(plan.seed)
    result: dict[str, Any] = {"dim": plan.dim, "block_size": plan.block_size, "gaussian": [], "log_sums": []}
    for length in plan.lengths:
        on_progress(f"Gaussian, {length:,} tokens")
        result["gaussian"] += [errors_of_terms(plan, length, x) for x in SPREADS]
    for count in plan.counts:
        on_progress(f"sums of {count:,}")
        result["log_sums"] += [log_sum(count, x) for x in SPREADS[:-1]]
    if plan.model is not None and plan.data is not None:
        on_progress("far mass in a model")
        from lln_lab.bench.near_far_terms_model import of_model

        found = of_model(plan.model, plan.data, plan.texts, plan.block_size, plan.seed)
        result |= {"model": Path(plan.model).name, "texts": plan.texts, **found}
    return result


def errors_of_terms(plan: Plan, length: int, x: float) -> dict[str, Any]:
    q, k, noise = torch.randn(3, 1, 4, length, plan.dim).unbind(0)
    v = (k @ torch.randn(plan.dim, plan.dim) / plan.dim**0.5 + noise) / 2**0.5
    return {"length": length, "x": x, "error": errors(q * x**0.5, k, v, plan.dim**-0.5, plan.block_size)}


def errors(q: Tensor, k: Tensor, v: Tensor, scale: float, block_size: int) -> dict[str, float]:
    """Of each choice of terms, (B, H, N, D): |out - softmax|^2 / |softmax|^2."""
    exact = F.scaled_dot_product_attention(q, k, v, scale=scale)

    def error(weights: tuple[float, ...]) -> float:
        out = near_far_attention(q, k, v, weights=torch.tensor(weights), block_size=block_size, scale=scale)
        return float((out - exact).square().sum() / exact.square().sum())

    return {name: error(weights) for name, weights in TERMS.items()}


def log_sum(count: int, x: float) -> dict[str, float]:
    draws = x**0.5 * torch.randn(2_000_000 // count, count, dtype=torch.float64)
    log_count = torch.tensor(math.log(count), dtype=torch.float64)
    bounded = log_count + excess(torch.tensor(x, dtype=torch.float64), log_count)[0]
    simulated = draws.logsumexp(dim=1).mean()
    return {
        "n": count, "x": x, "simulated": float(simulated), "log_normal_mean": math.log(count) + x / 2,
        "bounded": float(bounded),
    }  # fmt: skip
