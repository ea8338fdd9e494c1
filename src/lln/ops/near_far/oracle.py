"""The truth: near exact, far by moments, with the whole N x N matrices, in float64.

Every set of keys is a row of a boolean matrix, every mean a sum over such a row, every deviation from a mean is formed before
it is squared. Differentiable by autograd to any order; O(N^2 D) time.
"""

import torch
from torch import Tensor

from lln.ops.backends import Backend
from lln.ops.masks import allowed_pairs, masked_softmax, sequence_of_positions
from lln.ops.near_far.mass import excess
from lln.ops.near_far.op import Operands, Results, near_far


def forward(x: Operands) -> Results:
    return Results(literally(x, torch.float64).to(x.q.dtype))


def near_and_far(x: Operands) -> tuple[Tensor, Tensor]:
    """Which keys are near and which are far, each (B or 1, N, N) bool."""
    length, device = x.k.shape[2], x.k.device
    position = torch.arange(length, device=device)
    sequence = None if x.cu_seqlens is None else sequence_of_positions(x.cu_seqlens, length)
    if x.cu_seqlens is not None:
        own = (position - x.cu_seqlens[sequence])[None]
    else:
        own = position[None] - (0 if x.key_mask is None else x.key_mask.int().argmax(dim=1, keepdim=True))
    block = torch.div(own, x.block_size, rounding_mode="floor")  # (B or 1, N)
    seen = allowed_pairs(x.q.new_empty(length, length), x.key_mask, sequence, x.is_causal)[:, 0]
    seen = seen & (own >= 0)[:, :, None]  # rows before the first key belong to no block
    distance = block[:, :, None] - block[:, None, :]
    close = (distance.abs() <= x.neighbours) | (own < x.first_tokens)[:, None, :]
    return seen & close, seen & ~close


def literally(x: Operands, dtype: torch.dtype) -> Tensor:
    """The equations of `lln.ops.near_far.op`, one by one, in the given precision."""
    groups, scale = x.q.shape[1] // x.k.shape[1], x.scale
    near, far = (mask[:, None] for mask in near_and_far(x))  # (B or 1, 1, N, N)
    q, k, v = (t.to(dtype) for t in (x.q, x.k, x.v))
    if x.key_mask is not None:
        k, v = (torch.where(x.key_mask[:, None, :, None], t, 0.0) for t in (k, v))
    k, v = (t.repeat_interleave(groups, dim=1) for t in (k, v))

    scores = scale * (q @ k.mT)
    near_out = masked_softmax(scores, near) @ v
    has_near, has_far = near.any(dim=-1), far.any(dim=-1)  # (B or 1, 1, N)
    log_near = scores.masked_fill(~near, -torch.inf).masked_fill(~has_near[..., None], 0.0).logsumexp(dim=-1)

    count = far.sum(dim=-1).clamp(min=1).to(dtype)
    share_of_each = far.to(dtype) / count[..., None]
    mean_key, mean_value = share_of_each @ k, share_of_each @ v
    rows = range(q.shape[2])
    variance = torch.stack(
        [(share_of_each[:, :, i, None] @ (k - mean_key[:, :, i, None]).square())[:, :, 0] for i in rows], dim=2
    )
    x_i = scale**2 * (q.square() * variance).sum(dim=-1)
    energy, fall = excess(x_i, count.log())
    log_far = count.log() + scale * (q * mean_key).sum(dim=-1) + energy
    share = torch.where(has_far, torch.where(has_near, torch.sigmoid(log_far - log_near), 1.0), 0.0)[..., None]

    tilt = torch.stack([scale * (q[:, :, i, None] @ (k - mean_key[:, :, i, None]).mT)[:, :, 0] for i in rows], dim=2)
    slope = fall[..., None] * torch.stack(
        [((share_of_each * tilt)[:, :, i, None] @ (v - mean_value[:, :, i, None]))[:, :, 0] for i in rows], dim=2
    )
    lln = masked_softmax(_lln_scores(x, k, dtype), far) @ v
    of_near, of_lln, of_mean, of_slope = x.weights.to(dtype)[:, :, None].unbind(dim=-1)  # each (B, Hq, 1)
    far_out = of_lln[..., None] * lln + of_mean[..., None] * mean_value + of_slope[..., None] * slope
    return (1 - share + share * of_near[..., None]) * near_out + share * far_out


def _lln_scores(x: Operands, k: Tensor, dtype: torch.dtype) -> Tensor:
    """log s_ij of eq. 8, (B, Hq, N, N), for keys (B, Hq, N, D)."""
    alpha, beta = (_of_rows(t.to(dtype), x) for t in (x.alpha, x.beta))
    a = alpha * x.q.to(dtype)
    if x.bias is not None:
        a = a + _of_rows(x.bias.to(dtype), x)
    b = beta.repeat_interleave(x.q.shape[1] // x.k.shape[1], dim=1) * k
    return torch.stack([torch.logsumexp(a[:, :, i, None] + b, dim=-1) for i in range(a.shape[2])], dim=2)


def _of_rows(scale: Tensor, x: Operands) -> Tensor:
    """(S, H, D) for every row, (B, H, N or 1, D)."""
    if x.cu_seqlens is None:
        return scale[:, :, None]
    return scale[sequence_of_positions(x.cu_seqlens, x.k.shape[2])].transpose(0, 1)[None]


ORACLE = near_far.backends.register(Backend("oracle", forward, automatic=False, transparent=True, by_autograd=True))
