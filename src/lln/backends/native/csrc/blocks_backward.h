// Gradients of softmax attention inside blocks, weights recomputed. For a block, with P the weights, each row adding up to 1:
//   dP = dout V^T,  delta_i = sum_j P_ij dP_ij,  dS = scale P (dP - delta),   dv = P^T dout,  dq = dS K,  dk = dS^T Q
// delta is dout . out, taken from the weights so that the output need not be read and its rounding does no harm.
#pragma once
#include "blocks.h"
#include "gradients.h"

namespace LLN_ISA {

// The tiles of one query tile and the sums of one block.
struct BlockGradients {
    const int tile;
    Buffer values_t, queries, grads, weights, dscores, dq, dk, dv;
    BlockGradients(const BlockShape& s, const BlockKeys& block)
        : tile(queries_at_once(block.pitch_of)), values_t(int64_t(s.e) * block.pitch_of), queries(tile * s.ld),
          grads(tile * s.le), weights(int64_t(tile) * block.pitch_of), dscores(int64_t(tile) * block.pitch_of),
          dq(tile * s.ld), dk(int64_t(block.most) * s.ld), dv(int64_t(block.most) * s.le) {}
};

// weights: from q . k to P;  dscores: from dP to dS. Both are zero past the keys that a row sees, up to `limit`.
static void score_gradients(float* weights, float* dscores, int seen, int limit, float scale, const BlockKeys& block) {
    const float total = exponentials(weights, seen, scale, block), factor = total == 0 ? 0 : 1 / total;
    const int width = padded(seen);
    vf products = {};
    for (int j = 0; j < width; j += W) {
        const vf weight = load(weights + j) * factor;
        store(weights + j, weight);
        // The weight is tested because past the keys that are seen the other may be anything.
        products += weight == vf{} ? vf{} : weight * load(dscores + j);
    }
    const float delta = sum(products);
    for (int j = 0; j < width; j += W) {
        const vf weight = load(weights + j);
        store(dscores + j, weight == vf{} ? vf{} : weight * (load(dscores + j) - delta) * scale);
    }
    for (int j = width; j < limit; j += W) {
        store(weights + j, vf{});
        store(dscores + j, vf{});
    }
}

static void block_gradients_of_queries(const BlockRun& run, int64_t group, int64_t first, const BlockKeys& block,
                                       const BlockGradients& g) {
    const BlockProblem& p = run.problem;
    const BlockShape& s = block.s;
    const Rows q = run.queries(p.q, group, s.dim), grad = run.queries(p.grad, group, s.value_dim);
    const Rows dq = run.queries(p.dq, group, s.dim);
    const int ldp = block.pitch_of;
    bool absent[48];
    for (int at = 0; at < block.count; at += g.tile) {
        const int rows = int(least(g.tile, block.count - at)), limit = p.is_causal ? at + rows : block.count;
        load_rows(q, first + at, rows, nullptr, nullptr, g.queries, s.ld);
        load_rows(grad, first + at, rows, nullptr, nullptr, g.grads, s.le);
        find_absent(rows, s.e, g.grads, s.le, absent);
        for (int r = 0; r < rows; ++r)
            if (absent[r]) fill_row(g.queries + int64_t(r) * s.ld, s.d, 0);

        const int64_t ahead = first + at + block.count;
        Fetch next(least(ahead, run.last), least(ahead + rows, run.last), blocks(rows, padded(limit)));
        product<ROWS, OVERWRITE>(rows, padded(limit), s.dim, g.queries, s.ld, block.keys_t, ldp, g.weights, ldp,
                                 next.read(q).read(grad).read(run.k).read(run.v));
        product<ROWS, OVERWRITE>(rows, padded(limit), s.value_dim, g.grads, s.le, g.values_t, ldp, g.dscores, ldp);
        for (int r = 0; r < rows; ++r) {
            const int seen = p.is_causal ? at + r + 1 : block.count;
            score_gradients(g.weights + int64_t(r) * ldp, g.dscores + int64_t(r) * ldp, seen, limit, float(p.scale), block);
        }
        product<ROWS, OVERWRITE>(rows, s.d, limit, g.dscores, ldp, block.keys, s.ld, g.dq, s.ld);
        store_rows(dq, first + at, rows, g.dq, s.ld);
        product<COLUMNS, ADD>(limit, s.e, rows, g.weights, ldp, g.grads, s.le, g.dv, s.le);
        product<COLUMNS, ADD>(limit, s.d, rows, g.dscores, ldp, g.queries, s.ld, g.dk, s.ld);
    }
}

static void write_block_key_gradients(const BlockRun& run, int64_t first, int count, const BlockShape& s, float* dk, float* dv) {
    for (int j = 0; j < count; ++j)
        if (!run.mask.counts(first + j)) {
            fill_row(dk + int64_t(j) * s.ld, s.d, 0);
            fill_row(dv + int64_t(j) * s.le, s.e, 0);
        }
    store_rows(run.keys(run.problem.dk, s.dim), first, count, dk, s.ld);
    store_rows(run.keys(run.problem.dv, s.value_dim), first, count, dv, s.le);
}

static void block_backward_run(const BlockRun& run) {
    const BlockProblem& p = run.problem;
    BlockKeys block(p, run.longest());
    const BlockShape& s = block.s;
    const BlockGradients g(s, block);
    if (run.zeros > 0) {
        Buffer zeros(s.d > s.e ? s.d : s.e);
        fill_row(zeros, s.d > s.e ? s.d : s.e, 0);
        store_zero_rows(run.keys(p.dk, s.dim), 0, run.zeros, zeros);
        store_zero_rows(run.keys(p.dv, s.value_dim), 0, run.zeros, zeros);
        for (int64_t i = 0; i < run.groups; ++i) store_zero_rows(run.queries(p.dq, i, s.dim), 0, run.zeros, zeros);
    }
    for (int64_t at = run.first; at < run.last; at += p.block_size) {
        const int count = int(least(p.block_size, run.last - at));
        block.load(run, at, count, true);
        for (int j = count; j < padded(count); ++j) fill_row(block.values + int64_t(j) * s.le, s.e, 0);
        transpose(padded(count), s.value_dim, block.values, s.le, g.values_t, block.pitch_of);
        for (int j = 0; j < count; ++j) {
            fill_row(g.dk + int64_t(j) * s.ld, s.d, 0);
            fill_row(g.dv + int64_t(j) * s.le, s.e, 0);
        }
        for (int64_t i = 0; i < run.groups; ++i) block_gradients_of_queries(run, i, at, block, g);
        write_block_key_gradients(run, at, count, s, g.dk, g.dv);
    }
}

static void all_blocks_backward(const BlockProblem& p) {
    const BlockPlan plan(p);
    parallel(p.threads, plan.runs(), [&](int64_t i) { block_backward_run(plan.run(i)); });
}

}  // namespace LLN_ISA
