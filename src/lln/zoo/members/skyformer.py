"""Skyformer: Gaussian kernel attention through a Nystrom approximation.

    C_ij = exp(-|q_i - k_j|^2 / (2 sqrt d)),    out = C v ~ C(q, s) (C(s, s) + ridge I)^-1 C(s, k) v

without row normalisation. The landmarks s are drawn from queries and keys together, because the kernel of [q; k] with
itself is positive definite while C is not. Chen et al. 2021, "Skyformer: Remodel Self-Attention with Gaussian Kernel
and Nystrom Method", eqs. 3-6. Time O(N m d), memory O(N m).
Departures: landmarks are drawn one from each of m equal strata of the tokens that count (uniform, no token twice);
the m x m system is solved directly instead of by the paper's fixed number of Newton-Schulz steps, which approximate
the same inverse.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from lln.zoo.card import Card
from lln.zoo.kernels import only_keys_that_count
from lln.zoo.mechanism import Mechanism, Shape, queries_that_count
from lln.zoo.random import generator
from lln.zoo.registry import register


@dataclass(frozen=True)
class Options:
    landmarks: int = 128
    ridge: float = 1e-3
    seed: int | None = None  # None draws from torch's global generator

    def __post_init__(self) -> None:
        if self.landmarks < 1 or self.ridge <= 0:
            raise ValueError(f"landmarks must be >= 1 and ridge > 0, got {self.landmarks} and {self.ridge}")


@register(
    Card(
        name="skyformer",
        title="Skyformer",
        reference="Chen et al. 2021",
        equation="C(q, s) C(s, s)⁻¹ C(s, k) v, C(x, y) = exp(−|x − y|² / 2√d), s drawn from q and k",
        time="N m d + m³",
        memory="N m",
        growth="linear",
        cross=True,
        dense=True,
        deterministic=False,
        departures="Stratified landmarks; the m × m system is solved directly.",
    ),
    Options,
)
class Skyformer(Mechanism):
    places: Tensor

    def __init__(self, options: Options, shape: Shape) -> None:
        super().__init__(options, shape)
        self.register_buffer("places", torch.empty(options.landmarks, dtype=torch.float64))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """As it was made; without a seed of its own, newly drawn."""
        self.redraw(self.options.seed)

    def redraw(self, seed: int | None = None) -> None:
        """Draw new landmarks."""
        landmarks = self.options.landmarks
        self.places.copy_(torch.rand(landmarks, generator=generator(seed), dtype=torch.float64, device="cpu"))

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, query_mask: Tensor | None, is_causal: bool
    ) -> Tensor:
        to_landmarks, core, from_landmarks = self._factors(q, k, key_mask, query_mask)
        return to_landmarks @ torch.linalg.solve(core, from_landmarks @ v)

    def matrix(
        self, q: Tensor, k: Tensor, key_mask: Tensor | None, query_mask: Tensor | None, is_causal: bool
    ) -> Tensor:
        to_landmarks, core, from_landmarks = self._factors(q, k, key_mask, query_mask)
        return to_landmarks @ torch.linalg.inv(core) @ from_landmarks

    def _factors(
        self, q: Tensor, k: Tensor, key_mask: Tensor | None, query_mask: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """C(q, s), C(s, s) + ridge I, C(s, k); a landmark that does not exist has zeros in the outer two."""
        scale = q.shape[-1] ** -0.25
        q, k = q * scale, k * scale
        index, real = self._choose(q, k, key_mask, queries_that_count(q, k, key_mask, query_mask))  # (B, m), (B, m)
        tokens = torch.cat([q, k], dim=2)
        s = tokens.gather(2, index[:, None, :, None].expand(-1, q.shape[1], -1, q.shape[3]))  # (B, H, m, D)
        ridge = self.options.ridge * torch.eye(s.shape[2], dtype=s.dtype, device=s.device)
        both = real[:, None, :, None] & real[:, None, None, :]
        core = torch.where(both, gaussian(s, s), 0.0) + ridge
        to_landmarks = gaussian(q, s).masked_fill(~real[:, None, None, :], 0.0)
        from_landmarks = gaussian(s, k).masked_fill(~real[:, None, :, None], 0.0)
        from_landmarks = only_keys_that_count(from_landmarks.transpose(-1, -2), key_mask).transpose(-1, -2)
        return to_landmarks, core, from_landmarks

    def _choose(
        self, q: Tensor, k: Tensor, key_mask: Tensor | None, query_mask: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Positions in [q; k] of the landmarks and which of them exist: min(m, n) of n tokens that count."""
        masks = [
            torch.ones(x.shape[0], x.shape[2], dtype=torch.bool, device=x.device) if mask is None else mask
            for x, mask in ((q, query_mask), (k, key_mask))
        ]
        counted = torch.cat(masks, dim=1).cumsum(dim=1)  # (B, Nq + Nk)
        count = counted[:, -1:]
        drawn = count.clamp(max=self.options.landmarks)  # (B, 1)
        stratum = torch.arange(self.options.landmarks, device=q.device)
        rank = ((stratum + self.places.double()) * count / drawn.clamp(min=1)).long().clamp(max=counted.shape[1] - 1)
        index = torch.searchsorted(counted, (rank + 1).minimum(count)).clamp(max=counted.shape[1] - 1)
        return index, stratum < drawn


def gaussian(x: Tensor, y: Tensor) -> Tensor:
    """exp(-|x_i - y_j|^2 / 2), by one matrix product."""
    x_norms = x.square().sum(dim=-1, keepdim=True)
    y_norms = y.square().sum(dim=-1).unsqueeze(-2)
    return (x @ y.transpose(-1, -2) - 0.5 * (x_norms + y_norms)).clamp(max=0.0).exp()
