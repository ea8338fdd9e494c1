"""Sums over keys: of each stretch by itself, of a whole sequence, and of all that comes before a stretch.

    c_l = max_j b_jl,    S_l. = sum_j exp(b_jl - c_l) v_j,    z_l = sum_j exp(b_jl - c_l),        b_jl = beta_l k_jl

A stretch is summed in float32, and stretches are added up in float64, in their order: no error grows with the length, and a
repetition gives the same bits.
"""

import triton
import triton.language as tl

from lln.ops.gpu.pieces import counting, decay, finite, product, read, rounded, scale
from lln.ops.gpu.plan import stretch_at, stretches_of


@triton.jit
def exponents_of_keys(k, beta, batch, head, row, column, counts, D: tl.constexpr):
    """b = beta k, -inf for keys that do not count and for columns that are not features."""
    inside = counts[:, None] & (column < D)[None, :]
    keys = read(k, batch, head, row, column, inside).to(tl.float32)
    return tl.where(inside, keys * beta[None, :], float("-inf"))


@triton.jit
def store_state(state, index, c, s, z, column, e, D: tl.constexpr, E: tl.constexpr):
    index = index.to(tl.int64)
    tl.store(state.maximum + index * D + column, c, mask=column < D)
    tl.store(state.normaliser + index * D + column, z, mask=column < D)
    inside = (column < D)[:, None] & (e < E)[None, :]
    tl.store(state.summed + index * D * E + column[:, None] * E + e[None, :], s, mask=inside)


@triton.jit
def load_maximum(state, index, column, D: tl.constexpr):
    return tl.load(state.maximum + index.to(tl.int64) * D + column, mask=column < D, other=float("-inf"))


@triton.jit
def load_sums(state, index, column, e, D: tl.constexpr, E: tl.constexpr):
    """S and z of a state, or of the gradient of one; zeros beyond its sizes."""
    index = index.to(tl.int64)
    inside = (column < D)[:, None] & (e < E)[None, :]
    s = tl.load(state.summed + index * D * E + column[:, None] * E + e[None, :], mask=inside, other=0.0)
    return s, tl.load(state.normaliser + index * D + column, mask=column < D, other=0.0)


@triton.jit
def key_states(
    k, v, beta, mask, parts, stretches,
    D: tl.constexpr, E: tl.constexpr, COLUMNS: tl.constexpr, VALUES: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """The state of each stretch by itself. Grid: stretches, key heads, slices of COLUMNS features."""
    index, head, heads = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    column, e = tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS), tl.arange(0, VALUES)
    sequence, batch, first, stop = stretch_at(stretches, index)
    factor = scale(beta, sequence, head, column, D)
    like: tl.constexpr = v.data.dtype.element_ty
    c = tl.full([COLUMNS], float("-inf"), tl.float32)
    z, s = tl.zeros([COLUMNS], tl.float32), tl.zeros([COLUMNS, VALUES], tl.float32)
    for start in range(first, stop, ROWS):
        row = start + tl.arange(0, ROWS)
        counts = counting(mask, batch, row, stop)
        b = exponents_of_keys(k, factor, batch, head, row, column, counts, D)
        values = read(v, batch, head, row, e, counts[:, None] & (e < E)[None, :])
        higher = tl.maximum(c, tl.max(b, 0))
        g = rounded(tl.exp(b - finite(higher)[None, :]), like)
        kept = decay(c, higher)
        s = s * kept[:, None] + product(tl.trans(g), values, like)
        z, c = z * kept + tl.sum(g, 0), higher
    store_state(parts, index * heads + head, c, s, z, column, e, D, E)


@triton.jit
def merge_states(
    parts, start, final, stretches,
    D: tl.constexpr, E: tl.constexpr, COLUMNS: tl.constexpr, VALUES: tl.constexpr,
):  # fmt: skip
    """The state of each sequence, from those of its stretches and its start. Grid: sequences, key heads, slices."""
    sequence, head, heads = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    column, e = tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS), tl.arange(0, VALUES)
    own = sequence * heads + head
    begin, end = stretches_of(stretches, sequence)
    c = tl.full([COLUMNS], float("-inf"), tl.float32)
    if start is not None:
        c = load_maximum(start, own, column, D)
    before = c
    for index in range(begin, end):
        c = tl.maximum(c, load_maximum(parts, index * heads + head, column, D))
    s, z = tl.zeros([COLUMNS, VALUES], tl.float64), tl.zeros([COLUMNS], tl.float64)
    if start is not None:
        s, z = load_sums(start, own, column, e, D, E)
        kept = decay(before, c).to(tl.float64)
        s, z = s.to(tl.float64) * kept[:, None], z.to(tl.float64) * kept
    for index in range(begin, end):
        part_s, part_z = load_sums(parts, index * heads + head, column, e, D, E)
        moved = decay(load_maximum(parts, index * heads + head, column, D), c).to(tl.float64)
        s, z = s + part_s.to(tl.float64) * moved[:, None], z + part_z.to(tl.float64) * moved
    store_state(final, own, c, s, z, column, e, D, E)


@triton.jit
def prefix_states(
    parts, start, final, stretches,
    D: tl.constexpr, E: tl.constexpr, COLUMNS: tl.constexpr, VALUES: tl.constexpr,
):  # fmt: skip
    """`parts` become the states before each stretch, and `final` that after the last. Grid as of `merge_states`."""
    sequence, head, heads = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    column, e = tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS), tl.arange(0, VALUES)
    own = sequence * heads + head
    begin, end = stretches_of(stretches, sequence)
    c = tl.full([COLUMNS], float("-inf"), tl.float32)
    s, z = tl.zeros([COLUMNS, VALUES], tl.float64), tl.zeros([COLUMNS], tl.float64)
    if start is not None:
        c = load_maximum(start, own, column, D)
        s, z = load_sums(start, own, column, e, D, E)
        s, z = s.to(tl.float64), z.to(tl.float64)
    for index in range(begin, end):
        at = index * heads + head
        part_c = load_maximum(parts, at, column, D)
        part_s, part_z = load_sums(parts, at, column, e, D, E)
        store_state(parts, at, c, s, z, column, e, D, E)
        higher = tl.maximum(c, part_c)
        kept, moved = decay(c, higher).to(tl.float64), decay(part_c, higher).to(tl.float64)
        s = s * kept[:, None] + part_s.to(tl.float64) * moved[:, None]
        z, c = z * kept + part_z.to(tl.float64) * moved, higher
    store_state(final, own, c, s, z, column, e, D, E)
