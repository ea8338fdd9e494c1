// A sample of the queries and keys of one head (lln.ops.moments.sampling, where the rules and their reasons are).
//   even keys: the middles of equal stretches of the tokens that count; tops: the keys with the largest
//     m_j = max_l k_jl  and  u_j = s q-.k_j + s^2/2 sum_l var(q_l) (k_jl - k-_l)^2                          (sample_tops.h)
//   rows: queries evenly by position, or of such ones evenly by rank of r_i = sum_l var(k_l) q_il^2; each brings its own key
// A top and an own key stand for themselves, an even one for as many as there are of its kind.
#pragma once
#include <algorithm>
#include <vector>

#include "matching.h"

namespace LLN_ISA {

// How many keys a sample has: tops of each kind, and evenly drawn ones, which are a share of the keys where that is more.
struct KeyCount {
    int64_t even, top, most_even = 0, share = 1;
    int64_t even_of(int64_t keys) const {
        const int64_t grown = least(keys / share, most_even);
        return least(keys, grown < even ? even : grown);
    }
    bool all_of(int64_t keys) const { return even_of(keys) == keys; }
};
// as in lln.ops.moments.sampling
constexpr KeyCount SMALL_KEYS = {96, 24}, SOFTMAX_KEYS = {128, 64}, LLN_KEYS = {256, 64, 1024, 12}, LONG_KEYS = {16384, 64};
constexpr int64_t SPREAD_ROWS = 48, SMALL_ROWS = 24, CANDIDATES = 2;
constexpr int64_t between(int64_t fewest, int64_t x, int64_t most) { return x < fewest ? fewest : x < most ? x : most; }
constexpr int64_t rows_of(int64_t keys) { return between(128, keys / 16, 1024); }
constexpr int64_t LLN_ROWS = 128;
constexpr int64_t long_rows_of(int64_t keys) { return between(32, keys / 256, 64); }

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

struct Row {
    int64_t group, position;
};

// Rows that are far apart are asked for together, ahead of their use, so that they are not waited for one by one.
INLINE void fetch_row(const Rows& of, int64_t position) {
    const int64_t bytes = of.dtype == FLOAT32 ? 4 : 2;
    if (of.feature_stride != 1) return;
    const char* at = of.data + position * of.row_stride * bytes;
    for (int64_t byte = 0; byte < of.features * bytes; byte += 64) __builtin_prefetch(at + byte);
}

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

    int64_t even_position(const KeyCount& size, int64_t place) const {
        return keys[middle(place, size.even_of(keys.count), keys.count)];
    }

    // `places` of them, or fewer if fewer are wanted of so many keys.
    std::vector<Row> rows_by_position(int64_t places, int64_t wanted) const {
        const int64_t taken = least(queries.count * groups, wanted);
        std::vector<Row> rows(static_cast<size_t>(taken));
        for (int64_t r = 0; r < taken; ++r)
            rows[size_t(r)] = {r * ((groups - 1) / places + 1) % groups, queries[middle(r, taken, queries.count)]};
        for (const Row& row : rows) fetch_row(queries_of(row.group), row.position);
        return rows;
    }
    std::vector<Row> rows_by_rank() const;

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
        const std::vector<Row> rows = rows_by_position(SPREAD_ROWS, SPREAD_ROWS);
        const int64_t drawn = SMALL_KEYS.even_of(keys.count);
        for (int64_t j = 0; j < drawn; ++j) fetch_row(k, even_position(SMALL_KEYS, j));
        Buffer tile(ld * std::max(int64_t(rows.size()), drawn));
        for (size_t r = 0; r < rows.size(); ++r) take_query(rows[r], tile + int64_t(r) * ld);
        mean_and_variance(tile, int64_t(rows.size()), mean_q, var_q);
        for (int64_t j = 0; j < drawn; ++j) load_rows(k, even_position(SMALL_KEYS, j), 1, nullptr, nullptr, tile + j * ld, ld);
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

template <class T>
static float logit_spread(const Rows& q, int64_t position, const double* of_k, double unit) {
    return logit_spread(reinterpret_cast<const T*>(q.data) + position * q.row_stride, q.feature_stride, q.features, of_k, unit);
}

// Indices of `most` scores, or of all, at equal distances in their falling order; equal ones as they come, NaN last.
static std::vector<int64_t> spaced(const std::vector<float>& scores, int64_t most) {
    std::vector<uint64_t> order, next(scores.size());
    for (const float score : scores) {
        uint32_t bits;
        memcpy(&bits, &score, 4);
        bits = score == score ? (bits >> 31 ? bits : ~bits & 0x7fffffff) : ~uint32_t(0);  // rising as scores fall
        order.push_back(uint64_t(bits) << 32 | order.size());
    }
    for (int shift = 32; shift < 64; shift += 8) {  // by counting, the last eight bits first
        uint32_t begin[257] = {};
        for (const uint64_t x : order) ++begin[(x >> shift & 255) + 1];
        for (int b = 0; b < 256; ++b) begin[b + 1] += begin[b];
        for (const uint64_t x : order) next[begin[x >> shift & 255]++] = x;
        order.swap(next);
    }
    const int64_t all = int64_t(scores.size()), taken = least(all, most);
    std::vector<int64_t> chosen;
    for (int64_t r = 0; r < taken; ++r) chosen.push_back(int64_t(uint32_t(order[size_t(middle(r, taken, all))])));
    return chosen;
}

static std::vector<Row> rows_at(const std::vector<Row>& rows, const std::vector<int64_t>& places) {
    std::vector<Row> chosen;
    for (const int64_t r : places) chosen.push_back(rows[size_t(r)]);
    return chosen;
}

// Of several times as many rows by position, those at equal distances in the order of falling r.
inline std::vector<Row> SampledHead::rows_by_rank() const {
    std::vector<double> of_k(var_k);
    double largest = SMALLEST_VARIANCE;
    for (const double x : of_k) largest = more(largest, x);
    for (double& x : of_k) x /= largest;
    of_k.resize(size_t(d));
    const double unit = 1 / std::sqrt(more(overall_q(), SMALLEST_VARIANCE));
    const int64_t wanted = rows_of(keys.count);
    const std::vector<Row> candidates = rows_by_position(CANDIDATES * rows_of(p.k.rows), CANDIDATES * wanted);
    std::vector<float> scores;
    for (const Row& row : candidates) {
        const Rows q = queries_of(row.group);
        scores.push_back(q.dtype == FLOAT16    ? logit_spread<half_t>(q, row.position, of_k.data(), unit)
                         : q.dtype == BFLOAT16 ? logit_spread<bfloat_t>(q, row.position, of_k.data(), unit)
                                               : logit_spread<float>(q, row.position, of_k.data(), unit));
    }
    return rows_at(candidates, spaced(scores, wanted));
}

}  // namespace LLN_ISA
