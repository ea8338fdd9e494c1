"""LoLCATs: softmax in a sliding window and Hedgehog features for what is further away, under one normaliser.

    s_ij = g exp(q_i.k_j / sqrt d - c_i)   near, |i - j| < w,    c_i = max_j q_i.k_j / sqrt d over the near keys
    s_ij = f(q_i).f(k_j)                   further away,         f(x) = [softmax(W x), softmax(-W x)]
    out_i = sum_j s_ij v_j / sum_j s_ij

with g = sigmoid of a learned number per head, and W (D, D) per head, one map for queries and one for keys, started at the
identity. Zhang et al. 2024, "LoLCATs: On Low-Rank Linearizing of Large Language Models", arXiv 2410.10254. Time
O(N (d^2 + w d)), memory O(N (d + w)).
Departures: a form that is not causal, whose window reaches to both sides, is added; no epsilon.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lln.ops.masks import allowed_pairs
from lln.zoo import kernels
from lln.zoo.card import Card
from lln.zoo.mechanism import Mechanism, Shape
from lln.zoo.members.hedgehog import HeadwiseMap
from lln.zoo.registry import register
from lln.zoo.windows import from_segments, window_mask, window_positions, windows


@dataclass(frozen=True)
class Options:
    window: int = 64  # w: the query itself and w - 1 keys before it (and after it, where not causal)

    def __post_init__(self) -> None:
        if self.window < 1:
            raise ValueError(f"window must be at least 1, got {self.window}")


@register(
    Card(
        name="lolcats",
        title="LoLCATs",
        reference="Zhang et al. 2024b",
        equation="(g exp(q kᵀ/√d − c) near + f(q) f(k)ᵀ far) v over its row sum, f(x) = [softmax(Wx), softmax(−Wx)]",
        time="N (d² + w d)",
        memory="N (d + w)",
        growth="linear",
        causal=True,
        dense=True,
        learned=True,
        departures="A form with a window to both sides is added. No epsilon.",
        reproduced="It approaches softmax as the window grows, and is softmax where the window holds everything.",
    ),
    Options,
)
class Lolcats(Mechanism):
    def __init__(self, options: Options, shape: Shape) -> None:
        super().__init__(options, shape)
        self.query_map, self.key_map = (HeadwiseMap(shape.num_heads, shape.head_dim) for _ in range(2))
        self.window_logit = nn.Parameter(torch.empty(shape.num_heads, 1, 1))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Window and linear part weigh alike."""
        nn.init.zeros_(self.window_logit)

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, query_mask: Tensor | None, is_causal: bool
    ) -> Tensor:
        values = torch.cat([v, torch.ones_like(v[..., :1])], dim=-1)  # the last column sums the weights
        mixed = self._near(q, k, values, key_mask, is_causal) + self._far(q, k, values, key_mask, is_causal)
        return kernels.divide(mixed[..., :-1], mixed[..., -1:])

    def matrix(
        self, q: Tensor, k: Tensor, key_mask: Tensor | None, query_mask: Tensor | None, is_causal: bool
    ) -> Tensor:
        scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
        pairs = allowed_pairs(scores, key_mask, is_causal=is_causal)
        position = torch.arange(q.shape[2], device=q.device)
        near = (position[:, None] - position).abs() < self.options.window
        weights = torch.sigmoid(self.window_logit.to(q.dtype)) * _shifted_exp(scores, pairs & near)
        fq, fk = feature(self.query_map(q)), feature(self.key_map(k))
        return kernels.normalised_rows(torch.where(near, weights, fq @ fk.transpose(-1, -2)), key_mask, is_causal)

    def _near(self, q: Tensor, k: Tensor, values: Tensor, key_mask: Tensor | None, is_causal: bool) -> Tensor:
        """sum_j s_ij values_j over the window, segment by segment."""
        window, length = self.options.window, q.shape[2]
        segment, reach = min(window, length), min(window, length) - 1
        queries = windows(q, segment, 0)  # (B, G, H, segment, D)
        keys, near_values = (windows(x, segment, reach) for x in (k, values))
        at_query, at_key = window_positions(length, segment, reach, q.device)
        pairs = (at_query - at_key).abs() < window
        if is_causal:
            pairs = pairs & (at_key <= at_query)
        pairs = (pairs & window_mask(key_mask, length, segment, reach, q.device))[
            :, :, None
        ]  # (B, G, 1, segment, keys)
        weights = _shifted_exp(queries @ keys.transpose(-1, -2) * q.shape[-1] ** -0.5, pairs)
        return torch.sigmoid(self.window_logit.to(q.dtype)) * from_segments(weights @ near_values, length)

    def _far(self, q: Tensor, k: Tensor, values: Tensor, key_mask: Tensor | None, is_causal: bool) -> Tensor:
        """sum_j s_ij values_j over the keys w and more positions before, and, where not causal, after."""
        fq = feature(self.query_map(q))
        fk = kernels.only_keys_that_count(feature(self.key_map(k)), key_mask)
        before = self._before(fq, fk, values)
        if is_causal:
            return before
        return before + self._before(*(x.flip(2) for x in (fq, fk, values))).flip(2)

    def _before(self, fq: Tensor, fk: Tensor, values: Tensor) -> Tensor:
        late = [F.pad(x, (0, 0, self.options.window, 0))[:, :, : x.shape[2]] for x in (fk, values)]  # w positions later
        return kernels.causal_product(fq, *late)


def feature(x: Tensor) -> Tensor:
    """[softmax(x), softmax(-x)] over the features, (B, H, N, 2D)."""
    return torch.cat([torch.softmax(x, dim=-1), torch.softmax(-x, dim=-1)], dim=-1)


def _shifted_exp(scores: Tensor, pairs: Tensor) -> Tensor:
    """exp(scores - max) over the pairs, zero elsewhere; the maximum is part of the weights, so it has a gradient."""
    scores = scores.masked_fill(~pairs, -torch.inf)
    highest = scores.amax(dim=-1, keepdim=True)
    return (scores - highest.masked_fill(highest == -torch.inf, 0.0)).exp()
