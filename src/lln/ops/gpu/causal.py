"""Causal LLN attention, stretch by stretch from the state before it, with no shift that depends on a later key.

With M_i = max_{j <= i} b_j (per feature), row i has the features h_i = exp(a_i + M_i - m_i), m_i = max_l (a_il + M_il).
Relative to c, the maximum before a tile of rows, its keys come in three kinds.

    before the tile   through their sums S, z relative to c:      f_i = h_i exp(c - M_i)
    in the same tile  by halves, for blocks of 2, 4, ... rows: a row of a second half sees the keys of the first half
                      relative to r, the maximum over that half:  f_i = h_i exp(r - M_i),  g_j = exp(b_j - r),  s_ij = f_i . g_j
    itself            s_ii = h_i . exp(b_i - M_i)

Since b_j <= r <= M_i, every exponential is at most 1, whatever the inputs. Each pair j < i meets at one level, that of the
highest bit in which i and j differ.

Everything is a sum over features relative to m_i, so a head whose state would not fit into registers is cut into SLICES of
COLUMNS features, one after the other. The state then waits in memory between tiles: `kept`, one for each program, which the
cache holds. With one slice it stays in registers.
"""

import triton
import triton.language as tl

from lln.ops.gpu.pieces import (
    counting,
    decay,
    finite,
    first_half_end,
    higher_block,
    place,
    plus_product,
    product,
    read,
    rounded,
    running_maximum,
    scale,
)
from lln.ops.gpu.plan import stretch_at
from lln.ops.gpu.states import exponents_of_keys, load_maximum, load_sums, store_state

# Scales are read anew for each tile: kept over the loop, they would take registers that tiles need.


@triton.jit
def exponents_of_queries(q, alpha, bias, sequence, batch, head, row, column, there, D: tl.constexpr):
    """a = alpha q + w."""
    queries = read(q, batch, head, row, column, there[:, None] & (column < D)[None, :]).to(tl.float32)
    a = queries * scale(alpha, sequence, head, column, D)[None, :]
    return a + scale(bias, sequence, head, column, D)[None, :]


@triton.jit
def exponents(
    q, k, alpha, beta, bias, sequence, batch, head, key_head, row, column, there, counts, c,
    D: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, LEVELS: tl.constexpr,
):  # fmt: skip
    """a, b and M of a tile, for some features."""
    a = exponents_of_queries(q, alpha, bias, sequence, batch, head, row, column, there, D)
    b = exponents_of_keys(k, scale(beta, sequence, key_head, column, D), batch, key_head, row, column, counts, D)
    return a, b, tl.maximum(running_maximum(b, ROWS, COLUMNS, LEVELS), c[None, :])


@triton.jit
def row_features(a, b, c, running, m):
    """h, and the features towards the keys before the tile and towards the row's own key."""
    top = tl.exp(a + running - finite(m)[:, None])
    return top, top * decay(c[None, :], running), top * tl.exp(b - finite(running))


@triton.jit
def halves(top, b, running, inside, level, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """f of second halves and g of first halves, zeros elsewhere; the pairs that meet; `inside` for the next level.

    A row is in one kind of half only, so one exponential serves both. `inside` is the running maximum in blocks of
    2^level rows.
    """
    row, other = tl.arange(0, ROWS)[:, None], tl.arange(0, ROWS)[None, :]
    reference = first_half_end(inside, level, ROWS, COLUMNS)
    second = ((row >> level) & 1) == 1
    near = tl.exp(tl.where(second, reference - finite(running), b - finite(reference)))
    pairs = (((row >> level) ^ (other >> level)) == 1) & (row > other)
    inside = higher_block(inside, reference, level, ROWS)
    return tl.where(second, top * near, 0.0), tl.where(second, 0.0, near), pairs, inside


@triton.jit
def weights_inside(
    weights, top, own, b, running, like: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, LEVELS: tl.constexpr
):
    """`weights` and s_ij of the pairs of a tile, (ROWS, ROWS); nothing of a later key is in a row, not even times 0."""
    diagonal = tl.arange(0, ROWS)[:, None] == tl.arange(0, ROWS)[None, :]
    weights += tl.where(diagonal, tl.sum(own, 1)[:, None], 0.0)
    inside = b
    for level in range(LEVELS):
        f, g, pairs, inside = halves(top, b, running, inside, level, ROWS, COLUMNS)
        weights += tl.where(pairs, product(f, tl.trans(g), like), 0.0)
    return weights


@triton.jit
def with_tile(c, s, z, b, values, like: tl.constexpr, always):
    """The state after a tile, from that before it; `always` as in `plus_product`."""
    higher = tl.maximum(c, tl.max(b, 0))
    g = rounded(tl.exp(b - finite(higher)[None, :]), like)
    kept = decay(c, higher)
    s = plus_product(s * kept[:, None], tl.trans(g), values, like, always)
    return higher, s, z * kept + tl.sum(g, 0)


@triton.jit
def without_poison(values):
    """Finite values: 0 x NaN would reach earlier rows of the tile."""
    return tl.where(tl.abs(values) < float("inf"), values, 0.0)


@triton.jit
def copy_states(
    source, at, target, own, e, D: tl.constexpr, E: tl.constexpr, COLUMNS: tl.constexpr, SLICES: tl.constexpr
):
    for i in range(SLICES):
        column = i * COLUMNS + tl.arange(0, COLUMNS)
        s, z = load_sums(source, at, column, e, D, E)
        store_state(target, own, load_maximum(source, at, column, D), s, z, column, e, D, E)
    tl.debug_barrier()


@triton.jit
def raised(m, a, running):
    """The largest exponent of each row so far, with those of one more slice, and by what sums relative to m shrink."""
    higher = tl.maximum(m, tl.max(a + running, 1))
    return higher, tl.exp(m - finite(higher))


@triton.jit
def causal_outputs(
    q, k, v, alpha, beta, bias, mask, before, kept, out, stretches, groups,
    D: tl.constexpr, E: tl.constexpr, COLUMNS: tl.constexpr, VALUES: tl.constexpr, ROWS: tl.constexpr,
    LEVELS: tl.constexpr, SLICES: tl.constexpr,
):  # fmt: skip
    """`before`: the states before each stretch. Grid: stretches, query heads."""
    index, head, heads, key_head = tl.program_id(0), tl.program_id(1), tl.num_programs(1), tl.program_id(1) // groups
    e = tl.arange(0, VALUES)
    sequence, batch, first, stop = stretch_at(stretches, index)
    like: tl.constexpr = q.data.dtype.element_ty
    at, own = index * (heads // groups) + key_head, index * heads + head
    if SLICES == 1:
        column = tl.arange(0, COLUMNS)
        c = load_maximum(before, at, column, D)
        s, z = load_sums(before, at, column, e, D, E)
    else:  # these names are not defined here, or the loop would carry them in registers
        copy_states(before, at, kept, own, e, D, E, COLUMNS, SLICES)
    for start in range(first, stop, ROWS):
        row = start + tl.arange(0, ROWS)
        there = row < stop
        counts = counting(mask, batch, row, stop)
        values = read(v, batch, key_head, row, e, counts[:, None] & (e < E)[None, :])
        m = tl.full([ROWS], float("-inf"), tl.float32)
        weights, denominator = tl.zeros([ROWS, ROWS], tl.float32), tl.zeros([ROWS], tl.float32)
        numerator = tl.zeros([ROWS, VALUES], tl.float32)
        for i in range(SLICES):
            if SLICES > 1:
                column = i * COLUMNS + tl.arange(0, COLUMNS)
                c = load_maximum(kept, own, column, D)
                s, z = load_sums(kept, own, column, e, D, E)
            a, b, running = exponents(
                q, k, alpha, beta, bias, sequence, batch, head, key_head, row, column, there, counts, c,
                D, ROWS, COLUMNS, LEVELS,
            )  # fmt: skip
            m, moved = raised(m, a, running)
            weights, denominator = weights * moved[:, None], denominator * moved
            numerator = numerator * moved[:, None]
            top, f, itself = row_features(a, b, c, running, m)
            f = rounded(f, like)
            weights = weights_inside(weights, top, itself, b, running, like, ROWS, COLUMNS, LEVELS)
            numerator = plus_product(numerator, f, s, like, start < stop)
            denominator += tl.sum(f * z[None, :], 1)
            c, s, z = with_tile(c, s, z, b, values, like, start < stop)
            if SLICES > 1:
                tl.debug_barrier()
                store_state(kept, own, c, s, z, column, e, D, E)
        weights = rounded(weights, like)
        clean = without_poison(values)
        poison = tl.cumsum((values - clean).to(tl.float32), 0)
        numerator = plus_product(numerator, weights, clean, like, start < stop)
        denominator += tl.sum(weights, 1)
        # No key yet: the numerator is 0 too.
        found = numerator / tl.where(denominator == 0.0, 1.0, denominator)[:, None] + poison
        tl.store(place(out, batch, head, row, e), found, mask=there[:, None] & (e < E)[None, :])
        if SLICES > 1:
            tl.debug_barrier()
