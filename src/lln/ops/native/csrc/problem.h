// One call as the kernels see it: sizes, addresses and strides that `checks.h` has found to fit each other and their memory.
#pragma once
#include "interface.h"

// A (batch, heads, rows, features) tensor of any layout; strides count elements.
struct Tensor {
    char* data;
    int64_t batch_stride, head_stride, row_stride, feature_stride;
};

// A number for each row of each head; strides count elements, and are 0 along what shares one.
struct RowWeights {
    const float* data;  // null: all are 1
    int64_t batch_stride, head_stride, row_stride;
};

struct Problem {
    int64_t threads, dtype, is_causal, parameter_grads;
    int64_t sequences, query_heads, key_heads, query_rows, key_rows, dim, value_dim;
    const int64_t* cu_seqlens;  // (sequences + 1), or null: then a sequence is a sample of the batch
    const uint8_t* key_mask;    // (batch, key_rows), or null
    int64_t mask_batch_stride, mask_row_stride;
    const float *alpha, *beta, *bias;                                  // (sequences, heads, dim); bias may be null
    const float* start_maximum;                                        // null: no key before the first
    const double *start_summed, *start_normaliser;
    float* maximum;                                                    // forward: written; backward: read
    void *summed, *normaliser;                                         // float; double where forward has a start
    Tensor q, k, v, out;
    Tensor grad, dq, dk, dv;           // backward only
    float *dalpha, *dbeta, *dbias;     // backward only, (sequences, heads, dim)
    const float *dsummed, *dnormaliser;          // backward only: of the state; null: zero
    float *dstart_summed, *dstart_normaliser;    // backward only: of the start; null: not wanted
    RowWeights weight;                           // backward only: factors of the rows of grad
};

struct MomentsProblem {
    int64_t threads, dtype, sequences, heads, rows, dim;
    const int64_t* cu_seqlens;
    const uint8_t* key_mask;
    int64_t mask_batch_stride, mask_row_stride;
    Tensor x;
    double *total, *squares;  // (sequences, heads, dim)
    int64_t* count;           // (sequences)
};

struct Grid {
    double first, step;
    int64_t points;
};

struct MatchProblem {
    MomentsProblem q, k;  // their results are not used
    int64_t center_keys;
    double scale;
    const double* table;  // log2 r, (log2_length.points, log2_t.points)
    Grid log2_t, log2_length;
    double *alpha, *beta;  // (sequences, key heads)
    double* entropies;     // (sequences, key heads, 2), softmax's and LLN's; null: match by the table alone
};

// Softmax attention inside blocks, with as many queries as keys; or, if `one_block`, of any number of queries to all keys.
struct BlockProblem {
    int64_t threads, dtype, is_causal, one_block, sequences, query_heads, key_heads, query_rows, rows, dim, value_dim, block_size;
    double scale;
    const int64_t* cu_seqlens;
    const uint8_t* key_mask;
    int64_t mask_batch_stride, mask_row_stride;
    Tensor q, k, v, out;
    Tensor grad, dq, dk, dv;  // backward only, which does not read out
    int64_t add_to_dq_dk, add_to_dv;
    Tensor far;               // what the blocks are mixed with, its data null if with nothing
    RowWeights weight;        // of far
    float* dweight;           // backward only, (batch, query_heads, query_rows); null: not wanted
};

// LLN+Diag: the blocks mix LLN's rows with their own as they write, and on the way back add to what LLN left.
struct DiagProblem {
    Problem far;
    BlockProblem near;
};

struct OpenBlock {
    char *keys, *values;   // (B, Hk, n, D), (B, Hk, n, Dv)
    uint8_t* counts;       // (B, n)
    int64_t* filled;       // (B)
    uint8_t* started;      // (B)
};

struct DiagStepProblem {
    Problem far;
    BlockProblem near;  // its keys and values are those of `after`; which of them count is for the step to say
    Tensor k, v;        // of the token
    OpenBlock before, after;
};

// Near exact, far by moments. Of what it has in common with LLN, the state is not used.
struct NearFarProblem : Problem {
    int64_t block_size, neighbours, first_tokens;
    double scale;
    const float* weights;  // (batch, query_heads, 4)
    float* dweights;       // backward only, (sequences, query_heads, 4)
};

// One token, going on from a state: k and v are the window, key_mask says which of its slots hold a key, and the first tokens that
// are near without being in it lie apart.
struct NearFarStepProblem : NearFarProblem {
    Tensor first_k, first_v;       // (batch, key_heads, first_tokens, features)
    const uint8_t* first_counts;   // (batch, first_tokens), or null: all of them
    int64_t first_batch_stride, first_row_stride;
    const double* total;           // (batch), of the far keys, as all that follows
    const double *key_mean, *key_spread, *value_mean, *product, *exact_summed, *exact_normaliser;
};
