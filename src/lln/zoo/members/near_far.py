"""Near exact, far by moments.

    near_far  out_i = (1 - m_i + m_i w_near) near_i + m_i (w_lln LLN_i + w_mean v_mean_i + w_slope slope_i)

near is softmax over the block of i, `neighbours` blocks on each side (causal: before) and the first tokens; LLN, the mean
value and the slope s Cov(v, k) q are of all other keys, m is their share of softmax's denominator, estimated by the
log-normal mean. The four weights of a head are learned. The equations are in `lln.ops.near_far.op`, their derivation in
docs/near-far.md. Not in a paper: this project's own.
Time O(N (d^2 + w d)), memory O(N d). Thin over `lln.near_far_attention`.
Departures of LLN as in `lln.zoo.members.lln`; the mean key is subtracted in it, but in causal attention, which may not look
at the whole sequence.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lln.dense import near_far_matrix
from lln.near_far import NEUTRAL, near_far_attention
from lln.ops.near_far import WEIGHTS
from lln.ops.near_far.op import check_reach
from lln.zoo.mechanism import Shape
from lln.zoo.members.lln import BlockOptions, Lln, LlnOptions, card
from lln.zoo.registry import register


@dataclass(frozen=True)
class NearFarOptions(LlnOptions):
    subtract_mean_key: bool = True
    block_size: int = 64
    neighbours: int = 0  # blocks on each side that are near, too
    first_tokens: int = 0  # of the sequence, that are near to all

    def __post_init__(self) -> None:
        LlnOptions(self.alpha, self.beta, self.target)  # with alpha and beta given, no mean key is subtracted
        BlockOptions(self.block_size)
        check_reach(self.neighbours, self.first_tokens)


@register(
    card(
        "near_far",
        "Near-far attention",
        "softmax near, by the far mass LLN, mean value and slope s Cov(v, k) q of the rest; four weights per head",
        reference="docs/near-far.md",
        time="N (d² + w d)",
        learned=True,
        departures="Not in a paper; α and β matched by entropy, per sample and head.",
    ),
    NearFarOptions,
)
class NearFar(Lln):
    def __init__(self, options: NearFarOptions, shape: Shape) -> None:
        super().__init__(options, shape)
        self.weights = nn.Parameter(torch.empty(shape.num_heads, len(WEIGHTS)))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        self.weights.copy_(torch.tensor(NEUTRAL))

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, query_mask: Tensor | None, is_causal: bool
    ) -> Tensor:
        return near_far_attention(
            q, k, v, **self._arguments(q, k, key_mask, query_mask, is_causal), key_mask=key_mask, is_causal=is_causal
        )

    def matrix(
        self, q: Tensor, k: Tensor, key_mask: Tensor | None, query_mask: Tensor | None, is_causal: bool
    ) -> Tensor:
        arguments = self._arguments(q, k, key_mask, query_mask, is_causal)
        return near_far_matrix(q, k, **arguments, key_mask=key_mask, is_causal=is_causal)

    def _arguments(
        self, q: Tensor, k: Tensor, key_mask: Tensor | None, query_mask: Tensor | None, is_causal: bool
    ) -> dict[str, Any]:
        alpha, beta, bias = self._scales(q, k, key_mask, query_mask, is_causal)
        o = self.options
        return {
            "alpha": alpha, "beta": beta, "feature_bias": bias, "weights": self.weights,
            "block_size": o.block_size, "neighbours": o.neighbours, "first_tokens": o.first_tokens,
        }  # fmt: skip
