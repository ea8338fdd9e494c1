"""Gradients of causal LLN attention, with the features of `lln.ops.gpu.causal` and e_i = dout_i . out_i:

    da_i = sum_j s_ij (dout_i . v_j - e_i) / den_i per feature,  db_j likewise over i,  dv_j = sum_i s_ij dout_i / den_i

The queries' pass goes forward with the state S, z before each tile, and the keys' pass goes back with the gradient of the state
after it. Both are cut into slices as the outputs are. dS of a program is summed where it is going to be read; the gradient of
the state waits in `after`.
"""

import triton
import triton.language as tl

from lln.ops.gpu.causal import (
    copy_states,
    exponents,
    exponents_of_queries,
    halves,
    raised,
    row_features,
    weights_inside,
    with_tile,
)
from lln.ops.gpu.pieces import (
    counting,
    decay,
    finite,
    place,
    plus_product,
    product,
    read,
    read_gradient,
    rounded,
    running_maximum,
    scale,
)
from lln.ops.gpu.plan import stretch_at
from lln.ops.gpu.states import exponents_of_keys, load_maximum, load_sums, store_state
from lln.ops.gpu.sums import store_sums


@triton.jit
def slopes_of_pairs(
    offset, grad, weight, v, batch, head, key_head, row, there, counts, like: tl.constexpr,
    E: tl.constexpr, VALUES: tl.constexpr, ROWS: tl.constexpr, MOST: tl.constexpr,
):  # fmt: skip
    """offset_i + dout_i . v_j of a tile, MOST columns at a time: every warp has both operands of so small a product whole."""
    PART: tl.constexpr = min(VALUES, MOST)
    found = tl.broadcast_to(offset[:, None], [ROWS, ROWS])
    for some in range(0, VALUES, PART):
        e = some + tl.arange(0, PART)
        dout = read_gradient(grad, weight, batch, head, row, e, there, there[:, None] & (e < E)[None, :], False)
        values = read(v, batch, key_head, row, e, counts[:, None] & (e < E)[None, :])
        found += product(dout, tl.trans(values), like)
    return found


@triton.jit
def causal_query_gradients(
    q, k, v, alpha, beta, bias, mask, before, kept, out, grad, weight, dq, dstate, dalpha, dbias, maxima, rates,
    stretches, groups,
    D: tl.constexpr, E: tl.constexpr, COLUMNS: tl.constexpr, VALUES: tl.constexpr, ROWS: tl.constexpr,
    LEVELS: tl.constexpr, SLICES: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """dq, each stretch's part of the gradient of the state before it, of dalpha and dbias, and what the keys' pass needs:

    `maxima` (tiles, Hk, D), the maximum before each tile; `rates` (B, Hq, N, 3), m_i, 1 / den_i and e_i. Grid: stretches,
    query heads.
    """
    index, head, heads, key_head = tl.program_id(0), tl.program_id(1), tl.num_programs(1), tl.program_id(1) // groups
    e = tl.arange(0, VALUES)
    sequence, batch, first, stop = stretch_at(stretches, index)
    like: tl.constexpr = q.data.dtype.element_ty
    at, own = index * (heads // groups) + key_head, (index * heads + head).to(tl.int64)
    if SLICES == 1:
        column = tl.arange(0, COLUMNS)
        c = load_maximum(before, at, column, D)
        s, z = load_sums(before, at, column, e, D, E)
        ds, dz = tl.zeros([COLUMNS, VALUES], tl.float32), tl.zeros([COLUMNS], tl.float32)
        dfactor, doffset = tl.zeros([COLUMNS], tl.float32), tl.zeros([COLUMNS], tl.float32)
    else:  # these names are not defined here, or the loop would carry them in registers
        copy_states(before, at, kept, own, e, D, E, COLUMNS, SLICES)
        for i in range(SLICES):
            some, none = i * COLUMNS + tl.arange(0, COLUMNS), tl.zeros([COLUMNS], tl.float32)
            nothing = tl.zeros([COLUMNS, VALUES], tl.float32)
            store_parts(dstate, dalpha, dbias, own, nothing, none, none, none, some, e, D, E)
        tl.debug_barrier()
    for start in range(first, stop, ROWS):
        row = start + tl.arange(0, ROWS)
        there = row < stop
        counts = counting(mask, batch, row, stop)
        m = tl.full([ROWS], float("-inf"), tl.float32)
        weights, denominator = tl.zeros([ROWS, ROWS], tl.float32), tl.zeros([ROWS], tl.float32)
        for i in range(SLICES):
            if SLICES > 1:
                column = i * COLUMNS + tl.arange(0, COLUMNS)
                c = load_maximum(kept, own, column, D)
                z = tl.load(kept.normaliser + own * D + column, mask=column < D, other=0.0)
            a, b, running = exponents(
                q, k, alpha, beta, bias, sequence, batch, head, key_head, row, column, there, counts, c,
                D, ROWS, COLUMNS, LEVELS,
            )  # fmt: skip
            m, moved = raised(m, a, running)
            weights, denominator = weights * moved[:, None], denominator * moved
            top, f, itself = row_features(a, b, c, running, m)
            weights = weights_inside(weights, top, itself, b, running, like, ROWS, COLUMNS, LEVELS)
            denominator += tl.sum(rounded(f, like) * z[None, :], 1)
        denominator += tl.sum(rounded(weights, like), 1)
        rate = 1.0 / tl.where(denominator == 0.0, 1.0, denominator)
        values = read(v, batch, key_head, row, e, counts[:, None] & (e < E)[None, :])
        written = there[:, None] & (e < E)[None, :]
        dout = read_gradient(grad, weight, batch, head, row, e, there, written, False)
        mean = tl.sum(dout.to(tl.float32) * read(out, batch, head, row, e, written).to(tl.float32), 1)
        at_row = rates + ((batch.to(tl.int64) * heads + head) * stretches.length + row) * 3
        tl.store(at_row, m, mask=there)
        tl.store(at_row + 1, rate, mask=there)
        tl.store(at_row + 2, mean, mask=there)
        by_itself = tl.sum(dout.to(tl.float32) * values.to(tl.float32), 1) - mean
        slopes = slopes_of_pairs(
            -mean, grad, weight, v, batch, head, key_head, row, there, counts, like, E, VALUES, ROWS, 64
        )
        tile = (index * TILES + (start - first) // ROWS).to(tl.int64) * (heads // groups) + key_head
        for i in range(SLICES):
            if SLICES > 1:
                column = i * COLUMNS + tl.arange(0, COLUMNS)
                c = load_maximum(kept, own, column, D)
                s, z = load_sums(kept, own, column, e, D, E)
                # Read anew for each slice: as operands of products they would be held in registers in four forms.
                dout = read_gradient(grad, weight, batch, head, row, e, there, written, False)
                values = read(v, batch, key_head, row, e, counts[:, None] & (e < E)[None, :])
            inside = there[:, None] & (column < D)[None, :]
            a, b, running = exponents(
                q, k, alpha, beta, bias, sequence, batch, head, key_head, row, column, there, counts, c,
                D, ROWS, COLUMNS, LEVELS,
            )  # fmt: skip
            top, f, itself = row_features(a, b, c, running, m)
            da = f * plus_product(-mean[:, None] * z[None, :], dout, tl.trans(s), like, start < stop)
            da += itself * by_itself[:, None]
            blocks = b
            for level in range(LEVELS):
                near, g, pairs, blocks = halves(top, b, running, blocks, level, ROWS, COLUMNS)
                da += near * product(tl.where(pairs, slopes, 0.0), g, like)
            da = da * rate[:, None]
            by_alpha = scale(alpha, sequence, head, column, D)
            tl.store(place(dq, batch, head, row, column), da * by_alpha[None, :], mask=inside)
            tl.store(maxima + tile * D + column, c, mask=(column < D) & (head % groups == 0))
            if SLICES > 1:
                s, z = load_sums(kept, own, column, e, D, E)
            c, s, z = with_tile(c, s, z, b, values, like, start < stop)
            if SLICES > 1:
                tl.debug_barrier()
                store_state(kept, own, c, s, z, column, e, D, E)
                ds, dz = load_sums(dstate, own, column, e, D, E)
                dfactor = tl.load(dalpha + own * D + column, mask=column < D, other=0.0)
                doffset = tl.load(dbias + own * D + column, mask=column < D, other=0.0)
            dfactor += tl.sum(da * read(q, batch, head, row, column, inside).to(tl.float32), 0)
            doffset += tl.sum(tl.where(there[:, None], da, 0.0), 0)
            share = top * decay(load_maximum(before, at, column, D)[None, :], running) * rate[:, None]
            ds = plus_product(ds, tl.trans(share), dout, like, start < stop)
            dz -= tl.sum(share * mean[:, None], 0)
            if SLICES > 1:
                tl.debug_barrier()
                store_parts(dstate, dalpha, dbias, own, ds, dz, dfactor, doffset, column, e, D, E)
        if SLICES > 1:
            tl.debug_barrier()
    if SLICES == 1:
        store_parts(dstate, dalpha, dbias, own, ds, dz, dfactor, doffset, column, e, D, E)


@triton.jit
def store_parts(dstate, dalpha, dbias, own, ds, dz, dfactor, doffset, column, e, D: tl.constexpr, E: tl.constexpr):
    store_sums(dstate, own, ds, dz, column, e, D, E)
    tl.store(dalpha + own * D + column, dfactor, mask=column < D)
    tl.store(dbias + own * D + column, doffset, mask=column < D)


@triton.jit
def causal_key_gradients(
    q, k, v, alpha, beta, bias, mask, after, grad, weight, maxima, rates, dk, dv, dbeta, stretches, groups,
    D: tl.constexpr, E: tl.constexpr, COLUMNS: tl.constexpr, VALUES: tl.constexpr, ROWS: tl.constexpr,
    LEVELS: tl.constexpr, SLICES: tl.constexpr, TILES: tl.constexpr, ANEW: tl.constexpr,
):  # fmt: skip
    """dk, dv and each stretch's part of dbeta, tile by tile from the last. Grid: stretches, key heads.

    `after`: the gradient of the state after each stretch, relative to the maximum there.
    """
    index, key_head, key_heads = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    e = tl.arange(0, VALUES)
    sequence, batch, first, stop = stretch_at(stretches, index)
    like: tl.constexpr = q.data.dtype.element_ty
    own = (index * key_heads + key_head).to(tl.int64)
    if SLICES == 1:
        column = tl.arange(0, COLUMNS)
        ds, dz = load_sums(after, own, column, e, D, E)
        dfactor = tl.zeros([COLUMNS], tl.float32)
    else:
        for i in range(SLICES):
            some = i * COLUMNS + tl.arange(0, COLUMNS)
            tl.store(dbeta + own * D + some, tl.zeros([COLUMNS], tl.float32), mask=some < D)
        tl.debug_barrier()
    diagonal = tl.arange(0, ROWS)[:, None] == tl.arange(0, ROWS)[None, :]
    tiles = (stop - first + ROWS - 1) // ROWS
    for done in range(tiles):
        number = tiles - 1 - done
        row = first + number * ROWS + tl.arange(0, ROWS)
        there = row < stop
        counts = counting(mask, batch, row, stop)
        tile = (index * TILES + number).to(tl.int64) * key_heads + key_head
        values = read(v, batch, key_head, row, e, counts[:, None] & (e < E)[None, :])
        dvalues = tl.zeros([ROWS, VALUES], tl.float32)
        for i in tl.range(SLICES, disable_licm=ANEW):
            if SLICES > 1:
                column = i * COLUMNS + tl.arange(0, COLUMNS)
                ds, dz = load_sums(after, own, column, e, D, E)
                dfactor = tl.load(dbeta + own * D + column, mask=column < D, other=0.0)
            c = tl.load(maxima + tile * D + column, mask=column < D, other=float("-inf"))
            by_beta = scale(beta, sequence, key_head, column, D)
            b = exponents_of_keys(k, by_beta, batch, key_head, row, column, counts, D)
            higher = tl.maximum(c, tl.max(b, 0))
            g = tl.exp(b - finite(higher)[None, :])
            db = tl.broadcast_to(dz[None, :], [ROWS, COLUMNS])
            db = g * plus_product(db, values, tl.trans(ds), like, first < stop)
            dvalues = plus_product(dvalues, g, ds, like, first < stop)
            running = tl.maximum(running_maximum(b, ROWS, COLUMNS, LEVELS), c[None, :])
            passed = decay(c, higher)
            ds, dz = ds * passed[:, None], dz * passed
            for group in range(groups):
                head = key_head * groups + group
                a = exponents_of_queries(q, alpha, bias, sequence, batch, head, row, column, there, D)
                dout = read_gradient(grad, weight, batch, head, row, e, there, there[:, None] & (e < E)[None, :], False)
                at_row = rates + ((batch.to(tl.int64) * key_heads * groups + head) * stretches.length + row) * 3
                m = tl.load(at_row, mask=there, other=float("inf"))  # no features where there is no row
                rate = tl.load(at_row + 1, mask=there, other=0.0)[:, None]
                mean = tl.load(at_row + 2, mask=there, other=0.0)[:, None]
                top, f, itself = row_features(a, b, c, running, m)
                top, f, itself = top * rate, f * rate, itself * rate
                db += itself * (tl.sum(dout.to(tl.float32) * values.to(tl.float32), 1)[:, None] - mean)
                slopes = slopes_of_pairs(
                    tl.sum(-mean, 1), grad, weight, v, batch, head, key_head, row, there, counts, like, E, VALUES, ROWS,
                    32,
                )  # fmt: skip
                weights = tl.where(diagonal, tl.sum(itself, 1)[:, None], 0.0)
                blocks = b
                for level in range(LEVELS):
                    near, other, pairs, blocks = halves(top, b, running, blocks, level, ROWS, COLUMNS)
                    sloped = tl.trans(tl.where(pairs, slopes, 0.0))
                    db += other * plus_product(tl.zeros([ROWS, COLUMNS], tl.float32), sloped, near, like, first < stop)
                    weights += tl.where(pairs, product(near, tl.trans(other), like), 0.0)
                dvalues = plus_product(dvalues, tl.trans(weights), dout, like, first < stop)
                ds = plus_product(ds, tl.trans(f), dout, like, first < stop)
                dz -= tl.sum(f * mean, 0)
            inside = there[:, None] & (column < D)[None, :]
            tl.store(place(dk, batch, key_head, row, column), db * by_beta[None, :], mask=inside)
            keys = read(k, batch, key_head, row, column, counts[:, None] & (column < D)[None, :]).to(tl.float32)
            dfactor += tl.sum(db * keys, 0)
            if SLICES > 1:
                tl.debug_barrier()
                store_sums(after, own, ds, dz, column, e, D, E)
                tl.store(dbeta + own * D + column, dfactor, mask=column < D)
        tl.store(place(dv, batch, key_head, row, e), dvalues, mask=there[:, None] & (e < E)[None, :])
        if SLICES > 1:
            tl.debug_barrier()
    if SLICES == 1:
        tl.store(dbeta + own * D + column, dfactor, mask=column < D)
