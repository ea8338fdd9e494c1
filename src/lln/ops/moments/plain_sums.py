"""Sums over positions in plain torch, in float64, piece by piece, so that no float64 copy of the whole length is made."""

import torch
from torch import Tensor

from lln.ops.backends import Backend
from lln.ops.lln.op import accumulation_dtype
from lln.ops.masks import sequence_of_positions
from lln.ops.moments.op import Moments, Operands, moments

PIECE_ELEMENTS = 1 << 17  # 1 MB of float64 at a time: it stays in the cache


def forward(x: Operands) -> Moments:
    """A sum of each piece, added up."""
    data, dtype = x.x, accumulation_dtype(x.x.device)
    batch, heads, length, dim = data.shape
    sequences = batch if x.cu_seqlens is None else x.cu_seqlens.numel() - 1
    sequence = None if x.cu_seqlens is None else sequence_of_positions(x.cu_seqlens, length)
    total = data.new_zeros(sequences, heads, dim, dtype=dtype)
    squares = torch.zeros_like(total)
    step = max(1, PIECE_ELEMENTS // max(1, batch * heads * dim))
    for start in range(0, length, step):
        at = slice(start, start + step)
        piece = without_padding(data[:, :, at].to(dtype), None if x.key_mask is None else x.key_mask[:, at])
        if sequence is None:
            total, squares = total + piece.sum(dim=2), squares + piece.square().sum(dim=2)
        else:
            rows = piece[0].transpose(0, 1)  # (step, H, D)
            total = total.index_add(0, sequence[at], rows)
            squares = squares.index_add(0, sequence[at], rows.square())
    return Moments(counts(data, x.key_mask, x.cu_seqlens), total, squares)


def without_padding(x: Tensor, key_mask: Tensor | None) -> Tensor:
    # where, not a product: padding may hold NaN
    return x if key_mask is None else torch.where(key_mask[:, None, :, None], x, 0.0)


def counts(x: Tensor, key_mask: Tensor | None, cu_seqlens: Tensor | None) -> Tensor:
    """(S,): how many positions count."""
    dtype = accumulation_dtype(x.device)
    if cu_seqlens is not None:
        return cu_seqlens.diff().to(dtype)
    if key_mask is not None:
        return key_mask.sum(dim=1).to(dtype)
    return torch.full((x.shape[0],), x.shape[2], dtype=dtype, device=x.device)


moments.backends.register(Backend("chunked", forward, transparent=True))
