/* Elementary functions of vectors. The relative error is at most 2e-7 in single precision, and 3e-16 in double precision.
 *
 * NaN gives NaN. The argument of log_of must be positive and not denormal, that of log1p_of above -1 and finite. exp_of
 * and expm1_of clamp theirs to [-87, 87] or [-708, 708].
 *
 * The polynomials are near-minimax fits on the intervals that the comments name: in double precision they interpolate at
 * the Chebyshev nodes.
 */
#pragma once
#include "vectors.h"

#define LOG_2 0.6931471805599453

/* ---- Single precision ---- */

#define BITS_OF_ROOT_HALF 0x3f3504f3 /* sqrt(1/2) as a float */

/* log(1+f) for sqrt(1/2) <= 1+f <= sqrt(2) */
INLINE floats log1p_near(floats f) {
    return f + f * f * POLYNOMIAL_OF_FLOATS(f, 0.0898033402f, -0.144263823f, 0.14883195f, -0.165518565f, 0.199635334f,
                                            -0.250025803f, 0.333339316f, -0.499999832f);
}

/* Splits x = 2^e (1+f), with 1+f as in log1p_near. x must be positive and not denormal. */
INLINE floats split(floats x, ints *e) {
    ints shifted = (ints)((words)x + (0x3f800000 - BITS_OF_ROOT_HALF)); /* of words, because a NaN would overflow */
    *e = (shifted >> 23) - 127;
    return (floats)((shifted & 0x7fffff) + BITS_OF_ROOT_HALF) - 1.0f;
}

INLINE floats floats_of(ints x) { return __builtin_convertvector(x, floats); }

INLINE floats log_of_floats(floats x) {
    ints e;
    floats f = split(x, &e);
    return pick_floats(x < INFINITY, floats_of(e) * (float)LOG_2 + log1p_near(f), x);
}

INLINE floats log1p_of_floats(floats x) {
    ints e;
    floats f = split(1.0f + x, &e);
    return pick_floats(x == x, floats_of(e) * (float)LOG_2 + log1p_near(pick_floats(e == 0, x, f)), x);
}

/* Returns r with e^x = scale (1 + r). */
INLINE floats exp_parts(floats x, floats *scale) {
    x = at_least_of_floats(at_most_of_floats(x, 87.0f), -87.0f);
    floats n = x * 1.44269504f + 12582912.0f; /* adding 1.5 * 2^23 rounds to an integer, stored in the last bits */
    ints exponent = (ints)n << 23;
    n = n - 12582912.0f;
    floats r = (x - n * 0.693359375f) + n * 2.12194440e-4f; /* log 2 in two parts; |r| <= log(2)/2 */
    *scale = (floats)(exponent + 0x3f800000);
    return r + r * r * POLYNOMIAL_OF_FLOATS(r, 0.00139504632f, 0.00836887547f, 0.0416662063f, 0.16666519f, 0.500000009f);
}
INLINE floats exp_of_floats(floats x) {
    floats scale, e = exp_parts(x, &scale);
    return scale + scale * e;
}
INLINE floats expm1_of_floats(floats x) {
    floats scale, e = exp_parts(x, &scale);
    return (scale - 1.0f) + scale * e;
}

/* ---- Double precision ---- */

#define BITS_OF_ROOT_HALF_DOUBLE UINT64_C(0x3fe6a09e667f3bcd) /* sqrt(1/2) as a double */

/* Splits u as above. Returns f and `shrink` = 2^-e. */
INLINE doubles split_doubles(doubles u, doubles *e, doubles *shrink) {
    long_words shifted = (long_words)u + (UINT64_C(0x3ff0000000000000) - BITS_OF_ROOT_HALF_DOUBLE);
    /* An integer below 2^52 in the last bits of 2^52 is their sum. */
    *e = (doubles)((shifted >> 52) | UINT64_C(0x4330000000000000)) - (0x1p52 + 1023.0);
    *shrink = (doubles)((UINT64_C(2046) - (shifted >> 52)) << 52);
    return (doubles)((shifted & UINT64_C(0xfffffffffffff)) + BITS_OF_ROOT_HALF_DOUBLE) - 1.0;
}

/* f - log(1+f). With s = f/(2+f) and z = s^2, log(1+f) = 2 artanh(s) = f - s(f - r), r = 2z/3 + 2z^2/5 + ...; the
 * polynomial is r/z on z <= 0.0295. */
INLINE doubles log_rest(doubles f) {
    doubles s = f / (2.0 + f), z = s * s;
    return s * (f - z * POLYNOMIAL_OF_DOUBLES(z, 0.14616449685043406, 0.15331721600556042, 0.18182889125261723,
                                              0.2222221113479508, 0.28571428625975487, 0.39999999999899505,
                                              0.666666666666667));
}

INLINE doubles log_of_normal(doubles u) {
    doubles e, shrink, f = split_doubles(u, &e, &shrink);
    return e * LOG_2 + (f - log_rest(f));
}
INLINE doubles log_of_doubles(doubles x) { return pick_doubles(x < INFINITY, log_of_normal(x), x); }

/* The error of u = 1+x, divided by u, corrects log u. 1-f is near enough to 1/(1+f). */
INLINE doubles log1p_of_doubles(doubles x) {
    doubles u = 1.0 + x, e, shrink, f = split_doubles(u, &e, &shrink), error = (x - (u - 1.0)) * shrink;
    return e * LOG_2 + (f + (error * (1.0 - f) - log_rest(f)));
}

/* As exp_parts; the polynomial is (e^r - 1 - r)/r^2 on |r| <= log(2)/2. */
INLINE doubles exp_parts_of_doubles(doubles x, doubles *scale) {
    x = at_least_of_doubles(at_most_of_doubles(x, 708.0), -708.0);
    doubles n = x * 1.4426950408889634 + 0x1.8p52;
    long_words exponent = (long_words)n << 52;
    n = n - 0x1.8p52;
    doubles r = (x - n * 0.6931471803691238) - n * 1.9082149292705877e-10;
    *scale = (doubles)(exponent + UINT64_C(0x3ff0000000000000));
    return r + r * r * POLYNOMIAL_OF_DOUBLES(r, 2.510038549551032e-08, 2.7620088445409746e-07, 2.7557268459997064e-06,
                                             2.4801521295954376e-05, 0.00019841269863053618, 0.0013888888917213717,
                                             0.008333333333330062, 0.04166666666662413, 0.16666666666666669, 0.5);
}
INLINE doubles exp_of_doubles(doubles x) {
    doubles scale, e = exp_parts_of_doubles(x, &scale);
    return scale + scale * e;
}
INLINE doubles expm1_of_doubles(doubles x) {
    doubles scale, e = exp_parts_of_doubles(x, &scale);
    return (scale - 1.0) + scale * e;
}

/* ---- Both ---- */

#define log_of(x) OF(log_of, x)(x)
#define log1p_of(x) OF(log1p_of, x)(x)
#define exp_of(x) OF(exp_of, x)(x)
#define expm1_of(x) OF(expm1_of, x)(x)

/* sqrt(a^2 + b^2) for a, b >= 0 that are not both 0, without overflow of the squares */
#define HYPOT(type, a, b)                                                                   \
    type longer = where_of((a) > (b), a, b), ratio = where_of((a) > (b), b, a) / longer;    \
    return longer * root_of(1 + ratio * ratio);
INLINE floats hypot_of_floats(floats a, floats b) { HYPOT(floats, a, b) }
INLINE doubles hypot_of_doubles(doubles a, doubles b) { HYPOT(doubles, a, b) }
#define hypot_of(a, b) OF(hypot_of, a)(a, b)
