"""A model with another attention for a while."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from lln.hf.attention.masks import padding_mask

NAME = "measured"


@contextmanager
def attention_of(model: Any, attention: Callable[..., tuple[Tensor, None]]) -> Iterator[None]:
    """Inside, `attention` is called in place of the model's; as it was afterwards."""
    from transformers import AttentionInterface, AttentionMaskInterface

    before = model.config._attn_implementation
    AttentionInterface.register(NAME, attention)
    AttentionMaskInterface.register(NAME, padding_mask)
    model.config._attn_implementation = NAME
    try:
        yield
    finally:
        model.config._attn_implementation = before
