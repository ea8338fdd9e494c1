"""Performer: softmax attention with positive orthogonal random features (FAVOR+).

    f(x)_l = exp(w_l.x - |x|^2/2) / sqrt m,  x = q / d^(1/4) or k / d^(1/4),    E[f(q).f(k)] = exp(q.k / sqrt d)
    out_i  = sum_j f(q_i).f(k_j) v_j / sum_j f(q_i).f(k_j)

w_l are Gaussian, orthogonal within blocks of d, with the norms of independent Gaussian vectors.
Choromanski et al. 2020, "Rethinking Attention with Performers", lemma 1 and section 2.4. Time O(N m d), memory O(N m).

The factor exp(-|q|^2/2) and any shift of the exponents cancel in the ratio. So this is LLN attention of w.q and of
w.k - |k|^2/2 with alpha = beta = 1, and is computed as such: stable, causal if asked, and by the same kernel.
Departures: no epsilon is added to the features (the published code adds 1e-4 or so, the equations do not).
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from lln.attention import lln_attention
from lln.ops.masks import allowed_pairs
from lln.zoo import kernels
from lln.zoo.card import Card
from lln.zoo.mechanism import Mechanism, Shape
from lln.zoo.random import generator
from lln.zoo.registry import register


@dataclass(frozen=True)
class Options:
    features: int | None = None  # m; None stands for the paper's d log d
    seed: int | None = None  # None draws from torch's global generator

    def __post_init__(self) -> None:
        if self.features is not None and self.features < 1:
            raise ValueError(f"features must be at least 1, got {self.features}")


@register(
    Card(
        name="performer",
        title="Performer (FAVOR+)",
        reference="Choromanski et al. 2020",
        equation="f(q) (f(k)ᵀ v) / f(q) f(k)ᵀ 1, f(x) = exp(Wx − |x|²/2), W orthogonal Gaussian",
        time="N m d",
        memory="N m",
        growth="linear",
        causal=True,
        cross=True,
        dense=True,
        deterministic=False,
        equivariant=True,
        departures="No epsilon is added to the features.",
    ),
    Options,
)
class Performer(Mechanism):
    directions: Tensor

    def __init__(self, options: Options, shape: Shape) -> None:
        super().__init__(options, shape)
        self.features = options.features or max(1, round(shape.head_dim * math.log(shape.head_dim)))
        self.register_buffer("directions", torch.empty(self.features, shape.head_dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """As it was made; without a seed of its own, newly drawn."""
        self.redraw(self.options.seed)

    def redraw(self, seed: int | None = None) -> None:
        """Draw new random features."""
        drawn = orthogonal_gaussian(self.features, self.shape.head_dim, generator(seed))
        self.directions.copy_(drawn)

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, query_mask: Tensor | None, is_causal: bool
    ) -> Tensor:
        log_fq, log_fk = self._log_features(q, k)
        out: Tensor = lln_attention(log_fq, log_fk, v, 1.0, 1.0, key_mask=key_mask, is_causal=is_causal)
        return out

    def matrix(
        self, q: Tensor, k: Tensor, key_mask: Tensor | None, query_mask: Tensor | None, is_causal: bool
    ) -> Tensor:
        log_fq, log_fk = (x.double() for x in self._log_features(q, k))
        rows = [torch.logsumexp(log_fq[:, :, i, None] + log_fk, dim=-1) for i in range(q.shape[2])]
        log_scores = torch.stack(rows, dim=2)  # (B, H, Nq, Nk)
        pairs = allowed_pairs(log_scores, key_mask, is_causal=is_causal)
        log_scores = log_scores.masked_fill(~pairs, -torch.inf)
        top = log_scores.amax(dim=-1, keepdim=True).clamp(min=torch.finfo(torch.float64).min)
        return kernels.normalised_rows((log_scores - top).exp(), key_mask, is_causal).to(q.dtype)

    def _log_features(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """log f up to what cancels, (B, H, N, m)."""
        directions = (self.directions * q.shape[-1] ** -0.25).to(q.dtype).t()
        half_norms = k.square().sum(dim=-1, keepdim=True) * (0.5 * k.shape[-1] ** -0.5)
        return q @ directions, k @ directions - half_norms


def orthogonal_gaussian(rows: int, dim: int, generator: torch.Generator | None) -> Tensor:
    """(rows, dim): each block of `dim` rows orthogonal, each row with the norm of a Gaussian vector."""
    blocks = -(-rows // dim)
    gaussian = torch.randn(blocks, dim, dim, generator=generator, dtype=torch.float64, device="cpu")
    orthogonal, triangular = torch.linalg.qr(gaussian)
    signs = triangular.diagonal(dim1=-2, dim2=-1).sign()  # without this the distribution is not uniform
    directions = (orthogonal * signs[:, None, :]).transpose(-1, -2).flatten(0, 1)[:rows]
    norms = torch.randn(rows, dim, generator=generator, dtype=torch.float64, device="cpu").norm(dim=-1, keepdim=True)
    return directions * norms
