"""The search for alpha and beta on a sample, one program a head, as `lln.ops.moments.search` describes it.

A program draws its keys (places and weights go through memory), finds the entropies of softmax's rows, and steps along the
secant until LLN has the same; it stops by itself, so the host has nothing to wait for. Products are float32 and sums over rows
float64. A key that does not stand for any has weight 0 and is not read.
"""

import triton
import triton.language as tl

from lln.ops.gpu.sample_places import gathered, index_of, middle, position_of, tokens_of

LARGEST = tl.constexpr(1e18)  # of q and k: no product of such numbers overflows
SMALLEST = tl.constexpr(1e-37)  # of a weight that has a logarithm
SLICE = tl.constexpr(32)  # features at a time


@triton.jit
def top_places(tops, own, TOP: tl.constexpr, MOST: tl.constexpr, PLACES: tl.constexpr):
    """Positions of the largest scores, (PLACES,)."""
    place = tl.arange(0, PLACES)
    return index_of(tl.load(tops + own * MOST + place, mask=place < TOP, other=0)), place < TOP


@triton.jit
def is_among(position, others, there):
    return tl.max(((position[:, None] == others[None, :]) & there[None, :]).to(tl.int32), 1) != 0


@triton.jit
def draw(
    tops, keys, places, weights, own, batch, first, count, many,
    EVEN: tl.constexpr, TOP: tl.constexpr, MOST: tl.constexpr, PLACES: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Writes places (EVEN + 2 TOP) of keys, and for how many keys each stands."""
    some = count > EVEN  # else the even keys are all there are
    by_feature, there = top_places(tops, own, TOP, MOST, PLACES)
    by_softmax, _ = top_places(tops + many, own, TOP, MOST, PLACES)
    of_feature, of_softmax = there & some, there & some & (is_among(by_softmax, by_feature, there) == 0)
    number = tl.sum(of_feature.to(tl.int32)) + tl.sum(of_softmax.to(tl.int32))
    taken = tl.minimum(count, EVEN)
    standing = 0
    for start in range(0, taken, TILE):
        place = start + tl.arange(0, TILE)
        position = position_of(keys, batch, first, middle(place, taken, count), place < taken)
        repeated = is_among(position, by_feature, of_feature) | is_among(position, by_softmax, of_softmax)
        standing += tl.sum(((place < taken) & (repeated == 0)).to(tl.int32))
    each = ((count - number).to(tl.float64) / tl.maximum(standing, 1)).to(tl.float32)
    base = own * (EVEN + 2 * TOP)
    for start in range(0, EVEN, TILE):
        place = start + tl.arange(0, TILE)
        position = position_of(keys, batch, first, middle(place, taken, count), place < taken)
        repeated = is_among(position, by_feature, of_feature) | is_among(position, by_softmax, of_softmax)
        tl.store(places + base + place, position, mask=place < EVEN)
        stands = (place < taken) & (repeated == 0)
        tl.store(weights + base + place, tl.where(stands, each, 0.0), mask=place < EVEN)
    place = base + EVEN + tl.arange(0, PLACES)
    tl.store(places + place, by_feature, mask=there)
    tl.store(weights + place, of_feature.to(tl.float32), mask=there)
    tl.store(places + place + TOP, by_softmax, mask=there)
    tl.store(weights + place + TOP, of_softmax.to(tl.float32), mask=there)
    tl.debug_barrier()


@triton.jit
def sample_rows(
    q, queries, ranked, sequence, head, heads, groups, number, taken,
    ROWS: tl.constexpr, BY_RANK: tl.constexpr,
):  # fmt: skip
    """Sample, heads and positions of the rows with these numbers."""
    batch, first, count = tokens_of(queries, sequence)
    there = number < taken
    if BY_RANK:
        rank = middle(number, taken, count.to(tl.int64) * groups)
        at = (batch.to(tl.int64) * heads + head) * queries.length * groups + first.to(tl.int64) * groups + rank
        index = tl.where(there, index_of(tl.load(ranked + at, mask=there, other=0)), 0)
        return batch, head * groups + index // queries.length, index % queries.length
    else:
        position = position_of(queries, batch, first, middle(number, taken, count), there)
        return batch, head * groups + number * ((groups - 1) // ROWS + 1) % groups, position


@triton.jit
def clipped(x):
    return tl.minimum(tl.maximum(x.to(tl.float32), -LARGEST), LARGEST)


@triton.jit
def read_keys(k, spread, own, batch, head, position, column, there, D: tl.constexpr, CENTERED: tl.constexpr):
    """Some features of keys, less the mean key where keys are centred."""
    inside = there[:, None] & (column < D)[None, :]
    keys = gathered(k, batch, tl.zeros_like(position) + head, position, column, inside).to(tl.float32)
    if CENTERED:
        mean = tl.load(spread + (own * 4 + 2) * D + column, mask=column < D, other=0.0).to(tl.float32)
        keys = tl.where(inside, keys - mean[None, :], 0.0)
    return clipped(keys)


@triton.jit
def read_queries(q, batch, head, row, column, there, D: tl.constexpr):
    return clipped(gathered(q, batch, head, row, column, there[:, None] & (column < D)[None, :]))


@triton.jit
def weights_of_keys(places, weights, base, place, MANY: tl.constexpr):
    position = tl.load(places + base + place, mask=place < MANY, other=0)
    return position, tl.load(weights + base + place, mask=place < MANY, other=0.0)


@triton.jit
def without_own(weight, position, own_position, SAME: tl.constexpr):
    """(rows, keys): the weights of keys, 0 for a row's own key, which stands for itself."""
    if SAME:
        return tl.where(position[None, :] == own_position[:, None], 0.0, weight[None, :])
    else:
        return tl.where(own_position[:, None] >= 0, weight[None, :], 0.0)


@triton.jit
def softmax_rows(
    q, k, spread, places, weights, base, own, batch, head, query_batch, query_head, row, there,
    D: tl.constexpr, SCALE: tl.constexpr, CENTERED: tl.constexpr, SAME: tl.constexpr, MANY: tl.constexpr,
    TILE: tl.constexpr,
):  # fmt: skip
    """The entropies of softmax over the drawn keys, for a tile of rows."""
    m, total, logs = tl.zeros([TILE], tl.float32), tl.full([TILE], 1.0, tl.float32), tl.zeros([TILE], tl.float32)
    if SAME:
        for some in range(0, D, SLICE):
            column = some + tl.arange(0, SLICE)
            own_keys = read_keys(k, spread, own, batch, head, row, column, there, D, CENTERED)
            m += tl.sum(clipped(read_queries(q, query_batch, query_head, row, column, there, D) * SCALE) * own_keys, 1)
    else:
        m, total = m + float("-inf"), total * 0.0
    for start in range(0, MANY, TILE):
        position, weight = weights_of_keys(places, weights, base, start + tl.arange(0, TILE), MANY)
        if tl.max(weight, 0) > 0:
            scores = tl.zeros([TILE, TILE], tl.float32)
            for some in range(0, D, SLICE):
                column = some + tl.arange(0, SLICE)
                keys = read_keys(k, spread, own, batch, head, position, column, weight > 0, D, CENTERED)
                rows = clipped(read_queries(q, query_batch, query_head, row, column, there, D) * SCALE)
                scores += tl.dot(rows, tl.trans(keys), input_precision="ieee")
            stands = without_own(weight, position, row, SAME)
            scores = tl.where(stands > 0, scores, float("-inf"))
            higher = tl.maximum(m, tl.max(scores, 1))
            finite = tl.where(higher == float("-inf"), 0.0, higher)
            fall = tl.where(m == float("-inf"), 0.0, m - finite)
            x = tl.where(stands > 0, scores - finite[:, None], 0.0)
            mass = stands * tl.exp(x)
            kept = tl.exp(fall)
            logs = kept * (logs + total * fall) + tl.sum(mass * x, 1)
            total, m = kept * total + tl.sum(mass, 1), higher
    total = tl.maximum(total, SMALLEST)
    return tl.maximum(tl.log(total) - logs / total, 0.0)


@triton.jit
def exponents_of_row(q, highest, own, query_batch, query_head, row, column, there, alpha, beta, D: tl.constexpr):
    """alpha q + the largest beta k of each feature, and that."""
    peak = tl.load(highest + own * D + column, mask=column < D, other=0.0) * beta
    a = read_queries(q, query_batch, query_head, row, column, there, D) * alpha + peak[None, :]
    return tl.where((column < D)[None, :], a, float("-inf")), peak[None, :]


@triton.jit
def lln_rows(
    q, k, spread, highest, places, weights, base, own, batch, head, query_batch, query_head, row, there, alpha, beta,
    D: tl.constexpr, CENTERED: tl.constexpr, SAME: tl.constexpr, MANY: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """The same of LLN."""
    m = tl.full([TILE], float("-inf"), tl.float32)
    for some in range(0, D, SLICE):
        column = some + tl.arange(0, SLICE)
        a, _ = exponents_of_row(q, highest, own, query_batch, query_head, row, column, there, alpha, beta, D)
        m = tl.maximum(m, tl.max(a, 1))
    total, logs = tl.zeros([TILE], tl.float32), tl.zeros([TILE], tl.float32)
    if SAME:
        for some in range(0, D, SLICE):
            column = some + tl.arange(0, SLICE)
            a, peak = exponents_of_row(q, highest, own, query_batch, query_head, row, column, there, alpha, beta, D)
            own_keys = read_keys(k, spread, own, batch, head, row, column, there, D, CENTERED)
            total += tl.sum(tl.exp(a - m[:, None]) * tl.exp(own_keys * beta - peak), 1)
        logs = total * tl.log(tl.maximum(total, SMALLEST))
    for start in range(0, MANY, TILE):
        position, weight = weights_of_keys(places, weights, base, start + tl.arange(0, TILE), MANY)
        kernel = tl.zeros([TILE, TILE], tl.float32)
        for some in range(0, D, SLICE):
            column = some + tl.arange(0, SLICE)
            a, peak = exponents_of_row(q, highest, own, query_batch, query_head, row, column, there, alpha, beta, D)
            keys = read_keys(k, spread, own, batch, head, position, column, weight > 0, D, CENTERED)
            g = tl.where((weight > 0)[:, None], tl.exp(keys * beta - peak), 0.0)
            kernel += tl.dot(tl.exp(a - m[:, None]), tl.trans(g), input_precision="ieee")
        mass = without_own(weight, position, row, SAME) * kernel
        total += tl.sum(mass, 1)
        logs += tl.sum(mass * tl.log(tl.maximum(kernel, SMALLEST)), 1)
    total = tl.maximum(total, SMALLEST)
    return tl.maximum(tl.log(total) - logs / total, 0.0)


@triton.jit
def odds(entropy, full, SMALLEST_DEFICIT: tl.constexpr, SMALLEST_ENTROPY: tl.constexpr):
    return tl.log(tl.maximum(full - entropy, SMALLEST_DEFICIT)) - tl.log(tl.maximum(entropy, SMALLEST_ENTROPY))


@triton.jit
def step_along(x, value, slope, low, high):
    proposed = x - value / slope
    return tl.where((proposed > low) & (proposed < high), proposed, (low + high) / 2)


@triton.jit
def search(
    q, k, queries, keys, spread, start, tops, ranked, places, weights, long_places, long_weights, of_rows,
    highest, found, alphas, betas, entropies, groups, many,
    D: tl.constexpr, SCALE: tl.constexpr, CENTERED: tl.constexpr, SAME: tl.constexpr, LARGE: tl.constexpr,
    PLACES_OF_ROWS: tl.constexpr, ROWS: tl.constexpr, MOST_ROWS: tl.constexpr, EVEN: tl.constexpr, TOP: tl.constexpr,
    LONG_EVEN: tl.constexpr, LONG_TOP: tl.constexpr, NTH: tl.constexpr, MOST: tl.constexpr, PLACES: tl.constexpr,
    EVALUATIONS: tl.constexpr, TILE: tl.constexpr,
    LOWEST: tl.constexpr, HIGHEST: tl.constexpr, USUAL_SLOPE: tl.constexpr, SMALLEST_SLOPE: tl.constexpr,
    SMALLEST_DEFICIT: tl.constexpr, SMALLEST_ENTROPY: tl.constexpr, TOLERATED: tl.constexpr,
    TOLERATED_SHARE: tl.constexpr, CLOSE: tl.constexpr, TRUSTED: tl.constexpr, USUAL_X: tl.constexpr,
):  # fmt: skip
    """On the small sample, or on the large one where the small one is not to be trusted. Grid: sequences, key heads.

    `found` (S, H, 3): x, the slope, and whether that is enough. `many`: numbers in `tops` of one kind.
    """
    sequence, head, heads = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    own = (sequence * heads + head).to(tl.int64)
    wanted_here = True
    if LARGE:
        wanted_here = tl.load(found + own * 3 + 2) == 0.0
    if wanted_here:
        batch, first, count = tokens_of(keys, sequence)
        query_count = tokens_of(queries, sequence)[2]
        most = tl.minimum(tl.maximum(count // 16, ROWS), MOST_ROWS)
        taken = tl.minimum(query_count.to(tl.int64) * groups, most).to(tl.int32)
        number_of_rows = tl.maximum(taken, 1).to(tl.float64)
        draw(tops, keys, places, weights, own, batch, first, count, many, EVEN, TOP, MOST, PLACES, TILE)
        MANY: tl.constexpr = EVEN + 2 * TOP
        base = own * MANY
        for some in range(0, D, SLICE):
            column = some + tl.arange(0, SLICE)
            most_of_all = tl.full([SLICE], float("-inf"), tl.float32)
            for tile in range(0, MANY, TILE):
                position, weight = weights_of_keys(places, weights, base, tile + tl.arange(0, TILE), MANY)
                x = read_keys(k, spread, own, batch, head, position, column, weight > 0, D, CENTERED)
                most_of_all = tl.maximum(most_of_all, tl.max(tl.where((weight > 0)[:, None], x, float("-inf")), 0))
            if SAME:
                for tile in range(0, taken, TILE):
                    number = tile + tl.arange(0, TILE)
                    there = number < taken
                    query_batch, query_head, row = sample_rows(
                        q, queries, ranked, sequence, head, heads, groups, number, taken, PLACES_OF_ROWS, LARGE
                    )
                    x = read_keys(k, spread, own, batch, head, row, column, there, D, CENTERED)
                    most_of_all = tl.maximum(most_of_all, tl.max(tl.where(there[:, None], x, float("-inf")), 0))
            tl.store(
                highest + own * D + column, tl.where(most_of_all == float("-inf"), 0.0, most_of_all), mask=column < D
            )
        total, missed = number_of_rows * 0.0, number_of_rows * 0.0
        for some in range(0, taken, TILE):
            number = some + tl.arange(0, TILE)
            there = number < taken
            query_batch, query_head, row = sample_rows(
                q, queries, ranked, sequence, head, heads, groups, number, taken, PLACES_OF_ROWS, LARGE
            )
            entropy = softmax_rows(
                q, k, spread, places, weights, base, own, batch, head, query_batch, query_head, row, there,
                D, SCALE, CENTERED, SAME, MANY, TILE,
            )  # fmt: skip
            tl.store(of_rows + own * MOST_ROWS + number, entropy, mask=there)
            total += tl.sum(tl.where(there, entropy, 0.0).to(tl.float64), 0)
        tl.debug_barrier()
        softmax = total / number_of_rows
        if LARGE:
            looked_at = tl.maximum((taken - NTH // 2 + NTH - 1) // NTH, 0)
            if (count > EVEN) & (looked_at > 0):
                draw(
                    tops, keys, long_places, long_weights, own, batch, first, count, many,
                    LONG_EVEN, LONG_TOP, MOST, PLACES, TILE,
                )  # fmt: skip
                LONG_MANY: tl.constexpr = LONG_EVEN + 2 * LONG_TOP
                for some in range(0, looked_at, TILE):
                    number = (some + tl.arange(0, TILE)) * NTH + NTH // 2
                    there = number < taken
                    query_batch, query_head, row = sample_rows(
                        q, queries, ranked, sequence, head, heads, groups, number, taken, PLACES_OF_ROWS, LARGE
                    )
                    entropy = softmax_rows(
                        q, k, spread, long_places, long_weights, own * LONG_MANY, own, batch, head,
                        query_batch, query_head, row, there, D, SCALE, CENTERED, SAME, LONG_MANY, TILE,
                    )  # fmt: skip
                    entropy -= tl.load(of_rows + own * MOST_ROWS + number, mask=there, other=0.0)
                    missed += tl.sum(tl.where(there, entropy, 0.0).to(tl.float64), 0)
                softmax = tl.maximum(softmax + missed / looked_at, 0.0)
        full = tl.log(tl.maximum(count, 1).to(tl.float64))
        wanted = odds(softmax, full, SMALLEST_DEFICIT, SMALLEST_ENTROPY)
        tolerated = tl.maximum(softmax * TOLERATED_SHARE, TOLERATED)
        alpha, beta = tl.load(start + own * 4), tl.load(start + own * 4 + 1)
        x, slope = number_of_rows * 0.0, number_of_rows * 0.0 + USUAL_SLOPE
        if LARGE:
            x, slope = tl.load(found + own * 3), tl.load(found + own * 3 + 1)
        low, high = x * 0.0 + LOWEST, x * 0.0 + HIGHEST
        following, value, lln, error, close = x, x * 0.0, x * 0.0, x * 0.0, 0
        for evaluation in range(EVALUATIONS):
            if close == 0:
                factor = tl.exp(following / 2)
                at_alpha, at_beta = (alpha * factor).to(tl.float32), (beta * factor).to(tl.float32)
                total, off, squares = x * 0.0, x * 0.0, x * 0.0
                for some in range(0, taken, TILE):
                    number = some + tl.arange(0, TILE)
                    there = number < taken
                    query_batch, query_head, row = sample_rows(
                        q, queries, ranked, sequence, head, heads, groups, number, taken, PLACES_OF_ROWS, LARGE
                    )
                    entropy = lln_rows(
                        q, k, spread, highest, places, weights, base, own, batch, head, query_batch, query_head, row,
                        there, at_alpha, at_beta, D, CENTERED, SAME, MANY, TILE,
                    )  # fmt: skip
                    entropy = tl.where(there, entropy, 0.0).to(tl.float64)
                    total += tl.sum(entropy, 0)
                    entropy -= tl.load(of_rows + own * MOST_ROWS + number, mask=there, other=0.0)
                    off += tl.sum(entropy, 0)
                    squares += tl.sum(entropy * entropy, 0)
                lln = total / number_of_rows
                following_value = odds(lln, full, SMALLEST_DEFICIT, SMALLEST_ENTROPY) - wanted
                secant = (following_value - value) / tl.where(following == x, 1.0, following - x)
                good = (evaluation > 0) & (secant > SMALLEST_SLOPE) & (secant < float("inf"))
                slope = tl.where(good, secant, slope)
                x, value, off = following, following_value, off / number_of_rows
                error = tl.sqrt(tl.maximum(squares / number_of_rows - off * off, 0.0) / number_of_rows)
                low, high = tl.where(value < 0, x, low), tl.where(value >= 0, x, high)
                near = tl.abs(lln - softmax) < CLOSE * tolerated
                close = (near | ((tl.abs(value) < float("inf")) == 0)).to(tl.int32)
                following = step_along(x, value, slope, low, high)
        # Close to the root the secant is better than where it starts; where both are uniform there is nothing to find.
        x = tl.where((tl.abs(value) < 1.0) & (full - softmax > SMALLEST_DEFICIT), following, x)
        factor = tl.exp(x / 2)
        tl.store(alphas + own, alpha * factor)
        tl.store(betas + own, beta * factor)
        tl.store(entropies + own * 2, softmax)
        tl.store(entropies + own * 2 + 1, lln)
        enough = (error <= TRUSTED * tolerated) & (tl.abs(x) <= USUAL_X)
        tl.store(found + own * 3, x)
        tl.store(found + own * 3 + 1, slope)
        tl.store(found + own * 3 + 2, tl.where(enough, 1.0, 0.0))
