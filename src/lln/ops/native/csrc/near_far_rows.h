// What rows of a block make of its far keys: how much of softmax's weight is far, and by what the parts of the output count.
//
//   x = s^2 sum_l q_l^2 sigma_l^2,   E(x) = x / 2 if x <= 2 ln n, else sqrt(2 x ln n) - ln n,   fall = 2 E'(x)
//   m = sigmoid(ln n + s q . mu + E(x) - log of the near sum)
//   out = (1 - m + m w_near) near + m (w_lln f S / (f . z) + w_mean v_mean + w_slope s fall q P / n)
#pragma once
#include "near_far_moments.h"
#include "near_far_near.h"

namespace LLN_ISA {

constexpr int ROW_TILE = 64;

enum Weight { OF_NEAR, OF_LLN, OF_MEAN, OF_SLOPE };

// The far keys of a block, as its rows read them.
struct Far {
    const Moments moments;
    double count;
    float log_count, share;  // share: 1 / n
    const float* variance;
    Far(const Moments& m, float* variance_memory, const Shape& s)
        : moments(m), count(*m.count), log_count(float(std::log(count < 1 ? 1 : count))), share(float(1 / (count < 1 ? 1 : count))),
          variance(variance_memory) {
        for (int l = 0; l < s.d; l += W) store(variance_memory + l, load(m.spread + l) * share);
    }
    bool exists() const { return count > 0; }
};

// A tile of rows of one query head.
struct RowTile {
    const NearFarHead& head;
    const Shape& s;
    Buffer queries, features, scores;  // q, f of LLN, exp(s q . k - shift) of near
    float maxima[ROW_TILE], denominators[ROW_TILE];
    float totals[ROW_TILE];                   // the near sums; 1 where a row sees no near key
    float shares[ROW_TILE], rests[ROW_TILE];  // m and 1 - m
    float spreads[ROW_TILE], falls[ROW_TILE];

    RowTile(const NearFarHead& h, const NearKeys& near)
        : head(h), s(h.shape), queries(ROW_TILE * s.ld), features(ROW_TILE * s.ld), scores(int64_t(ROW_TILE) * near.pitch_of) {}

    // Rows that a tile may have. A row meets the values that only others see with weight 0, which NaN does not respect.
    int most(const NearKeys& near) const {
        const int fit = 32768 / near.pitch_of / BLOCK_ROWS * BLOCK_ROWS, wide = fit < 2 * BLOCK_ROWS ? 2 * BLOCK_ROWS : fit;
        return !near.all_finite ? 1 : wide < ROW_TILE ? wide : ROW_TILE;
    }

    void load_queries_of(int64_t group, int64_t first, int rows) {
        load_rows(head.queries(head.near_far.q, group, s.dim), first, rows, nullptr, nullptr, queries, s.ld);
    }

    // The near part: weights up to a factor, and their sums.
    template <class Meanwhile>
    void attend_near(const NearKeys& near, int64_t first, int rows, int limit, float* logs, Meanwhile&& meanwhile) {
        const int ldp = near.pitch_of;
        product<ROWS, OVERWRITE>(rows, padded(limit), s.dim, queries, s.ld, near.keys_t, ldp, scores, ldp, meanwhile);
        for (int r = 0; r < rows; ++r) {
            const int seen = near.seen_by(first + r);
            float *row = scores + int64_t(r) * ldp, largest = 0;
            const float total = exponentials(row, seen, float(head.near_far.scale), near, &largest);
            for (int j = padded(seen); j < limit; j += W) store(row + j, vf{});
            totals[r] = total == 0 ? 1 : total;
            logs[r] = total == 0 ? -__builtin_inff() : largest + std::log(total);
        }
    }

    // The features of LLN, and how much is far.
    void weigh_far(const Far& far, int64_t group, int64_t first, int rows, const float* near_logs) {
        const Rows q = head.queries(head.near_far.q, group, s.dim);
        load_queries(q, first, rows, head.alpha(group), head.bias(group), far.moments.c, 0, features, s.ld, maxima);
        query_features(rows, s.d, far.moments.r, maxima, features, s.ld);
        row_denominators(rows, s.d, features, s.ld, far.moments.z, 0, denominators);
        const float scale = float(head.near_far.scale), frozen_from = 2 * far.log_count;
        for (int r = 0; r < rows; ++r) {
            const float* row = queries + int64_t(r) * s.ld;
            vf squares = {}, products = {};
            for (int l = 0; l < s.d; l += W) {
                const vf x = load(row + l);
                squares += x * x * load(far.variance + l);
                products += x * load(far.moments.mean + l);
            }
            const float x = scale * scale * sum(squares);
            const bool frozen = x > frozen_from;
            const float energy = frozen ? std::sqrt(frozen_from * x) - far.log_count : x / 2;
            spreads[r] = x;
            falls[r] = frozen ? std::sqrt(frozen_from / x) : 1;
            const float ahead = near_logs[r] - (far.log_count + scale * sum(products) + energy);  // -inf without a near key
            shares[r] = 1 / (1 + std::exp(ahead));
            rests[r] = 1 / (1 + std::exp(-ahead));
        }
    }
    bool frozen(const Far& far, int r) const { return spreads[r] > 2 * far.log_count; }
};

static void scale_row(float* row, int width, float factor) {
    for (int l = 0; l < width; l += W) store(row + l, load(row + l) * factor);
}

}  // namespace LLN_ISA
