"""How the length is split over programs: stretches of a fixed number of rows, none of which spans two sequences.

A stretch has the same rows whatever comes after it, so the order of summation does not depend on the length, and right padding
changes no bit. Boundaries of packed sequences stay on the device: the number of stretches follows from shapes alone, and a
kernel writes down where each one lies. Boundaries that make no sense are clamped, so that nothing outside is touched.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor


class Stretches(NamedTuple):
    """Where stretches lie. Packed: `table` (P, 3) has sequence, first row and end, `edges` (S + 1,) each one's stretches."""

    table: Tensor | None
    edges: Tensor | None
    length: int
    each: int  # stretches of a sample; of all sequences where they are packed
    rows: int


class Plan(NamedTuple):
    stretches: Stretches
    total: int  # of all samples or sequences
    sequences: int

    @staticmethod
    def of(x: Tensor, cu_seqlens: Tensor | None, rows: int) -> "Plan":
        """For the rows of x (B, H, N, D)."""
        batch, _, length, _ = x.shape
        each = -(-length // rows)
        if cu_seqlens is None:
            return Plan(Stretches(None, None, length, each, rows), batch * each, batch)
        sequences = cu_seqlens.shape[0] - 1
        count = length // rows + sequences  # at most one stretch of a sequence is not full
        table = torch.empty(count, 3, dtype=torch.int32, device=x.device)
        edges = torch.empty(sequences + 1, dtype=torch.int32, device=x.device)
        _lay_out[(sequences,)](cu_seqlens.contiguous(), table, edges, length, sequences, count, rows, MANY=128)
        return Plan(Stretches(table, edges, length, count, rows), count, sequences)


@triton.jit
def _lay_out(boundaries, table, edges, length, sequences, count, rows, MANY: tl.constexpr):
    """One program a sequence: how many stretches lie before it, and where its own lie."""
    sequence = tl.program_id(0)
    before = 0
    for some in range(0, sequence, MANY):
        other = some + tl.arange(0, MANY)
        inside = other < sequence
        start = clamped(tl.load(boundaries + other, mask=inside, other=0), length)
        stop = clamped(tl.load(boundaries + other + 1, mask=inside, other=0), length)
        before += tl.sum((tl.maximum(stop - start, 0) + rows - 1) // rows)
    start = clamped(tl.load(boundaries + sequence), length)
    stop = clamped(tl.load(boundaries + sequence + 1), length)
    own = (tl.maximum(stop - start, 0) + rows - 1) // rows
    last = sequence == sequences - 1
    tl.store(edges + sequence, tl.minimum(before, count))
    if last:
        tl.store(edges + sequences, tl.minimum(before + own, count))
    # The last sequence also fills up the table, with stretches that have no rows.
    filled = tl.where(last, tl.maximum(count - before, 0), own)
    for some in range(0, filled, MANY):
        index = some + tl.arange(0, MANY)
        first = tl.minimum(start + index * rows, tl.maximum(start, stop))
        inside = (index < filled) & (before + index < count)
        at = table + (before + index) * 3
        tl.store(at, tl.zeros_like(index) + sequence, mask=inside)
        tl.store(at + 1, first, mask=inside)
        tl.store(at + 2, tl.minimum(first + rows, tl.maximum(start, stop)), mask=inside)


@triton.jit
def clamped(boundary, length):
    return tl.minimum(tl.maximum(boundary, 0), length).to(tl.int32)


@triton.jit
def stretch_at(stretches, index):
    """Sequence, sample, first row and end of a stretch."""
    if stretches.table is None:
        sequence = index // stretches.each
        first = (index % stretches.each) * stretches.rows
        return sequence, sequence, first, tl.minimum(first + stretches.rows, stretches.length)
    else:
        at = stretches.table + index * 3
        sequence, first, stop = tl.load(at), tl.load(at + 1), tl.load(at + 2)
        return sequence, sequence * 0, first, stop


@triton.jit
def stretches_of(stretches, sequence):
    """The first stretch of a sequence, and the one after its last."""
    if stretches.table is None:
        return sequence * stretches.each, (sequence + 1) * stretches.each
    else:
        return tl.load(stretches.edges + sequence), tl.load(stretches.edges + sequence + 1)
