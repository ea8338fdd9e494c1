"""Which modules of a model are its attention: those that call transformers' attention interface."""

from typing import TypeVar

from torch import nn
from transformers import PreTrainedModel

Model = TypeVar("Model", bound=PreTrainedModel)  # what is changed in place comes back as what it is


def attention_modules(model: nn.Module) -> list[nn.Module]:
    """In the model's own order, self- and cross-attention alike.

    Such a module carries `is_causal` and the config whose attention implementation it follows, and owns projections.
    """
    return list(named_attention_modules(model).values())


def named_attention_modules(model: nn.Module) -> dict[str, nn.Module]:
    return {name: module for name, module in model.named_modules() if _is_attention(module)}


def _is_attention(module: nn.Module) -> bool:
    return hasattr(module, "is_causal") and hasattr(module, "config") and next(module.parameters(), None) is not None
