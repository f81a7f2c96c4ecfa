/* Log-densities at rows of unit vectors, and their gradients in x, mu and kappa.
 *
 * A density depends on x through t = mu.x alone. We use 1-t = |x-mu|^2/2 and 1+t = |x+mu|^2/2: the inner product would
 * lose digits of 1-t, which a large kappa multiplies. The gradient of t in x is tangential to the sphere, mu - t x. We
 * compute it as v + s(1-st) x with v = mu - s x, where s = +-1 is the sign of t, so that both terms are small near
 * t = +-1. The gradient in mu is likewise -s v + s(1-st) mu.
 *
 * The few functions per row are computed in double precision.
 */
#pragma once
#include <float.h>

#include "check.h"
#include "rows.h"
#include "scalars.h"

/* The scalars of DOUBLES rows. Exponential families have the density exp(offset + kappa T) relative to the uniform
 * distribution; `mean` is the mean of the statistic T. */
typedef struct { doubles minus, plus, kappa, offset, mean; } row_scalars;

/* T. At kappa = 0 the density is uniform, so there T is finite also at the antipode. */
INLINE doubles statistic_of(row_scalars r, int64_t family) {
    if (family == VON_MISES_FISHER) return -r.minus;
    return power_statistic_in_double(r.minus, r.plus);
}

INLINE doubles relative_log_density(row_scalars r, int64_t family, double degrees) {
    if (family == SPHERICAL_CAUCHY) return cauchy_log_density_in_double(r.minus, r.kappa, degrees);
    doubles statistic = statistic_of(r, family);
    return r.offset + r.kappa * where_of((r.kappa == 0.0) & (statistic < -1e3), r.kappa, statistic);
}

/* The derivatives of the log-density in t and kappa. */
INLINE void density_slopes(row_scalars r, int64_t family, double degrees, doubles *in_t, doubles *in_kappa) {
    if (family == SPHERICAL_CAUCHY) {
        pair_in_double slopes = cauchy_slopes_in_double(r.minus, r.kappa, degrees);
        *in_t = slopes.first;
        *in_kappa = slopes.second;
        return;
    }
    *in_t = r.kappa;
    if (family == POWER_SPHERICAL) {
        doubles length = where_of(r.minus < 1.0, 2.0 - r.minus, r.plus);
        *in_t = where_of(length <= 0.0, 0.0 * r.kappa, r.kappa / length); /* 0 at the antipode, by definition */
    }
    *in_kappa = statistic_of(r, family) - r.mean;
}

/* Clamps to the range of real. At the mode of a spherical Cauchy with a huge kappa, d log p/dt overflows, but the
 * gradient is zero. */
INLINE doubles within_range(doubles x) {
    const double most = REAL_BITS == 64 ? DBL_MAX : FLT_MAX;
    return at_least_of(at_most_of(x, most), -most);
}

/* For up to GROUP rows of the result: the rows of x and loc that they need, and their scalars. Unused entries of kappa,
 * offset and mean are those of the first row. The callers fill those of minus and plus. */
typedef struct {
    int64_t x[GROUP], loc[GROUP];
    real minus[GROUP], plus[GROUP], kappa[GROUP], offset[GROUP], mean[GROUP];
} row_group;

static void find_rows(int64_t *at, tile t, int64_t row, int count) {
    int64_t place = row / t.inner % t.count, left = t.inner - row % t.inner;
    for (int i = 0; i < count; i++) {
        at[i] = place;
        if (--left > 0) continue;
        left = t.inner;
        if (++place == t.count) place = 0;
    }
}

static void find_group(const density_call *c, row_group *g, int64_t row, int count) {
    int64_t at[GROUP];
    find_rows(g->x, c->x_tile, row, count);
    find_rows(g->loc, c->loc_tile, row, count);
    find_rows(at, c->kappa_tile, row, count);
    for (int i = 0; i < GROUP; i++) {
        int64_t k = at[i < count ? i : 0];
        g->kappa[i] = c->kappa[k], g->offset[i] = c->offset[k], g->mean[i] = c->mean[k];
    }
}

INLINE row_scalars load_scalars(const row_group *g, int i) {
    return (row_scalars){load_doubles(g->minus + i), load_doubles(g->plus + i), load_doubles(g->kappa + i),
                         load_doubles(g->offset + i), load_doubles(g->mean + i)};
}

/* Loads the rows at[0], ..., at[some - 1] of an argument with d <= SMALL, one row per lane. */
INLINE void gather_tile(const density_call *c, reals *v, const real *from, tile t, const int64_t *at, int some,
                        const int64_t d) {
    if (t.count == 1) {
        for (int k = 0; k < d; k++) v[k] = splat(from[k]);
    } else if (t.count == c->rows) {
        gather_rows(v, from + at[0] * d, d, some);
    } else {
        real rows[LANES * SMALL];
        for (int i = 0; i < some; i++)
            for (int k = 0; k < d; k++) rows[i * d + k] = from[at[i] * d + k];
        gather_rows(v, rows, d, some);
    }
}

INLINE void small_ends(const density_call *c, row_group *g, int count, const int64_t d) {
    for (int i = 0; i < count; i += LANES) {
        reals x[SMALL], mu[SMALL], minus = splat(0), plus = splat(0);
        int some = lanes_left(count, i);
        gather_tile(c, x, c->x, c->x_tile, g->x + i, some, d);
        gather_tile(c, mu, c->loc, c->loc_tile, g->loc + i, some, d);
        for (int k = 0; k < d; k++) {
            reals difference = x[k] - mu[k], sum = x[k] + mu[k];
            minus += difference * difference;
            plus += sum * sum;
        }
        store(g->minus + i, (real)0.5 * minus);
        store(g->plus + i, (real)0.5 * plus);
    }
}

static void large_ends(const real *x, const real *mu, int64_t d, real *minus, real *plus) {
    double below = 0, above = 0;
    for (int64_t from = 0; from < d; from += STRETCH) {
        int64_t k = from, end = d - from < STRETCH ? d : from + STRETCH;
        reals m0 = {0}, m1 = {0}, p0 = {0}, p1 = {0}; /* two sums each, to hide the latency of additions */
        for (; k + 2 * LANES <= end; k += 2 * LANES) {
            reals a = load(x + k), b = load(x + k + LANES), u = load(mu + k), v = load(mu + k + LANES);
            m0 += (a - u) * (a - u);
            m1 += (b - v) * (b - v);
            p0 += (a + u) * (a + u);
            p1 += (b + v) * (b + v);
        }
        for (; k < end; k += LANES) {
            int some = lanes_left(end, k);
            reals a = load_up_to(x + k, some);
            reals u = load_up_to(mu + k, some);
            m0 += (a - u) * (a - u);
            p0 += (a + u) * (a + u);
        }
        below += total(m0 + m1);
        above += total(p0 + p1);
    }
    *minus = (real)(0.5 * below);
    *plus = (real)(0.5 * above);
}

/* Computes the rows `row`, ..., `end` - 1. */
static void density_rows(const density_call *c, int64_t row, int64_t end) {
    int64_t d = c->dim;
    for (; row < end; row += GROUP) {
        row_group g;
        real value[GROUP];
        int count = end - row < GROUP ? (int)(end - row) : GROUP;
        size_t bytes = sizeof(real) * (size_t)count;
        find_group(c, &g, row, count);
#define ENDS(d) small_ends(c, &g, count, d)
        if (d <= SMALL) UNROLLED(d, ENDS);
        else
            for (int i = 0; i < count; i++)
                large_ends(c->x + g.x[i] * d, c->loc + g.loc[i] * d, d, g.minus + i, g.plus + i);
        if (c->one_minus_t) memcpy(c->one_minus_t + row, g.minus, bytes);
        if (c->one_plus_t) memcpy(c->one_plus_t + row, g.plus, bytes);
        for (int i = count; i % LANES; i++) g.minus[i] = g.plus[i] = 1;
        for (int i = 0; i < count; i += DOUBLES)
            store_doubles(value + i, relative_log_density(load_scalars(&g, i), c->family, (double)(d - 1)) - c->log_area);
        memcpy(c->value + row, value, bytes);
    }
}

/* For LANES rows, with v and s as above: the gradient in x is of_v v + of_vector x, and the gradient in mu is
 * -sign of_v v + of_vector mu. */
typedef struct { reals sign, of_v, of_vector; } tangent_weights;

INLINE void small_gradients(const density_call *c, const row_group *g, int64_t row, int i, int some,
                            tangent_weights w, loc_gradients to, const int64_t d) {
    reals x[SMALL], mu[SMALL], in_x[SMALL], in_loc[SMALL];
    gather_tile(c, x, c->x, c->x_tile, g->x + i, some, d);
    gather_tile(c, mu, c->loc, c->loc_tile, g->loc + i, some, d);
    for (int k = 0; k < d; k++) {
        reals v = mu[k] - w.sign * x[k];
        in_x[k] = w.of_v * v + w.of_vector * x[k];
        in_loc[k] = w.of_vector * mu[k] - w.sign * w.of_v * v;
    }
    if (c->grad_x) scatter_rows(c->grad_x + (row + i) * d, in_x, d, some);
    write_small(to, row + i, in_loc, d, some);
}

/* One row with d > SMALL. Writes to `in_x`, `in_loc` and `sums`, unless they are null. */
static void large_gradients(const real *x, const real *mu, int64_t d, real sign, real of_v, real of_vector,
                            real *in_x, real *in_loc, double *sums) {
    real of_v_in_loc = -sign * of_v;
    for (int64_t k = 0; k < d; k += LANES) {
        int some = lanes_left(d, k);
        reals a = load_up_to(x + k, some);
        reals u = load_up_to(mu + k, some);
        reals v = u - sign * a, g = of_v * v + of_vector * a, h = of_v_in_loc * v + of_vector * u;
        if (in_x) store_up_to(in_x + k, g, some);
        if (in_loc) store_up_to(in_loc + k, h, some);
        if (sums) {
            add_to(sums + k, h, some);
        }
    }
}

/* Computes the gradients of the rows `row`, ..., `end` - 1. */
static void density_gradient_rows(const void *call, int64_t row, int64_t end, loc_gradients to) {
    const density_call *c = call;
    int64_t d = c->dim;
    for (; row < end; row += GROUP) {
        row_group g;
        real grad[GROUP], weight[GROUP], in_kappa[GROUP];
        int count = end - row < GROUP ? (int)(end - row) : GROUP;
        size_t bytes = sizeof(real) * (size_t)count;
        find_group(c, &g, row, count);
        memcpy(g.minus, c->one_minus_t + row, bytes);
        memcpy(g.plus, c->one_plus_t + row, bytes);
        for (int i = 0; i < count; i++) grad[i] = c->grad[c->grad_step * (row + i)];
        for (int i = count; i % LANES; i++) g.minus[i] = g.plus[i] = 1, grad[i] = 0;
        for (int i = 0; i < count; i += DOUBLES) {
            doubles in_t, of_kappa, each = load_doubles(grad + i);
            density_slopes(load_scalars(&g, i), c->family, (double)(d - 1), &in_t, &of_kappa);
            store_doubles(weight + i, within_range(each * in_t));
            store_doubles(in_kappa + i, each * of_kappa);
        }
        if (c->grad_kappa) memcpy(c->grad_kappa + row, in_kappa, bytes);
        if (!c->grad_x && !to.rows && !to.sums) continue;
        for (int i = 0; i < count; i += LANES) {
            reals minus = load(g.minus + i), plus = load(g.plus + i), of_v = load(weight + i);
            masks near = minus < plus;
            reals sign = pick(near, splat(1), splat(-1));
            tangent_weights w = {sign, of_v, of_v * sign * pick(near, minus, plus)};
            int some = lanes_left(count, i);
#define GRADIENTS(d) small_gradients(c, &g, row, i, some, w, to, d)
            if (d <= SMALL) UNROLLED(d, GRADIENTS);
            else
                for (int j = 0; j < some; j++) {
                    int64_t r = row + i + j;
                    large_gradients(c->x + g.x[i + j] * d, c->loc + g.loc[i + j] * d, d, w.sign[j], w.of_v[j],
                                    w.of_vector[j], c->grad_x ? c->grad_x + r * d : 0, to.rows ? to.rows + r * d : 0,
                                    to.sums ? to.sums + r % to.directions * d : 0);
                }
        }
    }
}
