// Attention of every query to every key of its sequence, with b_j = beta k_j and a_i = alpha q_i + w:
//   c = max_j b_j,  g_j = exp(b_j - c),  S = sum_j g_j v_j^T,  z = sum_j g_j
//   m_i = max_l (a_il + c_l),  f_i = exp(a_i + c - m_i),  out_i = f_i S / (f_i . z)
#pragma once
#include "head.h"

namespace LLN_ISA {

// g = exp(b - c) in place, and z += sum of the rows.
static void key_features(int rows, int d, const float* c, float* tile, int ld, float* z) {
    for (int l = 0; l < d; l += PANEL) {
        const vf c0 = load(c + l), c1 = load(c + l + W);
        vf z0 = {}, z1 = {};
        for (int r = 0; r < rows; ++r) {
            float* at = tile + int64_t(r) * ld + l;
            const vf g0 = exp(load(at) - c0), g1 = exp(load(at + W) - c1);
            store(at, g0);
            store(at + W, g1);
            z0 += g0;
            z1 += g1;
        }
        if (z != nullptr) {
            store(z + l, load(z + l) + z0);
            store(z + l + W, load(z + l + W) + z1);
        }
    }
}

// The same for rows as pairs, g as it is multiplied: z is the sum of the same rounded numbers, so that weights still add up to 1.
static void paired_key_features(int rows, int d, const float* c, float* tile, int ld, float* z) {
    for (int l = 0; l < d; l += W) {
        const vf reference = load(c + l);
        vf sum = {};
        for (int r = 0; r < rows; r += 2) {
            const float* at = tile + int64_t(r) * ld + l;
            const vf g = paired(exp(load(at) - reference), r + 1 < rows ? exp(load(at + ld) - reference) : vf{});
            store(tile + int64_t(r / 2) * ld + l, g);
            sum += earlier_of(g) + later_of(g);
        }
        store(z + l, load(z + l) + sum);
    }
}

static void raise_to_rows(int rows, int d, const float* tile, int ld, float* c) {
    for (int l = 0; l < d; l += PANEL) {
        vf c0 = load(c + l), c1 = load(c + l + W);
        for (int r = 0; r < rows; ++r) {
            c0 = vmax(load(tile + int64_t(r) * ld + l), c0);
            c1 = vmax(load(tile + int64_t(r) * ld + l + W), c1);
        }
        store(c + l, c0);
        store(c + l + W, c1);
    }
}

// How far (natural log) the maximum may run ahead of the reference before the state is rescaled. Features stay below e^16, far
// from overflow, and nearly all rescaling is saved.
constexpr float SLACK = 16;

static bool runs_ahead(int d, const float* maximum, const float* reference) {
    vi far = {};
    for (int l = 0; l < d; l += W) far |= load(maximum + l) - load(reference + l) > splat(SLACK);
    return any(far);
}

// state += keys first .. last - 1. It starts and ends relative to its own maximum.
static void accumulate_keys(const Head& head, int64_t first, int64_t last, const State& state) {
    const Shape& s = head.shape;
    Buffer features(KEY_TILE * s.ld), values(KEY_TILE * s.le), maximum(s.d), pairs(head.in_pairs() ? KEY_TILE / 2 * s.le : 0);
    memcpy(maximum, state.c, 4 * size_t(s.d));
    for (int64_t at = first; at < last; at += KEY_TILE) {
        const int rows = int(least(KEY_TILE, last - at));
        if (load_keys(head.k, head.mask, head.beta(), at, rows, features, s.ld) == 0) continue;
        load_values(head.v, head.mask, at, rows, values, s.le);
        raise_to_rows(rows, s.d, features, s.ld, maximum);
        if (runs_ahead(s.d, maximum, state.c)) raise_reference(state, s, maximum);
        Fetch next(at + rows, least(at + 2 * KEY_TILE, last), blocks(s.d, s.e));
        next.read(head.k).read(head.v);
        const auto earlier = [](int i) { return 2 * i; };
        if (HAS_PAIRS && head.in_pairs() && pair_rows((rows + 1) / 2, s.e, values, s.le, earlier, 1, rows, pairs)) {
            paired_key_features(rows, s.d, state.c, features, s.ld, state.z);
            product<COLUMNS, ADD, PAIRS>(s.d, s.e, (rows + 1) / 2, features, s.ld, pairs, s.le, state.s, s.le, next);
        } else {
            key_features(rows, s.d, state.c, features, s.ld, state.z);
            product<COLUMNS, ADD>(s.d, s.e, rows, features, s.ld, values, s.le, state.s, s.le, next);
        }
    }
    raise_reference(state, s, maximum);
}

// The state after all keys, its stretches computed by `threads` threads and merged in order.
static void accumulate_all_keys(const Head& head, int64_t threads, const Total& total) {
    const Shape& s = head.shape;
    const int64_t all = stretches(head.key_rows), at_once = threads == 1 ? 1 : least(all, 4 * threads);
    Buffer memory(at_once * State::floats(s));
    for (int64_t wave = 0; wave < all; wave += at_once) {
        const int64_t count = least(at_once, all - wave);
        parallel(threads, count, [&](int64_t i) {
            const State part(memory + i * State::floats(s), s);
            clear(part, s);
            const int64_t first = (wave + i) * STRETCH;
            accumulate_keys(head, first, least(first + STRETCH, head.key_rows), part);
        });
        for (int64_t i = 0; i < count; ++i) merge(total, State(memory + i * State::floats(s), s), s);
    }
}

template <class T>
static void load_queries_as(const Rows& q, int64_t first, int rows, const float* alpha, const float* bias, const float* c, int ldc,
                            float* tile, int ld, float* m) {
    const int features = int(q.features), width = padded(features);
    for (int r = 0; r < rows; ++r) {
        float* a = tile + int64_t(r) * ld;
        const float* reference = c + int64_t(r) * ldc;
        vf highest = splat(-__builtin_inff());
        visit_row(reinterpret_cast<const T*>(q.data) + (first + r) * q.row_stride, q.feature_stride, features, width,
                  [&](int l, vf x) {
                      const vf y = x * load(alpha + l) + load(bias + l);
                      store(a + l, y);
                      highest = vmax(y + load(reference + l), highest);
                  });
        m[r] = max(highest);
    }
}

// a_r = alpha q_r + w, and m_r = max_l (a_rl + c_l), c having a pitch: 0 for one c, or that of a tile of them. A pass of its own,
// so that the features of one row need not wait for the maximum of that same row.
static void load_queries(const Rows& q, int64_t first, int rows, const float* alpha, const float* bias, const float* c, int ldc,
                         float* tile, int ld, float* m) {
    by_type(q.dtype, [&](auto type) { load_queries_as<decltype(type)>(q, first, rows, alpha, bias, c, ldc, tile, ld, m); });
}

// f_r = exp(a_r + c - m_r) in place of a_r.
static void query_features(int rows, int d, const float* c, const float* m, float* a, int ld) {
    for (int r = 0; r < rows; ++r)
        for (int l = 0; l < d; l += PANEL) {
            float* at = a + int64_t(r) * ld + l;
            store(at, exp(load(at) + load(c + l) - m[r]));
            store(at + W, exp(load(at + W) + load(c + l + W) - m[r]));
        }
}

// f_r as pairs, a panel's first half with its second, in place of f_r; and f_r . z for each row, of f as it is multiplied.
static void paired_denominators(int rows, int d, float* f, int ld, const float* z, float* denominators) {
    for (int r = 0; r < rows; ++r) {
        float* row = f + int64_t(r) * ld;
        vf total = {};
        for (int l = 0; l < d; l += PANEL) {
            const vf pairs = paired(load(row + l), load(row + l + W));
            store(row + l / 2, pairs);
            total += earlier_of(pairs) * load(z + l) + later_of(pairs) * load(z + l + W);
        }
        denominators[r] = sum(total);
    }
}
// S to be multiplied by them; false if it cannot be.
static bool pair_sums(const Shape& shape, const State& state, float* pairs) {
    const auto first = [](int i) { return i / W * PANEL + i % W; };
    return pair_rows(shape.d / 2, shape.e, state.s, shape.le, first, W, shape.d, pairs);
}

// f_r . z for each row; z has a pitch like c above.
static void row_denominators(int rows, int d, const float* f, int ld, const float* z, int ldz, float* denominators) {
    for (int r = 0; r < rows; ++r) {
        vf d0 = {}, d1 = {};
        for (int l = 0; l < d; l += PANEL) {
            d0 += load(f + int64_t(r) * ld + l) * load(z + int64_t(r) * ldz + l);
            d1 += load(f + int64_t(r) * ld + l + W) * load(z + int64_t(r) * ldz + l + W);
        }
        denominators[r] = sum(d0 + d1);
    }
}

// `fetch_keys`: whoever comes next wants the keys and values of these rows.
static void attend(const Head& head, int64_t group, int64_t first, int64_t last, const State& state, bool fetch_keys = false) {
    const Shape& s = head.shape;
    const Rows q = head.queries(head.problem.q, group, s.dim), out = head.queries(head.problem.out, group, s.value_dim);
    Buffer features(QUERY_TILE * s.ld), result(QUERY_TILE * s.le), maxima(QUERY_TILE), denominators(QUERY_TILE);
    if (!state.has_key()) {
        fill_row(result, s.e, 0);
        return store_zero_rows(out, first, last - first, result);
    }
    Buffer sums(head.in_pairs() ? s.d / 2 * s.le : 0);
    const bool in_pairs = HAS_PAIRS && head.in_pairs() && pair_sums(s, state, sums);
    for (int64_t at = first; at < last; at += QUERY_TILE) {
        const int rows = int(least(QUERY_TILE, last - at));
        load_queries(q, at, rows, head.alpha(group), head.bias(group), state.c, 0, features, s.ld, maxima);
        query_features(rows, s.d, state.c, maxima, features, s.ld);
        Fetch next(at + rows, least(at + 2 * QUERY_TILE, head.query_rows), blocks(rows, s.e));
        next.read(q).write(out);
        if (fetch_keys) next.read(head.k).read(head.v);
        if (in_pairs) {
            paired_denominators(rows, s.d, features, s.ld, state.z, denominators);
            product<ROWS, OVERWRITE, PAIRS>(rows, s.e, s.d / 2, features, s.ld, sums, s.le, result, s.le, next);
        } else {
            row_denominators(rows, s.d, features, s.ld, state.z, 0, denominators);
            product<ROWS, OVERWRITE>(rows, s.e, s.d, features, s.ld, state.s, s.le, result, s.le, next);
        }
        store_rows(out, at, rows, result, s.le, denominators);
    }
}

static void bidirectional_forward(const Head& head, int64_t threads) {
    Buffer memory(Total::floats(head.shape));
    const Total total(memory, head.shape);
    head.read_start(total);
    accumulate_all_keys(head, threads, total);
    head.write_state(total);
    const int64_t parts = stretches(head.query_rows);
    parallel(threads, head.groups * parts, [&](int64_t i) {
        const int64_t first = i % parts * STRETCH;
        attend(head, i / parts, first, least(first + STRETCH, head.query_rows), total);
    });
}

}  // namespace LLN_ISA
