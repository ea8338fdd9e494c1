"""Sparse-linear attention: softmax on the blocks that matter most, linear attention on most others, nothing on the rest.

    p_cb = softmax_b(mean of q over block c . mean of k over block b / sqrt d)
    critical: the blocks b of greatest p_cb, a share `top`;  negligible: the least, a share `bottom`;  marginal: the others
    out_i = softmax attention to the keys of critical blocks + P (linear attention to the keys of marginal blocks) + p_0

    linear: f(q_i) sum_b S_b / f(q_i) . sum_b z_b over marginal b,  S_b = sum_{j in b} f(k_j) v_j^T,  f = softmax over features

with P (D x D) and p_0 learned, started at zero: the layer begins as sparse attention and learns what that misses.
Zhang et al. 2025, "SLA: Beyond Sparsity in Diffusion Transformers via Fine-Tunable Sparse-Linear Attention", arXiv
2509.24006. Time O(top N^2 d + N d^2), memory O(top N^2 d / w).
Departures: linear attention is that of the marginal blocks, as in the paper's equations (the published code takes all keys). At
least one block is critical. Blocks are of the tokens from the first that counts, and shares are of the blocks that hold a key
that counts, so that padding changes nothing.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lln.zoo import kernels
from lln.zoo.card import Card
from lln.zoo.mechanism import Mechanism, Shape
from lln.zoo.registry import register
from lln.zoo.scores import softmax_attention


@dataclass(frozen=True)
class Options:
    block_size: int = 64  # w
    top: float = 0.05  # the share of critical blocks
    bottom: float = 0.1  # the share of negligible blocks

    def __post_init__(self) -> None:
        if self.block_size < 1:
            raise ValueError(f"block_size must be at least 1, got {self.block_size}")
        if not (self.top >= 0 and self.bottom >= 0 and self.top + self.bottom <= 1):
            raise ValueError(f"top and bottom must be shares that sum to 1 at most, got {self.top} and {self.bottom}")


class _StartsAtZero(nn.Linear):
    """The linear part has nothing to say until it has learned."""

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.weight)
        nn.init.zeros_(self.bias)


@register(
    Card(
        name="sla",
        title="Sparse-linear attention (SLA)",
        reference="Zhang et al. 2025",
        equation="softmax(q kᵀ/√d) v on the top blocks + P · (f(q) f(k)ᵀ v over its row sum) on the marginal ones",
        time="top N² d + N d²",
        memory="top N² d / w",
        growth="quadratic",
        learned=True,
        departures="Linear attention on the marginal blocks only; at least one block is critical.",
        reproduced="With every block critical it is softmax; the linear part brings back some of what sparse attention misses.",
    ),
    Options,
)
class Sla(Mechanism):
    anchored = True

    def __init__(self, options: Options, shape: Shape) -> None:
        super().__init__(options, shape)
        self.projection = _StartsAtZero(shape.head_dim, shape.head_dim)

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, query_mask: Tensor | None, is_causal: bool
    ) -> Tensor:
        size, length = self.options.block_size, q.shape[2]
        counts = torch.ones(len(q), length, dtype=torch.bool, device=q.device) if key_mask is None else key_mask
        asking = torch.ones_like(counts) if query_mask is None else query_mask
        q, k, v = (kernels.in_chunks(t, size) for t in (q, k, v))  # (B, H, G, w, .)
        counts, asking = (kernels.in_chunks(t[:, None, :, None].to(q.dtype), size)[:, 0] for t in (counts, asking))
        rank, real = self._rank(q, k, counts, asking)
        top = (self.options.top * real).long().clamp(min=1)  # (B,), critical blocks
        bottom = (self.options.bottom * real).long()
        critical = rank < top[:, None, None, None]  # (B, H, G, G)
        marginal = ~critical & (rank < (real - bottom)[:, None, None, None])
        sparse = self._sparse(q, k, v, counts > 0, critical, int(top.max()))
        linear = self._linear(q, k, v, counts, marginal)
        weight, bias = self.projection.weight.to(q.dtype), self.projection.bias.to(q.dtype)
        some = real[:, None, None, None] > 0
        return (sparse + torch.where(some, F.linear(linear, weight, bias), 0.0))[:, :, :length]

    def _rank(self, q: Tensor, k: Tensor, counts: Tensor, asking: Tensor) -> tuple[Tensor, Tensor]:
        """The place of every key block in the order of p_cb, (B, H, G, G), and how many blocks hold a key, (B,)."""
        with torch.no_grad():
            keys = counts.sum(dim=2)[:, None]  # (B, 1, G, 1)
            pooled_k = (k * counts[:, None]).sum(dim=3) / keys.clamp(min=1)
            pooled_q = (q * asking[:, None]).sum(dim=3) / asking.sum(dim=2)[:, None].clamp(min=1)
            scores = (pooled_q @ pooled_k.transpose(-1, -2)).masked_fill(keys.transpose(-1, -2) == 0, -torch.inf)
            order = scores.argsort(dim=-1, descending=True, stable=True)
            return order.argsort(dim=-1), (keys > 0).sum(dim=(1, 2, 3))

    def _sparse(self, q: Tensor, k: Tensor, v: Tensor, counts: Tensor, critical: Tensor, most: int) -> Tensor:
        """Softmax attention of each block of queries to its critical blocks, gathered."""
        heads, number, size = q.shape[1:4]
        chosen = critical.to(torch.int8).topk(most, dim=-1).indices  # (B, H, G, K)
        taken = critical.gather(-1, chosen)

        def gathered(x: Tensor) -> Tensor:
            at = chosen.flatten(2)[..., None, None].expand(-1, -1, -1, size, x.shape[-1])
            return x.gather(2, at).unflatten(2, (number, most)).flatten(3, 4)  # (B, H, G, K w, .)

        holds = counts[:, None].expand(-1, heads, -1, -1, -1)
        pairs = gathered(holds)[..., 0] & taken.repeat_interleave(size, dim=-1)  # (B, H, G, K w)
        return softmax_attention(q, gathered(k), gathered(v), pairs[:, :, :, None, :]).flatten(2, 3)

    def _linear(self, q: Tensor, k: Tensor, v: Tensor, counts: Tensor, marginal: Tensor) -> Tensor:
        fq, fk = torch.softmax(q, dim=-1), torch.softmax(k, dim=-1) * counts[:, None]
        summaries = fk.transpose(-1, -2) @ torch.cat([v, torch.ones_like(v[..., :1])], dim=-1)  # (B, H, G, D, Dv + 1)
        mixed = torch.einsum("xhcb,xhbde->xhcde", marginal.to(q.dtype), summaries)
        out = (fq @ mixed).flatten(2, 3)
        return kernels.divide(out[..., :-1], out[..., -1:])
