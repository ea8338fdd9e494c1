// Gradients of softmax attention inside blocks, weights recomputed. For a block, with P the weights, each row adding up to 1:
//   dP = dout V^T,  delta_i = sum_j P_ij dP_ij,  dS = scale P (dP - delta),   dv = P^T dout,  dq = dS K,  dk = dS^T Q
// delta is dout . out, taken from the weights so that the output need not be read and its rounding does no harm.
// Of a mixture w_i far_i + (1 - w_i) out_i, rows of P and dS count 1 - w_i times, and dw_i = dout_i . far_i - delta_i.
#pragma once
#include "blocks.h"
#include "gradients.h"

namespace LLN_ISA {

// The tiles of one query tile and the sums of one block, which are pairs if they are of more rows than fit into one chain.
struct BlockGradients {
    const int tile;
    const bool pairs;
    const int64_t dk_floats, dv_floats;
    Buffer values_t, queries, grads, weights, dscores, dq, dk, dv;
    BlockGradients(const BlockShape& s, const BlockKeys& block, int64_t groups)
        : tile(queries_at_once(block.pitch_of)), pairs(groups * block.most > DEEPEST), dk_floats(int64_t(block.most) * s.ld),
          dv_floats(int64_t(block.most) * s.le), values_t(int64_t(s.e) * block.pitch_of), queries(tile * s.ld),
          grads(tile * s.le), weights(int64_t(tile) * block.pitch_of), dscores(int64_t(tile) * block.pitch_of),
          dq(tile * s.ld), dk(pairs ? 2 * dk_floats : dk_floats), dv(pairs ? 2 * dv_floats : dv_floats) {}

    void clear(const BlockShape& s, int count) const {
        for (int64_t part = 0; part <= int64_t(pairs); ++part)
            for (int64_t j = 0; j < count; ++j) {
                fill_row(dk + part * dk_floats + j * s.ld, s.d, 0);
                fill_row(dv + part * dv_floats + j * s.le, s.e, 0);
            }
    }
    // What a tile of queries adds to the gradients of the first `keys` keys.
    void add(const BlockShape& s, int keys, int rows, int ldp) const {
        if (pairs) {
            add_product_to_pair(keys, s.e, rows, weights, ldp, grads, s.le, dv, s.le, dv_floats, rows);
            add_product_to_pair(keys, s.d, rows, dscores, ldp, queries, s.ld, dk, s.ld, dk_floats, rows);
        } else {
            product<COLUMNS, ADD>(keys, s.e, rows, weights, ldp, grads, s.le, dv, s.le);
            product<COLUMNS, ADD>(keys, s.d, rows, dscores, ldp, queries, s.ld, dk, s.ld);
        }
    }
};

// weights: from q . k to near P;  dscores: from dP to near dS. Both are zero past the keys that a row sees, up to `limit`.
// Returns delta.
static float score_gradients(float* weights, float* dscores, int seen, int limit, float scale, float near, const BlockKeys& block) {
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
        const vf weight = load(weights + j) * near;
        store(weights + j, weight);
        store(dscores + j, weight == vf{} ? vf{} : weight * (load(dscores + j) - delta) * scale);
    }
    for (int j = width; j < limit; j += W) {
        store(weights + j, vf{});
        store(dscores + j, vf{});
    }
    return delta;
}

static void block_gradients_of_queries(const BlockRun& run, int64_t group, int64_t first, const BlockKeys& block,
                                       const BlockGradients& g) {
    const BlockProblem& p = run.problem;
    const BlockShape& s = block.s;
    const Rows q = run.queries(p.q, group, s.dim), grad = run.queries(p.grad, group, s.value_dim);
    const Rows dq = run.queries(p.dq, group, s.dim), far = run.queries(p.far, group, s.value_dim);
    const Weights far_weights = run.weights(group);
    float* dweight = p.dweight == nullptr ? nullptr : run.weight_gradients(group) + first;
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
                                 next.read(q).read(grad).read(run.k).read(run.v).write(dq));
        product<ROWS, OVERWRITE>(rows, padded(limit), s.value_dim, g.grads, s.le, g.values_t, ldp, g.dscores, ldp);
        for (int r = 0; r < rows; ++r) {
            const int seen = p.is_causal ? at + r + 1 : block.count;
            const float near = far_weights.data == nullptr ? 1 : 1 - far_weights(first + at + r);
            float *weights = g.weights + int64_t(r) * ldp, *dscores = g.dscores + int64_t(r) * ldp;
            const float delta = score_gradients(weights, dscores, seen, limit, float(p.scale), near, block);
            if (dweight != nullptr) {
                dweight[at + r] = absent[r] ? 0 : dot(far, first + at + r, g.grads + int64_t(r) * s.le) - delta;
            }
            if (near != 0) continue;  // else the row has no part in any gradient, whatever it holds
            fill_row(weights, padded(limit), 0);
            fill_row(dscores, padded(limit), 0);
            fill_row(g.queries + int64_t(r) * s.ld, s.d, 0);
        }
        deep_product(rows, s.d, limit, g.dscores, ldp, block.keys, s.ld, g.dq, s.ld);
        if (p.add_to_dq_dk) add_to_rows(dq, first + at, rows, g.dq, s.ld);
        else store_rows(dq, first + at, rows, g.dq, s.ld);
        g.add(s, limit, rows, ldp);
    }
}

static void write_block_key_gradients(const BlockRun& run, int64_t first, int count, const BlockShape& s, float* dk, float* dv) {
    for (int j = 0; j < count; ++j)
        if (!run.mask.counts(first + j)) {
            fill_row(dk + int64_t(j) * s.ld, s.d, 0);
            fill_row(dv + int64_t(j) * s.le, s.e, 0);
        }
    const Rows to_dk = run.keys(run.problem.dk, s.dim), to_dv = run.keys(run.problem.dv, s.value_dim);
    if (run.problem.add_to_dq_dk) add_to_rows(to_dk, first, count, dk, s.ld);
    else store_rows(to_dk, first, count, dk, s.ld);
    if (run.problem.add_to_dv) add_to_rows(to_dv, first, count, dv, s.le);
    else store_rows(to_dv, first, count, dv, s.le);
}

// Rows that belong to no block, to whose gradients blocks add nothing.
static void write_gradients_outside_of_blocks(const BlockRun& run, const BlockShape& s, float* tile) {
    const BlockProblem& p = run.problem;
    fill_row(tile, s.d > s.e ? s.d : s.e, 0);
    if (!p.add_to_dq_dk) {
        store_zero_rows(run.keys(p.dk, s.dim), 0, run.zeros, tile);
        for (int64_t i = 0; i < run.groups; ++i) store_zero_rows(run.queries(p.dq, i, s.dim), 0, run.zeros, tile);
    }
    if (!p.add_to_dv) store_zero_rows(run.keys(p.dv, s.value_dim), 0, run.zeros, tile);
    for (int64_t i = 0; i < run.groups && p.dweight != nullptr; ++i) {
        const Rows grad = run.queries(p.grad, i, s.value_dim), far = run.queries(p.far, i, s.value_dim);
        for (int64_t r = 0; r < run.zeros; ++r) {
            bool absent;
            load_rows(grad, r, 1, nullptr, nullptr, tile, s.le);
            find_absent(1, s.e, tile, s.le, &absent);
            run.weight_gradients(i)[r] = absent ? 0 : dot(far, r, tile);
        }
    }
}

static void block_backward_run(const BlockRun& run) {
    const BlockProblem& p = run.problem;
    BlockKeys block(p, run.longest());
    const BlockShape& s = block.s;
    const BlockGradients g(s, block, run.groups);
    if (run.zeros > 0) {
        Buffer tile(s.d > s.e ? s.d : s.e);
        write_gradients_outside_of_blocks(run, s, tile);
    }
    for (int64_t at = run.first; at < run.last; at += p.block_size) {
        const int count = int(least(p.block_size, run.last - at));
        block.load(run, at, count, true);
        for (int j = count; j < padded(count); ++j) fill_row(block.values + int64_t(j) * s.le, s.e, 0);
        transpose(padded(count), s.value_dim, block.values, s.le, g.values_t, block.pitch_of);
        g.clear(s, count);
        for (int64_t i = 0; i < run.groups; ++i) block_gradients_of_queries(run, i, at, block, g);
        write_block_key_gradients(run, at, count, s, g.dk, g.dv);
    }
}

static void all_blocks_backward(const BlockProblem& p) {
    const BlockPlan plan(p);
    parallel(p.threads, plan.runs(), [&](int64_t i) { block_backward_run(plan.run(i)); });
}

}  // namespace LLN_ISA
