"""The demo: the whole thing in small, on text that every Python has.

Softmax, LLN and LLN+Diag are pre-trained on the same batches of the standard library's sources while a probe watches their
concentration; their attention is timed against the length, and its memory measured at the longest; and for the trained softmax
model's own queries and keys the three attention matrices are drawn side by side. The result is one that `lln report` reads.
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
from lln.measuring.memory import peak_extra_bytes
from lln_lab import data
from lln_lab.experiments import fig8
from lln_lab.experiments.curves import to_softmax
from lln_lab.experiments.demo_headline import headline, limits, speed_ups, times
from lln_lab.experiments.figure import legend, lengths_along, looks, panels, plain_log
from lln_lab.experiments.grid import Watcher
from lln_lab.experiments.maps import Layer, attention_maps
from lln_lab.experiments.masking import read_tokenizer, windows
from lln_lab.experiments.models.roberta import MaskedLanguageModel, Size, configuration
from lln_lab.experiments.queries import queries_and_keys
from lln_lab.experiments.training import Budget, Run
from lln_lab.names import name_of

FUNCTIONS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "softmax": F.scaled_dot_product_attention,
    "lln": lln_attention,
    "lln_diag": lln_diag_attention,
}
HEADS, HEAD_DIM = 2, 64  # of what is timed
DATA = "Python's own sources"
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
    found["data"]["name"] = DATA
    found["timing"] = time_against_length(settings.longest, on_measured)
    found["memory"] = memory_at(settings.longest, on_measured)
    found["tables"].append(speed_table(found["timing"]))
    found["maps"] = maps(settings.pretraining, folder)
    found["headline"] = headline(found)
    found["limits"] = limits(found)
    return found


def time_against_length(
    longest: int, on_measured: Callable[[str, int], None], heads: int = HEADS, head_dim: int = HEAD_DIM
) -> dict[str, Any]:
    """Forward + backward of the attention alone, in seconds of CPU time: the best of three interleaved runs after a warm-up.

    CPU time of one thread, so that other programs on the machine do not count: several threads that wait for each other spend
    it spinning. A run of more than a second is not repeated.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _times(longest, on_measured, heads, head_dim)
    finally:
        torch.set_num_threads(threads)


def _times(longest: int, on_measured: Callable[[str, int], None], heads: int, head_dim: int) -> dict[str, Any]:
    lengths = [2**power for power in range(8, 31) if 2**power <= longest]
    best: dict[str, dict[int, float]] = {name: {} for name in FUNCTIONS}
    for length in lengths:
        inputs = _inputs(length, heads, head_dim)
        for repeat in range(4):
            for name, function in FUNCTIONS.items():
                before = best[name].get(length)
                if before is not None and before > 1.0:
                    continue
                start = time.process_time()
                torch.autograd.grad(function(*inputs).sum(), inputs)
                taken = time.process_time() - start
                if repeat > 0 or taken > 1.0:
                    best[name][length] = taken if before is None else min(before, taken)
                on_measured(name, length)
    series = [{"label": name, "seconds": [best[name][n] for n in lengths], "bytes": None} for name in FUNCTIONS]
    return {"lengths": lengths, "series": series, "threads": torch.get_num_threads()}


def memory_at(longest: int, on_measured: Callable[[str, int], None]) -> dict[str, Any] | None:
    """Peak memory of forward + backward at the longest length, each in a process of its own; None where Linux is not.

    Softmax is torch's fused one, which never holds its matrix. What a matrix would hold is given beside it.
    """
    length = 2 ** (longest.bit_length() - 1)
    found = {}
    try:
        for name in FUNCTIONS:
            on_measured(f"memory of {name}", length)
            found[name] = peak_extra_bytes(attend, name, length)
    except (RuntimeError, MemoryError, OSError):
        return None
    return {"length": length, "bytes": found, "matrix_bytes": 4 * HEADS * length**2}


def attend(name: str, length: int) -> Callable[[], Any]:
    """Forward + backward of one attention, to be measured in another process."""
    inputs = _inputs(length, HEADS, HEAD_DIM)
    return lambda: torch.autograd.grad(FUNCTIONS[name](*inputs).sum(), inputs)


def _inputs(length: int, heads: int, head_dim: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(length)
    return [torch.randn(1, heads, length, head_dim, generator=generator, requires_grad=True) for _ in range(3)]


def speed_table(timing: dict[str, Any]) -> dict[str, Any]:
    softmax, *linear = (series["seconds"] for series in timing["series"])
    labels = [series["label"] for series in timing["series"]]
    rows = [
        [f"{length:,}", f"{1e3 * softmax[i]:.1f}", *(f"{softmax[i] / times[i]:.1f}" for times in linear)]
        for i, length in enumerate(timing["lengths"])
    ]
    return {
        "title": "Attention alone, forward + backward: how many times faster than softmax",
        "note": "Two heads of 64; CPU time, the best of three interleaved runs.",
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
    window = windows([text], tokenizer, settings.size.length)[:1]
    tokens = [tokenizer.decode([int(one)]) for one in window[0]]
    pairs = enumerate(queries_and_keys(model, {"input_ids": window}))
    return attention_maps([Layer.of(number, q, k) for number, (q, k) in pairs], tokens)


def draw(found: dict[str, Any]) -> Figure:
    """The picture that says it all: time against length, memory, and how little the loss differs."""
    figure, (speed, loss) = panels(2)
    look = looks(FUNCTIONS)
    lengths = found["timing"]["lengths"]
    taken = {series["label"]: series["seconds"] for series in found["timing"]["series"]}
    for label, seconds in taken.items():
        speed.plot(lengths, seconds, label=name_of(label), **look[label])
    speed.set(title="time of attention, forward + backward")
    plain_log(speed, in_seconds)
    lengths_along(speed, lengths)
    for label, ratio in speed_ups(found).items():
        speed.annotate(
            f"{times(ratio)}× faster",
            (lengths[-1], taken[label][-1]),
            textcoords="offset points",
            xytext=(8, 0),
            va="center",
            color=look[label]["color"],
            weight="bold",
        )
    to_softmax(loss, found["runs"])
    legend(figure, [speed])
    return figure


def in_seconds(value: float) -> str:
    return f"{value:g} s" if value >= 1 else f"{1e3 * value:g} ms"


def shortened(settings: Settings, steps: int | None, seeds: int = 1) -> Settings:
    before = settings.pretraining
    return replace(settings, pretraining=replace(before, budget=before.budget.shortened(steps), seeds=seeds))
