"""Which layers of a converted model cost most: those that `keep_softmax="auto"` gives their softmax back.

The cost of a layer is what the whole model's output loses with that layer converted alone, as distillation measures it end to
end: the divergence of the next token's distribution, or the error of hidden states and embeddings.
"""

from typing import Any

import torch

from lln.hf.conversion.watching import watching
from lln.hf.distillation.layer_by_layer import softmax_in
from lln.hf.distillation.losses import Batch, end_to_end_loss, without_labels
from lln.hf.distillation.maps import converted_modules

SHARE = 8  # one layer in so many is kept, unless a number is given


@torch.no_grad()
def costs(model: Any, batches: list[Batch]) -> list[float]:
    """Of each converted attention module alone, in the model's order, summed over batches. The model runs as converted."""
    training = model.training
    model.eval()
    modules = converted_modules(model)
    found = [0.0] * len(modules)
    try:
        for batch in batches:
            with watching(model, lambda call, out: None):
                wanted = model(**without_labels(batch))
            for i in range(len(modules)):
                with softmax_in(modules[:i] + modules[i + 1 :]):
                    found[i] += float(end_to_end_loss(model, wanted, batch))
    finally:
        model.train(training)
    return found


def keep_costliest(model: Any, batches: list[Batch], count: int | None) -> list[int]:
    """Give the `count` costliest modules their softmax back; returns their numbers among the converted ones."""
    modules = converted_modules(model)
    count = max(1, len(modules) // SHARE) if count is None else count
    if not 0 < count < len(modules):
        raise ValueError(
            f"softmax_layers must be at least 1 and leave a layer to convert, of which there are {len(modules)}, got {count}"
        )
    found = costs(model, batches)
    chosen = sorted(range(len(modules)), key=lambda i: -found[i])[:count]
    for i in chosen:
        del modules[i].lln
        modules[i].lln_keeps_softmax = True
    return sorted(chosen)
