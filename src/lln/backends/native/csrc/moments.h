// Sums over the rows that count: how many, sum_n x_n and sum_n x_n^2 for each head and feature, in one pass.
#pragma once
#include "rows.h"

namespace LLN_ISA {

constexpr int MOMENT_RUN = 16;            // rows summed before the sums go to memory
constexpr int64_t MOMENT_STRETCH = 2048;  // rows summed by one thread

typedef double vd __attribute__((vector_size(8 * W)));

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
            for (; l + W <= x.features; l += W) {
                vd once, twice;
                memcpy(&once, total + l, sizeof once);
                memcpy(&twice, squares + l, sizeof twice);
                for (int r = 0; r < rows; ++r) {
                    const vd y = __builtin_convertvector(load_as_float(run[r] + l), vd);
                    once += y;
                    twice += y * y;
                }
                memcpy(total + l, &once, sizeof once);
                memcpy(squares + l, &twice, sizeof twice);
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

static void all_moments(const MomentsProblem& p) {
    for (int64_t s = 0; s < p.sequences; ++s) {
        const int64_t start = p.cu_seqlens != nullptr ? p.cu_seqlens[s] : 0, batch = p.cu_seqlens != nullptr ? 0 : s;
        const int64_t rows = p.cu_seqlens != nullptr ? p.cu_seqlens[s + 1] - start : p.rows;
        Mask mask = {p.key_mask, p.mask_row_stride};
        if (p.key_mask != nullptr) mask.data += batch * p.mask_batch_stride + start * p.mask_row_stride;
        p.count[s] = rows;
        if (p.key_mask != nullptr)
            for (int64_t r = 0; r < rows; ++r) p.count[s] -= !mask.counts(r);

        const int64_t parts = (rows + MOMENT_STRETCH - 1) / MOMENT_STRETCH, width = 2 * p.dim;
        Buffer memory(2 * parts * p.heads * width);
        double* sums = reinterpret_cast<double*>(static_cast<float*>(memory));
        parallel(p.threads, parts * p.heads, [&](int64_t i) {
            double* mine = sums + i * width;
            for (int64_t l = 0; l < width; ++l) mine[l] = 0;
            const int64_t first = i % parts * MOMENT_STRETCH;
            add_moments(Rows(p.x, p.dtype, batch, i / parts, start, p.dim), mask, first, least(first + MOMENT_STRETCH, rows),
                        mine, mine + p.dim);
        });
        for (int64_t i = 0; i < p.heads * p.dim; ++i) {
            const int64_t head = i / p.dim, l = i % p.dim;
            double total = 0, squares = 0;
            for (int64_t part = 0; part < parts; ++part) {
                total += sums[(head * parts + part) * width + l];
                squares += sums[(head * parts + part) * width + p.dim + l];
            }
            p.total[s * p.heads * p.dim + i] = total;
            p.squares[s * p.heads * p.dim + i] = squares;
        }
    }
}

}  // namespace LLN_ISA
