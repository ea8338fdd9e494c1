"""cosFormer: ReLU features with cosine re-weighting.

    s_ij = relu(q_i).relu(k_j) cos(pi/2 (i - j)/M),    out_i = sum_j s_ij v_j / sum_j s_ij

The cosine of a difference splits into cos cos + sin sin, so the features are [relu(x_i) cos(pi i/2M), relu(x_i)
sin(pi i/2M)]. Qin et al. 2022, "cosFormer: Rethinking Softmax in Attention", eqs. 9-12. Time O(N d^2), memory O(N d).
Departures: M is `max_length`, not the length of the batch at hand, so that padding changes nothing.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from lln.zoo import kernels
from lln.zoo.card import Card
from lln.zoo.feature_kernel import FeatureKernel
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
        departures="M is max_length rather than the length of the batch.",
    ),
    Options,
)
class Cosformer(FeatureKernel):
    def matrix(
        self, q: Tensor, k: Tensor, key_mask: Tensor | None, query_mask: Tensor | None, is_causal: bool
    ) -> Tensor:
        distance = self._angle(q)[:, None] - self._angle(k)[None, :]  # (Nq, Nk)
        return kernels.normalised_rows(F.relu(q) @ F.relu(k).transpose(-1, -2) * distance.cos(), key_mask, is_causal)

    def feature(self, x: Tensor) -> Tensor:
        angle, x = self._angle(x)[:, None], F.relu(x)
        return torch.cat([x * angle.cos(), x * angle.sin()], dim=-1)  # (B, H, N, 2D)

    def _angle(self, x: Tensor) -> Tensor:
        return torch.arange(x.shape[2], device=x.device, dtype=x.dtype) * (math.pi / 2 / self.shape.max_length)
