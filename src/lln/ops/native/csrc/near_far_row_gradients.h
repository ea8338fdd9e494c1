// Gradients of rows of queries, and what the rows ask of near and far keys. With g = dout and, of a row,
//   near, LLN, v_mean, slope      the four parts of its output, of which only the products with g are needed
//   dm = g . ((w_near - 1) near + w_lln LLN + w_mean v_mean + w_slope slope),     eta = dm m (1 - m)
// eta is the gradient of the log of the far mass, -eta that of the near one:
//   dscore_j = s p_j ((1 - m + m w_near) (g . v_j - g . near) - eta)                 p the near weights
//   dx = eta E'(x) - m w_slope (g . slope) / (2 x) where x > 2 ln n                  since there 2 E'(x) falls as x^-1/2
//   dq = dscore K + alpha f' (S g - (g . LLN) z) + kappa P g + eta s mu + 2 dx s^2 sigma^2 q
//   f' = f m w_lln / (f . z),   kappa = m w_slope s 2 E'(x) / n
#pragma once
#include <vector>

#include "near_far_gradients.h"
#include "near_far_rows.h"

namespace LLN_ISA {

// What a query head adds up: parameters of LLN and the four weights.
struct QueryParameters {
    ParameterSums lln;
    double weights[4] = {};
    QueryParameters(float* memory, int d) : lln(memory, d) { lln.clear(d); }
};

class RowGradients {
   public:
    RowGradients(const NearFarHead& h, const NearKeysOfBlock& near, const Centre& centre)
        : head_(h), s_(h.shape), near_(near), centre_(centre), tile_(h, near), values_t_(int64_t(s_.e) * near.pitch_of),
          s_t_(int64_t(s_.e) * s_.ld), p_t_(int64_t(s_.e) * s_.ld), grads_(ROW_TILE * s_.le),
          dscores_(int64_t(ROW_TILE) * near.pitch_of), u_(ROW_TILE * s_.ld), y_(ROW_TILE * s_.ld), dq_(ROW_TILE * s_.ld),
          dspread_(s_.d), parameters_(h.groups * ParameterSums::floats(s_.d)) {
        for (int64_t g = 0; g < h.groups; ++g) sums_.emplace_back(parameters_ + g * ParameterSums::floats(s_.d), s_.d);
    }

    // The rows of a block whose near keys are loaded: dq is written, gradients of near keys are added to `keys`, and what is asked
    // of far keys becomes `to`.
    void operator()(const Span& block, const Far& far, const KeyGradients& keys, const FarGradients& to) {
        transpose(padded(near_.count), s_.value_dim, near_.values, s_.le, values_t_, near_.pitch_of);
        clear(to, s_);
        if (far.exists()) {
            transpose(s_.d, s_.e, far.moments.s, s_.le, s_t_, s_.ld);
            transpose(s_.d, s_.e, far.moments.p, s_.le, p_t_, s_.ld);
            memcpy(to.r, far.moments.r, 4 * size_t(s_.d));
            *to.rows = double(block.rows());
            fill_row(dspread_, s_.d, 0);
        }
        const int most = tile_.most(near_);
        for (int64_t group = 0; group < head_.groups; ++group)
            for (int64_t at = block.first; at < block.last; at += most)
                of_tile(group, at, int(least(most, block.last - at)), far, keys, to);
        if (far.exists()) about_centre(far, to);
    }

    void write_parameters() {
        if (!head_.problem.parameter_grads) return;
        for (int64_t g = 0; g < head_.groups; ++g) {
            const QueryParameters& sums = sums_[size_t(g)];
            write_query_parameters(head_, g, sums.lln);
            for (int i = 0; i < 4; ++i) head_.near_far.dweights[head_.query_index(g) * 4 + i] = float(sums.weights[i]);
        }
    }

   private:
    void of_tile(int64_t group, int64_t first, int rows, const Far& far, const KeyGradients& keys, const FarGradients& to) {
        const NearFarProblem& p = head_.near_far;
        const int ldp = near_.pitch_of, limit = near_.seen_by(first + rows - 1);
        float logs[ROW_TILE];
        bool absent[ROW_TILE];
        const Rows q = head_.queries(p.q, group, s_.dim), grad = head_.queries(p.grad, group, s_.value_dim);
        const Rows dq = head_.queries(p.dq, group, s_.dim);
        tile_.load_queries_of(group, first, rows);
        load_rows(grad, first, rows, nullptr, nullptr, grads_, s_.le);
        find_absent(rows, s_.e, grads_, s_.le, absent);
        for (int r = 0; r < rows; ++r)
            if (absent[r]) fill_row(tile_.queries + int64_t(r) * s_.ld, s_.d, 0);
        tile_.attend_near(near_, first, rows, limit, logs, Nothing());
        product<ROWS, OVERWRITE>(rows, padded(limit), s_.value_dim, grads_, s_.le, values_t_, ldp, dscores_, ldp);
        if (far.exists()) {
            tile_.weigh_far(far, group, first, rows, logs);
            product<ROWS, OVERWRITE>(rows, s_.d, s_.e, grads_, s_.le, s_t_, s_.ld, u_, s_.ld);
            product<ROWS, OVERWRITE>(rows, s_.d, s_.e, grads_, s_.le, p_t_, s_.ld, y_, s_.ld);
        }
        for (int r = 0; r < rows; ++r)
            if (absent[r]) leave_out(r, limit);
            else of_row(group, first + r, r, limit, far, to);
        deep_product(rows, s_.d, limit, dscores_, ldp, near_.keys, s_.ld, dq_, s_.ld);
        add_to_near(rows, limit, keys);
        if (far.exists()) {
            product<COLUMNS, ADD>(s_.d, s_.e, rows, tile_.features, s_.ld, grads_, s_.le, to.u, s_.le);
            for (int r = 0; r < rows; ++r)
                for (int l = 0; l < s_.d; l += W) {
                    const int64_t at = int64_t(r) * s_.ld + l;
                    store(dq_ + at, load(dq_ + at) + load(y_ + at) + load(u_ + at) * load(head_.alpha(group) + l));
                }
            if (p.parameter_grads) sums_[size_t(group)].lln.add_rows(rows, s_.d, u_, tile_.queries, s_.ld, absent);
            for (int r = 0; r < rows; ++r) scale_row(tile_.queries + int64_t(r) * s_.ld, s_.d, slopes_[r]);
            product<COLUMNS, ADD>(s_.d, s_.e, rows, tile_.queries, s_.ld, grads_, s_.le, to.g, s_.le);
        }
        store_rows(dq, first, rows, dq_, s_.ld);
    }

    // One row: its weights become those that dv needs, dscores the gradients of scores, features f', u da, and y all of dq but
    // what comes from scores and from LLN.
    void of_row(int64_t group, int64_t row, int r, int limit, const Far& far, const FarGradients& to) {
        const float scale = float(head_.near_far.scale), *w = head_.weights(group);
        float *weights = tile_.scores + int64_t(r) * near_.pitch_of, *dscores = dscores_ + int64_t(r) * near_.pitch_of;
        const int width = padded(near_.seen_by(row));
        const float near = products_with_values(weights, dscores, width, 1 / tile_.totals[r]);
        float of_near = 1, eta = 0;
        if (far.exists()) {
            const float m = tile_.shares[r];
            eta = of_far(group, r, far, w, near, to);
            of_near = 1 + m * (w[OF_NEAR] - 1);
            sums_[size_t(group)].weights[OF_NEAR] += double(m * near);
        }
        for (int j = 0; j < width; j += W) {
            const vf weight = load(weights + j);
            store(weights + j, weight * of_near);
            store(dscores + j, weight == vf{} ? vf{} : weight * ((load(dscores + j) - near) * of_near - eta) * scale);
        }
        for (int j = width; j < limit; j += W) {
            store(weights + j, vf{});
            store(dscores + j, vf{});
        }
    }

    // Normalises the weights; returns g . near.
    static float products_with_values(float* weights, const float* dweights, int width, float factor) {
        vf products = {};
        for (int j = 0; j < width; j += W) {
            const vf weight = load(weights + j) * factor;
            store(weights + j, weight);
            // The weight is tested because past the keys that are seen the other may be anything.
            products += weight == vf{} ? vf{} : weight * load(dweights + j);
        }
        return sum(products);
    }

    // Returns eta.
    float of_far(int64_t group, int r, const Far& far, const float* w, float near, const FarGradients& to) {
        const float scale = float(head_.near_far.scale), m = tile_.shares[r], fall = tile_.falls[r], x = tile_.spreads[r];
        float *f = tile_.features + int64_t(r) * s_.ld, *u = u_ + int64_t(r) * s_.ld, *y = y_ + int64_t(r) * s_.ld;
        const float *q = tile_.queries + int64_t(r) * s_.ld, *g = grads_ + int64_t(r) * s_.le, share_of_f = 1 / tile_.denominators[r];
        vf with_u = {}, with_y = {}, with_mean = {};
        for (int l = 0; l < s_.d; l += W) {
            with_u += load(f + l) * load(u + l);
            with_y += load(q + l) * load(y + l);
        }
        for (int e = 0; e < s_.e; e += W) with_mean += load(g + e) * load(far.moments.value_mean + e);
        const float lln = sum(with_u) * share_of_f, slope = scale * fall * far.share * sum(with_y), mean = sum(with_mean);
        const float dm = (w[OF_NEAR] - 1) * near + w[OF_LLN] * lln + w[OF_MEAN] * mean + w[OF_SLOPE] * slope;
        const float eta = dm * m * tile_.rests[r];
        const float dx = eta * fall / 2 - (tile_.frozen(far, r) ? m * w[OF_SLOPE] * slope / (2 * x) : 0);
        const float of_f = m * w[OF_LLN] * share_of_f, kappa = m * w[OF_SLOPE] * scale * fall * far.share;
        slopes_[r] = kappa;
        double* sums = sums_[size_t(group)].weights;
        sums[OF_LLN] += double(m * lln), sums[OF_MEAN] += double(m * mean), sums[OF_SLOPE] += double(m * slope);
        const float by_mean = eta * scale, by_square = dx * scale * scale, of_mean = m * w[OF_MEAN] * far.share;
        for (int l = 0; l < s_.d; l += W) {
            const vf feature = load(f + l) * of_f, query = load(q + l);
            store(f + l, feature);
            store(u + l, feature * (load(u + l) - load(far.moments.z + l) * lln));
            store(y + l, load(y + l) * kappa + load(far.moments.mean + l) * by_mean + load(far.variance + l) * query * (2 * by_square));
            store(to.y + l, load(to.y + l) - feature * lln);
            store(to.offset + l, load(to.offset + l) + query * (by_mean * far.share));
            store(dspread_ + l, load(dspread_ + l) + query * query * by_square);
        }
        for (int e = 0; e < s_.e; e += W) store(to.value_offset + e, load(to.value_offset + e) + load(g + e) * of_mean);
        return eta;
    }

    // A row whose output gradient is zero has no part in any gradient, whatever it holds.
    void leave_out(int r, int limit) {
        fill_row(tile_.scores + int64_t(r) * near_.pitch_of, padded(limit), 0);
        fill_row(dscores_ + int64_t(r) * near_.pitch_of, padded(limit), 0);
        fill_row(tile_.features + int64_t(r) * s_.ld, s_.d, 0);
        fill_row(u_ + int64_t(r) * s_.ld, s_.d, 0);
        fill_row(y_ + int64_t(r) * s_.ld, s_.d, 0);
        slopes_[r] = 0;
    }

    void add_to_near(int rows, int limit, const KeyGradients& to) const {
        const int ldp = near_.pitch_of, first_tokens = int(least(near_.first_tokens, limit));
        const auto add = [&](int from, int count, int64_t row) {
            product<COLUMNS, ADD>(count, s_.e, rows, tile_.scores + from, ldp, grads_, s_.le, to.dv + row * s_.le, s_.le);
            product<COLUMNS, ADD>(count, s_.d, rows, dscores_ + from, ldp, tile_.queries, s_.ld, to.dk + row * s_.ld, s_.ld);
        };
        add(0, first_tokens, near_.before.first);
        add(first_tokens, limit - first_tokens, near_.window.first);
    }

    // From mu and v_mean as the origin to the centre.
    void about_centre(const Far& far, const FarGradients& to) const {
        for (int l = 0; l < s_.d; ++l) {
            const float distance = far.moments.mean[l] - centre_.key[l], *row = to.g + int64_t(l) * s_.le;
            to.curve[l] = 2 * far.share * dspread_[l];
            vf products = {};
            for (int e = 0; e < s_.e; e += W) {
                const vf g = load(row + e);
                products += g * (load(far.moments.value_mean + e) - load(centre_.value + e));
                store(to.value_offset + e, load(to.value_offset + e) - g * distance);
            }
            to.offset[l] -= to.curve[l] * distance + sum(products);
        }
    }

    const NearFarHead& head_;
    const Shape& s_;
    const NearKeysOfBlock& near_;
    const Centre& centre_;
    RowTile tile_;
    Buffer values_t_, s_t_, p_t_, grads_, dscores_, u_, y_, dq_, dspread_, parameters_;
    float slopes_[ROW_TILE];
    std::vector<QueryParameters> sums_;
};

}  // namespace LLN_ISA
