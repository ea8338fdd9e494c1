"""The costliest layers of a Hugging Face model (`lln.conversion.costly_layers`): the cost is the divergence of the next token's
distribution, or the error of hidden states and embeddings."""

from typing import Any

import torch

from lln.conversion import costly_layers
from lln.hf.conversion.batches import without_labels
from lln.hf.conversion.watching import watching
from lln.hf.distillation.layer_by_layer import softmax_in
from lln.hf.distillation.losses import Batch, end_to_end_loss
from lln.hf.distillation.maps import converted_modules


def costs(model: Any, batches: list[Batch]) -> list[float]:
    """Of each converted attention module alone, in the model's order, summed over batches. The model runs as converted."""

    def original(batch: Batch) -> Any:
        with watching(model, lambda call, out: None):
            return model(**without_labels(batch))

    def loss(wanted: Any, batch: Batch) -> torch.Tensor:
        return end_to_end_loss(model, wanted, batch)

    return costly_layers.costs(model, converted_modules(model), batches, softmax_in, original, loss)


def keep_costliest(model: Any, batches: list[Batch], count: int | None) -> list[int]:
    """Give the `count` costliest modules their softmax back; returns their numbers among the converted ones."""
    modules = converted_modules(model)
    count = costly_layers.how_many(count, len(modules))
    chosen = costly_layers.costliest(costs(model, batches), count)
    for i in chosen:
        del modules[i].lln
        modules[i].lln_keeps_softmax = True
    return chosen
