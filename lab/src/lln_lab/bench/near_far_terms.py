"""What each term of near-far attention does for its distance to softmax, and how well the far mass is estimated.

gaussian   Gaussian q, k and values that are half a linear map of k: squared error of the output over softmax's power, against
           the spread x of the scores and the length, term by term
log_sums   the mean log of a sum of n log-normal numbers by simulation, by the log-normal mean and by the bounded form
layers     with a model: the estimate of the far mass less the true one, mean and root mean square over queries, for each layer;
           from the variances of single features (diagonal) and from the variance of the scores themselves (full covariance)
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
        result |= {"model": Path(plan.model).name, "texts": plan.texts, "layers": of_model(plan)}
    return result


def errors_of_terms(plan: Plan, length: int, x: float) -> dict[str, Any]:
    q, k, noise = torch.randn(3, 1, 4, length, plan.dim).unbind(0)
    v = (k @ torch.randn(plan.dim, plan.dim) / plan.dim**0.5 + noise) / 2**0.5
    q = q * x**0.5
    exact = F.scaled_dot_product_attention(q, k, v)

    def error(weights: tuple[float, ...]) -> float:
        out = near_far_attention(q, k, v, weights=torch.tensor(weights), block_size=plan.block_size)
        return float((out - exact).square().sum() / exact.square().sum())

    return {"length": length, "x": x, "error": {name: error(weights) for name, weights in TERMS.items()}}


def log_sum(count: int, x: float) -> dict[str, float]:
    draws = x**0.5 * torch.randn(2_000_000 // count, count, dtype=torch.float64)
    log_count = torch.tensor(math.log(count), dtype=torch.float64)
    bounded = log_count + excess(torch.tensor(x, dtype=torch.float64), log_count)[0]
    simulated = draws.logsumexp(dim=1).mean()
    return {
        "n": count, "x": x, "simulated": float(simulated), "log_normal_mean": math.log(count) + x / 2,
        "bounded": float(bounded),
    }  # fmt: skip


@torch.no_grad()
def of_model(plan: Plan) -> list[dict[str, Any]]:
    from transformers import AutoModel, AutoTokenizer

    from lln.hf.conversion.text_file import TextFile
    from lln_lab.bench.attention_of import attention_of

    assert plan.model is not None and plan.data is not None
    tokenizer, model = AutoTokenizer.from_pretrained(plan.model), AutoModel.from_pretrained(plan.model).eval()
    texts, _ = TextFile(Path(plan.data), seed=plan.seed).choose(tokenizer, plan.texts)
    found: dict[int, list[dict[str, Tensor]]] = {}

    def attention(
        module: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scaling: float | None = None, **_: Any
    ) -> tuple[Tensor, None]:
        scale = q.shape[-1] ** -0.5 if scaling is None else scaling
        found.setdefault(id(module), []).append(_mass(q, k, scale, plan.block_size))
        return F.scaled_dot_product_attention(q, k, v, scale=scale).transpose(1, 2).contiguous(), None

    with attention_of(model, attention):
        for text in texts:
            model(**tokenizer(text, truncation=True, max_length=512, return_tensors="pt"))
    rows = []
    for parts in found.values():
        joined = {name: torch.cat([part[name].flatten() for part in parts]) for name in parts[0]}
        x = {name: float(joined.pop(name).mean()) for name in ("x_diagonal", "x_full")}
        rows.append(
            x | {n: {"mean": float(e.mean()), "rms": float(e.square().mean().sqrt())} for n, e in joined.items()}
        )
    return rows


def _mass(q: Tensor, k: Tensor, scale: float, block_size: int) -> dict[str, Tensor]:
    """Estimates of the log of the far mass less the true one, each (B, H, N); dense and literal."""
    q, k = q.double(), k.double()
    block = torch.arange(q.shape[2]) // block_size
    far = block[:, None] != block[None]
    scores = scale * q @ k.mT
    true = scores.masked_fill(~far, -torch.inf).logsumexp(dim=-1)
    share = far.double() / far.sum(dim=-1, keepdim=True)
    log_count, mean = far.sum(dim=-1).double().log(), (share * scores).sum(dim=-1)
    centre = k.mean(dim=2, keepdim=True)
    variance = share @ (k - centre).square() - (share @ (k - centre)).square()
    diagonal = scale**2 * (q.square() * variance).sum(dim=-1)
    full = (share * (scores - mean[..., None]).square()).sum(dim=-1)
    estimates = {
        "without spread": torch.zeros_like(full),
        "diagonal, log-normal mean": diagonal / 2,
        "diagonal, bounded": excess(diagonal, log_count)[0],
        "full, log-normal mean": full / 2,
        "full, bounded": excess(full, log_count)[0],
    }
    found = {name: log_count + mean + energy - true for name, energy in estimates.items()}
    return found | {"x_diagonal": diagonal, "x_full": full}
