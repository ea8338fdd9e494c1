"""FLASH: gated attention units with mixed chunk attention.

    u = silu(x W_u), v = silu(x W_v) in R^(N x e),    z = silu(x W_z) in R^(N x s)
    q, k, q', k' = gamma z + beta, with four pairs (gamma, beta)
    out = (u * (A v)) W_o,    A = relu(q k^T / C + b_{i-j})^2 inside chunks of C  +  q' k'^T / M over everything

Causal: the first term to the past, the second over the chunks before. Two units replace attention and feed-forward of
one layer. Hua et al. 2022, "Transformer Quality in Linear Time", sections 2 and 3.2, eqs. 3-9. e = 2 E, s = 128, C =
256. Time O(N (C s + C e + s e)), memory O(N (C + e)).
Departures: scores are divided by C and the sum over everything by M = max_length (the equations have no scale, and
grow with the length); b is a learned table of 2 C - 1 relative positions.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lln.zoo.card import Card
from lln.zoo.layer import Layer
from lln.zoo.mechanism import Shape
from lln.zoo.registry import register


@dataclass(frozen=True)
class Options:
    chunk: int = 256  # C
    expansion: int = 2  # e / E
    shared_dim: int = 128  # s
    units: int = 2

    def __post_init__(self) -> None:
        for name in ("chunk", "expansion", "shared_dim", "units"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")


class GatedAttentionUnit(nn.Module):
    """One unit, on normalised x."""

    def __init__(self, options: Options, shape: Shape) -> None:
        super().__init__()
        self.chunk = min(options.chunk, shape.longest)
        self.max_length = shape.longest
        wide, shared = options.expansion * shape.embed_dim, options.shared_dim
        self.sizes = [wide, wide, shared]
        self.scale = nn.Parameter(torch.empty(4, shared))
        self.offset = nn.Parameter(torch.empty(4, shared))
        self.bias = nn.Parameter(torch.empty(2 * self.chunk - 1))
        self.reset_parameters()
        self.project_in = nn.Linear(shape.embed_dim, 2 * wide + shared)
        self.project_out = nn.Linear(wide, shape.embed_dim)

    def reset_parameters(self) -> None:
        """What is the unit's own; its projections have theirs."""
        nn.init.normal_(self.scale, mean=1.0, std=0.02)
        nn.init.zeros_(self.offset)
        nn.init.zeros_(self.bias)

    def forward(self, x: Tensor, key_mask: Tensor | None, is_causal: bool) -> Tensor:
        u, v, z = F.silu(self.project_in(x)).split(self.sizes, dim=-1)
        if key_mask is not None:
            v = v.masked_fill(~key_mask[..., None], 0.0)
        length = x.shape[1]
        chunk = min(self.chunk, length)
        z, v = (F.pad(t, (0, 0, 0, -length % chunk)).unflatten(1, (-1, chunk)) for t in (z, v))  # (B, G, C, .)
        q_near, k_near, q_far, k_far = self._queries_and_keys(z)
        mixed = self._near(q_near, k_near, chunk, is_causal) @ v
        added = k_far.transpose(-1, -2) @ v / self.max_length  # (B, G, s, e)
        if is_causal:
            states = F.pad(added.cumsum(dim=1)[:, :-1], (0, 0, 0, 0, 1, 0))  # of the chunks before
            mixed = mixed + q_far @ states
        else:
            mixed = mixed + q_far @ added.sum(dim=1, keepdim=True)
        out: Tensor = self.project_out(u * mixed.flatten(1, 2)[:, :length])
        return out

    def matrix(self, x: Tensor, key_mask: Tensor | None, is_causal: bool) -> Tensor:
        """A (B, N, N)."""
        _, _, z = F.silu(self.project_in(x)).split(self.sizes, dim=-1)
        q_near, k_near, q_far, k_far = self._queries_and_keys(z)
        length = x.shape[1]
        chunk = min(self.chunk, length)
        position = torch.arange(length, device=x.device)
        apart = position[:, None] - position[None, :]
        block = position // chunk
        same = block[:, None] == block[None, :]
        bias = self.bias[(apart + self.chunk - 1).clamp(0, 2 * self.chunk - 2)]
        near = F.relu(q_near @ k_near.transpose(-1, -2) / self.chunk + bias).square() * same
        far = q_far @ k_far.transpose(-1, -2) / self.max_length
        if is_causal:
            near, far = near.tril(), far * (block[:, None] > block[None, :])
        matrix = near + far
        return matrix if key_mask is None else matrix * key_mask[:, None, :]

    def _queries_and_keys(self, z: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        a, b, c, d = (z * self.scale[i] + self.offset[i] for i in range(4))
        return a, b, c, d

    def _near(self, q: Tensor, k: Tensor, chunk: int, is_causal: bool) -> Tensor:
        position = torch.arange(chunk, device=q.device)
        bias = self.bias[position[:, None] - position[None, :] + self.chunk - 1]  # (C, C)
        scores = F.relu(q @ k.transpose(-1, -2) / self.chunk + bias).square()
        return scores.tril() if is_causal else scores


CARD = Card(
    name="flash",
    title="FLASH",
    reference="Hua et al. 2022",
    equation="(u ⊙ A v) Wₒ, A = relu²(q kᵀ/C + b) in chunks + q′ k′ᵀ/M",
    time="N (C + s) E",
    memory="N (C + E)",
    growth="linear",
    causal=True,
    dense=True,
    learned=True,
    replaces_feed_forward=True,
    departures="Scores divided by C, the global sum by max_length; a learned table of relative positions.",
)


@register(CARD, Options)
class Flash(Layer):
    card = CARD

    def __init__(self, options: Options, shape: Shape) -> None:
        super().__init__(shape)
        self.options = options
        self.norms = nn.ModuleList(nn.LayerNorm(shape.embed_dim) for _ in range(options.units))
        self.units = nn.ModuleList(GatedAttentionUnit(options, shape) for _ in range(options.units))

    def update(self, x: Tensor, key_mask: Tensor | None, is_causal: bool) -> Tensor:
        total = torch.zeros_like(x)
        for norm, unit in zip(self.norms, self.units, strict=True):
            total = total + unit(norm(x + total), key_mask, is_causal)
        return total

    def matrices(self, x: Tensor, key_mask: Tensor | None, is_causal: bool) -> Tensor:
        """A of each unit, (B, units, N, N)."""
        found = []
        for norm, unit in zip(self.norms, self.units, strict=True):
            assert isinstance(unit, GatedAttentionUnit)
            found.append(unit.matrix(norm(x), key_mask, is_causal))
            x = x + unit(norm(x), key_mask, is_causal)
        return torch.stack(found, dim=1)
