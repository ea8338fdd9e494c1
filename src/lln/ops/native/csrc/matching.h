// Moment matching (lln.matching): alpha and beta of each sequence and key head, from the moments of q and k.
//   var_q, var_k = mean x^2 - (mean x)^2 over rows and features, of q also over the query heads that read the key head;
//                  or, if keys are centred, var_k = the mean over features of each feature's own variance
//   T = s^2 d var_q var_k,   r = table(log2 T, log2 keys),   alpha = sqrt(r s^2 d / 2) sigma_k,   beta = sqrt(r s^2 d / 2) sigma_q
// with s the scale of the softmax that is matched. Beyond the table's largest T, r T stays what it is there.
#pragma once
#include <cmath>

#include "moments.h"

namespace LLN_ISA {

constexpr double SMALLEST_VARIANCE = 1e-30;  // as in lln.matching

INLINE double more(double a, double b) { return a < b ? b : a; }  // of a NaN and b: the NaN

// Where x lies on a grid: the point to its left, and how far it is towards the next one.
struct Position {
    int64_t left = 0;
    double across;
    Position(double x, const Grid& grid) : across((x - grid.first) / grid.step) {
        const double last = double(grid.points - 1);
        across = across < 0 ? 0 : across > last ? last : across;
        if (across >= 1) left = int64_t(across) < grid.points - 2 ? int64_t(across) : grid.points - 2;
        across -= double(left);
    }
};

static double matched_ratio(const MatchProblem& p, double t, double keys) {
    const double highest = std::exp2(p.log2_t.first + p.log2_t.step * double(p.log2_t.points - 1));
    const Position column(std::log2(t), p.log2_t), row(std::log2(more(keys, 1)), p.log2_length);
    const auto along = [&](int64_t line) {
        const double* at = p.table + line * p.log2_t.points + column.left;
        return at[0] + column.across * (at[1] - at[0]);
    };
    const double log2_ratio = (1 - row.across) * along(row.left) + row.across * along(row.left + 1);
    return std::exp2(log2_ratio) * (highest / more(t, highest));
}

// About the mean of all numbers.
static double variance(int64_t count, int64_t numbers, const double* total, const double* squares) {
    double sum = 0, sum_of_squares = 0;
    for (int64_t i = 0; i < numbers; ++i) sum += total[i], sum_of_squares += squares[i];
    const double n = double(count > 0 ? count : 1), mean = sum / n;
    return more((sum_of_squares - n * mean * mean) / n, 0);
}

// About the mean of each feature.
static double centred_variance(int64_t rows, int64_t dim, const double* total, const double* squares) {
    const double n = double(rows > 0 ? rows : 1);
    double sum = 0;
    for (int64_t l = 0; l < dim; ++l) sum += squares[l] / n - (total[l] / n) * (total[l] / n);
    return more(sum / double(dim), 0);
}

// alpha and beta by the table.
static void table_values(const MatchProblem& p, double var_q, double var_k, double keys, double& alpha, double& beta) {
    const double of_q = more(var_q, SMALLEST_VARIANCE), of_k = more(var_k, SMALLEST_VARIANCE);
    const double factor = p.scale * p.scale * double(p.k.dim);
    const double common = std::sqrt(matched_ratio(p, factor * of_q * of_k, keys) * factor / 2);
    alpha = common * std::sqrt(of_k), beta = common * std::sqrt(of_q);
}

static void match_moments(const MatchProblem& p) {
    MomentsProblem q = p.q, k = p.k;
    Buffer memory(4 * p.q.sequences * (q.heads + k.heads) * q.dim + 4 * p.q.sequences);
    double* room = reinterpret_cast<double*>(static_cast<float*>(memory));
    int64_t* counts = reinterpret_cast<int64_t*>(room);
    q.count = counts, k.count = counts + q.sequences, room += 2 * q.sequences;
    MomentsProblem* const both[] = {&q, &k};
    for (MomentsProblem* x : both) {
        x->total = room, x->squares = room + x->sequences * x->heads * x->dim;
        room = x->squares + x->sequences * x->heads * x->dim;
        all_moments(*x);
    }
    const int64_t groups = q.heads / k.heads;
    for (int64_t i = 0; i < k.sequences * k.heads; ++i) {
        const int64_t s = i / k.heads, at = i * k.dim, shared = groups * k.dim;
        const double var_q = variance(q.count[s] * shared, shared, q.total + i * shared, q.squares + i * shared);
        const double var_k = p.center_keys ? centred_variance(k.count[s], k.dim, k.total + at, k.squares + at)
                                           : variance(k.count[s] * k.dim, k.dim, k.total + at, k.squares + at);
        table_values(p, var_q, var_k, double(k.count[s]), p.alpha[i], p.beta[i]);
    }
}

}  // namespace LLN_ISA
