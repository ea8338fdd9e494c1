// Causal attention, in chunks whose rows see each other as a matrix and all earlier ones through the state.
//
// No shift may depend on a later key. A chunk is cut into segments; a segment's reference r is the running maximum of b up to
// and including its first key, M_i the running maximum at row i, and
//   m_i = max_l (a_il + M_il),   f_i = exp(a_i + r - m_i) <= 1,   g_j = exp(b_j - r) <= e^64
//   out_i = (f_i S + sum_{j <= i} (f_i . g_j) v_j) / (f_i . z_i),   z_i = z + sum_{j <= i} g_j
// with S and z the state before the segment, relative to r. A row whose M exceeds r by more than 64 starts a new segment.
#pragma once
#include "bidirectional.h"

namespace LLN_ISA {

constexpr float SEGMENT_RANGE = 64;
constexpr int TILE_ROWS = CHUNK + 16;  // room for transposing whole blocks
static_assert(W <= 16, "tiles have no room for wider blocks");

// The keys and values of one chunk.
class Chunk {
   public:
    const Head& head;
    const Shape& s;
    Buffer b, running, values, features_t;  // b turns into g segment by segment
    int rows = 0, segments = 0;
    int64_t first = 0;
    int starts[CHUNK + 1];  // rows before starts[0] have no key to see; starts[segments] = rows
    static constexpr int LDT = CHUNK + 32;

    explicit Chunk(const Head& h)
        : head(h), s(h.shape), b(TILE_ROWS * s.ld), running(TILE_ROWS * s.ld), values(TILE_ROWS * s.le), features_t(s.d * LDT) {}

    // `before` is the running maximum before the chunk, -inf if there was no key.
    void load(int64_t at, int count, const float* before) {
        first = at, rows = count, segments = 0;
        load_keys(head.k, head.mask, head.beta(), first, rows, b, s.ld);
        load_values(head.v, head.mask, first, rows, values, s.le);
        bool has_key = before[0] > -__builtin_inff();
        for (int r = 0; r < rows; ++r) {
            float* now = running + int64_t(r) * s.ld;
            const float *last = r == 0 ? before : now - s.ld, *row = b + int64_t(r) * s.ld;
            const bool counts = head.mask.counts(first + r);
            for (int l = 0; l < s.d; l += W) store(now + l, vmax(LLN_ISA::load(row + l), LLN_ISA::load(last + l)));  // a key that does not count: -inf
            if (!has_key && !counts) continue;
            if (segments == 0 || (counts && must_cut(r, now))) starts[segments++] = r;
            has_key = true;
        }
        starts[segments] = rows;
    }

    int start(int segment) const { return starts[segment]; }
    int length(int segment) const { return starts[segment + 1] - starts[segment]; }
    float* reference(int segment) const { return running + int64_t(starts[segment]) * s.ld; }
    float* features(int segment) const { return b + int64_t(starts[segment]) * s.ld; }
    float* segment_values(int segment) const { return values + int64_t(starts[segment]) * s.le; }
    const float* after() const { return running + int64_t(rows - 1) * s.ld; }

    // b -> g, and g^T beside it (d x length, pitch LDT).
    void make_features(int segment) {
        float* g = features(segment);
        key_features(length(segment), s.d, reference(segment), g, s.ld, nullptr);
        transpose(length(segment), s.d, g, s.ld, features_t, LDT);
    }

   private:
    // A value that is not finite also starts a segment: rows of a segment meet each other's values with weight 0.
    bool must_cut(int r, const float* now) const {
        const float* reference = running + int64_t(starts[segments - 1]) * s.ld;
        vi far = {};
        for (int l = 0; l < s.d; l += W) far |= LLN_ISA::load(now + l) - LLN_ISA::load(reference + l) > splat(SEGMENT_RANGE);
        const float* value = values + int64_t(r) * s.le;
        for (int m = 0; m < s.e; m += W) far |= LLN_ISA::load(value + m) * 0 != vf{};
        return any(far);
    }
};

// z_i = z + sum_{j <= i} g_j for the rows of a segment.
static void running_normalisers(int rows, int d, const float* g, int ld, const float* z, float* tile) {
    for (int r = 0; r < rows; ++r) {
        const float* last = r == 0 ? z : tile + int64_t(r - 1) * ld;
        for (int l = 0; l < d; l += W) store(tile + int64_t(r) * ld + l, load(last + l) + load(g + int64_t(r) * ld + l));
    }
}

// Rows first .. last - 1, going on from `state`, which ends up relative to its own maximum.
static void causal_attend(const Head& head, int64_t first, int64_t last, const State& state) {
    const Shape& s = head.shape;
    Chunk chunk(head);
    Buffer f(CHUNK * s.ld), normalisers(CHUNK * s.ld), weights(CHUNK * Chunk::LDT), result(CHUNK * s.le);
    Buffer before(s.d);
    float m[CHUNK], denominators[CHUNK];
    memcpy(before, state.c, 4 * size_t(s.d));
    for (int64_t at = first; at < last; at += CHUNK) {
        chunk.load(at, int(least(CHUNK, last - at)), before);
        memcpy(before, chunk.after(), 4 * size_t(s.d));
        if (chunk.starts[0] > 0) {
            fill_row(result, s.e, 0);
            for (int64_t group = 0; group < head.groups; ++group)
                store_zero_rows(head.queries(head.problem.out, group, s.value_dim), at, chunk.starts[0], result);
        }
        for (int i = 0; i < chunk.segments; ++i) {
            const int rows = chunk.length(i);
            const int64_t row = at + chunk.start(i);
            const float *reference = chunk.reference(i), *g = chunk.features(i), *values = chunk.segment_values(i);
            raise_reference(state, s, reference);
            chunk.make_features(i);
            running_normalisers(rows, s.d, g, s.ld, state.z, normalisers);
            for (int64_t group = 0; group < head.groups; ++group) {
                const Rows q = head.queries(head.problem.q, group, s.dim);
                const Rows out = head.queries(head.problem.out, group, s.value_dim);
                load_queries(q, row, rows, head.alpha(group), head.bias(group), reference, s.ld, f, s.ld, m);
                query_features(rows, s.d, reference, m, f, s.ld);
                row_denominators(rows, s.d, f, s.ld, normalisers, s.ld, denominators);
                Fetch next(row + rows, least(row + rows + CHUNK, last), blocks(rows, s.e));
                next.read(q).write(out);
                if (group == 0) next.read(head.k).read(head.v);
                product<ROWS, OVERWRITE>(rows, s.e, s.d, f, s.ld, state.s, s.le, result, s.le, next);
                lower_triangle(rows, s.d, f, s.ld, chunk.features_t, Chunk::LDT, weights, Chunk::LDT);
                clear_above_diagonal(rows, weights, Chunk::LDT);
                add_lower(rows, s.e, weights, Chunk::LDT, values, s.le, result, s.le);
                store_rows(out, row, rows, result, s.le, denominators);
            }
            memcpy(state.z, normalisers + int64_t(rows - 1) * s.ld, 4 * size_t(s.d));
            product<COLUMNS, ADD>(s.d, s.e, rows, g, s.ld, values, s.le, state.s, s.le);
        }
    }
    raise_reference(state, s, before);
}

static void copy(const State& from, const State& to, const Shape& s) { memcpy(to.c, from.c, 4 * size_t(s.state_floats())); }

// Where heads are too few for the threads: the states that stretches start from come first, each stretch's keys summed by
// itself and the sums merged in order; then every stretch can be worked on. `use` gets the stretch and the state it starts from.
template <class Use>
static void for_each_stretch_with_state(const Head& head, int64_t threads, const State& state, Use use) {
    const Shape& s = head.shape;
    const int64_t all = stretches(head.key_rows), at_once = least(all, 4 * threads);
    Buffer parts(at_once * s.state_floats()), starts(at_once * s.state_floats());
    for (int64_t wave = 0; wave < all; wave += at_once) {
        const int64_t count = least(at_once, all - wave);
        parallel(threads, count, [&](int64_t i) {
            const State part(parts + i * s.state_floats(), s);
            clear(part, s);
            const int64_t first = (wave + i) * STRETCH;
            accumulate_keys(head, first, least(first + STRETCH, head.key_rows), part);
        });
        for (int64_t i = 0; i < count; ++i) {
            copy(state, State(starts + i * s.state_floats(), s), s);
            merge(state, State(parts + i * s.state_floats(), s), s);
        }
        parallel(threads, count, [&](int64_t i) { use(wave + i, State(starts + i * s.state_floats(), s)); });
    }
}

static void causal_forward(const Problem& problem) {
    for_each_head(problem, [](const Head& head, int64_t threads) {
        Buffer memory(head.shape.state_floats());
        const State state(memory, head.shape);
        head.read_start(state);
        if (threads == 1) causal_attend(head, 0, head.key_rows, state);
        else
            for_each_stretch_with_state(head, threads, state, [&](int64_t i, const State& start) {
                causal_attend(head, i * STRETCH, least((i + 1) * STRETCH, head.key_rows), start);
            });
        head.write_state(state);
    });
}

}  // namespace LLN_ISA
