// Pairs of bfloat16, for CPUs that multiply them: a lane of 32 bits holds two numbers that follow each other along the depth of a
// product, the earlier one in its lower half. Products are exact, and sums are in float.
#pragma once
#include "cpu.h"
#include "simd.h"

namespace LLN_ISA {

#if defined(__AVX512F__)

constexpr bool HAS_PAIRS = true;
INLINE bool multiplies_pairs() {
    static const bool found = cpu().bfloat16;  // asked once: the question is slow in a virtual machine
    return found;
}

// By the instruction's name, so that only these few, and not all that is compiled here, need a CPU that has them.
INLINE vf add_products(vf sum, vf a, vf b) {
    asm("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
    return sum;
}
// Rounded to the nearest: those of `low` in the first half of the lanes of 16 bits, those of `high` in the second.
INLINE vf rounded(vf low, vf high) {
    vf both;
    asm("vcvtne2ps2bf16 %1, %2, %0" : "=v"(both) : "v"(low), "v"(high));
    return both;
}
INLINE vf paired(vf earlier, vf later) {
    const __m512i halves = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8,  //
                                            23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    return (vf)_mm512_permutexvar_epi16(halves, (__m512i)rounded(earlier, later));
}
INLINE vf earlier_of(vf pairs) { return (vf)_mm512_slli_epi32((__m512i)pairs, 16); }
INLINE vf later_of(vf pairs) { return (vf)_mm512_and_si512((__m512i)pairs, _mm512_set1_epi32(int(0xffff0000))); }

#else

constexpr bool HAS_PAIRS = false;
INLINE bool multiplies_pairs() { return false; }
INLINE vf add_products(vf sum, vf, vf) { return sum; }
INLINE vf rounded(vf low, vf) { return low; }
INLINE vf paired(vf earlier, vf) { return earlier; }
INLINE vf earlier_of(vf pairs) { return pairs; }
INLINE vf later_of(vf pairs) { return pairs; }

#endif

INLINE vi is_subnormal(vf x) {
    vu bits;
    memcpy(&bits, &x, sizeof x);
    return (bits & 0x7fffffffu) - 1u < 0x7fffffu - vu{};
}

// Row i of pairs from rows first(i) and first(i) + apart of a tile, or one of zeros from `rows` on. False if there is a subnormal
// number, which these instructions would take for 0: then nothing is to be multiplied in pairs.
template <class First>
static bool pair_rows(int count, int width, const float* tile, int64_t ld, First first, int apart, int rows, float* pairs) {
    vi tiny = {};
    for (int i = 0; i < count; ++i)
        for (int l = 0; l < width; l += W) {
            const int r = first(i);
            const vf earlier = load(tile + r * ld + l), later = r + apart < rows ? load(tile + (r + apart) * ld + l) : vf{};
            tiny |= is_subnormal(earlier) | is_subnormal(later);
            store(pairs + i * ld + l, paired(earlier, later));
        }
    return !any(tiny);
}

}  // namespace LLN_ISA
