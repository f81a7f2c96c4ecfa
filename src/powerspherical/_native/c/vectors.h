/* Vectors of LANES numbers: 16 with AVX-512, 8 with AVX2, 4 elsewhere.
 *
 * The types are those of GCC and clang (`vector_size`), whose operators work on all lanes at once. A comparison gives
 * a mask: -1 in a lane where it holds, 0 elsewhere. Only a handful of operations below need the processor's own
 * functions ("intrinsics").
 */
#pragma once
#include <math.h>
#include <stdint.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
#define LANES 16
#elif defined(__AVX2__)
#define LANES 8
#else
#define LANES 4
#endif

#define INLINE static inline __attribute__((always_inline))
#define OUTLINE static __attribute__((noinline)) /* for large functions that few rows need; keeps callers small */
#define ALIGNED __attribute__((aligned(64)))

typedef float floats __attribute__((vector_size(4 * LANES)));
typedef int32_t ints __attribute__((vector_size(4 * LANES)));
typedef uint32_t words __attribute__((vector_size(4 * LANES)));
typedef uint64_t longs __attribute__((vector_size(4 * LANES)));  /* half as many lanes */
typedef double doubles __attribute__((vector_size(4 * LANES)));  /* half as many lanes */

/* The same types with the alignment of a single number, for pointers into arrays. */
typedef float floats_anywhere __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t ints_anywhere __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef float half_floats_anywhere __attribute__((vector_size(2 * LANES), aligned(4), may_alias));
typedef double doubles_anywhere __attribute__((vector_size(4 * LANES), aligned(8), may_alias));

INLINE floats load(const float *from) { return *(const floats_anywhere *)from; }
INLINE void store(float *to, floats x) { *(floats_anywhere *)to = x; }
INLINE void store_doubles(double *to, doubles x) { *(doubles_anywhere *)to = x; }
INLINE doubles load_as_doubles(const float *from) {
    return __builtin_convertvector(*(const half_floats_anywhere *)from, doubles);
}
INLINE void store_as_floats(float *to, doubles x) {
    typedef float half_floats __attribute__((vector_size(2 * LANES)));
    *(half_floats_anywhere *)to = __builtin_convertvector(x, half_floats);
}

INLINE floats splat(float x) { return x - (floats){0}; }
INLINE words splat_word(uint32_t x) { return x - (words){0}; }
INLINE words lane_numbers(void) {
    words r;
    for (int i = 0; i < LANES; i++) r[i] = (uint32_t)i;
    return r;
}

/* a where the mask holds, b elsewhere */
INLINE floats pick(ints mask, floats a, floats b) { return (floats)((mask & (ints)a) | (~mask & (ints)b)); }
INLINE floats absolute(floats x) { return (floats)((ints)x & 0x7fffffff); }
/* Of a NaN and a number these return the second argument. */
INLINE floats larger(floats a, floats b) { return pick(a > b, a, b); }
INLINE floats smaller(floats a, floats b) { return pick(a < b, a, b); }
INLINE floats to_floats(ints x) { return __builtin_convertvector(x, floats); }

/* root, root_of_doubles: square roots. multiply_low: products of the low halves of 64-bit lanes, of which the high
 * halves are ignored. any: whether a mask holds anywhere. total: the sum of all lanes. load_some, store_some: the first
 * k lanes. */
#if defined(__AVX512F__)
INLINE floats root(floats x) { return _mm512_sqrt_ps(x); }
INLINE doubles root_of_doubles(doubles x) { return _mm512_sqrt_pd(x); }
INLINE longs multiply_low(longs a, longs b) { return (longs)_mm512_mul_epu32((__m512i)a, (__m512i)b); }
INLINE int any(ints mask) { return _mm512_test_epi32_mask((__m512i)mask, (__m512i)mask) != 0; }
INLINE float total(floats x) { return _mm512_reduce_add_ps(x); }
INLINE floats load_some(const float *from, int k) {
    return _mm512_maskz_loadu_ps((__mmask16)((1u << k) - 1), from);
}
INLINE void store_some(float *to, floats x, int k) { _mm512_mask_storeu_ps(to, (__mmask16)((1u << k) - 1), x); }
#elif defined(__AVX2__)
INLINE floats root(floats x) { return _mm256_sqrt_ps(x); }
INLINE doubles root_of_doubles(doubles x) { return _mm256_sqrt_pd(x); }
INLINE longs multiply_low(longs a, longs b) { return (longs)_mm256_mul_epu32((__m256i)a, (__m256i)b); }
INLINE int any(ints mask) { return _mm256_movemask_ps((__m256)mask) != 0; }
INLINE float total(floats x) {
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}
INLINE __m256i first_lanes(int k) { return (__m256i)((ints)lane_numbers() < k); }
INLINE floats load_some(const float *from, int k) { return _mm256_maskload_ps(from, first_lanes(k)); }
INLINE void store_some(float *to, floats x, int k) { _mm256_maskstore_ps(to, first_lanes(k), x); }
#else
#if defined(__x86_64__)
INLINE floats root(floats x) { return _mm_sqrt_ps(x); }
INLINE doubles root_of_doubles(doubles x) { return _mm_sqrt_pd(x); }
INLINE longs multiply_low(longs a, longs b) { return (longs)_mm_mul_epu32((__m128i)a, (__m128i)b); }
#else
INLINE floats root(floats x) {
    floats r;
    for (int i = 0; i < LANES; i++) r[i] = sqrtf(x[i]);
    return r;
}
INLINE doubles root_of_doubles(doubles x) { return (doubles){sqrt(x[0]), sqrt(x[1])}; }
INLINE longs multiply_low(longs a, longs b) { return (a & 0xffffffffu) * (b & 0xffffffffu); }
#endif
INLINE int any(ints mask) { return (mask[0] | mask[1] | mask[2] | mask[3]) != 0; }
INLINE float total(floats x) { return (x[0] + x[1]) + (x[2] + x[3]); }
INLINE floats load_some(const float *from, int k) {
    floats r = {0};
    memcpy(&r, from, sizeof(float) * (size_t)k);
    return r;
}
INLINE void store_some(float *to, floats x, int k) { memcpy(to, &x, sizeof(float) * (size_t)k); }
#endif

/* The number of items in a vector that starts at item i of `count`. */
INLINE int lanes_left(int64_t count, int64_t i) { return count - i < LANES ? (int)(count - i) : LANES; }
