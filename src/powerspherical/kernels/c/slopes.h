/* The slope w = d artanh(t)/d kappa = (dt/d kappa)/(1-t^2) of each draw, for the backward pass.
 *
 * Single precision: Power Spherical uses d log(G)/d alpha/2 with the Gamma variable G of the draw, at a fixed S; von
 * Mises-Fisher a series or a recurrence, at a fixed probability. Double precision: a quadrature at a fixed probability for
 * both. In three dimensions and for spherical Cauchy there are closed forms.
 */
#pragma once
#include "cosines.h"

/* One of the scalars of `some` rows. */
enum { ONE_MINUS_T, ONE_PLUS_T, NOISE };
INLINE reals scalar(const sphere_call *c, int which, int64_t row, int some) {
    return load_up_to(c->scalars + which * c->rows + row, some);
}

#if REAL_BITS == 64
/* Integrates over the tail that does not contain the mode. Let y = artanh t, sign = +-1 the direction away from the mode,
 * and s >= 0 a distance in that direction. With x = (1-t) (e^(-2 sign s) - 1)/2 and L = log(1+x), the log-density of the
 * rapidity y + sign s differs from that of y by
 *
 *     q(s) = kappa dT - (d-1) (sign s + L),      dT = -L for Power Spherical, -(1+t) x/(1+x) for von Mises-Fisher,
 *
 * and w = sign int_0^oo (T - E T + dT) e^q ds. The integral ends where q is about -FALL, at s < 60. */
#define FALL 36.0
typedef struct { reals sign, minus, plus, kappa; int is_power; real degrees; } ray;
typedef struct { reals statistic, log_density; } change;

INLINE change change_at(ray r, reals s) {
    reals step = r.sign * s, x = 0.5 * r.minus * expm1_of(-2.0 * step), length = log1p_of(x);
    reals statistic = r.is_power ? -length : -r.plus * x / (1.0 + x);
    return (change){statistic, r.kappa * statistic - r.degrees * (step + length)};
}

/* Each step of the search runs over all rows, because the next step has to wait for it. */
OUTLINE void slopes_by_quadrature(const sphere_call *c, const real *kappas, real *out, int64_t row, int count) {
    ray rays[GROUP / LANES];
    real log_length[GROUP], degrees = (real)(c->law_dim - 1);
    int is_power = c->family == POWER_SPHERICAL;
    for (int i = 0; i < count; i += LANES) {
        int some = lanes_left(count, i);
        reals minus = scalar(c, ONE_MINUS_T, row + i, some), plus = scalar(c, ONE_PLUS_T, row + i, some);
        reals kappa = load(kappas + i);
        reals rise = kappa * (is_power ? minus : minus * plus) - degrees * (0.5 * (plus - minus)); /* of the log-density */
        rays[i / LANES] = (ray){where_of(rise < 0, 1, -1), minus, plus, kappa, is_power, degrees};
        store(log_length + i, splat(-80));
    }
    for (double step = 42; step > 0.05; step *= 0.5) /* bisection, until the length is known to 8 % */
        for (int i = 0; i < count; i += LANES) {
            reals length = load(log_length + i), further = length + step;
            masks inside = change_at(rays[i / LANES], exp_of(further)).log_density > -FALL;
            store(log_length + i, pick(inside, further, length));
        }
    for (int i = 0; i < count; i += LANES) {
        ray r = rays[i / LANES];
        reals mean = c->kappa_step ? load_up_to(c->mean + row + i, lanes_left(count, i)) : splat(*c->mean);
        reals excess = (is_power ? power_statistic(r.minus, r.plus) : -r.minus) - mean;
        reals length = exp_of(load(log_length + i)), sum = splat(0);
        for (int n = 0; n < RULE; n++) {
            change at = change_at(r, length * c->rule[n]);
            sum += c->rule[RULE + n] * (excess + at.statistic) * exp_of(at.log_density);
        }
        store(out + i, r.sign * length * sum);
    }
}
#else
OUTLINE reals gamma_slope_of_small_shapes(reals shape, reals gamma) { return gamma_slope_by_quadrature(shape, gamma); }
INLINE reals gamma_slope(reals shape, reals gamma) {
    reals result = gamma_slope_by_expansion(shape, gamma);
    masks small = shape < LARGE_SHAPE;
    if (!any(small)) return result;
    return pick(small, gamma_slope_of_small_shapes(at_most_of(shape, LARGE_SHAPE), gamma), result);
}

/* von Mises-Fisher for d < 32 and kappa < 40, by the recurrence (d-1) w_d = 1 - A_d (t + kappa (1-t^2) w_{d+2}) in the
 * dimension, with the Bessel ratio A_d = kappa/(d + kappa A_{d+2}). To avoid divisions, w_d = X_d/((d-1) N_d) with
 *
 *     N_j = N_{j+2} + kappa^2 N_{j+4}/(j(j+2)),
 *     X_j = N_j - kappa t N_{j+2}/j - kappa^2 (1-t^2) X_{j+2}/(j(j+1)).
 *
 * It starts with N = X = 1 at a dimension of about max(2 kappa + 12, d + kappa + 8), and the error of this start shrinks
 * factorially on the way down: to 5e-8 or less. It runs in double precision, half of the lanes at a time, because at
 * small d rounding errors grow. */
OUTLINE reals von_mises_fisher_slope_by_recurrence(reals minus, reals plus, reals kappa, int64_t dim) {
    float low[LANES], high[LANES], concentration[LANES], slope[LANES], most = 0;
    store(low, minus);
    store(high, plus);
    store(concentration, kappa);
    for (int i = 0; i < LANES; i++)
        if (concentration[i] < SERIES_KAPPA && concentration[i] > most) most = concentration[i];
    float above = 2 * most + 12 - (float)dim < most + 8 ? most + 8 : 2 * most + 12 - (float)dim;
    int64_t top = dim + 2 * (int64_t)(above / 2);
    doubles n[2][2], x[2], product[2], square[2], spread[2];
    for (int h = 0; h < 2; h++) {
        doubles m = load_doubles(low + h * DOUBLES), p = load_doubles(high + h * DOUBLES);
        doubles k = load_doubles(concentration + h * DOUBLES);
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
    for (int h = 0; h < 2; h++) store_doubles(slope + h * DOUBLES, x[h] / ((double)(dim - 1) * n[h][0]));
    return load(slope);
}

INLINE reals slope_of_von_mises_fisher(reals minus, reals plus, reals kappa, int64_t dim) {
    reals series = von_mises_fisher_slope(plus, kappa, (float)(dim - 1));
    masks diverges = kappa < SERIES_KAPPA; /* NaN takes the series, which gives NaN */
    if (dim >= SERIES_DIM || !any(diverges)) return series;
    return pick(diverges, von_mises_fisher_slope_by_recurrence(minus, plus, kappa, dim), series);
}
#endif

/* Writes the slopes of the rows `row`, ..., `row` + count - 1 to `out`, an array over the group. */
static void slopes(const sphere_call *c, real *out, int64_t row, int count) {
    real kappas[GROUP];
    load_kappa(c, kappas, row, count);
#if REAL_BITS == 64
    if (c->family != SPHERICAL_CAUCHY && c->law_dim != 3) {
        slopes_by_quadrature(c, kappas, out, row, count);
        return;
    }
#endif
    for (int i = 0; i < count; i += LANES) {
        int some = lanes_left(count, i);
        reals kappa = load(kappas + i), minus = scalar(c, ONE_MINUS_T, row + i, some), result;
        reals plus = scalar(c, ONE_PLUS_T, row + i, some);
        if (c->family == SPHERICAL_CAUCHY)
            result = 1 / (1 + kappa);
#if REAL_BITS == 32
        else if (c->law_dim != 3 && c->family == VON_MISES_FISHER)
            result = slope_of_von_mises_fisher(minus, plus, kappa, c->law_dim);
        else if (c->law_dim != 3)
            result = 0.5f * gamma_slope(kappa + 0.5f * (real)(c->law_dim - 1), scalar(c, NOISE, row + i, some));
#endif
        else
            result = c->family == POWER_SPHERICAL ? power_spherical_slope_3(minus, plus, kappa)
                                                  : von_mises_fisher_slope_3(minus, plus, kappa);
        store(out + i, result);
    }
}
