// LLN+Diag, head by head: what one branch has read and written is still in the caches when the other comes to it.
//   forward     LLN writes its rows; the blocks read each of them, mix, and write the output
//   backward    LLN from w_i dout_i, scaled as it is read; then the blocks from (1 - w_i) dout_i, which add to LLN's gradients
#pragma once
#include "bidirectional_backward.h"
#include "blocks_backward.h"
#include "causal_backward.h"

namespace LLN_ISA {

// Run by run: the blocks of some rows right after LLN of these rows.
static void bidirectional_diag_forward(const BlockPlan& plan, const Head& head, int64_t threads) {
    Buffer memory(Total::floats(head.shape));
    const Total total(memory, head.shape);
    head.read_start(total);
    accumulate_all_keys(head, threads, total);
    head.write_state(total);
    parallel(threads, plan.runs_of(head.sequence), [&](int64_t i) {
        const BlockRun run = plan.run(head.sequence, head.key_head, i);
        for (int64_t group = 0; group < head.groups; ++group)
            attend(head, group, run.first - run.zeros, run.last, total, group == 0);
        block_forward_run(run);
    });
}

// Where each row sees those before it, LLN of the whole head comes first.
static void causal_diag_forward(const BlockPlan& plan, const Head& head, int64_t threads) {
    causal_forward(head, threads);
    parallel(threads, plan.runs_of(head.sequence),
             [&](int64_t i) { block_forward_run(plan.run(head.sequence, head.key_head, i)); });
}

static void all_diag_forward(const DiagProblem& p) {
    const BlockPlan plan(p.near);
    for_each_head(p.far, [&](const Head& head, int64_t threads) {
        p.far.is_causal ? causal_diag_forward(plan, head, threads) : bidirectional_diag_forward(plan, head, threads);
    });
}

static void all_diag_backward(const DiagProblem& p) {
    const BlockPlan plan(p.near);
    for_each_head(p.far, [&](const Head& head, int64_t threads) {
        p.far.is_causal ? causal_backward(head, threads) : bidirectional_backward(head, threads);
        parallel(threads, plan.runs_of(head.sequence),
                 [&](int64_t i) { block_backward_run(plan.run(head.sequence, head.key_head, i)); });
    });
}

}  // namespace LLN_ISA
