// Pieces of both backward passes, bidirectional and causal.
#pragma once
#include "bidirectional.h"

namespace LLN_ISA {

// Gradients of alpha and bias (or beta) of one head: sums over rows of da * x and of da, in double, each tile's in float first.
struct ParameterSums {
    double *weighted, *plain;  // (d) each
    ParameterSums(float* memory, int d) : weighted(reinterpret_cast<double*>(memory)), plain(weighted + d) {}
    static int64_t floats(int d) { return 4 * int64_t(d); }

    void clear(int d) const {
        for (int l = 0; l < 2 * d; ++l) weighted[l] = 0;
    }
    void add(const ParameterSums& other, int d) const {
        for (int l = 0; l < 2 * d; ++l) weighted[l] += other.weighted[l];
    }
    // Rows that are absent are skipped, since their x may be anything.
    void add_rows(int rows, int d, const float* gradient, const float* x, int ld, const bool* absent) const {
        for (int l = 0; l < d; l += W) {
            vf w = {}, p = {};
            for (int r = 0; r < rows; ++r) {
                if (absent[r]) continue;
                const vf g = load(gradient + int64_t(r) * ld + l);
                w += g * load(x + int64_t(r) * ld + l);
                p += g;
            }
            for (int i = 0; i < W; ++i) weighted[l + i] += w[i], plain[l + i] += p[i];
        }
    }
    static void write(const double* sums, int dim, float* to) {
        for (int l = 0; l < dim; ++l) to[l] = float(sums[l]);
    }
};

INLINE void write_query_parameters(const Head& head, int64_t group, const ParameterSums& sums) {
    if (!head.problem.parameter_grads) return;
    const int64_t at = head.query_index(group) * head.shape.dim;
    ParameterSums::write(sums.weighted, head.shape.dim, head.problem.dalpha + at);
    ParameterSums::write(sums.plain, head.shape.dim, head.problem.dbias + at);
}
INLINE void write_key_parameters(const Head& head, const ParameterSums& sums) {
    if (!head.problem.parameter_grads) return;
    ParameterSums::write(sums.weighted, head.shape.dim, head.problem.dbeta + head.key_index() * head.shape.dim);
}

// A row whose output gradient is zero has no part in any gradient: it is taken out, so that what its query holds (padding may
// hold anything) cannot reach the sums. 
static void find_absent(int rows, int e, const float* dout, int le, bool* absent) {
    for (int r = 0; r < rows; ++r) {
        vi some = {};
        for (int m = 0; m < e; m += W) some |= load(dout + int64_t(r) * le + m) != vf{};
        absent[r] = !any(some);
    }
}
static void remove_absent(int rows, int d, const bool* absent, float* f, int ld, float* denominators) {
    for (int r = 0; r < rows; ++r)
        if (absent[r]) {
            fill_row(f + int64_t(r) * ld, d, 0);
            denominators[r] = 1;
        }
}

static void divide_rows(int rows, int width, const float* by, float* tile, int ld) {
    for (int r = 0; r < rows; ++r) {
        const float factor = 1.0f / by[r];
        for (int m = 0; m < width; m += W) {
            float* at = tile + int64_t(r) * ld + m;
            store(at, load(at) * factor);
        }
    }
}

// From u_i = S t_i: delta_i = f_i . u_i / den_i, which is dout_i . out_i / den_i without reading out.
static void row_deltas(int rows, int d, const float* f, const float* u, int ld, const float* denominators, float* deltas) {
    for (int r = 0; r < rows; ++r) {
        vf x = {}, y = {};
        for (int l = 0; l < d; l += PANEL) {
            x += load(f + int64_t(r) * ld + l) * load(u + int64_t(r) * ld + l);
            y += load(f + int64_t(r) * ld + l + W) * load(u + int64_t(r) * ld + l + W);
        }
        deltas[r] = sum(x + y) / denominators[r];
    }
}

// sum_r f_r weight_r, added to or (sign = -1) taken from `to`, which is a pair if `low` is given.
static void add_weighted_rows(int rows, int d, const float* f, int ld, const float* weights, float sign, float* to,
                              float* low = nullptr) {
    for (int l = 0; l < d; l += W) {
        vf x = {};
        for (int r = 0; r < rows; ++r) x += load(f + int64_t(r) * ld + l) * weights[r];
        if (low == nullptr) store(to + l, load(to + l) + x * sign);
        else add_to_pair(to + l, low + l, x * sign);
    }
}

// x *= y, element by element; and with a row of factors.
static void multiply(int rows, int d, float* x, const float* y, int ld) {
    for (int r = 0; r < rows; ++r)
        for (int l = 0; l < d; l += W) {
            float* at = x + int64_t(r) * ld + l;
            store(at, load(at) * load(y + int64_t(r) * ld + l));
        }
}
static void multiply_columns(int rows, int d, float* x, int ld, const float* by) {
    for (int r = 0; r < rows; ++r)
        for (int l = 0; l < d; l += W) {
            float* at = x + int64_t(r) * ld + l;
            store(at, load(at) * load(by + l));
        }
}

// Turns db into dk = beta db and writes dk and dv; the gradients of keys that do not count are zero.
static void write_key_gradients(const Head& head, int64_t first, int rows, float* db, float* dv, const ParameterSums& sums) {
    const Shape& s = head.shape;
    bool absent[KEY_TILE];
    for (int r = 0; r < rows; ++r) {
        absent[r] = !head.mask.counts(first + r);
        if (!absent[r]) continue;
        fill_row(db + int64_t(r) * s.ld, s.d, 0);
        fill_row(dv + int64_t(r) * s.le, s.e, 0);
    }
    if (head.problem.parameter_grads) {
        Buffer raw(KEY_TILE * s.ld);
        load_rows(head.k, first, rows, nullptr, nullptr, raw, s.ld);
        sums.add_rows(rows, s.d, db, raw, s.ld, absent);
    }
    multiply_columns(rows, s.d, db, s.ld, head.beta());
    store_rows(head.keys(head.problem.dk, s.dim), first, rows, db, s.ld);
    store_rows(head.keys(head.problem.dv, s.value_dim), first, rows, dv, s.le);
}

// Turns da into dq = alpha da and writes it.
static void write_query_gradients(const Head& head, int64_t group, int64_t first, int rows, float* da, const bool* absent,
                                  const ParameterSums& sums) {
    const Shape& s = head.shape;
    if (head.problem.parameter_grads) {
        Buffer raw(QUERY_TILE * s.ld);
        load_rows(head.queries(head.problem.q, group, s.dim), first, rows, nullptr, nullptr, raw, s.ld);
        sums.add_rows(rows, s.d, da, raw, s.ld, absent);
    }
    multiply_columns(rows, s.d, da, s.ld, head.alpha(group));
    store_rows(head.queries(head.problem.dq, group, s.dim), first, rows, da, s.ld);
}

}  // namespace LLN_ISA
