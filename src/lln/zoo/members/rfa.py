"""Random feature attention.

    f(x) = [sin(W x), cos(W x)] / sqrt m,  W Gaussian / sigma,    E[f(q).f(k)] = exp(-|q - k|^2 / 2 sigma^2)
    out_i = sum_j f(q_i).f(k_j) v_j / sum_j f(q_i).f(k_j)         ~ softmax(q.k / sigma^2) v, as |q| = |k| = 1

Gated (causal only), with g_t = sigmoid(w_g.x_t + b_g) per head:  S_t = g_t S_{t-1} + (1 - g_t) f(k_t) v_t^T, z_t
likewise, out_t = f(q_t) S_t / f(q_t).z_t. Peng et al. 2021, "Random Feature Attention", sections 2.2, 3.1 and 3.2.
Time O(N m d), memory O(N m).
Departures: sigma is fixed at 1 unless given (the paper learns one per dimension). The features have both signs, so
the denominator of a row can be close to zero when m is small: that is the method's own error, and nothing is added to
hide it.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lln.zoo import kernels
from lln.zoo.card import Card
from lln.zoo.mechanism import Mechanism, Shape
from lln.zoo.random import generator
from lln.zoo.registry import register


@dataclass(frozen=True)
class Options:
    features: int = 64  # m: f has 2 m entries
    sigma: float = 1.0
    gate: bool = False
    seed: int | None = None  # None draws from torch's global generator

    def __post_init__(self) -> None:
        if self.features < 1 or self.sigma <= 0:
            raise ValueError(f"features must be >= 1 and sigma > 0, got {self.features} and {self.sigma}")


@register(
    Card(
        name="rfa",
        title="Random feature attention",
        reference="Peng et al. 2021",
        equation="f(q) (f(k)ᵀ v) / f(q) f(k)ᵀ 1, f(x) = [sin Wx, cos Wx], |q| = |k| = 1",
        time="N m d",
        memory="N m",
        growth="linear",
        causal=True,
        cross=True,
        dense=True,
        deterministic=False,
        equivariant=True,
        departures="σ is fixed, not learned.",
    ),
    Options,
)
class Rfa(Mechanism):
    directions: Tensor

    def __init__(self, options: Options, shape: Shape) -> None:
        super().__init__(options, shape)
        self.register_buffer("directions", torch.empty(shape.num_heads, shape.head_dim, options.features))
        self.reset_parameters()
        self.needs_inputs = options.gate
        self.gate = nn.Linear(shape.embed_dim, shape.num_heads) if options.gate else None

    def reset_parameters(self) -> None:
        """As it was made; without a seed of its own, newly drawn."""
        self.redraw(self.options.seed)

    def redraw(self, seed: int | None = None) -> None:
        """Draw new random features."""
        shape = self.directions.shape
        drawn = torch.randn(shape, generator=generator(seed), dtype=torch.float64, device="cpu")
        self.directions.copy_(drawn / self.options.sigma)

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        key_mask: Tensor | None,
        query_mask: Tensor | None,
        is_causal: bool,
        inputs: Tensor | None = None,
    ) -> Tensor:
        fq, fk = self._features(q), self._features(k)
        if self.gate is None:
            return kernels.normalised(fq, fk, v, key_mask, is_causal)
        if not is_causal or inputs is None:
            raise ValueError("the gate of rfa is a recurrence: it needs is_causal=True and the layer's input")
        log_gate = F.logsigmoid(self.gate(inputs)).transpose(1, 2)  # (B, H, N)
        fk = kernels.only_keys_that_count(fk, key_mask)
        if key_mask is not None:  # a position that does not count neither writes nor forgets
            log_gate = log_gate.masked_fill(~key_mask[:, None, :], 0.0)
        mixed = gated_product(fq, fk, torch.cat([v, torch.ones_like(v[..., :1])], dim=-1), log_gate)
        return kernels.divide(mixed[..., :-1], mixed[..., -1:])

    def matrix(
        self, q: Tensor, k: Tensor, key_mask: Tensor | None, query_mask: Tensor | None, is_causal: bool
    ) -> Tensor:
        return kernels.matrix(self._features(q), self._features(k), key_mask, is_causal)

    def _features(self, x: Tensor) -> Tensor:
        """(B, H, N, 2m)"""
        angles = F.normalize(x, dim=-1) @ self.directions.to(x.dtype)
        return torch.cat([angles.sin(), angles.cos()], dim=-1) * self.options.features**-0.5


def gated_product(fq: Tensor, fk: Tensor, v: Tensor, log_gate: Tensor) -> Tensor:
    """sum_{j <= t} (prod_{j < s <= t} g_s) (1 - g_j) fq_t.fk_j v_j, chunk by chunk; every exponent is <= 0."""
    length = fq.shape[2]
    chunk = min(kernels.CHUNK, length)
    fk = fk * -torch.expm1(log_gate)[..., None]
    fq, fk, v = (kernels.in_chunks(t, chunk) for t in (fq, fk, v))  # (B, H, G, C, .)
    decay = kernels.in_chunks(log_gate[..., None], chunk).squeeze(-1).cumsum(dim=-1)  # (B, H, G, C)
    later = torch.ones(chunk, chunk, dtype=torch.bool, device=v.device).triu(1)
    inside = (decay[..., :, None] - decay[..., None, :]).masked_fill(later, -torch.inf).exp()
    out = (fq @ fk.transpose(-1, -2) * inside) @ v
    to_end = (decay[..., -1:] - decay).exp()[..., None]
    added = (fk * to_end).transpose(-1, -2) @ v  # (B, H, G, M, Dv)
    state, states = torch.zeros_like(added[:, :, 0]), []
    for g in range(added.shape[2]):
        states.append(state)
        state = state * decay[:, :, g, -1].exp()[..., None, None] + added[:, :, g]
    out = out + decay.exp()[..., None] * (fq @ torch.stack(states, dim=2))
    return out.flatten(2, 3)[:, :, :length]
