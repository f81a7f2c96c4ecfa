/* Log-densities at rows of unit vectors, and their gradients in x, mu and kappa.
 *
 * A density depends on x through t = mu.x alone. We use 1-t = |x-mu|^2/2 and 1+t = |x+mu|^2/2: the inner product would
 * lose digits of 1-t, which a large kappa multiplies. The gradient of t in x is tangential to the sphere, mu - t x. We
 * compute it as v + s(1-st) x with v = mu - s x, where s = +-1 is the sign of t, so that both terms are small near
 * t = +-1. The gradient in mu is likewise -s v + s(1-st) mu.
 *
 * Coordinates are processed in float32. The few functions per row are computed in double precision.
 */
#pragma once
#include <float.h>

#include "double_normals.h"
#include "rejection.h"
#include "rows.h"

INLINE doubles pick_doubles(longs mask, doubles a, doubles b) {
    return (doubles)((mask & (longs)a) | (~mask & (longs)b));
}

/* log u for any u. If a lane is outside the range of log_of_doubles, libm computes all lanes. */
INLINE doubles log_of_any(doubles u) {
    doubles result = log_of_doubles(u);
    if (any(~(ints)((u >= 0x1p-1000) & (u <= 0x1p1000))))
        for (int i = 0; i < LANES / 2; i++) result[i] = log(u[i]);
    return result;
}

/* log(1+x) for x > -1, accurate also for small x: the second term corrects the rounding of 1+x. */
INLINE doubles log1p_of_doubles(doubles x) {
    doubles u = 1.0 + x;
    return log_of_any(u) + (x - (u - 1.0)) / u;
}

/* The statistic log((1+t)/2) of the Power Spherical family; -inf at the antipode. */
INLINE doubles power_statistic(doubles minus, doubles plus) {
    longs near = (longs)(minus < 1.0);
    doubles x = -0.5 * minus, u = pick_doubles(near, 1.0 + x, 0.5 * plus);
    return log_of_any(u) + pick_doubles(near, (x - (u - 1.0)) / u, u - u);
}

/* The scalars of LANES/2 rows. Exponential families have the density exp(offset + kappa T) relative to the uniform
 * distribution; `mean` is the mean of the statistic T. */
typedef struct { doubles minus, plus, kappa, offset, mean; } row_scalars;

INLINE doubles relative_log_density(row_scalars r, int64_t form, double dim) {
    if (form == SPHERICAL_CAUCHY)
        return (dim - 1.0) * (log1p_of_doubles(r.kappa) - log1p_of_doubles(0.5 * r.minus * r.kappa * (r.kappa + 2.0)));
    doubles statistic = -r.minus;
    if (form == POWER_SPHERICAL) {
        statistic = power_statistic(r.minus, r.plus);
        /* At kappa = 0 the density is uniform, also at the antipode. */
        statistic = pick_doubles((longs)((r.kappa == 0.0) & (statistic < -1e3)), r.kappa, statistic);
    }
    return r.offset + r.kappa * statistic;
}

/* The derivatives of the log-density in t and kappa. */
INLINE void density_slopes(row_scalars r, int64_t form, double dim, doubles *in_t, doubles *in_kappa) {
    if (form == SPHERICAL_CAUCHY) {
        doubles weight = 0.5 * r.kappa * (r.kappa + 2.0), spread = r.minus * weight;
        *in_t = (dim - 1.0) * (weight / (1.0 + spread));
        *in_kappa = (dim - 1.0) * (((1.0 - r.minus) - spread) / (1.0 + spread) / (1.0 + r.kappa));
    } else if (form == POWER_SPHERICAL) {
        doubles length = pick_doubles((longs)(r.minus < 1.0), 2.0 - r.minus, r.plus);
        /* At the antipode we define the derivative in t as 0. */
        *in_t = pick_doubles((longs)(length <= 0.0), 0.0 * r.kappa, r.kappa / length);
        *in_kappa = power_statistic(r.minus, r.plus) - r.mean;
    } else {
        *in_t = r.kappa;
        *in_kappa = -r.minus - r.mean;
    }
}

/* Clamps to the range of float. At the mode of a spherical Cauchy with a huge kappa, d log p/dt overflows, but the
 * gradient is zero. */
INLINE doubles within_float(doubles x) {
    const doubles most = FLT_MAX - (doubles){0};
    x = pick_doubles((longs)(x > most), most, x);
    return pick_doubles((longs)(x < -most), -most, x);
}

/* For up to GROUP rows of the result: the rows of x and loc that they need, and their scalars. Unused entries of kappa,
 * offset and mean are those of the first row. The callers fill those of minus and plus. */
typedef struct {
    int64_t x[GROUP], loc[GROUP];
    float minus[GROUP], plus[GROUP], kappa[GROUP], offset[GROUP], mean[GROUP];
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
    if (c->form == COSINE_ENDS) return;
    find_rows(at, c->kappa_tile, row, count);
    for (int i = 0; i < GROUP; i++) {
        int64_t k = at[i < count ? i : 0];
        g->kappa[i] = c->kappa[k], g->offset[i] = c->offset[k], g->mean[i] = c->mean[k];
    }
}

INLINE row_scalars load_scalars(const row_group *g, int i) {
    return (row_scalars){load_as_doubles(g->minus + i), load_as_doubles(g->plus + i), load_as_doubles(g->kappa + i),
                         load_as_doubles(g->offset + i), load_as_doubles(g->mean + i)};
}

/* Loads the rows at[0], ..., at[some - 1] of an argument with d <= SMALL, one row per lane. */
INLINE void gather_tile(const density_call *c, floats *v, const float *from, tile t, const int64_t *at, int some,
                        const int64_t d) {
    if (t.count == 1) {
        for (int k = 0; k < d; k++) v[k] = splat(from[k]);
    } else if (t.count == c->rows) {
        gather_rows(v, from + at[0] * d, d, some);
    } else {
        float rows[LANES * SMALL];
        for (int i = 0; i < some; i++)
            for (int k = 0; k < d; k++) rows[i * d + k] = from[at[i] * d + k];
        gather_rows(v, rows, d, some);
    }
}

INLINE void small_ends(const density_call *c, row_group *g, int count, const int64_t d) {
    for (int i = 0; i < count; i += LANES) {
        floats x[SMALL], mu[SMALL], minus = splat(0.0f), plus = splat(0.0f);
        int some = lanes_left(count, i);
        gather_tile(c, x, c->x, c->x_tile, g->x + i, some, d);
        gather_tile(c, mu, c->loc, c->loc_tile, g->loc + i, some, d);
        for (int k = 0; k < d; k++) {
            floats difference = x[k] - mu[k], sum = x[k] + mu[k];
            minus += difference * difference;
            plus += sum * sum;
        }
        store(g->minus + i, 0.5f * minus);
        store(g->plus + i, 0.5f * plus);
    }
}

#define STRETCH 512 /* coordinates that are summed in float32: their sums are added in double precision */

static void large_ends(const float *x, const float *mu, int64_t d, float *minus, float *plus) {
    double below = 0, above = 0;
    for (int64_t from = 0; from < d; from += STRETCH) {
        int64_t k = from, end = d - from < STRETCH ? d : from + STRETCH;
        floats m0 = {0}, m1 = {0}, p0 = {0}, p1 = {0}; /* two sums each, to hide the latency of additions */
        for (; k + 2 * LANES <= end; k += 2 * LANES) {
            floats a = load(x + k), b = load(x + k + LANES), u = load(mu + k), v = load(mu + k + LANES);
            m0 += (a - u) * (a - u);
            m1 += (b - v) * (b - v);
            p0 += (a + u) * (a + u);
            p1 += (b + v) * (b + v);
        }
        for (; k < end; k += LANES) {
            int some = lanes_left(end, k);
            floats a = some == LANES ? load(x + k) : load_some(x + k, some);
            floats u = some == LANES ? load(mu + k) : load_some(mu + k, some);
            m0 += (a - u) * (a - u);
            p0 += (a + u) * (a + u);
        }
        below += total(m0 + m1);
        above += total(p0 + p1);
    }
    *minus = (float)(0.5 * below);
    *plus = (float)(0.5 * above);
}

/* Computes the rows `row`, ..., `end` - 1. */
static void density_rows(const density_call *c, int64_t row, int64_t end) {
    int64_t d = c->dim;
    for (; row < end; row += GROUP) {
        row_group g;
        float value[GROUP];
        int count = end - row < GROUP ? (int)(end - row) : GROUP;
        size_t bytes = sizeof(float) * (size_t)count;
        find_group(c, &g, row, count);
        if (d == 2) small_ends(c, &g, count, 2);
        else if (d == 3) small_ends(c, &g, count, 3);
        else if (d == 4) small_ends(c, &g, count, 4);
        else if (d <= SMALL) small_ends(c, &g, count, d);
        else
            for (int i = 0; i < count; i++)
                large_ends(c->x + g.x[i] * d, c->loc + g.loc[i] * d, d, g.minus + i, g.plus + i);
        if (c->one_minus_t) memcpy(c->one_minus_t + row, g.minus, bytes);
        if (c->one_plus_t) memcpy(c->one_plus_t + row, g.plus, bytes);
        if (c->form == COSINE_ENDS) continue;
        for (int i = count; i % LANES; i++) g.minus[i] = g.plus[i] = 1;
        for (int i = 0; i < count; i += LANES / 2)
            store_as_floats(value + i, relative_log_density(load_scalars(&g, i), c->form, (double)d) - c->log_area);
        memcpy(c->value + row, value, bytes);
    }
}

/* Where the gradients in mu go: an array with one gradient per row, or one sum per direction, or nowhere (both null).
 * Row r has the direction r mod `directions`. */
typedef struct { float *rows; double *sums; int64_t directions; } loc_gradients;

INLINE void add_to(double *sums, const float *numbers, int64_t count) {
    for (int64_t k = 0; k < count; k++) sums[k] += numbers[k];
}

/* For LANES rows, with v and s as above: the gradient in x is of_v v + of_vector x, and the gradient in mu is
 * -sign of_v v + of_vector mu. */
typedef struct { floats sign, of_v, of_vector; } tangent_weights;

INLINE void small_gradients(const density_call *c, const row_group *g, int64_t row, int i, int some,
                            tangent_weights w, loc_gradients to, const int64_t d) {
    floats x[SMALL], mu[SMALL], in_x[SMALL], in_loc[SMALL];
    gather_tile(c, x, c->x, c->x_tile, g->x + i, some, d);
    gather_tile(c, mu, c->loc, c->loc_tile, g->loc + i, some, d);
    for (int k = 0; k < d; k++) {
        floats v = mu[k] - w.sign * x[k];
        in_x[k] = w.of_v * v + w.of_vector * x[k];
        in_loc[k] = w.of_vector * mu[k] - w.sign * w.of_v * v;
    }
    if (c->grad_x) scatter_rows(c->grad_x + (row + i) * d, in_x, d, some);
    if (to.rows) scatter_rows(to.rows + (row + i) * d, in_loc, d, some);
    if (to.sums) {
        float rows[LANES * SMALL];
        scatter_rows(rows, in_loc, d, some);
        for (int j = 0; j < some; j++) add_to(to.sums + (row + i + j) % to.directions * d, rows + j * d, d);
    }
}

/* One row with d > SMALL. Writes to `in_x`, `in_loc` and `sums`, unless they are null. */
static void large_gradients(const float *x, const float *mu, int64_t d, float sign, float of_v, float of_vector,
                            float *in_x, float *in_loc, double *sums) {
    float of_v_in_loc = -sign * of_v, part[LANES] ALIGNED;
    for (int64_t k = 0; k < d; k += LANES) {
        int some = lanes_left(d, k);
        floats a = some == LANES ? load(x + k) : load_some(x + k, some);
        floats u = some == LANES ? load(mu + k) : load_some(mu + k, some);
        floats v = u - sign * a, g = of_v * v + of_vector * a, h = of_v_in_loc * v + of_vector * u;
        if (some == LANES) {
            if (in_x) store(in_x + k, g);
            if (in_loc) store(in_loc + k, h);
        } else {
            if (in_x) store_some(in_x + k, g, some);
            if (in_loc) store_some(in_loc + k, h, some);
        }
        if (sums) {
            store(part, h);
            if (some == LANES) add_to(sums + k, part, LANES);
            else add_to(sums + k, part, some);
        }
    }
}

/* Computes the gradients of the rows `row`, ..., `end` - 1. */
static void density_gradient_rows(const density_call *c, int64_t row, int64_t end, loc_gradients to) {
    int64_t d = c->dim;
    for (; row < end; row += GROUP) {
        row_group g;
        float grad[GROUP], weight[GROUP], in_kappa[GROUP];
        int count = end - row < GROUP ? (int)(end - row) : GROUP;
        size_t bytes = sizeof(float) * (size_t)count;
        find_group(c, &g, row, count);
        memcpy(g.minus, c->one_minus_t + row, bytes);
        memcpy(g.plus, c->one_plus_t + row, bytes);
        for (int i = 0; i < count; i++) grad[i] = c->grad[c->grad_step * (row + i)];
        for (int i = count; i % LANES; i++) g.minus[i] = g.plus[i] = 1, grad[i] = 0;
        if (c->form == COSINE_ENDS) memcpy(weight, grad, sizeof grad);
        else
            for (int i = 0; i < count; i += LANES / 2) {
                doubles in_t, of_kappa, each = load_as_doubles(grad + i);
                density_slopes(load_scalars(&g, i), c->form, (double)d, &in_t, &of_kappa);
                store_as_floats(weight + i, within_float(each * in_t));
                store_as_floats(in_kappa + i, each * of_kappa);
            }
        if (c->grad_kappa) memcpy(c->grad_kappa + row, in_kappa, bytes);
        if (!c->grad_x && !to.rows && !to.sums) continue;
        for (int i = 0; i < count; i += LANES) {
            floats minus = load(g.minus + i), plus = load(g.plus + i), of_v = load(weight + i);
            ints near = minus < plus;
            floats sign = pick(near, splat(1.0f), splat(-1.0f));
            tangent_weights w = {sign, of_v, of_v * sign * pick(near, minus, plus)};
            int some = lanes_left(count, i);
            if (d == 2) small_gradients(c, &g, row, i, some, w, to, 2);
            else if (d == 3) small_gradients(c, &g, row, i, some, w, to, 3);
            else if (d == 4) small_gradients(c, &g, row, i, some, w, to, 4);
            else if (d <= SMALL) small_gradients(c, &g, row, i, some, w, to, d);
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
