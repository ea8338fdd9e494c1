"""Hedgehog: exponential features with both signs and a learned map, trained to follow softmax.

    f(x) = [exp(W x + b), exp(-W x - b)],    out_i = sum_j f(q_i).f(k_j) v_j / sum_j f(q_i).f(k_j)

with W (D, D) and b (D) per head, one map for queries and one for keys, started at the identity and zero.
Zhang et al. 2024, "The Hedgehog & the Porcupine: Expressive Linear Attentions with Softmax Mimicry", arXiv 2402.04347: the
features, and `mimicry`, the loss that trains the maps, the cross-entropy of its weights P under softmax's,
-mean_i sum_j softmax_ij log P_ij. Time O(N d^2), memory O(N d).

This is LLN attention of [W q + b, -W q - b] and of the same of k with alpha = beta = 1, and is computed as such: stable,
causal if asked, and by the same kernel.
Departures: no epsilon, and exponents are not clipped.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lln.attention import lln_attention
from lln.dense import lln_matrix
from lln.zoo.card import Card
from lln.zoo.mechanism import Mechanism, Shape
from lln.zoo.registry import register


@dataclass(frozen=True)
class Options:
    """Hedgehog has no options."""


@register(
    Card(
        name="hedgehog",
        title="Hedgehog",
        reference="Zhang et al. 2024a",
        equation="f(q) (f(k)ᵀ v) / f(q) f(k)ᵀ 1, f(x) = [exp(Wx + b), exp(−Wx − b)], W and b learned",
        time="N d²",
        memory="N d",
        growth="linear",
        causal=True,
        cross=True,
        dense=True,
        learned=True,
        equivariant=True,
        departures="No epsilon, no clipping.",
        reproduced="Trained to mimic softmax, it is nearer to it on unseen inputs than fixed features are.",
    ),
    Options,
)
class Hedgehog(Mechanism):
    def __init__(self, options: Options, shape: Shape) -> None:
        super().__init__(options, shape)
        self.query_map, self.key_map = (HeadwiseMap(shape.num_heads, shape.head_dim) for _ in range(2))

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, query_mask: Tensor | None, is_causal: bool
    ) -> Tensor:
        a, b = self._log_features(q, k)
        out: Tensor = lln_attention(a, b, v, 1.0, 1.0, key_mask=key_mask, is_causal=is_causal)
        return out

    def matrix(
        self, q: Tensor, k: Tensor, key_mask: Tensor | None, query_mask: Tensor | None, is_causal: bool
    ) -> Tensor:
        a, b = self._log_features(q, k)
        one = torch.ones((), dtype=a.dtype, device=a.device)
        return lln_matrix(a, b, one, one, key_mask=key_mask, is_causal=is_causal)

    def _log_features(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """log f, (B, H, N, 2D)."""
        mapped = self.query_map(q), self.key_map(k)
        return torch.cat([mapped[0], -mapped[0]], dim=-1), torch.cat([mapped[1], -mapped[1]], dim=-1)


class HeadwiseMap(nn.Module):
    """x (B, H, N, D) -> W_h x + b_h, started at the identity, in the dtype of x."""

    def __init__(self, heads: int, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(heads, dim, dim))
        self.bias = nn.Parameter(torch.empty(heads, 1, dim))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """The identity."""
        self.weight.copy_(torch.eye(self.weight.shape[-1]))
        self.bias.zero_()

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight.to(x.dtype).transpose(-1, -2) + self.bias.to(x.dtype)


def mimicry(weights: Tensor, softmax: Tensor) -> Tensor:
    """The loss that trains the maps: the mean over rows of the cross-entropy -sum_j softmax_ij log weights_ij."""
    tiny = torch.finfo(weights.dtype).tiny
    return -(softmax * weights.clamp(min=tiny).log()).sum(dim=-1).mean()
