"""Which keys a query sees, and which sequence and block a position belongs to. As matrices, for code that inspects weights."""

import torch
from torch import Tensor


def sequence_of_positions(cu_seqlens: Tensor, length: int) -> Tensor:
    """(N,): which packed sequence each position belongs to."""
    position = torch.arange(length, device=cu_seqlens.device, dtype=cu_seqlens.dtype)
    return torch.bucketize(position, cu_seqlens[1:], right=True)


def first_key(key_mask: Tensor, otherwise: int = 0) -> Tensor:
    """(B, 1): the first key of each sample that counts; `otherwise` where none does."""
    first = key_mask.int().argmax(dim=1, keepdim=True)
    return first if otherwise == 0 else torch.where(key_mask.any(dim=1, keepdim=True), first, otherwise)


def allowed_pairs(
    scores: Tensor,
    key_mask: Tensor | None = None,
    sequence: Tensor | None = None,
    is_causal: bool = False,
    *,
    window: int | None = None,
    earlier: int = 0,
) -> Tensor:
    """Which (query, key) pairs count, broadcasting to (B, H, Nq, Nk).

    scores: (..., Nq, Nk), for its shape and device alone. sequence: (N,) or (B, N), of `sequence_of_positions`.
    window: pairs nearer than that count. earlier: so many keys come before the first query.
    """
    queries, keys = scores.shape[-2:]
    allowed = torch.ones(1, 1, queries, keys, dtype=torch.bool, device=scores.device)
    if is_causal:
        allowed = allowed.tril(earlier)
    if window is not None:
        allowed = allowed.tril(earlier + window - 1).triu(earlier - window + 1)
    if sequence is not None:
        allowed = allowed & (sequence[..., None, :, None] == sequence[..., None, None, :])
    if key_mask is not None:
        allowed = allowed & key_mask[:, None, None, :]
    return allowed


def block_of_positions(
    length: int, block_size: int, key_mask: Tensor | None, cu_seqlens: Tensor | None, device: torch.device
) -> Tensor:
    """(B or 1, N): a number for the block of each position; two positions share a block if and only if they share it."""
    position = torch.arange(length, device=device)
    if cu_seqlens is not None:
        sequence = sequence_of_positions(cu_seqlens.to(device), length)
        return ((position - cu_seqlens.to(device)[sequence]) // block_size + sequence * length)[None]
    first = 0 if key_mask is None else first_key(key_mask)
    return torch.div(position[None] - first, block_size, rounding_mode="floor")


def masked_softmax(scores: Tensor, allowed: Tensor) -> Tensor:
    """Softmax over the allowed keys of each row; rows without any are zero, in value and in gradient."""
    has_key = allowed.any(dim=-1, keepdim=True)
    scores = scores.masked_fill(~allowed, -torch.inf).masked_fill(~has_key, 0.0)
    return torch.where(allowed, torch.softmax(scores, dim=-1), 0.0)


def weighted(matrix: Tensor, v: Tensor, key_mask: Tensor | None) -> Tensor:
    """sum_j P_ij v_j over the pairs with a weight: where P_ij is 0, v_j may be anything, even NaN."""
    if key_mask is not None:
        v = torch.where(key_mask[:, None, :, None], v, 0.0)
    bad = ~torch.isfinite(v)
    clean = matrix @ torch.where(bad, 0.0, v)
    # Where a value is not finite, the rows that see it are not either, and no others.
    poison = (matrix > 0).to(v.dtype) @ bad.to(v.dtype)
    return torch.where(poison > 0, torch.nan, clean)
