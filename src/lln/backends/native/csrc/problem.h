// The arguments of one call, exactly as the Python layer lays them out: a flat array of 64-bit integers and addresses.
#pragma once
#include <cstdint>

enum Dtype : int64_t { FLOAT32 = 0, FLOAT16 = 1, BFLOAT16 = 2 };

// A (batch, heads, rows, features) tensor of any layout; strides count elements.
struct Tensor {
    char* data;
    int64_t batch_stride, head_stride, row_stride, feature_stride;
};

struct Problem {
    int64_t threads, dtype, is_causal, parameter_grads;
    int64_t sequences, query_heads, key_heads, query_rows, key_rows, dim, value_dim;
    const int64_t* cu_seqlens;  // (sequences + 1), or null: then a sequence is a sample of the batch
    const uint8_t* key_mask;    // (batch, key_rows), or null
    int64_t mask_batch_stride, mask_row_stride;
    const float *alpha, *beta, *bias;                                  // (sequences, heads, dim); bias may be null
    const float *start_maximum, *start_summed, *start_normaliser;      // null: no key before the first
    float *maximum, *summed, *normaliser;                              // forward: written; backward: read
    Tensor q, k, v, out;
    Tensor grad, dq, dk, dv;           // backward only
    float *dalpha, *dbeta, *dbias;     // backward only, (sequences, heads, dim)
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
    double squared_scale;
    const double* table;  // log2 r, (log2_length.points, log2_t.points)
    Grid log2_t, log2_length;
    double *alpha, *beta;  // (sequences, key heads)
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
};
