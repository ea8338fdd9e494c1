"""Which estimate makes near-far attention good or bad in a causal model: the same fit with one estimate changed at a time.

    the operation        moments of the far keys alone, their mass bounded (`lln.ops.near_far.mass`)
    log-normal mean      the mass x / 2 beyond ln n + s q . mu, however large x is
    moments of all keys  means and covariances over near keys, too; only LLN and the count leave them out
    both                 as the first sketch of this attention had it
    exact mass           the true share of the far keys, which costs N^2: what a better estimate of it could bring at most

One text at a time; four weights a head by least squares, no choice among them. Perplexity on other texts with the attention of
every layer replaced, and the mean over layers of each attention's error by itself. The first two are the operation itself, in
linear time; the others are dense.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor

from lln.hf.conversion.convert import convert
from lln.hf.conversion.pretrained import load
from lln.hf.conversion.text_file import TextFile
from lln.near_far import near_far_attention
from lln.near_far.fit import NearFarFit, near_far_parts
from lln.ops.near_far import rows
from lln.ops.near_far.mass import excess
from lln.results import write_result
from lln_lab.bench.attention_of import attention_of
from lln_lab.bench.token_losses import TokenLosses

NEAR_ALONE = "near alone"
VARIANTS: dict[str, tuple[str, str]] = {  # how the mass is found, and whose moments
    "the operation": ("bounded", "far"),
    "log-normal mean": ("log-normal mean", "far"),
    "moments of all keys": ("bounded", "all"),
    "both": ("log-normal mean", "all"),
    "exact mass": ("exact", "far"),
}
ALONE = torch.tensor([1.0, 0.0, 0.0, 0.0])


@dataclass(frozen=True)
class Plan:
    model: str
    data: str
    test_data: str
    length: int = 512
    join: int = 4000
    texts: int = 3
    test_texts: int = 4
    block_size: int = 64
    neighbours: int = 1
    first_tokens: int = 4
    variants: tuple[str, ...] = tuple(VARIANTS)
    threads: int = 0
    seed: int = 0


class Scene:
    """Scores and sets of keys of one call, shared by all variants; heads (H, N, D) of one text."""

    def __init__(self, module: Any, q: Tensor, k: Tensor, v: Tensor, scale: float, plan: Plan) -> None:
        groups, length = q.shape[1] // k.shape[1], q.shape[2]
        self.scale, self.q = scale, q[0]
        self.k, self.v = (t[0].repeat_interleave(groups, dim=0) for t in (k, v))
        self.scores = scale * self.q @ self.k.mT  # (H, N, N)
        at = torch.arange(length)
        block = at // plan.block_size
        self.seen = at[:, None] >= at
        close = (block[:, None] - block <= plan.neighbours) | (at < plan.first_tokens)
        self.near, self.far = self.seen & close, self.seen & ~close
        near_scores = self.scores.masked_fill(~self.near, -torch.inf)
        self.near_out, self.log_near = near_scores.softmax(dim=-1) @ self.v, near_scores.logsumexp(dim=-1)
        self.lln = self._lln(module.lln, groups)

    def _lln(self, own: Any, groups: int) -> Tensor:
        """Eq. 8 over the far keys."""
        a = own.alpha[:, None] * self.q + own.feature_bias[:, None]
        b = own.beta.repeat_interleave(groups, dim=0)[:, None] * self.k
        top = b.amax(dim=1, keepdim=True)
        rows = a + top
        kernel = (rows - rows.amax(dim=-1, keepdim=True)).exp() @ (b - top).exp().mT * self.far
        return (kernel @ self.v) / kernel.sum(dim=-1, keepdim=True).clamp(min=1e-30)

    def parts(self, mass: str, moments: str) -> tuple[Tensor, Tensor]:
        """As `lln.near_far.fit.near_far_parts`: (1 - m) near, (H, N, D), and what the weights multiply, (H, N, D, 4)."""
        keys = self.far if moments == "far" else self.seen
        share_of_each = keys / keys.sum(dim=-1, keepdim=True).clamp(min=1)
        centred = self.k - self.k.mean(dim=1, keepdim=True)
        mean_key, mean_value = share_of_each @ self.k, share_of_each @ self.v
        variance = (share_of_each @ centred.square() - (share_of_each @ centred).square()).clamp(min=0)
        mean_score = self.scale * (self.q * mean_key).sum(dim=-1)
        log_count = self.far.sum(dim=-1).clamp(min=1).float().log()
        x = self.scale**2 * (self.q.square() * variance).sum(dim=-1)
        energy, fall = excess(x, log_count) if mass != "log-normal mean" else (x / 2, torch.ones_like(x))
        log_far = log_count + mean_score + energy
        if mass == "exact":
            log_far = self.scores.masked_fill(~self.far, -torch.inf).logsumexp(dim=-1)
        share = torch.where(self.far.any(dim=-1), torch.sigmoid(log_far - self.log_near), 0.0)[..., None]
        tilted = (share_of_each * self.scores) @ self.v - mean_score[..., None] * mean_value
        slope = fall[..., None] * tilted
        parts = torch.stack([self.near_out, self.lln, mean_value, slope], dim=-1)
        return (1 - share) * self.near_out, share[..., None] * parts


def unbounded() -> AbstractContextManager[Any]:
    """Inside, plain torch takes the log-normal mean for the far mass, however far scores spread."""
    return patch.object(rows, "excess", lambda x, log_count: (x / 2, torch.ones_like(x)))


class Layer:
    """One call of attention, (B, H, N, D), and what its variants make of it."""

    def __init__(self, module: Any, q: Tensor, k: Tensor, v: Tensor, scale: float, plan: Plan) -> None:
        self.given, self.plan = (module, q, k, v, scale), plan
        alpha, beta, bias = module.lln.for_attention(torch.float32)
        self.inputs = (q, k, v, alpha, beta)
        self.options: dict[str, Any] = {
            "feature_bias": bias, "block_size": plan.block_size, "neighbours": plan.neighbours,
            "first_tokens": plan.first_tokens, "scale": scale, "is_causal": True,
        }  # fmt: skip

    def softmax(self) -> Tensor:
        _, q, k, v, scale = self.given
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=True)

    def parts(self, variant: str) -> tuple[Tensor, Tensor]:
        """As `lln.near_far.fit.near_far_parts`."""
        if variant == "the operation":
            return near_far_parts(*self.inputs, **self.options)
        if variant == "log-normal mean":
            with unbounded():
                return near_far_parts(*self.inputs, **self.options, backend="chunked")
        fixed, parts = Scene(*self.given, self.plan).parts(*VARIANTS[variant])
        return fixed[None], parts[None]

    def output(self, variant: str, weights: Tensor) -> Tensor:
        if variant in (NEAR_ALONE, "the operation"):
            return near_far_attention(*self.inputs, **self.options, weights=weights)
        if variant == "log-normal mean":
            with unbounded():
                return near_far_attention(*self.inputs, **self.options, weights=weights, backend="chunked")
        fixed, parts = self.parts(variant)
        return fixed + torch.einsum("bhndi,hi->bhnd", parts, weights)


class Switch:
    """Stands in for the model's attention: softmax that fits every variant, or one variant with its weights."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.fits: dict[str, dict[int, NearFarFit]] = {name: {} for name in plan.variants}
        self.running: str | None = None
        self.weights: dict[int, Tensor] = {}

    def __call__(
        self, module: Any, q: Tensor, k: Tensor, v: Tensor, mask: Any, scaling: float | None = None, **_: Any
    ) -> tuple[Tensor, None]:
        layer = Layer(module, q, k, v, q.shape[3] ** -0.5 if scaling is None else scaling, self.plan)
        if self.running is not None:
            out = layer.output(self.running, self.weights.get(id(module), ALONE).float())
        else:
            out = layer.softmax()
            for name, fits in self.fits.items():
                fits.setdefault(id(module), NearFarFit()).add(out, *layer.parts(name))
        return out.transpose(1, 2).contiguous(), None


@torch.no_grad()
def run(plan: Plan, path: Path, on_progress: Callable[[str], None]) -> dict[str, Any]:
    """The file is written after each variant."""
    if plan.threads:
        torch.set_num_threads(plan.threads)
    tokenizer, model = load(plan.model)
    train = TextFile(Path(plan.data), plan.length, plan.join, plan.seed).leaving(Path(plan.test_data), plan.test_texts)
    batches = train.batches(model, tokenizer, plan.texts, 1)["long"]
    test = train.to_measure_on(Path(plan.test_data)).batches(model, tokenizer, plan.test_texts, 1)["long"]
    on_progress("softmax")
    measure = TokenLosses(model, test)
    reach = {"block_size": plan.block_size, "neighbours": plan.neighbours, "first_tokens": plan.first_tokens}
    convert(model, "lln_near_far", batches, fit=False, **reach)  # type: ignore[arg-type]
    switch = Switch(plan)
    result: dict[str, Any] = {
        "model": Path(plan.model).name, "length": plan.length, "near": reach, "fitted_on": len(batches),
        "tested_on": len(test), "softmax": measure.softmax, "rows": [],
    }  # fmt: skip
    with attention_of(model, switch):
        on_progress("fitting")
        for batch in batches:
            model(**batch, use_cache=False)
        for name in (NEAR_ALONE, *plan.variants):
            on_progress(name)
            switch.running = name
            fits = switch.fits.get(name, {})
            switch.weights = {i: fit.weights() for i, fit in fits.items()}
            some = fits or switch.fits[plan.variants[0]]
            errors = [
                fit.error(switch.weights.get(i, ALONE.expand(fit.sums.right.shape[1], -1))) for i, fit in some.items()
            ]
            row = {"variant": name, "error": float(torch.cat(errors).mean())}
            result["rows"].append({**row, **measure(model)})
            write_result(path, result, plan.seed)
    return result
