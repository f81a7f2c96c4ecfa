/* Vectors of numbers, with the operators of GCC and clang (`vector_size`), which work on all lanes at once. A comparison
 * gives a mask: -1 in a lane where it holds, 0 elsewhere. Only a handful of operations need the processor's own functions
 * ("intrinsics").
 *
 * Each source is compiled for one REAL_BITS, 32 or 64: `real` is float or double, and `reals` is a vector of LANES of them
 * (16 or 8 with AVX-512, 8 or 4 with AVX2, 4 or 2 elsewhere). Sums in double precision use `doubles`.
 */
#pragma once
#include <math.h>
#include <stdint.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
#define BYTES 64
#elif defined(__AVX2__)
#define BYTES 32
#else
#define BYTES 16
#endif

#define INLINE static inline __attribute__((always_inline))
#define OUTLINE static __attribute__((noinline)) /* for large functions that few rows need; keeps callers small */
#define ALIGNED __attribute__((aligned(64)))
#define VECTOR_TYPE(element, name) typedef element name __attribute__((vector_size(BYTES)))

VECTOR_TYPE(float, floats);
VECTOR_TYPE(double, doubles);
VECTOR_TYPE(int32_t, ints);
VECTOR_TYPE(uint32_t, words);
VECTOR_TYPE(uint64_t, long_words);
#define DOUBLES (BYTES / 8) /* lanes of doubles */

/* `masks` are what comparisons give, and `bits` are unsigned integers of the size of a real. */
#if REAL_BITS == 64
typedef double real;
typedef doubles reals;
VECTOR_TYPE(__typeof__(((doubles){0} == (doubles){0})[0]), masks); /* int64_t, by the name that comparisons use */
typedef long_words bits;
#else
typedef float real;
typedef floats reals;
typedef ints masks;
typedef words bits;
#endif
#define LANES (BYTES * 8 / REAL_BITS)

/* Vectors in arrays, which have the alignment of a single number. */
typedef reals reals_anywhere __attribute__((aligned(REAL_BITS / 8), may_alias));
typedef doubles doubles_anywhere __attribute__((aligned(8), may_alias));

INLINE reals load(const real *from) { return *(const reals_anywhere *)from; }
INLINE void store(real *to, reals x) { *(reals_anywhere *)to = x; }

/* DOUBLES numbers of an array, in double precision. */
#if REAL_BITS == 64
INLINE doubles load_doubles(const real *from) { return load(from); }
INLINE void store_doubles(real *to, doubles x) { store(to, x); }
#else
typedef float half_floats __attribute__((vector_size(BYTES / 2)));
typedef half_floats half_floats_anywhere __attribute__((aligned(4), may_alias));
INLINE doubles load_doubles(const real *from) {
    return __builtin_convertvector(*(const half_floats_anywhere *)from, doubles);
}
INLINE void store_doubles(real *to, doubles x) {
    *(half_floats_anywhere *)to = __builtin_convertvector(x, half_floats);
}
#endif

/* A polynomial of x, with the highest coefficient first */
#define POLYNOMIAL(x, ...)                                                                     \
    ({                                                                                         \
        const real coefficients[] = {__VA_ARGS__};                                             \
        const int count = sizeof coefficients / sizeof *coefficients;                          \
        reals value = (x) * coefficients[0] + coefficients[1];                                 \
        _Pragma("GCC unroll 16") for (int i = 2; i < count; i++) value = value * (x) + coefficients[i]; \
        value;                                                                                 \
    })

INLINE reals splat(real x) { return x - (reals){0}; }

/* a where the mask holds, b elsewhere */
INLINE reals pick(masks mask, reals a, reals b) { return (reals)((mask & (masks)a) | (~mask & (masks)b)); }
#define where_of(mask, a, b) pick(mask, (a) - (reals){0}, (b) - (reals){0}) /* a and b may be numbers */

INLINE reals abs_of(reals x) { return (reals)((bits)x & ~(bits)splat((real)-0.0)); }

/* root_of: square roots. at_least_of, at_most_of: the larger and the smaller of a vector x and a number; NaN stays NaN.
 * multiply_low: products of the low halves of 64-bit lanes, of which the high halves are ignored. any: whether a mask
 * holds anywhere. total: the sum of all lanes. load_some, store_some: the first k lanes. */
#if defined(__AVX512F__)
#define X86(operation) _mm512_##operation
#elif defined(__AVX2__)
#define X86(operation) _mm256_##operation
#elif defined(__x86_64__)
#define X86(operation) _mm_##operation
#endif
#if REAL_BITS == 64
#define X86_REALS(operation) X86(operation##_pd)
#else
#define X86_REALS(operation) X86(operation##_ps)
#endif

#ifdef X86
VECTOR_TYPE(long long, integers); /* what the processor's functions call integers */
INLINE reals root_of(reals x) { return X86_REALS(sqrt)(x); }
/* Of a NaN and a number, the processor returns the second argument. */
INLINE reals at_least_of(reals x, real b) { return X86_REALS(max)(splat(b), x); }
INLINE reals at_most_of(reals x, real b) { return X86_REALS(min)(splat(b), x); }
INLINE long_words multiply_low(long_words a, long_words b) {
    return (long_words)X86(mul_epu32)((integers)a, (integers)b);
}
#else
INLINE reals root_of(reals x) {
    for (int i = 0; i < LANES; i++) x[i] = (real)sqrt(x[i]);
    return x;
}
INLINE reals at_least_of(reals x, real b) { return where_of(b > x, b, x); }
INLINE reals at_most_of(reals x, real b) { return where_of(b < x, b, x); }
INLINE long_words multiply_low(long_words a, long_words b) { return (a & 0xffffffffu) * (b & 0xffffffffu); }
#endif

#if defined(__AVX512F__)
INLINE int any_of_ints(ints mask) { return _mm512_test_epi32_mask((__m512i)mask, (__m512i)mask) != 0; }
INLINE real total(reals x) { return X86_REALS(reduce_add)(x); }
INLINE reals load_some(const real *from, int k) { return X86_REALS(maskz_loadu)((1u << k) - 1, from); }
INLINE void store_some(real *to, reals x, int k) { X86_REALS(mask_storeu)(to, (1u << k) - 1, x); }
#elif defined(__AVX2__)
INLINE int any_of_ints(ints mask) { return _mm256_movemask_ps((__m256)mask) != 0; }
INLINE real total(reals x) {
    x += X86_REALS(permute2f128)(x, x, 1); /* the halves swapped */
#if REAL_BITS == 32
    x += _mm256_permute_ps(x, 0x4e); /* the pairs swapped */
#endif
    return x[0] + x[1];
}
INLINE __m256i first_lanes(int k) {
    masks lanes;
    for (int i = 0; i < LANES; i++) lanes[i] = i;
    return (__m256i)(lanes < k);
}
INLINE reals load_some(const real *from, int k) { return X86_REALS(maskload)(from, first_lanes(k)); }
INLINE void store_some(real *to, reals x, int k) { X86_REALS(maskstore)(to, first_lanes(k), x); }
#else
INLINE int any_of_ints(ints mask) { return (mask[0] | mask[1] | mask[2] | mask[3]) != 0; }
INLINE real total(reals x) { return REAL_BITS == 64 ? x[0] + x[1] : (x[0] + x[1]) + (x[LANES - 2] + x[LANES - 1]); }
INLINE reals load_some(const real *from, int k) {
    reals r = {0};
    memcpy(&r, from, sizeof(real) * (size_t)k);
    return r;
}
INLINE void store_some(real *to, reals x, int k) { memcpy(to, &x, sizeof(real) * (size_t)k); }
#endif

#define any(mask) any_of_ints((ints)(mask))
/* The number of items in a vector that starts at item i of `count`. */
INLINE int lanes_left(int64_t count, int64_t i) { return count - i < LANES ? (int)(count - i) : LANES; }

/* The first `some` numbers of an array. */
INLINE reals load_up_to(const real *from, int some) { return some == LANES ? load(from) : load_some(from, some); }
INLINE void store_up_to(real *to, reals x, int some) {
    if (some == LANES) store(to, x);
    else store_some(to, x, some);
}
