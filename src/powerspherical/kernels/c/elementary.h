/* Elementary functions of vectors. The relative error is at most 2e-7 in single precision, and 5e-16 in double precision.
 *
 * NaN gives NaN. The argument of log_of must be positive and not denormal, that of log1p_of above -1; infinity counts
 * as 2^128 or 2^1024. exp_of and expm1_of clamp theirs to [-MOST, MOST].
 *
 * The polynomials are near-minimax fits on the intervals that the comments name: in double precision they interpolate at
 * the Chebyshev nodes.
 */
#pragma once
#include "vectors.h"

#define LOG_2 ((real)0.6931471805599453)

#if REAL_BITS == 64
#define MANTISSA 52 /* bits */
#define TWO_TO_MANTISSA 0x1p52
#define FRACTION UINT64_C(0xfffffffffffff)
#define BIAS 1023 /* of exponents */
#define ONE UINT64_C(0x3ff0000000000000)
#define ROOT_HALF UINT64_C(0x3fe6a09e667f3bcd) /* the bits of 1 and of sqrt(1/2) */
#else
#define MANTISSA 23
#define TWO_TO_MANTISSA 0x1p23f
#define FRACTION UINT32_C(0x7fffff)
#define BIAS 127
#define ONE UINT32_C(0x3f800000)
#define ROOT_HALF UINT32_C(0x3f3504f3)
#endif

/* Splits x = 2^e (1+f) with sqrt(1/2) <= 1+f <= sqrt(2). x must be positive and not denormal. */
INLINE reals split(reals x, reals *e) {
    bits shifted = (bits)x + (ONE - ROOT_HALF);
    /* An integer in the last bits of 2^MANTISSA is their sum. */
    *e = (reals)((shifted >> MANTISSA) | (bits)splat(TWO_TO_MANTISSA)) - (TWO_TO_MANTISSA + BIAS);
    return (reals)((shifted & FRACTION) + ROOT_HALF) - 1;
}

/* log(1+f) for f as above. In double precision, with s = f/(2+f) and z = s^2, it is 2 artanh(s) = f - s(f - r) with
 * r = 2z/3 + 2z^2/5 + ...; the polynomial is r/z on z <= 0.0295. */
INLINE reals log1p_near(reals f) {
#if REAL_BITS == 64
    reals s = f / (2 + f), z = s * s;
    return f - s * (f - z * POLYNOMIAL(z, 0.14616449685043406, 0.15331721600556042, 0.18182889125261723,
                                       0.2222221113479508, 0.28571428625975487, 0.39999999999899505,
                                       0.666666666666667));
#else
    return f + f * f * POLYNOMIAL(f, 0.0898033402f, -0.144263823f, 0.14883195f, -0.165518565f, 0.199635334f,
                                  -0.250025803f, 0.333339316f, -0.499999832f);
#endif
}

INLINE reals log_of(reals x) {
    reals e, f = split(x, &e);
    return pick(x < INFINITY, e * LOG_2 + log1p_near(f), x);
}

/* Only for e = 0 does the rounding error of 1+x matter. */
INLINE reals log1p_of(reals x) {
    reals e, f = split(1 + x, &e);
    return pick(x == x, e * LOG_2 + log1p_near(pick(e == 0, x, f)), x);
}

#if REAL_BITS == 64
#define MOST 708.0
#define LOG_2_PARTS 0.6931471803691238, 1.9082149292705877e-10 /* their sum is log 2; a multiple of the first is exact */
#define EXP_REST 2.510038549551032e-08, 2.7620088445409746e-07, 2.7557268459997064e-06, 2.4801521295954376e-05, \
                 0.00019841269863053618, 0.0013888888917213717, 0.008333333333330062, 0.04166666666662413,       \
                 0.16666666666666669, 0.5 /* (e^r - 1 - r)/r^2 on |r| <= log(2)/2 */
#else
#define MOST 87.0f
#define LOG_2_PARTS 0.693359375f, -2.12194440e-4f
#define EXP_REST 0.00139504632f, 0.00836887547f, 0.0416662063f, 0.16666519f, 0.500000009f
#endif

/* Returns r with e^x = scale (1 + r). */
INLINE reals exp_parts(reals x, reals *scale) {
    const real log_2[] = {LOG_2_PARTS}, rounds = (real)1.5 * TWO_TO_MANTISSA;
    x = at_least_of(at_most_of(x, MOST), -MOST);
    reals n = x * (real)1.4426950408889634 + rounds; /* rounds to an integer, stored in the last bits */
    bits exponent = (bits)n << MANTISSA;
    n -= rounds;
    reals r = (x - n * log_2[0]) - n * log_2[1];
    *scale = (reals)(exponent + ONE);
    return r + r * r * POLYNOMIAL(r, EXP_REST);
}
INLINE reals exp_of(reals x) {
    reals scale, e = exp_parts(x, &scale);
    return scale + scale * e;
}
INLINE reals expm1_of(reals x) {
    reals scale, e = exp_parts(x, &scale);
    return (scale - 1) + scale * e;
}

/* sqrt(a^2 + b^2) for a, b >= 0 that are not both 0, without overflow of the squares */
INLINE reals hypot_of(reals a, reals b) {
    masks first = a > b;
    reals longer = pick(first, a, b), ratio = pick(first, b, a) / longer;
    return longer * root_of(1 + ratio * ratio);
}

/* The formulas of one row */
typedef struct { reals first, second; } pair;
#include "formulas.h"
