// One token of near-far attention, for decoding: near are the keys of the window and the first tokens that have left it, far is
// what the state says of all others.
#pragma once
#include "near_far_forward.h"

namespace LLN_ISA {

class NearKeysOfStep : public NearKeys {
   public:
    NearKeysOfStep(const NearFarHead& head, const NearFarStepProblem& p)
        : NearKeys(head.shape, p.key_rows + p.first_tokens, false) {
        Mask first = {p.first_counts, p.first_row_stride};
        if (first.data != nullptr) first.data += head.batch * p.first_batch_stride;
        begin();
        gather(head.keys(p.first_k, p.dim), head.keys(p.first_v, p.value_dim), first, {0, p.first_tokens});
        gather(head.k, head.v, head.mask, {0, p.key_rows});
        end();
    }
};

static void to_floats(const double* from, int n, float* to) {
    for (int i = 0; i < n; ++i) to[i] = float(from[i]);
}

// What the state holds for a head.
static void read_moments(const NearFarHead& head, const NearFarStepProblem& p, const Moments& to) {
    const Shape& s = head.shape;
    const int64_t of_keys = head.key_index() * s.dim;
    clear(to, s);
    *to.count = p.total[head.batch];
    if (*to.count == 0) return;
    fill_row(to.c, s.d, 0);  // padding
    memcpy(to.c, p.maximum + of_keys, 4 * size_t(s.dim));
    memcpy(to.r, to.c, 4 * size_t(s.d));
    to_floats(p.exact_normaliser + of_keys, s.dim, to.z);
    to_floats(p.key_mean + of_keys, s.dim, to.mean);
    to_floats(p.key_spread + of_keys, s.dim, to.spread);
    to_floats(p.value_mean + head.key_index() * s.value_dim, s.value_dim, to.value_mean);
    for (int l = 0; l < s.dim; ++l) {
        to_floats(p.exact_summed + (of_keys + l) * s.value_dim, s.value_dim, to.s + int64_t(l) * s.le);
        to_floats(p.product + (of_keys + l) * s.value_dim, s.value_dim, to.p + int64_t(l) * s.le);
    }
}

static void all_near_far_steps(const NearFarStepProblem& problem) {
    parallel(problem.threads, problem.sequences * problem.key_heads, [&](int64_t i) {
        const NearFarHead head(problem, i);
        const Shape& s = head.shape;
        Buffer memory(Moments::floats(s)), variance(s.d), result(ROW_TILE * s.le);
        const Moments moments(memory, s);
        read_moments(head, problem, moments);
        const Far far(moments, variance, s);
        const NearKeysOfStep near(head, problem);
        RowTile tile(head, near);
        for (int64_t g = 0; g < head.groups; ++g) near_far_rows(head, g, {0, 1}, near, far, tile, result);
    });
}

}  // namespace LLN_ISA
