// One key head of one sequence of near-far attention, cut into blocks.
//
// Rows are counted from the sequence's start; blocks, and first tokens, from `origin`, its first key that counts. The near keys of
// a block are two stretches of rows: the first tokens before its window, and the window itself with the first tokens after it.
#pragma once
#include "head.h"

namespace LLN_ISA {

struct Span {
    int64_t first, last;
    int64_t rows() const { return last > first ? last - first : 0; }
};

struct NearFarHead : Head {
    const NearFarProblem& near_far;
    int64_t origin, blocks;

    NearFarHead(const NearFarProblem& p, int64_t index) : Head(p, index), near_far(p) {
        origin = 0;
        while (origin < key_rows && !mask.counts(origin)) ++origin;
        blocks = (key_rows - origin + p.block_size - 1) / p.block_size;
    }

    Span block(int64_t b) const {
        const int64_t first = origin + b * near_far.block_size;
        return {first, least(first + near_far.block_size, key_rows)};
    }
    int64_t first_tokens_end() const { return least(key_rows, origin + least(key_rows, near_far.first_tokens)); }
    // The rows of a block whose keys are far to the rows that have it outside of their window.
    Span far_rows(int64_t b) const {
        const Span all = block(b);
        const int64_t end = first_tokens_end();
        return {end > all.first ? end : all.first, all.last};
    }
    Span before_window(int64_t b) const { return {origin, least(first_tokens_end(), window(b).first)}; }
    Span window(int64_t b) const {
        const int64_t w = least(near_far.neighbours, blocks);
        const int64_t last = near_far.is_causal ? b : least(b + w, blocks - 1);
        const int64_t end = block(last).last, first_tokens = first_tokens_end();
        return {block(b > w ? b - w : 0).first, !near_far.is_causal && first_tokens > end ? first_tokens : end};
    }
    // More near keys than any block has.
    int64_t most_near_keys() const {
        const int64_t reach = least(near_far.neighbours, blocks), wide = least(2 * reach + 1, blocks);
        return least(key_rows, wide * near_far.block_size + least(key_rows, near_far.first_tokens));
    }
    bool has_far() const { return blocks > least(near_far.neighbours, blocks) + 1; }
    const float* weights(int64_t group) const { return near_far.weights + (batch * near_far.query_heads + query_head(group)) * 4; }
};

// A head is worked on by one thread: which of them does not matter to any bit.
template <class Work>
static void for_each_near_far_head(const NearFarProblem& p, Work work) {
    parallel(p.threads, p.sequences * p.key_heads, [&](int64_t i) { work(NearFarHead(p, i)); });
}

}  // namespace LLN_ISA
