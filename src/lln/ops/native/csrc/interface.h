// The C interface: what a caller fills in, and what `checks.h` looks at before anything is touched. interface.py mirrors it.
//
// A tensor crosses with everything that says which memory it is: where it starts, how many bytes there are from there to the end
// of its allocation, what is in it, and how it is laid out. Zeros all over stand for no tensor.
#pragma once
#include <cstdint>

#if defined(_WIN32)
#define EXPORT extern "C" __declspec(dllexport)
#else
#define EXPORT extern "C" __attribute__((visibility("default")))
#endif

enum Dtype : int64_t { NO_TENSOR = 0, FLOAT32 = 1, FLOAT16 = 2, BFLOAT16 = 3, FLOAT64 = 4, INT64 = 5, BOOL = 6 };

constexpr int MOST_DIMENSIONS = 4;

struct View {
    char* data;
    int64_t bytes;  // readable (and, for results, writable) from `data` on
    int64_t dtype;
    int64_t rank;
    int64_t size[MOST_DIMENSIONS];
    int64_t stride[MOST_DIMENSIONS];  // in elements, none negative
};

// B samples; S sequences: those that cu_seqlens (S + 1) marks in the one sample there is then, or the samples.
// bias, key_mask, cu_seqlens and start (all three) may be absent.
struct AttentionCall {
    int64_t isa, threads, is_causal, parameter_grads;
    View q, k, v;                                          // (B, Hq, Nq, D), (B, Hk, Nk, D), (B, Hk, Nk, Dv), any layout
    View alpha, beta, bias;                                // (S, Hq, D), (S, Hk, D), (S, Hq, D)
    View key_mask, cu_seqlens;                             // (B, Nk), (S + 1)
    View start_maximum, start_summed, start_normaliser;    // (S, Hk, D), (S, Hk, D, Dv), (S, Hk, D), the sums in float64
    View maximum, summed, normaliser;                      // forward: written, sums as in start, or float32; backward: read, float32
    View out;                                              // (B, Hq, Nq, Dv); forward only
    View grad, dq, dk, dv;                                 // backward only, as out, q, k and v
    View dalpha, dbeta, dbias;                             // backward with parameter_grads only, as alpha, beta and bias
    View dsummed, dnormaliser;                             // backward, read: gradients of the sums that forward left; may be absent
    View dstart_summed, dstart_normaliser;                 // backward, written: of those it started from; may be absent
};

struct BlockCall {
    int64_t isa, threads, is_causal, one_block, block_size;
    double scale;
    View q, k, v, key_mask, cu_seqlens;  // as in AttentionCall; Nq = Nk unless one_block
    View out;                            // forward only
    View grad, dq, dk, dv;               // backward only
};

// LLN+Diag: w_i LLN_i + (1 - w_i) blocks_i. Tensors are those of the two calls above, with Nq = Nk and no state to start from.
struct DiagCall {
    int64_t isa, threads, is_causal, parameter_grads, block_size;
    double scale;
    View q, k, v;
    View lln_q, lln_k;                 // what LLN sees in place of q and k, of another head size perhaps; both or neither
    View alpha, beta, bias;
    View weight;                       // w, (B, Hq, N or 1) in float32
    View key_mask, cu_seqlens;
    View maximum, summed, normaliser;  // forward: written; backward: read
    View out;                          // forward only
    View lln_out;                      // LLN's rows by themselves; forward: written, if wanted; backward: read for dweight
    View grad, dq, dk, dv;             // backward only
    View dlln_q, dlln_k;               // backward only, with lln_q and lln_k; then dq and dk are the blocks' alone
    View dalpha, dbeta, dbias;         // backward with parameter_grads only
    View dweight;                      // backward, written: (B, Hq, N); may be absent
};

// One more token of causal LLN+Diag; the open block has n keys, of which `filled` are there (all dense).
struct DiagStepCall {
    int64_t isa, threads;
    double scale;
    View q, k, v;                                        // (B, Hq, 1, D), (B, Hk, 1, D), (B, Hk, 1, Dv), any layout
    View lln_q, lln_k, alpha, beta, bias;                // as in DiagCall
    View weight;                                         // (B, Hq, 1)
    View key_mask;                                       // (B, 1); may be absent
    View start_maximum, start_summed, start_normaliser;  // as in AttentionCall, and needed
    View maximum, summed, normaliser, out;               // written
    View keys, values, counts, filled, started;          // (B, Hk, n, D), (B, Hk, n, Dv), (B, n), (B), (B)
    View keys_after, values_after, counts_after, filled_after, started_after;  // written, as those before
};

struct NearFarCall {
    int64_t isa, threads, is_causal, parameter_grads, block_size, neighbours, first_tokens;
    double scale;
    View q, k, v, alpha, beta, bias, key_mask, cu_seqlens;  // as in AttentionCall, with Nq = Nk
    View weights;                                           // (B, Hq, 4): near, LLN, mean, slope
    View out;                                               // forward only
    View grad, dq, dk, dv;                                  // backward only
    View dalpha, dbeta, dbias, dweights;                    // backward with parameter_grads only; dweights is (S, Hq, 4)
};

// One token of it, going on from a state: k and v are the window, (B, Hk, window, D) and (B, Hk, window, Dv), of which key_mask
// says what counts; first_k, first_v (B, Hk, first, .) and first_mask (B, first) are first tokens that have left the window.
struct NearFarStepCall {
    int64_t isa, threads;
    double scale;
    View q, k, v, key_mask, first_k, first_v, first_mask;
    View alpha, beta, bias, weights;
    View total, key_mean, key_spread, value_mean, product;  // (B), (B, Hk, D) twice, (B, Hk, Dv), (B, Hk, D, Dv), in float64
    View maximum, summed, normaliser;                       // (B, Hk, D) in float32, (B, Hk, D, Dv), (B, Hk, D) in float64
    View out;
};

struct MomentsCall {
    int64_t isa, threads;
    View x, key_mask, cu_seqlens;  // (B, H, N, D), (B, N), (S + 1)
    View count, total, squares;    // written: (S), (S, H, D), (S, H, D)
};

struct MatchCall {
    int64_t isa, threads, center_keys;
    double scale;
    double first_log2_t, step_log2_t, first_log2_length, step_log2_length;
    View q, k, query_mask, key_mask, cu_seqlens;  // (B, Hq, Nq, D), (B, Hk, Nk, D), (B, Nq), (B, Nk), (S + 1)
    View table;                                   // (lengths, temperatures), log2 r
    View alpha, beta;                             // written: (S, Hk)
    View entropies;                               // written: (S, Hk, 2); if it is there, matching is on a sample
};
