/* Elementary functions of vectors, with relative errors of about 1e-7.
 *
 * The polynomials are near-minimax fits on the intervals that the comments name. Arguments must be finite and in the
 * domain of the function. Callers must keep NaN themselves, because `larger` and `smaller` replace it.
 */
#pragma once
#include "vectors.h"

#define LOG_2 0.693147181f
#define PI 3.14159265f
#define BITS_OF_ROOT_HALF 0x3f3504f3 /* sqrt(1/2) as a float */

/* log(1+f) for sqrt(1/2) <= 1+f <= sqrt(2) */
INLINE floats log1p_near(floats f) {
    floats q = f * 0.0898033402f - 0.144263823f;
    q = q * f + 0.14883195f;
    q = q * f - 0.165518565f;
    q = q * f + 0.199635334f;
    q = q * f - 0.250025803f;
    q = q * f + 0.333339316f;
    q = q * f - 0.499999832f;
    return f + f * f * q;
}

/* Splits x = 2^e (1+f), with 1+f as in log1p_near. x must be positive and not denormal. */
INLINE floats split(floats x, ints *e) {
    ints shifted = (ints)((words)x + (0x3f800000 - BITS_OF_ROOT_HALF)); /* of words, because a NaN would overflow */
    *e = (shifted >> 23) - 127;
    return (floats)((shifted & 0x7fffff) + BITS_OF_ROOT_HALF) - 1.0f;
}

INLINE floats log_of(floats x) {
    ints e;
    floats f = split(x, &e);
    return to_floats(e) * LOG_2 + log1p_near(f);
}

/* log(1+x) for x > -1, accurate also for small x */
INLINE floats log1p_of(floats x) {
    ints e;
    floats f = split(1.0f + x, &e);
    return to_floats(e) * LOG_2 + log1p_near(pick(e == 0, x, f));
}

/* Returns r with e^x = scale (1 + r). x is clamped to [-87, 87] to avoid overflow, and NaN becomes 87. */
INLINE floats exp_parts(floats x, floats *scale) {
    x = larger(smaller(x, splat(87.0f)), splat(-87.0f));
    floats n = x * 1.44269504f + 12582912.0f; /* adding 1.5 * 2^23 rounds to an integer, stored in the last bits */
    ints exponent = (ints)n << 23;
    n = n - 12582912.0f;
    floats r = (x - n * 0.693359375f) + n * 2.12194440e-4f; /* log 2 in two parts; |r| <= log(2)/2 */
    floats q = r * 0.00139504632f + 0.00836887547f;
    q = q * r + 0.0416662063f;
    q = q * r + 0.16666519f;
    q = q * r + 0.500000009f;
    *scale = (floats)(exponent + 0x3f800000);
    return r + r * r * q;
}
INLINE floats exp_of(floats x) {
    floats scale, e = exp_parts(x, &scale);
    return scale + scale * e;
}
INLINE floats expm1_of(floats x) {
    floats scale, e = exp_parts(x, &scale);
    return (scale - 1.0f) + scale * e;
}

/* sin(x pi/2) and cos(x pi/2) for |x| <= 1, z = x^2; the cosine has an absolute error of 1e-7 */
INLINE floats sine_of_quarter_turns(floats x, floats z) {
    floats s = z * 0.000151678532f - 0.0046741575f;
    s = s * z + 0.0796899269f;
    s = s * z - 0.645963761f;
    s = s * z + 1.57079632f;
    return x * s;
}
INLINE floats cosine_of_quarter_turns(floats z) {
    floats c = z * 0.000858190618f - 0.0208106275f;
    c = c * z + 0.253650745f;
    c = c * z - 1.23369821f;
    return c * z + 0.999999953f;
}

/* sqrt(a^2 + b^2) for a, b >= 0 that are not both 0, without overflow of the squares */
INLINE floats hypotenuse(floats a, floats b) {
    floats longer = larger(a, b), ratio = smaller(a, b) / longer;
    return longer * root(1.0f + ratio * ratio);
}
