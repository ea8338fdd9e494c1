// A small sample of the queries and keys of one head, and the entropies of softmax and LLN attention on it (lln.sampling).
//   even keys: the middles of equal stretches of the tokens that count; tops: the keys with the largest
//     m_j = max_l k_jl  and  u_j = s q-.k_j + s^2/2 sum_l var(q_l) (k_jl - k-_l)^2
//   rows: queries evenly by position, or by rank of r_i = sum_l var(k_l) q_il^2; each brings its own key along
// A top and an own key stand for themselves, an even one for as many as there are of its kind.
#pragma once
#include <algorithm>
#include <functional>
#include <vector>

#include "matching.h"

namespace LLN_ISA {

struct SampleSize {
    int64_t rows, most_rows, even, top;
    bool by_rank;
    int64_t rows_of(int64_t keys) const { return least(keys / 16 < rows ? rows : keys / 16, most_rows); }
};
// as in lln.sampling
constexpr SampleSize SMALL = {24, 24, 96, 24, false}, LARGE = {128, 512, 384, 64, true}, LONG = {32, 128, 8192, 64, true};
constexpr SampleSize SPREAD = {48, 48, 96, 0, false};  // what means and variances are taken over
constexpr int64_t LONG_TILE = 256;  // keys at a time

INLINE int64_t middle(int64_t place, int64_t taken, int64_t count) { return (2 * place + 1) * count / (2 * taken); }

// ln x for normal x > 0, within 2 units in the last place: x = 2^n m with m in [sqrt 1/2, sqrt 2),
// ln m = 2 artanh((m - 1) / (m + 1)).
INLINE vf log(vf x) {
    vi bits;
    memcpy(&bits, &x, sizeof x);
    const vi n = (bits - 0x3f3504f3) >> 23;
    bits -= n << 23;
    vf m;
    memcpy(&m, &bits, sizeof m);
    const vf t = (m - 1.0f) / (m + 1.0f), square = t * t;
    const vf series = ((square * (2.0f / 9) + 2.0f / 7) * square + 2.0f / 5) * square + 2.0f / 3;
    return __builtin_convertvector(n, vf) * 0.693147181f + (t * square * series + 2.0f * t);
}

// The positions that count among the rows of a sequence.
struct Counting {
    const int64_t rows;
    std::vector<int64_t> listed;  // empty if all count
    int64_t count;
    explicit Counting(const Sequence& sequence) : rows(sequence.rows), count(sequence.rows) {
        if (sequence.mask.data == nullptr) return;
        for (int64_t r = 0; r < rows; ++r)
            if (sequence.mask.counts(r)) listed.push_back(r);
        count = int64_t(listed.size());
    }
    int64_t operator[](int64_t rank) const { return listed.empty() ? rank : listed[size_t(rank)]; }
};

// Keeps the `most` largest of what it is shown in order of position; of equal ones, the earlier.
class Largest {
   public:
    explicit Largest(int64_t most) : most_(int(most)), room_(4 * int(most)) {}
    float least_wanted() const { return least_wanted_; }
    void show(float score, int64_t position) {
        if (!(score > least_wanted_)) return;
        kept_[count_++] = key(score, position);
        if (count_ < room_) return;
        std::nth_element(kept_, kept_ + most_ - 1, kept_ + count_, std::greater<uint64_t>());
        count_ = most_;
        least_wanted_ = score_of(kept_[most_ - 1]);
    }
    std::vector<int64_t> positions() {
        std::sort(kept_, kept_ + count_, std::greater<uint64_t>());
        std::vector<int64_t> found;
        for (int i = 0; i < std::min(most_, count_); ++i) found.push_back(int64_t(~uint32_t(kept_[i])));
        return found;
    }

   private:
    // Numbers that are in order as their scores are, and then as their positions are, the earlier being the larger.
    static uint64_t key(float score, int64_t position) {
        uint32_t bits;
        memcpy(&bits, &score, 4);
        bits ^= bits >> 31 ? ~uint32_t(0) : uint32_t(1) << 31;
        return uint64_t(bits) << 32 | ~uint32_t(position);
    }
    static float score_of(uint64_t key) {
        uint32_t bits = uint32_t(key >> 32);
        bits ^= bits >> 31 ? uint32_t(1) << 31 : ~uint32_t(0);
        float score;
        memcpy(&score, &bits, 4);
        return score;
    }
    uint64_t kept_[4 * LARGE.top];
    int most_, room_, count_ = 0;
    float least_wanted_ = -__builtin_inff();
};

struct Row {
    int64_t group, position;
};

// One key head of one sequence, with the queries that read it.
struct SampledHead {
    const MatchProblem& p;
    const int64_t groups, dim;
    const int d, ld;
    const bool same_tokens;
    const Sequence of_queries, of_keys;
    const Counting queries, keys;
    const Rows k;
    const int64_t key_head;
    std::vector<double> mean_q, var_q, mean_k, var_k;
    std::vector<int64_t> by_feature, by_softmax;  // positions of the tops, largest first
    Buffer mean_key;                              // what is subtracted from keys: their mean, or zeros

    SampledHead(const MatchProblem& p, int64_t index)
        : p(p), groups(p.q.heads / p.k.heads), dim(p.k.dim), d(padded(dim)), ld(pitch(dim)), same_tokens(p.q.rows == p.k.rows),
          of_queries(p.q, index / p.k.heads), of_keys(p.k, index / p.k.heads), queries(of_queries), keys(of_keys),
          k(p.k.x, p.k.dtype, of_keys.batch, index % p.k.heads, of_keys.start, dim), key_head(index % p.k.heads), mean_key(d) {
        fill_row(mean_key, d, 0);
        measure_spread();
        if (p.center_keys)
            for (int64_t l = 0; l < dim; ++l) mean_key[l] = float(mean_k[size_t(l)]);
    }

    Rows queries_of(int64_t group) const {
        return Rows(p.q.x, p.q.dtype, of_queries.batch, key_head * groups + group, of_queries.start, dim);
    }
    void take_query(const Row& row, float* to) const { load_rows(queries_of(row.group), row.position, 1, nullptr, nullptr, to, ld); }
    void take_key(int64_t position, float* to) const {
        load_rows(k, position, 1, nullptr, nullptr, to, ld);
        if (p.center_keys)
            for (int l = 0; l < d; l += W) store(to + l, load(to + l) - load(mean_key + l));
    }

    int64_t even_taken(const SampleSize& size) const { return least(keys.count, size.even); }
    int64_t even_position(const SampleSize& size, int64_t place) const {
        return keys[middle(place, even_taken(size), keys.count)];
    }

    std::vector<Row> rows_by_position(const SampleSize& size) const {
        const int64_t places = size.rows_of(p.k.rows), taken = least(queries.count * groups, size.rows_of(keys.count));
        std::vector<Row> rows;
        for (int64_t r = 0; r < taken; ++r)
            rows.push_back({r * ((groups - 1) / places + 1) % groups, queries[middle(r, taken, queries.count)]});
        return rows;
    }
    std::vector<Row> rows_by_rank(const SampleSize& size) const;
    void find_tops(const SampleSize& size);

    double overall_q() const { return overall(mean_q, var_q, false); }
    double overall_k(bool centred) const { return overall(mean_k, var_k, centred); }

   private:
    double overall(const std::vector<double>& means, const std::vector<double>& variances, bool centred) const {
        double mean = 0, sum = 0;
        for (const double x : means) mean += x / double(dim);
        for (size_t l = 0; l < size_t(dim); ++l)
            sum += variances[l] + (centred ? 0 : (means[l] - mean) * (means[l] - mean));
        return sum / double(dim);
    }
    void measure_spread() {
        const std::vector<Row> rows = rows_by_position(SPREAD);
        const int64_t drawn = even_taken(SPREAD);
        Buffer tile(ld * std::max(int64_t(rows.size()), drawn));
        for (size_t r = 0; r < rows.size(); ++r) take_query(rows[r], tile + int64_t(r) * ld);
        mean_and_variance(tile, int64_t(rows.size()), mean_q, var_q);
        for (int64_t j = 0; j < drawn; ++j) load_rows(k, even_position(SPREAD, j), 1, nullptr, nullptr, tile + j * ld, ld);
        mean_and_variance(tile, drawn, mean_k, var_k);
    }
    void mean_and_variance(const float* tile, int64_t rows, std::vector<double>& means, std::vector<double>& variances) const {
        means.assign(size_t(d), 0), variances.assign(size_t(d), 0);
        const double n = double(rows < 1 ? 1 : rows);
        for (int l = 0; l < d && rows > 0; l += W) {
            const vf first = load(tile + l);  // sums are taken about the first row, so that a large mean costs no digits
            const vd f0 = low_doubles(first), f1 = high_doubles(first);
            vd m0 = {}, m1 = {}, v0 = {}, v1 = {};
            for (int64_t r = 1; r < rows; ++r) {
                const vf x = load(tile + r * ld + l);
                const vd y0 = low_doubles(x) - f0, y1 = high_doubles(x) - f1;
                m0 += y0, m1 += y1, v0 += y0 * y0, v1 += y1 * y1;
            }
            m0 /= n, m1 /= n;
            store(&means[size_t(l)], m0 + f0), store(&means[size_t(l) + WD], m1 + f1);
            v0 = v0 / n - m0 * m0, v1 = v1 / n - m1 * m1;
            store(&variances[size_t(l)], v0 < 0 ? vd{} : v0), store(&variances[size_t(l) + WD], v1 < 0 ? vd{} : v1);
        }
        means.resize(size_t(dim)), variances.resize(size_t(dim));
    }
};

// Of W vectors, what `join` makes of the lanes of each, one vector a lane. In round S two vectors become one: lanes with bit S
// are joined to those without, which takes half the exchanges of a transposition.
template <int S, class Join, int... I>
INLINE void fold(vf (&x)[W], Join join, Lanes<I...>) {
#pragma GCC unroll 16
    for (int i = 0; i < S; ++i)
        x[i] = join(__builtin_shuffle(x[i], x[i + S], vi{((I & S) ? W + I - S : I)...}),
                    __builtin_shuffle(x[i], x[i + S], vi{((I & S) ? W + I : I + S)...}));
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

INLINE void show(const SampledHead& head, int64_t first, int count, vf scores, Largest& to) {
    if (!any(scores > splat(to.least_wanted()))) return;
    float each[W];
    store(each, scores);
    for (int r = 0; r < count; ++r) to.show(each[r], head.keys[first + r]);
}

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

template <class T, bool CENTRED, bool PADDED>
static void scan_as(const SampledHead& head, const Scan& with, Largest& by_feature, Largest& by_softmax) {
    constexpr int HALF = W / 2;
    const T* const data = reinterpret_cast<const T*>(head.k.data);
    for (int64_t first = 0; first < head.keys.count; first += W) {
        const int count = int(least(W, head.keys.count - first));
        vf u[W], m[W];
        for (int half = 0; half < W; half += HALF) {
            const T* rows[HALF];
            for (int r = 0; r < HALF; ++r) rows[r] = data + head.keys[first + (half + r < count ? half + r : 0)] * head.k.row_stride;
            scan_rows<T, CENTRED, PADDED, HALF>(with, rows, head.k.feature_stride, int(head.dim), u + half, m + half);
        }
        show(head, first, count, fold_lanes(u, [](vf a, vf b) { return a + b; }), by_softmax);
        show(head, first, count, fold_lanes(m, [](vf a, vf b) { return vmax(a, b); }), by_feature);
    }
}

template <class T>
static void scan(const SampledHead& head, const Scan& with, Largest& by_feature, Largest& by_softmax) {
    if (head.p.center_keys) scan_as<T, true, true>(head, with, by_feature, by_softmax);
    else if (head.d != head.dim) scan_as<T, false, true>(head, with, by_feature, by_softmax);
    else scan_as<T, false, false>(head, with, by_feature, by_softmax);
}

inline void SampledHead::find_tops(const SampleSize& size) {
    if (keys.count <= size.even) return;
    const Scan with(*this, p.scale);
    Largest feature(size.top), softmax(size.top);
    switch (k.dtype) {
        case FLOAT16: scan<half_t>(*this, with, feature, softmax); break;
        case BFLOAT16: scan<bfloat_t>(*this, with, feature, softmax); break;
        default: scan<float>(*this, with, feature, softmax);
    }
    by_feature = feature.positions(), by_softmax = softmax.positions();
}

// r of one query, in double: rounded to float it is the same whoever sums it.
template <class T>
static float logit_spread(const T* row, int64_t stride, int64_t dim, const double* of_k, double unit) {
    int64_t l = 0;
    double sum = 0;
    if (stride == 1) {
        vd s0 = {}, s1 = {};
        for (; l + W <= dim; l += W) {
            const vf x = load_as_float(row + l);
            const vd y0 = low_doubles(x) * unit, y1 = high_doubles(x) * unit;
            s0 += y0 * y0 * load(of_k + l), s1 += y1 * y1 * load(of_k + l + WD);
        }
        for (int i = 0; i < WD; ++i) sum += s0[i] + s1[i];
    }
    for (; l < dim; ++l) {
        const double y = double(to_float(row[l * stride])) * unit;
        sum += y * y * of_k[l];
    }
    return float(sum);
}

// Indices in order of falling scores (none negative), equal ones as they come: three rounds of counting.
static std::vector<uint32_t> falling_order(const std::vector<float>& scores) {
    const size_t n = scores.size();
    std::vector<uint32_t> keys(n), order(n), next(n);
    for (size_t i = 0; i < n; ++i) {
        uint32_t bits;
        memcpy(&bits, &scores[i], 4);
        keys[i] = scores[i] == scores[i] ? ~bits : ~uint32_t(0);  // NaN comes last
        order[i] = uint32_t(i);
    }
    for (int shift = 0; shift < 33; shift += 11) {
        size_t begin[2049] = {};
        for (size_t i = 0; i < n; ++i) ++begin[(keys[i] >> shift & 2047) + 1];
        for (int b = 0; b < 2048; ++b) begin[b + 1] += begin[b];
        for (size_t i = 0; i < n; ++i) next[begin[keys[order[i]] >> shift & 2047]++] = order[i];
        order.swap(next);
    }
    return order;
}

inline std::vector<Row> SampledHead::rows_by_rank(const SampleSize& size) const {
    std::vector<double> of_k(var_k);
    double largest = SMALLEST_VARIANCE;
    for (const double x : of_k) largest = more(largest, x);
    for (double& x : of_k) x /= largest;
    of_k.resize(size_t(d));
    const double unit = 1 / std::sqrt(more(overall_q(), SMALLEST_VARIANCE));
    std::vector<float> scores(size_t(groups * queries.count));
    for (int64_t i = 0; i < groups * queries.count; ++i) {
        const Rows q = queries_of(i / queries.count);
        const int64_t at = queries[i % queries.count] * q.row_stride;
        float& score = scores[size_t(i)];
        switch (q.dtype) {
            case FLOAT16: score = logit_spread(reinterpret_cast<const half_t*>(q.data) + at, q.feature_stride, dim, of_k.data(), unit); break;
            case BFLOAT16: score = logit_spread(reinterpret_cast<const bfloat_t*>(q.data) + at, q.feature_stride, dim, of_k.data(), unit); break;
            default: score = logit_spread(reinterpret_cast<const float*>(q.data) + at, q.feature_stride, dim, of_k.data(), unit);
        }
    }
    const std::vector<uint32_t> order = falling_order(scores);
    const int64_t all = groups * queries.count, taken = least(all, size.rows_of(keys.count));
    std::vector<Row> rows;
    for (int64_t r = 0; r < taken; ++r) {
        const int64_t i = order[size_t(middle(r, taken, all))];
        rows.push_back({i / queries.count, queries[i % queries.count]});
    }
    return rows;
}

// Which keys a sample has, and for how many each stands.
struct Places {
    std::vector<int64_t> positions;  // the even ones in order, then the tops
    std::vector<float> weights;
    int64_t even;
    Places(const SampledHead& head, const SampleSize& size) : even(head.even_taken(size)) {
        for (int64_t j = 0; j < even; ++j) positions.push_back(head.even_position(size, j));
        weights.assign(size_t(even), 1);
        if (head.keys.count <= size.even) return;
        for (const auto* tops : {&head.by_feature, &head.by_softmax})
            for (size_t i = 0; i < std::min(size_t(size.top), tops->size()); ++i) {
                const int64_t position = (*tops)[i];
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
