"""Gradients of near-far attention by rows, and of its near keys. With g = dout and, of a row i with the far share m,

    near, LLN, v_mean, slope   the four parts of its output, of which only the products with g are needed
    dm   = g . ((w_near - 1) near + w_lln LLN + w_mean v_mean + w_slope slope),      eta = dm m (1 - m)
    ds_j = p_j ((1 - m + m w_near) (g . v_j - g . near) - eta)                       p the near weights, s_j = s q . k_j
    dx   = eta E'(x) - m w_slope (g . slope) / (2 x) where x > 2 ln n                since there 2 E'(x) falls as x^-1/2
    da   = f' (S g - (g . LLN) z),       f' = f m w_lln / (f . z)
    dq   = s ds K + alpha da + kappa P g + eta s mu + 2 dx s^2 sigma^2 q,            kappa = m w_slope s 2 E'(x) / n

P, S, z, mu, sigma^2 and n are the moments of what is far. A row whose g is zero has no part in any gradient, whatever it holds.
"""

import triton
import triton.language as tl

from lln.ops.gpu.far_moments import block_at
from lln.ops.gpu.near_far import (
    LARGEST_WHOLE,
    PART,
    far_exponents,
    far_share,
    far_slice,
    inner_products,
    load_weights,
    near_keys,
    near_pairs,
)
from lln.ops.gpu.pieces import finite, place, product, read, scale

RATES = tl.constexpr(11)  # numbers that a row leaves for the passes over keys


@triton.jit
def read_rows_gradient(grad, batch, head, row, e, there, E: tl.constexpr):
    """g of rows, and which of them have a part in any gradient."""
    dout = read(grad, batch, head, row, e, there[:, None] & (e < E)[None, :])
    return dout, there & (tl.max(tl.abs(dout.to(tl.float32)), 1) != 0.0)


@triton.jit
def times_gradient(
    matrix, grad, batch, head, row, there, at, part,
    D: tl.constexpr, E: tl.constexpr, VALUES: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """M g of each row, for a slice of the features of a block's M (D, E); values part by part as in `inner_products`."""
    like: tl.constexpr = grad.data.dtype.element_ty
    STEP: tl.constexpr = VALUES if VALUES <= LARGEST_WHOLE else PART
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for start in range(0, VALUES, STEP):
        e = start + tl.arange(0, STEP)
        inside = (e < E)[None, :]
        dout = read(grad, batch, head, row, e, there[:, None] & inside)
        places = at.to(tl.int64) * D * E + part[:, None] * E + e[None, :]
        some = tl.load(matrix + places, mask=(part < D)[:, None] & inside, other=0.0)
        total += product(dout, tl.trans(some), like)
    return total


@triton.jit
def near_far_query_gradients(
    q, k, v, alpha, bias, weights, mask, far, grad, dq, dalpha, dbias, dweights, rates, stretches, frames, groups,
    neighbours, first_tokens,
    D: tl.constexpr, E: tl.constexpr, COLUMNS: tl.constexpr, VALUES: tl.constexpr, WHOLE: tl.constexpr,
    ROWS: tl.constexpr, SLICES: tl.constexpr, TILES: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    """dq, each tile's part of dalpha, dbias (tiles, Hq, D) and dweights (tiles, Hq, 4), and `rates` (B, Hq, RATES, N):

    of softmax, its maximum, (1 - m + m w_near) / l, g . near and eta / l; of what is far, the maximum of f's exponents, then
    what f, q, q^2 and g are multiplied by. Grid: blocks times TILES of rows, query heads.
    """
    index, tile = tl.program_id(0) // TILES, tl.program_id(0) % TILES
    head, heads, key_head = tl.program_id(1), tl.num_programs(1), tl.program_id(1) // groups
    sequence, batch, first, stop, origin, end = block_at(stretches, frames, index)
    e = tl.arange(0, VALUES)
    like: tl.constexpr = q.data.dtype.element_ty
    row = first + tile * ROWS + tl.arange(0, ROWS)
    there = row < stop
    dout, takes_part = read_rows_gradient(grad, batch, head, row, e, there, E)
    m, total = tl.full([ROWS], float("-inf"), tl.float32), tl.zeros([ROWS], tl.float32)
    near = tl.zeros([ROWS], tl.float32)
    begin, last, tokens, tiles = near_keys(
        first, stop, origin, end, stretches.rows, neighbours, first_tokens, first + tile * ROWS < stop, ROWS, CAUSAL
    )
    for number in range(tiles):
        scores, pairs, other, counts = near_pairs(
            q, k, mask, number, begin, last, origin, tokens, batch, head, key_head, row, takes_part, frames.scale,
            D, WHOLE, ROWS, CAUSAL,
        )  # fmt: skip
        of_values = inner_products(grad, v, batch, head, key_head, row, other, takes_part, counts, E, VALUES, ROWS)
        higher = tl.maximum(m, tl.max(scores, 1))
        p = tl.exp(scores - finite(higher)[:, None])
        kept = tl.exp(m - finite(higher))
        near = near * kept + tl.sum(tl.where(pairs, p * of_values, 0.0), 1)
        total, m = total * kept + tl.sum(p, 1), higher
    rate = 1.0 / tl.where(total == 0.0, 1.0, total)
    near = near * rate
    at = index * (heads // groups) + key_head
    count = tl.load(far.total + at.to(tl.int64))
    of_near, eta, share = tl.full([ROWS], 1.0, tl.float32), tl.zeros([ROWS], tl.float32), tl.zeros([ROWS], tl.float32)
    top, of_f, lln = tl.zeros([ROWS], tl.float32), tl.zeros([ROWS], tl.float32), tl.zeros([ROWS], tl.float32)
    kappa, dx, of_values = tl.zeros([ROWS], tl.float32), tl.zeros([ROWS], tl.float32), tl.zeros([ROWS], tl.float32)
    slope, mean = tl.zeros([ROWS], tl.float32), tl.zeros([ROWS], tl.float32)
    if count > 0.0:
        spread, tilt = tl.zeros([ROWS], tl.float32), tl.zeros([ROWS], tl.float32)
        top, normaliser = tl.full([ROWS], float("-inf"), tl.float32), tl.zeros([ROWS], tl.float32)
        for i in range(SLICES):
            part = i * COLUMNS + tl.arange(0, COLUMNS)
            queries, key_mean, key_spread, c, z = far_slice(q, far, batch, head, row, takes_part, at, part, e, D, E)
            spread += tl.sum(queries * queries * (key_spread / count)[None, :], 1)
            tilt += tl.sum(queries * key_mean[None, :], 1)
            of_products = times_gradient(
                far.product, grad, batch, head, row, takes_part, at, part, D, E, VALUES, ROWS, COLUMNS
            )
            slope += tl.sum(queries * of_products, 1)
            a = far_exponents(queries, alpha, bias, sequence, head, part, c, D)
            higher = tl.maximum(top, tl.max(a, 1))
            f = tl.exp(a - higher[:, None])
            kept = tl.exp(top - higher)
            of_sums = times_gradient(
                far.summed, grad, batch, head, row, takes_part, at, part, D, E, VALUES, ROWS, COLUMNS
            )
            lln = lln * kept + tl.sum(f * of_sums, 1)
            normaliser = normaliser * kept + tl.sum(f * z[None, :], 1)
            top = higher
        value_mean = tl.load(far.value_mean + at.to(tl.int64) * E + e, mask=e < E, other=0.0)
        mean = tl.sum(dout.to(tl.float32) * value_mean[None, :], 1)
        share, rest, x, fall, frozen = far_share(spread, tilt, count, m, total, frames.scale)
        w_near, w_lln, w_mean, w_slope = load_weights(weights, batch, head, heads)
        inverse = 1.0 / tl.where(normaliser == 0.0, 1.0, normaliser)
        lln, slope = lln * inverse, slope * (frames.scale / count) * fall
        eta = ((w_near - 1.0) * near + w_lln * lln + w_mean * mean + w_slope * slope) * share * rest
        dx = eta * fall * 0.5 - tl.where(frozen, share * w_slope * slope / tl.where(frozen, 2 * x, 1.0), 0.0)
        of_near = 1.0 + share * (w_near - 1.0)
        of_f, kappa = share * w_lln * inverse, share * w_slope * fall * (frames.scale / count)
        of_values = share * w_mean / count
    m = finite(m)
    number = (index * TILES + tile).to(tl.int64) * heads + head
    to = dweights + number * 4
    tl.store(to, tl.sum(share * near, 0))
    tl.store(to + 1, tl.sum(share * lln, 0))
    tl.store(to + 2, tl.sum(share * mean, 0))
    tl.store(to + 3, tl.sum(share * slope, 0))
    by_mean, by_square = eta * frames.scale, dx * (2.0 * frames.scale * frames.scale)
    each = stretches.length
    to = rates + (batch.to(tl.int64) * heads + head) * RATES * each + row
    tl.store(to, m, mask=there)
    tl.store(to + each, rate * of_near, mask=there)
    tl.store(to + 2 * each, near, mask=there)
    tl.store(to + 3 * each, rate * eta, mask=there)
    tl.store(to + 4 * each, top, mask=there)
    tl.store(to + 5 * each, of_f, mask=there)
    tl.store(to + 6 * each, lln, mask=there)
    tl.store(to + 7 * each, kappa, mask=there)
    share_of_each = tl.where(count > 0.0, 1.0 / tl.maximum(count, 1.0), 0.0)
    tl.store(to + 8 * each, by_mean * share_of_each, mask=there)
    tl.store(to + 9 * each, by_square * share_of_each, mask=there)
    tl.store(to + 10 * each, of_values, mask=there)
    for i in range(SLICES):
        part = i * COLUMNS + tl.arange(0, COLUMNS)
        found = tl.zeros([ROWS, COLUMNS], tl.float32)
        for number_of_tile in range(tiles):
            scores, pairs, other, counts = near_pairs(
                q, k, mask, number_of_tile, begin, last, origin, tokens, batch, head, key_head, row, takes_part,
                frames.scale, D, WHOLE, ROWS, CAUSAL,
            )  # fmt: skip
            slopes = inner_products(grad, v, batch, head, key_head, row, other, takes_part, counts, E, VALUES, ROWS)
            slopes -= near[:, None]
            slopes = tl.exp(scores - m[:, None]) * (slopes * (rate * of_near)[:, None] - (rate * eta)[:, None])
            keys = read(k, batch, key_head, other, part, counts[:, None] & (part < D)[None, :])
            found += product(tl.where(pairs, slopes, 0.0), keys, like)
        found *= frames.scale
        dfactor, doffset = tl.zeros([COLUMNS], tl.float32), tl.zeros([COLUMNS], tl.float32)
        if count > 0.0:
            queries, key_mean, key_spread, c, z = far_slice(q, far, batch, head, row, takes_part, at, part, e, D, E)
            a = far_exponents(queries, alpha, bias, sequence, head, part, c, D)
            da = times_gradient(far.summed, grad, batch, head, row, takes_part, at, part, D, E, VALUES, ROWS, COLUMNS)
            da -= lln[:, None] * z[None, :]
            da = tl.exp(a - top[:, None]) * of_f[:, None] * da
            found += da * scale(alpha, sequence, head, part, D)[None, :]
            of_products = times_gradient(
                far.product, grad, batch, head, row, takes_part, at, part, D, E, VALUES, ROWS, COLUMNS
            )
            found += of_products * kappa[:, None] + by_mean[:, None] * key_mean[None, :]
            found += by_square[:, None] * queries * (key_spread / count)[None, :]
            dfactor, doffset = tl.sum(da * queries, 0), tl.sum(da, 0)
        tl.store(place(dq, batch, head, row, part), found, mask=there[:, None] & (part < D)[None, :])
        tl.store(dalpha + number * D + part, dfactor, mask=part < D)
        tl.store(dbias + number * D + part, doffset, mask=part < D)
