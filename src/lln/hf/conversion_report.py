"""One conversion from beginning to end: load, calibrate, convert, measure against the original, save."""

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from lln.hf.calibration_data import batches_of
from lln.hf.convert import convert
from lln.hf.measure import (
    choose_texts,
    embeddings,
    memory_against_length,
    perplexity,
    similarity,
    time_against_length,
)
from lln.hf.modules import attention_modules
from lln.hf.variants import compare as compare_variants


@dataclass(frozen=True)
class Settings:
    model: str
    data: Path
    test_data: Path
    out: Path
    attention: str = "lln_diag"
    block_size: int = 64
    keep_softmax: list[int] = field(default_factory=list)
    texts: int = 8
    test_texts: int = 24
    max_length: int = 512
    distil: int = 0
    compare: bool = False
    memory: bool = True
    threads: int = 0


def run(settings: Settings, on_progress: Callable[[str], None]) -> dict[str, Any]:
    if settings.threads:
        torch.set_num_threads(settings.threads)
    tokenizer, original = _load(settings.model)
    causal = any(getattr(m, "is_causal", False) for m in attention_modules(original))
    on_progress("choosing texts")
    long, short = choose_texts(settings.data, tokenizer, settings.texts, settings.max_length)
    groups = _test_batches(settings, tokenizer, original)
    calibration = [*long, *short]
    if not calibration:
        raise ValueError(
            f"{settings.data} has no text of at most {settings.max_length // 3} tokens or of {settings.max_length}"
        )
    # long and short ones in batches of their own, so that little is padding
    batches = [b for part in (long, short) if part for b in batches_of(part, original, tokenizer, settings.max_length)]

    on_progress("measuring the original")
    before: dict[str, Any] = {name: (perplexity if causal else embeddings)(original, b) for name, b in groups.items()}

    def measure(model: Any) -> dict[str, Any]:
        if causal:
            return {n: {"perplexity_before": before[n], "perplexity": perplexity(model, b)} for n, b in groups.items()}
        return {n: similarity(before[n], embeddings(model, b)) for n, b in groups.items()}

    variants = compare_variants(copy.deepcopy(original), batches, measure, on_progress) if settings.compare else {}
    on_progress("converting")
    model = convert(
        copy.deepcopy(original), settings.attention, batches, settings.keep_softmax, block_size=settings.block_size
    )
    on_progress("measuring the converted model")
    converted = measure(model)
    errors = [getattr(getattr(m, "lln", None), "fit_error", None) for m in attention_modules(model)]
    distilled = None
    if settings.distil:
        model = _distil(model, calibration, tokenizer, settings)
        distilled = measure(model)
    model.save_pretrained(settings.out)
    tokenizer.save_pretrained(settings.out)

    lengths = [n for n in (128, 256, 512, 1024, 2048, 4096) if n <= _longest(original, settings.max_length)]
    on_progress("time against length")
    time = time_against_length({"original": original, "converted": model}, lengths)
    memory: list[dict] = []
    if settings.memory and not causal:
        on_progress("memory against length")
        memory = memory_against_length({"original": settings.model, "converted": str(settings.out)}, lengths)
    return {
        "model": Path(settings.model).name,
        "attention": settings.attention,
        "block_size": settings.block_size,
        "calibration": {"long": len(long), "short": len(short), "max_length": settings.max_length},
        "tested_on": {name: int(sum(len(b["input_ids"]) for b in found)) for name, found in groups.items()},
        "converted": converted,
        "distilled": distilled,
        "variants": variants,
        "error_per_layer": [None if e is None else float(e.mean()) for e in errors],
        "time": time,
        "memory": memory,
    }


def _load(name: str) -> tuple[Any, Any]:
    from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoTokenizer

    architectures = AutoConfig.from_pretrained(name).architectures or [""]
    kind = AutoModelForCausalLM if architectures[0].endswith(("CausalLM", "LMHeadModel")) else AutoModel
    return AutoTokenizer.from_pretrained(name), kind.from_pretrained(name).eval()


def _test_batches(settings: Settings, tokenizer: Any, model: Any) -> dict[str, Any]:
    long, short = choose_texts(settings.test_data, tokenizer, settings.test_texts, settings.max_length)
    groups = {
        name: batches_of(part, model, tokenizer, settings.max_length, batch_size=8)
        for name, part in (("long", long), ("short", short))
        if part
    }
    if not groups:
        raise ValueError(f"{settings.test_data} has no text that fits: give others or another max_length")
    return {n: [{k: b[k] for k in ("input_ids", "attention_mask")} for b in found] for n, found in groups.items()}


def _distil(model: Any, texts: list[str], tokenizer: Any, settings: Settings) -> Any:
    try:
        from lln.hf.distil import distil  # type: ignore[import-not-found,unused-ignore]
    except ImportError as missing:
        raise ValueError(f"distillation is not available: {missing}") from None
    return distil(model, texts, tokenizer=tokenizer, steps=settings.distil, max_length=settings.max_length)


def _longest(model: Any, max_length: int) -> int:
    return int(getattr(model.config, "max_position_embeddings", max_length))
