"""Agent attention: a few pooled queries collect from all keys, and every query asks them.

    out = softmax(q a^T / sqrt d) softmax(a k^T / sqrt d) v,    a: means of q over m consecutive segments

Two softmax attentions in a row, which together are linear attention with the features softmax(q a^T) and softmax(a k^T)^T:
its matrix has rank m at most. Han et al. 2023, "Agent Attention: On the Integration of Softmax and Linear Attention", arXiv
2312.08874. Time O(N m d), memory O(N d).
Departures: no biases of the two softmaxes and no depthwise convolution of v (both are made for images). Segments are of the
tokens that count, so that padding changes nothing.
"""

from dataclasses import dataclass

from torch import Tensor

from lln.zoo.card import Card
from lln.zoo.mechanism import Mechanism, queries_that_count
from lln.zoo.members.nystromformer import pairs, segment_means
from lln.zoo.registry import register
from lln.zoo.scores import softmax_attention, softmax_matrix


@dataclass(frozen=True)
class Options:
    agents: int = 49  # m; the paper's number for its larger feature maps

    def __post_init__(self) -> None:
        if self.agents < 1:
            raise ValueError(f"agents must be at least 1, got {self.agents}")


@register(
    Card(
        name="agent",
        title="Agent attention",
        reference="Han et al. 2023",
        equation="softmax(q aᵀ/√d) softmax(a kᵀ/√d) v, a means of q over m segments",
        time="N m d",
        memory="N d",
        growth="linear",
        cross=True,
        dense=True,
        departures="No biases, no convolution; segments of unmasked tokens.",
        reproduced="It is linear attention with as many features as there are agents.",
    ),
    Options,
)
class Agent(Mechanism):
    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, query_mask: Tensor | None, is_causal: bool
    ) -> Tensor:
        agents, real = segment_means(q, queries_that_count(q, k, key_mask, query_mask), self.options.agents)
        keys = None if key_mask is None else key_mask[:, None, None, :]
        collected = softmax_attention(agents, k, v, keys)  # (B, H, m, Dv)
        return softmax_attention(q, agents, collected, None if real is None else real[:, None, None, :])

    def matrix(
        self, q: Tensor, k: Tensor, key_mask: Tensor | None, query_mask: Tensor | None, is_causal: bool
    ) -> Tensor:
        agents, real = segment_means(q, queries_that_count(q, k, key_mask, query_mask), self.options.agents)
        asked = softmax_matrix(q, agents, pairs(None, real, q, agents))
        return asked @ softmax_matrix(agents, k, pairs(None, key_mask, agents, k))
