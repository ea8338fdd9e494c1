"""Gradients of near-far attention's keys and values: from the rows that are near, and as far as they were told by the others.

The names are those of `lln.ops.gpu.near_far_gradients` and `lln.ops.gpu.far_gradients`. First tokens are near to all rows:
stretches of rows outside of their windows are gone through side by side, and what each leaves is added up, in their order.
"""

import triton
import triton.language as tl

from lln.ops.gpu.far_gradients import load_asked
from lln.ops.gpu.far_moments import block_at, load_matrices
from lln.ops.gpu.near_far import LARGEST_WHOLE, PART, inner_products, near_scores
from lln.ops.gpu.near_far_gradients import RATES, read_rows_gradient
from lln.ops.gpu.pieces import counting, place, product, read, scale
from lln.ops.gpu.plan import stretches_of


@triton.jit
def from_rows(
    q, k, v, grad, rates, near, batch, head, key_head, row, other, counts, there, own, each, SCALE,
    D: tl.constexpr, E: tl.constexpr, WHOLE: tl.constexpr, VALUES: tl.constexpr, ROWS: tl.constexpr,
    CAUSAL: tl.constexpr,
):  # fmt: skip
    """The weights of a tile of rows on a tile of keys, and the gradients of its scores; `near`: which pairs are."""
    of_row = rates + own * RATES * each + row
    m, rate = tl.load(of_row, mask=there, other=0.0), tl.load(of_row + each, mask=there, other=0.0)
    mean, eta = tl.load(of_row + 2 * each, mask=there, other=0.0), tl.load(of_row + 3 * each, mask=there, other=0.0)
    scores, pairs = near_scores(q, k, batch, head, key_head, row, other, there, counts, SCALE, D, WHOLE, ROWS, CAUSAL)
    pairs = pairs & near & there[:, None]
    p = tl.where(pairs, tl.exp(scores - m[:, None]), 0.0)
    slopes = inner_products(grad, v, batch, head, key_head, row, other, there, counts, E, VALUES, ROWS) - mean[:, None]
    slopes = tl.where(pairs, p * (slopes * rate[:, None] - eta[:, None]), 0.0)
    return p * rate[:, None], slopes


@triton.jit
def values_about(mean, v, batch, head, other, there, at, e, E: tl.constexpr):
    """v_j, less a block's mean value if that is given; zeros where it is not `there`."""
    values = read(v, batch, head, other, e, there[:, None] & (e < E)[None, :])
    if mean is not None:
        about = tl.load(mean + at * E + e, mask=e < E, other=0.0)
        values = tl.where(there[:, None], values.to(tl.float32) - about[None, :], 0.0)
    return values


@triton.jit
def times_values(
    matrix, loaded, mean, v, batch, head, other, there, at, part,
    D: tl.constexpr, E: tl.constexpr, VALUES: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """M v_j or M (v_j - mean), for a slice of the features of M (D, E), which is `loaded`; or part by part of the values."""
    like: tl.constexpr = v.data.dtype.element_ty
    if VALUES <= LARGEST_WHOLE:
        values = values_about(mean, v, batch, head, other, there, at, tl.arange(0, VALUES), E)
        return product(values, tl.trans(loaded), like)
    else:
        total = tl.zeros([ROWS, COLUMNS], tl.float32)
        for start in range(0, VALUES, PART):
            e = start + tl.arange(0, PART)
            places = at * D * E + part[:, None] * E + e[None, :]
            some = tl.load(matrix + places, mask=(part < D)[:, None] & (e < E)[None, :], other=0.0)
            values = values_about(mean, v, batch, head, other, there, at, e, E)
            total += product(values, tl.trans(some), like)
        return total


@triton.jit
def near_far_key_gradients(
    q, k, v, beta, mask, parts, told, grad, rates, of_first, dk, dv, dbeta, stretches, chunks, frames, groups, neighbours,
    first_tokens, told_parts,
    D: tl.constexpr, E: tl.constexpr, COLUMNS: tl.constexpr, VALUES: tl.constexpr, WHOLE: tl.constexpr,
    ROWS: tl.constexpr, SLICES: tl.constexpr, TILES: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    """dk, dv, and each tile's part of dbeta (tiles, Hk, D). `of_first`: what `first_token_gradients` left, or None.

    Grid: blocks times TILES of keys, key heads.
    """
    index, tile = tl.program_id(0) // TILES, tl.program_id(0) % TILES
    key_head, key_heads = tl.program_id(1), tl.num_programs(1)
    sequence, batch, first, stop, origin, end = block_at(stretches, frames, index)
    e = tl.arange(0, VALUES)
    like: tl.constexpr = q.data.dtype.element_ty
    start = first + tile * ROWS
    other = start + tl.arange(0, ROWS)
    there = other < stop
    counts = counting(mask, batch, other, stop)
    is_far = counts & (other >= origin + first_tokens)
    at = (index * key_heads + key_head).to(tl.int64)
    begin, last = (
        tl.maximum(first - neighbours * stretches.rows, origin),
        tl.minimum(stop + neighbours * stretches.rows, end),
    )
    if CAUSAL:
        begin = start
    last = tl.where(start < stop, last, begin)  # no keys, no rows
    dvalues = tl.zeros([ROWS, VALUES], tl.float32)
    for i in range(told_parts):
        more = tl.load(told.value_offset + (at * told_parts + i) * E + e, mask=e < E, other=0.0)
        dvalues += tl.where(is_far[:, None], more[None, :], 0.0)
    for i in range(SLICES):
        part = i * COLUMNS + tl.arange(0, COLUMNS)
        found = tl.zeros([ROWS, COLUMNS], tl.float32)
        for some in range(begin, last, ROWS):
            row = some + tl.arange(0, ROWS)
            for group in range(groups):
                head = key_head * groups + group
                dout, takes_part = read_rows_gradient(grad, batch, head, row, e, row < last, E)
                p, slopes = from_rows(
                    q, k, v, grad, rates, counts[None, :], batch, head, key_head, row, other, counts, takes_part,
                    batch.to(tl.int64) * key_heads * groups + head, stretches.length, frames.scale,
                    D, E, WHOLE, VALUES, ROWS, CAUSAL,
                )  # fmt: skip
                queries = read(q, batch, head, row, part, takes_part[:, None] & (part < D)[None, :])
                found += product(tl.trans(slopes), queries, like)
                if i == 0:
                    dvalues += product(tl.trans(p), dout, like)
        found *= frames.scale
        kept = there[:, None] & (part < D)[None, :]
        if of_first is not None:
            left, right = stretches_of(chunks, sequence)
            right = tl.where(start < origin + first_tokens, right, left)
            inside = counts & (other < origin + first_tokens)
            for chunk in range(left, right):
                of_token = (chunk * key_heads + key_head).to(tl.int64) * first_tokens + (other - origin)
                of_keys = of_first.of_keys + of_token[:, None] * D + part[None, :]
                found += tl.load(of_keys, mask=inside[:, None] & (part < D)[None, :], other=0.0)
                if i == 0:
                    of_values = of_first.of_values + of_token[:, None] * E + e[None, :]
                    dvalues += tl.load(of_values, mask=inside[:, None] & (e < E)[None, :], other=0.0)
        keys = read(k, batch, key_head, other, part, is_far[:, None] & (part < D)[None, :]).to(tl.float32)
        y, offset, curve = load_asked(told, at, part, D)
        g, u = load_matrices(told, at, part, e, D, E)
        key_mean = tl.load(parts.key_mean + at * D + part, mask=part < D, other=0.0)
        r = tl.load(told.maximum + at * D + part, mask=part < D, other=float("inf"))
        by_beta = scale(beta, sequence, key_head, part, D)
        features = tl.where(is_far[:, None], tl.exp(keys * by_beta[None, :] - r[None, :]), 0.0)
        centred = tl.where(is_far[:, None], keys - key_mean[None, :], 0.0)
        db = features * (
            times_values(told.summed, u, None, v, batch, key_head, other, is_far, at, part, D, E, VALUES, ROWS, COLUMNS)
            + y[None, :]
        )
        found += tl.where(is_far[:, None], offset[None, :] + curve[None, :] * centred, 0.0)
        found += db * by_beta[None, :] + times_values(
            told.product, g, parts.value_mean, v, batch, key_head, other, is_far, at, part, D, E, VALUES, ROWS, COLUMNS
        )
        dvalues += product(features, u, like) + product(centred, g, like)
        tl.store(place(dk, batch, key_head, other, part), found, mask=kept)
        number = (index * TILES + tile).to(tl.int64) * key_heads + key_head
        tl.store(dbeta + number * D + part, tl.sum(db * keys, 0), mask=part < D)
    tl.store(place(dv, batch, key_head, other, e), dvalues, mask=there[:, None] & (e < E)[None, :])


@triton.jit
def first_token_gradients(
    q, k, v, mask, grad, rates, of_first, chunks, frames, groups, neighbours, first_tokens,
    D: tl.constexpr, E: tl.constexpr, COLUMNS: tl.constexpr, VALUES: tl.constexpr, WHOLE: tl.constexpr,
    ROWS: tl.constexpr, TILES: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    """What each stretch of rows, `chunks`, adds to the gradients of the first tokens outside of its rows' windows.

    Grid: stretches times TILES of first tokens, key heads, slices of COLUMNS features.
    """
    index, tile = tl.program_id(0) // TILES, tl.program_id(0) % TILES
    key_head, key_heads = tl.program_id(1), tl.num_programs(1)
    _, batch, first, stop, origin, end = block_at(chunks, frames, index)
    e = tl.arange(0, VALUES)
    part = tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
    like: tl.constexpr = q.data.dtype.element_ty
    token = tile * ROWS + tl.arange(0, ROWS)
    other = origin + token
    counts = counting(mask, batch, other, tl.minimum(origin + first_tokens, end))
    found, dvalues = tl.zeros([ROWS, COLUMNS], tl.float32), tl.zeros([ROWS, VALUES], tl.float32)
    limit = tl.where(origin + tile * ROWS < end, stop, first)
    for some in range(first, limit, ROWS):
        row = some + tl.arange(0, ROWS)
        distance = ((row - origin) // frames.size)[:, None] - (token // frames.size)[None, :]
        outside = (distance > neighbours) | (distance < -neighbours)
        for group in range(groups):
            head = key_head * groups + group
            dout, takes_part = read_rows_gradient(grad, batch, head, row, e, row < stop, E)
            p, slopes = from_rows(
                q, k, v, grad, rates, outside, batch, head, key_head, row, other, counts, takes_part,
                batch.to(tl.int64) * key_heads * groups + head, chunks.length, frames.scale,
                D, E, WHOLE, VALUES, ROWS, CAUSAL,
            )  # fmt: skip
            queries = read(q, batch, head, row, part, takes_part[:, None] & (part < D)[None, :])
            found += product(tl.trans(slopes), queries, like)
            dvalues += product(tl.trans(p), dout, like)
    of_token = (index * key_heads + key_head).to(tl.int64) * first_tokens + token
    there = token < first_tokens
    of_keys = of_first.of_keys + of_token[:, None] * D + part[None, :]
    tl.store(of_keys, found * frames.scale, mask=there[:, None] & (part < D)[None, :])
    if tl.program_id(2) == 0:
        of_values = of_first.of_values + of_token[:, None] * E + e[None, :]
        tl.store(of_values, dvalues, mask=there[:, None] & (e < E)[None, :])
