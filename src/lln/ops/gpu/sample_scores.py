"""What a sample for matching is drawn by: means and variances over a few tokens, and two scores of every key.

    m_j = max_l k_jl,   u_j = s q-.k_j + s^2/2 sum_l var(q_l) (k_jl - k-_l)^2

in units in which nothing overflows: only their order is wanted. And where the search begins, the table's alpha and beta.
"""

import triton
import triton.language as tl

from lln.ops.gpu.pieces import counting, read
from lln.ops.gpu.plan import stretch_at
from lln.ops.gpu.sample_places import gathered, in_order, middle, position_of, tokens_of

TINY = tl.constexpr(1e-30)  # the smallest variance there is
SLICE = tl.constexpr(32)


@triton.jit
def spread(
    q, k, queries, keys, table, found, start, groups,
    D: tl.constexpr, COLUMNS: tl.constexpr, SCALE: tl.constexpr, CENTERED: tl.constexpr, ROWS: tl.constexpr,
    EVEN: tl.constexpr, ROW_PLACES: tl.constexpr, KEY_PLACES: tl.constexpr,
):  # fmt: skip
    """`found` (S, H, 4, D): mean and variance of q, of k; `start` (S, H, 4): alpha, beta, and the variances of q and of k about
    its mean key. Grid: sequences, key heads."""
    sequence, head, heads = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    batch, first, count = tokens_of(keys, sequence)
    query_batch, query_first, query_count = tokens_of(queries, sequence)
    own = (sequence * heads + head).to(tl.int64)
    row, taken = tl.arange(0, ROW_PLACES), tl.minimum(query_count.to(tl.int64) * groups, ROWS).to(tl.int32)
    row_there = row < taken
    position = position_of(queries, query_batch, query_first, middle(row, taken, query_count), row_there)
    query_head = head * groups + row * ((groups - 1) // ROWS + 1) % groups
    place, drawn = tl.arange(0, KEY_PLACES), tl.minimum(count, EVEN)
    key_there = place < drawn
    key_position = position_of(keys, batch, first, middle(place, drawn, count), key_there)
    for some in range(0, D, SLICE):
        column = some + tl.arange(0, SLICE)
        inside = (column < D)[None, :]
        rows = gathered(q, query_batch, query_head, position, column, row_there[:, None] & inside)
        means, variances = mean_and_variance(rows, row_there, taken)
        at = found + own * 4 * D + column
        tl.store(at, means, mask=column < D)
        tl.store(at + D, variances, mask=column < D)
        rows = gathered(k, batch, tl.zeros_like(place) + head, key_position, column, key_there[:, None] & inside)
        means, variances = mean_and_variance(rows, key_there, drawn)
        tl.store(at + 2 * D, means, mask=column < D)
        tl.store(at + 3 * D, variances, mask=column < D)
    tl.debug_barrier()
    of_q = overall(found, own, 0, False, D, COLUMNS)
    of_k = overall(found, own, 2, CENTERED, D, COLUMNS)
    alpha, beta = by_table(table, tl.maximum(of_q, TINY), tl.maximum(of_k, TINY), count, D, SCALE)
    tl.store(start + own * 4, alpha)
    tl.store(start + own * 4 + 1, beta)
    tl.store(start + own * 4 + 2, tl.maximum(of_q, TINY))
    tl.store(start + own * 4 + 3, tl.maximum(overall(found, own, 2, True, D, COLUMNS), TINY))


@triton.jit
def mean_and_variance(x, there, count):
    x = x.to(tl.float64)
    number = tl.maximum(count, 1).to(tl.float64)
    mean = tl.sum(x, 0) / number
    centred = tl.where(there[:, None], x - mean[None, :], 0.0)
    return mean, tl.sum(centred * centred, 0) / number


@triton.jit
def overall(found, own, which: tl.constexpr, CENTERED: tl.constexpr, D: tl.constexpr, COLUMNS: tl.constexpr):
    """The variance of all features together: about the mean of each if centred, else about one mean."""
    column = tl.arange(0, COLUMNS)
    at = found + (own * 4 + which) * D + column
    mean = tl.load(at, mask=column < D, other=0.0)
    total = tl.load(at + D, mask=column < D, other=0.0)
    if not CENTERED:
        off = tl.where(column < D, mean - tl.sum(mean, 0) / D, 0.0)
        total += off * off
    return tl.sum(total, 0) / D


@triton.jit
def by_table(table, of_q, of_k, count, D: tl.constexpr, SCALE: tl.constexpr):
    """alpha and beta of `lln.ops.moments.formula`, from the table's log2 (s / T) over log2 N and log2 T."""
    squared = of_q * 0.0 + SCALE * SCALE
    t = squared * D * of_q * of_k
    low, high = tl.exp2(table.first_t + t * 0.0), tl.exp2(table.first_t + table.step_t * (table.points - 1) + t * 0.0)
    column, across = grid_place(tl.minimum(tl.maximum(t, low), high), table.first_t, table.step_t, table.points)
    keys = tl.maximum(count, 1).to(tl.float64)
    row, down = grid_place(keys, table.first_length, table.step_length, table.lengths)
    at = table.ratios + row * table.points + column
    above, below = tl.load(at), tl.load(at + table.points)
    above += across * (tl.load(at + 1) - above)
    below += across * (tl.load(at + table.points + 1) - below)
    ratio = tl.exp2((1.0 - down) * above + down * below) * (high / tl.maximum(t, high))
    common = tl.sqrt(ratio * squared * D * 0.5)
    return common * tl.sqrt(of_k), common * tl.sqrt(of_q)


@triton.jit
def grid_place(x, first, step, points):
    x = tl.minimum(tl.maximum((tl.log2(x) - first) / step, 0.0), points - 1.0)
    index = tl.minimum(tl.where(x == x, x, 0.0).to(tl.int32), points - 2)
    return index, x - index


@triton.jit
def key_scores(
    k, mask, found, start, scores, stretches, many,
    D: tl.constexpr, COLUMNS: tl.constexpr, SCALE: tl.constexpr, CENTERED: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """m and u of every key as `in_order`, (2, B, H, N); `many` is B H N. Grid: stretches, key heads."""
    index, head, heads = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    sequence, batch, first, stop = stretch_at(stretches, index)
    own = (sequence * heads + head).to(tl.int64)
    column = tl.arange(0, COLUMNS)
    inside = column < D
    unit = tl.sqrt(tl.load(start + own * 4 + 3))
    per_unit = 1.0 / unit
    at = found + own * 4 * D + column
    linear = tl.load(at, mask=inside, other=0.0) * unit * SCALE
    square = tl.load(at + D, mask=inside, other=0.0) * unit * unit * (0.5 * SCALE * SCALE)
    share = 1.0 / tl.maximum(tl.max(tl.maximum(tl.abs(linear), square), 0), TINY)
    linear, square = (linear * share).to(tl.float32), (square * share).to(tl.float32)
    mean = (tl.load(at + 2 * D, mask=inside, other=0.0) * per_unit).to(tl.float32)
    per_unit = per_unit.to(tl.float32)
    for some in range(first, stop, ROWS):
        row = some + tl.arange(0, ROWS)
        counts = counting(mask, batch, row, stop)
        keys = read(k, batch, head, row, column, counts[:, None] & inside[None, :]).to(tl.float32)
        y = keys * per_unit - mean[None, :]
        u = tl.sum(y * (linear[None, :] + square[None, :] * y), 1)
        m = tl.max(tl.where(inside[None, :], y if CENTERED else keys, float("-inf")), 1)
        to = scores + (batch.to(tl.int64) * heads + head) * stretches.length + row
        tl.store(to, in_order(m, counts, row), mask=row < stop)
        tl.store(to + many, in_order(u, counts, row), mask=row < stop)
