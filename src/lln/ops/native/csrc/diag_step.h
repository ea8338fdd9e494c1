// One more token of causal LLN+Diag: LLN goes on from its sums, and the token joins the open block, of which it is one row.
// Nothing that is given is changed: the state after the token is written beside the one before it.
#pragma once
#include "diag.h"

namespace LLN_ISA {

// The block's books: which keys the token sees, and what is left of them afterwards. A full block leaves an empty one.
static void open_block_after(const DiagStepProblem& p, uint8_t* seen) {
    const int64_t size = p.near.rows;
    for (int64_t b = 0; b < p.far.sequences; ++b) {
        const int64_t filled = p.before.filled[b];
        const bool counts = p.far.key_mask == nullptr || p.far.key_mask[b * p.far.mask_batch_stride] != 0;
        memcpy(seen + b * size, p.before.counts + b * size, size_t(size));
        seen[b * size + filled] = counts;
        const bool started = counts || p.before.started[b] != 0;
        const int64_t taken = filled + started;
        p.after.started[b] = started;
        p.after.filled[b] = taken < size ? taken : 0;
        if (taken < size) memcpy(p.after.counts + b * size, seen + b * size, size_t(size));
        else memset(p.after.counts + b * size, 0, size_t(size));
    }
}

// The rows of one head's block, and the token's own in its place.
template <class T>
static void copy_with_token(const char* before, char* after, int64_t rows, int64_t at, const Rows& token) {
    memcpy(after, before, size_t(rows * token.features) * sizeof(T));
    T* row = reinterpret_cast<T*>(after) + at * token.features;
    const T* from = reinterpret_cast<const T*>(token.data);
    for (int64_t l = 0; l < token.features; ++l) row[l] = from[l * token.feature_stride];
}

static void extend_block(const DiagStepProblem& p, const Head& head) {
    const int64_t rows = p.near.rows, at = p.before.filled[head.batch], size = p.near.dtype == FLOAT32 ? 4 : 2;
    const auto extend = [&](const Tensor& of, const char* before, char* after, int64_t features) {
        const Rows token(of, p.near.dtype, head.batch, head.key_head, 0, features);
        const int64_t offset = head.key_index() * rows * features * size;
        if (size == 4) copy_with_token<float>(before + offset, after + offset, rows, at, token);
        else copy_with_token<uint16_t>(before + offset, after + offset, rows, at, token);
    };
    extend(p.k, p.before.keys, p.after.keys, p.near.dim);
    extend(p.v, p.before.values, p.after.values, p.near.value_dim);
}

// The token's row. One row of weights does not repay turning the keys round, so they are read where they lie; what does not count
// is not read at all.
template <class T>
static void attend_open_block_as(const BlockRun& run, int count) {
    const BlockProblem& p = run.problem;
    const BlockShape s(p);
    Buffer query(s.ld), weights(padded(count)), part(s.e), result(s.e);
    for (int64_t g = 0; g < run.groups; ++g) {
        load_rows(run.queries(p.q, g, s.dim), 0, 1, nullptr, nullptr, query, s.ld);
        fill_row(weights, padded(count), -__builtin_inff());
        vf highest = splat(-__builtin_inff()), total = {};
        for (int j = 0; j < count; ++j)
            if (run.mask.counts(j)) weights[j] = float(p.scale) * dot_as<T>(run.k, j, query);
        for (int j = 0; j < padded(count); j += W) highest = vmax(load(weights + j), highest);
        const float largest = max(highest);
        for (int j = 0; j < padded(count); j += W) {
            const vf weight = exp(load(weights + j) - (largest > -__builtin_inff() ? largest : 0));
            store(weights + j, weight);
            total += weight;
        }
        fill_row(result, s.e, 0);
        for (int first = 0; first < count; first += DEEPEST) {  // no chain is longer, as in deep_product
            fill_row(part, s.e, 0);
            for (int j = first; j < least(first + DEEPEST, count); ++j)
                if (run.mask.counts(j))
                    visit_row(reinterpret_cast<const T*>(run.v.data) + j * run.v.row_stride, run.v.feature_stride, s.value_dim, s.e,
                              [&](int l, vf y) { store(part + l, load(part + l) + y * weights[j]); });
            for (int l = 0; l < s.e; l += W) store(result + l, load(result + l) + load(part + l));
        }
        const float sum_of_weights = sum(total), divisor = sum_of_weights == 0 ? 1 : sum_of_weights;
        const Rows out = run.queries(p.out, g, s.value_dim);
        store_mixed_rows(out, run.queries(p.far, g, s.value_dim), run.weights(g), 0, 1, result, s.le, &divisor);
    }
}

static void one_diag_step(const DiagStepProblem& p) {
    Buffer memory((p.far.sequences * p.near.rows + 3) / 4);
    uint8_t* seen = reinterpret_cast<uint8_t*>(static_cast<float*>(memory));
    open_block_after(p, seen);
    BlockProblem near = p.near;
    near.key_mask = seen, near.mask_batch_stride = near.rows, near.mask_row_stride = 1;
    const BlockPlan plan(near);
    for_each_head(p.far, [&](const Head& head, int64_t threads) {
        extend_block(p, head);
        causal_forward(head, threads);
        const int count = int(p.before.filled[head.batch]) + 1;  // nothing lies behind the token
        const BlockRun run = plan.run(head.sequence, head.key_head, 0);
        by_type(near.dtype, [&](auto type) { attend_open_block_as<decltype(type)>(run, count); });
    });
}

}  // namespace LLN_ISA
