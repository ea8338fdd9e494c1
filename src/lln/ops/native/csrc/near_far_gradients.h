// What the rows of blocks ask of keys that are far to them: the gradient of a key and its value as a function of both.
//
// Let a block of rows have n far keys with mean mu, variance sigma^2, mean value v_mean, and let d. be gradients of what the rows
// read. With G = dCov / n, U = dS and y = dz, its far key j gets, k0 and v0 being any centre,
//   dk_j = dmu / n + 2 (k_j - mu) dsigma^2 / n + G (v_j - v_mean) = offset + curve (k_j - k0) + G (v_j - v0),  beside LLN's
//   db_j = g_j (U v_j + y),  g_j = exp(b_j - r)
//   dv_j = dv_mean / n + G^T (k_j - mu) + U^T g_j                 = value_offset + G^T (k_j - k0) + U^T g_j
// All of it adds up over blocks of rows, LLN's part relative to one reference r. A key is no more than SLACK above the reference of
// any rows that it is far to, so the lowest of them serves.
#pragma once
#include "gradients.h"
#include "near_far_moments.h"

namespace LLN_ISA {

struct FarGradients {
    double* rows;  // 0: nothing asks for anything
    float *r, *y, *offset, *curve, *value_offset, *u, *g;  // (d) four times, (e), (d x e, pitch le) twice
    FarGradients(float* memory, const Shape& shape)
        : rows(reinterpret_cast<double*>(memory)), r(memory + 16), y(r + shape.d), offset(y + shape.d), curve(offset + shape.d),
          value_offset(curve + shape.d), u(value_offset + shape.e), g(u + int64_t(shape.d) * shape.le) {}
    static int64_t floats(const Shape& shape) { return 16 + 4 * shape.d + shape.e + 2 * int64_t(shape.d) * shape.le; }
};

static void clear(const FarGradients& d, const Shape& shape) {
    memset(d.rows, 0, 4 * size_t(FarGradients::floats(shape)));
    fill_row(d.r, shape.d, __builtin_inff());
}
static void copy(const FarGradients& from, const FarGradients& to, const Shape& shape) {
    memcpy(to.rows, from.rows, 4 * size_t(FarGradients::floats(shape)));
}

// Gradients that many blocks are added to, to twice as many digits.
struct RunningGradients : FarGradients {
    double* exact;  // of y, offset, curve and value_offset
    float *u_low, *g_low;
    RunningGradients(float* memory, const Shape& shape)
        : FarGradients(memory, shape), exact(reinterpret_cast<double*>(memory + FarGradients::floats(shape))),
          u_low(reinterpret_cast<float*>(exact + vectors(shape))), g_low(u_low + int64_t(shape.d) * shape.le) {}
    static int vectors(const Shape& shape) { return 3 * shape.d + shape.e; }
    static int64_t floats(const Shape& shape) {
        return FarGradients::floats(shape) + 2 * vectors(shape) + 2 * int64_t(shape.d) * shape.le;
    }
    void clear(const Shape& shape) const {
        LLN_ISA::clear(*this, shape);
        memset(exact, 0, 4 * size_t(floats(shape) - FarGradients::floats(shape)));
    }
};

// Makes `r` the reference of feature l.
static void lower_reference(const RunningGradients& d, const Shape& shape, int l, float r) {
    const double factor = d.r[l] < __builtin_inff() ? std::exp(double(r) - double(d.r[l])) : 0;
    d.r[l] = r;
    d.exact[l] *= factor;
    float *row = d.u + int64_t(l) * shape.le, *low = d.u_low + int64_t(l) * shape.le;
    for (int e = 0; e < shape.e; ++e) split((double(row[e]) + double(low[e])) * factor, row[e], low[e]);
}

static void merge(const RunningGradients& d, const FarGradients& more, const Shape& shape) {
    if (*more.rows == 0) return;
    *d.rows += *more.rows;
    Buffer factors(shape.d);
    for (int l = 0; l < shape.d; ++l)
        if (d.r[l] - more.r[l] > SLACK) lower_reference(d, shape, l, more.r[l]);
    for (int l = 0; l < shape.d; l += W) store(factors + l, exp(load(d.r + l) - load(more.r + l)));
    for (int l = 0; l < shape.d; ++l) d.exact[l] += double(factors[l]) * double(more.y[l]);
    for (int i = shape.d; i < RunningGradients::vectors(shape); ++i) d.exact[i] += double(more.y[i]);
    for (int i = 0; i < RunningGradients::vectors(shape); ++i) d.y[i] = float(d.exact[i]);
    for (int l = 0; l < shape.d; ++l)
        for (int e = 0; e < shape.e; e += W) {
            const int64_t at = int64_t(l) * shape.le + e;
            add_to_pair_quickly(d.u + at, d.u_low + at, load(more.u + at) * factors[l]);
            add_to_pair_quickly(d.g + at, d.g_low + at, load(more.g + at));
        }
}

static void combine(const FarGradients& a, const FarGradients& b, const FarGradients& to, const Shape& shape) {
    if (*a.rows == 0) return copy(b, to, shape);
    if (*b.rows == 0) return copy(a, to, shape);
    *to.rows = *a.rows + *b.rows;
    for (int i = shape.d; i < RunningGradients::vectors(shape); i += W) store(to.y + i, load(a.y + i) + load(b.y + i));
    for (int l = 0; l < shape.d; l += W) {
        const vf of_a = load(a.r + l), of_b = load(b.r + l), r = of_a < of_b ? of_a : of_b;
        const vf factor_a = exp(r - of_a), factor_b = exp(r - of_b);
        store(to.r + l, r);
        store(to.y + l, load(a.y + l) * factor_a + load(b.y + l) * factor_b);
        for (int i = 0; i < W; ++i)
            for (int e = 0; e < shape.e; e += W) {
                const int64_t at = int64_t(l + i) * shape.le + e;
                store(to.u + at, load(a.u + at) * factor_a[i] + load(b.u + at) * factor_b[i]);
                store(to.g + at, load(a.g + at) + load(b.g + at));
            }
    }
}

// Near the keys and values of a head, so that what is counted from there has all its digits: the mean of some of them.
struct Centre {
    Buffer memory;
    float *key, *value;
    explicit Centre(const NearFarHead& head)
        : memory(2 * (head.shape.d + head.shape.e)), key(memory), value(key + head.shape.d) {
        const Shape& s = head.shape;
        float *one_key = value + s.e, *one_value = one_key + s.d;
        fill_row(key, s.d, 0);
        fill_row(value, s.e, 0);
        const int64_t step = head.key_rows / 256 + 1;
        int count = 0;
        for (int64_t row = 0; row < head.key_rows; row += step) {
            if (!head.mask.counts(row)) continue;
            load_rows(head.k, row, 1, nullptr, nullptr, one_key, s.d);
            load_rows(head.v, row, 1, nullptr, nullptr, one_value, s.e);
            const float part = 1.0f / float(++count);
            for (int l = 0; l < s.d; l += W) store(key + l, load(key + l) + (load(one_key + l) - load(key + l)) * part);
            for (int e = 0; e < s.e; e += W) store(value + e, load(value + e) + (load(one_value + e) - load(value + e)) * part);
        }
    }
};

// The gradients of a head's keys and values, in float until all have been added.
struct KeyGradients {
    const NearFarHead& head;
    Buffer dk, dv;
    explicit KeyGradients(const NearFarHead& h) : head(h), dk(h.key_rows * h.shape.ld), dv(h.key_rows * h.shape.le) {
        memset(dk, 0, 4 * size_t(h.key_rows) * size_t(h.shape.ld));
        memset(dv, 0, 4 * size_t(h.key_rows) * size_t(h.shape.le));
    }
    void write() const {
        const Shape& s = head.shape;
        for (int64_t j = 0; j < head.key_rows && head.mask.data != nullptr; ++j)
            if (!head.mask.counts(j)) {
                fill_row(dk + j * s.ld, s.d, 0);
                fill_row(dv + j * s.le, s.e, 0);
            }
        store_rows(head.keys(head.problem.dk, s.dim), 0, int(head.key_rows), dk, s.ld);
        store_rows(head.keys(head.problem.dv, s.value_dim), 0, int(head.key_rows), dv, s.le);
    }
};

// Tells far keys what rows ask of them.
class FarKeys {
   public:
    FarKeys(const NearFarHead& h, const Centre& centre)
        : head_(h), s_(h.shape), centre_(centre), u_t_(int64_t(s_.e) * s_.ld), g_t_(int64_t(s_.e) * s_.ld), raw_(KEY_TILE * s_.ld),
          keys_(KEY_TILE * s_.ld), features_(KEY_TILE * s_.ld), db_(KEY_TILE * s_.ld), values_(KEY_TILE * s_.le),
          centred_(KEY_TILE * s_.le) {}

    void add(const Span& rows, const FarGradients& d, const KeyGradients& to, const ParameterSums& parameters) {
        if (*d.rows == 0 || rows.rows() == 0) return;
        transpose(s_.d, s_.e, d.u, s_.le, u_t_, s_.ld);
        transpose(s_.d, s_.e, d.g, s_.le, g_t_, s_.ld);
        for (int64_t at = rows.first; at < rows.last; at += KEY_TILE)
            add_tile(at, int(least(KEY_TILE, rows.last - at)), d, to, parameters);
    }

   private:
    void add_tile(int64_t first, int rows, const FarGradients& d, const KeyGradients& to, const ParameterSums& parameters) {
        float *dk = to.dk + first * s_.ld, *dv = to.dv + first * s_.le;
        bool absent[KEY_TILE];
        load_values(head_.k, head_.mask, first, rows, raw_, s_.ld);
        load_values(head_.v, head_.mask, first, rows, values_, s_.le);
        for (int r = 0; r < rows; ++r) {
            absent[r] = !head_.mask.counts(first + r);
            const int64_t row = int64_t(r) * s_.ld, value_row = int64_t(r) * s_.le;
            for (int l = 0; l < s_.d; l += W) {
                const vf k = load(raw_ + row + l), centred = absent[r] ? vf{} : k - load(centre_.key + l);
                store(keys_ + row + l, centred);
                store(features_ + row + l, absent[r] ? vf{} : exp(k * load(head_.beta() + l) - load(d.r + l)));
                store(dk + row + l, load(dk + row + l) + (load(d.offset + l) + load(d.curve + l) * centred));
            }
            for (int e = 0; e < s_.e; e += W) {
                store(centred_ + value_row + e, absent[r] ? vf{} : load(values_ + value_row + e) - load(centre_.value + e));
                store(dv + value_row + e, load(dv + value_row + e) + load(d.value_offset + e));
            }
        }
        product<ROWS, OVERWRITE>(rows, s_.d, s_.e, values_, s_.le, u_t_, s_.ld, db_, s_.ld);
        product<ROWS, ADD>(rows, s_.d, s_.e, centred_, s_.le, g_t_, s_.ld, dk, s_.ld);
        product<ROWS, ADD>(rows, s_.e, s_.d, features_, s_.ld, d.u, s_.le, dv, s_.le);
        product<ROWS, ADD>(rows, s_.e, s_.d, keys_, s_.ld, d.g, s_.le, dv, s_.le);
        for (int r = 0; r < rows; ++r)
            for (int l = 0; l < s_.d; l += W) {
                const int64_t at = int64_t(r) * s_.ld + l;
                const vf db = load(features_ + at) * (load(db_ + at) + load(d.y + l));
                store(db_ + at, db);
                store(dk + at, load(dk + at) + db * load(head_.beta() + l));
            }
        if (head_.problem.parameter_grads) parameters.add_rows(rows, s_.d, db_, raw_, s_.ld, absent);
    }

    const NearFarHead& head_;
    const Shape& s_;
    const Centre& centre_;
    Buffer u_t_, g_t_, raw_, keys_, features_, db_, values_, centred_;
};

}  // namespace LLN_ISA
