"""How much LLN has to say in a row of LLN+Diag: nothing in a text that fits its block, where the blocks are softmax already.

    out_i = w_i LLN_i + (1 - w_i) blocks_i,      w_i = mix min(1, f_i / block_size)

f_i is the number of keys that row i may see outside its block: of those that count, in its own sequence, and in causal
attention before it. Blocks are counted as `lln.ops.blocks` counts them, from each sequence's first key that counts.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from lln.ops.blocks.open_block import OpenBlock
from lln.ops.masks import first_key, sequence_of_positions


class FarPast(NamedTuple):
    """What earlier pieces of a causal sequence mean to the rows of the next."""

    full: Tensor  # (B,) int64, keys that count in the blocks that are full
    block: OpenBlock  # the one that is not


def far_share(
    length: int,
    block_size: int,
    *,
    is_causal: bool,
    key_mask: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    device: torch.device | None = None,
) -> Tensor:
    """min(1, f_i / block_size) for every row, (B, N) with a key_mask (B, N), else (1, N); float32."""
    row = torch.arange(length, device=device)[None]  # (1, N)
    if cu_seqlens is None:
        first, end = _first(key_mask, length, row), torch.full_like(row[:, :1], length)
    else:
        edges = cu_seqlens.to(row)
        sequence = sequence_of_positions(edges, length).clamp_max(len(edges) - 2)[None]
        first, end = edges[sequence], edges[sequence + 1]  # (1, N)
    counted = _counted_before(key_mask, length, row)
    start = _block_start(row, first, block_size)  # (B or 1, N)
    far = _at(counted, start) - _at(counted, first)
    if not is_causal:
        after = torch.minimum(start + block_size, end)
        far = far + _at(counted, end) - _at(counted, after)
    return _share(far, block_size)


def far_share_of_piece(
    key_mask: Tensor | None, past: FarPast | None, k: Tensor, block_size: int
) -> tuple[Tensor, Tensor]:
    """The same (B, N) for a causal piece with keys k (B, Hk, N, D) that goes on from `past`, and `full` after it."""
    batch, length = k.shape[0], k.shape[2]
    row = torch.arange(length + 1, device=k.device)[None]  # (1, N + 1); the last is the next piece's first token
    first = _first(key_mask, length, row).expand(batch, 1)
    counted = _counted_before(key_mask, length, row)
    full = open_keys = torch.zeros(batch, 1, dtype=torch.int64, device=k.device)
    if past is not None:
        first = torch.where(past.block.started[:, None], -past.block.filled[:, None], first)
        full, open_keys = past.full[:, None], past.block.counts.sum(dim=1, keepdim=True)
    start = _block_start(row, first, block_size)  # (B, N + 1)
    far = full + torch.where(start > first, open_keys, 0) + _at(counted, start.clamp(0, length))
    return _share(far[:, :-1], block_size), far[:, -1]


def _first(key_mask: Tensor | None, length: int, row: Tensor) -> Tensor:
    """Where blocks are counted from, (B or 1, 1): the first key that counts; the end where none does."""
    if key_mask is None:
        return torch.zeros_like(row[:, :1])
    return first_key(key_mask, otherwise=length)


def _counted_before(key_mask: Tensor | None, length: int, row: Tensor) -> Tensor:
    """(B or 1, N + 1): how many keys before each position count."""
    if key_mask is None:
        return torch.arange(length + 1, device=row.device)[None]
    return torch.nn.functional.pad(key_mask.long().cumsum(dim=1), (1, 0))


def _block_start(row: Tensor, first: Tensor, block_size: int) -> Tensor:
    """Rows before the first key that counts are padding: they go with the first block."""
    block = torch.div(row - first, block_size, rounding_mode="floor").clamp_min(0)
    return first + block * block_size


def _at(counted: Tensor, position: Tensor) -> Tensor:
    batch = max(counted.shape[0], position.shape[0])  # not len, which would fix the batch of a graph
    return counted.expand(batch, -1).gather(1, position.expand(batch, -1))


def _share(far: Tensor, block_size: int) -> Tensor:
    return (far.to(torch.float32) / block_size).clamp_max(1.0)
