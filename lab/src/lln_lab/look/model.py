"""The attention of every layer of a model for one text, as matrices that are never held as a whole."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from lln.instruments import SoftmaxMatrix
from lln.instruments.attention import AttentionMatrix
from lln.instruments.capture import Captured
from lln.instruments.probe import Probe
from lln_lab.experiments.maps import Layer


class _Collector(Probe):
    """Keeps what each layer's attention was called with, and measures nothing."""

    calls: tuple[Captured, ...] = ()

    def _measure(self, calls: list[Captured]) -> None:
        self.calls = tuple(calls)


class SeenLayer(Layer):
    """A layer of a live model. What the model itself computes takes the place of what would be matched to it."""

    own: dict[str, AttentionMatrix]

    @classmethod
    def seen(cls, number: int, call: Captured) -> "SeenLayer":
        assert call.q is not None and call.k is not None
        own = call.build()
        softmax = own if call.kind == "softmax" else SoftmaxMatrix(call.q, call.k, is_causal=own.is_causal)
        layer = cls(softmax, call.q, call.k, number)
        object.__setattr__(layer, "own", {call.kind: own})
        return layer

    def of_heads(self, heads: Sequence[int]) -> Layer:
        return super().of_heads(heads) if set(self.own) == {"softmax"} else self

    def kinds(self, block_size: int) -> dict[str, AttentionMatrix]:
        return super().kinds(block_size) | self.own


@torch.no_grad()
def layers_of(model: nn.Module, inputs: dict[str, Any], wanted: Sequence[int] | None = None) -> list[Layer]:
    """The layers of the model in the order in which they attend, or the wanted ones."""
    seen = _Collector(model.eval())
    with seen:
        model(**inputs)
    calls = [call for call in seen.calls if call.q is not None and call.k is not None]
    square = [
        call for call in calls if call.q is not None and call.k is not None and call.q.shape[2] == call.k.shape[2]
    ]
    if not square:
        raise ValueError(
            "no self-attention was seen: `lln look` sees scaled_dot_product_attention, softmax over (batch, heads, queries, "
            "keys) and this package's attention"
        )
    numbers = range(len(square)) if wanted is None else wanted
    missing = [number for number in numbers if not 0 <= number < len(square)]
    if missing:
        raise ValueError(f"there is no layer {missing[0]}: the model has layers 0 to {len(square) - 1}")
    return [SeenLayer.seen(number, square[number]) for number in numbers]
