#include "checks.h"

#include <cmath>

#include "call_checks.h"

using namespace checking;

namespace {

constexpr int64_t MOST_SUMS = int64_t(1) << 40;  // so that the memory for them can be counted in 64 bits

RowWeights row_weights(const View& x) {
    return is_given(x) ? RowWeights{pointer<float>(x), stride(x, 0), stride(x, 1), stride(x, 2)} : RowWeights{};
}

void check_state_gradients(Checks& is, const AttentionCall& call, const Sizes& of_keys, const Sizes& of_products) {
    is.require(is_given(call.dsummed) == is_given(call.dnormaliser), "dsummed and dnormaliser go together");
    is.optional_dense("dsummed", call.dsummed, FLOAT32, of_products);
    is.optional_dense("dnormaliser", call.dnormaliser, FLOAT32, of_keys);
    is.require(is_given(call.dstart_summed) == is_given(call.dstart_normaliser), "dstart_summed and dstart_normaliser go together");
    is.require(is_given(call.start_maximum) || !is_given(call.dstart_summed), "without a state to start from it has no gradient");
    is.optional_dense("dstart_summed", call.dstart_summed, FLOAT32, of_products);
    is.optional_dense("dstart_normaliser", call.dstart_normaliser, FLOAT32, of_keys);
}

// One for each row, or for each head.
void check_row_weights(Checks& is, const View& weight, const View& q) {
    if (!is_given(weight)) return;
    const int64_t rows = weight.rank == 3 && weight.size[2] == q.size[2] ? q.size[2] : 1;
    is.view("weight", weight, FLOAT32, {q.size[0], q.size[1], rows});
}

// What the two branches of LLN+Diag have between them; each has been found to fit by itself.
void check_mixture(Checks& is, const DiagCall& call, Pass pass) {
    const Sizes of_out = {call.q.size[0], call.q.size[1], call.q.size[2], call.v.size[3]};
    is.require(is_given(call.weight), "weight is missing");
    check_row_weights(is, call.weight, call.q);
    if (is_given(call.lln_q)) is.view("lln_q", call.lln_q, call.q.dtype, {of_out.size[0], of_out.size[1], of_out.size[2], call.lln_q.size[3]});
    if (pass == FORWARD) {
        if (is_given(call.lln_out)) is.result("lln_out", call.lln_out, call.q.dtype, of_out);
        is.require(!is_given(call.lln_out) || !is.passed() || !share_memory(call.lln_out, call.out), "lln_out may not lie across out");
        return;
    }
    is.optional_dense("dweight", call.dweight, FLOAT32, {of_out.size[0], of_out.size[1], of_out.size[2]});
    is.require(!is_given(call.dweight) || is_given(call.lln_out), "dweight needs lln_out");
    if (is_given(call.dweight)) is.view("lln_out", call.lln_out, call.q.dtype, of_out);
}

}  // namespace

const char* check(const AttentionCall& call, Pass pass, Problem& p) {
    Checks is;
    is.threads(call.threads);
    check_queries_and_keys(is, call.q, call.k, call.key_mask, call.cu_seqlens);
    check_values(is, call.k, call.v);
    if (!is.passed()) return is.failure();
    require_as_many_queries(is, call.is_causal != 0, "causal attention needs", call.q, call.k);
    const int64_t all = sequences(call.cu_seqlens, call.k), dim = call.k.size[3], value_dim = call.v.size[3];
    is.require(dim * value_dim <= MOST_PRODUCTS, "a state has up to %lld elements; given head size %lld and value size %lld",
               (long long)MOST_PRODUCTS, (long long)dim, (long long)value_dim);
    const Sizes of_queries = {all, call.q.size[1], dim}, of_keys = {all, call.k.size[1], dim};
    const Sizes of_products = {all, call.k.size[1], dim, value_dim};

    is.dense("alpha", call.alpha, FLOAT32, of_queries);
    is.dense("beta", call.beta, FLOAT32, of_keys);
    is.optional_dense("bias", call.bias, FLOAT32, of_queries);
    const bool starts = is_given(call.start_maximum);
    is.require(starts == is_given(call.start_summed) && starts == is_given(call.start_normaliser),
               "a state to start from needs all of maximum, summed and normaliser");
    is.optional_dense("the starting state's maximum", call.start_maximum, FLOAT32, of_keys);
    is.optional_dense("the starting state's summed", call.start_summed, FLOAT64, of_products);
    is.optional_dense("the starting state's normaliser", call.start_normaliser, FLOAT64, of_keys);
    const int64_t sums = starts && pass == FORWARD ? FLOAT64 : FLOAT32;  // what goes on from sums in double leaves them so
    is.dense("the state's maximum", call.maximum, FLOAT32, of_keys);
    is.dense("the state's summed", call.summed, sums, of_products);
    is.dense("the state's normaliser", call.normaliser, sums, of_keys);
    if (pass == FORWARD)
        is.result("out", call.out, call.q.dtype, {call.q.size[0], call.q.size[1], call.q.size[2], value_dim});
    else
        check_gradients(is, call.q, call.k, call.v, call.grad, call.dq, call.dk, call.dv);
    if (pass == BACKWARD && call.parameter_grads) {
        is.dense("dalpha", call.dalpha, FLOAT32, of_queries);
        is.dense("dbeta", call.dbeta, FLOAT32, of_keys);
        is.dense("dbias", call.dbias, FLOAT32, of_queries);
    }
    if (pass == BACKWARD) check_state_gradients(is, call, of_keys, of_products);
    if (!is.passed()) return is.failure();

    p.threads = call.threads, p.dtype = call.q.dtype, p.is_causal = call.is_causal, p.parameter_grads = call.parameter_grads;
    p.sequences = all, p.query_heads = call.q.size[1], p.key_heads = call.k.size[1];
    p.query_rows = call.q.size[2], p.key_rows = call.k.size[2], p.dim = dim, p.value_dim = value_dim;
    p.cu_seqlens = pointer<int64_t>(call.cu_seqlens), p.key_mask = pointer<uint8_t>(call.key_mask);
    p.mask_batch_stride = mask_stride(call.key_mask, 0), p.mask_row_stride = mask_stride(call.key_mask, 1);
    p.alpha = pointer<float>(call.alpha), p.beta = pointer<float>(call.beta), p.bias = pointer<float>(call.bias);
    p.start_maximum = pointer<float>(call.start_maximum), p.start_summed = pointer<double>(call.start_summed);
    p.start_normaliser = pointer<double>(call.start_normaliser);
    p.maximum = pointer<float>(call.maximum), p.summed = pointer<char>(call.summed), p.normaliser = pointer<char>(call.normaliser);
    p.q = tensor(call.q), p.k = tensor(call.k), p.v = tensor(call.v);
    if (pass == FORWARD) p.out = tensor(call.out);
    else p.grad = tensor(call.grad), p.dq = tensor(call.dq), p.dk = tensor(call.dk), p.dv = tensor(call.dv);
    if (pass == FORWARD) return nullptr;
    if (call.parameter_grads)
        p.dalpha = pointer<float>(call.dalpha), p.dbeta = pointer<float>(call.dbeta), p.dbias = pointer<float>(call.dbias);
    p.dsummed = pointer<float>(call.dsummed), p.dnormaliser = pointer<float>(call.dnormaliser);
    p.dstart_summed = pointer<float>(call.dstart_summed), p.dstart_normaliser = pointer<float>(call.dstart_normaliser);
    return nullptr;
}

static MomentsProblem sums_over(const View& x, const View& mask, const View& cu_seqlens, int64_t threads) {
    return {threads, x.dtype, sequences(cu_seqlens, x), x.size[1], x.size[2], x.size[3], pointer<int64_t>(cu_seqlens),
            pointer<uint8_t>(mask), mask_stride(mask, 0), mask_stride(mask, 1), tensor(x), nullptr, nullptr, nullptr};
}

const char* check(const MomentsCall& call, MomentsProblem& p) {
    Checks is;
    is.threads(call.threads);
    is.input("x", call.x);
    if (!is.passed()) return is.failure();
    is.optional("key_mask", call.key_mask, BOOL, {call.x.size[0], call.x.size[2]});
    is.boundaries(call.cu_seqlens, call.x.size[0], call.x.size[2]);
    if (!is.passed()) return is.failure();
    const int64_t all = sequences(call.cu_seqlens, call.x);
    is.dense("count", call.count, INT64, {all});
    is.dense("total", call.total, FLOAT64, {all, call.x.size[1], call.x.size[3]});
    is.dense("squares", call.squares, FLOAT64, {all, call.x.size[1], call.x.size[3]});
    if (!is.passed()) return is.failure();
    p = sums_over(call.x, call.key_mask, call.cu_seqlens, call.threads);
    p.total = pointer<double>(call.total), p.squares = pointer<double>(call.squares), p.count = pointer<int64_t>(call.count);
    return nullptr;
}

const char* check(const MatchCall& call, MatchProblem& p) {
    Checks is;
    is.threads(call.threads);
    check_queries_and_keys(is, call.q, call.k, call.key_mask, call.cu_seqlens);
    if (!is.passed()) return is.failure();
    is.optional("query_mask", call.query_mask, BOOL, {call.q.size[0], call.q.size[2]});
    const int64_t all = sequences(call.cu_seqlens, call.k);
    int64_t sums;  // of q, which nothing else in memory is as large as
    is.require(!__builtin_mul_overflow(all, call.q.size[1], &sums) && !__builtin_mul_overflow(sums, call.q.size[3], &sums) &&
                   sums <= MOST_SUMS,
               "q may have up to %lld features in all heads and sequences", (long long)MOST_SUMS);
    is.require(call.table.rank == 2 && call.table.size[0] >= 2 && call.table.size[1] >= 2,
               "the table needs two dimensions of at least two points");
    is.dense("table", call.table, FLOAT64, {call.table.size[0], call.table.size[1]});
    for (const double x : {call.first_log2_t, call.first_log2_length}) is.require(std::isfinite(x), "the table's grids must be finite");
    for (const double x : {call.step_log2_t, call.step_log2_length})
        is.require(std::isfinite(x) && x > 0, "the table's grids need positive steps");
    is.dense("alpha", call.alpha, FLOAT64, {all, call.k.size[1]});
    is.dense("beta", call.beta, FLOAT64, {all, call.k.size[1]});
    if (is_given(call.entropies)) is.dense("entropies", call.entropies, FLOAT64, {all, call.k.size[1], 2});
    if (!is.passed()) return is.failure();
    p.q = sums_over(call.q, call.query_mask, call.cu_seqlens, call.threads);
    p.k = sums_over(call.k, call.key_mask, call.cu_seqlens, call.threads);
    p.center_keys = call.center_keys, p.scale = call.scale, p.table = pointer<double>(call.table);
    p.log2_t = {call.first_log2_t, call.step_log2_t, call.table.size[1]};
    p.log2_length = {call.first_log2_length, call.step_log2_length, call.table.size[0]};
    p.alpha = pointer<double>(call.alpha), p.beta = pointer<double>(call.beta);
    p.entropies = is_given(call.entropies) ? pointer<double>(call.entropies) : nullptr;
    return nullptr;
}

const char* check(const BlockCall& call, Pass pass, BlockProblem& p) {
    Checks is;
    is.threads(call.threads);
    check_queries_and_keys(is, call.q, call.k, call.key_mask, call.cu_seqlens);
    check_values(is, call.k, call.v);
    is.require(call.block_size >= 1, "block_size must be at least 1, got %lld", (long long)call.block_size);
    if (!is.passed()) return is.failure();
    require_as_many_queries(is, !call.one_block, "blocks need", call.q, call.k);
    if (call.one_block) {
        is.require(pass == FORWARD && !call.is_causal && !is_given(call.cu_seqlens), "one block has no causal or packed form, and no gradient");
        is.require(call.k.size[2] >= 1, "one block needs a key");
    }
    const Sizes of_out = {call.q.size[0], call.q.size[1], call.q.size[2], call.v.size[3]};
    if (pass == FORWARD) is.result("out", call.out, call.q.dtype, of_out);
    else check_gradients(is, call.q, call.k, call.v, call.grad, call.dq, call.dk, call.dv);
    if (!is.passed()) return is.failure();

    const int64_t rows = call.k.size[2], longest = rows < 1 ? 1 : rows;
    p.threads = call.threads, p.dtype = call.q.dtype, p.is_causal = call.is_causal, p.one_block = call.one_block;
    p.sequences = sequences(call.cu_seqlens, call.k), p.query_heads = call.q.size[1], p.key_heads = call.k.size[1];
    p.query_rows = call.q.size[2], p.rows = rows, p.dim = call.k.size[3], p.value_dim = call.v.size[3];
    p.block_size = call.one_block || call.block_size > longest ? longest : call.block_size, p.scale = call.scale;
    p.cu_seqlens = pointer<int64_t>(call.cu_seqlens), p.key_mask = pointer<uint8_t>(call.key_mask);
    p.mask_batch_stride = mask_stride(call.key_mask, 0), p.mask_row_stride = mask_stride(call.key_mask, 1);
    p.q = tensor(call.q), p.k = tensor(call.k), p.v = tensor(call.v);
    if (pass == FORWARD) p.out = tensor(call.out);
    else p.grad = tensor(call.grad), p.dq = tensor(call.dq), p.dk = tensor(call.dk), p.dv = tensor(call.dv);
    return nullptr;
}

const char* check(const DiagCall& call, Pass pass, DiagProblem& p) {
    const bool apart = is_given(call.lln_q);
    BlockCall near = {};
    near.isa = call.isa, near.threads = call.threads, near.is_causal = call.is_causal;
    near.block_size = call.block_size, near.scale = call.scale;
    near.q = call.q, near.k = call.k, near.v = call.v, near.key_mask = call.key_mask, near.cu_seqlens = call.cu_seqlens;
    near.out = call.out, near.grad = call.grad, near.dq = call.dq, near.dk = call.dk, near.dv = call.dv;
    if (const char* wrong = check(near, pass, p.near)) return wrong;

    AttentionCall far = {};
    far.isa = call.isa, far.threads = call.threads, far.is_causal = call.is_causal, far.parameter_grads = call.parameter_grads;
    far.q = apart ? call.lln_q : call.q, far.k = apart ? call.lln_k : call.k, far.v = call.v;
    far.alpha = call.alpha, far.beta = call.beta, far.bias = call.bias;
    far.key_mask = call.key_mask, far.cu_seqlens = call.cu_seqlens;
    far.maximum = call.maximum, far.summed = call.summed, far.normaliser = call.normaliser;
    far.out = is_given(call.lln_out) ? call.lln_out : call.out;  // where nobody wants LLN's rows by themselves
    far.grad = call.grad, far.dv = call.dv;
    far.dq = apart ? call.dlln_q : call.dq, far.dk = apart ? call.dlln_k : call.dk;
    far.dalpha = call.dalpha, far.dbeta = call.dbeta, far.dbias = call.dbias;
    if (const char* wrong = check(far, pass, p.far)) return wrong;

    Checks is;
    is.require(apart || !is_given(call.lln_k), "lln_q and lln_k go together");
    check_mixture(is, call, pass);
    if (!is.passed()) return is.failure();
    p.far.weight = p.near.weight = row_weights(call.weight);
    if (pass == FORWARD) p.near.far = tensor(far.out);
    else if (is_given(call.dweight)) p.near.far = tensor(call.lln_out), p.near.dweight = pointer<float>(call.dweight);
    p.near.add_to_dq_dk = !apart, p.near.add_to_dv = 1;
    return nullptr;
}

static void check_open_block(Checks& is, const View& keys, const View& values, const View& counts, const View& filled,
                             const View& started, int64_t dtype, const Sizes& of_keys, int64_t value_dim) {
    const int64_t batch = of_keys.size[0], size = of_keys.size[2];
    is.dense("keys of the block", keys, dtype, of_keys);
    is.dense("values of the block", values, dtype, {batch, of_keys.size[1], size, value_dim});
    is.dense("counts of the block", counts, BOOL, {batch, size});
    is.dense("filled of the block", filled, INT64, {batch});
    is.dense("started of the block", started, BOOL, {batch});
}

static OpenBlock open_block(const View& keys, const View& values, const View& counts, const View& filled, const View& started) {
    return {keys.data, values.data, pointer<uint8_t>(counts), pointer<int64_t>(filled), pointer<uint8_t>(started)};
}

const char* check(const DiagStepCall& call, DiagStepProblem& p) {
    const bool apart = is_given(call.lln_q);
    BlockCall near = {};
    near.isa = call.isa, near.threads = call.threads, near.scale = call.scale, near.one_block = 1, near.block_size = 1;
    near.q = call.q, near.k = call.keys_after, near.v = call.values_after, near.out = call.out;
    if (const char* wrong = check(near, FORWARD, p.near)) return wrong;

    AttentionCall far = {};
    far.isa = call.isa, far.threads = call.threads, far.is_causal = 1;
    far.q = apart ? call.lln_q : call.q, far.k = apart ? call.lln_k : call.k, far.v = call.v, far.key_mask = call.key_mask;
    far.alpha = call.alpha, far.beta = call.beta, far.bias = call.bias, far.out = call.out;
    far.start_maximum = call.start_maximum, far.start_summed = call.start_summed, far.start_normaliser = call.start_normaliser;
    far.maximum = call.maximum, far.summed = call.summed, far.normaliser = call.normaliser;
    if (const char* wrong = check(far, FORWARD, p.far)) return wrong;

    Checks is;
    const int64_t batch = call.q.size[0], heads = call.keys_after.size[1], dim = call.q.size[3], value_dim = call.v.size[3];
    is.require(is_given(call.start_maximum), "a step goes on from a state");
    is.require(apart || !is_given(call.lln_k), "lln_q and lln_k go together");
    is.require(call.q.size[2] == 1 && far.q.size[2] == 1, "a step takes one token, got %lld", (long long)call.q.size[2]);
    is.view("k", call.k, call.q.dtype, {batch, heads, 1, dim});
    is.view("v", call.v, call.q.dtype, {batch, heads, 1, value_dim});
    is.require(is_given(call.weight), "weight is missing");
    check_row_weights(is, call.weight, call.q);
    const Sizes of_keys = {batch, heads, call.keys_after.size[2], dim};
    check_open_block(is, call.keys_after, call.values_after, call.counts_after, call.filled_after, call.started_after, call.q.dtype,
                     of_keys, value_dim);
    check_open_block(is, call.keys, call.values, call.counts, call.filled, call.started, call.q.dtype, of_keys, value_dim);
    for (int64_t b = 0; b < batch && is.passed(); ++b) {
        const int64_t filled = pointer<int64_t>(call.filled)[b];
        is.require(filled >= 0 && filled < of_keys.size[2], "filled of the block must be from 0 to %lld, got %lld",
                   (long long)of_keys.size[2] - 1, (long long)filled);
    }
    if (!is.passed()) return is.failure();
    p.near.far = p.near.out, p.near.weight = row_weights(call.weight);
    p.k = tensor(call.k), p.v = tensor(call.v);
    p.before = open_block(call.keys, call.values, call.counts, call.filled, call.started);
    p.after = open_block(call.keys_after, call.values_after, call.counts_after, call.filled_after, call.started_after);
    return nullptr;
}
