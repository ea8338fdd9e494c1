// Gradients of near-far attention, everything recomputed.
//
// Causal: blocks of rows are taken from the last to the first. The moments of the keys before a block come from `Beyond`, counted
// from the end; what later blocks ask of far keys is carried along, and each block of keys is told when its turn comes.
// Otherwise blocks of rows are taken in order, what each asks of far keys is kept, and then every block of keys is told what the
// blocks of rows before and after it ask.
#pragma once
#include "near_far_forward.h"
#include "near_far_row_gradients.h"

namespace LLN_ISA {

// Items counted from the last.
struct FromTheEnd {
    BlockMoments& items;
    const int64_t last;
    Moments operator()(int64_t i) { return items(last - i); }
};

struct Asked {
    float* memory;
    const Shape& shape;
    FarGradients operator()(int64_t i) const { return FarGradients(memory + i * FarGradients::floats(shape), shape); }
};

struct BackwardPass {
    const NearFarHead& head;
    const Shape& s;
    const int64_t gap;
    const Centre centre;
    NearKeysOfBlock near;
    RowGradients rows;
    FarKeys far_keys;
    KeyGradients keys;
    Buffer key_parameters;
    ParameterSums of_keys;

    explicit BackwardPass(const NearFarHead& h)
        : head(h), s(h.shape), gap(least(h.near_far.neighbours, h.blocks)), centre(h), near(h), rows(h, near, centre),
          far_keys(h, centre), keys(h), key_parameters(ParameterSums::floats(s.d)), of_keys(key_parameters, s.d) {
        of_keys.clear(s.d);
    }

    void of_rows(int64_t b, const Far& far, const FarGradients& to) {
        near.load(b);
        rows(head.block(b), far, keys, to);
    }

    void causal() {
        Buffer asked_memory((gap + 1) * FarGradients::floats(s)), memory(RunningGradients::floats(s)), variance(s.d);
        const Asked asked = {asked_memory, s};
        const RunningGradients later(memory, s);
        later.clear(s);
        for (int64_t i = 0; i <= gap; ++i) clear(asked(i), s);
        BlockMoments of_block(head);
        FromTheEnd blocks = {of_block, head.blocks - 1};
        Beyond<Moments, RunningMoments, Shape, FromTheEnd> before(s, head.blocks, gap, blocks);
        for (int64_t b = head.blocks - 1; b >= 0; --b) {
            const FarGradients slot = asked(b % (gap + 1));  // of block b + gap + 1 until now
            merge(later, slot, s);
            of_rows(b, Far(before(head.blocks - 1 - b), variance, s), slot);
            far_keys.add(head.far_rows(b), later, keys, of_keys);
        }
    }

    void bidirectional() {
        Buffer asked_memory(head.blocks * FarGradients::floats(s));
        Asked asked = {asked_memory, s};
        for_each_block_with_far(head, [&](int64_t b, const Far& far) { of_rows(b, far, asked(b)); });
        Buffer memory(RunningGradients::floats(s)), both_memory(FarGradients::floats(s));
        const RunningGradients earlier(memory, s);
        const FarGradients both(both_memory, s);
        earlier.clear(s);
        Beyond<FarGradients, RunningGradients, Shape, Asked> later(s, head.blocks, gap, asked);
        for (int64_t b = 0; b < head.blocks; ++b) {
            if (b - gap - 1 >= 0) merge(earlier, asked(b - gap - 1), s);
            combine(earlier, later(b), both, s);
            far_keys.add(head.far_rows(b), both, keys, of_keys);
        }
    }

    // Where no key is far to anybody.
    void near_only() {
        Buffer memory(FarGradients::floats(s));
        const FarGradients nothing(memory, s);
        for_each_block_with_far(head, [&](int64_t b, const Far& far) { of_rows(b, far, nothing); });
    }

    void write() {
        keys.write();
        rows.write_parameters();
        write_key_parameters(head, of_keys);
    }
};

static void all_near_far_backward(const NearFarProblem& problem) {
    for_each_near_far_head(problem, [&](const NearFarHead& head) {
        Buffer zeros(head.shape.d);
        fill_row(zeros, head.shape.d, 0);
        for (int64_t g = 0; g < head.groups; ++g)
            store_zero_rows(head.queries(problem.dq, g, head.shape.dim), 0, head.origin, zeros);
        BackwardPass pass(head);
        if (!head.has_far()) pass.near_only();
        else if (problem.is_causal) pass.causal();
        else pass.bidirectional();
        pass.write();
    });
}

}  // namespace LLN_ISA
