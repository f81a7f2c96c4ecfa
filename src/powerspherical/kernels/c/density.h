/* Log-densities at rows of unit vectors, and their gradients in x, mu and kappa.
 *
 * A density depends on x through t = mu.x alone. We use 1-t = |x-mu|^2/2 and 1+t = |x+mu|^2/2: the inner product would
 * lose digits of 1-t, which a large kappa multiplies. The gradient of t in x is tangential to the sphere, mu - t x. We
 * compute it as v + s(1-st) x with v = mu - s x, where s = +-1 is the sign of t, so that both terms are small near
 * t = +-1. The gradient in mu is likewise -s v + s(1-st) mu.
 */
#pragma once
#include <float.h>

#include "row_densities.h"

/* Up to GROUP rows of the result: the rows of x and loc that they need, and their scalars. The callers fill those of minus
 * and plus. Entries beyond the last row are those of the first row. */
typedef struct {
    argument_rows x, loc;
    row_scalars scalars;
    real minus[GROUP], plus[GROUP];
} row_group;

static void find_group(const density_call *c, row_group *g, int64_t row, int count) {
    argument_rows kappa;
    find_rows(&g->x, c->x, c->x_tile, row, count);
    find_rows(&g->loc, c->loc, c->loc_tile, row, count);
    find_rows(&kappa, c->kappa, c->kappa_tile, row, count);
    for (int i = 0; i < GROUP; i++) {
        int64_t k = kappa.at[i < count ? i : 0];
        g->scalars.kappa[i] = c->kappa[k];
        g->scalars.offset[i] = c->offset.value ? c->offset.value[k] : 0;
        g->scalars.offset_slope[i] = c->offset.slope ? c->offset.slope[k] : 0;
    }
}

/* Completes the group when minus and plus of `count` rows are known. */
static void complete_group(row_group *g, int count) {
    for (int i = count; i < GROUP; i++) g->minus[i] = g->minus[0], g->plus[i] = g->plus[0];
    for (int i = 0; i < GROUP; i++) g->scalars.minus[i] = g->minus[i], g->scalars.plus[i] = g->plus[i];
}

INLINE void small_ends(row_group *g, int count, const int64_t d) {
    for (int i = 0; i < count; i += LANES) {
        reals x[SMALL], mu[SMALL], minus = splat(0), plus = splat(0);
        int some = lanes_left(count, i);
        gather(&g->x, i, x, d, some);
        gather(&g->loc, i, mu, d, some);
        for (int k = 0; k < d; k++) {
            reals difference = x[k] - mu[k], sum = x[k] + mu[k];
            minus += difference * difference;
            plus += sum * sum;
        }
        store(g->minus + i, (real)0.5 * minus);
        store(g->plus + i, (real)0.5 * plus);
    }
}

/* |x-mu|^2 and |x+mu|^2 */
INLINE terms square_distances(const void *row, int64_t k, int some) {
    const point_and_direction *r = row;
    reals x = load_up_to(r->x + k, some), mu = load_up_to(r->mu + k, some);
    return (terms){(x - mu) * (x - mu), (x + mu) * (x + mu)};
}

/* Computes the rows `row`, ..., `end` - 1. */
static void density_rows(const void *call, int64_t row, int64_t end) {
    const density_call *c = call;
    int64_t d = c->dim;
    for (; row < end; row += GROUP) {
        row_group g;
        double value[GROUP];
        int count = end - row < GROUP ? (int)(end - row) : GROUP;
        size_t bytes = sizeof(real) * (size_t)count;
        find_group(c, &g, row, count);
#define ENDS(d) small_ends(&g, count, d)
        if (d <= SMALL) UNROLLED(d, ENDS);
        for (int i = 0; d > SMALL && i < count; i++) {
            point_and_direction r = {c->x + g.x.at[i] * d, c->loc + g.loc.at[i] * d};
            sums ends = precise_sum_of(square_distances, &r, d);
            g.minus[i] = (real)(0.5 * ends.one), g.plus[i] = (real)(0.5 * ends.two);
        }
        complete_group(&g, count);
        if (c->ends) {
            memcpy(c->ends + row, g.minus, bytes);
            memcpy(c->ends + c->rows + row, g.plus, bytes);
        }
        AT_LEVEL(row_densities)(&g.scalars, c->family, d, count, value);
        for (int i = 0; i < count; i++) c->value[row + i] = (real)(value[i] - c->log_area);
    }
}

/* For LANES rows, with v and s as above: the gradient in x is of_v v + of_vector x, and the gradient in mu is
 * -sign of_v v + of_vector mu. */
typedef struct { reals sign, of_v, of_vector; } tangent_weights;
typedef struct { reals in_x, in_loc; } tangents;

INLINE tangents tangents_at(reals x, reals mu, tangent_weights w) {
    reals v = mu - w.sign * x;
    return (tangents){w.of_v * v + w.of_vector * x, w.of_vector * mu - w.sign * w.of_v * v};
}

INLINE void small_gradients(const density_call *c, const row_group *g, int64_t row, int i, int some,
                            tangent_weights w, loc_gradients to, const int64_t d) {
    reals x[SMALL], mu[SMALL];
    gather(&g->x, i, x, d, some);
    gather(&g->loc, i, mu, d, some);
    for (int k = 0; k < d; k++) {
        tangents both = tangents_at(x[k], mu[k], w);
        x[k] = both.in_x, mu[k] = both.in_loc;
    }
    if (c->grad_x) scatter_rows(c->grad_x + (row + i) * d, x, d, some);
    write_small(to, row + i, mu, d, some);
}

/* A row with d > SMALL */
typedef struct { const real *x, *mu; tangent_weights w; real *in_x; loc_gradients to; } row_tangents;

INLINE terms write_tangents(const void *row, int64_t k, int some) {
    const row_tangents *r = row;
    tangents both = tangents_at(load_up_to(r->x + k, some), load_up_to(r->mu + k, some), r->w);
    if (r->in_x) store_up_to(r->in_x + k, both.in_x, some);
    write_coordinates(r->to, k, both.in_loc, some);
    return (terms){{0}, {0}};
}

/* Computes the gradients of the rows `row`, ..., `end` - 1. */
static void density_gradient_rows(const void *call, int64_t row, int64_t end, loc_gradients to) {
    const density_call *c = call;
    int64_t d = c->dim;
    for (; row < end; row += GROUP) {
        row_group g;
        double in_t[GROUP], in_kappa[GROUP];
        real weight[GROUP];
        int count = end - row < GROUP ? (int)(end - row) : GROUP;
        size_t bytes = sizeof(real) * (size_t)count;
        find_group(c, &g, row, count);
        memcpy(g.minus, c->ends + row, bytes);
        memcpy(g.plus, c->ends + c->rows + row, bytes);
        complete_group(&g, count);
        for (int i = 0; i < GROUP; i++) g.scalars.grad[i] = i < count ? c->grad[c->grad_step * (row + i)] : 0;
        AT_LEVEL(row_density_slopes)(&g.scalars, c->family, d, count, in_t, in_kappa);
        for (int i = 0; i < GROUP; i++) weight[i] = (real)in_t[i];
        for (int i = 0; c->grad_kappa && i < count; i++) c->grad_kappa[row + i] = (real)in_kappa[i];
        if (!c->grad_x && !to.rows && !to.sums) continue;
        for (int i = 0; i < count; i += LANES) {
            /* At the mode of a spherical Cauchy with a huge kappa, d log p/dt overflows, but the gradient is zero. */
            const real most = REAL_BITS == 64 ? (real)DBL_MAX : (real)FLT_MAX;
            reals minus = load(g.minus + i), plus = load(g.plus + i);
            reals of_v = at_least_of(at_most_of(load(weight + i), most), -most);
            masks near = minus < plus;
            reals sign = where_of(near, 1, -1);
            tangent_weights w = {sign, of_v, of_v * sign * pick(near, minus, plus)};
            int some = lanes_left(count, i);
#define GRADIENTS(d) small_gradients(c, &g, row, i, some, w, to, d)
            if (d <= SMALL) UNROLLED(d, GRADIENTS);
            for (int j = 0; d > SMALL && j < some; j++) {
                int64_t r = row + i + j;
                tangent_weights of_row = {splat(w.sign[j]), splat(w.of_v[j]), splat(w.of_vector[j])};
                row_tangents one = {c->x + g.x.at[i + j] * d, c->loc + g.loc.at[i + j] * d, of_row,
                                    c->grad_x ? c->grad_x + r * d : 0, gradient_of_row(to, r, d)};
                sum_of(write_tangents, &one, 0, d);
            }
        }
    }
}
