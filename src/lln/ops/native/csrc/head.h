// One key head of one sequence with the query heads that read it, and the state that its keys leave behind.
#pragma once
#include <cmath>

#include "rows.h"

namespace LLN_ISA {

constexpr int KEY_TILE = 64;     // rows of k and v worked on at a time
constexpr int QUERY_TILE = 48;   // rows of q
constexpr int CHUNK = 24;        // rows of causal attention that see each other as a matrix

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
};

// c, S and z relative to c: S = sum_j exp(b_j - c) v_j^T (d x e, pitch le), z = sum_j exp(b_j - c). No key yet: c = -inf, 0, 0.
// The sums of a stretch at most.
struct State {
    float *c, *s, *z;
    State(float* memory, const Shape& shape) : c(memory), s(memory + 2 * shape.d), z(memory + shape.d) {}
    static int64_t floats(const Shape& shape) { return int64_t(shape.d) * shape.le + 2 * shape.d; }
    bool has_key() const { return c[0] > -__builtin_inff(); }
};

// The sums of any number of stretches, as pairs (see add_to_pair): S and z are the high parts, and what is read.
struct Total : State {
    float *s_low, *z_low;
    Total(float* memory, const Shape& shape)
        : State(memory, shape), s_low(memory + State::floats(shape)), z_low(s_low + int64_t(shape.d) * shape.le) {}
    static int64_t floats(const Shape& shape) { return 2 * int64_t(shape.d) * shape.le + 3 * shape.d; }
    int64_t low() const { return s_low - s; }
};

static void clear(const State& state, const Shape& shape) {
    fill_row(state.c, shape.d, -__builtin_inff());
    fill_row(state.z, shape.d, 0);
    for (int l = 0; l < shape.d; ++l) fill_row(state.s + l * shape.le, shape.e, 0);
}
static void clear(const Total& total, const Shape& shape) {
    clear(static_cast<const State&>(total), shape);
    fill_row(total.z_low, shape.d, 0);
    for (int l = 0; l < shape.d; ++l) fill_row(total.s_low + l * shape.le, shape.e, 0);
}

INLINE void split(double x, float& high, float& low) {
    high = float(x);
    const float rest = float(x - double(high));
    low = rest == rest ? rest : 0;  // an infinite sum stays infinite
}
// Rows of doubles to pairs and back; what is past the n given numbers is padding.
static void split_row(const double* __restrict x, int n, int width, float* __restrict high, float* __restrict low) {
    for (int i = 0; i < n; ++i) split(x[i], high[i], low[i]);
    for (int i = n; i < width; ++i) high[i] = low[i] = 0;
}
template <class T>
static void join_row(const float* __restrict high, const float* __restrict low, int n, T* __restrict x) {
    for (int i = 0; i < n; ++i) x[i] = T(high[i]) + T(low[i]);
}

// Features l .. l + W - 1 times exp(difference), where that is negative and there is something to scale.
static void scale_features(const State& state, const Shape& shape, int l, vf difference) {
    const vf factor = exp(difference);
    for (int i = 0; i < W; ++i) {
        if (!(difference[i] < 0) || !__builtin_isfinite(state.c[l + i])) continue;
        float* row = state.s + (l + i) * shape.le;
        state.z[l + i] *= factor[i];
        for (int m = 0; m < shape.e; m += W) store(row + m, load(row + m) * factor[i]);
    }
}
// In double: a total may be scaled any number of times, above all one that is carried from token to token.
static void scale_features(const Total& total, const Shape& shape, int l, vf difference) {
    for (int i = 0; i < W; ++i) {
        if (!(difference[i] < 0) || !__builtin_isfinite(total.c[l + i])) continue;
        const double factor = std::exp(double(difference[i]));
        float *row = total.s + (l + i) * shape.le, *row_low = total.s_low + (l + i) * shape.le;
        const auto scale = [factor](float& high, float& low) { split((double(high) + double(low)) * factor, high, low); };
        scale(total.z[l + i], total.z_low[l + i]);
        for (int m = 0; m < shape.e; ++m) scale(row[m], row_low[m]);
    }
}

// Makes c the reference of the state, c >= state.c in every feature.
template <class Sums>
static void raise_reference(const Sums& state, const Shape& shape, const float* c) {
    for (int l = 0; l < shape.d; l += W) {
        const vf before = load(state.c + l), after = load(c + l);
        if (!any(after > before)) continue;
        scale_features(state, shape, l, before - after);
        store(state.c + l, after);
    }
}

// total += part, both relative to the same reference.
static void add(const Total& total, const State& part, const Shape& shape) {
    for (int l = 0; l < shape.d; l += W) add_to_pair(total.z + l, total.z_low + l, load(part.z + l));
    for (int l = 0; l < shape.d; ++l)
        for (int m = 0; m < shape.e; m += W) {
            const int64_t at = int64_t(l) * shape.le + m;
            add_to_pair(total.s + at, total.s_low + at, load(part.s + at));
        }
}

// total += part; part is used up.
static void merge(const Total& total, const State& part, const Shape& shape) {
    if (!part.has_key()) return;
    Buffer c(shape.d);
    for (int l = 0; l < shape.d; l += W) store(c + l, vmax(load(total.c + l), load(part.c + l)));
    raise_reference(total, shape, c);
    raise_reference(part, shape, c);
    add(total, part, shape);
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

    // Whether products are of bfloat16, as the inputs are, with sums in float.
    bool in_pairs() const { return problem.dtype == BFLOAT16 && multiplies_pairs(); }
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

    // The gradient of a query head's rows, each times its weight.
    void load_gradients(int64_t group, int64_t first, int rows, float* tile) const {
        const Weights weights(problem.weight, batch, query_head(group), first_query);
        load_weighted_rows(queries(problem.grad, group, shape.value_dim), first, rows, weights, tile, shape.le);
    }

    // What forward has left for backward.
    void read_state(const State& state) const {
        clear(state, shape);
        if (!start_reference(problem.maximum, state.c)) return;
        const float *summed = static_cast<float*>(problem.summed), *normaliser = static_cast<float*>(problem.normaliser);
        for (int l = 0; l < shape.dim; ++l) {
            const int64_t at = key_index() * shape.dim + l;
            state.z[l] = normaliser[at];
            memcpy(state.s + l * shape.le, summed + at * shape.value_dim, 4 * size_t(shape.value_dim));
        }
    }
    void read_start(const Total& total) const {
        if (!start_reference(problem.start_maximum, total.c)) return clear(total, shape);
        const int64_t at = key_index() * shape.dim;
        split_row(problem.start_normaliser + at, shape.dim, shape.d, total.z, total.z_low);
        for (int l = 0; l < shape.d; ++l) {
            const int given = l < shape.dim ? shape.value_dim : 0;
            const double* row = given == 0 ? nullptr : problem.start_summed + (at + l) * shape.value_dim;
            split_row(row, given, shape.e, total.s + l * shape.le, total.s_low + l * shape.le);
        }
    }
    // The whole pairs where there was a start: what is carried from call to call must not be rounded in each of them.
    void write_state(const Total& total) const {
        memcpy(problem.maximum + key_index() * shape.dim, total.c, 4 * size_t(shape.dim));
        if (problem.start_maximum == nullptr)
            write_sums(total, static_cast<float*>(problem.summed), static_cast<float*>(problem.normaliser));
        else write_sums(total, static_cast<double*>(problem.summed), static_cast<double*>(problem.normaliser));
    }

    // The gradients of S and z that come from beyond the call, relative to the c it left, dz with a sign; false if there are none.
    bool read_state_gradients(const Total& d, float sign) const {
        if (problem.dsummed == nullptr || !start_reference(problem.maximum, d.c)) return false;
        for (int l = 0; l < shape.dim; ++l) {
            const int64_t at = key_index() * shape.dim + l;
            d.z[l] = sign * problem.dnormaliser[at];
            memcpy(d.s + l * shape.le, problem.dsummed + at * shape.value_dim, 4 * size_t(shape.value_dim));
        }
        return true;
    }
    // Those of the start, which is worth exp(c0 - c) of what it would be relative to c; dz with a sign.
    void write_start_gradients(const Total& d, const float* c, float sign) const {
        if (problem.dstart_summed == nullptr) return;
        for (int l = 0; l < shape.dim; ++l) {
            const int64_t at = key_index() * shape.dim + l;
            const double before = problem.start_maximum[at];
            const double factor = before > -__builtin_inf() ? std::exp(before - double(c[l])) : 0;
            problem.dstart_normaliser[at] = float(sign * factor * (double(d.z[l]) + double(d.z_low[l])));
            for (int m = 0; m < shape.value_dim; ++m) {
                const int64_t x = int64_t(l) * shape.le + m;
                problem.dstart_summed[at * shape.value_dim + m] = float(factor * (double(d.s[x]) + double(d.s_low[x])));
            }
        }
    }

   private:
    // c of a state as given; false if it is without a key.
    bool start_reference(const float* maximum, float* c) const {
        if (maximum == nullptr || !(maximum[key_index() * shape.dim] > -__builtin_inff())) return false;
        pad(maximum + key_index() * shape.dim, c, 0);
        return true;
    }
    template <class T>
    void write_sums(const Total& total, T* summed, T* normaliser) const {
        const int64_t at = key_index() * shape.dim;
        join_row(total.z, total.z_low, shape.dim, normaliser + at);
        for (int l = 0; l < shape.dim; ++l)
            join_row(total.s + l * shape.le, total.s_low + l * shape.le, shape.value_dim, summed + (at + l) * shape.value_dim);
    }
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
