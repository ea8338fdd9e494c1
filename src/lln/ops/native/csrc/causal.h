// Causal attention, in chunks whose rows see each other as a matrix and all earlier ones through the state.
//
// No shift may depend on a later key. A chunk is cut into segments; M_i is the running maximum of b at row i, and a segment's
// reference r is that of the segment before, or M at its own first row if that is ahead of it by more than SLACK. With
//   m_i = max_l (a_il + M_il),   f_i = exp(a_i + r - m_i) <= 1,   g_j = exp(b_j - r) <= e^64
//   out_i = (f_i S + sum_{j <= i} (f_i . g_j) v_j) / (f_i . z_i),   z_i = z + sum_{j <= i} g_j
// S and z are the state before the segment, relative to r. A row whose M exceeds r by more than 64 starts a new segment.
#pragma once
#include "bidirectional.h"

namespace LLN_ISA {

constexpr float SEGMENT_RANGE = SLACK;
constexpr int TILE_ROWS = CHUNK + 16;  // room for transposing whole blocks
static_assert(W <= 16, "tiles have no room for wider blocks");

// The keys and values of one chunk.
class Chunk {
   public:
    const Head& head;
    const Shape& s;
    Buffer b, running, values, features_t, kept;  // b turns into g segment by segment
    int rows = 0, segments = 0;
    bool has_key = false;  // of its own
    int64_t first = 0;
    int starts[CHUNK + 1];  // rows before starts[0] have no key to see; starts[segments] = rows
    const float* references[CHUNK];
    static constexpr int LDT = CHUNK + 32;

    explicit Chunk(const Head& h)
        : head(h), s(h.shape), b(TILE_ROWS * s.ld), running(TILE_ROWS * s.ld), values(TILE_ROWS * s.le), features_t(s.d * LDT),
          kept(s.d) {}

    // `before` is the running maximum before the chunk and `r` the reference, both -inf if there was no key.
    void load(int64_t at, int count, const float* before, const float* r_before) {
        first = at, rows = count, segments = 0, has_key = false;
        memcpy(kept, r_before, 4 * size_t(s.d));
        load_keys(head.k, head.mask, head.beta(), first, rows, b, s.ld);
        load_values(head.v, head.mask, first, rows, values, s.le);
        const bool earlier_key = before[0] > -__builtin_inff();
        for (int r = 0; r < rows; ++r) {
            float* now = running + int64_t(r) * s.ld;
            const float *last = r == 0 ? before : now - s.ld, *row = b + int64_t(r) * s.ld;
            const bool counts = head.mask.counts(first + r);
            for (int l = 0; l < s.d; l += W) store(now + l, vmax(LLN_ISA::load(row + l), LLN_ISA::load(last + l)));  // a key that does not count: -inf
            has_key |= counts;
            if (!has_key && !earlier_key) continue;
            if (segments == 0 || (counts && must_cut(r, now))) start_segment(r, now);
        }
        starts[segments] = rows;
    }

    int start(int segment) const { return starts[segment]; }
    int length(int segment) const { return starts[segment + 1] - starts[segment]; }
    const float* reference(int segment) const { return references[segment]; }
    const float* maxima(int segment) const { return running + int64_t(starts[segment]) * s.ld; }  // M of its rows
    float* features(int segment) const { return b + int64_t(starts[segment]) * s.ld; }
    float* segment_values(int segment) const { return values + int64_t(starts[segment]) * s.le; }
    const float* maximum_after() const { return running + int64_t(rows - 1) * s.ld; }
    const float* reference_after() const { return segments == 0 ? kept : references[segments - 1]; }

    // b -> g, and g^T beside it (d x length, pitch LDT).
    void make_features(int segment) {
        float* g = features(segment);
        key_features(length(segment), s.d, reference(segment), g, s.ld, nullptr);
        transpose(length(segment), s.d, g, s.ld, features_t, LDT);
    }

   private:
    // Scaling a state rounds it, so it is done seldom: features may grow to e^SLACK before the reference follows.
    void start_segment(int r, const float* now) {
        const float* last = reference_after();
        references[segments] = runs_ahead(s.d, now, last) ? now : last;
        starts[segments++] = r;
    }
    // A value that is not finite also starts a segment: rows of a segment meet each other's values with weight 0.
    bool must_cut(int r, const float* now) const {
        const float* reference = reference_after();
        vi far = {};
        for (int l = 0; l < s.d; l += W) far |= LLN_ISA::load(now + l) - LLN_ISA::load(reference + l) > splat(SEGMENT_RANGE);
        const float* value = values + int64_t(r) * s.le;
        for (int m = 0; m < s.e; m += W) far |= LLN_ISA::load(value + m) * 0 != vf{};
        return any(far);
    }
};

// z_i = z + sum_{j <= i} g_j for the rows of a segment, and the sum over all of them.
static void running_normalisers(int rows, int d, const float* g, int ld, const float* z, float* tile, float* sum) {
    for (int l = 0; l < d; l += PANEL) {
        const vf z0 = load(z + l), z1 = load(z + l + W);
        vf sum0 = {}, sum1 = {};
        for (int r = 0; r < rows; ++r) {
            const int64_t at = int64_t(r) * ld + l;
            sum0 += load(g + at);
            sum1 += load(g + at + W);
            store(tile + at, z0 + sum0);
            store(tile + at + W, z1 + sum1);
        }
        store(sum + l, sum0);
        store(sum + l + W, sum1);
    }
}

// total += the keys of a segment, `sum` being that of its features g.
static void add_segment(const Total& total, const Shape& s, int rows, const float* g, const float* sum, const float* values) {
    for (int l = 0; l < s.d; l += W) add_to_pair(total.z + l, total.z_low + l, load(sum + l));
    add_product_to_pair(s.d, s.e, rows, g, s.ld, values, s.le, total.s, s.le, total.low());
}

// Rows first .. last - 1, going on from `state`, which ends up relative to its own maximum.
static void causal_attend(const Head& head, int64_t first, int64_t last, const Total& state) {
    const Shape& s = head.shape;
    Chunk chunk(head);
    Buffer f(CHUNK * s.ld), normalisers(CHUNK * s.ld), weights(CHUNK * Chunk::LDT), result(CHUNK * s.le);
    Buffer before(s.d), sum(s.d);
    float m[CHUNK], denominators[CHUNK];
    memcpy(before, state.c, 4 * size_t(s.d));
    for (int64_t at = first; at < last; at += CHUNK) {
        chunk.load(at, int(least(CHUNK, last - at)), before, state.c);
        memcpy(before, chunk.maximum_after(), 4 * size_t(s.d));
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
            running_normalisers(rows, s.d, g, s.ld, state.z, normalisers, sum);
            for (int64_t group = 0; group < head.groups; ++group) {
                const Rows q = head.queries(head.problem.q, group, s.dim);
                const Rows out = head.queries(head.problem.out, group, s.value_dim);
                load_queries(q, row, rows, head.alpha(group), head.bias(group), chunk.maxima(i), s.ld, f, s.ld, m);
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
            if (chunk.has_key) add_segment(state, s, rows, g, sum, values);  // padding leaves every bit as it is
        }
    }
    raise_reference(state, s, before);
}

static void copy(const Total& from, const Total& to, const Shape& s) { memcpy(to.c, from.c, 4 * size_t(Total::floats(s))); }

// Where heads are too few for the threads: the states that stretches start from come first, each stretch's keys summed by
// itself and the sums merged in order; then every stretch can be worked on. `use` gets the stretch and the state it starts from.
template <class Use>
static void for_each_stretch_with_state(const Head& head, int64_t threads, const Total& state, Use use) {
    const Shape& s = head.shape;
    const int64_t all = stretches(head.key_rows), at_once = least(all, 4 * threads);
    Buffer parts(at_once * State::floats(s)), starts(at_once * Total::floats(s));
    for (int64_t wave = 0; wave < all; wave += at_once) {
        const int64_t count = least(at_once, all - wave);
        parallel(threads, count, [&](int64_t i) {
            const State part(parts + i * State::floats(s), s);
            clear(part, s);
            const int64_t first = (wave + i) * STRETCH;
            accumulate_keys(head, first, least(first + STRETCH, head.key_rows), part);
        });
        for (int64_t i = 0; i < count; ++i) {
            copy(state, Total(starts + i * Total::floats(s), s), s);
            merge(state, State(parts + i * State::floats(s), s), s);
        }
        parallel(threads, count, [&](int64_t i) { use(wave + i, Total(starts + i * Total::floats(s), s)); });
    }
}

static void causal_forward(const Head& head, int64_t threads) {
    Buffer memory(Total::floats(head.shape));
    const Total state(memory, head.shape);
    head.read_start(state);
    if (threads == 1) causal_attend(head, 0, head.key_rows, state);
    else
        for_each_stretch_with_state(head, threads, state, [&](int64_t i, const Total& start) {
            causal_attend(head, i * STRETCH, least((i + 1) * STRETCH, head.key_rows), start);
        });
    head.write_state(state);
}

}  // namespace LLN_ISA
