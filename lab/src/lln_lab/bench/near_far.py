"""How close an encoder stays to itself when near-far attention takes the place of softmax, without a gradient step.

Weights are fitted head by head on a few training texts, in one pass with the model's own activations (`lln.near_far_fit`).
Cosine of the mean-pooled embedding to the original's, and the correlation of the similarities of all pairs of texts, on other
texts: long ones, which fill the length, and short ones of at most a third of it, padded together.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lln.hf.attention.masks import padding_mask
from lln.hf.conversion.closeness import Closeness
from lln.hf.conversion.text_file import TextFile
from lln.near_far import NEUTRAL, near_far_attention
from lln.near_far_fit import NearFarFit, near_far_parts
from lln.ops.near_far import WEIGHTS
from lln.results import write_result

NAME = "near_far_measured"
NOT_FITTED = "not fitted"
BASES: dict[str, tuple[str, ...]] = {
    "near": ("near",),
    "near and LLN": ("near", "lln"),
    "near, mean and slope": ("near", "mean", "slope"),
    "near, LLN, mean and slope": WEIGHTS,
}
ALL = "near, LLN, mean and slope"
ROWS: tuple[tuple[dict[str, int], tuple[str, ...]], ...] = (
    ({"block_size": 64}, (NOT_FITTED, *BASES)),
    ({"block_size": 64, "first_tokens": 4}, (ALL,)),
    ({"block_size": 64, "neighbours": 1}, (ALL,)),
    ({"block_size": 16}, (ALL,)),
    ({"block_size": 16, "neighbours": 1}, (ALL,)),
)


@dataclass(frozen=True)
class Plan:
    model: str
    data: str  # texts to fit on: JSON lines with a `text`, or a text a line
    test_data: str
    texts: int = 8  # long, and as many short ones, to fit on
    test_texts: int = 48
    threads: int = 0  # 0 leaves it to torch
    seed: int = 0


class Switch:
    """Stands in for a model's attention: softmax, softmax while fitting, or near-far with weights given for each layer."""

    def __init__(self, near: dict[str, Any]) -> None:
        self.near = near
        self.fits: dict[int, NearFarFit] | None = None  # while fitting
        self.weights: dict[int, Tensor] | None = None  # while running

    def __call__(
        self, module: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scaling: float | None = None, **_: Any
    ) -> tuple[Tensor, None]:
        if self.weights is not None:
            weights = self.weights[id(module)]
            out = near_far_attention(q, k, v, weights=weights, key_mask=mask, scale=scaling, **self.near)
            return out.transpose(1, 2).contiguous(), None
        attended = None if mask is None else mask[:, None, None]
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=attended, scale=scaling)
        if self.fits is not None:
            parts = near_far_parts(q, k, v, key_mask=mask, scale=scaling, **self.near)
            self.fits.setdefault(id(module), NearFarFit()).add(out, *parts, mask)
        return out.transpose(1, 2).contiguous(), None


@contextmanager
def attention_of(model: Any, attention: Callable[..., tuple[Tensor, None]]) -> Iterator[None]:
    """The model with another attention; as it was afterwards."""
    from transformers import AttentionInterface, AttentionMaskInterface

    before = model.config._attn_implementation
    AttentionInterface.register(NAME, attention)
    AttentionMaskInterface.register(NAME, padding_mask)
    model.config._attn_implementation = NAME
    try:
        yield
    finally:
        model.config._attn_implementation = before


@torch.no_grad()
def fitted(model: Any, switch: Switch, batches: list[dict[str, Tensor]]) -> dict[int, NearFarFit]:
    switch.fits, switch.weights = {}, None
    for batch in batches:
        model(**batch)
    fits, switch.fits = switch.fits, None
    return fits


def run(plan: Plan, path: Path, on_progress: Callable[[str], None]) -> dict[str, Any]:
    """Every row of `ROWS`, on long and short texts; the file is written after each."""
    from transformers import AutoModel, AutoTokenizer

    if plan.threads:
        torch.set_num_threads(plan.threads)
    tokenizer, model = AutoTokenizer.from_pretrained(plan.model), AutoModel.from_pretrained(plan.model).eval()
    train = TextFile(Path(plan.data), seed=plan.seed).leaving(Path(plan.test_data), plan.test_texts)
    test = train.to_measure_on(Path(plan.test_data))
    batches = [batch for group in train.batches(model, tokenizer, plan.texts).values() for batch in group]
    on_progress("softmax")
    with attention_of(model, Switch({})):
        closeness = Closeness(model, test.batches(model, tokenizer, plan.test_texts))
    result: dict[str, Any] = {
        "model": Path(plan.model).name,
        "fitted_on": {"long": plan.texts, "short": plan.texts},
        "tested_on": {"long": plan.test_texts, "short": plan.test_texts},
        "rows": [],
    }
    for near, bases in ROWS:
        switch = Switch(near)
        with attention_of(model, switch):
            on_progress(f"fitting {near}")
            begun = time.perf_counter()
            fits = fitted(model, switch, batches)
            seconds = time.perf_counter() - begun
            for basis in bases:
                on_progress(f"{basis} {near}")
                switch.weights = weights_of(fits, basis)
                errors = [float(fit.error(switch.weights[i]).mean()) for i, fit in fits.items()]
                row = {"near": near, "basis": basis, "seconds_to_fit": seconds, "error_of_each_layer": errors}
                result["rows"].append({**row, **closeness(model)})
                write_result(path, result, plan.seed)
    return result


def weights_of(fits: dict[int, NearFarFit], basis: str) -> dict[int, Tensor]:
    """(Hq, 4) for each layer."""
    if basis == NOT_FITTED:
        return {i: torch.tensor(NEUTRAL).expand_as(fit.weights()) for i, fit in fits.items()}
    return {i: fit.weights(parts=BASES[basis]) for i, fit in fits.items()}
