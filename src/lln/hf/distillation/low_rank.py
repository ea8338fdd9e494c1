"""Low-rank updates of the projections of attention, learned end to end by peft and then added to the weights.

    W' = W + B A / r,  A (r, in), B (out, r)                                           (LoRA, arXiv 2106.09685)

B starts at zero. The factor 1 / r keeps steps small at the learning rates that suit alpha, beta and the maps. While they
are learned the updates can be switched off, since the model is its own softmax teacher.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from lln.hf.modules import named_attention_modules


class LowRank:
    """Updates of rank `rank` in every linear projection of the converted attention modules of a model."""

    def __init__(self, model: Any, rank: int, seed: int) -> None:
        try:
            from peft import LoraConfig, LoraModel
        except ImportError as missing:
            raise ImportError("low-rank updates of the projections need peft: pip install peft") from missing
        config = LoraConfig(r=rank, lora_alpha=1, lora_dropout=0.0, bias="none", target_modules=_projections(model))
        with torch.random.fork_rng():
            torch.manual_seed(seed)  # A is random
            self.tuner = LoraModel(model, config, "lln")

    @property
    def parameters(self) -> dict[str, Tensor]:
        return {name: x for name, x in self.tuner.model.named_parameters() if ".lora_" in name}

    @contextmanager
    def off(self) -> Iterator[None]:
        """Inside, the model computes with its own weights."""
        self.tuner.disable_adapter_layers()
        try:
            yield
        finally:
            self.tuner.enable_adapter_layers()

    def merge(self) -> None:
        """Add the updates to the weights, and leave plain layers."""
        self.tuner.merge_and_unload()

    def remove(self) -> None:
        """Leave the weights as they were before."""
        self.tuner.unload()


@contextmanager
def low_rank_updates(model: Any, rank: int | None, seed: int) -> Iterator[LowRank | None]:
    """Inside, the model has such updates, if a rank is given. They are added to its weights, or removed if anything fails."""
    updates = None if rank is None else LowRank(model, rank, seed)
    try:
        yield updates
    except BaseException:
        if updates is not None:
            updates.remove()
        raise
    if updates is not None:
        updates.merge()


def _projections(model: Any) -> list[str]:
    found = [
        f"{name}.{child}"
        for name, module in named_attention_modules(model).items()
        if getattr(module, "lln", None) is not None
        for child, layer in module.named_modules()
        if isinstance(layer, nn.Linear)
    ]
    if not found:
        raise ValueError(f"{type(model).__name__} has no linear projections in its attention: low_rank cannot be used")
    return found
