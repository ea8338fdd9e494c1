"""Softmax attention.

    out_i = sum_j softmax_j(q_i.k_j / sqrt d) v_j

Vaswani et al. 2017, "Attention Is All You Need", eq. 1. Time O(N^2 d). Memory O(N d) with torch's fused kernel,
O(N^2) without.
Departures: none.
"""

from dataclasses import dataclass

from torch import Tensor

from lln.ops.masks import allowed_pairs
from lln.zoo.card import Card
from lln.zoo.mechanism import Mechanism
from lln.zoo.registry import register
from lln.zoo.scores import softmax_attention, softmax_matrix


@dataclass(frozen=True)
class Options:
    """Softmax attention has no options."""


@register(
    Card(
        name="softmax",
        title="Softmax attention",
        reference="Vaswani et al. 2017",
        equation="softmax(q kᵀ / √d) v",
        time="N² d",
        memory="N d",
        growth="quadratic",
        causal=True,
        cross=True,
        dense=True,
        equivariant=True,
    ),
    Options,
)
class Softmax(Mechanism):
    upcast = False

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, query_mask: Tensor | None, is_causal: bool
    ) -> Tensor:
        if key_mask is None:
            return softmax_attention(q, k, v, None, is_causal)
        pairs = key_mask[:, None, None, :]
        if is_causal:
            pairs = allowed_pairs(q @ k.transpose(-1, -2), key_mask, is_causal=True)
        return softmax_attention(q, k, v, pairs)

    def matrix(
        self, q: Tensor, k: Tensor, key_mask: Tensor | None, query_mask: Tensor | None, is_causal: bool
    ) -> Tensor:
        return softmax_matrix(q, k, allowed_pairs(q @ k.transpose(-1, -2), key_mask, is_causal=is_causal))
