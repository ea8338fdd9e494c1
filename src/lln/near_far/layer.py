"""A layer of near-far attention: softmax over what is near, moments of what is far, four learned weights a head."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lln.dense import near_far_matrix
from lln.layers import LLNAttention
from lln.matching.matcher import MomentMatcher
from lln.near_far.attention import NEUTRAL, near_far_attention
from lln.ops.near_far import WEIGHTS
from lln.ops.near_far.op import check_reach


class NearFarAttention(LLNAttention):
    """Multi-head near-far attention (docs/near-far.md), with weights per head that are learned:

        out = (1 - m + m w_near) near + m (w_lln LLN + w_mean mean + w_slope slope),      m the estimated far share

    It needs queries and keys of one sequence. The mean key is subtracted in LLN unless matching_options say otherwise.

    Args beyond `LLNAttention`'s:
        block_size, neighbours, first_tokens: what is near, as in `lln.near_far_attention`.
        weights: near, LLN, mean and slope to start from, for all heads or (num_heads, 4), such as those that
            `lln.near_far.fit` finds. Default: (0, 1/2, 1/2, 1/2).
        learn_weights: False keeps them as they are.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *args: Any,
        block_size: int = 64,
        neighbours: int = 0,
        first_tokens: int = 0,
        weights: Tensor | Sequence[float] = NEUTRAL,
        learn_weights: bool = True,
        **options: Any,
    ) -> None:
        check_reach(neighbours, first_tokens)
        super().__init__(embed_dim, num_heads, *args, **options)
        self._start = _per_head(weights, num_heads)
        self.block_size, self.neighbours, self.first_tokens = block_size, neighbours, first_tokens
        self.weights = nn.Parameter(
            torch.empty(num_heads, len(WEIGHTS), dtype=torch.float32, device=options.get("device")), learn_weights
        )
        self._reset_weights()

    def _reset_without_drawing(self) -> None:
        """What is not drawn at random, as it started: alpha, beta, running statistics and the weights."""
        super()._reset_without_drawing()
        self._reset_weights()

    @torch.no_grad()
    def _reset_weights(self) -> None:
        self.weights.copy_(self._start)

    def _matcher(self, matching: str | MomentMatcher | None, options: dict[str, Any]) -> MomentMatcher:
        if not isinstance(matching, MomentMatcher) and matching != "fixed":  # 'fixed' knows no mean key
            options = {"subtract_mean_key": True, **options}
        return super()._matcher(matching, options)

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, alpha: Tensor, beta: Tensor, **options: Any) -> Any:
        result = near_far_attention(q, k, v, alpha, beta, **self._near, **options)
        if options["return_state"]:
            return self._drop(result[0]), result[1]
        return self._drop(result)

    def _weights(self, q: Tensor, k: Tensor, alpha: Tensor, beta: Tensor, **options: Any) -> Tensor:
        return near_far_matrix(q, k, alpha, beta, is_causal=self.causal, **self._near, **options)

    @property
    def _near(self) -> dict[str, Any]:
        return {
            "weights": self.weights, "block_size": self.block_size, "neighbours": self.neighbours,
            "first_tokens": self.first_tokens,
        }  # fmt: skip

    def extra_repr(self) -> str:
        near = f"block_size={self.block_size}, neighbours={self.neighbours}, first_tokens={self.first_tokens}"
        return f"{super().extra_repr()}, {near}"


def _per_head(weights: Tensor | Sequence[float], heads: int) -> Tensor:
    """(heads, 4) in the memory of the CPU, to start from again."""
    given = torch.as_tensor(weights, dtype=torch.float32, device="cpu").detach()
    if given.shape not in ((len(WEIGHTS),), (heads, len(WEIGHTS))):
        raise ValueError(
            f"weights are {', '.join(WEIGHTS)}: ({len(WEIGHTS)},) for all heads or ({heads}, {len(WEIGHTS)}), got "
            f"{tuple(given.shape)}"
        )
    return given.expand(heads, -1).clone()
