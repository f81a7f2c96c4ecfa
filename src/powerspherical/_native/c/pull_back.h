/* From the gradient g in x to the gradients in loc and kappa.
 *
 * The gradient in mu is t g - (g.mu) x: the rotation that moves mu moves x, too. The gradient in kappa is
 * w ((1-t^2) g.mu - t (g.x - t g.mu)) with the slope w of slopes.h: x moves along the meridian through mu.
 * We compute g.x - t g.mu as the inner product (g - (g.mu) mu).(x - t mu) of tangential parts, whose rounding error is of
 * second order. The plain difference has a first-order error, a bias at large kappa, where 1-t^2 ~ 1/kappa.
 */
#pragma once
#include "rows.h"
#include "slopes.h"

/* Writes the gradient in mu to `to` or adds it there, unless `to` is null. Returns the gradient in kappa over w. */
INLINE float pull_back_row(const float *g, const float *x, const float *mu, int64_t d, float minus, float plus,
                           float *to, const int add) {
    floats a0 = {0}, a1 = {0}, across = {0};
    int64_t k = 0;
    for (; k + 2 * LANES <= d; k += 2 * LANES) {
        a0 += load(g + k) * load(mu + k);
        a1 += load(g + k + LANES) * load(mu + k + LANES);
    }
    for (; k < d; k += LANES) {
        int some = lanes_left(d, k);
        a0 += some == LANES ? load(g + k) * load(mu + k) : load_some(g + k, some) * load_some(mu + k, some);
    }
    float along = total(a0 + a1), t = 0.5f * (plus - minus);
    for (k = 0; k + LANES <= d; k += LANES) {
        floats gk = load(g + k), xk = load(x + k), mk = load(mu + k);
        across += (gk - along * mk) * (xk - t * mk);
        if (to) store(to + k, (add ? load(to + k) : splat(0.0f)) + (t * gk - along * xk));
    }
    if (k < d) {
        int some = (int)(d - k);
        floats gk = load_some(g + k, some), xk = load_some(x + k, some), mk = load_some(mu + k, some);
        across += (gk - along * mk) * (xk - t * mk);
        if (to) store_some(to + k, (add ? load_some(to + k, some) : splat(0.0f)) + (t * gk - along * xk), some);
    }
    return minus * plus * along - t * total(across);
}

/* Pulls back `some` rows with d <= SMALL, one row per lane. */
INLINE void pull_back_small(const sphere_call *c, int64_t row, int some, const float *slope, float *to, int add,
                            const int64_t d) {
    floats g[SMALL], x[SMALL], mu[SMALL], result[SMALL], along = splat(0.0f), across = splat(0.0f);
    gather_rows(g, c->grad + row * d, d, some);
    gather_rows(x, c->x + row * d, d, some);
    gather_directions(c, mu, row, some, d);
    floats minus = load_some(c->one_minus_t + row, some), plus = load_some(c->one_plus_t + row, some);
    floats t = 0.5f * (plus - minus);
    for (int k = 0; k < d; k++) along += g[k] * mu[k];
    for (int k = 0; k < d; k++) across += (g[k] - along * mu[k]) * (x[k] - t * mu[k]);
    for (int k = 0; k < d; k++) result[k] = t * g[k] - along * x[k];
    if (to && !add) scatter_rows(to + row * d, result, d, some);
    if (to && add) {
        float rows[LANES * SMALL];
        scatter_rows(rows, result, d, some);
        for (int i = 0; i < some; i++)
            for (int k = 0; k < d; k++) to[(row + i) % c->directions * d + k] += rows[i * d + k];
    }
    if (c->grad_kappa)
        store_some(c->grad_kappa + row, load(slope) * (minus * plus * along - t * across), some);
}

/* Pulls back the rows `row`, ..., `end` - 1. `to` holds one gradient per row or, with `add`, one sum per direction. */
static void pull_back_rows(const sphere_call *c, int64_t row, int64_t end, float *to, int add) {
    int64_t d = c->dim;
    for (; row < end; row += GROUP) {
        int count = end - row < GROUP ? (int)(end - row) : GROUP;
        float slope[GROUP];
        if (c->grad_kappa) slopes(c, slope, row, count);
        for (int i = 0; d <= SMALL && i < count; i += LANES) {
            int some = lanes_left(count, i);
            if (d == 3) pull_back_small(c, row + i, some, slope + i, to, add, 3);
            else if (d == 4) pull_back_small(c, row + i, some, slope + i, to, add, 4);
            else pull_back_small(c, row + i, some, slope + i, to, add, d);
        }
        for (int i = 0; d > SMALL && i < count; i++) {
            int64_t r = row + i, direction = r % c->directions;
            const float *g = c->grad + r * d, *x = c->x + r * d, *mu = c->loc + direction * d;
            float *target = to ? to + (add ? direction : r) * d : 0, minus = c->one_minus_t[r], plus = c->one_plus_t[r];
            float rate = add ? pull_back_row(g, x, mu, d, minus, plus, target, 1)
                             : pull_back_row(g, x, mu, d, minus, plus, target, 0);
            if (c->grad_kappa) c->grad_kappa[r] = slope[i] * rate;
        }
    }
}
