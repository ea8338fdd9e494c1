"""What is kept of a set of far keys: counts, means and centred sums of squares and products, and LLN's sums.

    total                          n, how many keys
    key_mean, value_mean           mu, v_mean
    key_spread                     sum_j (k_j - mu)^2                      per feature
    product                        sum_j (k_j - mu) (v_j - v_mean)^T       (D, Dv)
    maximum, summed, normaliser    c, S, z of eq. 8, as in `lln.ops.lln.op.State`

Two sets are merged as centred moments (Chan, Golub and LeVeque 1979), with delta the difference of their means:

    spread = spread_a + spread_b + delta^2 n_a n_b / n          product = product_a + product_b + delta_k delta_v^T n_a n_b / n

Nothing is ever taken away from a sum, so a large mean costs no digit of a covariance. A block is summed in the compute dtype;
blocks are merged in float64, where the device has it.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from lln.ops.lln.chunked.tiles import decay, finite, wide


class Moments(NamedTuple):
    """Of one set of keys for each entry of the dimensions `...`, such as (B, Hk) or (B, Hk, blocks)."""

    total: Tensor  # (..., 1), how many keys, with 1 for the heads, which share it
    key_mean: Tensor  # (..., D)
    key_spread: Tensor  # (..., D)
    value_mean: Tensor  # (..., Dv)
    product: Tensor  # (..., D, Dv)
    maximum: Tensor  # (..., D); a constant
    summed: Tensor  # (..., D, Dv)
    normaliser: Tensor  # (..., D)

    @staticmethod
    def of(k: Tensor, v: Tensor, beta: Tensor, counts: Tensor) -> "Moments":
        """Of each block of k (B, Hk, T, C, D) and v (B, Hk, T, C, Dv), over the keys that count (B or 1, T, C)."""
        mask = counts[:, None, :, :, None]
        k, v = (torch.where(mask, t, 0.0) for t in (k, v))
        count = counts.sum(dim=-1).to(k.dtype)[:, None, :, None]  # (B or 1, 1, T, 1)
        some = count.clamp(min=1)
        key_mean, value_mean = k.sum(dim=-2) / some, v.sum(dim=-2) / some
        centred_k, centred_v = (
            torch.where(mask, t - mean[..., None, :], 0.0) for t, mean in ((k, key_mean), (v, value_mean))
        )
        b = torch.where(mask, k * beta[..., None, :], -torch.inf)
        maximum = b.detach().amax(dim=-2)
        g = (b - finite(maximum)[..., None, :]).exp()
        return Moments(
            count.expand(k.shape[0], -1, -1, -1),
            key_mean,
            centred_k.square().sum(dim=-2),
            value_mean,
            centred_k.mT @ centred_v,
            maximum,
            g.mT @ v,
            g.sum(dim=-2),
        )

    @staticmethod
    def of_nothing(k: Tensor, v: Tensor, dtype: torch.dtype) -> "Moments":
        """For one set a sample and key head, ready to be merged into."""
        batch, heads, dim, value_dim = k.shape[0], k.shape[1], k.shape[-1], v.shape[-1]

        def zeros(*shape: int) -> Tensor:
            return wide(k.new_zeros(shape, dtype=dtype))

        of_keys, pairs = (batch, heads, dim), (batch, heads, dim, value_dim)
        maximum = k.new_full(of_keys, -torch.inf, dtype=dtype)
        return Moments(
            zeros(batch, 1, 1), zeros(*of_keys), zeros(*of_keys), zeros(batch, heads, value_dim), zeros(*pairs),
            maximum, zeros(*pairs), zeros(*of_keys),
        )  # fmt: skip

    def at(self, block: int) -> "Moments":
        """(B, Hk, blocks, ...) at one of the blocks."""
        return Moments(*(t[:, :, block] for t in self))

    def where(self, condition: Tensor) -> "Moments":
        """These where the condition (0-d, or (B,)) holds, those of no key elsewhere."""
        return Moments(*(
            torch.where(_as(condition, t), t, -torch.inf if name == "maximum" else 0.0)
            for name, t in zip(self._fields, self, strict=True)
        ))  # fmt: skip

    def or_else(self, condition: Tensor, other: "Moments") -> "Moments":
        return Moments(*(torch.where(_as(condition, a), a, b) for a, b in zip(self, other, strict=True)))

    def wide(self) -> "Moments":
        """With sums in the dtype in which they are merged."""
        return Moments(*(t if name == "maximum" else wide(t) for name, t in zip(self._fields, self, strict=True)))

    def to(self, dtype: torch.dtype) -> "Moments":
        return Moments(*(t.to(dtype) for t in self))


def merged(a: Moments, b: Moments) -> Moments:
    """The moments of the keys of both, in the wider dtype."""
    count = a.total + b.total
    part = b.total / count.clamp(min=1)
    both = a.total * part  # n_a n_b / n
    of_keys, of_values = b.key_mean - a.key_mean, b.value_mean - a.value_mean
    maximum = torch.maximum(a.maximum, b.maximum)
    kept, moved = decay(a.maximum, maximum), decay(b.maximum, maximum)
    return Moments(
        count,
        a.key_mean + of_keys * part,
        a.key_spread + b.key_spread + of_keys.square() * both,
        a.value_mean + of_values * part,
        a.product + b.product + (of_keys * both)[..., None] * of_values[..., None, :],
        maximum,
        a.summed * kept[..., None] + b.summed * moved[..., None],
        a.normaliser * kept + b.normaliser * moved,
    )


def together(moments: Moments) -> Moments:
    """(B, Hk, blocks, ...) as (B, Hk, ...): the moments of all blocks, merged in pairs, pairs of pairs and so on."""
    while (blocks := moments.total.shape[2]) > 1:
        half = blocks // 2
        one, other, rest = (
            Moments(*(t[:, :, a:b] for t in moments)) for a, b in ((0, half), (half, 2 * half), (2 * half, blocks))
        )
        pairs = merged(one.wide(), other)
        moments = Moments(*(torch.cat(t, dim=2) for t in zip(pairs, rest.wide(), strict=True)))
    return moments.at(0)


def stacked(moments: list[Moments]) -> Moments:
    """One (B, Hk, ...) a block as (B, Hk, blocks, ...)."""
    return Moments(*(torch.stack(t, dim=2) for t in zip(*moments, strict=True)))


def _as(condition: Tensor, t: Tensor) -> Tensor:
    return condition if condition.dim() == 0 else condition.reshape(-1, *(1,) * (t.dim() - 1))
