"""One conversion from beginning to end: load, calibrate, convert, measure against the original, save."""

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from lln.hf.conversion.closeness import Closeness
from lln.hf.conversion.convert import convert
from lln.hf.conversion.measure import Batch, memory_against_length, time_against_length
from lln.hf.conversion.pretrained import load
from lln.hf.conversion.text_file import TextFile
from lln.hf.conversion.variants import compare as compare_variants
from lln.hf.distillation.distil import distil
from lln.hf.modules import attention_modules
from lln.hf.options import options_of


@dataclass(frozen=True)
class Settings:
    model: str
    data: Path
    test_data: Path
    out: Path
    weights: Path | None = None  # a conversion in a file; nothing is calibrated then
    attention: str = "lln_diag"
    block_size: int = 64
    neighbours: int = 0
    first_tokens: int = 0
    keep_softmax: list[int] | str = field(default_factory=list)
    softmax_layers: int | None = None
    texts: int = 8
    test_texts: int = 24
    max_length: int = 512
    join: int = 0
    distil: int = 0
    distil_texts: int = 480
    compare: bool = False
    memory: bool = True
    threads: int = 0
    seed: int = 0


def run(settings: Settings, on_progress: Callable[[str], None]) -> dict[str, Any]:
    if settings.threads:
        torch.set_num_threads(settings.threads)
    tokenizer, original = load(settings.model)
    on_progress("choosing texts")
    texts = TextFile(settings.data, settings.max_length, settings.join, settings.seed)
    texts = texts.leaving(settings.test_data, settings.test_texts)
    wanted = max(settings.texts, settings.distil_texts if settings.distil else 0)
    training = {} if settings.weights else texts.batches(original, tokenizer, wanted)
    calibration = {name: first_texts(batches, settings.texts) for name, batches in training.items()}
    batches = [batch for found in calibration.values() for batch in found]
    if settings.weights is None:
        held_out = texts.to_measure_on(settings.test_data)
    else:  # the texts that a conversion by another file's texts is measured on
        held_out = TextFile(settings.test_data, settings.max_length, settings.join, settings.seed)
    groups = held_out.batches(original, tokenizer, settings.test_texts, batch_size=8)

    on_progress("measuring the original")
    measure = Closeness(original, groups)
    variants = compare_variants(copy.deepcopy(original), batches, measure, on_progress) if settings.compare else {}
    on_progress("converting")
    if settings.weights is not None:
        model = convert(copy.deepcopy(original), weights=settings.weights)
    else:
        model = convert(
            copy.deepcopy(original), settings.attention, batches, settings.keep_softmax,
            block_size=settings.block_size, neighbours=settings.neighbours, first_tokens=settings.first_tokens,
            softmax_layers=settings.softmax_layers,
        )  # fmt: skip
    options = options_of(model.config)
    on_progress("measuring the converted model")
    converted = measure(model)
    errors = [getattr(getattr(m, "lln", None), "fit_error", None) for m in attention_modules(model)]
    distilled = None
    if settings.distil:
        distil(
            model, [b for found in training.values() for b in found], steps=settings.distil, checkpoint=settings.out,
            seed=settings.seed, progress=False, on_step=lambda _, step, __: on_progress(f"distilling, step {step + 1}"),
        )  # fmt: skip
        distilled = measure(model)
    model.save_pretrained(settings.out)
    tokenizer.save_pretrained(settings.out)

    lengths = [n for n in (128, 256, 512, 1024, 2048, 4096) if n <= _longest(original, settings.max_length)]
    on_progress("time against length")
    time = time_against_length({"original": original, "converted": model}, lengths)
    memory: list[dict] = []
    if settings.memory and not measure.causal:
        on_progress("memory against length")
        memory = memory_against_length({"original": settings.model, "converted": str(settings.out)}, lengths)
    return {
        "model": Path(settings.model).name,
        "weights": None if settings.weights is None else _described(settings.weights),
        "attention": options.attention,
        "block_size": options.block_size,
        "neighbours": options.neighbours,
        "first_tokens": options.first_tokens,
        "softmax_layers": [i for i, m in enumerate(attention_modules(model)) if getattr(m, "lln", None) is None],
        "calibration": {
            **{name: count_texts(found) for name, found in calibration.items()},
            "max_length": settings.max_length,
        },
        "tested_on": {name: count_texts(found) for name, found in groups.items()},
        "converted": converted,
        "distilled": distilled,
        "variants": variants,
        "error_per_layer": [None if e is None else float(e.mean()) for e in errors],
        "time": time,
        "memory": memory,
    }


def first_texts(batches: list[Batch], count: int) -> list[Batch]:
    """So many texts of the batches, the last batch cut."""
    found: list[Batch] = []
    for batch in batches:
        left = count - count_texts(found)
        if left > 0:
            found.append({name: x[:left] for name, x in batch.items()})
    return found


def count_texts(batches: list[Batch]) -> int:
    return sum(len(batch["input_ids"]) for batch in batches)


def _described(weights: Path) -> dict[str, Any]:
    return {"file": weights.name, "bytes": weights.stat().st_size}


def _longest(model: Any, max_length: int) -> int:
    return int(getattr(model.config, "max_position_embeddings", max_length))
