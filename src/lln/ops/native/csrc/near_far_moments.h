// What is kept of a set of far keys, and how two sets become one.
//
//   n, mu, v_mean                      how many keys, their mean, the mean of their values
//   spread = sum_j (k_j - mu)^2        per feature
//   p = sum_j (k_j - mu) (v_j - v_mean)^T
//   c, s, z                            LLN's sums: s = sum_j exp(b_j - r) v_j^T and z = sum_j exp(b_j - r), with b_j = beta k_j,
//                                      c = max_j b_j and a reference r that is c or at most SLACK below it
//
// Two sets are merged as centred moments (Chan, Golub and LeVeque 1979), delta being the difference of their means:
//   spread = spread_a + spread_b + delta^2 n_a n_b / n,     p = p_a + p_b + delta_k delta_v^T n_a n_b / n
#pragma once
#include "bidirectional.h"
#include "near_far_head.h"

namespace LLN_ISA {

struct Moments {
    double* count;
    float *c, *r, *z, *mean, *spread, *value_mean, *s, *p;  // (d) five times, (e), (d x e, pitch le) twice
    Moments(float* memory, const Shape& shape)
        : count(reinterpret_cast<double*>(memory)), c(memory + 16), r(c + shape.d), z(r + shape.d), mean(z + shape.d),
          spread(mean + shape.d), value_mean(spread + shape.d), s(value_mean + shape.e), p(s + int64_t(shape.d) * shape.le) {}
    static int64_t floats(const Shape& shape) { return 16 + 5 * shape.d + shape.e + 2 * int64_t(shape.d) * shape.le; }
};

static void clear(const Moments& m, const Shape& shape) {
    memset(m.count, 0, 4 * size_t(Moments::floats(shape)));
    fill_row(m.c, shape.d, -__builtin_inff());
    fill_row(m.r, shape.d, -__builtin_inff());
}
static void copy(const Moments& from, const Moments& to, const Shape& shape) {
    memcpy(to.count, from.count, 4 * size_t(Moments::floats(shape)));
}

// Moments that grow: what is rounded once in each merge is kept to twice as many digits, vectors in double, matrices as pairs.
// The floats that are read hold the leading digits.
struct RunningMoments : Moments {
    double *exact_z, *exact_mean, *exact_spread, *exact_value_mean;
    float *s_low, *p_low;
    RunningMoments(float* memory, const Shape& shape)
        : Moments(memory, shape), exact_z(reinterpret_cast<double*>(memory + Moments::floats(shape))), exact_mean(exact_z + shape.d),
          exact_spread(exact_mean + shape.d), exact_value_mean(exact_spread + shape.d),
          s_low(reinterpret_cast<float*>(exact_value_mean + shape.e)), p_low(s_low + int64_t(shape.d) * shape.le) {}
    static int64_t floats(const Shape& shape) {
        return Moments::floats(shape) + 6 * shape.d + 2 * shape.e + 2 * int64_t(shape.d) * shape.le;
    }
    void clear(const Shape& shape) const {
        LLN_ISA::clear(*this, shape);
        memset(exact_z, 0, 4 * size_t(floats(shape) - Moments::floats(shape)));
    }
};

// Makes the reference of features l .. l + W - 1 their maximum, where that has run ahead of it.
static void follow_maximum(const RunningMoments& m, const Shape& shape, int l) {
    for (int i = l; i < l + W; ++i) {
        if (!(m.c[i] - m.r[i] > SLACK)) continue;
        const bool had_keys = m.r[i] > -__builtin_inff();
        const double factor = had_keys ? std::exp(double(m.r[i]) - double(m.c[i])) : 0;
        m.r[i] = m.c[i];
        if (!had_keys) continue;
        m.exact_z[i] *= factor;
        float *row = m.s + int64_t(i) * shape.le, *low = m.s_low + int64_t(i) * shape.le;
        for (int e = 0; e < shape.e; ++e) split((double(row[e]) + double(low[e])) * factor, row[e], low[e]);
    }
}

// m += the keys of b.
static void merge(const RunningMoments& m, const Moments& b, const Shape& shape) {
    const double more = *b.count, before = *m.count, after = before + more;
    if (more == 0) return;
    const double part = more / after, both = before * part;
    Buffer memory(2 * shape.d + shape.e);
    float *factors = memory, *moved_keys = factors + shape.d, *moved_values = moved_keys + shape.d;
    for (int e = 0; e < shape.e; ++e) {
        const double delta = double(b.value_mean[e]) - m.exact_value_mean[e];
        m.exact_value_mean[e] += delta * part;
        m.value_mean[e] = float(m.exact_value_mean[e]);
        moved_values[e] = float(delta);
    }
    for (int l = 0; l < shape.d; l += W) {
        store(m.c + l, vmax(load(m.c + l), load(b.c + l)));
        if (any(load(m.c + l) - load(m.r + l) > splat(SLACK))) follow_maximum(m, shape, l);
        store(factors + l, exp(load(b.r + l) - load(m.r + l)));
    }
    for (int l = 0; l < shape.d; ++l) {
        const double delta = double(b.mean[l]) - m.exact_mean[l];
        m.exact_mean[l] += delta * part;
        m.exact_spread[l] += double(b.spread[l]) + delta * delta * both;
        m.exact_z[l] += double(factors[l]) * double(b.z[l]);
        m.mean[l] = float(m.exact_mean[l]), m.spread[l] = float(m.exact_spread[l]), m.z[l] = float(m.exact_z[l]);
        moved_keys[l] = float(delta * both);
        const int64_t row = int64_t(l) * shape.le;
        const vf factor = splat(factors[l]), moved = splat(moved_keys[l]);
        for (int e = 0; e < shape.e; e += W) {
            const int64_t at = row + e;
            add_to_pair_quickly(m.s + at, m.s_low + at, factor * load(b.s + at));
            add_to_pair_quickly(m.p + at, m.p_low + at, load(b.p + at) + moved * load(moved_values + e));
        }
    }
    *m.count = after;
}

// to = a and b together, relative to their common maximum.
static void combine(const Moments& a, const Moments& b, const Moments& to, const Shape& shape) {
    if (*a.count == 0) return copy(b, to, shape);
    if (*b.count == 0) return copy(a, to, shape);
    const double n = *a.count + *b.count;
    const float part = float(*b.count / n), both = float(*a.count * (*b.count / n));
    Buffer memory(shape.e);
    float* moved_values = memory;
    for (int e = 0; e < shape.e; e += W) {
        const vf delta = load(b.value_mean + e) - load(a.value_mean + e);
        store(moved_values + e, delta);
        store(to.value_mean + e, load(a.value_mean + e) + delta * part);
    }
    for (int l = 0; l < shape.d; l += W) {
        const vf c = vmax(load(a.c + l), load(b.c + l)), delta = load(b.mean + l) - load(a.mean + l);
        const vf of_a = exp(load(a.r + l) - c), of_b = exp(load(b.r + l) - c), moved = delta * both;
        store(to.c + l, c);
        store(to.r + l, c);
        store(to.z + l, load(a.z + l) * of_a + load(b.z + l) * of_b);
        store(to.mean + l, load(a.mean + l) + delta * part);
        store(to.spread + l, load(a.spread + l) + load(b.spread + l) + delta * moved);
        for (int i = 0; i < W; ++i)
            for (int e = 0; e < shape.e; e += W) {
                const int64_t at = int64_t(l + i) * shape.le + e;
                store(to.s + at, load(a.s + at) * of_a[i] + load(b.s + at) * of_b[i]);
                store(to.p + at, (load(a.p + at) + load(b.p + at)) + load(moved_values + e) * moved[i]);
            }
    }
    *to.count = n;
}

// The sums of a few keys: a tile at most.
class KeySums {
   public:
    explicit KeySums(const NearFarHead& h)
        : head_(h), s_(h.shape), keys_(KEY_TILE * s_.ld), features_(KEY_TILE * s_.ld), values_(KEY_TILE * s_.le),
          centred_(KEY_TILE * s_.le), tile_memory_(Moments::floats(s_)), total_memory_(RunningMoments::floats(s_)) {}

    // to = the moments of these rows.
    void operator()(const Span& rows, const Moments& to) {
        if (rows.rows() <= KEY_TILE) return of_tile(rows.first, int(rows.rows()), to);
        const Moments tile(tile_memory_, s_);
        const RunningMoments total(total_memory_, s_);
        total.clear(s_);
        for (int64_t at = rows.first; at < rows.last; at += KEY_TILE) {
            of_tile(at, int(least(KEY_TILE, rows.last - at)), tile);
            merge(total, tile, s_);
        }
        copy(total, to, s_);
    }

   private:
    void of_tile(int64_t first, int rows, const Moments& to) {
        int count = 0;
        for (int r = 0; r < rows; ++r) count += head_.mask.counts(first + r);
        *to.count = count;
        if (count == 0) return clear(to, s_);
        load_values(head_.k, head_.mask, first, rows, keys_, s_.ld);
        load_values(head_.v, head_.mask, first, rows, values_, s_.le);
        const float share = 1.0f / float(count);
        const bool all_count = count == rows;
        for (int l = 0; l < s_.d; l += W) {
            const vf beta = load(head_.beta() + l);
            vf sum = {}, highest = splat(-__builtin_inff());
            for (int r = 0; r < rows; ++r) {
                const int64_t at = int64_t(r) * s_.ld + l;
                const vf k = load(keys_ + at), b = all_count || head_.mask.counts(first + r) ? k * beta : splat(-__builtin_inff());
                sum += k;
                highest = vmax(b, highest);
                store(features_ + at, b);
            }
            const vf mean = sum * share;
            vf squares = {}, z = {};
            for (int r = 0; r < rows; ++r) {
                const int64_t at = int64_t(r) * s_.ld + l;
                const vf g = exp(load(features_ + at) - highest);
                const vf k = all_count || head_.mask.counts(first + r) ? load(keys_ + at) - mean : vf{};
                store(features_ + at, g);
                store(keys_ + at, k);
                z += g;
                squares += k * k;
            }
            store(to.c + l, highest), store(to.r + l, highest), store(to.z + l, z);
            store(to.mean + l, mean), store(to.spread + l, squares);
        }
        for (int e = 0; e < s_.e; e += W) {
            vf sum = {};
            for (int r = 0; r < rows; ++r) sum += load(values_ + int64_t(r) * s_.le + e);
            const vf mean = sum * share;
            store(to.value_mean + e, mean);
            for (int r = 0; r < rows; ++r) store(centred_ + int64_t(r) * s_.le + e, load(values_ + int64_t(r) * s_.le + e) - mean);
        }
        product<COLUMNS, OVERWRITE>(s_.d, s_.e, rows, features_, s_.ld, values_, s_.le, to.s, s_.le);
        product<COLUMNS, OVERWRITE>(s_.d, s_.e, rows, keys_, s_.ld, centred_, s_.le, to.p, s_.le);
    }

    const NearFarHead& head_;
    const Shape& s_;
    Buffer keys_, features_, values_, centred_, tile_memory_, total_memory_;
};

// The moments of blocks, those of the last few at hand.
class BlockMoments {
   public:
    explicit BlockMoments(const NearFarHead& head)
        : head_(head), room_(slots(head)), sums_(head), memory_(room_ * Moments::floats(head.shape)), numbers_(2 * room_) {
        for (int64_t i = 0; i < room_; ++i) held()[i] = -1;
    }
    Moments operator()(int64_t block) {
        const int64_t slot = block % room_;
        const Moments found(memory_ + slot * Moments::floats(head_.shape), head_.shape);
        if (held()[slot] != block) sums_(head_.far_rows(block), found);
        held()[slot] = block;
        return found;
    }

   private:
    static constexpr int64_t MOST_FLOATS = int64_t(1) << 21;  // 8 MB
    static int64_t slots(const NearFarHead& head) {
        const int64_t fit = MOST_FLOATS / Moments::floats(head.shape);
        return least(head.blocks, fit < 4 ? 4 : fit);
    }
    int64_t* held() const { return reinterpret_cast<int64_t*>(static_cast<float*>(numbers_)); }

    const NearFarHead& head_;
    const int64_t room_;
    KeySums sums_;
    Buffer memory_, numbers_;
};

}  // namespace LLN_ISA
