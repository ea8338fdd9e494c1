// Near-far attention. Blocks are taken in order; the moments of the far keys before a block are carried along, those after it
// come from `Beyond`. A row's three products, with near values, with LLN's sums and with the covariance, add up in one tile,
// their factors being multiplied into the weights first.
#pragma once
#include "near_far_beyond.h"
#include "near_far_rows.h"

namespace LLN_ISA {

static void near_far_rows(const NearFarHead& head, int64_t group, const Span& block, const NearKeys& near, const Far& far, RowTile& tile,
                          float* result) {
    const Shape& s = head.shape;
    const Rows q = head.queries(head.near_far.q, group, s.dim), out = head.queries(head.near_far.out, group, s.value_dim);
    const float* weights = head.weights(group);
    const int most = tile.most(near), ldp = near.pitch_of;
    float logs[ROW_TILE];
    for (int64_t at = block.first; at < block.last; at += most) {
        const int rows = int(least(most, block.last - at)), limit = near.seen_by(at + rows - 1);
        tile.load_queries_of(group, at, rows);
        const int64_t ahead = least(at + block.rows(), head.key_rows);
        Fetch next(ahead, least(ahead + rows, head.key_rows), blocks(rows, padded(limit)));
        next.read(q).write(out);
        tile.attend_near(near, at, rows, limit, logs, next.read(head.k).read(head.v));
        if (!far.exists()) {
            deep_product(rows, s.e, limit, tile.scores, ldp, near.values, s.le, result, s.le);
            store_rows(out, at, rows, result, s.le, tile.totals);
            continue;
        }
        tile.weigh_far(far, group, at, rows, logs);
        for (int r = 0; r < rows; ++r) {
            const float m = tile.shares[r];
            const float of_near = (1 + m * (weights[OF_NEAR] - 1)) / tile.totals[r];
            scale_row(tile.scores + int64_t(r) * ldp, padded(limit), of_near);
            scale_row(tile.features + int64_t(r) * s.ld, s.d, m * weights[OF_LLN] / tile.denominators[r]);
            scale_row(tile.queries + int64_t(r) * s.ld, s.d,
                      m * weights[OF_SLOPE] * float(head.near_far.scale) * tile.falls[r] * far.share);
            for (int e = 0; e < s.e; e += W)
                store(result + int64_t(r) * s.le + e, load(far.moments.value_mean + e) * (m * weights[OF_MEAN]));
        }
        for (int k = 0; k < limit; k += DEEPEST)
            product<ROWS, ADD>(rows, s.e, int(least(DEEPEST, limit - k)), tile.scores + k, ldp, near.values + int64_t(k) * s.le, s.le,
                               result, s.le);
        product<ROWS, ADD>(rows, s.e, s.d, tile.features, s.ld, far.moments.s, s.le, result, s.le);
        product<ROWS, ADD>(rows, s.e, s.d, tile.queries, s.ld, far.moments.p, s.le, result, s.le);
        store_rows(out, at, rows, result, s.le);
    }
}

// Calls use(block, far) for each block in order, far being the moments of its far keys.
template <class Use>
static void for_each_block_with_far(const NearFarHead& head, Use use) {
    const Shape& s = head.shape;
    Buffer memory(RunningMoments::floats(s)), both_memory(Moments::floats(s)), variance(s.d);
    const RunningMoments before(memory, s);
    const Moments both(both_memory, s);
    before.clear(s);
    const int64_t gap = least(head.near_far.neighbours, head.blocks);
    if (!head.has_far()) {
        for (int64_t b = 0; b < head.blocks; ++b) use(b, Far(before, variance, s));
        return;
    }
    BlockMoments of_block(head);
    const auto enter = [&](int64_t b) {  // the block that has left the window of b
        if (b - gap - 1 >= 0) merge(before, of_block(b - gap - 1), s);
    };
    if (head.near_far.is_causal) {
        for (int64_t b = 0; b < head.blocks; ++b) {
            enter(b);
            use(b, Far(before, variance, s));
        }
        return;
    }
    Beyond<Moments, RunningMoments, Shape, BlockMoments> after(s, head.blocks, gap, of_block);
    for (int64_t b = 0; b < head.blocks; ++b) {
        enter(b);
        combine(before, after(b), both, s);
        use(b, Far(both, variance, s));
    }
}

static void all_near_far_forward(const NearFarProblem& problem) {
    for_each_near_far_head(problem, [&](const NearFarHead& head) {
        const Shape& s = head.shape;
        NearKeysOfBlock near(head);
        RowTile tile(head, near);
        Buffer result(ROW_TILE * s.le);
        fill_row(result, s.e, 0);
        for (int64_t g = 0; g < head.groups; ++g)
            store_zero_rows(head.queries(problem.out, g, s.value_dim), 0, head.origin, result);
        for_each_block_with_far(head, [&](int64_t b, const Far& far) {
            near.load(b);
            for (int64_t g = 0; g < head.groups; ++g) near_far_rows(head, g, head.block(b), near, far, tile, result);
        });
    });
}

}  // namespace LLN_ISA
