"""What a row of queries makes of its near keys and of the moments of its far ones.

Rows come in blocks that share their sets of keys: queries are (B, Hk, groups, T, R, D), R rows in each of T blocks.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from lln.ops.lln.chunked.tiles import finite
from lln.ops.near_far.mass import excess
from lln.ops.near_far.moments import Moments


class Near(NamedTuple):
    out: Tensor  # (B, Hk, groups, T, R, Dv)
    log_sum: Tensor  # (B, Hk, groups, T, R)
    has_key: Tensor  # (B or 1, 1, 1, T, R or 1)


def softmax(q: Tensor, k: Tensor, v: Tensor, allowed: Tensor, scale: float) -> Near:
    """Over the allowed keys (B or 1, T, R or 1, K) of k (B, Hk, T, K, D) and v (B, Hk, T, K, Dv), both finite where not."""
    allowed = allowed[:, None, None]
    has_key = allowed.any(dim=-1)
    scores = (scale * q) @ k[:, :, None].mT
    scores = torch.where(allowed | ~has_key[..., None], scores, -torch.inf)
    largest = scores.detach().amax(dim=-1, keepdim=True)
    weights = (scores - largest).exp()
    total = weights.sum(dim=-1, keepdim=True)
    out = torch.where(has_key[..., None], (weights @ v[:, :, None]) / total, 0.0)
    return Near(out, (largest + total.log())[..., 0], has_key)


class Scales(NamedTuple):
    """LLN's parameters for blocks of rows, (B, Hk, groups, T or 1, D), and the weights (B, Hk, groups, 4)."""

    alpha: Tensor
    bias: Tensor | None
    weights: Tensor


def mixed(q: Tensor, near: Near, far: Moments, scales: Scales, scale: float) -> Tensor:
    """The output (B, Hk, groups, T, R, Dv) of rows whose far keys have the moments `far` (B, Hk, T, ...)."""
    far = Moments(*(t[:, :, None] for t in far))  # (B, Hk, 1, T, ...)
    has_far = far.total > 0  # (B, 1, 1, T, 1)
    count = far.total.clamp(min=1)
    log_count = count.log()
    x = scale**2 * (q.square() @ (far.key_spread / count)[..., None])[..., 0]  # (B, Hk, groups, T, R)
    energy, fall = excess(x, log_count)
    log_far = log_count + scale * (q @ far.key_mean[..., None])[..., 0] + energy
    share = torch.where(near.has_key, torch.sigmoid(log_far - near.log_sum), 1.0)[..., None]
    of_near, of_lln, of_mean, of_slope = (w[..., None, None, None] for w in scales.weights.unbind(dim=-1))
    slope = (scale * fall)[..., None] * (q @ (far.product / count[..., None]))
    out = of_lln * _lln(q, far, scales) + of_mean * far.value_mean[..., None, :] + of_slope * slope
    out = (1 + share * (of_near - 1)) * near.out + share * out
    return torch.where(has_far[..., None], out, near.out)


def _lln(q: Tensor, far: Moments, scales: Scales) -> Tensor:
    """Eq. 8 over the far keys: f S / (f . z), f = exp(a + c - max_l (a + c)); zeros where there is none."""
    exponent = q * scales.alpha[..., None, :] + finite(far.maximum)[..., None, :]
    if scales.bias is not None:
        exponent = exponent + scales.bias[..., None, :]
    f = (exponent - exponent.detach().amax(dim=-1, keepdim=True)).exp()
    denominator = f @ far.normaliser[..., None]
    return (f @ far.summed) / torch.where(denominator == 0, 1.0, denominator)
