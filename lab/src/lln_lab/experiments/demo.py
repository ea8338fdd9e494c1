"""The demo: the whole thing in small, on text that every Python has.

Softmax, LLN and LLN+Diag are pre-trained on the same batches of the standard library's sources while a probe watches their
concentration; their attention is timed against the length; and for the trained softmax model's own queries and keys the
three attention matrices are drawn side by side. The result is an ordinary one, for `lln report`.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from safetensors.torch import load_file
from torch import Tensor

from lln.attention import lln_attention, lln_diag_attention
from lln_lab import data
from lln_lab.experiments import fig8
from lln_lab.experiments.figure import panels
from lln_lab.experiments.grid import Watcher
from lln_lab.experiments.maps import attention_maps
from lln_lab.experiments.masking import read_tokenizer, windows
from lln_lab.experiments.models.roberta import MaskedLanguageModel, Size, configuration
from lln_lab.experiments.training import Budget, Run

FUNCTIONS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "softmax": F.scaled_dot_product_attention,
    "lln": lln_attention,
    "lln_diag": lln_diag_attention,
}
PRETRAINING = fig8.Settings(
    size=Size(layers=3, width=128, heads=4, feed_forward=512, length=256, dropout=0.0),
    budget=Budget(
        steps=250,
        batch=8,
        learning_rate=2e-3,
        warmup=25,
        log_every=10,
        evaluate_every=50,
        save_every=125,
        watch_every=50,
    ),
    vocabulary=4096,
    validation_rows=64,
    source="three small encoders, a few minutes on two cores",
)


@dataclass(frozen=True)
class Settings:
    pretraining: fig8.Settings = PRETRAINING
    longest: int = 16_384


def run(
    settings: Settings, folder: Path, watcher: Watcher | None, on_measured: Callable[[str, int], None]
) -> dict[str, Any]:
    """Pre-train, time, look."""
    found = fig8.run(settings.pretraining, folder, watcher=watcher, keep_models=True)
    found["experiment"], found["title"] = "demo", "Softmax, LLN and LLN+Diag side by side"
    found["timing"] = time_against_length(settings.longest, on_measured)
    found["tables"].append(speed_table(found["timing"]))
    found["maps"] = maps(settings.pretraining, folder)
    return found


def time_against_length(
    longest: int, on_measured: Callable[[str, int], None], heads: int = 2, head_dim: int = 64
) -> dict[str, Any]:
    """Forward + backward of the attention alone, in seconds: the best of three interleaved runs after a warm-up.

    A run that takes longer than a second is not repeated.
    """
    lengths = [2**power for power in range(8, 31) if 2**power <= longest]
    best: dict[str, dict[int, float]] = {name: {} for name in FUNCTIONS}
    generator = torch.Generator().manual_seed(0)
    for length in lengths:
        inputs = [torch.randn(1, heads, length, head_dim, generator=generator, requires_grad=True) for _ in range(3)]
        for repeat in range(4):
            for name, function in FUNCTIONS.items():
                before = best[name].get(length)
                if before is not None and before > 1.0:
                    continue
                start = time.perf_counter()
                torch.autograd.grad(function(*inputs).sum(), inputs)
                taken = time.perf_counter() - start
                if repeat > 0 or taken > 1.0:
                    best[name][length] = taken if before is None else min(before, taken)
                on_measured(name, length)
    series = [{"label": name, "seconds": [best[name][n] for n in lengths], "bytes": None} for name in FUNCTIONS]
    return {"lengths": lengths, "series": series}


def speed_table(timing: dict[str, Any]) -> dict[str, Any]:
    softmax, *linear = (series["seconds"] for series in timing["series"])
    labels = [series["label"] for series in timing["series"]]
    rows = [
        [f"{length:,}", f"{1e3 * softmax[i]:.1f}", *(f"{softmax[i] / times[i]:.1f}" for times in linear)]
        for i, length in enumerate(timing["lengths"])
    ]
    return {
        "title": "Attention alone, forward + backward: how many times faster than softmax",
        "note": "Two heads of 64; the best of three interleaved runs.",
        "columns": ["length", f"{labels[0]}, ms", *labels[1:]],
        "rows": rows,
    }


def maps(settings: fig8.Settings, folder: Path) -> list[dict[str, Any]]:
    """Attention maps for the first validation window, of the softmax model that was just trained."""
    tokenizer = read_tokenizer(folder / "tokenizer")
    model = MaskedLanguageModel(configuration(settings.size, tokenizer.get_vocab_size()), "softmax")
    trained = folder / Run("mlm", "softmax", 0, settings.budget).name / "model" / "model.safetensors"
    model.load_state_dict(load_file(trained), strict=False)
    text = data.load("wikitext").validation[0]["text"]
    return attention_maps(model, windows([text], tokenizer, settings.size.length)[:1], shown=48)


def draw(found: dict[str, Any]) -> Figure:
    figure, (loss, speed) = panels(2)
    for number, r in enumerate(found["runs"]):
        curve = [(x["step"], x["loss"]) for x in r["history"] if "loss" in x]
        loss.plot(*zip(*curve, strict=True), color=f"C{number}", label=r["label"])
    loss.set(xlabel="step", ylabel="loss (nats a masked token)", title="pre-training on Python's own sources")
    loss.legend()
    for number, series in enumerate(found["timing"]["series"]):
        milliseconds = [1e3 * seconds for seconds in series["seconds"]]
        speed.loglog(found["timing"]["lengths"], milliseconds, "o-", ms=3, color=f"C{number}", label=series["label"])
    speed.set(xlabel="length", ylabel="milliseconds", title="attention, forward + backward")
    speed.legend()
    return figure


def shortened(settings: Settings, steps: int | None) -> Settings:
    before = settings.pretraining
    return replace(settings, pretraining=replace(before, budget=before.budget.shortened(steps)))
