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
        BlockRun run = plan.run(head.sequence, head.key_head, 0);
        run.last = p.before.filled[head.batch] + 1;  // nothing lies behind the token
        block_forward_run(run);
    });
}

}  // namespace LLN_ISA
