/* Draws the cosine t = mu.x of each row. It is stored as 1-t and 1+t, because each is accurate where it is small.
 *
 * S = |v|^2 of the tangent Gaussian vector v has a chi^2 distribution with d-1 degrees of freedom, and is independent of
 * the direction of v. So the draw of t can use S/2 as a Gamma(beta) variable, beta = (d-1)/2.
 */
#pragma once
#include "rejection.h"

/* Arrays over a group of rows. */
typedef struct { real one_minus_t[GROUP], one_plus_t[GROUP], noise[GROUP]; } cosines;

INLINE void store_cosines(cosines *out, int i, pair t, reals noise) {
    store(out->one_minus_t + i, t.first);
    store(out->one_plus_t + i, t.second);
    store(out->noise + i, noise);
}

/* Power Spherical: (1+t)/2 = G/(G + S/2) with G ~ Gamma(kappa + beta). The noise is G. */
INLINE void power_spherical_cosines(cosines *out, const real *squared_length, const real *kappa, real beta,
                                    int64_t row, int count, uint64_t seed) {
    real shape[GROUP];
    for (int i = 0; i < GROUP; i++) shape[i] = kappa[i] + beta;
    draw_gammas(out->noise, shape, row, count, GAMMA, seed);
    for (int i = 0; i < count; i += LANES) {
        reals g = load(out->noise + i), s = load(squared_length + i), sum = g + (real)0.5 * s;
        reals half = g / sum; /* doubled afterwards, because 2g may overflow */
        store_cosines(out, i, (pair){s / sum, half + half}, g);
    }
}

/* 1-t and 1+t, up to a common factor, of the coordinate t = n/sqrt(n^2 + S) of a uniform point, where n is normal:
 * (1-t)/(1+t) = S/(|n| + sqrt(n^2 + S))^2 for n > 0, and the reciprocal for n < 0. */
INLINE pair uniform_ends(reals normal, reals squared_length) {
    reals far = root_of(normal * normal + squared_length) + abs_of(normal);
    masks positive = normal > 0;
    far *= far;
    return (pair){pick(positive, squared_length, far), pick(positive, far, squared_length)};
}

typedef struct { const real *squared_length, *kappa; real beta; uint64_t seed; } von_mises_fisher_parameters;

/* A candidate of Wood (1994). With z ~ Beta(beta, beta) it is t = (1 - (1+b)z)/(1 - (1-b)z). The acceptance
 * probability is ((1-r) e^r)^(d-1) with r = y/(1+y), y = x0(1-2z). In this form no large terms cancel. The parameters are
 * b = beta/(kappa + sqrt(kappa^2 + beta^2)) and x0 = (1-b)/(1+b), computed without the subtraction.
 * 1-2z is a coordinate of a uniform point. The first attempt uses the row's own S. Later attempts draw S as a Gamma
 * variable, and are accepted if both its rejection and Wood's accept. */
INLINE masks wood_candidate(const void *parameters, const lane_rows *rows, reals *one_minus_t, reals *one_plus_t) {
    const von_mises_fisher_parameters *p = parameters;
    reals squared_length = take(p->squared_length, rows), normal, unused;
    masks usable = ~(masks){0};
    if (rows->attempt) {
        usable = gamma_candidate(splat(p->beta), rows, LENGTH, p->seed, &squared_length);
        squared_length += squared_length;
    }
    bits drawn[4];
    draw_four(rows->attempt, rows->rows, PROPOSAL, p->seed, drawn);
    normal_pair(drawn[0], drawn[1], &normal, &unused);
    reals kappa = take(p->kappa, rows), root = hypot_of(kappa, splat(p->beta));
    reals b = p->beta / (kappa + root), x0 = kappa / (root + p->beta);
    pair uniform = uniform_ends(normal, squared_length);
    reals z = uniform.first, rest = uniform.second, scaled = b * z, inverse = 1 / (rest + scaled);
    reals r = (real)0.5 * (rest - z) * x0 * (1 + b) * inverse;
    reals log_acceptance = (2 * p->beta) * (log1p_of(at_least_of(-r, (real)-0.99999994)) + r);
    *one_minus_t = 2 * scaled * inverse;
    *one_plus_t = 2 * rest * inverse;
    return usable & ~(log_acceptance < -exponential(drawn[2])); /* accepts NaN */
}

/* von Mises-Fisher. The slope does not use the noise. */
OUTLINE void von_mises_fisher_cosines(cosines *out, const real *squared_length, const real *kappa, real beta,
                                      int64_t row, int count, uint64_t seed) {
    von_mises_fisher_parameters p = {squared_length, kappa, beta, seed};
    draw_until_accepted(wood_candidate, &p, row, count, out->one_minus_t, out->one_plus_t);
    memcpy(out->noise, squared_length, sizeof(real) * (size_t)count);
}

/* Spherical Cauchy: (1+t)/(1-t) is (1+kappa)^2 times that of a uniform point. The noise is 1+kappa. */
INLINE void spherical_cauchy_cosines(cosines *out, const real *squared_length, const real *kappa, int64_t row,
                                     int count, uint64_t seed) {
    for (int i = 0; i < count; i += LANES) {
        bits drawn[4];
        draw_four(0, places_from((uint64_t)(row + i)), PROPOSAL, seed, drawn);
        reals normal, unused, s = load(squared_length + i), growth = 1 + load(kappa + i);
        normal_pair(drawn[0], drawn[1], &normal, &unused);
        pair uniform = uniform_ends(normal, s);
        store_cosines(out, i, boosted(uniform.first, uniform.second, growth), growth);
    }
}

/* Loads the numbers of the rows `row`, ..., or one number for all (step = 0), into an array over the group. Entries beyond
 * `count` repeat the first row. */
INLINE void load_group(real *to, const real *from, int64_t step, int64_t row, int count) {
    from += step * row;
    if (step) memcpy(to, from, sizeof(real) * (size_t)count);
    for (int i = step ? count : 0; i < GROUP; i++) to[i] = *from;
}

/* Larger kappa become LARGEST_KAPPA: for those x is mu up to rounding, and formulas might overflow. */
#define LARGEST_KAPPA ((real)(REAL_BITS == 64 ? 1e300 : 1e37))
INLINE void load_kappa(const sphere_call *c, real *kappa, int64_t row, int count) {
    load_group(kappa, c->kappa, c->kappa_step, row, count);
    for (int i = 0; i < GROUP; i += LANES) store(kappa + i, at_most_of(load(kappa + i), LARGEST_KAPPA));
}

/* Draws t for the rows `row`, ..., `row` + count - 1 from their S. Writes t and the noise to `out` and, if they are
 * needed, to the outputs of the call. */
static void draw_cosines(const sphere_call *c, cosines *out, const real *squared_length, int64_t row, int count) {
    real kappa[GROUP], other[GROUP], beta = (real)0.5 * (real)(c->law_dim - 1);
    uint64_t seed = *c->seed;
    load_kappa(c, kappa, row, count);
    if (c->law_dim != c->dim) { /* S must have law_dim - 1 degrees of freedom */
        real shape[GROUP];
        load_group(shape, &beta, 0, row, count);
        draw_gammas(other, shape, row, count, OTHER_LENGTH, seed);
        for (int i = 0; i < GROUP; i++) other[i] = i < count ? 2 * other[i] : 1;
        squared_length = other;
    }
    if (c->family == SPHERICAL_CAUCHY)
        spherical_cauchy_cosines(out, squared_length, kappa, row, count, seed);
    else if (c->law_dim == 3) /* t is the quantile of the uniform number e^(-S/2); the slope does not use the noise */
        for (int i = 0; i < count; i += LANES) {
            reals s = load(squared_length + i), k = load(kappa + i);
            store_cosines(out, i, c->family == POWER_SPHERICAL ? power_spherical_ends_3(s, k)
                                                               : von_mises_fisher_ends_3(s, k), s);
        }
    else if (c->family == POWER_SPHERICAL)
        power_spherical_cosines(out, squared_length, kappa, beta, row, count, seed);
    else
        von_mises_fisher_cosines(out, squared_length, kappa, beta, row, count, seed);
    const real *results[] = {out->one_minus_t, out->one_plus_t, out->noise};
    for (int i = 0; c->scalars && i < 3; i++)
        memcpy(c->scalars + i * c->rows + row, results[i], sizeof(real) * (size_t)count);
}
