// Softmax attention inside blocks of consecutive positions. For a block's queries Q, keys K and values V:
//   S = scale Q K^T,   P_i = exp(S_i - max_j S_ij) over the keys that row i sees,   out_i = P_i V / sum_j P_ij
// Blocks count from the first key of a sequence that counts. A row that sees no key gives zeros.
// Where another branch's rows far_i are given, they are mixed in as a row is written: w_i far_i + (1 - w_i) out_i.
#pragma once
#include "block_plan.h"

namespace LLN_ISA {

INLINE bool is_plain(const Rows& x) { return x.dtype == FLOAT32 && x.feature_stride == 1; }

// The keys and values of one block.
class BlockKeys {
   public:
    const BlockShape s;
    const int most;      // room, in keys
    const int pitch_of;  // of tiles with a column for each key
    int count = 0;
    bool has_masked = false;
    bool all_finite = true;  // of the values; looked at only when causal
    Buffer keys, keys_t, values, sees;  // sees: all bits set for a key that counts, else none

    explicit BlockKeys(const BlockProblem& p, int64_t longest)
        : s(p), most(padded(longest)), pitch_of(pitch(longest)), keys(int64_t(most) * s.ld),
          keys_t(int64_t(s.d) * pitch_of), values(int64_t(most) * s.le), sees(most) {}

    // `keep_keys`: the keys themselves are wanted too, not just their transpose.
    void load(const BlockRun& run, int64_t first, int n, bool keep_keys) {
        count = n;
        has_masked = false;
        for (int j = 0; j < padded(n); ++j) {
            const bool counts = j < n && run.mask.counts(first + j);
            const int32_t bits = counts ? -1 : 0;
            memcpy(sees + j, &bits, 4);
            has_masked |= j < n && !counts;
        }
        load_values(run.v, run.mask, first, n, values, s.le);
        all_finite = !run.problem.is_causal || finite_values();
        if (!keep_keys && !has_masked && is_plain(run.k) && n % PANEL == 0 && s.dim % W == 0) {
            const float* at = reinterpret_cast<const float*>(run.k.data) + first * run.k.row_stride;
            return transpose(n, s.dim, at, run.k.row_stride, keys_t, pitch_of);
        }
        load_values(run.k, run.mask, first, n, keys, s.ld);
        for (int j = n; j < padded(n); ++j) fill_row(keys + int64_t(j) * s.ld, s.d, 0);
        transpose(padded(n), s.dim, keys, s.ld, keys_t, pitch_of);
    }

   private:
    bool finite_values() const {
        vi bad = {};
        for (int j = 0; j < count; ++j)
            for (int m = 0; m < s.e; m += W) bad |= LLN_ISA::load(values + int64_t(j) * s.le + m) * 0 != vf{};
        return !any(bad);
    }
};

INLINE vi lanes_from(int j) {
    vi lanes;
    for (int i = 0; i < W; ++i) lanes[i] = j + i;
    return lanes;
}

// Turns a row of q . k into exp(scale q . k - max) for the keys it sees, of the first `limit`, and zero for the rest up to the end
// of their panel. Returns the sum, and the maximum where it is asked for. Scores not seen are replaced, not added to: they may be
// anything.
template <class Keys>
static float exponentials(float* row, int limit, float scale, const Keys& block, float* largest = nullptr) {
    const int whole = block.has_masked ? 0 : limit / W * W, width = padded(limit);
    const vf nothing = splat(-__builtin_inff());
    vf highest = nothing;
    vi some = splat(float(whole)) > vf{};
    for (int j = 0; j < whole; j += W) highest = vmax(load(row + j) * scale, highest);
    for (int j = whole; j < width; j += W) {
        vi seen;
        memcpy(&seen, block.sees + j, sizeof seen);
        seen &= lanes_from(j) < limit - vi{};
        const vf x = seen ? load(row + j) * scale : nothing;
        store(row + j, x);
        highest = vmax(x, highest);
        some |= seen;
    }
    if (!any(some)) {
        fill_row(row, width, 0);
        return 0;
    }
    const float shift = max(highest);
    if (largest != nullptr) *largest = shift;
    vf total = {};
    for (int j = 0; j < whole; j += W) {
        const vf weight = exp(load(row + j) * scale - shift);
        store(row + j, weight);
        total += weight;
    }
    for (int j = whole; j < width; j += W) {
        const vf x = load(row + j);
        const vf weight = x == nothing ? vf{} : exp(x - shift);
        store(row + j, weight);
        total += weight;
    }
    return sum(total);
}

// Scores take this many floats at most, so that they stay in the second-level cache, but at least two blocks of rows.
INLINE int queries_at_once(int pitch_of) {
    const int fit = 32768 / pitch_of / BLOCK_ROWS * BLOCK_ROWS;
    return fit < 2 * BLOCK_ROWS ? 2 * BLOCK_ROWS : fit > 48 ? 48 : fit;
}

static void attend_block(const BlockRun& run, int64_t group, int64_t first, const BlockKeys& block, float* scores, float* result) {
    const BlockProblem& p = run.problem;
    const BlockShape& s = block.s;
    const Rows q = run.queries(p.q, group, s.dim), out = run.queries(p.out, group, s.value_dim);
    const Rows far = p.far.data == nullptr ? out : run.queries(p.far, group, s.value_dim);
    const Weights weights = run.weights(group);
    // Rows of a tile meet each other's values with weight 0, which NaN does not respect: then each row is a tile of its own.
    const int tile = block.all_finite ? queries_at_once(block.pitch_of) : 1, queries = p.one_block ? int(p.query_rows) : block.count;
    Buffer copy(is_plain(q) ? 0 : tile * s.ld);
    float sums[48];
    for (int at = 0; at < queries; at += tile) {
        const int rows = int(least(tile, queries - at)), limit = p.is_causal ? at + rows : block.count;
        const float* a = copy;
        int64_t lda = s.ld;
        if (is_plain(q)) a = reinterpret_cast<const float*>(q.data) + (first + at) * q.row_stride, lda = q.row_stride;
        else load_rows(q, first + at, rows, nullptr, nullptr, copy, s.ld);
        const int64_t ahead = first + at + block.count;
        Fetch next(least(ahead, run.last), least(ahead + rows, run.last), blocks(rows, padded(limit)));
        next.read(run.k).read(run.v).read(q).write(out);
        if (far.data != out.data) next.read(far);
        product<ROWS, OVERWRITE>(rows, padded(limit), s.dim, a, lda, block.keys_t, block.pitch_of, scores, block.pitch_of, next);
        for (int r = 0; r < rows; ++r) {
            const int seen = p.is_causal ? at + r + 1 : block.count;
            float* row = scores + int64_t(r) * block.pitch_of;
            const float total = exponentials(row, seen, float(p.scale), block);
            for (int j = padded(seen); j < limit; j += W) store(row + j, vf{});
            sums[r] = total == 0 ? 1 : total;
        }
        deep_product(rows, s.e, limit, scores, block.pitch_of, block.values, s.le, result, s.le);
        if (weights.data == nullptr) store_rows(out, first + at, rows, result, s.le, sums);
        else store_mixed_rows(out, far, weights, first + at, rows, result, s.le, sums);
    }
}

// Rows that belong to no block, where only the other branch has something to say.
static void write_outside_of_blocks(const BlockRun& run, int64_t group, const float* zeros) {
    const BlockProblem& p = run.problem;
    const Rows out = run.queries(p.out, group, p.value_dim);
    if (p.far.data == nullptr) return store_zero_rows(out, 0, run.zeros, zeros);
    const Rows far = run.queries(p.far, group, p.value_dim);
    const float one = 1;
    for (int64_t r = 0; r < run.zeros; ++r) store_mixed_rows(out, far, run.weights(group), r, 1, zeros, 0, &one);
}

static void block_forward_run(const BlockRun& run) {
    const BlockProblem& p = run.problem;
    const int64_t longest = run.longest();
    BlockKeys block(p, longest);
    const BlockShape& s = block.s;
    const int tile = queries_at_once(block.pitch_of);
    Buffer scores(int64_t(tile) * block.pitch_of), result(int64_t(tile) * s.le);
    if (run.zeros > 0) {
        fill_row(result, s.e, 0);
        for (int64_t g = 0; g < run.groups; ++g) write_outside_of_blocks(run, g, result);
    }
    for (int64_t at = run.first; at < run.last; at += p.block_size) {
        block.load(run, at, int(least(p.block_size, run.last - at)), false);
        for (int64_t g = 0; g < run.groups; ++g) attend_block(run, g, at, block, scores, result);
    }
}

static void all_blocks_forward(const BlockProblem& p) {
    const BlockPlan plan(p);
    parallel(p.threads, plan.runs(), [&](int64_t i) { block_forward_run(plan.run(i)); });
}

}  // namespace LLN_ISA
