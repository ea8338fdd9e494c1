// Which vectors of x86 may be used here: the processor has them, and the system keeps them when it switches threads. Asked by hand,
// since __builtin_cpu_supports needs a runtime library that not every compiler brings along.
#pragma once
#if defined(__x86_64__)
#include <cpuid.h>

struct Cpu {
    bool avx2 = false, avx512 = false, bfloat16 = false;
};

// static: each file has its own, compiled for the vectors it may use.
static inline Cpu cpu() {
    const auto has = [](unsigned word, auto... bits) { return (... && (word >> bits & 1)); };
    unsigned a, b, c, d, low, high;
    Cpu found;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !has(c, 12, 27, 29)) return found;  // FMA, XGETBV, F16C
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return found;
    found.avx2 = has(low, 1, 2) && has(b, 5);                                           // XMM, YMM
    found.avx512 = found.avx2 && has(low, 5, 6, 7) && has(b, 16, 17, 30, 31);  // masks, ZMM; F, DQ, BW, VL
    found.bfloat16 = found.avx512 && __get_cpuid_count(7, 1, &a, &b, &c, &d) && has(a, 5);  // products of pairs
    return found;
}
#endif
