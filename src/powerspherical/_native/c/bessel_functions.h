/* The Bessel ratio A = I_{nu+1}/I_nu, nu = d/2-1, its derivatives in kappa, and KL(von Mises-Fisher || uniform).
 *
 * special/bessel.py explains the formulas. Debye's expansion gives them at the order nu + steps, and a recurrence leads
 * down to nu. Hankel's expansion replaces both for large kappa, if there are any steps.
 */
#pragma once
#include "call.h"
#include "gamma_functions.h"

/* The table has one row of coefficients per polynomial: those of Debye's expansion, then those of Hankel's. Rows are
 * padded with zeros to LONG_ROW numbers, and only DEBYE_CURVATURE has more than SHORT_ROW that are not zero. */
enum {
    DEBYE_RATIO, DEBYE_SLOPE, DEBYE_CURVATURE, DEBYE_ENTROPY,
    HANKEL_RATIO, HANKEL_SLOPE, HANKEL_CURVATURE, HANKEL_ENTROPY
};
#define LONG_ROW 20
#define SHORT_ROW 13

/* A, 1-A, A', A'' and KL; those that are not wanted are 0 */
typedef struct { floats ratio, complement, slope, curvature, entropy; } bessel_parts;
typedef struct { int slope, curvature, entropy; } wanted_parts;

INLINE floats bessel_polynomial(const functions_call *c, int row, floats x) {
    return polynomial(c->table + row * LONG_ROW, row == DEBYE_CURVATURE ? LONG_ROW : SHORT_ROW, 1, x);
}

/* At the order `top`, by Debye's expansion in p = 1/sqrt(1 + z^2), z = kappa/top */
INLINE bessel_parts by_debye(const functions_call *c, floats kappa, float top, wanted_parts wanted) {
    floats z = kappa / top;
    ints overflows = z > 1e9f; /* then sqrt(1 + z^2) = z */
    floats low = pick(overflows, splat(1.0f), z), s = pick(overflows, z, root(1.0f + low * low));
    floats p = 1.0f / s, u = 2.0f * p - 1.0f, zp = z * p, main = 1.0f / (1.0f + p);
    floats correction = p * bessel_polynomial(c, DEBYE_RATIO, u);
    bessel_parts parts = {.ratio = zp * (main + correction)};
    parts.complement = (1.0f + 1.0f / (s + z)) / (1.0f + s) - zp * correction;
    if (wanted.slope) parts.slope = p * p * (main + bessel_polynomial(c, DEBYE_SLOPE, u)) / top;
    if (wanted.curvature) {
        floats bend = main * (1.0f + main) + bessel_polynomial(c, DEBYE_CURVATURE, u);
        parts.curvature = -zp * p * p * p * bend / (top * top);
    }
    if (wanted.entropy) {
        floats q = z * (z / (1.0f + s)); /* s - 1 */
        parts.entropy = top * log1p_of(0.5f * q) + 0.5f * (log1p_of(q) - zp * zp);
        parts.entropy += q * p * bessel_polynomial(c, DEBYE_ENTROPY, u);
    }
    return parts;
}

/* From the order `top` down to top - steps, by I_{j-1} = I_{j+1} + (2j/kappa) I_j */
INLINE bessel_parts step_down(floats kappa, bessel_parts parts, float top, int64_t steps, wanted_parts wanted) {
    floats at_top = parts.ratio, complement_at_top = parts.complement;
    floats product = splat(0.0f); /* of 1 + kappa A_j/2j over the orders j, minus 1 */
    for (int64_t i = 0; i < steps; i++) {
        float twice = 2.0f * (top - (float)i), inverse_of_twice = 1.0f / twice;
        floats scaled = kappa * parts.ratio, inverse = 1.0f / (twice + scaled);
        if (wanted.entropy) product += (1.0f + product) * (scaled * inverse_of_twice);
        if (wanted.slope) {
            floats numerator = twice - kappa * (kappa * parts.slope), square = inverse * inverse;
            if (wanted.curvature) {
                floats bend = kappa * (2.0f * parts.slope + kappa * parts.curvature);
                floats growth = 2.0f * numerator * (parts.ratio + kappa * parts.slope);
                parts.curvature = -(bend + growth * inverse) * square;
            }
            parts.slope = numerator * square;
        }
        parts.ratio = kappa * inverse;
        floats rest = twice - kappa * parts.complement;
        parts.complement = rest / (rest + kappa);
    }
    if (wanted.entropy) {
        floats gain = pick(parts.ratio < 0.5f, parts.ratio - at_top, complement_at_top - parts.complement);
        parts.entropy += kappa * gain - log1p_of(product);
    }
    return parts;
}

/* For large kappa, by Hankel's expansion in x = 1/kappa; half = nu + 1/2 */
INLINE bessel_parts by_hankel(const functions_call *c, floats kappa, float half, float constant, wanted_parts wanted) {
    floats x = 1.0f / kappa, x2 = x * x;
    bessel_parts parts = {.complement = x * (half + x * bessel_polynomial(c, HANKEL_RATIO, x))};
    parts.ratio = 1.0f - parts.complement;
    if (wanted.slope) parts.slope = x2 * (half + x * bessel_polynomial(c, HANKEL_SLOPE, x));
    if (wanted.curvature) parts.curvature = -x2 * x * (2.0f * half + x * bessel_polynomial(c, HANKEL_CURVATURE, x));
    if (wanted.entropy) {
        floats logarithm = pick(kappa == INFINITY, kappa, log_of(kappa));
        parts.entropy = half * logarithm - constant + x * bessel_polynomial(c, HANKEL_ENTROPY, x);
    }
    return parts;
}

INLINE bessel_parts bessel_ratios(const functions_call *c, floats kappa, wanted_parts wanted) {
    /* the order of Debye's expansion, and the smallest kappa for Hankel's */
    float top = (float)c->numbers[0], start = (float)c->numbers[1];
    if (!c->steps) return by_debye(c, kappa, top, wanted);
    ints large = kappa >= start;
    floats low = pick(large, splat(start), kappa);
    bessel_parts parts = step_down(low, by_debye(c, low, top, wanted), top, c->steps, wanted);
    if (any(large)) {
        floats high = pick(large, kappa, splat(start));
        bessel_parts far = by_hankel(c, high, (float)c->numbers[2], (float)c->numbers[3], wanted);
        parts.ratio = pick(large, far.ratio, parts.ratio);
        parts.complement = pick(large, far.complement, parts.complement);
        parts.slope = pick(large, far.slope, parts.slope);
        parts.curvature = pick(large, far.curvature, parts.curvature);
        parts.entropy = pick(large, far.entropy, parts.entropy);
    }
    return parts;
}

static value_and_slope bessel_functions(const functions_call *c, floats kappa) {
    int64_t form = c->form;
    bessel_parts parts = bessel_ratios(c, kappa, (wanted_parts){
        .slope = form == BESSEL_SLOPE || (form <= RELATIVE_ENTROPY && c->slope),
        .curvature = form == BESSEL_SLOPE && c->slope,
        .entropy = form >= RELATIVE_ENTROPY,
    });
    switch (form) {
    case BESSEL_RATIO: return (value_and_slope){parts.ratio, parts.slope};
    case BESSEL_COMPLEMENT: return (value_and_slope){parts.complement, -parts.slope};
    case BESSEL_SLOPE: return (value_and_slope){parts.slope, parts.curvature};
    case RELATIVE_ENTROPY: return (value_and_slope){parts.entropy, kappa * parts.slope};
    case LOG_PARTITION: return (value_and_slope){kappa * parts.ratio - parts.entropy, parts.ratio};
    case SCALED_LOG_PARTITION: return (value_and_slope){-kappa * parts.complement - parts.entropy, -parts.complement};
    default: return (value_and_slope){parts.entropy, -parts.complement}; /* ENTROPY_AND_MEAN */
    }
}
