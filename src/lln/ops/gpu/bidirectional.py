"""Bidirectional LLN attention from the state of all keys. With c, S, z as in `lln.ops.gpu.states` and a_i = alpha q_i + w:

    f_i = exp(a_i + c - m_i), m_i = max_l (a_il + c_l),     den_i = f_i . z,     out_i = f_i S / den_i
    p_i = f_i / den_i,  e_i = dout_i . out_i:               da_i = p_i * (S dout_i - e_i z)
    dS  = sum_i p_i dout_i^T,  dz = -sum_i p_i e_i
    g_j = exp(b_j - c):                                     db_j = g_j * (dS v_j + dz),   dv_j = g_j dS

The head is cut into SLICES of COLUMNS features where a state would not fit into registers otherwise.
"""

import triton
import triton.language as tl

from lln.ops.gpu.pieces import counting, finite, place, plus_product, product, read, read_gradient, rounded, scale
from lln.ops.gpu.plan import stretch_at
from lln.ops.gpu.states import exponents_of_keys, load_maximum, load_sums


@triton.jit
def exponents_of_queries(q, alpha, bias, state, sequence, batch, head, own, row, column, there, D: tl.constexpr):
    """q, and a + c, -inf for columns that are not features."""
    queries = read(q, batch, head, row, column, there[:, None] & (column < D)[None, :]).to(tl.float32)
    offset = scale(bias, sequence, head, column, D) + finite(load_maximum(state, own, column, D))
    a = queries * scale(alpha, sequence, head, column, D)[None, :] + offset[None, :]
    return queries, tl.where((column < D)[None, :], a, float("-inf"))


@triton.jit
def lln_rows(
    q, alpha, bias, state, sequence, batch, head, own, row, there, e,
    D: tl.constexpr, E: tl.constexpr, COLUMNS: tl.constexpr, VALUES: tl.constexpr, ROWS: tl.constexpr,
    SLICES: tl.constexpr,
):  # fmt: skip
    """out_i of a tile of rows."""
    like: tl.constexpr = q.data.dtype.element_ty
    m = tl.full([ROWS], float("-inf"), tl.float32)
    numerator, denominator = tl.zeros([ROWS, VALUES], tl.float32), tl.zeros([ROWS], tl.float32)
    for i in range(SLICES):
        column = i * COLUMNS + tl.arange(0, COLUMNS)
        _, a = exponents_of_queries(q, alpha, bias, state, sequence, batch, head, own, row, column, there, D)
        s, z = load_sums(state, own, column, e, D, E)
        higher = tl.maximum(m, tl.max(a, 1))
        f = rounded(tl.exp(a - higher[:, None]), like)
        kept = tl.exp(m - higher)
        numerator = numerator * kept[:, None] + product(f, s.to(tl.float32), like)
        denominator = denominator * kept + tl.sum(f * z.to(tl.float32)[None, :], 1)
        m = higher
    # No key counts: the numerator is 0 too.
    return numerator / tl.where(denominator == 0.0, 1.0, denominator)[:, None]


@triton.jit
def outputs(
    q, alpha, bias, state, out, stretches, groups,
    D: tl.constexpr, E: tl.constexpr, COLUMNS: tl.constexpr, VALUES: tl.constexpr, ROWS: tl.constexpr,
    SLICES: tl.constexpr,
):  # fmt: skip
    """Grid: stretches of queries, query heads."""
    index, head = tl.program_id(0), tl.program_id(1)
    sequence, batch, first, stop = stretch_at(stretches, index)
    own = sequence * (tl.num_programs(1) // groups) + head // groups
    e = tl.arange(0, VALUES)
    for start in range(first, stop, ROWS):
        row = start + tl.arange(0, ROWS)
        there = row < stop
        found = lln_rows(
            q, alpha, bias, state, sequence, batch, head, own, row, there, e, D, E, COLUMNS, VALUES, ROWS, SLICES
        )
        tl.store(place(out, batch, head, row, e), found, mask=there[:, None] & (e < E)[None, :])


@triton.jit
def query_gradients(
    q, alpha, bias, state, out, grad, weight, dq, dstate, dalpha, dbias, stretches, groups,
    D: tl.constexpr, E: tl.constexpr, COLUMNS: tl.constexpr, VALUES: tl.constexpr, ROWS: tl.constexpr,
    SLICES: tl.constexpr,
):  # fmt: skip
    """dq, and each stretch's part of dS, dz, dalpha and dbias. Grid: stretches of queries, query heads, SLICES."""
    index, head, heads = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    sequence, batch, first, stop = stretch_at(stretches, index)
    own = sequence * (heads // groups) + head // groups
    column, e = tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS), tl.arange(0, VALUES)
    like: tl.constexpr = q.data.dtype.element_ty
    ds, dz = tl.zeros([COLUMNS, VALUES], tl.float32), tl.zeros([COLUMNS], tl.float32)
    dfactor, doffset = tl.zeros([COLUMNS], tl.float32), tl.zeros([COLUMNS], tl.float32)
    for start in range(first, stop, ROWS):
        row = start + tl.arange(0, ROWS)
        there = row < stop
        queries, a = exponents_of_queries(q, alpha, bias, state, sequence, batch, head, own, row, column, there, D)
        m = tl.max(a, 1)
        if SLICES > 1:
            for i in tl.static_range(SLICES):
                other = i * COLUMNS + tl.arange(0, COLUMNS)
                _, more = exponents_of_queries(q, alpha, bias, state, sequence, batch, head, own, row, other, there, D)
                m = tl.maximum(m, tl.max(more, 1))
        # State and scales are read anew for each tile: kept over the loop, they would take registers that tiles need.
        s, z = load_sums(state, own, column, e, D, E)
        s, z = s.to(tl.float32), z.to(tl.float32)
        f = rounded(tl.exp(a - m[:, None]), like)
        denominator = tl.sum(f * z[None, :], 1)
        if SLICES > 1:
            denominator = tl.zeros([ROWS], tl.float32)
            for i in tl.static_range(SLICES):
                other = i * COLUMNS + tl.arange(0, COLUMNS)
                _, more = exponents_of_queries(q, alpha, bias, state, sequence, batch, head, own, row, other, there, D)
                total = tl.load(state.normaliser + own.to(tl.int64) * D + other, mask=other < D, other=0.0)
                denominator += tl.sum(rounded(tl.exp(more - m[:, None]), like) * total.to(tl.float32)[None, :], 1)
        inside = there[:, None] & (e < E)[None, :]
        dout = read_gradient(grad, weight, batch, head, row, e, there, inside, False)
        level = tl.sum(dout.to(tl.float32) * read(out, batch, head, row, e, inside).to(tl.float32), 1)
        p = f / tl.where(denominator == 0.0, 1.0, denominator)[:, None]
        da = p * (product(dout, tl.trans(s), like) - level[:, None] * z[None, :])
        factor = scale(alpha, sequence, head, column, D)
        tl.store(place(dq, batch, head, row, column), da * factor[None, :], mask=there[:, None] & (column < D)[None, :])
        ds = plus_product(ds, tl.trans(p), dout, like, start < stop)
        dz -= tl.sum(p * level[:, None], 0)
        dfactor += tl.sum(da * queries, 0)
        doffset += tl.sum(tl.where(there[:, None], da, 0.0), 0)
    at = (index * heads + head).to(tl.int64)
    kept = column < D
    tl.store(dstate.summed + at * D * E + column[:, None] * E + e[None, :], ds, mask=kept[:, None] & (e < E)[None, :])
    tl.store(dstate.normaliser + at * D + column, dz, mask=kept)
    tl.store(dalpha + at * D + column, dfactor, mask=kept)
    tl.store(dbias + at * D + column, doffset, mask=kept)


@triton.jit
def key_gradients(
    k, v, beta, mask, state, dstate, dk, dv, dbeta, stretches,
    D: tl.constexpr, E: tl.constexpr, COLUMNS: tl.constexpr, VALUES: tl.constexpr, ROWS: tl.constexpr,
    SLICES: tl.constexpr, OF_KEYS: tl.constexpr, OF_VALUES: tl.constexpr,
):  # fmt: skip
    """dk and each stretch's part of dbeta, or dv, or both. Grid: stretches of keys, key heads, and slices for keys alone.

    SLICES is how many slices one program goes through: all for values, whose gradient is a sum over features, else one.
    """
    index, head, heads = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    sequence, batch, first, stop = stretch_at(stretches, index)
    own = sequence * heads + head
    e = tl.arange(0, VALUES)
    like: tl.constexpr = k.data.dtype.element_ty
    dfactor = tl.zeros([COLUMNS], tl.float32)
    for start in range(first, stop, ROWS):
        row = start + tl.arange(0, ROWS)
        there = row < stop
        counts = counting(mask, batch, row, stop)
        inside = (e < E)[None, :]
        dvalues = tl.zeros([ROWS, VALUES], tl.float32)
        for i in tl.static_range(SLICES):
            column = (tl.program_id(2) + i) * COLUMNS + tl.arange(0, COLUMNS)
            factor = scale(beta, sequence, head, column, D)
            b = exponents_of_keys(k, factor, batch, head, row, column, counts, D)
            g = tl.exp(b - finite(load_maximum(state, own, column, D))[None, :])
            ds, dz = load_sums(dstate, own, column, e, D, E)
            if OF_KEYS:
                values = read(v, batch, head, row, e, counts[:, None] & inside)
                db = g * (product(values, tl.trans(ds), like) + dz[None, :])
                kept = there[:, None] & (column < D)[None, :]
                tl.store(place(dk, batch, head, row, column), db * factor[None, :], mask=kept)
                keys = read(k, batch, head, row, column, counts[:, None] & (column < D)[None, :]).to(tl.float32)
                dfactor += tl.sum(db * keys, 0)
            if OF_VALUES:
                dvalues = plus_product(dvalues, g, ds, like, start < stop)
        if OF_VALUES:
            tl.store(place(dv, batch, head, row, e), dvalues, mask=there[:, None] & inside)
    if OF_KEYS:
        column = tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
        tl.store(dbeta + (index * heads + head).to(tl.int64) * D + column, dfactor, mask=column < D)
