"""What rows ask of the keys that are far to them: the gradient of a key and its value as a function of both.

Let a block of rows have n far keys of mean mu and mean value v_mean, and let, summed over its rows,

    U = sum f' g^T,  y = -sum f' (g . LLN),  G = sum kappa q g^T,  o = sum eta s q / n,  h = sum 2 dx s^2 q^2 / n,
    t = sum m w_mean g / n

with the names of `lln.ops.gpu.near_far_gradients`. Its far key j then gets, with e_j = exp(b_j - c),

    db_j = e_j (U v_j + y),   dk_j = o + h (k_j - mu) + G (v_j - v_mean),   dv_j = t + G^T (k_j - mu) + U^T e_j

All of it adds up over blocks of rows, in float64 and in their order: U and y relative to the lowest of the maxima c, which no
key that is far to all of these rows exceeds; o and t about the means of the block of keys that they are told to.
"""

import triton
import triton.language as tl

from lln.ops.gpu.far_moments import block_at, load_matrices, load_vectors
from lln.ops.gpu.near_far import far_exponents
from lln.ops.gpu.near_far_gradients import RATES, read_rows_gradient
from lln.ops.gpu.pieces import product, read
from lln.ops.gpu.plan import stretches_of


@triton.jit
def store_asked(
    to, at, y, offset, curve, u, g, column, e, D: tl.constexpr, E: tl.constexpr
):  # fmt: skip
    at = at.to(tl.int64)
    tl.store(to.normaliser + at * D + column, y, mask=column < D)
    tl.store(to.offset + at * D + column, offset, mask=column < D)
    tl.store(to.curve + at * D + column, curve, mask=column < D)
    inside = (column < D)[:, None] & (e < E)[None, :]
    places = at * D * E + column[:, None] * E + e[None, :]
    tl.store(to.summed + places, u, mask=inside)
    tl.store(to.product + places, g, mask=inside)


@triton.jit
def load_asked(x, at, column, D: tl.constexpr):
    """y, o and h."""
    at = at.to(tl.int64) * D + column
    return (
        tl.load(x.normaliser + at, mask=column < D, other=0.0),
        tl.load(x.offset + at, mask=column < D, other=0.0),
        tl.load(x.curve + at, mask=column < D, other=0.0),
    )


@triton.jit
def block_asks(
    q, alpha, bias, grad, rates, far, asked, stretches, frames, groups,
    D: tl.constexpr, E: tl.constexpr, COLUMNS: tl.constexpr, VALUES: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Of the rows of each block, the query heads of a key head together. Grid: blocks, key heads, slices of features."""
    index, key_head, key_heads = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    sequence, batch, first, stop, _, _ = block_at(stretches, frames, index)
    part, e = tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS), tl.arange(0, VALUES)
    like: tl.constexpr = q.data.dtype.element_ty
    at = index * key_heads + key_head
    c = tl.load(far.maximum + at.to(tl.int64) * D + part, mask=part < D, other=float("-inf"))
    y, offset, curve = tl.zeros([COLUMNS], tl.float32), tl.zeros([COLUMNS], tl.float32), tl.zeros([COLUMNS], tl.float32)
    u, g = tl.zeros([COLUMNS, VALUES], tl.float32), tl.zeros([COLUMNS, VALUES], tl.float32)
    of_values = tl.zeros([VALUES], tl.float32)
    limit = tl.where(tl.load(far.total + at.to(tl.int64)) > 0.0, stop, first)
    each = stretches.length
    for start in range(first, limit, ROWS):
        row = start + tl.arange(0, ROWS)
        there = row < stop
        for group in range(groups):
            head = key_head * groups + group
            dout, takes_part = read_rows_gradient(grad, batch, head, row, e, there, E)
            queries = read(q, batch, head, row, part, takes_part[:, None] & (part < D)[None, :]).to(tl.float32)
            of_row = rates + (batch.to(tl.int64) * key_heads * groups + head) * RATES * each + row
            top = tl.load(of_row + 4 * each, mask=there, other=0.0)
            of_f, lln = (
                tl.load(of_row + 5 * each, mask=there, other=0.0),
                tl.load(of_row + 6 * each, mask=there, other=0.0),
            )
            f = tl.exp(far_exponents(queries, alpha, bias, sequence, head, part, c, D) - top[:, None]) * of_f[:, None]
            f = tl.where(takes_part[:, None], f, 0.0)
            u += product(tl.trans(f), dout, like)
            y -= tl.sum(f * lln[:, None], 0)
            kappa = tl.load(of_row + 7 * each, mask=there, other=0.0)
            g += product(tl.trans(queries * kappa[:, None]), dout, like)
            offset += tl.sum(queries * tl.load(of_row + 8 * each, mask=there, other=0.0)[:, None], 0)
            curve += tl.sum(queries * queries * tl.load(of_row + 9 * each, mask=there, other=0.0)[:, None], 0)
            of_mean = tl.load(of_row + 10 * each, mask=there, other=0.0)
            of_values += tl.sum(dout.to(tl.float32) * of_mean[:, None], 0)
    store_asked(asked, at, y, offset, curve, u, g, part, e, D, E)
    if tl.program_id(2) == 0:
        tl.store(asked.value_offset + at.to(tl.int64) * E + e, of_values, mask=e < E)


@triton.jit
def lowered(c):
    """A reference of rows that have nothing far is no reference: the lowest of none is inf."""
    return tl.where(c == float("-inf"), float("inf"), c)


@triton.jit
def risen(lower, upper):
    """exp(lower - upper) <= 1 in float64, and 0 where nothing has been asked yet (upper = inf)."""
    none = upper == float("inf")
    return tl.where(none, 0.0, tl.exp(tl.where(none, 0.0, lower - upper))).to(tl.float64)


@triton.jit
def with_rows(
    r, y, offset, curve, u, g, values, far, asked, at, is_first, column, e, D: tl.constexpr, E: tl.constexpr
):  # fmt: skip
    """What a block of rows asks is added, o and t about zero; t of G's part only, unless `is_first` of the slices."""
    vectors = load_vectors(far, at, column, e, D, E)
    key_mean, value_mean, c = vectors[1].to(tl.float64), vectors[3].to(tl.float64), lowered(vectors[4])
    y2, offset2, curve2 = load_asked(asked, at, column, D)
    g2, u2 = load_matrices(asked, at, column, e, D, E)
    g2, u2, curve2 = g2.to(tl.float64), u2.to(tl.float64), curve2.to(tl.float64)
    lower = tl.minimum(r, c)
    kept, moved = risen(lower, r), risen(lower, c)
    more = tl.load(asked.value_offset + at.to(tl.int64) * E + e, mask=(e < E) & is_first, other=0.0).to(tl.float64)
    return (
        lower,
        y * kept + y2 * moved,
        offset + offset2 - curve2 * key_mean - tl.sum(g2 * value_mean[None, :], 1),
        curve + curve2,
        u * kept[:, None] + u2 * moved[:, None],
        g + g2,
        values + more - tl.sum(g2 * key_mean[:, None], 0),
    )


@triton.jit
def tell(
    parts, told, at, r, y, offset, curve, u, g, values, column, e, ADD: tl.constexpr, D: tl.constexpr, E: tl.constexpr
):  # fmt: skip
    """To a block of keys, about its own means; added to what it was told before."""
    vectors = load_vectors(parts, at, column, e, D, E)
    key_mean, value_mean = vectors[1].to(tl.float64), vectors[3].to(tl.float64)
    offset = offset + curve * key_mean + tl.sum(g * value_mean[None, :], 1)
    values = values + tl.sum(g * key_mean[:, None], 0)
    own = at.to(tl.int64)
    of_values = told.value_offset + (own * tl.num_programs(2) + tl.program_id(2)) * E + e
    of_maximum = told.maximum + own * D + column
    if ADD:
        r2 = tl.load(of_maximum, mask=column < D, other=float("inf"))
        y2, offset2, curve2 = load_asked(told, at, column, D)
        g2, u2 = load_matrices(told, at, column, e, D, E)
        lower = tl.minimum(r, r2)
        kept, moved = risen(lower, r), risen(lower, r2)
        r, y, u = lower, y * kept + y2 * moved, u * kept[:, None] + u2 * moved[:, None]
        offset, curve, g = offset + offset2, curve + curve2, g + g2
        values += tl.load(of_values, mask=e < E, other=0.0)
        tl.debug_barrier()
    tl.store(of_maximum, r, mask=column < D)
    tl.store(of_values, values, mask=e < E)
    store_asked(told, at, y, offset, curve, u, g, column, e, D, E)


@triton.jit
def asked_of_keys(
    parts, far, asked, told, stretches, neighbours,
    D: tl.constexpr, E: tl.constexpr, COLUMNS: tl.constexpr, VALUES: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    """For each block of keys, what the blocks of rows ask at least `neighbours` + 1 after it and, unless causal, before it.

    Grid: sequences, key heads, slices of COLUMNS features.
    """
    sequence, head, heads = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    column, e, is_first = (
        tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS),
        tl.arange(0, VALUES),
        tl.program_id(2) == 0,
    )
    begin, end = stretches_of(stretches, sequence)
    none, nothing = tl.zeros([COLUMNS], tl.float64), tl.zeros([COLUMNS, VALUES], tl.float64)
    r, y, offset, curve = tl.full([COLUMNS], float("inf"), tl.float32), none, none, none
    u, g, values = nothing, nothing, tl.zeros([VALUES], tl.float64)
    for done in range(end - begin):
        index = end - 1 - done
        if index + neighbours + 1 < end:
            r, y, offset, curve, u, g, values = with_rows(
                r, y, offset, curve, u, g, values, far, asked, (index + neighbours + 1) * heads + head, is_first,
                column, e, D, E,
            )  # fmt: skip
        tell(parts, told, index * heads + head, r, y, offset, curve, u, g, values, column, e, False, D, E)
    if not CAUSAL:
        tl.debug_barrier()
        r, y, offset, curve = tl.full([COLUMNS], float("inf"), tl.float32), none, none, none
        u, g, values = nothing, nothing, tl.zeros([VALUES], tl.float64)
        for index in range(begin, end):
            if index - neighbours - 1 >= begin:
                r, y, offset, curve, u, g, values = with_rows(
                    r, y, offset, curve, u, g, values, far, asked, (index - neighbours - 1) * heads + head, is_first,
                    column, e, D, E,
                )  # fmt: skip
            tell(parts, told, index * heads + head, r, y, offset, curve, u, g, values, column, e, True, D, E)
