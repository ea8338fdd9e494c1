"""Batches as a torch model takes them: a tensor, a tuple of arguments, or a dictionary of named ones."""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from lln.conversion.modes import evaluating

Run = Callable[[nn.Module], Any]


def refuse_one_batch(calibrate: Any, name: str = "calibrate") -> None:
    """One tensor would be taken for a list of its rows, and one dictionary for a list of its names."""
    if isinstance(calibrate, (Tensor, Mapping, str)):
        hint = (
            f"an attention goes by its name, attention={calibrate!r}"
            if isinstance(calibrate, str)
            else "put it into a list"
        )
        raise TypeError(f"{name} must be a list of batches, got one {type(calibrate).__name__}: {hint}")


def as_runs(calibrate: Any) -> list[Run]:
    """A function for each batch that runs a model on it; a function that runs the model is one already."""
    refuse_one_batch(calibrate)
    if callable(calibrate) and not isinstance(calibrate, Iterable):
        return [calibrate]
    if not isinstance(calibrate, Iterable):
        raise TypeError(
            f"calibrate must be a list of batches, or a function that runs the model, got {type(calibrate).__name__}"
        )
    runs = [as_run(batch) for batch in calibrate]
    if not runs:
        raise ValueError("calibrate is empty: give batches to watch the model on")
    return runs


def as_run(batch: Any) -> Run:
    if isinstance(batch, Mapping):
        return lambda model: model(**batch)
    if isinstance(batch, (tuple, list)):
        return partial(_run_on_arguments, batch)
    return lambda model: model(batch)


def _run_on_arguments(batch: tuple[Any, ...] | list[Any], model: nn.Module) -> Any:
    try:
        return model(*batch)
    except TypeError as reason:
        if "positional argument" not in str(reason):
            raise
        raise TypeError(
            f"{reason}. A batch that is a {type(batch).__name__} is taken for the arguments of the model, here {len(batch)}: "
            "of inputs with labels give the inputs alone, [x for x, _ in loader]"
        ) from reason


@torch.no_grad()
def run_all(model: nn.Module, runs: list[Run]) -> None:
    with evaluating(model):
        for run in runs:
            run(model)
