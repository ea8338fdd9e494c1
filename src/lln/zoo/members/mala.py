"""Magnitude-aware linear attention: linear attention whose weights know how long the query is.

    s_ij = f(q_i).f(k_j) / (n sqrt d),  f(x) = elu(x) + 1,    z_i = sum_j s_ij
    out_i = sum_j (b_i s_ij - c_i) v_j,    b_i = 1 + 1/z_i,    c_i = z_i / n

over the n keys that count. Rows sum to one, b z - n c = 1, as a softmax's do, but a longer query scales s and so spreads its
row, where a ratio s / z would not change at all. Weights may be negative.
Fan et al. 2025, "Rectifying Magnitude Neglect in Linear Attention", arXiv 2507.00698 (b and c are its beta and gamma). Time
O(N d^2), memory O(N d).
Departures: the scale 1/(n sqrt d) of s is that of the authors' code; their equations have none. No epsilon, no rotary
positions, no convolution of v. The causal form counts the keys up to i.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from lln.ops.masks import allowed_pairs
from lln.zoo import kernels
from lln.zoo.card import Card
from lln.zoo.mechanism import Mechanism
from lln.zoo.members.elu import feature
from lln.zoo.registry import register


@dataclass(frozen=True)
class Options:
    """MALA has no options."""


@register(
    Card(
        name="mala",
        title="Magnitude-aware linear attention (MALA)",
        reference="Fan et al. 2025",
        equation="(1 + 1/z) f(q) (f(k)ᵀ v) − z v̄, z = f(q) f(k)ᵀ 1, f = elu + 1, over n √d",
        time="N d²",
        memory="N d",
        growth="linear",
        causal=True,
        cross=True,
        dense=True,
        equivariant=True,
        departures="Scores divided by n √d, as in the authors' code. No epsilon, rotary positions or convolution.",
        reproduced="A longer query spreads its row; in linear attention with a plain ratio its length cancels.",
    ),
    Options,
)
class Mala(Mechanism):
    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, query_mask: Tensor | None, is_causal: bool
    ) -> Tensor:
        fq, fk = feature(q), kernels.only_keys_that_count(feature(k), key_mask)
        values = torch.cat([v, torch.ones_like(v[..., :1])], dim=-1)
        counts = self._counts(k, key_mask, is_causal)
        if is_causal:
            mixed, means = kernels.causal_product(fq, fk, values), v.cumsum(dim=2)
        else:
            mixed, means = kernels.product(fq, fk, values), v.sum(dim=2, keepdim=True)
        mixed = mixed * (q.shape[-1] ** -0.5 / counts)
        summed, z = mixed[..., :-1], mixed[..., -1:]
        return summed + kernels.divide(summed, z) - z * (means / counts)

    def matrix(
        self, q: Tensor, k: Tensor, key_mask: Tensor | None, query_mask: Tensor | None, is_causal: bool
    ) -> Tensor:
        scores = feature(q) @ feature(k).transpose(-1, -2)
        pairs = allowed_pairs(scores, key_mask, is_causal=is_causal)
        counts = self._counts(k, key_mask, is_causal)
        scores = scores.masked_fill(~pairs, 0.0) * (q.shape[-1] ** -0.5 / counts)
        z = scores.sum(dim=-1, keepdim=True)
        return scores + kernels.divide(scores, z) - (z / counts) * pairs

    def _counts(self, k: Tensor, key_mask: Tensor | None, is_causal: bool) -> Tensor:
        """n, at least 1, (B or 1, 1, N or 1, 1)."""
        mask = torch.ones(1, k.shape[2], dtype=torch.bool, device=k.device) if key_mask is None else key_mask
        counts = mask.cumsum(dim=1) if is_causal else mask.sum(dim=1, keepdim=True)
        return counts.clamp(min=1).to(k.dtype)[:, None, :, None]
