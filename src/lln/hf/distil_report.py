"""One distillation from beginning to end: load, convert, distil, measure against the original, save."""

import copy
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from lln.bench.timing import interleaved
from lln.hf.attention import attend
from lln.hf.calibration_data import batches_of
from lln.hf.convert import convert
from lln.hf.distil import distil
from lln.hf.distil_losses import capture_layers, relative_error, rows_that_count
from lln.hf.distil_plan import split
from lln.hf.maps import converted_modules
from lln.hf.measure import Batch, embeddings, read_texts, similarity

SHORT_SHARE = 4  # one short text for so many long ones


@dataclass(frozen=True)
class Settings:
    model: str
    data: Path
    test_data: Path
    out: Path
    steps: int = 900
    end_to_end_steps: int | None = None
    lr: float = 2e-2
    stage: str = "both"
    maps: str | None = "free"
    texts: int = 480
    test_texts: int = 48
    max_length: int = 512
    classify: int = 0
    threads: int = 0
    seed: int = 0


def run(settings: Settings, on_progress: Callable[[str], None]) -> dict[str, Any]:
    """What was measured, of encoders only; the distilled model is saved."""
    from transformers import AutoModel, AutoTokenizer

    if settings.threads:
        torch.set_num_threads(settings.threads)
    tokenizer = AutoTokenizer.from_pretrained(settings.model)
    original = AutoModel.from_pretrained(settings.model).eval()
    on_progress("choosing texts")
    batches = training_batches(settings, tokenizer, original)
    groups = test_groups(settings, tokenizer, original)
    before = {name: embeddings(original, found) for name, found in groups.items()}

    def close(model: Any) -> dict[str, Any]:
        return {name: similarity(before[name], embeddings(model, found)) for name, found in groups.items()}

    held_out = groups["long"][0]
    on_progress("converting")
    model = convert(copy.deepcopy(original), "lln_diag", batches[:2])
    plain = copy.deepcopy(model)
    measured = {"converted": {**close(model), "error_per_layer": layer_errors(model, held_out)}}
    on_progress("distilling")
    distil(
        model, batches, steps=settings.steps, end_to_end_steps=settings.end_to_end_steps, lr=settings.lr,
        stage=settings.stage, maps=settings.maps, checkpoint=settings.out, seed=settings.seed,
    )  # fmt: skip
    on_progress("measuring")
    measured["distilled"] = {**close(model), "error_per_layer": layer_errors(model, held_out)}
    model.save_pretrained(settings.out)
    tokenizer.save_pretrained(settings.out)
    return {
        "model": Path(settings.model).name,
        "steps": split(settings.steps, settings.stage, settings.end_to_end_steps),
        "maps": settings.maps,
        "lr": settings.lr,
        "trained_on": {"batches": len(batches), "texts": sum(len(b["input_ids"]) for b in batches)},
        "tested_on": {name: sum(len(b["input_ids"]) for b in found) for name, found in groups.items()},
        **measured,
        "time": time_beside(original, plain, model, held_out),
    }


def layer_errors(model: Any, batch: Batch) -> list[float]:
    """|o - t|^2 / |t|^2 of each attention on the softmax model's own activations."""
    captured = capture_layers(model, {m: m for m in converted_modules(model)}, batch)
    with torch.no_grad():
        return [float(relative_error(attend(c, True)[0], t, rows_that_count(c))) for c, t in captured]


def compare_classifiers(settings: Settings) -> dict[str, Any]:
    """Accuracy of a logistic regression on embeddings of the same labelled texts, by the original and by what `run` saved."""
    from transformers import AutoModel, AutoTokenizer

    from lln.hf.distil_classify import classify, labelled_embeddings

    tokenizer = AutoTokenizer.from_pretrained(settings.model)
    accuracy = {}
    for name, folder in {"original": settings.model, "distilled": str(settings.out)}.items():
        model = AutoModel.from_pretrained(folder).eval()
        # the original's take a while and stay the same from run to run
        keep = settings.out / f"embeddings_{Path(settings.model).name}" if name == "original" else None
        train, test = (
            labelled_embeddings(model, tokenizer, path, settings.classify, settings.max_length, keep)
            for path in (settings.data, settings.test_data)
        )
        accuracy[name] = classify(train, test)
    return {"train": len(train[1]), "test": len(test[1]), "accuracy": accuracy}


def shuffled_texts(path: Path, tokenizer: Any, count: int, max_length: int) -> tuple[list[str], list[str]]:
    """`count` texts that fill max_length tokens and as many of at most a third of it, at random: files are often sorted."""
    texts = list(read_texts(path))
    random.Random(0).shuffle(texts)
    long: list[str] = []
    short: list[str] = []
    for text in texts:
        tokens = len(tokenizer(text, truncation=True, max_length=max_length)["input_ids"])
        if tokens == max_length and len(long) < count:
            long.append(text)
        elif tokens <= max_length // 3 and len(short) < count:
            short.append(text)
        if len(long) == len(short) == count:
            break
    return long, short


def training_batches(settings: Settings, tokenizer: Any, model: Any) -> list[Batch]:
    """Long texts, and short ones in batches of their own, so that little is padding."""
    long, short = shuffled_texts(settings.data, tokenizer, settings.texts, settings.max_length)
    parts = (long, short[: settings.texts // SHORT_SHARE])
    return [b for part in parts if part for b in batches_of(part, model, tokenizer, settings.max_length)]


def test_groups(settings: Settings, tokenizer: Any, model: Any) -> dict[str, list[Batch]]:
    long, short = shuffled_texts(settings.test_data, tokenizer, settings.test_texts, settings.max_length)
    if not long or not short:
        raise ValueError(
            f"{settings.test_data} needs texts of {settings.max_length} tokens and of at most {settings.max_length // 3}"
        )
    return {
        name: [
            {k: b[k] for k in ("input_ids", "attention_mask")}
            for b in batches_of(part, model, tokenizer, settings.max_length, batch_size=8)
        ]
        for name, part in (("long", long), ("short", short))
    }


@torch.no_grad()
def time_beside(original: Any, plain: Any, distilled: Any, batch: Batch) -> dict[str, Any]:
    """Seconds of a forward pass of one batch, interleaved, and the ratio to plain LLN+Diag."""
    models = {"original": original, "converted": plain, "distilled": distilled}

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
        "ratio_to_converted": {name: s / seconds["converted"] for name, s in seconds.items()},
    }
