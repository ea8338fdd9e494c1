// How the blocks of a call are shared out: a run is a few consecutive blocks of one key head of one sequence, with the query heads
// that read it. Runs write to different rows, and each is computed by one thread in one order, so that threads change no bit.
#pragma once
#include "rows.h"

namespace LLN_ISA {

constexpr int64_t RUN_ROWS = 192;  // a run has as many blocks as fit into this many rows, but at least one

struct BlockShape {
    int dim, value_dim;  // as given
    int d, e;            // padded
    int ld, le;          // pitches of tiles with d and e columns
    explicit BlockShape(const BlockProblem& p)
        : dim(int(p.dim)), value_dim(int(p.value_dim)), d(padded(p.dim)), e(padded(p.value_dim)), ld(pitch(p.dim)),
          le(pitch(p.value_dim)) {}
};

struct BlockRun {
    const BlockProblem& problem;
    int64_t batch, start, key_head, groups;
    int64_t zeros;        // rows of the sequence, from its first, that belong to no block and to this run
    int64_t first, last;  // the rows of the sequence that are in the run's blocks
    Rows k, v;
    Mask mask;

    Rows keys(const Tensor& t, int64_t features) const { return Rows(t, problem.dtype, batch, key_head, start, features); }
    Rows queries(const Tensor& t, int64_t group, int64_t features) const {
        return Rows(t, problem.dtype, batch, key_head * groups + group, start, features);
    }
    Weights weights(int64_t group) const { return Weights(problem.weight, batch, key_head * groups + group, start); }
    // dw of the sequence's rows.
    float* weight_gradients(int64_t group) const {
        return problem.dweight + (batch * problem.query_heads + key_head * groups + group) * problem.query_rows + start;
    }
    int64_t longest() const { return least(problem.block_size, last - first); }
};

class BlockPlan {
   public:
    explicit BlockPlan(const BlockProblem& p) : p_(p), memory_(2 * (2 * p.sequences + 1)) {
        firsts_ = reinterpret_cast<int64_t*>(static_cast<float*>(memory_));
        ends_ = firsts_ + p.sequences;
        rows_per_run_ = p.block_size >= RUN_ROWS ? p.block_size : RUN_ROWS / p.block_size * p.block_size;
        ends_[0] = 0;
        for (int64_t s = 0; s < p.sequences; ++s) {
            const Mask mask = mask_of(s);
            int64_t first = 0;
            while (!p.one_block && first < rows(s) && !mask.counts(first)) ++first;
            firsts_[s] = first;
            ends_[s + 1] = ends_[s] + p.key_heads * runs_of(s);
        }
    }

    int64_t runs() const { return ends_[p_.sequences]; }

    BlockRun run(int64_t index) const {
        int64_t low = 0, high = p_.sequences;  // the sequence s with ends[s] <= index < ends[s + 1]
        while (high - low > 1) {
            const int64_t middle = (low + high) / 2;
            (ends_[middle] <= index ? low : high) = middle;
        }
        // All heads of some rows, then the next rows: where heads lie inside of rows, that keeps to a few pages of memory.
        const int64_t within = index - ends_[low];
        return run(low, within % p_.key_heads, within / p_.key_heads);
    }

    BlockRun run(int64_t s, int64_t key_head, int64_t number) const {
        BlockRun run = {p_, batch(s), start(s), key_head, p_.query_heads / p_.key_heads, 0, 0, 0, {}, {}, mask_of(s)};
        run.zeros = number == 0 ? firsts_[s] : 0;
        run.first = least(firsts_[s] + number * rows_per_run_, rows(s));
        run.last = rows(s) - run.first > rows_per_run_ ? run.first + rows_per_run_ : rows(s);
        run.k = run.keys(p_.k, p_.dim);
        run.v = run.keys(p_.v, p_.value_dim);
        return run;
    }

    // Of each key head of a sequence. At least one, which has the rows before the first block.
    int64_t runs_of(int64_t s) const {
        const int64_t blocked = rows(s) - firsts_[s];
        return blocked == 0 ? 1 : (blocked - 1) / rows_per_run_ + 1;
    }

   private:
    int64_t batch(int64_t s) const { return p_.cu_seqlens != nullptr ? 0 : s; }
    int64_t start(int64_t s) const { return p_.cu_seqlens != nullptr ? p_.cu_seqlens[s] : 0; }
    int64_t rows(int64_t s) const { return p_.cu_seqlens != nullptr ? p_.cu_seqlens[s + 1] - p_.cu_seqlens[s] : p_.rows; }
    Mask mask_of(int64_t s) const {
        Mask mask = {p_.key_mask, p_.mask_row_stride};
        if (p_.key_mask != nullptr) mask.data += batch(s) * p_.mask_batch_stride + start(s) * p_.mask_row_stride;
        return mask;
    }

    const BlockProblem& p_;
    Buffer memory_;
    int64_t *firsts_, *ends_, rows_per_run_;
};

}  // namespace LLN_ISA
