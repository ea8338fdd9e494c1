"""Blocks of positions that do not start at multiples of the block size.

Every position gets a slot, blocks being runs of consecutive slots; q, k and v are scattered into their slots, and the
output is gathered from them.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from lln.ops.masks import first_key, sequence_of_positions


class Slots(NamedTuple):
    """Where each position goes: blocks are runs of `block_size` consecutive slots."""

    slot: Tensor  # (B, N), where each position goes; `total` for positions that belong to no block
    total: int

    @staticmethod
    def of(position: Tensor, most: int, block_size: int) -> "Slots":
        """Slots for `position` < `most`; negative positions come before the sample's first block."""
        total = (most + block_size - 1) // block_size * block_size  # not -(-most // size): ONNX divides towards zero
        return Slots(torch.where(position < 0, total, position), total)

    def scatter(self, x: Tensor, before: Tensor | None = None) -> Tensor:
        """(B, H, N, D) to (B, H, total, D); empty slots hold what `before` has there, or zeros."""
        spread = x.new_zeros(x.shape[0], x.shape[1], self.total + 1, x.shape[3])
        if before is not None:
            spread[:, :, : before.shape[2]] = before
        return spread.scatter(2, self._rows(x), x)[:, :, :-1]

    def scatter_mask(self, counts: Tensor, before: Tensor | None = None) -> Tensor:
        spread = counts.new_zeros(counts.shape[0], self.total + 1)
        if before is not None:
            spread[:, : before.shape[1]] = before
        return spread.scatter(1, self.slot, counts)[:, :-1]

    def gather(self, x: Tensor) -> Tensor:
        """(B, H, total, D) back to (B, H, N, D), zeros for positions that belong to no block."""
        return F.pad(x, (0, 0, 0, 1)).gather(2, self._rows(x))

    def _rows(self, x: Tensor) -> Tensor:
        return self.slot[:, None, :, None].expand(-1, x.shape[1], -1, x.shape[3])


def block_slots(x: Tensor, key_mask: Tensor | None, cu_seqlens: Tensor | None, block_size: int) -> Slots:
    """Slots for the positions of x (B, H, N, D): blocks count from the first key that counts, or from a sequence's start."""
    length = x.shape[2]
    if cu_seqlens is not None:
        return packed_slots(cu_seqlens, length, block_size)
    position = torch.arange(length, device=x.device).expand(x.shape[0], -1)
    if key_mask is not None:
        position = position - first_key(key_mask)
    return Slots.of(position, length, block_size)


def packed_slots(cu_seqlens: Tensor, total: int, block_size: int) -> Slots:
    """Each sequence starts a new block; at most one block per sequence is ragged, which bounds the slots."""
    edges = cu_seqlens.to(torch.int64)
    position = torch.arange(total, device=edges.device)
    sequence = sequence_of_positions(edges, total)
    slot = position - edges[sequence] + _blocks_before(edges, block_size)[sequence] * block_size
    return Slots.of(slot[None], total + (edges.shape[0] - 1) * block_size, block_size)


def sequence_of_slots(cu_seqlens: Tensor, slots: int, block_size: int) -> Tensor:
    """(slots / block_size,): which packed sequence each block of slots belongs to; empty blocks at the end, to the last."""
    edges = cu_seqlens.to(torch.int64)
    blocks = torch.arange(slots // block_size, device=edges.device)
    ends = _blocks_before(edges, block_size) + _blocks(edges, block_size)
    return torch.bucketize(blocks, ends, right=True).clamp(max=edges.shape[0] - 2)


def _blocks(edges: Tensor, block_size: int) -> Tensor:
    return (edges.diff() + block_size - 1) // block_size


def _blocks_before(edges: Tensor, block_size: int) -> Tensor:
    blocks = _blocks(edges, block_size)
    return blocks.cumsum(0) - blocks
