"""Multi-head linear attention along the tokens: one summary per block of tokens, and for each block of queries its own mixture.

    S_b = sum_{j in b} f(k_j) v_j^T,  z_b = sum_{j in b} f(k_j),  f = relu,    b = 1 ... M consecutive blocks
    out_i = f(q_i) sum_b m_cb S_b / f(q_i) . sum_b m_cb z_b,    c the block of i

with the matrix m (M x M) learned and started by distance: m_cb proportional to cos(pi/4 |c - b| / (M - 1)), columns summing to
one. With m = 1 this is plain linear attention, whose matrix has rank d at most; here it may have d for every block.
Zhang et al. 2026, "MHLA: Restoring Expressivity of Linear Attention via Token-Level Multi-Head", arXiv 2601.07832. Time
O(N d^2 + M^2 d^2), memory O(N d + M d^2).
Departures: blocks run along one dimension (the paper's images have two); no epsilon, no convolution of v; the form that is not
causal only. The denominator belongs to the row's own query (in the published image code it is mixed over queries of other
blocks). A row whose denominator is zero gives zeros.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lln.zoo import kernels
from lln.zoo.card import Card
from lln.zoo.mechanism import Mechanism, Shape
from lln.zoo.registry import register


@dataclass(frozen=True)
class Options:
    blocks: int = 16  # M, of max_length

    def __post_init__(self) -> None:
        if self.blocks < 1:
            raise ValueError(f"blocks must be at least 1, got {self.blocks}")


@register(
    Card(
        name="mhla",
        title="Token-level multi-head linear attention (MHLA)",
        reference="Zhang et al. 2026",
        equation="f(q) Σ_b m_cb S_b / f(q) Σ_b m_cb z_b, S_b = Σ f(k) vᵀ and z_b = Σ f(k) over block b, f = relu, m learned",
        time="N d² + M² d²",
        memory="N d + M d²",
        growth="linear",
        fixed_length=True,
        dense=True,
        learned=True,
        departures="Blocks along one dimension, the denominator of the row's own query, no epsilon or convolution, not causal.",
        reproduced="Its matrix has a rank beyond d, which bounds that of linear attention; with m = 1 it is linear attention.",
    ),
    Options,
)
class Mhla(Mechanism):
    anchored = True

    def __init__(self, options: Options, shape: Shape) -> None:
        super().__init__(options, shape)
        self.size = -(-shape.longest // options.blocks)  # tokens of a block
        number = -(-shape.longest // self.size)
        self.mixture = nn.Parameter(torch.empty(number, number))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Blocks count by their distance."""
        self.mixture.copy_(by_distance(len(self.mixture)))

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, query_mask: Tensor | None, is_causal: bool
    ) -> Tensor:
        length = q.shape[2]
        fk = kernels.only_keys_that_count(F.relu(k), key_mask)
        values = torch.cat([v, torch.ones_like(v[..., :1])], dim=-1)
        fq, fk, values = (kernels.in_chunks(t, self.size) for t in (F.relu(q), fk, values))  # (B, H, M, size, .)
        number = fq.shape[2]
        summaries = fk.transpose(-1, -2) @ values  # S and z, (B, H, M, D, Dv + 1)
        mixture = self.mixture[:number, :number].to(q.dtype)
        mixed = torch.einsum("cb,xhbde->xhcde", mixture, summaries)
        out = (fq @ mixed).flatten(2, 3)[:, :, :length]
        return kernels.divide(out[..., :-1], out[..., -1:])

    def matrix(
        self, q: Tensor, k: Tensor, key_mask: Tensor | None, query_mask: Tensor | None, is_causal: bool
    ) -> Tensor:
        block = torch.arange(q.shape[2], device=q.device) // self.size
        mixture = self.mixture[block[:, None], block].to(q.dtype)
        return kernels.normalised_rows(F.relu(q) @ F.relu(k).transpose(-1, -2) * mixture, key_mask, False)


def by_distance(blocks: int) -> Tensor:
    """cos(pi/4 of the distance over the greatest one), columns summing to one, (M, M)."""
    position = torch.arange(blocks, dtype=torch.float64)
    near = torch.cos(math.pi / 4 * (position[:, None] - position).abs() / max(1, blocks - 1))
    return (near / near.sum(dim=0)).float()
