"""Moments of the far keys of each block (`lln.ops.near_far.moments`): of blocks by themselves, then of all before and after.

Blocks are summed in float32, about their own means, and merged in float64 in their order. No value is read back.
"""

import triton
import triton.language as tl

from lln.ops.gpu.blocks import frame
from lln.ops.gpu.pieces import counting, decay, finite, product, read, scale
from lln.ops.gpu.plan import stretch_at, stretches_of
from lln.ops.gpu.states import exponents_of_keys


@triton.jit
def block_at(stretches, frames, index):
    """Sequence, sample, first row and end of a block, and where the sequence begins and ends."""
    sequence, batch, first, stop = stretch_at(stretches, index)
    origin, end = frame(frames, sequence)
    if frames.first is not None:
        first = tl.minimum(first + origin, end)
        stop = tl.minimum(first + stretches.rows, end)
    return sequence, batch, first, stop, origin, end


@triton.jit
def store_moments(
    to, at, count, key_mean, spread, value_mean, products, maximum, summed, normaliser, column, e,
    D: tl.constexpr, E: tl.constexpr,
):  # fmt: skip
    at = at.to(tl.int64)
    tl.store(to.total + at, count)
    tl.store(to.key_mean + at * D + column, key_mean, mask=column < D)
    tl.store(to.key_spread + at * D + column, spread, mask=column < D)
    tl.store(to.value_mean + at * E + e, value_mean, mask=e < E)
    tl.store(to.maximum + at * D + column, maximum, mask=column < D)
    tl.store(to.normaliser + at * D + column, normaliser, mask=column < D)
    inside = (column < D)[:, None] & (e < E)[None, :]
    places = at * D * E + column[:, None] * E + e[None, :]
    tl.store(to.product + places, products, mask=inside)
    tl.store(to.summed + places, summed, mask=inside)


@triton.jit
def load_vectors(x, at, column, e, D: tl.constexpr, E: tl.constexpr):
    """n, mu, spread, v_mean, c and z of a block."""
    at = at.to(tl.int64)
    return (
        tl.load(x.total + at),
        tl.load(x.key_mean + at * D + column, mask=column < D, other=0.0),
        tl.load(x.key_spread + at * D + column, mask=column < D, other=0.0),
        tl.load(x.value_mean + at * E + e, mask=e < E, other=0.0),
        tl.load(x.maximum + at * D + column, mask=column < D, other=float("-inf")),
        tl.load(x.normaliser + at * D + column, mask=column < D, other=0.0),
    )


@triton.jit
def load_matrices(x, at, column, e, D: tl.constexpr, E: tl.constexpr):
    """The centred product and S."""
    inside = (column < D)[:, None] & (e < E)[None, :]
    places = at.to(tl.int64) * D * E + column[:, None] * E + e[None, :]
    return tl.load(x.product + places, mask=inside, other=0.0), tl.load(x.summed + places, mask=inside, other=0.0)


@triton.jit
def block_moments(
    k, v, beta, mask, parts, stretches, frames, first_tokens,
    D: tl.constexpr, E: tl.constexpr, COLUMNS: tl.constexpr, VALUES: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Of the keys of each block that may be far. Grid: blocks, key heads, slices of COLUMNS features."""
    index, head, heads = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    sequence, batch, first, stop, origin, _ = block_at(stretches, frames, index)
    column, e = tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS), tl.arange(0, VALUES)
    like: tl.constexpr = v.data.dtype.element_ty
    factor = scale(beta, sequence, head, column, D)
    first = tl.minimum(tl.maximum(first, origin + first_tokens), stop)
    count = tl.zeros([ROWS], tl.float32)
    key_mean, value_mean = tl.zeros([COLUMNS], tl.float32), tl.zeros([VALUES], tl.float32)
    c = tl.full([COLUMNS], float("-inf"), tl.float32)
    for start in range(first, stop, ROWS):
        row = start + tl.arange(0, ROWS)
        counts = counting(mask, batch, row, stop)
        keys = read(k, batch, head, row, column, counts[:, None] & (column < D)[None, :]).to(tl.float32)
        values = read(v, batch, head, row, e, counts[:, None] & (e < E)[None, :]).to(tl.float32)
        count += counts.to(tl.float32)
        key_mean += tl.sum(keys, 0)
        value_mean += tl.sum(values, 0)
        c = tl.maximum(c, tl.max(exponents_of_keys(k, factor, batch, head, row, column, counts, D), 0))
    total = tl.sum(count, 0)
    key_mean, value_mean = key_mean / tl.maximum(total, 1.0), value_mean / tl.maximum(total, 1.0)
    spread, z = tl.zeros([COLUMNS], tl.float32), tl.zeros([COLUMNS], tl.float32)
    products, s = tl.zeros([COLUMNS, VALUES], tl.float32), tl.zeros([COLUMNS, VALUES], tl.float32)
    for start in range(first, stop, ROWS):
        row = start + tl.arange(0, ROWS)
        counts = counting(mask, batch, row, stop)
        keys = read(k, batch, head, row, column, counts[:, None] & (column < D)[None, :]).to(tl.float32)
        values = read(v, batch, head, row, e, counts[:, None] & (e < E)[None, :])
        off = tl.where(counts[:, None], keys - key_mean[None, :], 0.0)
        spread += tl.sum(off * off, 0)
        value_off = tl.where(counts[:, None], values.to(tl.float32) - value_mean[None, :], 0.0)
        products += product(tl.trans(off), value_off, like)
        b = exponents_of_keys(k, factor, batch, head, row, column, counts, D)
        g = tl.exp(b - finite(c)[None, :])
        s += product(tl.trans(g), values, like)
        z += tl.sum(g, 0)
    store_moments(parts, index * heads + head, total, key_mean, spread, value_mean, products, c, s, z, column, e, D, E)


@triton.jit
def merged(
    n, key_mean, spread, value_mean, products, c, s, z, other, at, column, e, D: tl.constexpr, E: tl.constexpr
):  # fmt: skip
    """The moments of two sets of keys together, in float64."""
    n2, key_mean2, spread2, value_mean2, c2, z2 = load_vectors(other, at, column, e, D, E)
    products2, s2 = load_matrices(other, at, column, e, D, E)
    n2 = n2.to(tl.float64)
    part = n2 / tl.maximum(n + n2, 1.0)
    both = n * part
    of_keys, of_values = key_mean2 - key_mean, value_mean2 - value_mean
    higher = tl.maximum(c, c2)
    kept, moved = decay(c, higher).to(tl.float64), decay(c2, higher).to(tl.float64)
    return (
        n + n2,
        key_mean + of_keys * part,
        spread + spread2 + of_keys * of_keys * both,
        value_mean + of_values * part,
        products + products2 + (of_keys * both)[:, None] * of_values[None, :],
        higher,
        s * kept[:, None] + s2 * moved[:, None],
        z * kept + z2 * moved,
    )


@triton.jit
def far_moments(
    parts, far, stretches, neighbours,
    D: tl.constexpr, E: tl.constexpr, COLUMNS: tl.constexpr, VALUES: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    """For each block, of the blocks at least `neighbours` + 1 before it and, unless causal, after it.

    Grid: sequences, key heads, slices of COLUMNS features.
    """
    sequence, head, heads = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    column, e = tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS), tl.arange(0, VALUES)
    begin, end = stretches_of(stretches, sequence)
    none, nothing = tl.zeros([COLUMNS], tl.float64), tl.zeros([COLUMNS, VALUES], tl.float64)
    n, key_mean, spread, value_mean = tl.sum(none, 0), none, none, tl.zeros([VALUES], tl.float64)
    products, c, s, z = nothing, tl.full([COLUMNS], float("-inf"), tl.float32), nothing, none
    for index in range(begin, end):
        store_moments(far, index * heads + head, n, key_mean, spread, value_mean, products, c, s, z, column, e, D, E)
        if index - neighbours >= begin:
            n, key_mean, spread, value_mean, products, c, s, z = merged(
                n, key_mean, spread, value_mean, products, c, s, z,
                parts, (index - neighbours) * heads + head, column, e, D, E,
            )  # fmt: skip
    if not CAUSAL:
        tl.debug_barrier()
        n, key_mean, spread, value_mean = tl.sum(none, 0), none, none, tl.zeros([VALUES], tl.float64)
        products, c, s, z = nothing, tl.full([COLUMNS], float("-inf"), tl.float32), nothing, none
        for done in range(end - begin):
            index = end - 1 - done
            at = index * heads + head
            n2, key_mean2, spread2, value_mean2, products2, c2, s2, z2 = merged(
                n, key_mean, spread, value_mean, products, c, s, z, far, at, column, e, D, E
            )
            tl.debug_barrier()
            store_moments(far, at, n2, key_mean2, spread2, value_mean2, products2, c2, s2, z2, column, e, D, E)
            if index + neighbours < end:
                n, key_mean, spread, value_mean, products, c, s, z = merged(
                    n, key_mean, spread, value_mean, products, c, s, z,
                    parts, (index + neighbours) * heads + head, column, e, D, E,
                )  # fmt: skip
