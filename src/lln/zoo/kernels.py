"""Attention with features, in linear time, shared by every member of the form out_i = sum_j f(q_i).g(k_j) v_j /
normaliser.

Bidirectional: F (G^T V), O(N M Dv). Causal: chunks of 128; inside a chunk the masked product, between chunks the
running sum, so that memory stays linear and nothing depends on a later key.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from lln.ops.masks import allowed_pairs

CHUNK = 128


def normalised(fq: Tensor, fk: Tensor, v: Tensor, key_mask: Tensor | None, is_causal: bool) -> Tensor:
    """out_i = sum_j fq_i.fk_j v_j / sum_j fq_i.fk_j; zero where the denominator is zero."""
    fk = only_keys_that_count(fk, key_mask)
    if is_causal:
        ones = torch.ones_like(v[..., :1])
        mixed = causal_product(fq, fk, torch.cat([v, ones], dim=-1))
        return divide(mixed[..., :-1], mixed[..., -1:])
    return divide(product(fq, fk, v), fq @ fk.sum(dim=2).unsqueeze(-1))


def product(fq: Tensor, fk: Tensor, v: Tensor) -> Tensor:
    """sum_j fq_i.fk_j v_j, without a normaliser."""
    return fq @ (fk.transpose(-1, -2) @ v)


def causal_product(fq: Tensor, fk: Tensor, v: Tensor) -> Tensor:
    """sum_{j <= i} fq_i.fk_j v_j."""
    length = fq.shape[2]
    chunk = min(CHUNK, length)
    fq, fk, v = (in_chunks(t, chunk) for t in (fq, fk, v))  # (B, H, G, C, .)
    states = fk.transpose(-1, -2) @ v  # (B, H, G, M, Dv): what each chunk adds
    before = states.cumsum(dim=2).roll(1, dims=2)
    before = torch.cat([torch.zeros_like(before[:, :, :1]), before[:, :, 1:]], dim=2)
    out = fq @ before + (fq @ fk.transpose(-1, -2)).tril() @ v
    return out.flatten(2, 3)[:, :, :length]


def matrix(fq: Tensor, fk: Tensor, key_mask: Tensor | None, is_causal: bool) -> Tensor:
    """P_ij = fq_i.fk_j / sum_j fq_i.fk_j, dense."""
    return normalised_rows(fq @ fk.transpose(-1, -2), key_mask, is_causal)


def normalised_rows(scores: Tensor, key_mask: Tensor | None, is_causal: bool) -> Tensor:
    """Non-negative scores over their sum over the keys that count."""
    scores = scores.masked_fill(~allowed_pairs(scores, key_mask, is_causal=is_causal), 0.0)
    return divide(scores, scores.sum(dim=-1, keepdim=True))


def only_keys_that_count(fk: Tensor, key_mask: Tensor | None) -> Tensor:
    """A key without features adds to no sum."""
    return fk if key_mask is None else fk.masked_fill(~key_mask[:, None, :, None], 0.0)


def divide(numerator: Tensor, denominator: Tensor) -> Tensor:
    """Zero, with zero gradients, where the denominator is zero: a row without keys, or features that are all zero."""
    empty = denominator == 0
    return (numerator / denominator.masked_fill(empty, 1.0)).masked_fill(empty, 0.0)


def in_chunks(x: Tensor, chunk: int) -> Tensor:
    """(B, H, N, D) -> (B, H, G, chunk, D), with zeros at the end."""
    return F.pad(x, (0, 0, 0, -x.shape[2] % chunk)).unflatten(2, (-1, chunk))
