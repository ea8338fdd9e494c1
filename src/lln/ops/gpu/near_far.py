"""Rows of attention that is exact near and by moments far, with the equations of `lln.ops.near_far.op`.

A program has some rows of one block: softmax over the keys of its window and over the first tokens outside of it, then what the
moments of the block's far keys say, slice of features by slice.
"""

import triton
import triton.language as tl

from lln.ops.gpu.environment import interpreted
from lln.ops.gpu.far_moments import block_at, load_matrices, load_vectors
from lln.ops.gpu.pieces import counting, finite, place, product, read, rounded, scale

LARGEST_WHOLE = tl.constexpr(
    32 if interpreted() else 128
)  # columns of a product's operand; fewer so that tests have parts
PART = tl.constexpr(32 if interpreted() else 64)


@triton.jit
def near_keys(first, stop, origin, end, size, neighbours, first_tokens, some, ROWS: tl.constexpr, CAUSAL: tl.constexpr):
    """The window of the rows of a block, the end of the first tokens, and how many tiles of keys both have.

    `some`: whether there are rows at all.
    """
    begin, last = tl.maximum(first - neighbours * size, origin), stop
    if not CAUSAL:
        last = tl.minimum(stop + neighbours * size, end)
    tokens = tl.minimum(origin + first_tokens, end)
    outside = tl.where((begin > origin) | (tokens > last), tokens - origin, 0)
    tiles = (last - begin + ROWS - 1) // ROWS + (outside + ROWS - 1) // ROWS
    return begin, last, tokens, tl.where(some, tiles, 0)


@triton.jit
def near_tile(number, begin, last, origin, tokens, ROWS: tl.constexpr):
    """Positions of a tile of keys, of the window first and then of first tokens, and which of them are near."""
    window = (last - begin + ROWS - 1) // ROWS
    start = tl.where(number < window, begin + number * ROWS, origin + (number - window) * ROWS)
    other = start + tl.arange(0, ROWS)
    inside = (other >= begin) & (other < last)
    return other, tl.where(number < window, inside, (other < tokens) & (inside == 0))


@triton.jit
def counting_near(mask, batch, other, near):
    """Which of the keys that are near count; nothing else is looked at."""
    return counting(mask, batch, other, tl.where(near, other + 1, 0))


@triton.jit
def inner_products(
    x, y, batch, x_head, y_head, row, other, there, counts,
    SIZE: tl.constexpr, WHOLE: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """x_i . y_j of a tile of rows and a tile of keys. Large heads part by part: whole, each warp would hold all of x."""
    like: tl.constexpr = y.data.dtype.element_ty
    COLUMNS: tl.constexpr = WHOLE if WHOLE <= LARGEST_WHOLE else PART
    total = tl.zeros([ROWS, ROWS], tl.float32)
    for start in range(0, WHOLE, COLUMNS):
        column = start + tl.arange(0, COLUMNS)
        inside = (column < SIZE)[None, :]
        left = read(x, batch, x_head, row, column, there[:, None] & inside)
        right = read(y, batch, y_head, other, column, counts[:, None] & inside)
        total += product(left, tl.trans(right), like)
    return total


@triton.jit
def near_scores(
    q, k, batch, head, key_head, row, other, there, counts, SCALE,
    D: tl.constexpr, WHOLE: tl.constexpr, ROWS: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    """s_ij, -inf where the pair does not count, and which pairs do."""
    pairs = counts[None, :] & (row >= 0)[:, None]
    if CAUSAL:
        pairs = pairs & (other[None, :] <= row[:, None])
    products = inner_products(q, k, batch, head, key_head, row, other, there, counts, D, WHOLE, ROWS)
    return tl.where(pairs, products * SCALE, float("-inf")), pairs


@triton.jit
def near_pairs(
    q, k, mask, number, begin, last, origin, tokens, batch, head, key_head, row, there, SCALE,
    D: tl.constexpr, WHOLE: tl.constexpr, ROWS: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    """s_ij of some rows and a tile of keys, which pairs count, where the keys are, and which of them count."""
    other, is_near = near_tile(number, begin, last, origin, tokens, ROWS)
    counts = counting_near(mask, batch, other, is_near)
    scores, pairs = near_scores(q, k, batch, head, key_head, row, other, there, counts, SCALE, D, WHOLE, ROWS, CAUSAL)
    return scores, pairs, other, counts


@triton.jit
def far_exponents(queries, alpha, bias, sequence, head, part, c, D: tl.constexpr):
    """a + c, -inf for columns that are not features."""
    offset = scale(bias, sequence, head, part, D) + finite(c)
    a = queries * scale(alpha, sequence, head, part, D)[None, :] + offset[None, :]
    return tl.where((part < D)[None, :], a, float("-inf"))


@triton.jit
def far_slice(q, far, batch, head, row, there, at, part, e, D: tl.constexpr, E: tl.constexpr):
    """Some features of rows, and of the n keys that are far to them: mu, n sigma^2, c and z."""
    queries = read(q, batch, head, row, part, there[:, None] & (part < D)[None, :]).to(tl.float32)
    vectors = load_vectors(far, at, part, e, D, E)
    return queries, vectors[1], vectors[2], vectors[4], vectors[5]


@triton.jit
def far_share(spread, tilt, count, m, total, SCALE):
    """m, 1 - m, x and 2 E'(x) of rows with sum_l q_l^2 sigma_l^2 and q . mu; and where E is past its bend."""
    log_count = tl.log(count)
    x = spread * SCALE * SCALE
    frozen = x > 2 * log_count
    energy = tl.where(frozen, tl.sqrt(2 * x * log_count) - log_count, x * 0.5)
    fall = tl.where(frozen, tl.sqrt(2 * log_count / tl.where(frozen, x, 1.0)), 1.0)
    log_near = finite(m) + tl.log(tl.where(total == 0.0, 1.0, total))
    beyond = log_count + SCALE * tilt + energy - log_near
    share = tl.where(total == 0.0, 1.0, tl.sigmoid(beyond))
    return share, tl.where(total == 0.0, 0.0, tl.sigmoid(-beyond)), x, fall, frozen


@triton.jit
def load_weights(weights, batch, head, heads):
    at = weights + (batch.to(tl.int64) * heads + head) * 4
    return tl.load(at), tl.load(at + 1), tl.load(at + 2), tl.load(at + 3)


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
    e = tl.arange(0, VALUES)
    like: tl.constexpr = q.data.dtype.element_ty
    row = first + tile * ROWS + tl.arange(0, ROWS)
    there = row < stop
    m, total = tl.full([ROWS], float("-inf"), tl.float32), tl.zeros([ROWS], tl.float32)
    near = tl.zeros([ROWS, VALUES], tl.float32)
    begin, last, tokens, tiles = near_keys(
        first, stop, origin, end, stretches.rows, neighbours, first_tokens, first + tile * ROWS < stop, ROWS, CAUSAL
    )
    for number in range(tiles):
        scores, pairs, other, counts = near_pairs(
            q, k, mask, number, begin, last, origin, tokens, batch, head, key_head, row, there, frames.scale,
            D, WHOLE, ROWS, CAUSAL,
        )  # fmt: skip
        values = read(v, batch, key_head, other, e, counts[:, None] & (e < E)[None, :])
        higher = tl.maximum(m, tl.max(scores, 1))
        p = tl.exp(scores - finite(higher)[:, None])
        kept = tl.exp(m - finite(higher))
        good = tl.abs(values.to(tl.float32)) < float("inf")
        near = near * kept[:, None] + product(p, tl.where(good, values, 0.0), like)
        if tl.min(good.to(tl.int32)) == 0:
            # A value that is not finite reaches the rows that see it, and no others.
            poison = product(pairs.to(tl.float32), tl.where(good, 0.0, 1.0), like)
            near = tl.where(poison > 0.0, float("nan"), near)
        total, m = total * kept + tl.sum(p, 1), higher
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
            queries, key_mean, key_spread, c, z = far_slice(q, far, batch, head, row, there, at, part, e, D, E)
            products, s = load_matrices(far, at, part, e, D, E)
            spread += tl.sum(queries * queries * (key_spread / count)[None, :], 1)
            tilt += tl.sum(queries * key_mean[None, :], 1)
            slope += product(queries, products / count, like)
            a = far_exponents(queries, alpha, bias, sequence, head, part, c, D)
            higher = tl.maximum(top, tl.max(a, 1))
            f = rounded(tl.exp(a - higher[:, None]), like)
            kept = tl.exp(top - higher)
            summed = summed * kept[:, None] + product(f, s, like)
            normaliser = normaliser * kept + tl.sum(f * z[None, :], 1)
            top = higher
        share, _, _, fall, _ = far_share(spread, tilt, count, m, total, frames.scale)
        of_near, of_lln, of_mean, of_slope = load_weights(weights, batch, head, heads)
        lln = summed / tl.where(normaliser == 0.0, 1.0, normaliser)[:, None]
        beyond = of_lln * lln + of_mean * value_mean[None, :] + (of_slope * frames.scale) * fall[:, None] * slope
        near = (1.0 + share * (of_near - 1.0))[:, None] * near + share[:, None] * beyond
    tl.store(place(out, batch, head, row, e), near, mask=there[:, None] & (e < E)[None, :])
