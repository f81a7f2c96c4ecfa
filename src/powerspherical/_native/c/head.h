/* The parameters of a head, from rows (v, r) of its outputs: mu = v/|v|, and
 *
 *     kappa = minimum + s/(1 + s/(maximum - minimum)) with s = log(1 + e^r).
 *
 * If no |v_i| exceeds `shortest`, v is replaced by v + e_1. Norms and inner products are computed in double precision,
 * in which squares of floats neither overflow nor underflow.
 */
#pragma once
#include "call.h"
#include "elementary.h"

#define HALF (LANES / 2) /* the number of lanes of `doubles` */

INLINE double total_of_doubles(doubles x) {
    double sum = 0;
    for (int i = 0; i < HALF; i++) sum += x[i];
    return sum;
}

INLINE double inner_product(const float *a, const float *b, int64_t d) {
    doubles sums = {0};
    int64_t k = 0;
    for (; k + HALF <= d; k += HALF) sums += load_as_doubles(a + k) * load_as_doubles(b + k);
    double sum = total_of_doubles(sums);
    for (; k < d; k++) sum += (double)a[k] * b[k];
    return sum;
}

/* Whether no |v_i| exceeds `shortest`, given |v|. A NaN does. */
INLINE int is_short(const float *v, int64_t d, double length, float shortest) {
    if (!(length <= shortest * sqrt((double)d))) return 0;
    for (int64_t k = 0; k < d; k++)
        if (!(fabsf(v[k]) <= shortest)) return 0;
    return 1;
}

INLINE void write_direction(float *mu, const float *v, int64_t d, float shortest) {
    double square = inner_product(v, v, d), first = v[0];
    if (is_short(v, d, sqrt(square), shortest)) {
        square += 1.0 + 2.0 * first;
        first += 1.0;
    }
    double inverse = 1.0 / sqrt(square);
    int64_t k = 0;
    for (; k + HALF <= d; k += HALF) store_as_floats(mu + k, load_as_doubles(v + k) * inverse);
    for (; k < d; k++) mu[k] = (float)(v[k] * inverse);
    mu[0] = (float)(first * inverse);
}

/* kappa and its derivative in r. A NaN stays a NaN. */
typedef struct { floats kappa, slope; } concentration;

INLINE concentration concentration_of(const head_call *c, floats r) {
    float minimum = (float)c->minimum, maximum = (float)c->maximum, span = (float)(c->maximum - c->minimum);
    floats decay = pick(absolute(r) > 87.0f, splat(0.0f), exp_of(-absolute(r))); /* exp_of stops at e^-87 */
    floats shrink = splat(1.0f);
    floats softplus = larger(r, splat(0.0f)) + log1p_of(decay);
    floats slope = pick(r > 0.0f, splat(1.0f), decay) / (1.0f + decay);
    if (c->maximum < INFINITY) shrink = 1.0f / (1.0f + softplus / span);
    floats kappa = minimum + softplus * shrink;
    kappa = pick(kappa > maximum, splat(maximum), kappa); /* guards against rounding */
    return (concentration){pick(r == r, kappa, r), pick(r == r, slope * shrink * shrink, r)};
}

INLINE floats raw_of_rows(const head_call *c, int64_t row, int some) {
    floats r = {0};
    for (int i = 0; i < some; i++) r[i] = c->outputs[(row + i) * c->entries + c->dim];
    return r;
}

static void head_rows(const head_call *c, int64_t row, int64_t end) {
    for (int64_t i = row; i < end; i++)
        write_direction(c->loc + i * c->dim, c->outputs + i * c->entries, c->dim, (float)c->shortest);
    for (int64_t i = row; c->kappa && i < end; i += LANES) {
        int some = lanes_left(end, i);
        store_some(c->kappa + i, concentration_of(c, raw_of_rows(c, i, some)).kappa, some);
    }
}

/* The gradient in v: that in mu, projected on the tangent space and divided by |v| = v.mu. */
INLINE void write_gradient(float *to, const float *v, const float *mu, const float *g, int64_t d, float shortest) {
    double length = inner_product(v, mu, d), along = inner_product(g, mu, d);
    if (!(length > shortest)) length += mu[0]; /* v + e_1 in place of v */
    double inverse = 1.0 / length;
    int64_t k = 0;
    for (; k + HALF <= d; k += HALF)
        store_as_floats(to + k, (load_as_doubles(g + k) - along * load_as_doubles(mu + k)) * inverse);
    for (; k < d; k++) to[k] = (float)((g[k] - along * mu[k]) * inverse);
}

static void head_gradient_rows(const head_call *c, int64_t row, int64_t end) {
    int64_t d = c->dim;
    for (int64_t i = row; i < end; i++) {
        float *to = c->gradient + i * c->entries;
        if (c->grad_loc)
            write_gradient(to, c->outputs + i * c->entries, c->loc + i * d, c->grad_loc + i * d, d, (float)c->shortest);
        else memset(to, 0, sizeof(float) * (size_t)d);
    }
    for (int64_t i = row; c->entries > d && i < end; i += LANES) {
        int some = lanes_left(end, i);
        floats in_raw = splat(0.0f);
        if (c->grad_kappa)
            in_raw = load_some(c->grad_kappa + i, some) * concentration_of(c, raw_of_rows(c, i, some)).slope;
        for (int j = 0; j < some; j++) c->gradient[(i + j) * c->entries + d] = in_raw[j];
    }
}
