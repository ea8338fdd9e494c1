#include "call_checks.h"
#include "checks.h"

using namespace checking;

const char* check(const NearFarCall& call, Pass pass, NearFarProblem& p) {
    Checks is;
    is.threads(call.threads);
    check_queries_and_keys(is, call.q, call.k, call.key_mask, call.cu_seqlens);
    check_values(is, call.k, call.v);
    is.require(call.block_size >= 1, "block_size must be at least 1, got %lld", (long long)call.block_size);
    is.require(call.neighbours >= 0, "neighbours must be at least 0, got %lld", (long long)call.neighbours);
    is.require(call.first_tokens >= 0, "first_tokens must be at least 0, got %lld", (long long)call.first_tokens);
    if (!is.passed()) return is.failure();
    require_as_many_queries(is, true, "near-far attention needs", call.q, call.k);
    const int64_t all = sequences(call.cu_seqlens, call.k), dim = call.k.size[3], value_dim = call.v.size[3];
    is.require(dim * value_dim <= MOST_PRODUCTS, "a state has up to %lld elements; given head size %lld and value size %lld",
               (long long)MOST_PRODUCTS, (long long)dim, (long long)value_dim);
    const Sizes of_queries = {all, call.q.size[1], dim}, of_keys = {all, call.k.size[1], dim};
    is.dense("alpha", call.alpha, FLOAT32, of_queries);
    is.dense("beta", call.beta, FLOAT32, of_keys);
    is.optional_dense("bias", call.bias, FLOAT32, of_queries);
    is.dense("weights", call.weights, FLOAT32, {call.q.size[0], call.q.size[1], 4});
    if (pass == FORWARD) is.result("out", call.out, call.q.dtype, {call.q.size[0], call.q.size[1], call.q.size[2], value_dim});
    else check_gradients(is, call.q, call.k, call.v, call.grad, call.dq, call.dk, call.dv);
    if (pass == BACKWARD && call.parameter_grads) {
        is.dense("dalpha", call.dalpha, FLOAT32, of_queries);
        is.dense("dbeta", call.dbeta, FLOAT32, of_keys);
        is.dense("dbias", call.dbias, FLOAT32, of_queries);
        is.dense("dweights", call.dweights, FLOAT32, {all, call.q.size[1], 4});
    }
    if (!is.passed()) return is.failure();

    const int64_t rows = call.k.size[2], longest = rows < 1 ? 1 : rows;
    p.threads = call.threads, p.dtype = call.q.dtype, p.is_causal = call.is_causal, p.parameter_grads = call.parameter_grads;
    p.sequences = all, p.query_heads = call.q.size[1], p.key_heads = call.k.size[1];
    p.query_rows = p.key_rows = rows, p.dim = dim, p.value_dim = value_dim;
    p.block_size = call.block_size > longest ? longest : call.block_size, p.scale = call.scale;
    p.neighbours = call.neighbours > longest ? longest : call.neighbours;
    p.first_tokens = call.first_tokens > longest ? longest : call.first_tokens;
    p.cu_seqlens = pointer<int64_t>(call.cu_seqlens), p.key_mask = pointer<uint8_t>(call.key_mask);
    p.mask_batch_stride = mask_stride(call.key_mask, 0), p.mask_row_stride = mask_stride(call.key_mask, 1);
    p.alpha = pointer<float>(call.alpha), p.beta = pointer<float>(call.beta), p.bias = pointer<float>(call.bias);
    p.weights = pointer<float>(call.weights);
    p.q = tensor(call.q), p.k = tensor(call.k), p.v = tensor(call.v);
    if (pass == FORWARD) p.out = tensor(call.out);
    else p.grad = tensor(call.grad), p.dq = tensor(call.dq), p.dk = tensor(call.dk), p.dv = tensor(call.dv);
    if (pass == FORWARD || !call.parameter_grads) return nullptr;
    p.dalpha = pointer<float>(call.dalpha), p.dbeta = pointer<float>(call.dbeta), p.dbias = pointer<float>(call.dbias);
    p.dweights = pointer<float>(call.dweights);
    return nullptr;
}

const char* check(const NearFarStepCall& call, NearFarStepProblem& p) {
    Checks is;
    is.threads(call.threads);
    check_queries_and_keys(is, call.q, call.k, call.key_mask, View{});
    check_values(is, call.k, call.v);
    is.input("first_k", call.first_k);
    if (!is.passed()) return is.failure();
    is.require(call.q.size[2] == 1, "a step is of one token, got %lld", (long long)call.q.size[2]);
    is.require(call.k.size[2] >= 1, "a window has at least one slot");
    const int64_t batch = call.q.size[0], heads = call.k.size[1], dim = call.k.size[3], value_dim = call.v.size[3];
    const int64_t window = call.k.size[2], first = call.first_k.size[2];
    is.require(dim * value_dim <= MOST_PRODUCTS, "a state has up to %lld elements; given head size %lld and value size %lld",
               (long long)MOST_PRODUCTS, (long long)dim, (long long)value_dim);
    is.require(window + first <= MOST_ROWS, "there may be up to %lld near keys, got %lld", (long long)MOST_ROWS, (long long)(window + first));
    is.view("first_k", call.first_k, call.q.dtype, {batch, heads, first, dim});
    is.view("first_v", call.first_v, call.q.dtype, {batch, heads, first, value_dim});
    is.optional("first_mask", call.first_mask, BOOL, {batch, first});
    is.dense("alpha", call.alpha, FLOAT32, {batch, call.q.size[1], dim});
    const Sizes of_keys = {batch, heads, dim}, of_products = {batch, heads, dim, value_dim};
    is.dense("beta", call.beta, FLOAT32, of_keys);
    is.optional_dense("bias", call.bias, FLOAT32, {batch, call.q.size[1], dim});
    is.dense("weights", call.weights, FLOAT32, {batch, call.q.size[1], 4});
    is.dense("total", call.total, FLOAT64, {batch});
    is.dense("key_mean", call.key_mean, FLOAT64, of_keys);
    is.dense("key_spread", call.key_spread, FLOAT64, of_keys);
    is.dense("value_mean", call.value_mean, FLOAT64, {batch, heads, value_dim});
    is.dense("product", call.product, FLOAT64, of_products);
    is.dense("maximum", call.maximum, FLOAT32, of_keys);
    is.dense("summed", call.summed, FLOAT64, of_products);
    is.dense("normaliser", call.normaliser, FLOAT64, of_keys);
    is.result("out", call.out, call.q.dtype, {batch, call.q.size[1], 1, value_dim});
    if (!is.passed()) return is.failure();

    p.threads = call.threads, p.dtype = call.q.dtype, p.sequences = batch;
    p.query_heads = call.q.size[1], p.key_heads = heads, p.query_rows = 1, p.key_rows = window, p.dim = dim, p.value_dim = value_dim;
    p.block_size = 1, p.first_tokens = first, p.scale = call.scale;
    p.key_mask = pointer<uint8_t>(call.key_mask);
    p.mask_batch_stride = mask_stride(call.key_mask, 0), p.mask_row_stride = mask_stride(call.key_mask, 1);
    p.first_counts = pointer<uint8_t>(call.first_mask);
    p.first_batch_stride = mask_stride(call.first_mask, 0), p.first_row_stride = mask_stride(call.first_mask, 1);
    p.alpha = pointer<float>(call.alpha), p.beta = pointer<float>(call.beta), p.bias = pointer<float>(call.bias);
    p.weights = pointer<float>(call.weights);
    p.q = tensor(call.q), p.k = tensor(call.k), p.v = tensor(call.v), p.out = tensor(call.out);
    p.first_k = tensor(call.first_k), p.first_v = tensor(call.first_v);
    p.total = pointer<double>(call.total), p.key_mean = pointer<double>(call.key_mean), p.key_spread = pointer<double>(call.key_spread);
    p.value_mean = pointer<double>(call.value_mean), p.product = pointer<double>(call.product);
    p.maximum = pointer<float>(call.maximum), p.exact_summed = pointer<double>(call.summed);
    p.exact_normaliser = pointer<double>(call.normaliser);
    return nullptr;
}
