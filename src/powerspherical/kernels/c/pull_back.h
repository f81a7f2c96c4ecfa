/* From the gradient g in x to the gradients in loc and kappa.
 *
 * The gradient in mu is t g - (g.mu) x: the rotation that moves mu moves x, too. The gradient in kappa is
 * w ((1-t^2) g.mu - t (g.x - t g.mu)) with the slope w of slopes.h: x moves along the meridian through mu.
 * We compute g.x - t g.mu as the inner product (g - (g.mu) mu).(x - t mu) of tangential parts, whose rounding error is of
 * second order. The plain difference has a first-order error, a bias at large kappa, where 1-t^2 ~ 1/kappa.
 */
#pragma once
#include "slopes.h"

typedef struct { const real *g, *x, *mu; loc_gradients to; real along, t; } row_pull;

INLINE terms gradient_along(const void *row, int64_t k, int some) {
    const row_pull *r = row;
    return (terms){load_up_to(r->g + k, some) * load_up_to(r->mu + k, some), {0}};
}

/* Writes the gradient in mu, and returns the products of tangential parts. */
INLINE terms pull_part(const void *row, int64_t k, int some) {
    const row_pull *r = row;
    reals g = load_up_to(r->g + k, some), x = load_up_to(r->x + k, some), mu = load_up_to(r->mu + k, some);
    write_coordinates(r->to, k, r->t * g - r->along * x, some);
    return (terms){(g - r->along * mu) * (x - r->t * mu), {0}};
}

/* Pulls back one row with d > SMALL. Returns the gradient in kappa over w. */
INLINE real pull_back_row(row_pull r, int64_t d, real minus, real plus) {
    r.along = total(sum_of(gradient_along, &r, 0, d).one), r.t = (real)0.5 * (plus - minus);
    return minus * plus * r.along - r.t * total(sum_of(pull_part, &r, 0, d).one);
}

/* Pulls back `some` rows with d <= SMALL, one row per lane. */
INLINE void pull_back_small(const sphere_call *c, const argument_rows *loc, int64_t row, int i, int some, const real *slope,
                            loc_gradients to, const int64_t d) {
    reals g[SMALL], x[SMALL], mu[SMALL], result[SMALL], along = splat(0), across = splat(0);
    gather(loc, i, mu, d, some);
    row += i;
    gather_rows(g, c->grad + row * d, d, some);
    gather_rows(x, c->x + row * d, d, some);
    reals minus = scalar(c, ONE_MINUS_T, row, some), plus = scalar(c, ONE_PLUS_T, row, some);
    reals t = (real)0.5 * (plus - minus);
    for (int k = 0; k < d; k++) along += g[k] * mu[k];
    for (int k = 0; k < d; k++) across += (g[k] - along * mu[k]) * (x[k] - t * mu[k]);
    for (int k = 0; k < d; k++) result[k] = t * g[k] - along * x[k];
    write_small(to, row, result, d, some);
    if (c->grad_kappa)
        store_some(c->grad_kappa + row, load(slope + i) * (minus * plus * along - t * across), some);
}

/* Pulls back the rows `row`, ..., `end` - 1. Without a gradient in x, writes their slopes instead. */
static void pull_back_rows(const void *call, int64_t row, int64_t end, loc_gradients to) {
    const sphere_call *c = call;
    int64_t d = c->dim;
    for (; row < end; row += GROUP) {
        int count = end - row < GROUP ? (int)(end - row) : GROUP;
        real slope[GROUP];
        if (c->grad_kappa) slopes(c, slope, row, count);
        if (!c->grad) {
            memcpy(c->grad_kappa + row, slope, sizeof(real) * (size_t)count);
            continue;
        }
        argument_rows loc;
        find_rows(&loc, c->loc, (tile){1, c->directions}, row, count);
        for (int i = 0; d <= SMALL && i < count; i += LANES) {
            int some = lanes_left(count, i);
#define PULL_BACK(d) pull_back_small(c, &loc, row, i, some, slope, to, d)
            UNROLLED(d, PULL_BACK);
        }
        for (int i = 0; d > SMALL && i < count; i++) {
            int64_t r = row + i;
            row_pull one = {c->grad + r * d, c->x + r * d, c->loc + loc.at[i] * d, gradient_of_row(to, r, d), 0, 0};
            real rate = pull_back_row(one, d, c->scalars[r], c->scalars[c->rows + r]);
            if (c->grad_kappa) c->grad_kappa[r] = slope[i] * rate;
        }
    }
}
