"""Checks of arguments. Errors say what was given and what would fit."""

import torch
from torch import Tensor


def check_queries_and_keys(q: Tensor, k: Tensor) -> None:
    for name, x in (("q", q), ("k", k)):
        if x.dim() != 4:
            raise ValueError(f"{name} must have shape (batch, heads, length, head size); it has shape {tuple(x.shape)}")
        if not x.is_floating_point():
            raise TypeError(f"{name} must be a floating-point tensor; it is {x.dtype}")
    if q.shape[0] != k.shape[0] or q.shape[3] != k.shape[3] or q.shape[1] % k.shape[1]:
        raise ValueError(
            f"q {tuple(q.shape)} and k {tuple(k.shape)} do not fit: they need the same batch and head size, "
            "and a number of query heads that is a multiple of the number of key heads"
        )
    check_finite(q=q, k=k)


def check_finite(**tensors: Tensor) -> None:
    for name, x in tensors.items():
        low, high = (
            x.detach().aminmax() if x.numel() else (x.new_zeros(()), x.new_zeros(()))
        )  # one pass, and NaN spreads
        if not (torch.isfinite(low) and torch.isfinite(high)):
            raise ValueError(f"{name} holds NaN or infinity; an instrument needs finite numbers")


def check_key_mask(mask: Tensor | None, batch: int, keys: int) -> None:
    if mask is None:
        return
    if mask.dtype != torch.bool or mask.shape != (batch, keys):
        raise ValueError(
            f"key_mask must be a bool tensor of shape ({batch}, {keys}), True where the key counts; "
            f"it is {mask.dtype} of shape {tuple(mask.shape)}"
        )
    if not mask.any(-1).all():
        raise ValueError("key_mask leaves a sample without any key; drop that sample")


def check_stochastic(matrix: Tensor, row_mask: Tensor | None = None) -> None:
    """A tensor (B, H, Nq, Nk) of non-negative rows that sum to one, where they count."""
    if matrix.dim() != 4:
        raise ValueError(
            f"an attention matrix must have shape (batch, heads, queries, keys); this one has shape {tuple(matrix.shape)}. "
            "For a single matrix pass P[None, None]"
        )
    if not matrix.is_floating_point():
        raise TypeError(f"an attention matrix must be a floating-point tensor; this one is {matrix.dtype}")
    check_finite(matrix=matrix)
    lowest = matrix.min().item()
    if lowest < 0:
        raise ValueError(
            f"an attention matrix has no negative entries; the smallest one here is {lowest:.3g}. "
            "Was it given before the softmax, or is the kernel not positive?"
        )
    off = (matrix.double().sum(-1) - 1).abs()
    if row_mask is not None:
        off = off.masked_fill(~row_mask[:, None], 0.0)
    worst = off.max().item()
    if worst > sum_tolerance(matrix.dtype):
        raise ValueError(
            f"each row of an attention matrix sums to one; here a row is off by {worst:.3g}. "
            "Normalise the rows, give the matrix before dropout, or name the rows that count in row_mask"
        )


def sum_tolerance(dtype: torch.dtype) -> float:
    """How far the sum of a row computed in this dtype may be from one."""
    return 100 * torch.finfo(dtype).eps
