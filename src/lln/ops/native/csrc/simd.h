// Vectors of floats in the compiler's own notation, as wide as the instruction set this file is compiled for.
#pragma once
#include <cstdint>
#include <cstring>
#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#define INLINE static inline __attribute__((always_inline))

namespace LLN_ISA {

#if defined(__AVX512F__)
constexpr int W = 16;
#elif defined(__AVX2__)
constexpr int W = 8;
#else
constexpr int W = 4;  // NEON, SSE
#endif
constexpr int PANEL = 2 * W;  // the width of a block of a matrix product; every feature size is padded to it

typedef float vf __attribute__((vector_size(4 * W)));
typedef int32_t vi __attribute__((vector_size(4 * W)));
typedef uint32_t vu __attribute__((vector_size(4 * W)));
typedef uint16_t vh __attribute__((vector_size(2 * W)));

INLINE vf load(const float* p) {
    vf x;
    memcpy(&x, p, sizeof x);
    return x;
}
INLINE void store(float* p, vf x) { memcpy(p, &x, sizeof x); }
INLINE vf splat(float x) { return x - vf{}; }
INLINE vf vmax(vf a, vf b) { return a > b ? a : b; }  // of a NaN and b: b

// Shuffles take their lanes from a pack, not a loop, so that the compiler sees constants and picks single instructions.
#if defined(__clang__)
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, vi{__VA_ARGS__})
#endif
template <int... I> struct Lanes {};
template <int N, int... I> struct FirstLanes : FirstLanes<N - 1, N - 1, I...> {};
template <int... I> struct FirstLanes<0, I...> { typedef Lanes<I...> type; };
typedef FirstLanes<W>::type AllLanes;

template <int BY, int... I>
INLINE vf rotate(vf x, Lanes<I...>) {
    return SHUFFLE(x, x, (I + BY) % W...);
}
#if defined(__aarch64__)
INLINE float sum(vf x) { return vaddvq_f32((float32x4_t)x); }
INLINE bool any(vi x) { return vmaxvq_u32((uint32x4_t)x) != 0; }
#else
INLINE float sum(vf x) {
    if (W >= 16) x += rotate<W / 2 % 16>(x, AllLanes());
    if (W >= 8) x += rotate<W >= 8 ? 4 : 0>(x, AllLanes());
    x += rotate<2>(x, AllLanes());
    x += rotate<1>(x, AllLanes());
    return x[0];
}
INLINE bool any(vi x) {
    int64_t parts[sizeof(vi) / 8], all = 0;
    memcpy(parts, &x, sizeof x);
    for (int64_t part : parts) all |= part;
    return all != 0;
}
#endif
INLINE float max(vf x) {
    if (W >= 16) x = vmax(x, rotate<W / 2 % 16>(x, AllLanes()));
    if (W >= 8) x = vmax(x, rotate<W >= 8 ? 4 : 0>(x, AllLanes()));
    x = vmax(x, rotate<2>(x, AllLanes()));
    x = vmax(x, rotate<1>(x, AllLanes()));
    return x[0];
}

// exp(x) for x <= 88; below e^-86.5 (the smallest normal numbers) zero; NaN stays NaN. Within 1.5 + |x| / 20 units in the last
// place, the second term being a tenth of what rounding x to a float does.
// x = n ln 2 + r, exp(x) = 2^n p(r), with p the polynomial 1 + r + r^2 s(r) of least relative error (3e-9) on |r| <= ln 2 / 2,
// evaluated in pairs of terms because the length of the chain, not the number of operations, bounds the speed.
INLINE vf exp(vf x) {
    const vf round = splat(12582912.0f);
    vf n = x * 1.44269504f + round;  // adding 1.5 * 2^23 leaves the nearest integer in the low bits
    vu exponent;  // unsigned: for x out of range, which ends up 0 or NaN, the sum below may wrap around
    memcpy(&exponent, &n, sizeof n);
    n -= round;
    // Fused by name, the product is exact, and ln 2 itself is off by 2e-9 n only; else ln 2 is taken off in two parts.
#if defined(__AVX512F__)
    const vf r = (vf)_mm512_fnmadd_ps((__m512)n, _mm512_set1_ps(0.693147181f), (__m512)x);
#elif defined(__FMA__)
    const vf r = (vf)_mm256_fnmadd_ps((__m256)n, _mm256_set1_ps(0.693147181f), (__m256)x);
#elif defined(__aarch64__)
    const vf r = (vf)vfmsq_f32((float32x4_t)x, (float32x4_t)n, vdupq_n_f32(0.693147181f));
#else
    const vf r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
#endif
    const vf square = r * r;
    const vf low = r * 0.166665196f + 0.49999994f, high = r * 0.00836878084f + 0.0416683927f;
    const vf s = (square * 0.00138144672f + high) * square + low;
    const vf p = s * square + (r + 1.0f);
    vu bits;
    memcpy(&bits, &p, sizeof p);
    bits += exponent << 23;
    bits &= (vu) ~(x < splat(-86.5f));
    vf y;
    memcpy(&y, &bits, sizeof y);
    return y;
}

// One W x W block, turned by log2 W rounds of exchanges: in round S, bit S of the row number swaps with bit S of the lane.
template <int S, int... I>
INLINE void exchange(vf (&x)[W], Lanes<I...>) {
#pragma GCC unroll 16
    for (int i = 0; i < W; ++i) {
        if (i & S) continue;
        const vf a = x[i], b = x[i + S];
        x[i] = SHUFFLE(a, b, ((I & S) ? W + I - S : I)...);
        x[i + S] = SHUFFLE(a, b, ((I & S) ? W + I : I + S)...);
    }
}
INLINE void transpose_block(vf (&x)[W]) {
    if (W >= 16) exchange<W / 2 % 16>(x, AllLanes());
    if (W >= 8) exchange<W >= 8 ? 4 : 1>(x, AllLanes());
    exchange<2>(x, AllLanes());
    exchange<1>(x, AllLanes());
}

// ---- doubles, for sums over a whole sequence ----

constexpr int WD = W / 2;
typedef double vd __attribute__((vector_size(8 * WD)));

INLINE vd load(const double* p) {
    vd x;
    memcpy(&x, p, sizeof x);
    return x;
}
INLINE void store(double* p, vd x) { memcpy(p, &x, sizeof x); }
// By name where there is a name: compilers take the general conversion apart.
#if defined(__AVX512F__)
INLINE vd low_doubles(vf x) { return (vd)_mm512_cvtps_pd(_mm512_castps512_ps256((__m512)x)); }
INLINE vd high_doubles(vf x) { return (vd)_mm512_cvtps_pd(_mm512_extractf32x8_ps((__m512)x, 1)); }
#elif defined(__AVX2__)
INLINE vd low_doubles(vf x) { return (vd)_mm256_cvtps_pd(_mm256_castps256_ps128((__m256)x)); }
INLINE vd high_doubles(vf x) { return (vd)_mm256_cvtps_pd(_mm256_extractf128_ps((__m256)x, 1)); }
#elif defined(__aarch64__)
INLINE vd low_doubles(vf x) { return (vd)vcvt_f64_f32(vget_low_f32((float32x4_t)x)); }
INLINE vd high_doubles(vf x) { return (vd)vcvt_high_f64_f32((float32x4_t)x); }
#else
INLINE vd low_doubles(vf x) { return vd{x[0], x[1]}; }
INLINE vd high_doubles(vf x) { return vd{x[2], x[3]}; }
#endif

// ---- other number formats: converted on load and on store, never computed with ----

struct half_t { uint16_t bits; };
struct bfloat_t { uint16_t bits; };

INLINE float to_float(float x) { return x; }
INLINE float to_float(bfloat_t x) {
    const uint32_t bits = uint32_t(x.bits) << 16;
    float y;
    memcpy(&y, &bits, 4);
    return y;
}
INLINE float to_float(half_t x) {
    const uint32_t sign = uint32_t(x.bits & 0x8000) << 16, magnitude = x.bits & 0x7fff;
    uint32_t bits = (magnitude << 13) + (112u << 23);
    if (magnitude >= 0x7c00) bits += 112u << 23;  // infinity and NaN
    float y;
    if (magnitude < 0x0400) {
        y = float(magnitude) * 5.9604644775390625e-8f;  // subnormal: units of 2^-24
        memcpy(&bits, &y, 4);
    }
    bits |= sign;
    memcpy(&y, &bits, 4);
    return y;
}

INLINE void from_float(float x, float& y) { y = x; }
INLINE void from_float(float x, bfloat_t& y) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    y.bits = x != x ? uint16_t((bits >> 16) | 0x40) : uint16_t((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}
INLINE void from_float(float x, half_t& y) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    const uint16_t sign = uint16_t((bits >> 16) & 0x8000);
    bits &= 0x7fffffff;
    uint16_t magnitude;
    if (bits > 0x7f800000) magnitude = 0x7e00;
    else if (bits >= 0x477ff000) magnitude = 0x7c00;  // rounds to 65,536 or more: infinity
    else if (bits < 0x38800000) {                     // subnormal: let the addition round to units of 2^-24
        float y2;
        memcpy(&y2, &bits, 4);
        y2 += 0.5f;
        memcpy(&bits, &y2, 4);
        magnitude = uint16_t(bits - 0x3f000000);
    } else magnitude = uint16_t((bits - (112u << 23) + 0xfff + ((bits >> 13) & 1)) >> 13);
    y.bits = sign | magnitude;
}

INLINE vf load_as_float(const float* p) { return load(p); }
INLINE vf load_as_float(const bfloat_t* p) {
    vh x;
    memcpy(&x, p, sizeof x);
    const vu bits = __builtin_convertvector(x, vu) << 16;
    vf y;
    memcpy(&y, &bits, sizeof y);
    return y;
}
INLINE vf load_as_float(const half_t* p) {
#if defined(__AVX512F__)
    return (vf)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p));
#elif defined(__F16C__)
    return (vf)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p));
#elif defined(__aarch64__)
    return (vf)vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(&p->bits)));
#else
    vf y;
    for (int i = 0; i < W; ++i) y[i] = to_float(p[i]);
    return y;
#endif
}

INLINE void store_from_float(float* p, vf x) { store(p, x); }
INLINE void store_from_float(bfloat_t* p, vf x) {
    vu bits;
    memcpy(&bits, &x, sizeof x);
    const vu rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    const vu quiet = (bits >> 16) | 0x40;
    const vh y = __builtin_convertvector(x != x ? quiet : rounded, vh);
    memcpy(p, &y, sizeof y);
}
INLINE void store_from_float(half_t* p, vf x) {
#if defined(__AVX512F__)
    _mm256_storeu_si256((__m256i*)p, _mm512_cvtps_ph((__m512)x, _MM_FROUND_TO_NEAREST_INT));
#elif defined(__F16C__)
    _mm_storeu_si128((__m128i*)p, _mm256_cvtps_ph((__m256)x, _MM_FROUND_TO_NEAREST_INT));
#elif defined(__aarch64__)
    vst1_u16(&p->bits, vreinterpret_u16_f16(vcvt_f16_f32((float32x4_t)x)));
#else
    for (int i = 0; i < W; ++i) from_float(x[i], p[i]);
#endif
}

}  // namespace LLN_ISA
