"""Adding up what the stretches of a sequence have: in float64, in their order."""

import triton
import triton.language as tl

from lln.ops.gpu.pieces import decay
from lln.ops.gpu.plan import stretches_of
from lln.ops.gpu.states import load_maximum, load_sums

MANY = tl.constexpr(16)  # parts read at once


@triton.jit
def sum_scales(
    alpha,
    bias,
    beta,
    dalpha,
    dbias,
    dbeta,
    queries,
    keys,
    query_heads,
    key_heads,
    D: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """dalpha and dbias (S, Hq, D) and dbeta (S, Hk, D), from their parts (stretches, heads, D).

    Grid: sequences, query heads and then key heads.
    """
    sequence, head = tl.program_id(0), tl.program_id(1)
    if head < query_heads:
        sum_scale(alpha, dalpha, queries, sequence, head, query_heads, 1, D, COLUMNS)
        sum_scale(bias, dbias, queries, sequence, head, query_heads, 1, D, COLUMNS)
    else:
        sum_scale(beta, dbeta, keys, sequence, head - query_heads, key_heads, 1, D, COLUMNS)


@triton.jit
def sum_scale(
    parts, found, stretches, sequence, head, heads, TILES: tl.constexpr, D: tl.constexpr, COLUMNS: tl.constexpr
):  # fmt: skip
    """Over all TILES of each stretch, MANY of them at a time."""
    column = tl.arange(0, COLUMNS)
    begin, end = stretches_of(stretches, sequence)
    total = tl.zeros([COLUMNS], tl.float64)
    for some in range(begin * TILES, end * TILES, MANY):
        index = some + tl.arange(0, MANY)
        at = (index * heads + head).to(tl.int64) * D
        inside = (index < end * TILES)[:, None] & (column < D)[None, :]
        total += tl.sum(tl.load(parts + at[:, None] + column[None, :], mask=inside, other=0.0).to(tl.float64), 0)
    tl.store(found + (sequence * heads + head).to(tl.int64) * D + column, total, mask=column < D)


@triton.jit
def sum_parameters(
    alpha, bias, weights, beta, dalpha, dbias, dweights, dbeta, stretches, query_heads, key_heads,
    TILES: tl.constexpr, D: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """`sum_scales` for near-far attention: its parts are of tiles, and there are weights, (S, Hq, 4). The grid is the same."""
    sequence, head = tl.program_id(0), tl.program_id(1)
    if head < query_heads:
        sum_scale(alpha, dalpha, stretches, sequence, head, query_heads, TILES, D, COLUMNS)
        sum_scale(bias, dbias, stretches, sequence, head, query_heads, TILES, D, COLUMNS)
        sum_scale(weights, dweights, stretches, sequence, head, query_heads, TILES, 4, 4)
    else:
        sum_scale(beta, dbeta, stretches, sequence, head - query_heads, key_heads, TILES, D, COLUMNS)


@triton.jit
def store_sums(sums, index, s, z, column, e, D: tl.constexpr, E: tl.constexpr):
    index = index.to(tl.int64)
    tl.store(sums.normaliser + index * D + column, z, mask=column < D)
    inside = (column < D)[:, None] & (e < E)[None, :]
    tl.store(sums.summed + index * D * E + column[:, None] * E + e[None, :], s, mask=inside)


@triton.jit
def sum_state_gradients(
    parts, later, state, start, found, found_start, stretches, groups,
    D: tl.constexpr, E: tl.constexpr, COLUMNS: tl.constexpr, VALUES: tl.constexpr,
):  # fmt: skip
    """The gradient of each sequence's state, from those that its stretches of queries have and from that of the final state.

    The query heads of a key head add up. Grid: sequences, key heads, slices.
    """
    sequence, head, heads = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    column, e = tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS), tl.arange(0, VALUES)
    own = sequence * heads + head
    begin, end = stretches_of(stretches, sequence)
    s, z = tl.zeros([COLUMNS, VALUES], tl.float64), tl.zeros([COLUMNS], tl.float64)
    if later is not None:
        s, z = load_sums(later, own, column, e, D, E)
        s, z = s.to(tl.float64), z.to(tl.float64)
    for index in range(begin, end):
        for group in range(groups):
            part_s, part_z = load_sums(parts, (index * heads + head) * groups + group, column, e, D, E)
            s, z = s + part_s.to(tl.float64), z + part_z.to(tl.float64)
    store_sums(found, own, s, z, column, e, D, E)
    if found_start is not None:
        kept = decay(load_maximum(start, own, column, D), load_maximum(state, own, column, D)).to(tl.float64)
        store_sums(found_start, own, s * kept[:, None], z * kept, column, e, D, E)


@triton.jit
def suffix_gradients(
    parts, later, before, state, after, found_start, stretches, groups,
    D: tl.constexpr, E: tl.constexpr, COLUMNS: tl.constexpr, VALUES: tl.constexpr,
):  # fmt: skip
    """The gradient of the state after each stretch, relative to the maximum there, from all rows that come later.

    `parts` are what the rows of each stretch add to the gradient of the state before it, per query head; `later` is the
    gradient of the final state, `before` the states before each stretch. Grid: sequences, key heads, slices.
    """
    sequence, head, heads = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    column, e = tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS), tl.arange(0, VALUES)
    own = sequence * heads + head
    begin, end = stretches_of(stretches, sequence)
    s, z = tl.zeros([COLUMNS, VALUES], tl.float64), tl.zeros([COLUMNS], tl.float64)
    if later is not None:
        s, z = load_sums(later, own, column, e, D, E)
        s, z = s.to(tl.float64), z.to(tl.float64)
    higher = load_maximum(state, own, column, D)
    for done in range(end - begin):
        index = end - 1 - done
        at = index * heads + head
        store_sums(after, at, s, z, column, e, D, E)
        c = load_maximum(before, at, column, D)
        kept = decay(c, higher).to(tl.float64)
        s, z, higher = s * kept[:, None], z * kept, c
        for group in range(groups):
            part_s, part_z = load_sums(parts, at * groups + group, column, e, D, E)
            s, z = s + part_s.to(tl.float64), z + part_z.to(tl.float64)
    if found_start is not None:
        store_sums(found_start, own, s, z, column, e, D, E)
