"""Softmax attention over allowed pairs, by torch's fused kernel, with rows that have no key."""

import torch.nn.functional as F
from torch import Tensor

from lln.ops.masks import masked_softmax


def softmax_attention(q: Tensor, k: Tensor, v: Tensor, allowed: Tensor | None, is_causal: bool = False) -> Tensor:
    """softmax_j(q_i.k_j / sqrt d) v_j over the allowed pairs, (..., Nq, Nk); rows without any give zeros."""
    if allowed is None:
        return F.scaled_dot_product_attention(q, k, v, is_causal=is_causal)
    empty = ~allowed.any(dim=-1, keepdim=True)
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=allowed | empty)  # -inf everywhere would give NaN
    return out.masked_fill(empty, 0.0)


def softmax_matrix(q: Tensor, k: Tensor, allowed: Tensor) -> Tensor:
    """The matrix of `softmax_attention`."""
    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    return masked_softmax(scores, allowed)
