"""The truth: LLN attention in float64, in log space, with the whole N x N matrix.

    log s_ij = logsumexp_l (w_l + alpha_l q_il + beta_l k_jl)        the kernel of eq. 8, with a feature bias w
    P_i.     = softmax_j (log s_ij)                                  eq. 9
    out_i    = sum_j P_ij v_j                                        eq. 8 (v_j inside the sum)

Nothing is shifted by hand and no epsilon is added, so it stays right for any finite input. It is differentiable by
autograd, takes O(N^2 d) memory, and every other backend is tested against its outputs and gradients.

Arguments are those of the operator (`lln.backends.operator`): alpha, beta and bias have shape (S, heads, D), with S the
number of packed sequences, or the batch size where nothing is packed.
"""

import torch
from torch import Tensor


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    alpha: Tensor,
    beta: Tensor,
    bias: Tensor | None = None,
    key_mask: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    is_causal: bool = False,
) -> tuple[Tensor, Tensor]:
    """Output (B, Hq, Nq, Dv) and matrix P (B, Hq, Nq, Nk), both float64; a row without keys is all zeros."""
    groups = q.shape[1] // k.shape[1]
    q, k, v = q.double(), k.double(), v.double()
    alpha, beta = alpha.double(), beta.double()
    bias = torch.zeros_like(alpha) if bias is None else bias.double()

    segment = _segment_of_each_position(cu_seqlens, k.shape[2], k.device)
    if segment is None:
        a = alpha[:, :, None] * q + bias[:, :, None]  # (B, Hq, Nq, D)
        b = beta[:, :, None] * k  # (B, Hk, Nk, D)
    else:
        a = (alpha[segment] * q[0].transpose(0, 1) + bias[segment]).transpose(0, 1)[None]
        b = (beta[segment] * k[0].transpose(0, 1)).transpose(0, 1)[None]

    b = b.repeat_interleave(groups, dim=1)
    v = v.repeat_interleave(groups, dim=1)
    scores = torch.stack(
        [torch.logsumexp(a[:, :, i, None] + b, dim=-1) for i in range(a.shape[2])], dim=2
    )  # (B, Hq, Nq, Nk)
    matrix = masked_softmax(scores, allowed_pairs(scores, key_mask, segment, is_causal))
    if key_mask is not None:
        v = torch.where(key_mask[:, None, :, None], v, 0.0)  # 0 x NaN would be NaN
    return matrix @ v, matrix


def allowed_pairs(
    scores: Tensor, key_mask: Tensor | None = None, segment: Tensor | None = None, is_causal: bool = False
) -> Tensor:
    """Which (query, key) pairs count, broadcasting to (B, H, Nq, Nk)."""
    queries, keys = scores.shape[-2:]
    allowed = torch.ones(1, 1, queries, keys, dtype=torch.bool, device=scores.device)
    if is_causal:
        allowed = allowed.tril()
    if segment is not None:
        allowed = allowed & (segment[:, None] == segment[None, :])
    if key_mask is not None:
        allowed = allowed & key_mask[:, None, None, :]
    return allowed


def masked_softmax(scores: Tensor, allowed: Tensor) -> Tensor:
    """Softmax over the allowed keys of each row; rows without any are zero, in value and in gradient."""
    has_key = allowed.any(dim=-1, keepdim=True)
    scores = scores.masked_fill(~allowed, -torch.inf).masked_fill(~has_key, 0.0)
    return torch.where(allowed, torch.softmax(scores, dim=-1), 0.0)


def _segment_of_each_position(cu_seqlens: Tensor | None, length: int, device: torch.device) -> Tensor | None:
    if cu_seqlens is None:
        return None
    return torch.bucketize(torch.arange(length, device=device), cu_seqlens[1:].to(device), right=True)
