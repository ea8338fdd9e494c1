"""Gradient checkpointing: a layer's activations are computed again in the backward pass instead of being kept.

Only a layer's input stays in memory, at the price of a second forward pass. It is done here and not by transformers because a
member that replaces the whole layer (FLASH, TNN) is none of transformers' own.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import nn
from torch.utils.checkpoint import checkpoint

LISTS = ("layer", "layers")  # what transformers calls the list of an encoder's layers


def checkpoint_layers(model: nn.Module) -> int:
    """Every layer of every encoder in the model, while it trains; how many there are."""
    layers = [
        layer
        for name, module in model.named_modules()
        if isinstance(module, nn.ModuleList) and name.rsplit(".", 1)[-1] in LISTS
        for layer in module
    ]
    if not layers:
        raise ValueError(f"{type(model).__name__} has no list of layers to checkpoint")
    for layer in layers:
        layer.forward = partial(_recomputed, layer, layer.forward)
    return len(layers)


def _recomputed(layer: nn.Module, forward: Callable[..., Any], *inputs: Any, **named: Any) -> Any:
    if not layer.training:
        return forward(*inputs, **named)
    return checkpoint(forward, *inputs, use_reentrant=False, **named)
