/* The slope w = (dt/dkappa)/(1-t^2) of each row. docs/mathematics.md derives the formulas.
 *
 * von Mises-Fisher, and Power Spherical with d = 3: the derivative at a fixed probability of t.
 * Power Spherical: the derivative at a fixed S, dlog(G)/dalpha/2 with the Gamma variable G of the draw.
 * Spherical Cauchy: 1/(1+kappa), which is both.
 */
#pragma once
#include "cosines.h"
#include "gamma_slope.h"

/* Power Spherical, d = 3: w = -log((1+t)/2)/((1-t)(1+kappa)) */
INLINE floats power_spherical_slope_3(floats minus, floats plus, floats kappa) {
    ints near = minus < plus;
    floats close = log1p_of(-0.5f * pick(near, minus, splat(0.0f)));
    floats logarithm = pick(near, close, log_of(0.5f * larger(plus, splat(1e-37f))));
    floats ratio = pick(minus > 1e-30f, -logarithm / larger(minus, splat(1e-30f)), splat(0.5f));
    return ratio / (1.0f + kappa);
}

/* von Mises-Fisher, d = 3, with f(x) = (1 - e^-x)/x, a = kappa(1+t), b = kappa(1-t):
 * w = (f(a) - e^-a f(b))/(1 - e^(-2 kappa)). For small kappa, where that cancels, by its Taylor series in kappa. */
INLINE floats von_mises_fisher_slope_3(floats minus, floats plus, floats kappa) {
    floats a = kappa * larger(plus, splat(1e-30f)), b = kappa * larger(minus, splat(1e-30f));
    floats below = -expm1_of(-a), above = -expm1_of(-b);
    floats slope = (below / a - (1.0f - below) * (above / b)) / -expm1_of(-2.0f * kappa);
    floats t = 0.5f * (plus - minus), sine = minus * plus, k = kappa;
    floats series = sine * (3.0f - t * t) * (1.0f / 720) * k + t * (7.0f - 3.0f * t * t) * (1.0f / 360);
    series = 0.5f + k * (k * (k * series - sine * (1.0f / 24)) - t * (1.0f / 6));
    return pick(kappa < 0.25f, series, slope);
}

/* von Mises-Fisher for d >= 32 or kappa >= 40: three terms of a series in e = 1/R, R = sqrt(delta^2 + 4 kappa^2),
 * delta = d-1. Differentiating the cdf gives (1-t^2) w' + (kappa (1-t^2) - delta t) w = E(t) - t. With g = delta e,
 * u = 1+v = 2R/(R + delta + 2 kappa t) and y = gv, the solution that is regular where the bracket vanishes is
 *
 *     w = e u [1 + e u (p1 + e p2 + e^2 p3 + ...)]
 *     p1 = (1+g)(1 - g - y/2)
 *     p2 = (1+g){v[3/4 (1+g) y^2 + 1/2 (1+g)(7g-5) y + 1/2 (12g^3 - 5g^2 - 10g + 4)] + 1/2 (g-1)(9g^2 - g - 4)}
 *     p3 = -(1+g){v^2[15/8 (1+g)^2 y^3 + 5/4 (1+g)^2 (11g-7) y^2 + 1/2 (1+g)(85g^3 - 23g^2 - 70g + 26) y
 *                     + 3/4 (1+g)(95g^4 - 86g^3 - 53g^2 + 56g - 8)]
 *                 + v/8 (545g^5 - 296g^4 - 749g^3 + 376g^2 + 224g - 96) + 1/2 (g-1)(70g^4 - 13g^3 - 69g^2 + 8g + 12)}
 *
 * v can be as large as 4 kappa/delta, so the code uses ev and y instead. Relative error 1.7e-6. */
INLINE floats von_mises_fisher_slope_by_series(floats plus, floats kappa, float beta) {
    floats delta = splat(2.0f * beta), twice = 2.0f * kappa, r = hypotenuse(twice, delta);
    /* R + delta + 2 kappa t without cancellation: R - 2 kappa = delta^2/(R + 2 kappa) */
    floats denominator = delta + delta * (delta / (r + twice)) + twice * plus;
    floats e = 1.0f / r, g = delta * e, u = 2.0f * r * (1.0f / denominator);
    floats v = u - 1.0f, y = g * v, ev = e * v, one = 1.0f + g;
    floats p1 = 1.0f - g - 0.5f * y;
    floats p2 = 0.75f * one * y * y + 0.5f * one * (7.0f * g - 5.0f) * y;
    p2 = ev * (p2 + 0.5f * (((12.0f * g - 5.0f) * g - 10.0f) * g + 4.0f));
    p2 += 0.5f * e * (g - 1.0f) * ((9.0f * g - 1.0f) * g - 4.0f);
    floats p3 = one * one * y * y * (1.875f * y + 1.25f * (11.0f * g - 7.0f));
    p3 += 0.5f * one * (((85.0f * g - 23.0f) * g - 70.0f) * g + 26.0f) * y;
    p3 += 0.75f * one * ((((95.0f * g - 86.0f) * g - 53.0f) * g + 56.0f) * g - 8.0f);
    p3 *= ev * ev;
    p3 += 0.125f * e * ev * (((((545.0f * g - 296.0f) * g - 749.0f) * g + 376.0f) * g + 224.0f) * g - 96.0f);
    p3 += 0.5f * e * e * (g - 1.0f) * ((((70.0f * g - 13.0f) * g - 69.0f) * g + 8.0f) * g + 12.0f);
    return e * u * (1.0f + e * u * one * (p1 + p2 - p3));
}

/* von Mises-Fisher for d < 32 and kappa < 40, by the recurrence (d-1) w_d = 1 - A_d (t + kappa (1-t^2) w_{d+2}) in the
 * dimension, with the Bessel ratio A_d = kappa/(d + kappa A_{d+2}). To avoid divisions, w_d = X_d/((d-1) N_d) with
 *
 *     N_j = N_{j+2} + kappa^2 N_{j+4}/(j(j+2)),
 *     X_j = N_j - kappa t N_{j+2}/j - kappa^2 (1-t^2) X_{j+2}/(j(j+1)).
 *
 * It starts far above d with N = X = 1, and the error of this start shrinks factorially on the way down. It runs in
 * double precision, half of the lanes at a time, because at small d rounding errors grow. */
#define RECURS_BELOW 40.0f
#define HALF (LANES / 2)
OUTLINE floats von_mises_fisher_slope_by_recurrence(floats minus, floats plus, floats kappa, int64_t dim) {
    float low[LANES], high[LANES], concentration[LANES], slope[LANES], most = 0;
    store(low, minus);
    store(high, plus);
    store(concentration, kappa);
    for (int i = 0; i < LANES; i++)
        if (concentration[i] < RECURS_BELOW && concentration[i] > most) most = concentration[i];
    double start = 2 * most + 14 < most + 38 ? 2 * most + 14 : most + 38;
    if (start < (double)dim + most + 10) start = (double)dim + most + 10;
    int64_t top = dim + ((int64_t)start - dim + 1) / 2 * 2;
    doubles n[2][2], x[2], product[2], square[2], spread[2];
    for (int h = 0; h < 2; h++) {
        doubles m = load_as_doubles(low + h * HALF), p = load_as_doubles(high + h * HALF);
        doubles k = load_as_doubles(concentration + h * HALF);
        n[h][0] = n[h][1] = x[h] = 1 + 0 * k;
        product[h] = k * (0.5 * (p - m));
        square[h] = k * k;
        spread[h] = square[h] * (m * p);
    }
    for (int64_t j = top; j >= dim; j -= 2) {
        double a = (double)j, common = 1 / (a * (a + 1) * (a + 2));
        double of_n = common * (a + 1), of_product = common * (a + 1) * (a + 2), of_x = common * (a + 2);
        for (int h = 0; h < 2; h++) {
            doubles next = n[h][0] + (square[h] * of_n) * n[h][1];
            x[h] = next - (product[h] * of_product) * n[h][0] - (spread[h] * of_x) * x[h];
            n[h][1] = n[h][0];
            n[h][0] = next;
        }
    }
    for (int h = 0; h < 2; h++) store_as_floats(slope + h * HALF, x[h] / ((double)(dim - 1) * n[h][0]));
    return load(slope);
}

INLINE floats von_mises_fisher_slope(floats minus, floats plus, floats kappa, int64_t dim) {
    if (dim == 3) return von_mises_fisher_slope_3(minus, plus, kappa);
    floats series = von_mises_fisher_slope_by_series(plus, kappa, 0.5f * (float)(dim - 1));
    ints diverges = kappa < RECURS_BELOW; /* NaN takes the series, which gives NaN */
    if (dim >= 32 || !any(diverges)) return series;
    return pick(diverges, von_mises_fisher_slope_by_recurrence(minus, plus, kappa, dim), series);
}

/* Writes the slopes of the rows `row`, ..., `row` + count - 1 to `out`, an array over the group. */
static void slopes(const sphere_call *c, float *out, int64_t row, int count) {
    float kappa[GROUP], beta = 0.5f * (float)(c->law_dim - 1);
    load_kappa(c, kappa, row, count);
    for (int i = 0; i < count; i += LANES) {
        int some = lanes_left(count, i);
        ints there = (ints)lane_numbers() < some;
        floats k = load(kappa + i), one = splat(1.0f), result;
        floats minus = pick(there, load_some(c->one_minus_t + row + i, some), one);
        floats plus = pick(there, load_some(c->one_plus_t + row + i, some), one);
        if (c->family == SPHERICAL_CAUCHY) {
            result = 1.0f / (1.0f + k);
        } else if (c->family == VON_MISES_FISHER) {
            result = von_mises_fisher_slope(minus, plus, k, c->law_dim);
        } else if (c->law_dim == 3) {
            result = power_spherical_slope_3(minus, plus, k);
        } else {
            floats gamma = pick(there, load_some(c->noise + row + i, some), one);
            result = 0.5f * gamma_slope(k + beta, gamma);
        }
        store(out + i, result);
    }
}
