"""Sums over positions for matching: how many count, sum_i x_i and sum_i x_i^2 for each head and feature, all in float64.

Two launches: sums of each stretch, then over the stretches of each sequence, in their order. x is read once.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from lln.ops.gpu.attention import on
from lln.ops.gpu.environment import interpreted
from lln.ops.gpu.pieces import counting, read
from lln.ops.gpu.plan import Plan, stretch_at, stretches_of
from lln.ops.gpu.tensors import mask, rows
from lln.ops.gpu.tiles import power_of_two
from lln.ops.moments.op import Moments, Operands

STRETCH = 1024  # rows that a program adds up
COLUMNS = 64  # features that it has
ROWS = 32  # at a time


def forward(x: Operands) -> Moments:
    data: Tensor = x.x
    _, heads, _, dim = data.shape
    columns = min(COLUMNS, power_of_two(dim))
    slices = -(-dim // columns)
    with on(data.device):
        plan = Plan.of(data, x.cu_seqlens, 64 if interpreted() else STRETCH)
        parts = data.new_empty(2, plan.total, heads, dim, dtype=torch.float64)
        counts = data.new_empty(plan.total, dtype=torch.int32)
        add_rows[(plan.total, heads, slices)](
            rows(data), mask(x.key_mask), parts[0], parts[1], counts, plan.stretches, D=dim, COLUMNS=columns, ROWS=ROWS
        )
        found = data.new_empty(2, plan.sequences, heads, dim, dtype=torch.float64)
        count = data.new_empty(plan.sequences, dtype=torch.float64)
        add_stretches[(plan.sequences, heads, slices)](
            parts[0], parts[1], counts, found[0], found[1], count, plan.stretches, D=dim, COLUMNS=columns
        )
        return Moments(count, found[0], found[1])


@triton.jit
def add_rows(
    x, mask, total, squares, counts, stretches, D: tl.constexpr, COLUMNS: tl.constexpr, ROWS: tl.constexpr
):  # fmt: skip
    """Sums of each stretch, (P, H, D), and how many of its rows count, (P,). Grid: stretches, heads, slices of features."""
    index, head, heads = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    _, batch, first, stop = stretch_at(stretches, index)
    column = tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
    sums, of_squares = tl.zeros([COLUMNS], tl.float64), tl.zeros([COLUMNS], tl.float64)
    count = tl.zeros([ROWS], tl.int32)
    for start in range(first, stop, ROWS):
        row = start + tl.arange(0, ROWS)
        there = counting(mask, batch, row, stop)
        values = read(x, batch, head, row, column, there[:, None] & (column < D)[None, :]).to(tl.float64)
        sums += tl.sum(values, 0)
        of_squares += tl.sum(values * values, 0)
        count += there.to(tl.int32)
    at = (index * heads + head).to(tl.int64) * D + column
    tl.store(total + at, sums, mask=column < D)
    tl.store(squares + at, of_squares, mask=column < D)
    if (head == 0) & (tl.program_id(2) == 0):
        tl.store(counts + index, tl.sum(count, 0))


@triton.jit
def add_stretches(
    total, squares, counts, found_total, found_squares, found_count, stretches, D: tl.constexpr, COLUMNS: tl.constexpr
):  # fmt: skip
    """The same of each sequence. Grid: sequences, heads, slices of features."""
    sequence, head, heads = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    column = tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
    begin, end = stretches_of(stretches, sequence)
    sums, of_squares = tl.zeros([COLUMNS], tl.float64), tl.zeros([COLUMNS], tl.float64)
    count = begin.to(tl.int64) * 0
    for index in range(begin, end):
        at = (index * heads + head).to(tl.int64) * D + column
        sums += tl.load(total + at, mask=column < D, other=0.0)
        of_squares += tl.load(squares + at, mask=column < D, other=0.0)
        count += tl.load(counts + index)
    at = (sequence * heads + head).to(tl.int64) * D + column
    tl.store(found_total + at, sums, mask=column < D)
    tl.store(found_squares + at, of_squares, mask=column < D)
    if (head == 0) & (tl.program_id(2) == 0):
        tl.store(found_count + sequence, count.to(tl.float64))
