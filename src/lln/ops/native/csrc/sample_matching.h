// Matching on a sample: the factor e^(x/2) on the table's alpha and beta with which LLN attention has softmax's entropy on it.
// lln.ops.moments.search says what is done and why; the numbers here are those there.
#pragma once
#include "sample_tops.h"

namespace LLN_ISA {

constexpr double LOWEST_X = -16, STEEPEST = 1, USUAL_SLOPE = 1.5, SMALLEST_SLOPE = 0.05;
constexpr int SMALL_EVALUATIONS = 6, LARGE_EVALUATIONS = 4;
constexpr double CLOSE = 0.25, SMALLEST_DEFICIT = 1e-4, SMALLEST_ENTROPY = 1e-2;
constexpr double TOLERATED = 0.15 * 0.6931471805599453, TOLERATED_SHARE = 0.03, TRUSTED = 0.6, USUAL_X = 1.5;
constexpr float SMALLEST_FLOAT = 1e-37f;
constexpr float LARGEST_QUERY = 1e15f;  // of scaled queries: rows of such logits have one key, and sums of them are finite
constexpr int ROWS_AT_ONCE = 4 * BLOCK_ROWS;
constexpr int64_t LONG_TILE = 256;  // keys at a time

// Sums over the keys of a row, relative to a top: of e^(log - top), and of that times (log - top).
struct Masses {
    double total = 0, logs = 0, top = -INFINITY;
    double entropy() const {
        const double t = total > SMALLEST_FLOAT ? total : double(SMALLEST_FLOAT);
        return more(std::log(t) - logs / t, 0);
    }
    void add(Masses other) {
        const double highest = top > other.top ? top : other.top;
        rise_to(highest), other.rise_to(highest);
        total += other.total, logs += other.logs;
    }

   private:
    void rise_to(double highest) {
        const double by = top - highest, factor = std::exp(by);
        logs = factor > 0 ? factor * (logs + by * total) : 0;
        total *= factor;
        top = highest;
    }
};

// The keys of a sample, one to a column, so that a feature's keys are adjacent.
struct Columns {
    int count, width;
    Buffer data, weights;
    Columns(const SampledHead& head, const Places& places, int64_t first, int64_t last)
        : count(int(last - first)), width(padded(count)), data(int64_t(head.d) * width), weights(width) {
        Buffer rows(int64_t(W) * head.ld);
        for (int64_t j = first; j < last; ++j) fetch_row(head.k, places.positions[size_t(j)]);
        for (int j = 0; j < width; j += W) {
            for (int i = 0; i < W; ++i) {  // places past the last repeat the first, and count for nothing
                const bool there = j + i < count;
                head.take_key(places.positions[size_t(first + (there ? j + i : 0))], rows + i * head.ld);
                weights[j + i] = there ? places.weights[size_t(first + j + i)] : 0;
            }
            for (int l = 0; l < head.d; l += W) {
                vf x[W];
                for (int i = 0; i < W; ++i) x[i] = load(rows + i * head.ld + l);
                transpose_block(x);
                for (int i = 0; i < W; ++i) store(data + int64_t(l + i) * width + j, x[i]);
            }
        }
    }
};

INLINE float dot(const float* a, const float* b, int d) {
    vf sum_ = {};
    for (int l = 0; l < d; l += W) sum_ += load(a + l) * load(b + l);
    return sum(sum_);
}

// While it lives, the weight at a place (none, if negative) is 0: there is a row's own key, which counts by itself.
class Without {
   public:
    Without(float* weights, int64_t place) : at_(place < 0 ? nullptr : weights + place) {
        if (at_ != nullptr) kept_ = *at_, *at_ = 0;
    }
    ~Without() {
        if (at_ != nullptr) *at_ = kept_;
    }
    Without(const Without&) = delete;
    Without& operator=(const Without&) = delete;

   private:
    float* at_;
    float kept_ = 0;
};

// The keys of a sample.
struct KeySample {
    const Places places;
    const Columns columns;
    KeySample(const SampledHead& head, const KeyScores& scores, const KeyCount& size)
        : places(head, scores, size), columns(head, places, 0, places.size()) {}
};

// Some rows, to be looked at on the keys of a sample.
class HeadSample {
   public:
    HeadSample(const SampledHead& head, const std::vector<Row>& rows, const KeySample& keys)
        : head_(head), rows_(rows), columns_(keys.columns),
          queries_(int64_t(rows.size() + 1) * head.ld), own_(int64_t(rows.size() + 1) * head.ld),
          scaled_(int64_t(ROWS_AT_ONCE) * head.ld), features_(int64_t(head.d) * columns_.width),
          result_(int64_t(ROWS_AT_ONCE) * columns_.width), peak_(head.d), outside_(head.d), largest_(head.d) {
        for (int l = 0; l < head.d; ++l) outside_[l] = l < head.dim ? 0 : -__builtin_inff();
        for (size_t r = 0; r < rows.size() && head.same_tokens; ++r) fetch_row(head.k, rows[r].position);
        for (size_t r = 0; r < rows.size(); ++r) {
            head.take_query(rows[r], queries_ + int64_t(r) * head.ld);
            if (head.same_tokens) head.take_key(rows[r].position, own_ + int64_t(r) * head.ld);
            own_places_.push_back(head.same_tokens ? keys.places.place_of(rows[r].position) : -1);
        }
        for (int l = 0; l < head.d; ++l) {
            vf highest = splat(-__builtin_inff());
            for (int j = 0; j < columns_.width; j += W) highest = vmax(load(columns_.data + int64_t(l) * columns_.width + j), highest);
            largest_[l] = max(highest);
        }
        for (size_t r = 0; r < rows.size() && head.same_tokens; ++r)
            for (int l = 0; l < head.d; l += W) store(largest_ + l, vmax(load(own_ + int64_t(r) * head.ld + l), load(largest_ + l)));
    }

    // Entropies of softmax attention.
    std::vector<double> softmax() {
        const double unit = std::sqrt(more(head_.overall_k(head_.p.center_keys != 0), SMALLEST_VARIANCE));
        for (int l = 0; l < head_.d; ++l)
            for (int j = 0; j < columns_.width; j += W) {
                const int64_t at = int64_t(l) * columns_.width + j;
                store(features_ + at, load(columns_.data + at) * float(1 / unit));
            }
        std::vector<double> entropies;
        Buffer key(head_.d);
        for_rows([&](int64_t r, float* query) { scale_query(r, head_.p.scale * unit, query); },
                 [&](int64_t r, const float* query, const float* logits) {
                     float own = -__builtin_inff();
                     if (head_.same_tokens) {
                         for (int l = 0; l < head_.d; l += W) store(key + l, load(own_ + r * head_.ld + l) * float(1 / unit));
                         own = dot(query, key, head_.d);
                     }
                     entropies.push_back(softmax_row(logits, columns_, own).entropy());
                 });
        return entropies;
    }

    // Entropies of LLN attention.
    const std::vector<double>& lln(double alpha, double beta) {
        const int width = columns_.width;
        const float b = float(beta), a = float(alpha);
        for (int l = 0; l < head_.d; ++l) {
            const float* row = columns_.data + int64_t(l) * width;
            const float peak = peak_[l] = largest_[l] * b;
            float* to = features_ + int64_t(l) * width;
            for (int j = 0; j < width; j += W) store(to + j, exp(load(row + j) * b - peak));
        }
        entropies_.clear();
        for_rows([&](int64_t r, float* query) { query_feature(queries_ + r * head_.ld, a, query); },
                 [&](int64_t r, const float* query, const float* kernel) {
                     float own = 0;
                     if (head_.same_tokens) {
                         vf sum_ = {};
                         const float* key = own_ + r * head_.ld;
                         for (int l = 0; l < head_.d; l += W)
                             sum_ += load(query + l) * exp(load(key + l) * b - load(peak_ + l));
                         own = sum(sum_);
                     }
                     entropies_.push_back(lln_row(kernel, own).entropy());
                 });
        return entropies_;
    }

    // By how much the mean entropy of softmax attention differs over many more keys, of a few of the rows.
    double missed(const KeyScores& scores, const std::vector<double>& of_softmax) const;

    const std::vector<double>& last_lln() const { return entropies_; }
    // max_l (alpha q_il + beta max_j k_jl) of each row, over the keys that all rows share; in double, and rounded.
    std::vector<float> largest_exponents(double alpha, double beta) const {
        std::vector<double> peak;
        for (int64_t l = 0; l < head_.dim; ++l) {
            vf highest = splat(-__builtin_inff());
            for (int j = 0; j < columns_.width; j += W) highest = vmax(load(columns_.data + l * columns_.width + j), highest);
            peak.push_back(beta * double(max(highest)));
        }
        std::vector<float> largest;
        for (int64_t r = 0; r < rows(); ++r) {
            double highest = -INFINITY;
            for (int64_t l = 0; l < head_.dim; ++l) highest = more(highest, alpha * double(queries_[r * head_.ld + l]) + peak[size_t(l)]);
            largest.push_back(float(highest));
        }
        return largest;
    }
    int64_t rows() const { return int64_t(rows_.size()); }

   private:
    void scale_query(int64_t r, double factor, float* to) const {
        const float* from = queries_ + r * head_.ld;
        const float f = float(factor > 1e38 ? 1e38 : factor < -1e38 ? -1e38 : factor);
        const vf most = splat(LARGEST_QUERY);
        for (int l = 0; l < head_.d; l += W) {
            const vf x = load(from + l) * f;
            store(to + l, x > most ? most : x < -most ? -most : x);
        }
    }
    void query_feature(const float* from, float a, float* to) const {
        vf highest = splat(-__builtin_inff());
        for (int l = 0; l < head_.d; l += W) {
            const vf x = load(from + l) * a + load(peak_ + l) + load(outside_ + l);
            store(to + l, x);
            highest = vmax(x, highest);
        }
        const float m = max(highest);
        for (int l = 0; l < head_.d; l += W) store(to + l, exp(load(to + l) - m));
    }
    template <class Prepare, class Use>
    void for_rows(Prepare prepare, Use use) {
        for (int64_t first = 0; first < rows(); first += ROWS_AT_ONCE) {
            const int count = int(least(ROWS_AT_ONCE, rows() - first));
            for (int r = 0; r < count; ++r) prepare(first + r, scaled_ + int64_t(r) * head_.ld);
            product<ROWS, OVERWRITE>(count, columns_.width, head_.d, scaled_, head_.ld, features_, columns_.width, result_, columns_.width);
            for (int r = 0; r < count; ++r) {
                const Without own_key(columns_.weights, own_places_[size_t(first + r)]);
                use(first + r, scaled_ + int64_t(r) * head_.ld, result_ + int64_t(r) * columns_.width);
            }
        }
    }
    static Masses softmax_row(const float* logits, const Columns& columns, float own) {
        vf highest = splat(own);
        for (int j = 0; j < columns.width; j += W) highest = vmax(load(logits + j), highest);
        const float top = max(highest);
        vf total = {}, logs = {};
        for (int j = 0; j < columns.width; j += W) {
            const vf x = load(logits + j) - top, mass = exp(x) * load(columns.weights + j);
            total += mass;
            logs += mass * (x < splat(-100.0f) ? splat(-100.0f) : x);
        }
        Masses row{sum(total), sum(logs), top};
        if (own > -__builtin_inff()) {
            const double x = double(own) - top, mass = std::exp(x);
            row.total += mass, row.logs += mass > 0 ? mass * x : 0;
        }
        return row;
    }
    Masses lln_row(const float* kernel, float own) const {
        vf total = {}, logs = {};
        for (int j = 0; j < columns_.width; j += W) {
            const vf x = load(kernel + j), mass = x * load(columns_.weights + j);
            total += mass;
            logs += mass * log(vmax(x, splat(SMALLEST_FLOAT)));
        }
        Masses row{sum(total), sum(logs), 0};
        if (own > 0) row.total += own, row.logs += double(own) * std::log(double(own));
        return row;
    }

    const SampledHead& head_;
    const std::vector<Row>& rows_;
    const Columns& columns_;
    const Buffer queries_, own_, scaled_, features_, result_, peak_, outside_, largest_;  // largest_: of each feature, over keys and own keys
    std::vector<int64_t> own_places_;
    std::vector<double> entropies_;
};

static double mean(const std::vector<double>& x) {
    double total = 0;
    for (const double y : x) total += y;
    return x.empty() ? 0 : total / double(x.size());
}

inline double HeadSample::missed(const KeyScores& scores, const std::vector<double>& of_softmax) const {
    const std::vector<int64_t> chosen = spaced(std::vector<float>(rows_.size()), long_rows_of(head_.keys.count));  // as they come, which is by rank
    const int count = int(chosen.size());
    if (count == 0 || SMALL_KEYS.all_of(head_.keys.count)) return 0;
    const Places places(head_, scores, LONG_KEYS);
    const double unit = std::sqrt(more(head_.overall_k(head_.p.center_keys != 0), SMALLEST_VARIANCE));
    Buffer scaled(int64_t(count) * head_.ld), logits(int64_t(count) * padded(LONG_TILE)), key(head_.d);
    std::vector<Masses> sums(static_cast<size_t>(count));
    std::vector<int64_t> own_places;
    for (int i = 0; i < count; ++i) {
        scale_query(chosen[size_t(i)], head_.p.scale * unit, scaled + int64_t(i) * head_.ld);
        own_places.push_back(head_.same_tokens ? places.place_of(rows_[size_t(chosen[size_t(i)])].position) : -1);
        if (!head_.same_tokens) continue;
        for (int l = 0; l < head_.d; l += W) store(key + l, load(own_ + chosen[size_t(i)] * head_.ld + l) * float(1 / unit));
        sums[size_t(i)].add({1, 0, dot(scaled + int64_t(i) * head_.ld, key, head_.d)});
    }
    for (int64_t first = 0; first < places.size(); first += LONG_TILE) {
        Columns tile(head_, places, first, least(first + LONG_TILE, places.size()));
        for (int64_t at = 0; at < int64_t(head_.d) * tile.width; at += W) store(tile.data + at, load(tile.data + at) * float(1 / unit));
        product<ROWS, OVERWRITE>(count, tile.width, head_.d, scaled, head_.ld, tile.data, tile.width, logits, tile.width);
        for (int i = 0; i < count; ++i) {
            const int64_t own = own_places[size_t(i)] - first;
            const Without own_key(tile.weights, own < tile.count ? own : -1);
            sums[size_t(i)].add(softmax_row(logits + int64_t(i) * tile.width, tile, -__builtin_inff()));
        }
    }
    double difference = 0;
    for (int i = 0; i < count; ++i) difference += sums[size_t(i)].entropy() - of_softmax[size_t(chosen[size_t(i)])];
    return difference / count;
}

struct Search {
    double most;  // the highest x
    double x = 0, slope = USUAL_SLOPE, lln = 0;  // lln: the entropy at the last x that was looked at
};

static double odds(double entropy, double full) {
    return std::log(more(full - entropy, SMALLEST_DEFICIT)) - std::log(more(entropy, SMALLEST_ENTROPY));
}
static double step(const Search& s, double value, double low, double high) {
    const double wished = s.x - value / s.slope, proposed = wished < s.most ? wished : s.most;
    return proposed > low && proposed <= high ? proposed : (low + high) / 2;
}

static double tolerated(double entropy) { return more(TOLERATED_SHARE * entropy, TOLERATED); }

// Moves s.x to where the sample's rows have the entropy `softmax`.
static void search(HeadSample& sample, double alpha, double beta, double full, double softmax, int evaluations, Search& s) {
    const double wanted = odds(softmax, full);
    const auto look = [&](double x) {
        const double factor = std::exp(x / 2);
        s.lln = mean(sample.lln(alpha * factor, beta * factor));
        return odds(s.lln, full) - wanted;
    };
    double low = LOWEST_X, high = s.most, value = look(s.x);
    const auto narrow = [&] { (value < 0 ? low : high) = s.x; };
    for (int i = 1; i < evaluations; ++i) {
        if (std::fabs(s.lln - softmax) < CLOSE * tolerated(softmax) || !std::isfinite(value)) break;
        if (s.x >= s.most && value < 0) break;
        narrow();
        const double following = step(s, value, low, high), next = look(following);
        const double secant = (next - value) / (following - s.x);
        if (secant > SMALLEST_SLOPE && std::isfinite(secant)) s.slope = secant;
        s.x = following, value = next;
    }
    narrow();
    if (std::fabs(value) < 1 && full - softmax > SMALLEST_DEFICIT) s.x = step(s, value, low, high);
}

// Of the mean difference of two entropies over rows.
static double standard_error(const std::vector<double>& one, const std::vector<double>& other) {
    double sum = 0, squares = 0;
    const double n = double(one.empty() ? 1 : one.size());
    for (size_t r = 0; r < one.size(); ++r) sum += one[r] - other[r];
    for (size_t r = 0; r < one.size(); ++r) {
        const double off = one[r] - other[r] - sum / n;
        squares += off * off;
    }
    return std::sqrt(squares / n / n);
}

static void match_head(const MatchProblem& p, int64_t i) {
    SampledHead head(p, i);
    const double of_q = more(head.overall_q(), SMALLEST_VARIANCE), of_k = more(head.overall_k(p.center_keys != 0), SMALLEST_VARIANCE);
    double alpha, beta;
    table_values(p, of_q, of_k, double(head.keys.count), alpha, beta);
    const double steepest = STEEPEST * std::fabs(p.scale) * double(p.k.dim) * std::sqrt(of_k);
    Search found{more(2 * std::log(steepest / more(alpha, 1e-300)), 0)};
    double softmax = 0;
    if (head.keys.count > 0 && head.queries.count > 0) {
        const double full = std::log(double(head.keys.count));
        const KeyScores scores(head);
        const KeySample few(head, scores, SMALL_KEYS);
        const std::vector<Row> small_rows = head.rows_by_position(SMALL_ROWS, SMALL_ROWS);
        HeadSample small(head, small_rows, few);
        const std::vector<double> of_small = small.softmax();
        softmax = mean(of_small);
        search(small, alpha, beta, full, softmax, SMALL_EVALUATIONS, found);
        if (!(standard_error(small.last_lln(), of_small) <= TRUSTED * tolerated(softmax) && std::fabs(found.x) <= USUAL_X)) {
            const std::vector<Row> rows = head.rows_by_rank();
            const KeySample of_softmax(head, scores, SOFTMAX_KEYS), of_lln(head, scores, LLN_KEYS);
            HeadSample many(head, rows, of_softmax);
            const std::vector<double> entropies = many.softmax();
            softmax = more(mean(entropies) + many.missed(scores, entropies), 0);
            const std::vector<Row> lln_rows = rows_at(rows, spaced(many.largest_exponents(alpha, beta), LLN_ROWS));
            HeadSample large(head, lln_rows, of_lln);
            search(large, alpha, beta, full, softmax, LARGE_EVALUATIONS, found);
        }
    }
    const double factor = std::exp(found.x / 2);
    p.alpha[i] = alpha * factor, p.beta[i] = beta * factor;
    p.entropies[2 * i] = softmax, p.entropies[2 * i + 1] = found.lln;
}

static void match_on_samples(const MatchProblem& p) {
    parallel(p.k.threads, p.k.sequences * p.k.heads, [&](int64_t i) { match_head(p, i); });
}

}  // namespace LLN_ISA
