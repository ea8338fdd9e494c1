// Sums over the rows that count: how many, sum_n x_n and sum_n x_n^2 for each head and feature, in one pass.
#pragma once
#include "rows.h"

namespace LLN_ISA {

constexpr int MOMENT_RUN = 16;            // rows summed before the sums go to memory
constexpr int64_t MOMENT_STRETCH = 2048;  // rows summed by one thread

// Where a sequence lies, and which of its rows count.
struct Sequence {
    int64_t batch, start, rows;
    Mask mask;
    Sequence(const MomentsProblem& p, int64_t s) : batch(s), start(0), rows(p.rows), mask{p.key_mask, p.mask_row_stride} {
        if (p.cu_seqlens != nullptr) batch = 0, start = p.cu_seqlens[s], rows = p.cu_seqlens[s + 1] - start;
        if (p.key_mask != nullptr) mask.data += batch * p.mask_batch_stride + start * p.mask_row_stride;
    }
    int64_t counting() const {
        if (mask.data == nullptr) return rows;
        int64_t count = 0;
        for (int64_t r = 0; r < rows; ++r) count += mask.counts(r);
        return count;
    }
};

// In double throughout: float sums would lose the variance of values far from zero, and overflow where squares do.
template <class T>
static void add_moments_as(const Rows& x, const Mask& mask, int64_t first, int64_t last, double* total, double* squares) {
    const T* run[MOMENT_RUN];
    for (int64_t at = first; at < last;) {
        int rows = 0;
        for (; rows < MOMENT_RUN && at < last; ++at)
            if (mask.counts(at)) run[rows++] = reinterpret_cast<const T*>(x.data) + at * x.row_stride;
        int64_t l = 0;
        if (x.feature_stride == 1)
            for (; l + PANEL <= x.features; l += PANEL) {
                vd once[4], twice[4];  // several sums at a time: each waits for its last addition
#pragma GCC unroll 4
                for (int i = 0; i < 4; ++i) once[i] = load(total + l + i * WD), twice[i] = load(squares + l + i * WD);
                for (int r = 0; r < rows; ++r) {
                    const vf a = load_as_float(run[r] + l), b = load_as_float(run[r] + l + W);
                    const vd y[4] = {low_doubles(a), high_doubles(a), low_doubles(b), high_doubles(b)};
#pragma GCC unroll 4
                    for (int i = 0; i < 4; ++i) once[i] += y[i], twice[i] += y[i] * y[i];
                }
#pragma GCC unroll 4
                for (int i = 0; i < 4; ++i) store(total + l + i * WD, once[i]), store(squares + l + i * WD, twice[i]);
            }
        for (; l < x.features; ++l)
            for (int r = 0; r < rows; ++r) {
                const double y = to_float(run[r][l * x.feature_stride]);
                total[l] += y;
                squares[l] += y * y;
            }
    }
}

static void add_moments(const Rows& x, const Mask& mask, int64_t first, int64_t last, double* total, double* squares) {
    switch (x.dtype) {
        case FLOAT16: return add_moments_as<half_t>(x, mask, first, last, total, squares);
        case BFLOAT16: return add_moments_as<bfloat_t>(x, mask, first, last, total, squares);
        default: return add_moments_as<float>(x, mask, first, last, total, squares);
    }
}

// One head of one sequence: stretches are summed by themselves, whoever does it, and added up in order.
static void head_moments(const MomentsProblem& p, const Sequence& sequence, int64_t head, int64_t threads, double* total,
                         double* squares) {
    const int64_t parts = (sequence.rows + MOMENT_STRETCH - 1) / MOMENT_STRETCH, width = 2 * p.dim;
    const Rows x(p.x, p.dtype, sequence.batch, head, sequence.start, p.dim);
    Buffer memory(2 * parts * width);
    double* sums = reinterpret_cast<double*>(static_cast<float*>(memory));
    parallel(threads, parts, [&](int64_t i) {
        double* mine = sums + i * width;
        for (int64_t l = 0; l < width; ++l) mine[l] = 0;
        const int64_t first = i * MOMENT_STRETCH;
        add_moments(x, sequence.mask, first, least(first + MOMENT_STRETCH, sequence.rows), mine, mine + p.dim);
    });
    for (int64_t l = 0; l < p.dim; ++l) {
        total[l] = squares[l] = 0;
        for (int64_t i = 0; i < parts; ++i) {
            total[l] += sums[i * width + l];
            squares[l] += sums[i * width + p.dim + l];
        }
    }
}

static void all_moments(const MomentsProblem& p) {
    for (int64_t s = 0; s < p.sequences; ++s) p.count[s] = Sequence(p, s).counting();
    const int64_t heads = p.sequences * p.heads;
    const bool whole = fill_threads(heads, p.threads);
    const auto work = [&](int64_t i, int64_t threads) {
        head_moments(p, Sequence(p, i / p.heads), i % p.heads, threads, p.total + i * p.dim, p.squares + i * p.dim);
    };
    if (whole) parallel(p.threads, heads, [&](int64_t i) { work(i, 1); });
    else
        for (int64_t i = 0; i < heads; ++i) work(i, p.threads);
}

}  // namespace LLN_ISA
