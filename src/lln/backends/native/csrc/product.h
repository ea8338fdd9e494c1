// Matrix products of tiles that live in the caches: C (+)= A B in blocks of 6 rows by two vectors, held in registers.
#pragma once
#include "simd.h"

namespace LLN_ISA {

constexpr int BLOCK_ROWS = 6;  // 6 x 2 accumulators, 2 vectors of B and a broadcast fit 16 registers

enum Layout { ROWS, COLUMNS };     // A(i, k) at a[i * lda + k], or at a[k * lda + i]
enum Target { OVERWRITE, ADD };

// Every element is one chain of multiply-adds over k in order, whatever the block it falls in: a row's bits do not depend on
// its neighbours, which is what lets padding and later keys leave earlier results alone.
template <int M, Layout L, Target T>
INLINE void block_product(int depth, const float* a, int64_t lda, const float* b, int64_t ldb, float* c, int64_t ldc) {
    vf acc[M][2];
#pragma GCC unroll 6
    for (int i = 0; i < M; ++i) {
        acc[i][0] = T == ADD ? load(c + i * ldc) : vf{};
        acc[i][1] = T == ADD ? load(c + i * ldc + W) : vf{};
    }
#pragma GCC unroll 2
    for (int k = 0; k < depth; ++k) {
        const vf b0 = load(b), b1 = load(b + W);
#pragma GCC unroll 6
        for (int i = 0; i < M; ++i) {
            const vf x = splat(L == ROWS ? a[i * lda] : a[i]);
            acc[i][0] += x * b0;
            acc[i][1] += x * b1;
        }
        a += L == ROWS ? 1 : lda;
        b += ldb;
    }
#pragma GCC unroll 6
    for (int i = 0; i < M; ++i) {
        store(c + i * ldc, acc[i][0]);
        store(c + i * ldc + W, acc[i][1]);
    }
}

template <Layout L, Target T>
INLINE void few_rows(int rows, int depth, const float* a, int64_t lda, const float* b, int64_t ldb, float* c, int64_t ldc) {
    switch (rows) {
        case 1: return block_product<1, L, T>(depth, a, lda, b, ldb, c, ldc);
        case 2: return block_product<2, L, T>(depth, a, lda, b, ldb, c, ldc);
        case 3: return block_product<3, L, T>(depth, a, lda, b, ldb, c, ldc);
        case 4: return block_product<4, L, T>(depth, a, lda, b, ldb, c, ldc);
        case 5: return block_product<5, L, T>(depth, a, lda, b, ldb, c, ldc);
        default: return block_product<6, L, T>(depth, a, lda, b, ldb, c, ldc);
    }
}

struct Nothing {
    void operator()() const {}
};

// C (rows x columns) (+)= A (rows x depth) B (depth x columns); columns is a multiple of PANEL. `meanwhile` is called once a
// block: the place to fetch what comes next, since a product of tiles leaves the memory idle.
template <Layout L, Target T, class Meanwhile = Nothing>
static void product(int rows, int columns, int depth, const float* a, int64_t lda, const float* b, int64_t ldb, float* c,
                    int64_t ldc, Meanwhile&& meanwhile = Meanwhile()) {
    for (int j = 0; j < columns; j += PANEL)
        for (int i = 0; i < rows; i += BLOCK_ROWS) {
            meanwhile();
            few_rows<L, T>(rows - i, depth, L == ROWS ? a + i * lda : a + i, lda, b + j, ldb, c + i * ldc + j, ldc);
        }
}

// The lower triangle of C = A B, C(i, j) for j <= i < rows. Zeros above the diagonal as far as the triangular products
// below read: to the end of each block of rows.
static void lower_triangle(int rows, int depth, const float* a, int64_t lda, const float* b, int64_t ldb, float* c,
                           int64_t ldc) {
    for (int j = 0; j < rows; j += PANEL)
        for (int i = j / BLOCK_ROWS * BLOCK_ROWS; i < rows; i += BLOCK_ROWS)
            few_rows<ROWS, OVERWRITE>(rows - i, depth, a + i * lda, lda, b + j, ldb, c + i * ldc + j, ldc);
}
static void clear_above_diagonal(int rows, float* c, int64_t ldc) {
    for (int i = 0; i < rows; ++i)
        for (int j = i + 1; j < (i / BLOCK_ROWS + 1) * BLOCK_ROWS && j < rows; ++j) c[i * ldc + j] = 0;
}

// C_i += sum_{k <= i} A(i, k) B_k, A lower triangular as above.
static void add_lower(int rows, int columns, const float* a, int64_t lda, const float* b, int64_t ldb, float* c,
                      int64_t ldc) {
    for (int j = 0; j < columns; j += PANEL)
        for (int i = 0; i < rows; i += BLOCK_ROWS) {
            const int depth = i + BLOCK_ROWS < rows ? i + BLOCK_ROWS : rows;
            few_rows<ROWS, ADD>(rows - i, depth, a + i * lda, lda, b + j, ldb, c + i * ldc + j, ldc);
        }
}

// C_j += sum_{i >= j} A(i, j) B_i: the same triangle, transposed.
static void add_lower_transposed(int rows, int columns, const float* a, int64_t lda, const float* b, int64_t ldb, float* c,
                                 int64_t ldc) {
    for (int j = 0; j < columns; j += PANEL)
        for (int i = 0; i < rows; i += BLOCK_ROWS)
            few_rows<COLUMNS, ADD>(rows - i, rows - i, a + i * lda + i, lda, b + i * ldb + j, ldb, c + i * ldc + j, ldc);
}

// target (columns x rows) = source (rows x columns)^T; both have room up to multiples of W.
static void transpose(int rows, int columns, const float* source, int64_t lds, float* target, int64_t ldt) {
    for (int i = 0; i < rows; i += W)
        for (int j = 0; j < columns; j += W) {
            vf x[W];
            for (int r = 0; r < W; ++r) x[r] = load(source + (i + r) * lds + j);
            transpose_block(x);
            for (int r = 0; r < W; ++r) store(target + (j + r) * ldt + i, x[r]);
        }
}

}  // namespace LLN_ISA
