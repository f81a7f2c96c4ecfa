/* dlog G/dalpha of a Gamma variable G of shape alpha, at a fixed probability. Power Spherical gradients need it.
 * docs/mathematics.md derives both methods. */
#pragma once
#include "elementary.h"

#define NODES 12   /* of the Gauss-Legendre rule on [0, 1] */
#define FALL 18.0f /* the quadrature ends where the integrand has fallen by a factor of about e^-FALL */

static const float gauss_node[NODES] = {
    0.00921968278f, 0.0479413718f, 0.115048662f, 0.206341028f, 0.316084236f, 0.437383294f,
    0.562616706f, 0.683915734f, 0.793658972f, 0.884951353f, 0.952058613f, 0.990780294f};
static const float gauss_weight[NODES] = {
    0.0235876683f, 0.0534696616f, 0.0800391659f, 0.101583712f, 0.116746269f, 0.124573521f,
    0.124573521f, 0.116746269f, 0.101583712f, 0.0800391659f, 0.0534696616f, 0.0235876683f};

/* psi(x) for x >= 1/2: Stirling's series at x+4, minus 1/x + ... + 1/(x+3) = (2x+3)(2q+2)/(q(q+2)) with q = x(x+3) */
INLINE floats digamma(floats x) {
    floats q = x * (x + 3.0f), inverse = 1.0f / (x + 4.0f), square = inverse * inverse;
    floats series = 1.0f / 12 - square * (1.0f / 120 - square * (1.0f / 252));
    floats steps = (2.0f * x + 3.0f) * (2.0f * q + 2.0f) / (q * (q + 2.0f));
    return log_of(x + 4.0f) - inverse * (0.5f + inverse * series) - steps;
}

/* By a quadrature over one tail, for 1/2 <= shape <= EXPANDS. Relative error 1e-6. With c = log G - psi(alpha),
 *
 *     dlog G/dalpha = int_0^oo (s + c) e^(alpha s - G expm1(s)) ds = -int_-oo^0 (s + c) e^(alpha s - G expm1(s)) ds.
 *
 * We use the first integral if c > 0 and otherwise the second. Then the integrand does not change its sign. */
OUTLINE floats gamma_slope_by_quadrature(floats shape, floats gamma) {
    gamma = larger(gamma, splat(1e-37f));
    floats score = log_of(gamma) - digamma(shape), sum = splat(0.0f);
    /* The end of the window, where the exponent is about -FALL. In the upper tail it is one step of the fixed-point
     * iteration s <- log1p((alpha s + FALL)/G), in the lower tail it follows from expm1(s) >= -1. The upper tail is used
     * only for G > 0.14, so the limit 0.1 changes nothing there. It keeps the unused result finite. */
    floats inverse = 1.0f / larger(gamma, splat(0.1f));
    floats above = log1p_of((shape * log1p_of(FALL * inverse) + FALL) * inverse);
    floats window = pick(score > 0.0f, above, -(gamma + FALL) / shape);
    for (int i = 0; i < NODES; i++) {
        floats s = window * gauss_node[i];
        sum += gauss_weight[i] * (s + score) * exp_of(shape * s - gamma * expm1_of(s));
    }
    return window * sum;
}

/* By an expansion in 1/alpha, for shape >= EXPANDS. With h = G/alpha - 1, r = (h - log(1+h))/h^2, p = (r - 1/2)/h,
 *
 *     alpha dlog G/dalpha = 1 - h r + (r + p)/alpha + rest/alpha^2.
 *
 * `rest` is fitted to exact values for shapes from 4 to 160, as a polynomial of degree 3 in c = r - 1/2, linear in
 * 1/alpha. Relative error 1.1e-4 from a shape of 4 on, 1.3e-5 from 8 on and 1.5e-6 from 16 on. */
#define EXPANDS 4.0f
INLINE floats gamma_slope_by_expansion(floats shape, floats gamma) {
    floats inverse = 1.0f / shape, h = (gamma - shape) * inverse;
    floats series = h * 0.125f - 1.0f / 7;
    series = series * h + 1.0f / 6;
    series = series * h - 0.2f;
    series = series * h + 0.25f;
    series = series * h - 1.0f / 3;
    floats over = 1.0f / pick(h == 0.0f, splat(1.0f), h);
    floats direct = ((h - log1p_of(larger(h, splat(-0.9999999f)))) * over * over - 0.5f) * over;
    floats p = pick(absolute(h) < 0.1f, series, direct), c = h * p, r = 0.5f + c;
    floats rest = 0.01665816f + c * (0.0002601254f + c * (c * 0.01380286f - 0.03988036f));
    rest += inverse * (c * (c * (0.04289951f - c * 0.02721489f) - 4.515679e-05f) - 0.01312838f);
    return inverse * (1.0f - h * r + inverse * (r + p + inverse * rest));
}

INLINE floats gamma_slope(floats shape, floats gamma) {
    floats result = gamma_slope_by_expansion(shape, gamma);
    ints small = shape < EXPANDS;
    if (!any(small)) return result;
    return pick(small, gamma_slope_by_quadrature(smaller(shape, splat(EXPANDS)), gamma), result);
}
