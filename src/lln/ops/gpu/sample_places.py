"""Which tokens a sample for matching has, as kernels find them: `lln.ops.moments.sampling` says what is drawn and why.

Scores that decide who is drawn are written as whole numbers of 64 bits, in order as the scores are and then as their positions
are, the earlier being the larger; what does not count comes last. No two are the same, so any sort gives one order, and the
position comes with it.
"""

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from lln.ops.gpu.plan import clamped


class Tokens(NamedTuple):
    """The positions of a sequence that count: all, those `listed` (B, N), or those between packed boundaries (S + 1,)."""

    listed: Tensor | None
    count: Tensor | None  # type: ignore[assignment]  # (B,), of what is listed
    boundaries: Tensor | None
    length: int


@triton.jit
def list_tokens(mask, listed, count, length, TILE: tl.constexpr):
    """The positions that count, in order, and how many. Grid: samples."""
    batch = tl.program_id(0)
    before = 0
    for start in range(0, length, TILE):
        position = start + tl.arange(0, TILE)
        at = mask.data + batch.to(tl.int64) * mask.batch + position.to(tl.int64) * mask.row
        counts = tl.load(at, mask=position < length, other=0) != 0
        rank = before + tl.cumsum(counts.to(tl.int32), 0) - 1
        tl.store(listed + batch.to(tl.int64) * length + rank, position, mask=counts)
        before += tl.sum(counts.to(tl.int32))
    tl.store(count + batch, before)


@triton.jit
def tokens_of(tokens, sequence):
    """Sample, first position and number of the tokens of a sequence."""
    if tokens.boundaries is not None:
        first = clamped(tl.load(tokens.boundaries + sequence), tokens.length)
        stop = clamped(tl.load(tokens.boundaries + sequence + 1), tokens.length)
        return sequence * 0, first, tl.maximum(stop - first, 0)
    elif tokens.listed is not None:
        return sequence, sequence * 0, tl.load(tokens.count + sequence)
    else:
        return sequence, sequence * 0, sequence * 0 + tokens.length


@triton.jit
def position_of(tokens, batch, first, rank, there):
    if tokens.listed is not None:
        return tl.load(tokens.listed + batch.to(tl.int64) * tokens.length + rank, mask=there, other=0)
    else:
        return tl.minimum(first + rank, tokens.length - 1)


@triton.jit
def middle(place, taken, count):
    """The middle of one of `taken` equal stretches of `count`; places beyond repeat the last."""
    place = tl.minimum(place, tl.maximum(taken - 1, 0)).to(tl.int64)
    return ((2 * place + 1) * count // tl.maximum(2 * taken, 1)).to(tl.int32)


@triton.jit
def in_order(score, counts, index):
    """A score as a number of 64 bits that sorts."""
    score = tl.where(score == score, score, float("-inf")) + 0.0  # a zero has no sign
    bits = score.to(tl.int32, bitcast=True)
    order = tl.where(counts, bits ^ ((bits >> 31) & 0x7FFFFFFF), -0x80000000)
    return (order.to(tl.int64) << 32) + (0xFFFFFFFF - index.to(tl.int64))


@triton.jit
def index_of(key):
    """Where the score was that `in_order` wrote."""
    return (0xFFFFFFFF - (key & 0xFFFFFFFF)).to(tl.int32)


@triton.jit
def gathered(x, batch, head, row, column, there):
    """Rows of any heads and positions, (rows, columns)."""
    first = x.data + batch.to(tl.int64) * x.batch + (head.to(tl.int64) * x.head + row.to(tl.int64) * x.row)[:, None]
    return tl.load(first + column.to(tl.int64)[None, :] * x.column, mask=there, other=0.0)
