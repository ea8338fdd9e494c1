"""One distillation from beginning to end: load, convert, distil, measure against the original, save."""

import copy
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from lln.conversion.asked import rows_that_count
from lln.conversion.everything import LAYER_RATE
from lln.conversion.plan import split
from lln.hf.attention.functions import attend
from lln.hf.conversion.closeness import Closeness
from lln.hf.conversion.convert import convert
from lln.hf.conversion.measure import Batch
from lln.hf.conversion.pretrained import load
from lln.hf.conversion.text_file import TextFile
from lln.hf.distillation.distil import LEARNABLE, distil
from lln.hf.distillation.layer_by_layer import first_token_weight, layer_by_layer
from lln.hf.distillation.losses import capture_layers, relative_error
from lln.hf.distillation.maps import converted_modules
from lln.hf.options import LLNOptions
from lln.measuring.timing import interleaved

CALIBRATION = 2  # batches of long texts, and as many of short ones, to convert with


@dataclass(frozen=True)
class Settings:
    model: str
    data: Path
    test_data: Path
    out: Path
    steps: int = 960
    end_to_end_steps: int | None = None
    lr: float = LAYER_RATE
    end_to_end_lr: float | None = None
    stage: str = "both"
    maps: str | None = "auto"
    learn: tuple[str, ...] = LEARNABLE
    attention: str = "lln_diag"
    neighbours: int = 0
    first_tokens: int = 0
    low_rank: int | None = None
    precision: str = "float32"
    texts: int = 960
    test_texts: int = 48
    max_length: int = 512
    join: int = 0
    batch_size: int = 4
    block_size: int = 64
    layer_texts: int = 0
    classify: int = 0
    threads: int = 0
    seed: int = 0


def run(settings: Settings, on_progress: Callable[[str], None]) -> dict[str, Any]:
    """What was measured; the distilled model is saved."""
    if settings.threads:
        torch.set_num_threads(settings.threads)
    if settings.classify:
        refuse_unlabelled(settings)  # before an hour of training
    tokenizer, original = load(settings.model)
    on_progress("choosing texts")
    texts = TextFile(settings.data, settings.max_length, settings.join, settings.seed)
    texts = texts.leaving(settings.test_data, settings.test_texts)
    by_length = texts.batches(original, tokenizer, settings.texts, settings.batch_size)
    batches = [batch for found in by_length.values() for batch in found]
    held_out = texts.to_measure_on(settings.test_data)
    groups = held_out.batches(original, tokenizer, settings.test_texts, batch_size=8)
    on_progress("converting")
    calibration = [b for found in by_length.values() for b in found[:CALIBRATION]]
    model = convert(
        copy.deepcopy(original), settings.attention, calibration, block_size=settings.block_size,
        neighbours=settings.neighbours, first_tokens=settings.first_tokens,
    )  # fmt: skip
    converted = copy.deepcopy(model)
    on_progress("distilling")
    begun, spent = time.perf_counter(), time.process_time()
    distil(
        model, batches, steps=settings.steps, end_to_end_steps=settings.end_to_end_steps, lr=settings.lr,
        end_to_end_lr=settings.end_to_end_lr, stage=settings.stage, learn=settings.learn, maps=settings.maps,
        low_rank=settings.low_rank,
        precision=settings.precision, checkpoint=settings.out, checkpoint_every=10, seed=settings.seed,
    )  # fmt: skip
    seconds, cpu_seconds = time.perf_counter() - begun, time.process_time() - spent
    on_progress("measuring")  # only now: a run that is interrupted while it trains goes on without doing this again
    close = Closeness(original, groups)
    inspect = Inspection(original, groups, settings.layer_texts, on_progress)
    measured = {name: {**close(m), **inspect(m)} for name, m in {"converted": converted, "distilled": model}.items()}
    model.save_pretrained(settings.out)
    tokenizer.save_pretrained(settings.out)
    return {
        "model": Path(settings.model).name,
        "steps": split(settings.steps, settings.stage, settings.end_to_end_steps),
        "attention": settings.attention,
        "maps": settings.maps,
        "learn": list(settings.learn),
        "low_rank": settings.low_rank,
        "precision": settings.precision,
        "block_size": settings.block_size,
        "neighbours": settings.neighbours,
        "first_tokens": settings.first_tokens,
        "lr": settings.lr,
        "end_to_end_lr": settings.end_to_end_lr,
        "seconds": seconds,  # of the distillation, since it was last begun
        "cpu_seconds": cpu_seconds,
        "trained_on": {"batches": len(batches), "texts": sum(len(b["input_ids"]) for b in batches)},
        "tested_on": {name: sum(len(b["input_ids"]) for b in found) for name, found in groups.items()},
        **measured,
        "time": time_beside(original, converted, model, inspect.batch),
    }


class Inspection:
    """Where the error of a model is, layer by layer, on the first held-out batch; with `texts`, also what it is worth so."""

    def __init__(
        self, original: Any, groups: dict[str, list[Batch]], texts: int, on_progress: Callable[[str], None]
    ) -> None:
        self.batch = next(iter(groups.values()))[0]
        self.on_progress = on_progress
        few = {"few": [{name: x[:texts] for name, x in self.batch.items()}]}
        self.close = Closeness(original, few) if texts else None

    def __call__(self, model: Any) -> dict[str, Any]:
        found: dict[str, Any] = {"error_per_layer": layer_errors(model, self.batch)}
        if self.close is not None:
            close = self.close
            found["layer_by_layer"] = layer_by_layer(model, lambda m: close(m)["few"], self.on_progress)
            found["first_token_weight"] = first_token_weight(model, close.groups["few"][0])
        return found


def layer_errors(model: Any, batch: Batch) -> list[float]:
    """|o - t|^2 / |t|^2 of each attention on the softmax model's own activations."""
    captured = capture_layers(model, {m: m for m in converted_modules(model)}, batch)
    with torch.no_grad():
        return [
            float(relative_error(attend(c, model.config._attn_implementation)[0], t, rows_that_count(c)))
            for c, t in captured
        ]


def refuse_unlabelled(settings: Settings) -> None:
    from lln.hf.distillation.classify import labelled_texts

    for path in (settings.data, settings.test_data):
        labelled_texts(path, 1)


def compare_classifiers(settings: Settings) -> dict[str, Any]:
    """Accuracy of a logistic regression on embeddings of the same labelled texts, by the original and by what `run` saved."""
    from lln.hf.distillation.classify import classify, labelled_embeddings

    accuracy = {}
    for name, folder in {"original": settings.model, "distilled": str(settings.out)}.items():
        tokenizer, model = load(folder)
        # the original's take a while and stay the same from run to run
        keep = settings.out / f"embeddings_{Path(settings.model).name}" if name == "original" else None
        train, test = (
            labelled_embeddings(model, tokenizer, path, settings.classify, settings.max_length, keep)
            for path in (settings.data, settings.test_data)
        )
        accuracy[name] = classify(train, test)
    return {"train": len(train[1]), "test": len(test[1]), "accuracy": accuracy}


@torch.no_grad()
def time_beside(original: Any, converted: Any, distilled: Any, batch: Batch) -> dict[str, Any]:
    """Seconds of a forward pass of one batch, interleaved, and the ratio to the plain conversion, with blocks of 64."""
    plain = copy.deepcopy(converted)
    plain.config.lln = {**plain.config.lln, "block_size": LLNOptions().block_size}
    models = {"original": original, "plain": plain, "converted": converted, "distilled": distilled}

    def forward(model: Any) -> Callable[[], Any]:
        def call() -> Any:
            with torch.no_grad():
                return model(**batch)

        return call

    timings = interleaved({name: forward(model) for name, model in models.items()}, repeats=7)
    seconds = {name: t.median for name, t in timings.items()}
    return {
        "tokens": list(batch["input_ids"].shape),
        "seconds": seconds,
        "ratio_to_plain": {name: s / seconds["plain"] for name, s in seconds.items()},
    }
