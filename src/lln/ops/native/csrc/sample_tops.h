// Of one head, the keys that attention may be drawn to most: u and m of every key that counts in one pass, and the largest of each.
#pragma once
#include "sample.h"

namespace LLN_ISA {

// Of W vectors, what `join` makes of the lanes of each, one vector a lane. In round S two vectors become one: lanes with bit S
// are joined to those without, which takes half the exchanges of a transposition.
template <int S, class Join, int... I>
INLINE void fold(vf (&x)[W], Join join, Lanes<I...>) {
#pragma GCC unroll 16
    for (int i = 0; i < S; ++i)
        x[i] = join(SHUFFLE(x[i], x[i + S], ((I & S) ? W + I - S : I)...),
                    SHUFFLE(x[i], x[i + S], ((I & S) ? W + I : I + S)...));
}
template <class Join>
INLINE vf fold_lanes(vf (&x)[W], Join join) {
    if (W >= 16) fold<W / 2 % 16>(x, join, AllLanes());
    if (W >= 8) fold<W >= 8 ? 4 : 1>(x, join, AllLanes());
    fold<2>(x, join, AllLanes());
    fold<1>(x, join, AllLanes());
    return x[0];
}

// u and m of every key that counts. Only their order is wanted, so they are in units in which nothing overflows.
struct Scan {
    Buffer mean, linear, square, outside;  // mean in units; outside: -inf past the features
    float per_unit;
    Scan(const SampledHead& head, double scale) : mean(head.d), linear(head.d), square(head.d), outside(head.d) {
        const double unit = std::sqrt(more(head.overall_k(true), SMALLEST_VARIANCE));
        double largest = SMALLEST_VARIANCE;
        for (size_t l = 0; l < size_t(head.dim); ++l)
            largest = more(more(largest, std::fabs(scale * head.mean_q[l] * unit)), of_square(head, scale, unit, l));
        for (int64_t l = 0; l < head.d; ++l) {
            const bool inside = l < head.dim;
            const size_t i = size_t(inside ? l : 0);
            mean[l] = inside ? float(head.mean_k[i] / unit) : 0;
            linear[l] = inside ? float(scale * head.mean_q[i] * unit / largest) : 0;
            square[l] = inside ? float(of_square(head, scale, unit, i) / largest) : 0;
            outside[l] = inside ? 0 : -__builtin_inff();
        }
        per_unit = float(1 / unit);
    }

   private:
    static double of_square(const SampledHead& head, double scale, double unit, size_t l) {
        return 0.5 * scale * scale * head.var_q[l] * unit * unit;
    }
};

// ROWS_ rows at a time, so that what is known of a feature is loaded once for all of them.
template <class T, bool CENTRED, bool PADDED, int ROWS_>
INLINE void scan_rows(const Scan& with, const T* const (&rows)[ROWS_], int64_t stride, int features, vf* u, vf* m) {
    vf sums[ROWS_], highest[ROWS_];
#pragma GCC unroll 8
    for (int r = 0; r < ROWS_; ++r) sums[r] = vf{}, highest[r] = splat(-__builtin_inff());
    const auto use = [&](int l, int r, vf x) {
        const vf y = x * with.per_unit - load(with.mean + l);
        sums[r] += y * (load(with.linear + l) + load(with.square + l) * y);
        highest[r] = vmax(PADDED ? (CENTRED ? y : x) + load(with.outside + l) : CENTRED ? y : x, highest[r]);
    };
    int l = 0;
    if (stride == 1)
        for (; l + W <= features; l += W)
#pragma GCC unroll 8
            for (int r = 0; r < ROWS_; ++r) use(l, r, load_as_float(rows[r] + l));
    for (; l < features; l += W)
        for (int r = 0; r < ROWS_; ++r) {
            vf x = {};
            for (int i = 0; i < W && l + i < features; ++i) x[i] = to_float(rows[r][(l + i) * stride]);
            use(l, r, x);
        }
#pragma GCC unroll 8
    for (int r = 0; r < ROWS_; ++r) u[r] = sums[r], m[r] = highest[r];
}

// Scores as whole numbers that are in order as they are: of -0 and 0 the same, of NaN that of -inf.
INLINE vi ordered(vf x) {
    x = x == x ? x + 0.0f : splat(-__builtin_inff());
    vi bits;
    memcpy(&bits, &x, sizeof bits);
    return bits ^ ((bits >> 31) & 0x7fffffff);
}

// The scores of one kind of all keys that count.
class Scores {
   public:
    explicit Scores(int64_t count) : count_(count), memory_((count + W - 1) / W * W) {}
    void put(int64_t first, vf scores) {
        vi x = ordered(scores);
        for (int64_t r = count_ - first; r < W; ++r) x[r] = INT32_MIN;
        memcpy(memory_ + first, &x, sizeof x);
    }
    // Ranks of the `most` largest, rising; of equal ones, the earlier. The least of them is found by halving the numbers it may be.
    std::vector<int64_t> largest(int64_t most) const {
        int64_t low = INT32_MIN, high = int64_t(INT32_MAX) + 1;  // at least `most` are `low` or more, not so many `high` or more
        while (high - low > 1) {
            const int64_t tried = low + (high - low) / 2;
            (above(int32_t(tried - 1)) >= most ? low : high) = tried;
        }
        int64_t equal = most - above(int32_t(low));
        std::vector<int64_t> ranks;
        for (int64_t first = 0; first < count_; first += W) {
            const vi x = at(first);
            if (!any(x >= int32_t(low))) continue;
            for (int r = 0; r < W && first + r < count_; ++r)
                if (x[r] > low || (x[r] == low && equal-- > 0)) ranks.push_back(first + r);
        }
        return ranks;
    }

   private:
    vi at(int64_t first) const {
        vi x;
        memcpy(&x, memory_ + first, sizeof x);
        return x;
    }
    int64_t above(int32_t value) const {
        vi found = {};
        for (int64_t first = 0; first < count_; first += W) found -= at(first) > value;
        int64_t sum = 0;
        for (int i = 0; i < W; ++i) sum += found[i];
        return sum;
    }
    const int64_t count_;
    const Buffer memory_;
};

template <class T, bool CENTRED, bool PADDED>
static void scan_as(const SampledHead& head, const Scan& with, Scores& by_feature, Scores& by_softmax) {
    constexpr int HALF = W / 2, AHEAD = 2 * W;
    const T* const data = reinterpret_cast<const T*>(head.k.data);
    for (int64_t first = 0; first < head.keys.count; first += W) {
        const int count = int(least(W, head.keys.count - first));
        vf u[W], m[W];
        for (int half = 0; half < W; half += HALF) {
            const T* rows[HALF];
            for (int r = 0; r < HALF; ++r) rows[r] = data + head.keys[first + (half + r < count ? half + r : 0)] * head.k.row_stride;
            for (int64_t r = first + half + AHEAD; r < first + half + HALF + AHEAD && r < head.keys.count; ++r) fetch_row(head.k, head.keys[r]);
            scan_rows<T, CENTRED, PADDED, HALF>(with, rows, head.k.feature_stride, int(head.dim), u + half, m + half);
        }
        by_softmax.put(first, fold_lanes(u, [](vf a, vf b) { return a + b; }));
        by_feature.put(first, fold_lanes(m, [](vf a, vf b) { return vmax(a, b); }));
    }
}

template <class T>
static void scan(const SampledHead& head, const Scan& with, Scores& by_feature, Scores& by_softmax) {
    if (head.p.center_keys) scan_as<T, true, true>(head, with, by_feature, by_softmax);
    else if (head.d != head.dim) scan_as<T, false, true>(head, with, by_feature, by_softmax);
    else scan_as<T, false, false>(head, with, by_feature, by_softmax);
}

// What is known of every key of a head: of no use where all of them are drawn.
class KeyScores {
   public:
    explicit KeyScores(const SampledHead& head) : by_feature(head.keys.count), by_softmax(head.keys.count) {
        if (SMALL_KEYS.all_of(head.keys.count)) return;
        const Scan with(head, head.p.scale);
        switch (head.k.dtype) {
            case FLOAT16: scan<half_t>(head, with, by_feature, by_softmax); break;
            case BFLOAT16: scan<bfloat_t>(head, with, by_feature, by_softmax); break;
            default: scan<float>(head, with, by_feature, by_softmax);
        }
    }
    // Ranks of the `top` largest by feature, then of those by softmax.
    const std::vector<int64_t>& tops(int64_t top) const {
        if (top != found_for_) {
            tops_ = by_feature.largest(top);
            for (const int64_t rank : by_softmax.largest(top)) tops_.push_back(rank);
            found_for_ = top;
        }
        return tops_;
    }

   private:
    Scores by_feature, by_softmax;
    mutable std::vector<int64_t> tops_;  // of the last number that was asked for
    mutable int64_t found_for_ = 0;
};

// Which keys a sample has, and for how many each stands.
struct Places {
    std::vector<int64_t> positions;  // the even ones in order, then the tops
    std::vector<float> weights;
    int64_t even;
    Places(const SampledHead& head, const KeyScores& scores, const KeyCount& size) : even(size.even_of(head.keys.count)) {
        for (int64_t j = 0; j < even; ++j) positions.push_back(head.even_position(size, j));
        weights.assign(size_t(even), 1);
        if (size.all_of(head.keys.count)) return;
        for (const int64_t rank : scores.tops(size.top)) {
            const int64_t position = head.keys[rank];
            const bool again = std::find(positions.begin() + even, positions.end(), position) != positions.end();
            if (again) continue;
            const int64_t same = even_place(position);
            if (same >= 0) weights[size_t(same)] = 0;
            positions.push_back(position);
        }
        int64_t standing = 0;
        for (const float w : weights) standing += w > 0;
        const int64_t tops = int64_t(positions.size()) - even;
        const float each = float(double(head.keys.count - tops) / double(standing < 1 ? 1 : standing));
        for (float& w : weights) w = w > 0 ? each : 0;
        weights.resize(positions.size(), 1);
    }
    int64_t size() const { return int64_t(positions.size()); }
    // Where a position stands in the sample, or -1.
    int64_t place_of(int64_t position) const {
        for (int64_t i = even; i < size(); ++i)
            if (positions[size_t(i)] == position) return i;
        return even_place(position);
    }

   private:
    int64_t even_place(int64_t position) const {
        const auto end = positions.begin() + even, found = std::lower_bound(positions.begin(), end, position);
        return found != end && *found == position ? found - positions.begin() : -1;
    }
};

}  // namespace LLN_ISA
