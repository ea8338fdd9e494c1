// One key head of one sequence with the query heads that read it, and the state that its keys leave behind.
#pragma once
#include "rows.h"

namespace LLN_ISA {

constexpr int KEY_TILE = 64;     // rows of k and v worked on at a time
constexpr int QUERY_TILE = 48;   // rows of q
constexpr int CHUNK = 48;        // rows of causal attention that see each other as a matrix

// Sums over a sequence are taken in stretches of this many rows, added up in order. A stretch is what threads share out where
// heads are too few, and since one thread sums in the same stretches, results do not depend on the number of threads.
constexpr int STRETCH = 576;
static_assert(STRETCH % KEY_TILE == 0 && STRETCH % QUERY_TILE == 0 && STRETCH % CHUNK == 0, "tiles may not straddle stretches");

INLINE int64_t stretches(int64_t rows) { return (rows + STRETCH - 1) / STRETCH; }

struct Shape {
    int dim, value_dim;  // as given
    int d, e;            // padded
    int ld, le;          // pitches of tiles with d and e columns
    explicit Shape(const Problem& p)
        : dim(int(p.dim)), value_dim(int(p.value_dim)), d(padded(p.dim)), e(padded(p.value_dim)), ld(pitch(p.dim)),
          le(pitch(p.value_dim)) {}
    int64_t state_floats() const { return int64_t(d) * le + 2 * d; }
};

// c, S and z relative to c: S = sum_j exp(b_j - c) v_j^T (d x e, pitch le), z = sum_j exp(b_j - c). No key yet: c = -inf, 0, 0.
struct State {
    float *c, *s, *z;
    State(float* memory, const Shape& shape) : c(memory), s(memory + 2 * shape.d), z(memory + shape.d) {}
    bool has_key() const { return c[0] > -__builtin_inff(); }
};

static void clear(const State& state, const Shape& shape) {
    fill_row(state.c, shape.d, -__builtin_inff());
    fill_row(state.z, shape.d, 0);
    for (int l = 0; l < shape.d; ++l) fill_row(state.s + l * shape.le, shape.e, 0);
}

static void scale_feature(const State& state, const Shape& shape, int l, float factor) {
    float* row = state.s + l * shape.le;
    state.z[l] *= factor;
    for (int m = 0; m < shape.e; m += W) store(row + m, load(row + m) * factor);
}

// Makes c the reference of the state, c >= state.c in every feature.
static void raise_reference(const State& state, const Shape& shape, const float* c) {
    for (int l = 0; l < shape.d; l += W) {
        const vf before = load(state.c + l), after = load(c + l);
        if (!any(after > before)) continue;
        const vf factor = exp(before - after);
        for (int i = 0; i < W; ++i)
            if (after[i] > before[i] && before[i] > -__builtin_inff()) scale_feature(state, shape, l + i, factor[i]);
        store(state.c + l, after);
    }
}

// state += other; other is used up.
static void merge(const State& state, const State& other, const Shape& shape) {
    if (!other.has_key()) return;
    Buffer c(shape.d);
    for (int l = 0; l < shape.d; l += W) store(c + l, vmax(load(state.c + l), load(other.c + l)));
    raise_reference(state, shape, c);
    raise_reference(other, shape, c);
    for (int l = 0; l < shape.d; l += W) store(state.z + l, load(state.z + l) + load(other.z + l));
    for (int l = 0; l < shape.d; ++l)
        for (int m = 0; m < shape.e; m += W) {
            float* to = state.s + l * shape.le + m;
            store(to, load(to) + load(other.s + l * shape.le + m));
        }
}

struct Head {
    const Problem& problem;
    const Shape shape;
    int64_t sequence, key_head, groups, batch, first_query, first_key, query_rows, key_rows;
    Rows k, v;
    Mask mask;
    Buffer parameters;  // beta, then alpha and bias of each query head, padded with 0, 0 and -inf: padding never counts

    Head(const Problem& p, int64_t index)
        : problem(p), shape(p), sequence(index / p.key_heads), key_head(index % p.key_heads),
          groups(p.query_heads / p.key_heads), parameters(padded(p.dim) * (1 + 2 * groups)) {
        batch = p.cu_seqlens != nullptr ? 0 : sequence;
        first_query = first_key = p.cu_seqlens != nullptr ? p.cu_seqlens[sequence] : 0;
        query_rows = p.cu_seqlens != nullptr ? p.cu_seqlens[sequence + 1] - first_query : p.query_rows;
        key_rows = p.cu_seqlens != nullptr ? query_rows : p.key_rows;
        k = keys(p.k, p.dim);
        v = keys(p.v, p.value_dim);
        mask = {p.key_mask, p.mask_row_stride};
        if (p.key_mask != nullptr) mask.data += batch * p.mask_batch_stride + first_key * p.mask_row_stride;
        pad(p.beta + (sequence * p.key_heads + key_head) * p.dim, beta(), 0);
        for (int64_t g = 0; g < groups; ++g) {
            const int64_t at = query_index(g) * p.dim;
            pad(p.alpha + at, alpha(g), 0);
            pad(p.bias == nullptr ? nullptr : p.bias + at, bias(g), -__builtin_inff());
        }
    }

    float* beta() const { return parameters; }
    float* alpha(int64_t group) const { return parameters + shape.d * (1 + 2 * group); }
    float* bias(int64_t group) const { return parameters + shape.d * (2 + 2 * group); }
    int64_t query_head(int64_t group) const { return key_head * groups + group; }
    int64_t query_index(int64_t group) const { return sequence * problem.query_heads + query_head(group); }
    int64_t key_index() const { return sequence * problem.key_heads + key_head; }
    Rows keys(const Tensor& t, int64_t features) const {
        return Rows(t, problem.dtype, batch, key_head, first_key, features);
    }
    Rows queries(const Tensor& t, int64_t group, int64_t features) const {
        return Rows(t, problem.dtype, batch, query_head(group), first_query, features);
    }

    void read_state(const float* maximum, const float* summed, const float* normaliser, const State& state) const {
        clear(state, shape);
        if (maximum == nullptr || !(maximum[key_index() * shape.dim] > -__builtin_inff())) return;
        for (int l = 0; l < shape.d; ++l) {
            const int64_t at = key_index() * shape.dim + l;
            state.c[l] = l < shape.dim ? maximum[at] : 0;
            state.z[l] = l < shape.dim ? normaliser[at] : 0;
            if (l < shape.dim) memcpy(state.s + l * shape.le, summed + at * shape.value_dim, 4 * size_t(shape.value_dim));
        }
    }
    void read_start(const State& state) const {
        read_state(problem.start_maximum, problem.start_summed, problem.start_normaliser, state);
    }
    void write_state(const State& state) const {
        for (int l = 0; l < shape.dim; ++l) {
            const int64_t at = key_index() * shape.dim + l;
            problem.maximum[at] = state.c[l];
            problem.normaliser[at] = state.z[l];
            memcpy(problem.summed + at * shape.value_dim, state.s + l * shape.le, 4 * size_t(shape.value_dim));
        }
    }

   private:
    void pad(const float* from, float* to, float padding) const {
        for (int l = 0; l < shape.d; ++l) to[l] = l >= shape.dim ? padding : from == nullptr ? 0 : from[l];
    }
};

template <class Work>
static void for_each_head(const Problem& p, Work work) {
    const int64_t heads = p.sequences * p.key_heads;
    if (fill_threads(heads, p.threads)) parallel(p.threads, heads, [&](int64_t i) { work(Head(p, i), int64_t(1)); });
    else
        for (int64_t i = 0; i < heads; ++i) work(Head(p, i), p.threads);
}

}  // namespace LLN_ISA
