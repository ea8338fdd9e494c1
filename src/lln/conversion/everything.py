"""Distillation in which all weights of a model learn, not only what its conversion added: `learn="everything"`.

The model can no longer be its own teacher, because its softmax self changes with it: unless another teacher is given, a copy of
the model before the first step is it.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from lln.conversion.plan import END_TO_END

EVERYTHING = "everything"
LAYER_RATE = 2e-2  # of what a conversion adds, unless it is given
RATE = 3e-4  # of weights that were trained before: far below that of the few numbers a conversion adds


def refuse_what_does_not_go_with_it(model: nn.Module, teacher: Any, stage: str, lr: float) -> None:
    if stage != END_TO_END:
        raise ValueError(
            f"learn={EVERYTHING!r} trains the model as a whole: stage must be {END_TO_END!r}, got {stage!r}. Train what the "
            "conversion added first, in a call of its own"
        )
    if lr != LAYER_RATE:
        raise ValueError(f"lr is of single layers, which learn={EVERYTHING!r} does not train: give end_to_end_lr")
    if teacher is model:
        raise ValueError(
            f"with learn={EVERYTHING!r} a model cannot be its own teacher: leave teacher out, and a copy of it will teach"
        )


def all_weights(model: nn.Module) -> dict[str, Tensor]:
    """The floating-point parameters of a model by their names, each once; inside `frozen`, all of them learn."""
    return {name: x.requires_grad_(True) for name, x in model.named_parameters() if x.is_floating_point()}


@contextmanager
def put_back_on_error(parameters: Mapping[str, Tensor]) -> Iterator[None]:
    """If anything goes wrong inside, these are what they were before."""
    before = {name: x.detach().clone() for name, x in parameters.items()}
    try:
        yield
    except BaseException:
        with torch.no_grad():
            for name, x in parameters.items():
                x.copy_(before[name])
        raise
