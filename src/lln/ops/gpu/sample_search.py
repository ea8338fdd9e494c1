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
TINIEST = tl.constexpr(1e-300)  # of a double that has a logarithm
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
    EVEN: tl.constexpr, MOST_EVEN: tl.constexpr, SHARE: tl.constexpr, TOP: tl.constexpr, MOST: tl.constexpr,
    TILE: tl.constexpr,
):  # fmt: skip
    """Writes the places of keys, 2 TOP of tops and then the even ones, and for how many keys each stands; returns how many."""
    PLACES: tl.constexpr = triton.next_power_of_2(TOP)
    CAPACITY: tl.constexpr = 2 * TOP + max(EVEN, MOST_EVEN)
    taken = tl.minimum(count, tl.maximum(tl.minimum(count // SHARE, MOST_EVEN), EVEN))
    some = count > taken  # else the even keys are all there are
    by_feature, there = top_places(tops, own, TOP, MOST, PLACES)
    by_softmax, _ = top_places(tops + many, own, TOP, MOST, PLACES)
    of_feature, of_softmax = there & some, there & some & (is_among(by_softmax, by_feature, there) == 0)
    number = tl.sum(of_feature.to(tl.int32)) + tl.sum(of_softmax.to(tl.int32))
    standing = 0
    for start in range(0, taken, TILE):
        place = start + tl.arange(0, TILE)
        position = position_of(keys, batch, first, middle(place, taken, count), place < taken)
        repeated = is_among(position, by_feature, of_feature) | is_among(position, by_softmax, of_softmax)
        standing += tl.sum(((place < taken) & (repeated == 0)).to(tl.int32))
    each = ((count - number).to(tl.float64) / tl.maximum(standing, 1)).to(tl.float32)
    base = own * CAPACITY
    for start in range(0, taken, TILE):
        place = start + tl.arange(0, TILE)
        position = position_of(keys, batch, first, middle(place, taken, count), place < taken)
        repeated = is_among(position, by_feature, of_feature) | is_among(position, by_softmax, of_softmax)
        tl.store(places + base + 2 * TOP + place, position, mask=place < taken)
        tl.store(weights + base + 2 * TOP + place, tl.where(repeated, 0.0, each), mask=place < taken)
    place = base + tl.arange(0, PLACES)
    tl.store(places + place, by_feature, mask=there)
    tl.store(weights + place, of_feature.to(tl.float32), mask=there)
    tl.store(places + place + TOP, by_softmax, mask=there)
    tl.store(weights + place + TOP, of_softmax.to(tl.float32), mask=there)
    tl.debug_barrier()
    return base, 2 * TOP + taken


@triton.jit
def rows_at(queries, sequence, head, groups, number, taken, PLACES: tl.constexpr):
    """Sample, heads and positions of the rows by position with these numbers."""
    batch, first, count = tokens_of(queries, sequence)
    position = position_of(queries, batch, first, middle(number, taken, count), number < taken)
    return batch, head * groups + number * ((groups - 1) // PLACES + 1) % groups, position


@triton.jit
def choose(scores, chosen, number, wanted, TILE: tl.constexpr, MANY: tl.constexpr):
    """Of `number` scores as `in_order`, the indices of `wanted` at equal distances in falling order; returns how many."""
    tl.debug_barrier()
    taken = tl.minimum(number, wanted)
    for start in range(0, number, TILE):
        index = start + tl.arange(0, TILE)
        score = tl.load(scores + index, mask=index < number, other=0)
        rank = tl.zeros([TILE], tl.int32)
        for some in range(0, number, MANY):
            other = some + tl.arange(0, MANY)
            others = tl.load(scores + other, mask=other < number, other=0)
            rank += tl.sum(((others[None, :] > score[:, None]) & (other < number)[None, :]).to(tl.int32), 1)
        place = (rank.to(tl.int64) * taken // tl.maximum(number, 1)).to(tl.int32)
        for _more in range(2):  # the stretch whose middle this rank is, if any, is this one or the next
            here = (index < number) & (place < taken) & (middle(place, taken, number) == rank)
            tl.store(chosen + place, index, mask=here)
            place += 1
    tl.debug_barrier()
    return taken


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
def weights_of_keys(places, weights, base, place, many):
    position = tl.load(places + base + place, mask=place < many, other=0)
    return position, tl.load(weights + base + place, mask=place < many, other=0.0)


@triton.jit
def without_own(weight, position, own_position, SAME: tl.constexpr):
    """(rows, keys): the weights of keys, 0 for a row's own key, which stands for itself."""
    if SAME:
        return tl.where(position[None, :] == own_position[:, None], 0.0, weight[None, :])
    else:
        return tl.where(own_position[:, None] >= 0, weight[None, :], 0.0)


@triton.jit
def softmax_rows(
    q, k, spread, places, weights, base, many, own, batch, head, query_batch, query_head, row, there,
    D: tl.constexpr, SCALE: tl.constexpr, CENTERED: tl.constexpr, SAME: tl.constexpr, TILE: tl.constexpr,
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
    for start in range(0, many, TILE):
        position, weight = weights_of_keys(places, weights, base, start + tl.arange(0, TILE), many)
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
    q, k, spread, highest, places, weights, base, many, own, batch, head, query_batch, query_head, row, there,
    alpha, beta, D: tl.constexpr, CENTERED: tl.constexpr, SAME: tl.constexpr, TILE: tl.constexpr,
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
    for start in range(0, many, TILE):
        position, weight = weights_of_keys(places, weights, base, start + tl.arange(0, TILE), many)
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
def step_along(x, value, slope, low, high, most):
    proposed = tl.minimum(x - value / slope, most)
    return tl.where((proposed > low) & (proposed <= high), proposed, (low + high) / 2)


@triton.jit
def highest_x(start, own, D: tl.constexpr, SCALE: tl.constexpr, STEEPEST: tl.constexpr):
    """Where beta is STEEPEST scale d sigma_q, and so alpha the same of k; 0 where the table asks for more."""
    beta, of_q = tl.load(start + own * 4 + 1), tl.load(start + own * 4 + 2)
    steepest = tl.sqrt(of_q) * D * STEEPEST * tl.abs(of_q * 0.0 + SCALE)
    return tl.maximum(2 * tl.log(tl.maximum(steepest, TINIEST) / tl.maximum(beta, TINIEST)), 0.0)


@triton.jit
def store_highest(
    k, spread, highest, places, weights, base, many, own, batch, head,
    D: tl.constexpr, CENTERED: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """The largest of each feature over the drawn keys, (D,)."""
    for some in range(0, D, SLICE):
        column = some + tl.arange(0, SLICE)
        found = tl.full([SLICE], float("-inf"), tl.float32)
        for start in range(0, many, TILE):
            position, weight = weights_of_keys(places, weights, base, start + tl.arange(0, TILE), many)
            x = read_keys(k, spread, own, batch, head, position, column, weight > 0, D, CENTERED)
            found = tl.maximum(found, tl.max(tl.where((weight > 0)[:, None], x, float("-inf")), 0))
        tl.store(highest + own * D + column, tl.where(found == float("-inf"), 0.0, found), mask=column < D)
    tl.debug_barrier()


@triton.jit
def raise_highest(
    k, spread, highest, own, batch, head, row, there, D: tl.constexpr, CENTERED: tl.constexpr
):  # fmt: skip
    """With the own keys of some rows."""
    for some in range(0, D, SLICE):
        column = some + tl.arange(0, SLICE)
        x = read_keys(k, spread, own, batch, head, row, column, there, D, CENTERED)
        at = highest + own * D + column
        before = tl.load(at, mask=column < D, other=0.0)
        found = tl.maximum(before, tl.max(tl.where(there[:, None], x, float("-inf")), 0))
        tl.debug_barrier()
        tl.store(at, found, mask=column < D)
    tl.debug_barrier()


@triton.jit
def small_search(
    q, k, queries, keys, spread, start, tops, places, weights, of_rows, highest, found, alphas, betas, entropies,
    groups, many,
    D: tl.constexpr, SCALE: tl.constexpr, CENTERED: tl.constexpr, SAME: tl.constexpr, ROWS: tl.constexpr,
    EVEN: tl.constexpr, TOP: tl.constexpr, MOST: tl.constexpr, EVALUATIONS: tl.constexpr, TILE: tl.constexpr,
    LOWEST: tl.constexpr, STEEPEST: tl.constexpr, USUAL_SLOPE: tl.constexpr, SMALLEST_SLOPE: tl.constexpr,
    SMALLEST_DEFICIT: tl.constexpr, SMALLEST_ENTROPY: tl.constexpr, TOLERATED: tl.constexpr,
    TOLERATED_SHARE: tl.constexpr, CLOSE: tl.constexpr, TRUSTED: tl.constexpr, USUAL_X: tl.constexpr,
):  # fmt: skip
    """`found` (S, H, 3): x, the slope, and whether that is enough. `many`: numbers in `tops` of one kind.

    All rows of the small sample are one tile. Grid: sequences, key heads.
    """
    sequence, head, heads = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    own = (sequence * heads + head).to(tl.int64)
    batch, first, count = tokens_of(keys, sequence)
    taken = tl.minimum(tokens_of(queries, sequence)[2].to(tl.int64) * groups, ROWS).to(tl.int32)
    number = tl.arange(0, TILE)
    there = number < taken
    tl.static_assert(ROWS <= TILE)
    query_batch, query_head, row = rows_at(queries, sequence, head, groups, number, taken, ROWS)
    base, drawn = draw(
        tops, keys, places, weights, own, batch, first, count, many, EVEN, 0, 1, TOP, MOST, TILE
    )  # fmt: skip
    store_highest(k, spread, highest, places, weights, base, drawn, own, batch, head, D, CENTERED, TILE)
    if SAME:
        raise_highest(k, spread, highest, own, batch, head, row, there, D, CENTERED)
    of_softmax = softmax_rows(
        q, k, spread, places, weights, base, drawn, own, batch, head, query_batch, query_head, row, there,
        D, SCALE, CENTERED, SAME, TILE,
    )  # fmt: skip
    of_softmax = tl.where(there, of_softmax, 0.0).to(tl.float64)
    rows = tl.maximum(taken, 1).to(tl.float64)
    softmax = tl.sum(of_softmax, 0) / rows
    full = tl.log(tl.maximum(count, 1).to(tl.float64))
    wanted = odds(softmax, full, SMALLEST_DEFICIT, SMALLEST_ENTROPY)
    tolerated = tl.maximum(softmax * TOLERATED_SHARE, TOLERATED)
    alpha, beta = tl.load(start + own * 4), tl.load(start + own * 4 + 1)
    x, slope = rows * 0.0, rows * 0.0 + USUAL_SLOPE
    most = highest_x(start, own, D, SCALE, STEEPEST)
    low, high = x * 0.0 + LOWEST, most
    following, value, lln, error, close = x, x * 0.0, x * 0.0, x * 0.0, 0
    for evaluation in tl.range(EVALUATIONS, disable_licm=True):
        if close == 0:
            factor = tl.exp(following / 2)
            of_lln = lln_rows(
                q, k, spread, highest, places, weights, base, drawn, own, batch, head, query_batch, query_head, row,
                there, (alpha * factor).to(tl.float32), (beta * factor).to(tl.float32), D, CENTERED, SAME, TILE,
            )  # fmt: skip
            of_lln = tl.where(there, of_lln, 0.0).to(tl.float64)
            lln = tl.sum(of_lln, 0) / rows
            off = tl.where(there, of_lln - of_softmax - (lln - softmax), 0.0)
            error = tl.sqrt(tl.sum(off * off, 0) / rows / rows)
            x, value, slope, low, high, following, close = stepped(
                x, following, value, odds(lln, full, SMALLEST_DEFICIT, SMALLEST_ENTROPY) - wanted, slope, low, high,
                most, evaluation, tl.abs(lln - softmax) < CLOSE * tolerated, SMALLEST_SLOPE,
            )  # fmt: skip
    x = tl.where((tl.abs(value) < 1.0) & (full - softmax > SMALLEST_DEFICIT), following, x)
    store_results(alphas, betas, entropies, own, x, alpha, beta, softmax, lln)
    enough = (error <= TRUSTED * tolerated) & (tl.abs(x) <= USUAL_X)
    tl.store(found + own * 3, x)
    tl.store(found + own * 3 + 1, slope)
    tl.store(found + own * 3 + 2, tl.where(enough, 1.0, 0.0))


@triton.jit
def stepped(x, following, value, next_value, slope, low, high, most, evaluation, near, SMALLEST_SLOPE: tl.constexpr):
    """Where the search stands after an evaluation at `following`, and where it looks next.

    Close to the root the secant is better than where it starts, so its last step is taken without a look.
    """
    secant = (next_value - value) / tl.where(following == x, 1.0, following - x)
    good = (evaluation > 0) & (secant > SMALLEST_SLOPE) & (secant < float("inf"))
    slope = tl.where(good, secant, slope)
    low, high = tl.where(next_value < 0, following, low), tl.where(next_value >= 0, following, high)
    close = near | ((tl.abs(next_value) < float("inf")) == 0) | ((following >= most) & (next_value < 0))
    after = step_along(following, next_value, slope, low, high, most)
    return following, next_value, slope, low, high, after, close.to(tl.int32)


@triton.jit
def store_results(alphas, betas, entropies, own, x, alpha, beta, softmax, lln):
    factor = tl.exp(x / 2)
    tl.store(alphas + own, alpha * factor)
    tl.store(betas + own, beta * factor)
    tl.store(entropies + own * 2, softmax)
    tl.store(entropies + own * 2 + 1, lln)
