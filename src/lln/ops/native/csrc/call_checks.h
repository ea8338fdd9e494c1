// What several calls have in common: their tensors, looked at together, and how a tensor becomes the kernel's.
#pragma once
#include "problem.h"
#include "view_checks.h"

namespace checking {

// Where there is nothing to step to, a stride may be any number, and must not be multiplied.
inline int64_t stride(const View& x, int i) { return Sizes(x).is_empty() || x.size[i] == 1 ? i == 3 : x.stride[i]; }
inline int64_t mask_stride(const View& x, int i) { return is_given(x) ? stride(x, i) : 0; }
inline Tensor tensor(const View& x) { return {x.data, stride(x, 0), stride(x, 1), stride(x, 2), stride(x, 3)}; }
template <class T>
inline T* pointer(const View& x) {
    return is_given(x) ? reinterpret_cast<T*>(x.data) : nullptr;
}
inline int64_t sequences(const View& cu_seqlens, const View& x) { return is_given(cu_seqlens) ? cu_seqlens.size[0] - 1 : x.size[0]; }

inline void check_queries_and_keys(Checks& is, const View& q, const View& k, const View& key_mask, const View& cu_seqlens) {
    is.input("q", q), is.input("k", k);
    if (!is.passed()) return;
    is.require(k.dtype == q.dtype, "q and k must have one dtype, got %s and %s", name_of(q.dtype), name_of(k.dtype));
    is.require(q.size[0] == k.size[0], "q and k must have one batch size, got %lld and %lld", (long long)q.size[0],
               (long long)k.size[0]);
    is.require(q.size[1] % k.size[1] == 0, "the %lld heads of q must be a multiple of the %lld heads of k", (long long)q.size[1],
               (long long)k.size[1]);
    is.require(q.size[3] == k.size[3], "q and k must have one head size, got %lld and %lld", (long long)q.size[3],
               (long long)k.size[3]);
    is.require(!is_given(cu_seqlens) || q.size[2] == k.size[2],
               "packed sequences need as many queries as keys; given %lld queries and %lld keys", (long long)q.size[2],
               (long long)k.size[2]);
    is.optional("key_mask", key_mask, BOOL, {k.size[0], k.size[2]});
    is.boundaries(cu_seqlens, k.size[0], k.size[2]);
}

inline void check_values(Checks& is, const View& k, const View& v) {
    if (!is.passed()) return;
    is.input("v", v);
    if (is.passed()) is.view("v", v, k.dtype, {k.size[0], k.size[1], k.size[2], v.size[3]});
}

inline void check_gradients(Checks& is, const View& q, const View& k, const View& v, const View& grad, const View& dq, const View& dk,
                     const View& dv) {
    is.view("grad", grad, q.dtype, {q.size[0], q.size[1], q.size[2], v.size[3]});
    is.result("dq", dq, q.dtype, Sizes(q));
    is.result("dk", dk, q.dtype, Sizes(k));
    is.result("dv", dv, q.dtype, Sizes(v));
}

inline void require_as_many_queries(Checks& is, bool needed, const char* whose, const View& q, const View& k) {
    is.require(!needed || q.size[2] == k.size[2], "%s as many queries as keys; given %lld queries and %lld keys", whose,
               (long long)q.size[2], (long long)k.size[2]);
}

}  // namespace checking
