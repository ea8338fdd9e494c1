"""Reading a sequence in tiles of a fixed size.

A ragged last tile is filled up with zeros, so that every matrix product has the same shape wherever its tile lies. The
order of summation then depends on the position in the sequence alone, and right padding changes no bit.
"""

from collections.abc import Iterator

import torch
from torch import Tensor


def spans(length: int, tile: int) -> Iterator[slice]:
    for start in range(0, length, tile):
        yield slice(start, min(start + tile, length))


def read(x: Tensor, span: slice, tile: int, dtype: torch.dtype) -> Tensor:
    """x[..., span, :] in the compute dtype, its rows filled up with zeros to the tile's size."""
    rows = x[..., span, :].to(dtype)
    missing = tile - rows.shape[-2]
    return torch.nn.functional.pad(rows, (0, 0, 0, missing)) if missing else rows


def counting(key_mask: Tensor | None, span: slice, tile: int, like: Tensor) -> Tensor | None:
    """(B or 1, 1, tile, 1), True for the rows of the tile that are keys and count; None when all do."""
    rows = span.stop - span.start
    if key_mask is None and rows == tile:
        return None
    if key_mask is None:
        return (torch.arange(tile, device=like.device) < rows)[None, None, :, None]
    return torch.nn.functional.pad(key_mask[:, span], (0, tile - rows))[:, None, :, None]


def keep(x: Tensor, counts: Tensor | None, otherwise: float = 0.0) -> Tensor:
    return x if counts is None else torch.where(counts, x, otherwise)


def exponents(x: Tensor, scale: Tensor, counts: Tensor | None) -> Tensor:
    """b_jl = beta_l k_jl, and -inf for keys that do not count."""
    return keep(x * scale[:, :, None], counts, -torch.inf)
