"""The search on more rows and keys, for heads whose small sample does not suffice; one program a head.

Softmax is looked at once, on rows by rank of r = sum_l var(k_l) q_l^2, and on a few of them over many more keys. LLN is looked
at several times, on rows by rank of their largest exponent. `lln.ops.moments.search` says why.
"""

import triton
import triton.language as tl

from lln.ops.gpu.sample_places import in_order, middle, tokens_of
from lln.ops.gpu.sample_scores import TINY
from lln.ops.gpu.sample_search import (
    SLICE,
    choose,
    draw,
    highest_x,
    lln_rows,
    odds,
    raise_highest,
    read_queries,
    rows_at,
    softmax_rows,
    stepped,
    store_highest,
    store_results,
)


@triton.jit
def rank_candidates(
    q, queries, spread, start, scores, sequence, head, own, groups, number_of_rows,
    D: tl.constexpr, PLACES: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """r of rows by position as `in_order`, rounded so that who summed it makes no difference."""
    unit = 1.0 / tl.sqrt(tl.load(start + own * 4 + 2))
    largest = tl.zeros([SLICE], tl.float64)
    for some in range(0, D, SLICE):
        column = some + tl.arange(0, SLICE)
        largest = tl.maximum(largest, tl.load(spread + (own * 4 + 3) * D + column, mask=column < D, other=0.0))
    share = 1.0 / tl.maximum(tl.max(largest, 0), TINY)
    for first in range(0, number_of_rows, TILE):
        number = first + tl.arange(0, TILE)
        there = number < number_of_rows
        batch, query_head, row = rows_at(queries, sequence, head, groups, number, number_of_rows, PLACES)
        r = tl.zeros([TILE], tl.float64)
        for some in range(0, D, SLICE):
            column = some + tl.arange(0, SLICE)
            of_k = tl.load(spread + (own * 4 + 3) * D + column, mask=column < D, other=0.0) * share
            y = read_queries(q, batch, query_head, row, column, there, D).to(tl.float64) * unit
            r += tl.sum(y * y * of_k[None, :], 1)
        tl.store(scores + number, in_order(r.to(tl.float32), there, number), mask=there)


@triton.jit
def chosen_rows(queries, ranked, sequence, head, groups, number, taken, candidates, PLACES: tl.constexpr):
    """Sample, heads and positions of the rows by rank with these numbers."""
    candidate = tl.load(ranked + number, mask=number < taken, other=0)
    return rows_at(queries, sequence, head, groups, candidate, candidates, PLACES)


@triton.jit
def large_search(
    q, k, queries, keys, spread, start, tops, places, weights, long_places, long_weights, lln_places, lln_weights,
    scores, ranked, by_exponent, of_rows, highest, found, alphas, betas, entropies, groups, many,
    D: tl.constexpr, SCALE: tl.constexpr, CENTERED: tl.constexpr, SAME: tl.constexpr,
    FEWEST_ROWS: tl.constexpr, MOST_ROWS: tl.constexpr, ROW_SHARE: tl.constexpr, PLACES: tl.constexpr,
    CANDIDATES: tl.constexpr, LONG_FEWEST: tl.constexpr, LONG_ROWS: tl.constexpr, LONG_ROW_SHARE: tl.constexpr,
    LLN_FEWEST: tl.constexpr, LLN_ROWS: tl.constexpr, LLN_ROW_SHARE: tl.constexpr,
    TOP: tl.constexpr, MOST: tl.constexpr, EVEN: tl.constexpr,
    LONG_EVEN: tl.constexpr, LONG_MOST: tl.constexpr, LONG_SHARE: tl.constexpr,
    LLN_EVEN: tl.constexpr, LLN_MOST: tl.constexpr, LLN_SHARE: tl.constexpr,
    EVALUATIONS: tl.constexpr, TILE: tl.constexpr,
    LOWEST: tl.constexpr, STEEPEST: tl.constexpr, USUAL_SLOPE: tl.constexpr, SMALLEST_SLOPE: tl.constexpr,
    SMALLEST_DEFICIT: tl.constexpr, SMALLEST_ENTROPY: tl.constexpr, TOLERATED: tl.constexpr,
    TOLERATED_SHARE: tl.constexpr, CLOSE: tl.constexpr, TRUSTED: tl.constexpr, USUAL_X: tl.constexpr,
):  # fmt: skip
    """Goes on from what the small search `found`. Grid: sequences, key heads."""
    sequence, head, heads = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    own = (sequence * heads + head).to(tl.int64)
    if tl.load(found + own * 3 + 2) == 0.0:
        batch, first, count = tokens_of(keys, sequence)
        rows_there = tokens_of(queries, sequence)[2].to(tl.int64) * groups
        wanted_rows = tl.minimum(tl.maximum(count // ROW_SHARE, FEWEST_ROWS), MOST_ROWS)
        candidates = tl.minimum(rows_there, wanted_rows * CANDIDATES).to(tl.int32)
        scores += own * MOST_ROWS * CANDIDATES
        ranked += own * MOST_ROWS
        by_exponent += own * LLN_ROWS
        of_rows += own * MOST_ROWS
        rank_candidates(q, queries, spread, start, scores, sequence, head, own, groups, candidates, D, PLACES, TILE)
        taken = choose(scores, ranked, candidates, wanted_rows, TILE, 128)
        alpha, beta = tl.load(start + own * 4), tl.load(start + own * 4 + 1)
        base, drawn = draw(tops, keys, places, weights, own, batch, first, count, many, EVEN, 0, 1, TOP, MOST, TILE)
        store_highest(k, spread, highest, places, weights, base, drawn, own, batch, head, D, CENTERED, TILE)
        total = alpha * 0.0
        for some in range(0, taken, TILE):
            number = some + tl.arange(0, TILE)
            there = number < taken
            query_batch, query_head, row = chosen_rows(
                queries, ranked, sequence, head, groups, number, taken, candidates, PLACES
            )
            entropy = softmax_rows(
                q, k, spread, places, weights, base, drawn, own, batch, head, query_batch, query_head, row, there,
                D, SCALE, CENTERED, SAME, TILE,
            )  # fmt: skip
            tl.store(of_rows + number, entropy, mask=there)
            total += tl.sum(tl.where(there, entropy, 0.0).to(tl.float64), 0)
            top = tl.full([TILE], float("-inf"), tl.float64)
            for part in range(0, D, SLICE):
                column = part + tl.arange(0, SLICE)
                rows = read_queries(q, query_batch, query_head, row, column, there, D).to(tl.float64)
                peak = tl.load(highest + own * D + column, mask=column < D, other=0.0).to(tl.float64) * beta
                exponents = tl.where((column < D)[None, :], rows * alpha + peak[None, :], float("-inf"))
                top = tl.maximum(top, tl.max(exponents, 1))
            tl.store(scores + number, in_order(top.to(tl.float32), there, number), mask=there)
        softmax = total / tl.maximum(taken, 1)
        lln_wanted = tl.minimum(tl.maximum(count // LLN_ROW_SHARE, LLN_FEWEST), LLN_ROWS)
        lln_taken = choose(scores, by_exponent, taken, lln_wanted, TILE, 128)
        base, drawn = draw(
            tops, keys, long_places, long_weights, own, batch, first, count, many,
            LONG_EVEN, LONG_MOST, LONG_SHARE, TOP, MOST, TILE,
        )  # fmt: skip
        long_taken = tl.minimum(taken, tl.minimum(tl.maximum(count // LONG_ROW_SHARE, LONG_FEWEST), LONG_ROWS))
        missed = alpha * 0.0
        for some in range(0, long_taken, TILE):
            place = some + tl.arange(0, TILE)
            there = place < long_taken
            number = middle(place, long_taken, taken)
            query_batch, query_head, row = chosen_rows(
                queries, ranked, sequence, head, groups, number, taken, candidates, PLACES
            )
            entropy = softmax_rows(
                q, k, spread, long_places, long_weights, base, drawn, own, batch, head, query_batch, query_head, row,
                there, D, SCALE, CENTERED, SAME, TILE,
            )  # fmt: skip
            entropy -= tl.load(of_rows + number, mask=there, other=0.0)
            missed += tl.sum(tl.where(there, entropy, 0.0).to(tl.float64), 0)
        softmax = tl.maximum(softmax + missed / tl.maximum(long_taken, 1), 0.0)
        base, drawn = draw(
            tops, keys, lln_places, lln_weights, own, batch, first, count, many,
            LLN_EVEN, LLN_MOST, LLN_SHARE, TOP, MOST, TILE,
        )  # fmt: skip
        store_highest(k, spread, highest, lln_places, lln_weights, base, drawn, own, batch, head, D, CENTERED, TILE)
        if SAME:
            for some in range(0, lln_taken, TILE):
                place = some + tl.arange(0, TILE)
                number = tl.load(by_exponent + place, mask=place < lln_taken, other=0)
                query_batch, query_head, row = chosen_rows(
                    queries, ranked, sequence, head, groups, number, taken, candidates, PLACES
                )
                raise_highest(k, spread, highest, own, batch, head, row, place < lln_taken, D, CENTERED)
        full = tl.log(tl.maximum(count, 1).to(tl.float64))
        wanted = odds(softmax, full, SMALLEST_DEFICIT, SMALLEST_ENTROPY)
        tolerated = tl.maximum(softmax * TOLERATED_SHARE, TOLERATED)
        x, slope = tl.load(found + own * 3), tl.load(found + own * 3 + 1)
        most = highest_x(start, own, D, SCALE, STEEPEST)
        low, high = x * 0.0 + LOWEST, most
        following, value, lln, close = x, x * 0.0, x * 0.0, 0
        for evaluation in tl.range(EVALUATIONS, disable_licm=True):
            if close == 0:
                factor = tl.exp(following / 2)
                total = x * 0.0
                for some in range(0, lln_taken, TILE):
                    place = some + tl.arange(0, TILE)
                    there = place < lln_taken
                    number = tl.load(by_exponent + place, mask=there, other=0)
                    query_batch, query_head, row = chosen_rows(
                        queries, ranked, sequence, head, groups, number, taken, candidates, PLACES
                    )
                    entropy = lln_rows(
                        q, k, spread, highest, lln_places, lln_weights, base, drawn, own, batch, head, query_batch,
                        query_head, row, there, (alpha * factor).to(tl.float32), (beta * factor).to(tl.float32),
                        D, CENTERED, SAME, TILE,
                    )  # fmt: skip
                    total += tl.sum(tl.where(there, entropy, 0.0).to(tl.float64), 0)
                lln = total / tl.maximum(lln_taken, 1)
                x, value, slope, low, high, following, close = stepped(
                    x, following, value, odds(lln, full, SMALLEST_DEFICIT, SMALLEST_ENTROPY) - wanted, slope, low,
                    high, most, evaluation, tl.abs(lln - softmax) < CLOSE * tolerated, SMALLEST_SLOPE,
                )  # fmt: skip
        x = tl.where((tl.abs(value) < 1.0) & (full - softmax > SMALLEST_DEFICIT), following, x)
        store_results(alphas, betas, entropies, own, x, alpha, beta, softmax, lln)
