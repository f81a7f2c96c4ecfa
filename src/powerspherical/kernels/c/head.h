/* The parameters of a head, from rows (v, r) of its outputs: mu = v/|v|, and
 *
 *     kappa = minimum + s/(1 + s/(maximum - minimum)) with s = log(1 + e^r).
 *
 * If no |v_i| exceeds `shortest`, v is replaced by v + e_1. Norms and inner products are computed in double precision.
 */
#pragma once
#include "elementary.h"
#include "rows.h"

INLINE double inner_product(const real *a, const real *b, int64_t d) {
    doubles sums = {0};
    double sum = 0;
    int64_t k = 0;
    for (; k + DOUBLES <= d; k += DOUBLES) sums += load_doubles(a + k) * load_doubles(b + k);
    for (int i = 0; i < DOUBLES; i++) sum += sums[i];
    for (; k < d; k++) sum += (double)a[k] * b[k];
    return sum;
}

/* Whether no |v_i| exceeds `shortest`, given |v|. A NaN does. */
INLINE int is_short(const real *v, int64_t d, double length, real shortest) {
    if (!(length <= shortest * sqrt((double)d))) return 0;
    for (int64_t k = 0; k < d; k++)
        if (!(fabs(v[k]) <= shortest)) return 0;
    return 1;
}

INLINE void write_direction(real *mu, const real *v, int64_t d, real shortest) {
    double length = sqrt(inner_product(v, v, d)), first = v[0];
    if (is_short(v, d, length, shortest)) {
        length = sqrt(length * length + 1.0 + 2.0 * first);
        first += 1.0;
    } else if (REAL_BITS == 64 && isinf(length)) { /* the squares overflow; the scale of v does not matter */
        for (int64_t k = 0; k < d; k++) mu[k] = (real)(v[k] * 0x1p-600);
        v = mu;
        first = v[0];
        length = sqrt(inner_product(v, v, d));
    }
    double inverse = 1.0 / length;
    int64_t k = 0;
    for (; k + DOUBLES <= d; k += DOUBLES) store_doubles(mu + k, load_doubles(v + k) * inverse);
    for (; k < d; k++) mu[k] = (real)(v[k] * inverse);
    mu[0] = (real)(first * inverse);
}

INLINE real rate_of(const head_call *c) { return (real)(1 / (c->maximum - c->minimum)); }

INLINE reals raw_of_rows(const head_call *c, int64_t row, int some) {
    reals r = {0};
    for (int i = 0; i < some; i++) r[i] = c->outputs[(row + i) * c->entries + c->dim];
    return r;
}

static void head_rows(const void *call, int64_t row, int64_t end) {
    const head_call *c = call;
    for (int64_t i = row; i < end; i++)
        write_direction(c->loc + i * c->dim, c->outputs + i * c->entries, c->dim, (real)c->shortest);
    for (int64_t i = row; c->kappa && i < end; i += LANES) {
        int some = lanes_left(end, i);
        reals raw = raw_of_rows(c, i, some);
        store_some(c->kappa + i, concentration(raw, (real)c->minimum, (real)c->maximum, rate_of(c)), some);
    }
}

/* The gradient in v: that in mu, projected on the tangent space and divided by |v| = v.mu. */
INLINE void write_gradient(real *to, const real *v, const real *mu, const real *g, int64_t d, real shortest) {
    double length = inner_product(v, mu, d), along = inner_product(g, mu, d);
    if (!(length > shortest)) length += mu[0]; /* v + e_1 in place of v */
    double inverse = 1.0 / length;
    int64_t k = 0;
    for (; k + DOUBLES <= d; k += DOUBLES)
        store_doubles(to + k, (load_doubles(g + k) - along * load_doubles(mu + k)) * inverse);
    for (; k < d; k++) to[k] = (real)((g[k] - along * mu[k]) * inverse);
}

static void head_gradient_rows(const void *call, int64_t row, int64_t end) {
    const head_call *c = call;
    int64_t d = c->dim;
    for (int64_t i = row; i < end; i++) {
        real *to = c->gradient + i * c->entries;
        if (c->grad_loc)
            write_gradient(to, c->outputs + i * c->entries, c->loc + i * d, c->grad_loc + i * d, d, (real)c->shortest);
        else memset(to, 0, sizeof(real) * (size_t)d);
    }
    for (int64_t i = row; c->entries > d && i < end; i += LANES) {
        int some = lanes_left(end, i);
        reals in_raw = splat(0);
        if (c->grad_kappa)
            in_raw = load_some(c->grad_kappa + i, some) * concentration_slope(raw_of_rows(c, i, some), rate_of(c));
        for (int j = 0; j < some; j++) c->gradient[(i + j) * c->entries + d] = in_raw[j];
    }
}
