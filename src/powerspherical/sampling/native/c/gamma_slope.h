/* dlog G/dalpha of a Gamma variable G of shape alpha, at a fixed probability: what Power Spherical gradients need. */
#pragma once
#include "elementary.h"

#define NODES 20   /* of the Gauss-Legendre rule on [0, 1] */
#define FALL 18.0f /* the integrands are followed until they have fallen by e^-FALL */
#define DISTANT 2.0f

static const float gauss_node[NODES] = {
    0.0034357004f, 0.0180140364f, 0.0438827859f, 0.0804415141f, 0.12683405f,  0.181973159f, 0.244566499f,
    0.313146955f,  0.386107074f,  0.461736739f,  0.538263261f,  0.613892926f, 0.686853045f, 0.755433501f,
    0.818026841f,  0.87316595f,   0.919558486f,  0.956117214f,  0.981985964f, 0.9965643f};
static const float gauss_weight[NODES] = {
    0.00880700357f, 0.0203007149f, 0.0313360242f, 0.0416383708f, 0.0509650599f, 0.0590972659f, 0.0658443192f,
    0.0710480546f,  0.0745864933f, 0.0763766936f, 0.0763766936f, 0.0745864933f, 0.0710480546f, 0.0658443192f,
    0.0590972659f,  0.0509650599f, 0.0416383708f, 0.0313360242f, 0.0203007149f, 0.00880700357f};

/* A law on a line with log-density L, seen from its point y. If a parameter changes L by the statistic T, y moves at a
 * fixed probability by
 *
 *     dy/dparameter = (a0 b1 - a1 b0)/(a0 + a1),
 *
 * where a and b are the integrals of e^(L'-L) and (T'-T) e^(L'-L) over the points y' below (0) and above (1) y. Both
 * products have the same sign and no normaliser is needed, so that float32 is enough.
 * For y = log G: L'-L = alpha s - G expm1(s) and T'-T = s, with s = y'-y. */

/* Adds the integrals over distances from y of start to start + length to a and b. */
INLINE void add_gamma_panel(floats shape, floats gamma, float side, floats start, floats length, floats *a, floats *b) {
    floats sum = splat(0.0f), moment = splat(0.0f);
    for (int i = 0; i < NODES; i++) {
        floats s = side * (start + length * gauss_node[i]);
        floats mass = exp_of(shape * s - gamma * expm1_of(s)) * gauss_weight[i];
        sum += mass;
        moment += mass * s;
    }
    *a += length * sum;
    *b += length * moment;
}

/* a and b on one side: +1 above, -1 below */
INLINE void gamma_side(floats shape, floats gamma, float side, floats *a, floats *b) {
    floats to_mode = larger(side * (log_of(shape) - log_of(gamma)), splat(0.0f)), e = expm1_of(side * to_mode);
    floats top = shape * (side * to_mode) - gamma * e, target = top - FALL;
    /* Where L reaches the target, as if it were a parabola from the mode, or from y if the mode is behind it. */
    floats slope = larger(-side * (shape - gamma * (1.0f + e)), splat(0.0f));
    floats curvature = larger(gamma * (1.0f + e), splat(1e-12f));
    floats window = to_mode + (2.0f * FALL) / (slope + root(slope * slope + (2.0f * FALL) * curvature));
    floats bound = side > 0 ? splat(1e30f) : (gamma - target) / shape; /* below, L' - L <= G + alpha s */
    window = smaller(window, bound);
    for (int i = 0; i < 3; i++) { /* Newton's method; L is concave, so that no step ends too short */
        floats s = side * window, m = expm1_of(s), falling = -side * (shape - gamma * (1.0f + m));
        floats next = window + (shape * s - gamma * m - target) / larger(falling, splat(1e-12f));
        window = smaller(pick((falling > 0.0f) & (next > to_mode), next, bound), bound);
    }
    /* Beyond a distant mode the integrand changes much faster than before it: two panels. */
    floats end = pick(to_mode > DISTANT, to_mode, window);
    *a = *b = splat(0.0f);
    add_gamma_panel(shape, gamma, side, splat(0.0f), end, a, b);
    if (any(end < window)) add_gamma_panel(shape, gamma, side, end, window - end, a, b);
}

/* By quadrature, for 1/2 <= shape <= EXPANDS; relative error 2e-5. */
OUTLINE floats gamma_slope_by_quadrature(floats shape, floats gamma) {
    floats a0, a1, b0, b1;
    gamma = larger(gamma, splat(1e-37f));
    gamma_side(shape, gamma, 1.0f, &a1, &b1);
    gamma_side(shape, gamma, -1.0f, &a0, &b0);
    return (a0 * b1 - a1 * b0) / (a0 + a1);
}

/* The expansion in 1/alpha of special/gamma_draw.py for shape >= EXPANDS, with h = G/alpha - 1, r = (h - log(1+h))/h^2,
 * p = (r - 1/2)/h:
 *
 *     alpha dlog G/dalpha = 1 - h r + (r + p)/alpha + rest/alpha^2.
 *
 * There `rest` is its value at h = 0, 1/60. Here it is fitted to exact values for shapes from 4 to 160, as a polynomial
 * of degree 3 in c = r - 1/2, linear in 1/alpha. Relative error 1.1e-4 from a shape of 4 on, 1.3e-5 from 8 on and
 * 1.5e-6 from 16 on. */
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
