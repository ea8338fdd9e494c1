"""What to calibrate on, as batches a model takes: texts with a tokenizer, or anything that yields batches.

Not as `lln.conversion.runs` takes them: these models name their inputs, know their padding and live on one device.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from lln.conversion.modes import evaluating


def batches_of(
    data: Any, model: Any, tokenizer: Any = None, max_length: int = 512, batch_size: int = 4
) -> list[dict[str, Tensor]]:
    """Batches on the model's device. `data` is a list of texts, or an iterable of dictionaries or tensors."""
    if isinstance(data, (str, Mapping, Tensor)):
        raise TypeError(
            f"calibrate must be a list of texts or of batches, got one {type(data).__name__}: put it into a list"
        )
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}")
    data = list(data)
    if not data:
        raise ValueError("calibrate is empty: give texts or batches to measure attention on")
    if isinstance(data[0], str):
        if tokenizer is None:
            raise ValueError("calibrate holds texts: give the model's tokenizer too, tokenizer=AutoTokenizer...")
        found = list(_tokenized(data, tokenizer, max_length, batch_size))
    else:
        found = [_as_inputs(x, model) for x in data]
    if any(mask is not None and not mask.any() for mask in (batch.get("attention_mask") for batch in found)):
        raise ValueError("a batch of calibrate is nothing but padding: its attention_mask has no token that counts")
    return [{name: x.to(model.device) for name, x in batch.items() if isinstance(x, Tensor)} for batch in found]


@torch.no_grad()
def run_through(model: Any, batches: Iterable[dict[str, Tensor]]) -> None:
    """One forward pass over all batches in eval mode; the model's mode is put back."""
    with evaluating(model):
        for batch in batches:
            model(**without_labels(batch))


def without_labels(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: x for name, x in batch.items() if name != "labels"}


def _tokenized(texts: list[str], tokenizer: Any, max_length: int, batch_size: int) -> Iterator[dict[str, Tensor]]:
    """Padded on the right: LLN sees rotary positions, which padding on the left would move."""
    for at in range(0, len(texts), batch_size):
        chosen = texts[at : at + batch_size]
        padding = len(chosen) > 1
        yield dict(
            tokenizer(
                chosen,
                truncation=True,
                max_length=max_length,
                padding=padding,
                padding_side="right",
                return_tensors="pt",
            )
        )


def _as_inputs(batch: Any, model: Any) -> dict[str, Tensor]:
    if isinstance(batch, Tensor):
        return {model.main_input_name: batch}
    try:
        named = dict(batch)
    except (TypeError, ValueError):
        named = {}
    if not named or not all(isinstance(name, str) for name in named):
        raise TypeError(f"calibrate must hold texts, dictionaries of tensors or tensors, got {type(batch).__name__}")
    return named
