// Gradients of bidirectional attention, features recomputed. With t_i = dout_i / den_i and delta_i = dout_i . out_i / den_i:
//   da_i = f_i (S t_i - z delta_i),   dS = sum_i f_i t_i^T,   dz = -sum_i f_i delta_i       one pass over the queries
//   db_j = g_j (dS v_j + dz),         dv_j = dS^T g_j                                       one pass over the keys
// The gradients of S and z that come with the state, from whatever goes on from it, are added to dS and dz; and those of the
// state that the call started from, relative to its own c0, are exp(c0 - c) dS and exp(c0 - c) dz.
#pragma once
#include "gradients.h"

namespace LLN_ISA {

// What a stretch of queries adds up to: dS and dz in the place of S and z, and the parameters.
struct QuerySums {
    State d;
    ParameterSums parameters;
    QuerySums(float* memory, const Shape& s) : d(memory, s), parameters(memory + State::floats(s), s.d) {}
    static int64_t floats(const Shape& s) { return State::floats(s) + ParameterSums::floats(s.d); }
};

static void query_gradients(const Head& head, int64_t group, int64_t first, int64_t last, const State& state,
                            const float* transposed_s, const QuerySums& sums) {
    const Shape& s = head.shape;
    const Problem& p = head.problem;
    const Rows q = head.queries(p.q, group, s.dim), grad = head.queries(p.grad, group, s.value_dim);
    const Rows dq = head.queries(p.dq, group, s.dim);
    Buffer f(QUERY_TILE * s.ld), t(QUERY_TILE * s.le), u(QUERY_TILE * s.ld);
    float m[QUERY_TILE], denominators[QUERY_TILE], deltas[QUERY_TILE];
    bool absent[QUERY_TILE];
    for (int64_t at = first; at < last; at += QUERY_TILE) {
        const int rows = int(least(QUERY_TILE, last - at));
        load_queries(q, at, rows, head.alpha(group), head.bias(group), state.c, 0, f, s.ld, m);
        head.load_gradients(group, at, rows, t);
        find_absent(rows, s.e, t, s.le, absent);
        query_features(rows, s.d, state.c, m, f, s.ld);
        row_denominators(rows, s.d, f, s.ld, state.z, 0, denominators);
        remove_absent(rows, s.d, absent, f, s.ld, denominators);
        divide_rows(rows, s.e, denominators, t, s.le);

        Fetch next(at + rows, least(at + 2 * QUERY_TILE, last), blocks(rows, s.d));
        product<ROWS, OVERWRITE>(rows, s.d, s.e, t, s.le, transposed_s, s.ld, u, s.ld, next.read(q).read(grad).write(dq));
        row_deltas(rows, s.d, f, u, s.ld, denominators, deltas);
        product<COLUMNS, ADD>(s.d, s.e, rows, f, s.ld, t, s.le, sums.d.s, s.le);
        add_weighted_rows(rows, s.d, f, s.ld, deltas, -1, sums.d.z);
        for (int r = 0; r < rows; ++r)
            for (int l = 0; l < s.d; l += W) {
                float* x = u + int64_t(r) * s.ld + l;
                store(x, load(f + int64_t(r) * s.ld + l) * (load(x) - load(state.z + l) * deltas[r]));
            }
        write_query_gradients(head, group, at, rows, u, absent, sums.parameters);
    }
}

static void key_gradients(const Head& head, int64_t first, int64_t last, const float* c, const State& d,
                          const float* transposed_ds, const ParameterSums& sums) {
    const Shape& s = head.shape;
    const Rows dk = head.keys(head.problem.dk, s.dim), dv = head.keys(head.problem.dv, s.value_dim);
    Buffer g(KEY_TILE * s.ld), values(KEY_TILE * s.le), db(KEY_TILE * s.ld), result(KEY_TILE * s.le);
    for (int64_t at = first; at < last; at += KEY_TILE) {
        const int rows = int(least(KEY_TILE, last - at));
        load_keys(head.k, head.mask, head.beta(), at, rows, g, s.ld);
        load_values(head.v, head.mask, at, rows, values, s.le);
        key_features(rows, s.d, c, g, s.ld, nullptr);
        Fetch reads(at + rows, least(at + 2 * KEY_TILE, last), blocks(rows, s.d));
        product<ROWS, OVERWRITE>(rows, s.d, s.e, values, s.le, transposed_ds, s.ld, db, s.ld, reads.read(head.k).read(head.v));
        // Not g (dS v + dz): dz is the same for all keys, so rounding the sum in brackets would err the same way in each of them.
        for (int r = 0; r < rows; ++r)
            for (int l = 0; l < s.d; l += W) {
                float* x = db + int64_t(r) * s.ld + l;
                const vf feature = load(g + int64_t(r) * s.ld + l);
                store(x, feature * load(x) + feature * load(d.z + l));
            }
        Fetch writes(at, at + rows, blocks(rows, s.e));
        product<ROWS, OVERWRITE>(rows, s.e, s.d, g, s.ld, d.s, s.le, result, s.le, writes.write(dk).write(dv));
        write_key_gradients(head, at, rows, db, result, sums);
    }
}

static void write_zero_gradients(const Head& head) {
    const Shape& s = head.shape;
    Buffer zeros(s.d > s.e ? s.d : s.e), memory(ParameterSums::floats(s.d));
    fill_row(zeros, s.d > s.e ? s.d : s.e, 0);
    const ParameterSums none(memory, s.d);
    none.clear(s.d);
    store_zero_rows(head.keys(head.problem.dk, s.dim), 0, head.key_rows, zeros);
    store_zero_rows(head.keys(head.problem.dv, s.value_dim), 0, head.key_rows, zeros);
    write_key_parameters(head, none);
    for (int64_t g = 0; g < head.groups; ++g) {
        store_zero_rows(head.queries(head.problem.dq, g, s.dim), 0, head.query_rows, zeros);
        write_query_parameters(head, g, none);
    }
}

// sum over queries, its stretches computed by `threads` threads and added in order.
static void all_query_gradients(const Head& head, int64_t threads, const State& state, const Total& d) {
    const Shape& s = head.shape;
    Buffer transposed(int64_t(s.e) * s.ld), parameters(ParameterSums::floats(s.d));
    transpose(s.d, s.e, state.s, s.le, transposed, s.ld);
    const int64_t parts = stretches(head.query_rows), at_once = threads == 1 ? 1 : least(parts, 4 * threads);
    Buffer memory(at_once * QuerySums::floats(s));
    const ParameterSums total(parameters, s.d);
    for (int64_t group = 0; group < head.groups; ++group) {
        total.clear(s.d);
        for (int64_t wave = 0; wave < parts; wave += at_once) {
            const int64_t count = least(at_once, parts - wave);
            parallel(threads, count, [&](int64_t i) {
                const QuerySums part(memory + i * QuerySums::floats(s), s);
                clear(part.d, s);
                part.parameters.clear(s.d);
                const int64_t first = (wave + i) * STRETCH;
                query_gradients(head, group, first, least(first + STRETCH, head.query_rows), state, transposed, part);
            });
            for (int64_t i = 0; i < count; ++i) {
                const QuerySums part(memory + i * QuerySums::floats(s), s);
                add(d, part.d, s);
                total.add(part.parameters, s.d);
            }
        }
        write_query_parameters(head, group, total);
    }
}

static void all_key_gradients(const Head& head, int64_t threads, const float* c, const State& d) {
    const Shape& s = head.shape;
    const int64_t parts = stretches(head.key_rows);
    Buffer transposed(int64_t(s.e) * s.ld), memory((parts + 1) * ParameterSums::floats(s.d));
    transpose(s.d, s.e, d.s, s.le, transposed, s.ld);
    const ParameterSums total(memory, s.d);
    total.clear(s.d);
    parallel(threads, parts, [&](int64_t i) {
        const ParameterSums part(memory + (i + 1) * ParameterSums::floats(s.d), s.d);
        part.clear(s.d);
        const int64_t first = i * STRETCH;
        key_gradients(head, first, least(first + STRETCH, head.key_rows), c, d, transposed, part);
    });
    for (int64_t i = 1; i <= parts; ++i) total.add(ParameterSums(memory + i * ParameterSums::floats(s.d), s.d), s.d);
    write_key_parameters(head, total);
}

static void bidirectional_backward(const Head& head, int64_t threads) {
    const Shape& s = head.shape;
    Buffer memory(State::floats(s)), gradients(Total::floats(s));
    const State state(memory, s);
    const Total d(gradients, s);
    head.read_state(state);
    clear(d, s);
    if (!state.has_key()) {
        head.write_start_gradients(d, state.c, 1);
        return write_zero_gradients(head);
    }
    head.read_state_gradients(d, 1);
    all_query_gradients(head, threads, state, d);
    all_key_gradients(head, threads, state.c, d);
    head.write_start_gradients(d, state.c, 1);
}

}  // namespace LLN_ISA
