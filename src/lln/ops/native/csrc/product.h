// Matrix products of tiles that live in the caches: C (+)= A B in blocks of 6 rows by two vectors, held in registers.
#pragma once
#include "pairs.h"

namespace LLN_ISA {

constexpr int BLOCK_ROWS = 6;  // 6 x 2 accumulators, 2 vectors of B and a broadcast fit 16 registers
constexpr int RUN = 24;        // rows that causal sums add up in one go: 48 equal terms in one chain are off by up to 6 last places

enum Layout { ROWS, COLUMNS };     // A(i, k) at a[i * lda + k], or at a[k * lda + i]
// ADD_TO_PAIR: C is kept as two floats, the second `low` floats after the first (see add_to_pair).
enum Target { OVERWRITE, ADD, ADD_TO_PAIR };
enum Numbers { FLOATS, PAIRS };  // PAIRS: a lane of A and B is two numbers (pairs.h), and depth counts lanes

// A sum of n terms that are added to a large number one by one is rounded n times at the large number's last place, and roundings
// that go the same way grow with the length of a sequence. So sums are taken in levels: those of a tile by themselves, then
// tiles into a total that is kept as high + low, low being what high could not hold. An infinite total stays infinite.
// Exact whichever of the two is larger (Knuth): adding zero changes no bit.
INLINE void add_to_pair(float* high, float* low, vf x) {
    const vf before = load(high), term = x + load(low), after = before + term, gained = after - before;
    const vf lost = (before - (after - gained)) + (term - gained);
    store(high, after);
    store(low, lost == lost ? lost : vf{});
}
// In half the operations (Kahan), for products: exact where the total is the larger, else good to the term's last place.
INLINE void add_to_pair_quickly(float* high, float* low, vf x) {
    const vf before = load(high), term = x + load(low), after = before + term;
    store(high, after);
    store(low, after - after == vf{} ? term - (after - before) : vf{});
}

template <Target T>
INLINE void put(float* c, int64_t low, vf x) {
    if (T == ADD_TO_PAIR) add_to_pair_quickly(c, c + low, x);
    else store(c, T == ADD ? load(c) + x : x);
}

// Every element is one chain of multiply-adds over k in order, whatever the block it falls in: a row's bits do not depend on
// its neighbours, which is what lets padding and later keys leave earlier results alone. What C holds comes last.
template <int M, Layout L, Target T, Numbers N>
INLINE void block_product(int depth, const float* a, int64_t lda, const float* b, int64_t ldb, float* c, int64_t ldc,
                          int64_t low) {
    vf acc[M][2] = {};
#pragma GCC unroll 2
    for (int k = 0; k < depth; ++k) {
        const vf b0 = load(b), b1 = load(b + W);
#pragma GCC unroll 6
        for (int i = 0; i < M; ++i) {
            const vf x = splat(L == ROWS ? a[i * lda] : a[i]);
            acc[i][0] = N == PAIRS ? add_products(acc[i][0], x, b0) : acc[i][0] + x * b0;
            acc[i][1] = N == PAIRS ? add_products(acc[i][1], x, b1) : acc[i][1] + x * b1;
        }
        a += L == ROWS ? 1 : lda;
        b += ldb;
    }
#pragma GCC unroll 6
    for (int i = 0; i < M; ++i) {
        put<T>(c + i * ldc, low, acc[i][0]);
        put<T>(c + i * ldc + W, low, acc[i][1]);
    }
}

template <Layout L, Target T, Numbers N = FLOATS>
INLINE void few_rows(int rows, int depth, const float* a, int64_t lda, const float* b, int64_t ldb, float* c, int64_t ldc,
                     int64_t low = 0) {
    switch (rows) {
        case 1: return block_product<1, L, T, N>(depth, a, lda, b, ldb, c, ldc, low);
        case 2: return block_product<2, L, T, N>(depth, a, lda, b, ldb, c, ldc, low);
        case 3: return block_product<3, L, T, N>(depth, a, lda, b, ldb, c, ldc, low);
        case 4: return block_product<4, L, T, N>(depth, a, lda, b, ldb, c, ldc, low);
        case 5: return block_product<5, L, T, N>(depth, a, lda, b, ldb, c, ldc, low);
        default: return block_product<6, L, T, N>(depth, a, lda, b, ldb, c, ldc, low);
    }
}

struct Nothing {
    void operator()() const {}
};

// C (rows x columns) (+)= A (rows x depth) B (depth x columns); columns is a multiple of PANEL. `meanwhile` is called once a
// block: the place to fetch what comes next, since a product of tiles leaves the memory idle.
template <Layout L, Target T, Numbers N = FLOATS, class Meanwhile = Nothing>
static void product(int rows, int columns, int depth, const float* a, int64_t lda, const float* b, int64_t ldb, float* c,
                    int64_t ldc, Meanwhile&& meanwhile = Meanwhile()) {
    for (int j = 0; j < columns; j += PANEL)
        for (int i = 0; i < rows; i += BLOCK_ROWS) {
            meanwhile();
            few_rows<L, T, N>(rows - i, depth, L == ROWS ? a + i * lda : a + i, lda, b + j, ldb, c + i * ldc + j, ldc);
        }
}

// C (rows x columns) += A^T B, C being a pair, A (depth x rows) and B (depth x columns).
static void add_product_to_pair(int rows, int columns, int depth, const float* a, int64_t lda, const float* b, int64_t ldb, float* c,
                                int64_t ldc, int64_t low, int longest_run = RUN) {
    for (int k = 0; k < depth; k += longest_run) {
        const int run = depth - k < longest_run ? depth - k : longest_run;
        const float *a_run = a + k * lda, *b_run = b + k * ldb;
        for (int j = 0; j < columns; j += PANEL)
            for (int i = 0; i < rows; i += BLOCK_ROWS)
                few_rows<COLUMNS, ADD_TO_PAIR>(rows - i, run, a_run + i, lda, b_run + j, ldb, c + i * ldc + j, ldc, low);
    }
}

// C (rows x columns) = A B for any depth: no chain is longer than DEEPEST, and the sums of chains are added up in order.
constexpr int DEEPEST = 64;
static void deep_product(int rows, int columns, int depth, const float* a, int64_t lda, const float* b, int64_t ldb, float* c,
                         int64_t ldc) {
    product<ROWS, OVERWRITE>(rows, columns, depth < DEEPEST ? depth : DEEPEST, a, lda, b, ldb, c, ldc);
    for (int k = DEEPEST; k < depth; k += DEEPEST) {
        const int run = depth - k < DEEPEST ? depth - k : DEEPEST;
        product<ROWS, ADD>(rows, columns, run, a + k, lda, b + k * ldb, ldb, c, ldc);
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
            for (int k = 0; k < depth; k += RUN) {
                const int run = depth - k < RUN ? depth - k : RUN;
                few_rows<ROWS, ADD>(rows - i, run, a + i * lda + k, lda, b + k * ldb + j, ldb, c + i * ldc + j, ldc);
            }
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
