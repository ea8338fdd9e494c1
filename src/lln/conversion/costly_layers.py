"""Which layers of a converted model cost most: those that `keep_softmax="auto"` gives their softmax back.

The cost of a layer is what the whole model's output loses with that layer converted alone, as distillation measures it end to
end.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from lln.conversion.modes import evaluating

SHARE = 8  # one layer in so many is kept, unless a number is given


@torch.no_grad()
def costs(
    model: nn.Module,
    modules: Sequence[nn.Module],
    batches: Sequence[Any],
    softmax_in: Callable[[Sequence[nn.Module]], AbstractContextManager[None]],
    original: Callable[[Any], Any],
    loss: Callable[[Any, Any], Tensor],
) -> list[float]:
    """Of each converted module alone, in order, summed over batches.

    softmax_in: inside, these modules compute softmax. original: the softmax model's output for a batch. loss: of the model's
    output for a batch, as it runs now, against that.
    """
    found = [0.0] * len(modules)
    with evaluating(model):
        for batch in batches:
            wanted = original(batch)
            for i in range(len(modules)):
                with softmax_in([*modules[:i], *modules[i + 1 :]]):
                    found[i] += float(loss(wanted, batch))
    return found


def how_many(count: int | None, layers: int) -> int:
    """Of so many layers, those to keep; refused unless at least one is kept and one converted."""
    count = max(1, layers // SHARE) if count is None else count
    if not 0 < count < layers:
        raise ValueError(
            f"softmax_layers must be at least 1 and leave a layer to convert, of which there are {layers}, got {count}"
        )
    return count


def costliest(found: list[float], count: int) -> list[int]:
    """The numbers of the `count` layers that cost most."""
    return sorted(sorted(range(len(found)), key=lambda i: -found[i])[:count])
