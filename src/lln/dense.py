"""Attention matrices in full, for looking at: O(N^2) memory, not for computing with.

LLN (eq. 9):            P_ij ∝ sum_l exp(w_l + alpha_l q_il + beta_l k_jl)
block-diagonal softmax: P_ij ∝ exp(scale q_i . k_j) inside a block of consecutive positions
"""

import torch
from torch import Tensor

from lln.backends import oracle


def lln_matrix(
    q: Tensor,
    k: Tensor,
    alpha: Tensor,
    beta: Tensor,
    *,
    feature_bias: Tensor | None = None,
    key_padding_mask: Tensor | None = None,
    is_causal: bool = False,
) -> Tensor:
    """(B, Hq, Nq, Nk) in the dtype of q, computed by the oracle; alpha, beta and feature_bias as `lln_attention` takes them."""
    batch, query_heads, _, dim = q.shape
    scales = [
        None if x is None else x.expand(batch, heads, 1, dim)[:, :, 0]
        for x, heads in ((alpha, query_heads), (beta, k.shape[1]), (feature_bias, query_heads))
    ]
    no_values = k.new_zeros(*k.shape[:3], 1)
    alpha_, beta_, bias = scales
    assert alpha_ is not None and beta_ is not None
    _, matrix = oracle.attention(q, k, no_values, alpha_, beta_, bias, key_padding_mask, None, is_causal)
    return matrix.to(q.dtype)


def block_diagonal_matrix(
    q: Tensor,
    k: Tensor,
    *,
    block_size: int = 64,
    scale: float | None = None,
    key_padding_mask: Tensor | None = None,
    is_causal: bool = False,
    cu_seqlens: Tensor | None = None,
) -> Tensor:
    """(B, Hq, N, N) in the dtype of q; arguments as `block_diagonal_attention` takes them."""
    position = torch.arange(k.shape[2], device=k.device)
    if cu_seqlens is not None:
        edges = cu_seqlens.to(k.device)
        sequence = torch.bucketize(position, edges[1:], right=True)
        block = ((position - edges[sequence]) // block_size + sequence * k.shape[2])[None]  # (1, N), unique numbers
    else:
        first = 0 if key_padding_mask is None else key_padding_mask.int().argmax(dim=1, keepdim=True)
        block = torch.div(position[None] - first, block_size, rounding_mode="floor")  # (B or 1, N)
    keys = k.double().repeat_interleave(q.shape[1] // k.shape[1], dim=1)
    scores = q.double() @ keys.mT * (q.shape[3] ** -0.5 if scale is None else scale)
    allowed = oracle.allowed_pairs(scores, key_padding_mask, None, is_causal)
    return oracle.masked_softmax(scores, allowed & (block[:, None, :, None] == block[:, None, None, :])).to(q.dtype)
