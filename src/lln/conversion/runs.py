"""Batches as a torch model takes them: a tensor, a tuple of arguments, or a dictionary of named ones."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from lln.conversion.modes import evaluating

Run = Callable[[nn.Module], Any]


def as_runs(calibrate: Any) -> list[Run]:
    """A function for each batch that runs a model on it; a function that runs the model is one already."""
    if isinstance(calibrate, (Tensor, Mapping, str)):
        hint = (
            f"an attention goes by its name, attention={calibrate!r}"
            if isinstance(calibrate, str)
            else "put it into a list"
        )
        raise TypeError(f"calibrate must be a list of batches, got one {type(calibrate).__name__}: {hint}")
    if callable(calibrate) and not isinstance(calibrate, Iterable):
        return [calibrate]
    runs = [as_run(batch) for batch in calibrate]
    if not runs:
        raise ValueError("calibrate is empty: give batches to watch the model on")
    return runs


def as_run(batch: Any) -> Run:
    if isinstance(batch, Mapping):
        return lambda model: model(**batch)
    if isinstance(batch, (tuple, list)):
        return lambda model: model(*batch)
    return lambda model: model(batch)


@torch.no_grad()
def run_all(model: nn.Module, runs: list[Run]) -> None:
    with evaluating(model):
        for run in runs:
            run(model)
