"""The operands in blocks of slots.

A sequence's first block starts at a block boundary, so that a block has one sequence and rows of a block share their far keys.
Without masks the slots are the positions themselves. No value is read back from the device.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from lln.ops.lln.op import compute_dtype
from lln.ops.near_far.op import Operands
from lln.ops.slots import Slots, block_slots, sequence_of_slots


class FirstTokens(NamedTuple):
    """The keys and values at the start of each sequence."""

    keys: Tensor  # (S, Hk, first, D)
    values: Tensor  # (S, Hk, first, Dv)
    counts: Tensor  # (S, first) bool

    @staticmethod
    def of(x: Operands, counts: Tensor) -> "FirstTokens":
        """Of operands in slots; of packed sequences, those at `cu_seqlens`."""
        many = min(x.first_tokens, x.k.shape[2])
        if x.cu_seqlens is None:
            return FirstTokens(x.k[:, :, :many], x.v[:, :, :many], counts[:, :many])
        lengths = x.cu_seqlens.diff()
        blocks = (lengths + x.block_size - 1) // x.block_size
        start = (blocks.cumsum(0) - blocks) * x.block_size
        token = torch.arange(many, device=x.k.device)
        at = (start[:, None] + token).clamp(max=x.k.shape[2] - 1)  # (S, first)
        keys, values = (t[0][:, at].transpose(0, 1) for t in (x.k, x.v))
        return FirstTokens(keys, values, token < lengths[:, None])


class Layout(NamedTuple):
    """q, k, v of `x` are in slots (B, H, slots, D), the last block of which may be ragged; its masks are those below."""

    x: Operands
    counts: Tensor  # (B or 1, slots) bool, True where a slot holds a key that counts
    number: Tensor  # (B or 1, blocks), the number of a block in its own sequence
    sequence: Tensor | None  # (blocks,), the packed sequence of a block
    first: FirstTokens | None
    slots: Slots | None  # where positions went, if anywhere

    @staticmethod
    def of(x: Operands) -> "Layout":
        size, slots, sequence = x.block_size, None, None
        if x.key_mask is None and x.cu_seqlens is None:
            counts = torch.ones(1, x.k.shape[2], dtype=torch.bool, device=x.k.device)
        else:
            slots = block_slots(x.q, x.key_mask, x.cu_seqlens, size)
            mask = torch.ones_like(slots.slot, dtype=torch.bool) if x.key_mask is None else x.key_mask
            counts = slots.scatter_mask(mask)
            q, k, v = (slots.scatter(t) for t in (x.q, x.k, x.v))
            x = x._replace(q=q, k=k, v=v)
        number = torch.arange(-(-x.k.shape[2] // size), device=x.k.device)
        if x.cu_seqlens is not None:
            assert slots is not None
            sequence = sequence_of_slots(x.cu_seqlens, slots.total, size)
            number = number - torch.searchsorted(sequence, sequence)  # less the first block of its sequence
        first = FirstTokens.of(x, counts) if x.first_tokens else None
        return Layout(x, counts, number[None], sequence, first, slots)

    @property
    def blocks(self) -> int:
        return self.number.shape[1]

    @property
    def dtype(self) -> torch.dtype:
        return compute_dtype(self.x.q.dtype)

    def read(self, t: Tensor, first: int, last: int) -> Tensor:
        """Blocks first .. last - 1 of (..., slots, E) in the compute dtype, (..., blocks, block, E); zeros beyond the ends."""
        return self._blocks(t.movedim(-2, 0), first, last).movedim((0, 1), (-3, -2)).to(self.dtype).contiguous()

    def counting(self, first: int, last: int) -> Tensor:
        """(B or 1, blocks, block) bool; nothing counts beyond the ends."""
        return self._blocks(self.counts.movedim(-1, 0), first, last).movedim((0, 1), (1, 2))

    def far_counting(self, first: int, last: int) -> Tensor:
        """`counting`, first tokens left out: they are near to every row that sees them."""
        counts = self.counting(first, last)
        if not self.x.first_tokens:
            return counts
        block = self._numbers(first, last)[..., None] * self.x.block_size
        position = block + torch.arange(self.x.block_size, device=block.device)
        return counts & (position >= self.x.first_tokens)

    def _numbers(self, first: int, last: int) -> Tensor:
        """(B or 1, blocks): numbers of blocks in their sequences; beyond the ends, whatever."""
        at = torch.arange(first, last, device=self.number.device).clamp(0, self.blocks - 1)
        return self.number[:, at]

    def keys_and_values(self, first: int, last: int) -> tuple[Tensor, Tensor]:
        """Zero where nothing counts, which may hold anything, even NaN."""
        counts = self.counting(first, last)[:, None, :, :, None]
        return tuple(torch.where(counts, self.read(t, first, last), 0.0) for t in (self.x.k, self.x.v))  # type: ignore[return-value]

    def of_blocks(self, t: Tensor, first: int, last: int) -> Tensor:
        """alpha, beta or bias (S, H, D) for blocks, (B, H, blocks or 1, D)."""
        if self.sequence is None:
            return t[:, :, None]
        at = torch.arange(first, last, device=t.device).clamp(0, self.blocks - 1)
        return t[self.sequence[at]].transpose(0, 1)[None]

    def _blocks(self, t: Tensor, first: int, last: int) -> Tensor:
        """(slots, ...) to (blocks, block, ...), zeros beyond the ends."""
        size, length = self.x.block_size, t.shape[0]
        start, stop = first * size, last * size
        rows = t[max(start, 0) : max(min(stop, length), 0)]
        before, after = min(max(-start, 0), stop - start), max(stop - max(length, start), 0)
        if before or after:
            rows = F.pad(rows, (0, 0) * (t.dim() - 1) + (before, after))
        return rows.unflatten(0, (-1, size))
