"""The truth: LLN attention in float64, in log space, with the whole N x N matrix.

    log s_ij = logsumexp_l (w_l + alpha_l q_il + beta_l k_jl)        the kernel of eq. 8, with a feature bias w
    P_i.     = softmax_j (log s_ij)                                  eq. 9
    out_i    = sum_j P_ij v_j                                        eq. 8 (v_j inside the sum)

A starting state is a further key for each feature l: its score is that of w_l + alpha_l q_il + c_l + log z_l, and its value
S_l / z_l. Nothing is shifted by hand and no epsilon is added, so it stays right for any finite input. It is differentiable by
autograd to any order, takes O(N^2 d) memory, and every other backend is tested against its outputs and gradients.
"""

import torch
from torch import Tensor

from lln.ops.backends import Backend
from lln.ops.lln.op import Operands, Results, State, attention
from lln.ops.masks import allowed_pairs, masked_softmax, sequence_of_positions, weighted


def forward(x: Operands) -> Results:
    a, b = exponents(x)
    groups = x.q.shape[1] // x.k.shape[1]
    sequence = None if x.cu_seqlens is None else sequence_of_positions(x.cu_seqlens, x.k.shape[2])
    scores = _scores(a, b.repeat_interleave(groups, dim=1))
    allowed = allowed_pairs(scores, x.key_mask, sequence, x.is_causal)
    values = x.v.double()
    if x.start is None:
        matrix = masked_softmax(scores, allowed)
        out = weighted(matrix, values.repeat_interleave(groups, dim=1), x.key_mask)
    else:
        out = _with_start(a, scores, allowed, values, x, groups)
    return Results(out.to(x.q.dtype), *_final_state(b, values, x, sequence))


def matrix(x: Operands) -> Tensor:
    """P (B, Hq, Nq, Nk) in float64, without any starting state; a row without keys is all zeros."""
    a, b = exponents(x)
    sequence = None if x.cu_seqlens is None else sequence_of_positions(x.cu_seqlens, x.k.shape[2])
    scores = _scores(a, b.repeat_interleave(x.q.shape[1] // x.k.shape[1], dim=1))
    return masked_softmax(scores, allowed_pairs(scores, x.key_mask, sequence, x.is_causal))


def exponents(x: Operands) -> tuple[Tensor, Tensor]:
    """a = alpha q + w (B, Hq, Nq, D) and b = beta k (B, Hk, Nk, D) in float64."""
    q, k, alpha, beta = (t.double() for t in (x.q, x.k, x.alpha, x.beta))
    bias = torch.zeros_like(alpha) if x.bias is None else x.bias.double()
    if x.key_mask is not None:  # autograd carries NaN through a product with zero, so masked keys must not hold any
        k = torch.where(x.key_mask[:, None, :, None], k, 0.0)
    if x.cu_seqlens is None:
        return alpha[:, :, None] * q + bias[:, :, None], beta[:, :, None] * k
    sequence = sequence_of_positions(x.cu_seqlens, k.shape[2])
    a = (alpha[sequence] * q[0].transpose(0, 1) + bias[sequence]).transpose(0, 1)[None]
    return a, (beta[sequence] * k[0].transpose(0, 1)).transpose(0, 1)[None]


def _scores(a: Tensor, b: Tensor) -> Tensor:
    """log s_ij, (B, Hq, Nq, Nk)."""
    return torch.stack([torch.logsumexp(a[:, :, i, None] + b, dim=-1) for i in range(a.shape[2])], dim=2)


def _with_start(a: Tensor, scores: Tensor, allowed: Tensor, v: Tensor, x: Operands, groups: int) -> Tensor:
    """Attention to the keys and, as one further key for each feature, to the starting state of the row's sequence."""
    assert x.start is not None
    maximum, summed, normaliser = (t.double().repeat_interleave(groups, dim=1) for t in x.start)  # (S, Hq, D, ...)
    has_key = normaliser > 0
    safe = torch.where(has_key, normaliser, 1.0)
    extra_score = torch.where(has_key, maximum + safe.log(), -torch.inf)  # (S, Hq, D)
    extra_value = summed / safe[..., None]
    of_row: Tensor | slice = slice(None)
    if x.cu_seqlens is not None:
        of_row = sequence_of_positions(x.cu_seqlens, x.q.shape[2])
        extra = a + extra_score[of_row].transpose(0, 1)[None]
    else:
        extra = a + extra_score[:, :, None]
    counts = extra > -torch.inf  # (B, Hq, Nq, D)
    joined = torch.cat([scores, extra], dim=-1)
    weights = masked_softmax(joined, torch.cat([allowed.expand_as(scores), counts], dim=-1))
    keys = scores.shape[-1]
    out = weighted(weights[..., :keys], v.repeat_interleave(groups, dim=1), x.key_mask)
    if x.cu_seqlens is None:
        return out + weights[..., keys:] @ extra_value
    return out + torch.einsum("bhnd,nhde->bhne", weights[..., keys:], extra_value[of_row])


def _final_state(b: Tensor, v: Tensor, x: Operands, sequence: Tensor | None) -> State:
    """The sums over all keys of each sample or packed sequence, and over those before the start, in the compute dtype."""
    count = x.beta.shape[0]
    start = x.start or State.without_keys(x.beta, x.v.shape[-1])
    mine = torch.ones(count, b.shape[2], dtype=torch.bool, device=b.device)
    if sequence is not None:
        mine = sequence == torch.arange(count, device=b.device)[:, None]
    elif x.key_mask is not None:
        mine = x.key_mask
    b = torch.where(mine[:, None, :, None], b, -torch.inf)  # (S, Hk, Nk, D), packed ones repeated for each sequence
    v = torch.where(mine[:, None, :, None], v, 0.0)
    maximum = torch.maximum(b.detach().amax(dim=2), start.maximum.double().detach())
    shift = torch.where(maximum == -torch.inf, 0.0, maximum)
    g, kept = (b - shift[:, :, None]).exp(), (start.maximum.double().detach() - shift).exp()
    summed = g.mT @ v + kept[..., None] * start.summed.double()
    normaliser = g.sum(dim=2) + kept * start.normaliser.double()
    return State(maximum.to(x.beta.dtype), summed, normaliser).with_sums_in(x.sums_dtype)


ORACLE = attention.backends.register(Backend("oracle", forward, automatic=False, transparent=True, by_autograd=True))
