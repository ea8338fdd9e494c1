"""Reading a sequence in tiles of a fixed size.

A ragged last tile is filled up with zeros, so that every matrix product has the same shape wherever its tile lies. The
order of summation then depends on the position in the sequence alone, and right padding changes no bit.

Nothing here writes into a tensor that a derivative may pass through: torch.func and forward mode see through all of it.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from lln.ops.lln.op import accumulation_dtype
from lln.ops.operation import empty_rows


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


def join(pieces: list[Tensor], like: Tensor) -> Tensor:
    """Tiles (B, H, tile, E) one after the other as (B, H, N, E), in the dtype and the layout of `like` (B, H, N, D)."""
    length, tile = like.shape[2], pieces[0].shape[2]
    joined = pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim=2)
    if len(pieces) * tile != length:
        joined = joined[:, :, :length]
    return laid_out(joined, like)


def laid_out(x: Tensor, like: Tensor) -> Tensor:
    """x (B, H, N, E) in the dtype of `like`, with the strides of `empty_rows`."""
    x = x.to(like.dtype)
    if torch._C._are_functorch_transforms_active() or x.requires_grad or has_tangent(x):
        return x
    expected = empty_rows(like, x.shape[-1])
    return x if x.stride() == expected.stride() else expected.copy_(x)


def wide(x: Tensor) -> Tensor:
    """What tiles are added up in: in float32 the error would grow with their number."""
    return x.to(accumulation_dtype(x.device))


def wide_zeros(like: Tensor) -> Tensor:
    return torch.zeros_like(like, dtype=accumulation_dtype(like.device))


def finite(reference: Tensor) -> Tensor:
    """A reference to subtract: 0 where there is no key yet, so that -inf - -inf does not come up."""
    return torch.where(reference == -torch.inf, 0.0, reference)


def decay(lower: Tensor, upper: Tensor) -> Tensor:
    """exp(lower - upper) <= 1, and 0 where there is no key yet (lower = -inf, whatever it scales is 0 too)."""
    return torch.where(lower == -torch.inf, 0.0, (lower - finite(upper)).exp())


def has_tangent(x: Tensor) -> bool:
    from torch.autograd import forward_ad

    return forward_ad._current_level >= 0 and forward_ad.unpack_dual(x).tangent is not None
