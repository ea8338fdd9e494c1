"""Causal LLN attention, stretch by stretch from the state before it, with no shift that depends on a later key.

With M_i = max_{j <= i} b_j (per feature), row i has the features h_i = exp(a_i + M_i - m_i), m_i = max_l (a_il + M_il).
Relative to c, the maximum before a tile of rows, its keys come in three kinds.

    before the tile   through their sums S, z relative to c:      f_i = h_i exp(c - M_i)
    in the same tile  by halves, for blocks of 2, 4, ... rows: a row of a second half sees the keys of the first half
                      relative to r, the maximum over that half:  f_i = h_i exp(r - M_i),  g_j = exp(b_j - r),  s_ij = f_i . g_j
    itself            s_ii = h_i . exp(b_i - M_i)

Since b_j <= r <= M_i, every exponential is at most 1, whatever the inputs. Each pair j < i meets at one level, that of the
highest bit in which i and j differ. Gradients are as in `lln.ops.lln.op`, with e_i = dout_i . out_i:

    da_i = sum_j s_ij (dout_i . v_j - e_i) / den_i per feature,  db_j likewise over i,  dv_j = sum_i s_ij dout_i / den_i
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
from lln.ops.gpu.states import exponents_of_keys, load_maximum, load_sums
from lln.ops.gpu.sums import store_sums

# Scales are read anew for each tile: kept over the loop, they would take registers that tiles need.


@triton.jit
def exponents_of_queries(q, alpha, bias, sequence, batch, head, row, column, there, D: tl.constexpr):
    """a = alpha q + w."""
    queries = read(q, batch, head, row, column, there[:, None] & (column < D)[None, :]).to(tl.float32)
    a = queries * scale(alpha, sequence, head, column, D)[None, :]
    return a + scale(bias, sequence, head, column, D)[None, :]


@triton.jit
def row_features(a, b, c, ROWS: tl.constexpr, COLUMNS: tl.constexpr, LEVELS: tl.constexpr):
    """M, h, and the features towards the keys before the tile and towards the row's own key."""
    running = tl.maximum(running_maximum(b, ROWS, COLUMNS, LEVELS), c[None, :])
    exponent = a + running
    top = tl.exp(exponent - finite(tl.max(exponent, 1))[:, None])
    return running, top, top * decay(c[None, :], running), top * tl.exp(b - finite(running))


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
    top, own, b, running, like: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, LEVELS: tl.constexpr
):
    """s_ij of the pairs of a tile, (ROWS, ROWS); nothing of a later key is in a row, not even times 0."""
    diagonal = tl.arange(0, ROWS)[:, None] == tl.arange(0, ROWS)[None, :]
    weights = tl.where(diagonal, tl.sum(own, 1)[:, None], 0.0)
    inside = b
    for level in range(LEVELS):
        f, g, pairs, inside = halves(top, b, running, inside, level, ROWS, COLUMNS)
        weights += tl.where(pairs, product(f, tl.trans(g), like), 0.0)
    return rounded(weights, like)


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
def causal_outputs(
    q, k, v, alpha, beta, bias, mask, before, out, stretches, groups,
    D: tl.constexpr, E: tl.constexpr, COLUMNS: tl.constexpr, VALUES: tl.constexpr, ROWS: tl.constexpr,
    LEVELS: tl.constexpr,
):  # fmt: skip
    """`before`: the states before each stretch. Grid: stretches, query heads, slices of VALUES columns of the values."""
    index, head, key_head = tl.program_id(0), tl.program_id(1), tl.program_id(1) // groups
    column, e = tl.arange(0, COLUMNS), tl.program_id(2) * VALUES + tl.arange(0, VALUES)
    sequence, batch, first, stop = stretch_at(stretches, index)
    like: tl.constexpr = q.data.dtype.element_ty
    at = index * (tl.num_programs(1) // groups) + key_head
    c = load_maximum(before, at, column, D)
    s, z = load_sums(before, at, column, e, D, E)
    for start in range(first, stop, ROWS):
        row = start + tl.arange(0, ROWS)
        there = row < stop
        counts = counting(mask, batch, row, stop)
        a = exponents_of_queries(q, alpha, bias, sequence, batch, head, row, column, there, D)
        b = exponents_of_keys(k, scale(beta, sequence, key_head, column, D), batch, key_head, row, column, counts, D)
        values = read(v, batch, key_head, row, e, counts[:, None] & (e < E)[None, :])
        running, top, f, own = row_features(a, b, c, ROWS, COLUMNS, LEVELS)
        f = rounded(f, like)
        weights = weights_inside(top, own, b, running, like, ROWS, COLUMNS, LEVELS)
        clean = without_poison(values)
        poison = tl.cumsum((values - clean).to(tl.float32), 0)
        numerator = plus_product(tl.zeros([ROWS, VALUES], tl.float32), f, s, like, start < stop)
        numerator = plus_product(numerator, weights, clean, like, start < stop)
        denominator = tl.sum(f * z[None, :], 1) + tl.sum(weights, 1)
        # No key yet: the numerator is 0 too.
        found = numerator / tl.where(denominator == 0.0, 1.0, denominator)[:, None] + poison
        tl.store(place(out, batch, head, row, e), found, mask=there[:, None] & (e < E)[None, :])
        c, s, z = with_tile(c, s, z, b, values, like, start < stop)


@triton.jit
def causal_query_gradients(
    q, k, v, alpha, beta, bias, mask, before, out, grad, dq, dstate, dalpha, dbias, maxima, rates, stretches, groups,
    D: tl.constexpr, E: tl.constexpr, COLUMNS: tl.constexpr, VALUES: tl.constexpr, ROWS: tl.constexpr,
    LEVELS: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """dq, each stretch's part of the gradient of the state before it, of dalpha and dbias, and what the keys' pass needs:

    `maxima` (tiles, Hk, D), the maximum before each tile; `rates` (B, Hq, N, 2), 1 / den_i and e_i. Grid: stretches, query
    heads.
    """
    index, head, heads, key_head = tl.program_id(0), tl.program_id(1), tl.num_programs(1), tl.program_id(1) // groups
    column, e = tl.arange(0, COLUMNS), tl.arange(0, VALUES)
    sequence, batch, first, stop = stretch_at(stretches, index)
    like: tl.constexpr = q.data.dtype.element_ty
    at = index * (heads // groups) + key_head
    c = load_maximum(before, at, column, D)
    s, z = load_sums(before, at, column, e, D, E)
    ds, dz = tl.zeros([COLUMNS, VALUES], tl.float32), tl.zeros([COLUMNS], tl.float32)
    dfactor, doffset = tl.zeros([COLUMNS], tl.float32), tl.zeros([COLUMNS], tl.float32)
    for start in range(first, stop, ROWS):
        row = start + tl.arange(0, ROWS)
        there = row < stop
        counts = counting(mask, batch, row, stop)
        inside = there[:, None] & (column < D)[None, :]
        a = exponents_of_queries(q, alpha, bias, sequence, batch, head, row, column, there, D)
        b = exponents_of_keys(k, scale(beta, sequence, key_head, column, D), batch, key_head, row, column, counts, D)
        values = read(v, batch, key_head, row, e, counts[:, None] & (e < E)[None, :])
        running, top, f, own = row_features(a, b, c, ROWS, COLUMNS, LEVELS)
        weights = weights_inside(top, own, b, running, like, ROWS, COLUMNS, LEVELS)
        denominator = tl.sum(rounded(f, like) * z[None, :], 1) + tl.sum(weights, 1)
        rate = 1.0 / tl.where(denominator == 0.0, 1.0, denominator)
        written = there[:, None] & (e < E)[None, :]
        dout = read(grad, batch, head, row, e, written)
        mean = tl.sum(dout.to(tl.float32) * read(out, batch, head, row, e, written).to(tl.float32), 1)
        at_row = rates + ((batch.to(tl.int64) * heads + head) * stretches.length + row) * 2
        tl.store(at_row, rate, mask=there)
        tl.store(at_row + 1, mean, mask=there)
        da = f * plus_product(-mean[:, None] * z[None, :], dout, tl.trans(s), like, start < stop)
        da += own * (tl.sum(dout.to(tl.float32) * values.to(tl.float32), 1) - mean)[:, None]
        slopes = tl.broadcast_to(-mean[:, None], [ROWS, ROWS])
        slopes = plus_product(slopes, dout, tl.trans(values), like, start < stop)
        blocks = b
        for level in range(LEVELS):
            near, g, pairs, blocks = halves(top, b, running, blocks, level, ROWS, COLUMNS)
            da += near * product(tl.where(pairs, slopes, 0.0), g, like)
        da = da * rate[:, None]
        by_alpha = scale(alpha, sequence, head, column, D)
        tl.store(place(dq, batch, head, row, column), da * by_alpha[None, :], mask=inside)
        dfactor += tl.sum(da * read(q, batch, head, row, column, inside).to(tl.float32), 0)
        doffset += tl.sum(tl.where(there[:, None], da, 0.0), 0)
        share = top * decay(load_maximum(before, at, column, D)[None, :], running) * rate[:, None]
        ds = plus_product(ds, tl.trans(share), dout, like, start < stop)
        dz -= tl.sum(share * mean[:, None], 0)
        tile = (index * TILES + (start - first) // ROWS).to(tl.int64) * (heads // groups) + key_head
        tl.store(maxima + tile * D + column, c, mask=(column < D) & (head % groups == 0))
        c, s, z = with_tile(c, s, z, b, values, like, start < stop)
    at = (index * heads + head).to(tl.int64)
    store_sums(dstate, at, ds, dz, column, e, D, E)
    tl.store(dalpha + at * D + column, dfactor, mask=column < D)
    tl.store(dbias + at * D + column, doffset, mask=column < D)


@triton.jit
def causal_key_gradients(
    q, k, v, alpha, beta, bias, mask, after, grad, maxima, rates, dk, dv, dbeta, stretches, groups,
    D: tl.constexpr, E: tl.constexpr, COLUMNS: tl.constexpr, VALUES: tl.constexpr, ROWS: tl.constexpr,
    LEVELS: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """dk, dv and each stretch's part of dbeta, tile by tile from the last. Grid: stretches, key heads.

    `after`: the gradient of the state after each stretch, relative to the maximum there.
    """
    index, key_head, key_heads = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    column, e = tl.arange(0, COLUMNS), tl.arange(0, VALUES)
    sequence, batch, first, stop = stretch_at(stretches, index)
    like: tl.constexpr = q.data.dtype.element_ty
    ds, dz = load_sums(after, index * key_heads + key_head, column, e, D, E)
    dfactor = tl.zeros([COLUMNS], tl.float32)
    diagonal = tl.arange(0, ROWS)[:, None] == tl.arange(0, ROWS)[None, :]
    tiles = (stop - first + ROWS - 1) // ROWS
    for done in range(tiles):
        number = tiles - 1 - done
        row = first + number * ROWS + tl.arange(0, ROWS)
        there = row < stop
        counts = counting(mask, batch, row, stop)
        tile = (index * TILES + number).to(tl.int64) * key_heads + key_head
        c = tl.load(maxima + tile * D + column, mask=column < D, other=float("-inf"))
        b = exponents_of_keys(k, scale(beta, sequence, key_head, column, D), batch, key_head, row, column, counts, D)
        values = read(v, batch, key_head, row, e, counts[:, None] & (e < E)[None, :])
        higher = tl.maximum(c, tl.max(b, 0))
        g = tl.exp(b - finite(higher)[None, :])
        db = tl.broadcast_to(dz[None, :], [ROWS, COLUMNS])
        db = g * plus_product(db, values, tl.trans(ds), like, first < stop)
        dvalues = plus_product(tl.zeros([ROWS, VALUES], tl.float32), g, ds, like, first < stop)
        kept = decay(c, higher)
        ds, dz = ds * kept[:, None], dz * kept
        for group in range(groups):
            head = key_head * groups + group
            a = exponents_of_queries(q, alpha, bias, sequence, batch, head, row, column, there, D)
            running, top, f, own = row_features(a, b, c, ROWS, COLUMNS, LEVELS)
            dout = read(grad, batch, head, row, e, there[:, None] & (e < E)[None, :])
            at_row = rates + ((batch.to(tl.int64) * key_heads * groups + head) * stretches.length + row) * 2
            rate = tl.load(at_row, mask=there, other=0.0)[:, None]
            mean = tl.load(at_row + 1, mask=there, other=0.0)[:, None]
            top, f, own = top * rate, f * rate, own * rate
            db += own * (tl.sum(dout.to(tl.float32) * values.to(tl.float32), 1)[:, None] - mean)
            slopes = tl.broadcast_to(-mean, [ROWS, ROWS])
            slopes = plus_product(slopes, dout, tl.trans(values), like, first < stop)
            weights = tl.where(diagonal, tl.sum(own, 1)[:, None], 0.0)
            blocks = b
            for level in range(LEVELS):
                near, other, pairs, blocks = halves(top, b, running, blocks, level, ROWS, COLUMNS)
                sloped = tl.trans(tl.where(pairs, slopes, 0.0))
                db += other * plus_product(tl.zeros([ROWS, COLUMNS], tl.float32), sloped, near, like, first < stop)
                weights += tl.where(pairs, product(near, tl.trans(other), like), 0.0)
            dvalues = plus_product(dvalues, tl.trans(weights), dout, like, first < stop)
            ds = plus_product(ds, tl.trans(f), dout, like, first < stop)
            dz -= tl.sum(f * mean, 0)
        by_beta = scale(beta, sequence, key_head, column, D)
        tl.store(
            place(dk, batch, key_head, row, column), db * by_beta[None, :], mask=there[:, None] & (column < D)[None, :]
        )
        tl.store(place(dv, batch, key_head, row, e), dvalues, mask=there[:, None] & (e < E)[None, :])
        keys = read(k, batch, key_head, row, column, counts[:, None] & (column < D)[None, :]).to(tl.float32)
        dfactor += tl.sum(db * keys, 0)
    tl.store(dbeta + (index * key_heads + key_head).to(tl.int64) * D + column, dfactor, mask=column < D)
