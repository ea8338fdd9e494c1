// Gradients of causal attention, in two sweeps over the same chunks, segments and references as the forward pass.
//
// Forwards, with S and z the state before the segment: t_i = dout_i / den_i and
//   u_i = S t_i + sum_{j <= i} (t_i . v_j) g_j,   delta_i = f_i . u_i / den_i,   da_i = f_i (u_i - z_i delta_i)
// Backwards, with U = sum f_i t_i^T and y = sum f_i delta_i over the rows after the segment:
//   db_j = g_j (U v_j - y + sum_{i >= j} f_i (t_i . v_j - delta_i)),   dv_j = U^T g_j + sum_{i >= j} (f_i . g_j) t_i
// U and y begin with the gradients of S and -z that come with the state, relative to its c, and end as those of the start.
// Between the sweeps stay m_i, den_i and delta_i of each row, and the running maximum and the reference before each chunk.
#pragma once
#include "causal.h"
#include "gradients.h"

namespace LLN_ISA {

INLINE int64_t chunks(int64_t rows) { return (rows + CHUNK - 1) / CHUNK; }

// What the sweep forwards leaves for the sweep backwards.
struct Trace {
    const Head& head;
    Buffer rows, maxima;
    explicit Trace(const Head& h)
        : head(h), rows(3 * h.groups * h.query_rows), maxima(chunks(h.key_rows) * 2 * h.shape.d) {}
    float* m(int64_t group, int64_t row) const { return rows + group * head.query_rows + row; }
    float* denominators(int64_t group, int64_t row) const { return m(head.groups + group, row); }
    float* deltas(int64_t group, int64_t row) const { return m(2 * head.groups + group, row); }
    float* maximum_before(int64_t row) const { return maxima + row / CHUNK * 2 * head.shape.d; }
    float* reference_before(int64_t row) const { return maximum_before(row) + head.shape.d; }
};

// Sums for the parameters of a head: one for each query head, and one for its keys.
struct HeadSums {
    float* memory;
    int d;
    int64_t groups;
    static int64_t floats(const Head& head) { return (head.groups + 1) * ParameterSums::floats(head.shape.d); }
    ParameterSums query(int64_t group) const { return ParameterSums(memory + group * ParameterSums::floats(d), d); }
    ParameterSums key() const { return query(groups); }
    void clear() const {
        for (int64_t i = 0; i <= groups; ++i) query(i).clear(d);
    }
    void add(const HeadSums& other) const {
        for (int64_t i = 0; i <= groups; ++i) query(i).add(other.query(i), d);
    }
};

// Rows of one query head inside a segment: f, t and who is absent.
struct QueryTile {
    Buffer f, t;
    float m[CHUNK], denominators[CHUNK];
    bool absent[CHUNK];
    explicit QueryTile(const Shape& s) : f(CHUNK * s.ld), t(CHUNK * s.le) {}

    // a, and m from the rows of `maxima`.
    void load(const Head& head, int64_t group, int64_t row, int rows, const float* maxima) {
        const Shape& s = head.shape;
        const Rows q = head.queries(head.problem.q, group, s.dim);
        load_queries(q, row, rows, head.alpha(group), head.bias(group), maxima, s.ld, f, s.ld, m);
        load_gradients(head, group, row, rows);
    }
    void load_gradients(const Head& head, int64_t group, int64_t row, int rows) {
        const Shape& s = head.shape;
        head.load_gradients(group, row, rows, t);
        find_absent(rows, s.e, t, s.le, absent);
    }
    // f relative to `reference`, from the m and den that the sweep forwards has found.
    void recompute(const Head& head, const Trace& trace, int64_t group, int64_t row, int rows, const float* reference) {
        const Shape& s = head.shape;
        load_rows(head.queries(head.problem.q, group, s.dim), row, rows, head.alpha(group), head.bias(group), f, s.ld);
        load_gradients(head, group, row, rows);
        memcpy(denominators, trace.denominators(group, row), 4 * size_t(rows));
        query_features(rows, s.d, reference, trace.m(group, row), f, s.ld);
        remove_absent(rows, s.d, absent, f, s.ld, denominators);
        divide_rows(rows, s.e, denominators, t, s.le);
    }
};

// (t_i . v_j) for j <= i.
static void value_products(const Shape& s, int rows, const float* t, const float* values_t, float* to) {
    lower_triangle(rows, s.e, t, s.le, values_t, Chunk::LDT, to, Chunk::LDT);
    clear_above_diagonal(rows, to, Chunk::LDT);
}

static void sweep_forwards(const Head& head, int64_t first, int64_t last, const Total& state, const Trace& trace,
                           const HeadSums& sums) {
    const Shape& s = head.shape;
    Chunk chunk(head);
    QueryTile tile(s);
    Buffer state_t(int64_t(s.e) * s.ld), sum(s.d), before(s.d), zeros(s.d);
    Buffer normalisers(CHUNK * s.ld), weights(CHUNK * Chunk::LDT), values_t(s.e * Chunk::LDT), u(CHUNK * s.ld);
    float deltas[CHUNK];
    memcpy(before, state.c, 4 * size_t(s.d));
    fill_row(zeros, s.d, 0);
    for (int64_t at = first; at < last; at += CHUNK) {
        memcpy(trace.maximum_before(at), before, 4 * size_t(s.d));
        memcpy(trace.reference_before(at), state.c, 4 * size_t(s.d));
        chunk.load(at, int(least(CHUNK, last - at)), before, state.c);
        memcpy(before, chunk.maximum_after(), 4 * size_t(s.d));
        for (int64_t group = 0; group < head.groups; ++group)
            store_zero_rows(head.queries(head.problem.dq, group, s.dim), at, chunk.starts[0], zeros);
        for (int i = 0; i < chunk.segments; ++i) {
            const int rows = chunk.length(i);
            const int64_t row = at + chunk.start(i);
            const float *reference = chunk.reference(i), *g = chunk.features(i), *values = chunk.segment_values(i);
            raise_reference(state, s, reference);
            transpose(s.d, s.e, state.s, s.le, state_t, s.ld);
            key_features(rows, s.d, reference, chunk.features(i), s.ld, nullptr);
            running_normalisers(rows, s.d, g, s.ld, state.z, normalisers, sum);
            transpose(rows, s.e, values, s.le, values_t, Chunk::LDT);
            for (int64_t group = 0; group < head.groups; ++group) {
                tile.load(head, group, row, rows, chunk.maxima(i));
                query_features(rows, s.d, reference, tile.m, tile.f, s.ld);
                row_denominators(rows, s.d, tile.f, s.ld, normalisers, s.ld, tile.denominators);
                memcpy(trace.m(group, row), tile.m, 4 * size_t(rows));
                memcpy(trace.denominators(group, row), tile.denominators, 4 * size_t(rows));
                remove_absent(rows, s.d, tile.absent, tile.f, s.ld, tile.denominators);
                divide_rows(rows, s.e, tile.denominators, tile.t, s.le);
                product<ROWS, OVERWRITE>(rows, s.d, s.e, tile.t, s.le, state_t, s.ld, u, s.ld);
                value_products(s, rows, tile.t, values_t, weights);
                add_lower(rows, s.d, weights, Chunk::LDT, g, s.ld, u, s.ld);
                row_deltas(rows, s.d, tile.f, u, s.ld, tile.denominators, deltas);
                memcpy(trace.deltas(group, row), deltas, 4 * size_t(rows));
                for (int r = 0; r < rows; ++r)
                    for (int l = 0; l < s.d; l += W) {
                        const int64_t x = int64_t(r) * s.ld + l;
                        store(u + x, load(tile.f + x) * (load(u + x) - load(normalisers + x) * deltas[r]));
                    }
                write_query_gradients(head, group, row, rows, u, tile.absent, sums.query(group));
            }
            if (chunk.has_key) add_segment(state, s, rows, g, sum, values);
        }
    }
}

// U and y of the rows after some row, relative to a reference; nothing after it: +inf, 0, 0.
typedef Total Future;

template <class Sums>
static void clear_future(const Sums& future, const Shape& s) {
    clear(future, s);
    fill_row(future.c, s.d, __builtin_inff());
}

// Makes r the reference, r <= future.c in every feature.
static void lower_reference(const Future& future, const Shape& s, const float* r) {
    for (int l = 0; l < s.d; l += W) {
        const vf before = load(future.c + l), after = load(r + l);
        if (!any(after < before)) continue;
        scale_features(future, s, l, after - before);
        store(future.c + l, after);
    }
}

static void sweep_backwards(const Head& head, int64_t first, int64_t last, const Future& future, const Trace& trace,
                            const HeadSums& sums) {
    const Shape& s = head.shape;
    Chunk chunk(head);
    QueryTile tile(s);
    Buffer future_t(int64_t(s.e) * s.ld), values_t(s.e * Chunk::LDT), weights(CHUNK * Chunk::LDT);
    Buffer db(CHUNK * s.ld), dv(CHUNK * s.le);
    for (int64_t at = first + (chunks(last - first) - 1) * CHUNK; at >= first; at -= CHUNK) {
        chunk.load(at, int(least(CHUNK, last - at)), trace.maximum_before(at), trace.reference_before(at));
        for (int i = chunk.segments - 1; i >= 0; --i) {
            const int rows = chunk.length(i);
            const int64_t row = at + chunk.start(i);
            const float *g = chunk.features(i), *values = chunk.segment_values(i), *reference = chunk.reference(i);
            lower_reference(future, s, reference);
            chunk.make_features(i);
            transpose(rows, s.e, values, s.le, values_t, Chunk::LDT);
            transpose(s.d, s.e, future.s, s.le, future_t, s.ld);
            for (int r = 0; r < rows; ++r)
                for (int l = 0; l < s.d; l += W) store(db + int64_t(r) * s.ld + l, -load(future.z + l));
            product<ROWS, ADD>(rows, s.d, s.e, values, s.le, future_t, s.ld, db, s.ld);
            product<ROWS, OVERWRITE>(rows, s.e, s.d, g, s.ld, future.s, s.le, dv, s.le);
            for (int64_t group = 0; group < head.groups; ++group) {
                const float* deltas = trace.deltas(group, row);
                tile.recompute(head, trace, group, row, rows, reference);
                lower_triangle(rows, s.d, tile.f, s.ld, chunk.features_t, Chunk::LDT, weights, Chunk::LDT);
                clear_above_diagonal(rows, weights, Chunk::LDT);
                add_lower_transposed(rows, s.e, weights, Chunk::LDT, tile.t, s.le, dv, s.le);
                value_products(s, rows, tile.t, values_t, weights);
                for (int r = 0; r < rows; ++r)
                    for (int j = 0; j <= r; ++j) weights[r * Chunk::LDT + j] -= deltas[r];
                add_lower_transposed(rows, s.d, weights, Chunk::LDT, tile.f, s.ld, db, s.ld);
                add_product_to_pair(s.d, s.e, rows, tile.f, s.ld, tile.t, s.le, future.s, s.le, future.low());
                add_weighted_rows(rows, s.d, tile.f, s.ld, deltas, 1, future.z, future.z_low);
            }
            multiply(rows, s.d, db, g, s.ld);
            write_key_gradients(head, row, rows, db, dv, sums.key());
        }
        const int keyless = chunk.starts[0];
        if (keyless > 0) write_key_gradients(head, at, keyless, db, dv, sums.key());  // masked, every one: zeros
    }
}

// U and y of one stretch by itself, relative to the reference before it.
static void accumulate_future(const Head& head, int64_t first, int64_t last, const Trace& trace, const State& part) {
    const Shape& s = head.shape;
    const float* reference = trace.reference_before(first);
    clear_future(part, s);
    if (!(reference[0] > -__builtin_inff())) return;  // no key before the stretch, and nobody to tell
    memcpy(part.c, reference, 4 * size_t(s.d));
    QueryTile tile(s);
    for (int64_t group = 0; group < head.groups; ++group)
        for (int64_t at = first; at < last; at += CHUNK) {
            const int rows = int(least(CHUNK, last - at));
            tile.recompute(head, trace, group, at, rows, reference);
            product<COLUMNS, ADD>(s.d, s.e, rows, tile.f, s.ld, tile.t, s.le, part.s, s.le);
            add_weighted_rows(rows, s.d, tile.f, s.ld, trace.deltas(group, at), 1, part.z);
        }
}

static void add_future(const State& part, const Shape& s, const Future& future) {
    if (part.c[0] == __builtin_inff()) return;
    lower_reference(future, s, part.c);
    add(future, part, s);
}

static void causal_backward(const Head& head, int64_t threads) {
    const Shape& s = head.shape;
    const Trace trace(head);
    const int64_t all = threads == 1 ? 1 : stretches(head.key_rows), rows = threads == 1 ? head.key_rows : STRETCH;
    const int64_t each = HeadSums::floats(head);
    Buffer state_memory(Total::floats(s)), future_memory(Total::floats(s)), parameters((all + 1) * each);
    const Total state(state_memory, s);
    const Future future(future_memory, s);
    const auto sums = [&](int64_t i) { return HeadSums{parameters + i * each, s.d, head.groups}; };
    const auto end = [&](int64_t i) { return least((i + 1) * rows, head.key_rows); };
    for (int64_t i = 0; i <= all; ++i) sums(i).clear();

    head.read_start(state);
    if (all == 1) sweep_forwards(head, 0, head.key_rows, state, trace, sums(1));
    else
        for_each_stretch_with_state(head, threads, state, [&](int64_t i, const Total& start) {
            sweep_forwards(head, i * rows, end(i), start, trace, sums(i + 1));
        });

    clear_future(future, s);
    head.read_state_gradients(future, -1);
    if (all == 1) sweep_backwards(head, 0, head.key_rows, future, trace, sums(1));
    else {
        const int64_t at_once = least(all, 4 * threads);
        Buffer parts(at_once * State::floats(s)), futures(at_once * Total::floats(s));
        for (int64_t left = all; left > 0; left -= at_once) {  // waves of stretches, last to first
            const int64_t low = left > at_once ? left - at_once : 0, count = left - low;
            const auto part = [&](int64_t i) { return State(parts + i * State::floats(s), s); };
            parallel(threads, count, [&](int64_t i) {
                accumulate_future(head, (low + i) * rows, end(low + i), trace, part(i));
            });
            for (int64_t i = count - 1; i >= 0; --i) {
                copy(future, Future(futures + i * Total::floats(s), s), s);
                add_future(part(i), s, future);
            }
            parallel(threads, count, [&](int64_t i) {
                const Future after(futures + i * Total::floats(s), s);
                sweep_backwards(head, (low + i) * rows, end(low + i), after, trace, sums(low + i + 1));
            });
        }
    }
    head.write_start_gradients(future, future.c, -1);
    for (int64_t i = 1; i <= all; ++i) sums(0).add(sums(i));
    write_key_parameters(head, sums(0).key());
    for (int64_t group = 0; group < head.groups; ++group) write_query_parameters(head, group, sums(0).query(group));
}

}  // namespace LLN_ISA
