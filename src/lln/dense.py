"""Full attention matrices for inspection: O(N^2) memory, not for computing with.

LLN (eq. 9):            P_ij ∝ sum_l exp(w_l + alpha_l q_il + beta_l k_jl)
block-diagonal softmax: P_ij ∝ exp(scale q_i . k_j) inside a block of consecutive positions
near-far:               what multiplies v_j in row i; the slope's part of it has both signs
"""

from typing import Any

import torch
from torch import Tensor

from lln.near_far import near_far_attention
from lln.observers import unwatched
from lln.ops.blocks import Operands as BlockOperands
from lln.ops.blocks import matrix as matrix_of_blocks
from lln.ops.lln import Operands, matrix
from lln.ops.stretches import refuse_stretches


def lln_matrix(
    q: Tensor,
    k: Tensor,
    alpha: Tensor,
    beta: Tensor,
    *,
    feature_bias: Tensor | None = None,
    key_mask: Tensor | None = None,
    is_causal: bool = False,
) -> Tensor:
    """(B, Hq, Nq, Nk) in the dtype of q; alpha, beta and feature_bias as `lln_attention` takes them."""
    refuse_stretches("an attention matrix")
    batch, query_heads, _, dim = q.shape
    alpha, beta = alpha.expand(batch, query_heads, 1, dim)[:, :, 0], beta.expand(batch, k.shape[1], 1, dim)[:, :, 0]
    bias = None if feature_bias is None else feature_bias.expand(batch, query_heads, 1, dim)[:, :, 0]
    x = Operands(q, k, k[..., :1], alpha, beta, bias, key_mask, is_causal=is_causal)
    with unwatched():
        return matrix(x).to(q.dtype)


def block_diagonal_matrix(
    q: Tensor,
    k: Tensor,
    *,
    block_size: int = 64,
    scale: float | None = None,
    key_mask: Tensor | None = None,
    is_causal: bool = False,
    cu_seqlens: Tensor | None = None,
) -> Tensor:
    """(B, Hq, N, N) in the dtype of q; arguments as `block_diagonal_attention` takes them."""
    refuse_stretches("an attention matrix")
    scale = q.shape[3] ** -0.5 if scale is None else scale
    with unwatched():
        return matrix_of_blocks(BlockOperands(q, k, k, key_mask, cu_seqlens, block_size, scale, is_causal)).to(q.dtype)


def near_far_matrix(
    q: Tensor,
    k: Tensor,
    alpha: Tensor | None = None,
    beta: Tensor | None = None,
    *,
    key_mask: Tensor | None = None,
    **options: Any,
) -> Tensor:
    """(B, Hq, N, N) in the dtype of q; arguments as `near_far_attention` takes them. The values are unit vectors."""
    unit = torch.eye(k.shape[2], dtype=k.dtype, device=k.device).expand(k.shape[0], k.shape[1], -1, -1)
    with unwatched():
        return near_far_attention(q, k, unit, alpha, beta, key_mask=key_mask, **options)
