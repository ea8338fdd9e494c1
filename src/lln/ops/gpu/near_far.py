"""Rows of attention that is exact near and by moments far, with the equations of `lln.ops.near_far.op`.

A program has some rows of one block: softmax over the keys of its window and over the first tokens outside of it, then what the
moments of the block's far keys say, slice of features by slice.
"""

import triton
import triton.language as tl

from lln.ops.gpu.far_moments import block_at, load_matrices, load_vectors
from lln.ops.gpu.pieces import counting, finite, place, product, read, rounded, scale


@triton.jit
def with_keys(
    q, k, v, mask, batch, head, key_head, row, there, other, allowed, m, total, found, SCALE, column, e,
    like: tl.constexpr, D: tl.constexpr, E: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    """Softmax's running maximum, sum and sum of values with one more tile of keys."""
    counts = counting(mask, batch, other, other + 1) & allowed
    queries = read(q, batch, head, row, column, there[:, None] & (column < D)[None, :])
    keys = read(k, batch, key_head, other, column, counts[:, None] & (column < D)[None, :])
    values = read(v, batch, key_head, other, e, counts[:, None] & (e < E)[None, :])
    pairs = counts[None, :] & (row >= 0)[:, None]
    if CAUSAL:
        pairs = pairs & (other[None, :] <= row[:, None])
    scores = tl.where(pairs, product(queries, tl.trans(keys), like) * SCALE, float("-inf"))
    higher = tl.maximum(m, tl.max(scores, 1))
    p = tl.exp(scores - finite(higher)[:, None])
    kept = tl.exp(m - finite(higher))
    good = tl.abs(values.to(tl.float32)) < float("inf")
    found = found * kept[:, None] + product(p, tl.where(good, values, 0.0), like)
    if tl.min(good.to(tl.int32)) == 0:
        # A value that is not finite reaches the rows that see it, and no others.
        poison = product(pairs.to(tl.float32), tl.where(good, 0.0, 1.0), like)
        found = tl.where(poison > 0.0, float("nan"), found)
    return higher, total * kept + tl.sum(p, 1), found


@triton.jit
def near_far_outputs(
    q, k, v, alpha, bias, weights, mask, far, out, stretches, frames, groups, neighbours, first_tokens,
    D: tl.constexpr, E: tl.constexpr, COLUMNS: tl.constexpr, VALUES: tl.constexpr, WHOLE: tl.constexpr,
    ROWS: tl.constexpr, SLICES: tl.constexpr, TILES: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    """Grid: blocks times TILES of rows, query heads."""
    index, tile = tl.program_id(0) // TILES, tl.program_id(0) % TILES
    head, heads, key_head = tl.program_id(1), tl.num_programs(1), tl.program_id(1) // groups
    sequence, batch, first, stop, origin, end = block_at(stretches, frames, index)
    column, e = tl.arange(0, WHOLE), tl.arange(0, VALUES)
    like: tl.constexpr = q.data.dtype.element_ty
    row = first + tile * ROWS + tl.arange(0, ROWS)
    there = row < stop
    m, total = tl.full([ROWS], float("-inf"), tl.float32), tl.zeros([ROWS], tl.float32)
    near = tl.zeros([ROWS, VALUES], tl.float32)
    begin, last = tl.maximum(first - neighbours * stretches.rows, origin), stop
    if not CAUSAL:
        last = tl.minimum(stop + neighbours * stretches.rows, end)
    limit = tl.where(first + tile * ROWS < stop, last, begin)  # no rows, no keys
    for some in range(begin, limit, ROWS):
        other = some + tl.arange(0, ROWS)
        m, total, near = with_keys(
            q, k, v, mask, batch, head, key_head, row, there, other, other < last, m, total, near, frames.scale,
            column, e, like, D, E, CAUSAL,
        )  # fmt: skip
    tokens = tl.where(first + tile * ROWS < stop, tl.minimum(origin + first_tokens, end), origin)
    for some in range(origin, tokens, ROWS):
        other = some + tl.arange(0, ROWS)
        outside = (other < tokens) & ((other < begin) | (other >= last))
        m, total, near = with_keys(
            q, k, v, mask, batch, head, key_head, row, there, other, outside, m, total, near, frames.scale,
            column, e, like, D, E, CAUSAL,
        )  # fmt: skip
    near = near / tl.where(total == 0.0, 1.0, total)[:, None]
    at = index * (heads // groups) + key_head
    count = tl.load(far.total + at.to(tl.int64))
    if count > 0.0:
        spread, tilt = tl.zeros([ROWS], tl.float32), tl.zeros([ROWS], tl.float32)
        slope, summed = tl.zeros([ROWS, VALUES], tl.float32), tl.zeros([ROWS, VALUES], tl.float32)
        top, normaliser = tl.full([ROWS], float("-inf"), tl.float32), tl.zeros([ROWS], tl.float32)
        value_mean = tl.load(far.value_mean + at.to(tl.int64) * E + e, mask=e < E, other=0.0)
        for i in range(SLICES):
            part = i * COLUMNS + tl.arange(0, COLUMNS)
            queries = read(q, batch, head, row, part, there[:, None] & (part < D)[None, :]).to(tl.float32)
            vectors = load_vectors(far, at, part, e, D, E)
            key_mean, key_spread, c, z = vectors[1], vectors[2], vectors[4], vectors[5]
            products, s = load_matrices(far, at, part, e, D, E)
            spread += tl.sum(queries * queries * (key_spread / count)[None, :], 1)
            tilt += tl.sum(queries * key_mean[None, :], 1)
            slope += product(queries, products / count, like)
            offset = scale(bias, sequence, head, part, D) + finite(c)
            a = queries * scale(alpha, sequence, head, part, D)[None, :] + offset[None, :]
            a = tl.where((part < D)[None, :], a, float("-inf"))
            higher = tl.maximum(top, tl.max(a, 1))
            f = rounded(tl.exp(a - higher[:, None]), like)
            kept = tl.exp(top - higher)
            summed = summed * kept[:, None] + product(f, s, like)
            normaliser = normaliser * kept + tl.sum(f * z[None, :], 1)
            top = higher
        log_count = tl.log(count)
        x = spread * frames.scale * frames.scale
        frozen = x > 2 * log_count
        energy = tl.where(frozen, tl.sqrt(2 * x * log_count) - log_count, x * 0.5)
        fall = tl.where(frozen, tl.sqrt(2 * log_count / tl.where(frozen, x, 1.0)), 1.0)
        log_far = log_count + frames.scale * tilt + energy
        log_near = finite(m) + tl.log(tl.where(total == 0.0, 1.0, total))
        share = tl.where(total == 0.0, 1.0, tl.sigmoid(log_far - log_near))[:, None]
        to = weights + (batch.to(tl.int64) * heads + head) * 4
        of_near, of_lln, of_mean, of_slope = tl.load(to), tl.load(to + 1), tl.load(to + 2), tl.load(to + 3)
        lln = summed / tl.where(normaliser == 0.0, 1.0, normaliser)[:, None]
        beyond = of_lln * lln + of_mean * value_mean[None, :] + (of_slope * frames.scale) * fall[:, None] * slope
        near = (1.0 + share * (of_near - 1.0)) * near + share * beyond
    tl.store(place(out, batch, head, row, e), near, mask=there[:, None] & (e < E)[None, :])
