"""cosFormer: ReLU features with cosine re-weighting.

    s_ij = relu(q_i).relu(k_j) cos(pi/2 (i - j)/M),    out_i = sum_j s_ij v_j / sum_j s_ij

The cosine of a difference splits into cos cos + sin sin, so the features are [relu(x_i) cos(pi i/2M), relu(x_i)
sin(pi i/2M)]. Qin et al. 2022, "cosFormer: Rethinking Softmax in Attention", eqs. 9-12, with any M >= N. Time O(N d^2),
memory O(N d).
Departures: M is `max_length` or, where none is given, each sample's own length from its first token that counts to its
last, not the length of the batch at hand; positions count from that first token. So padding changes nothing. Causal
attention needs `max_length`: by the sample's length, later tokens would change earlier rows.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from lln.zoo import kernels
from lln.zoo.card import Card
from lln.zoo.mechanism import Mechanism, queries_that_count
from lln.zoo.registry import register


@dataclass(frozen=True)
class Options:
    """cosFormer has no options."""


@register(
    Card(
        name="cosformer",
        title="cosFormer",
        reference="Qin et al. 2022a",
        equation="sᵢⱼ = relu(qᵢ)·relu(kⱼ) cos(π/2 (i−j)/M), rows over their sum",
        time="N d²",
        memory="N d",
        growth="linear",
        causal=True,
        cross=True,
        dense=True,
        departures="M is max_length, or the sample's own length, rather than the length of the batch.",
    ),
    Options,
)
class Cosformer(Mechanism):
    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, query_mask: Tensor | None, is_causal: bool
    ) -> Tensor:
        of_q, of_k = self._angles(q, k, key_mask, query_mask, is_causal)
        return kernels.normalised(turned(F.relu(q), of_q), turned(F.relu(k), of_k), v, key_mask, is_causal)

    def matrix(
        self, q: Tensor, k: Tensor, key_mask: Tensor | None, query_mask: Tensor | None, is_causal: bool
    ) -> Tensor:
        of_q, of_k = self._angles(q, k, key_mask, query_mask, is_causal)
        distance = (of_q[:, :, None] - of_k[:, None, :])[:, None]  # (B or 1, 1, Nq, Nk)
        return kernels.normalised_rows(F.relu(q) @ F.relu(k).transpose(-1, -2) * distance.cos(), key_mask, is_causal)

    def _angles(
        self, q: Tensor, k: Tensor, key_mask: Tensor | None, query_mask: Tensor | None, is_causal: bool
    ) -> tuple[Tensor, Tensor]:
        """pi/2 i/M of the queries and of the keys, (B or 1, N)."""
        if self.shape.max_length is None and is_causal:
            raise ValueError(
                "causal cosformer needs max_length, the longest input there will be: with each sample's own length "
                "for M, later tokens would change earlier rows"
            )
        position_q, length_q = positions(q, queries_that_count(q, k, key_mask, query_mask))
        position_k, length_k = positions(k, key_mask)
        if self.shape.max_length is not None:
            step = math.pi / 2 / self.shape.max_length
            return position_q * step, position_k * step
        steps = (math.pi / 2 / length_q.maximum(length_k).double()).to(q.dtype)
        return position_q * steps, position_k * steps


def turned(x: Tensor, angle: Tensor) -> Tensor:
    """[x cos, x sin], (B, H, N, 2D), by an angle for every position (B or 1, N)."""
    angle = angle[:, None, :, None]
    return torch.cat([x * angle.cos(), x * angle.sin()], dim=-1)


def positions(x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Counted from the first token that counts, (B or 1, N), and the number from there to the last, (B or 1, 1)."""
    position = torch.arange(x.shape[2], device=x.device)[None]
    if mask is None:
        return position.to(x.dtype), torch.full((1, 1), x.shape[2], device=x.device)
    counting = mask.int()
    first = counting.argmax(dim=1, keepdim=True)
    last = x.shape[2] - 1 - counting.flip(1).argmax(dim=1, keepdim=True)
    return (position - first).to(x.dtype), last - first + 1
