/* Draws the cosine t = mu.x of each row. It is stored as 1-t and 1+t, because each is accurate where it is small.
 *
 * S = |v|^2 of the tangent Gaussian vector v has a chi^2 distribution with d-1 degrees of freedom, and is independent of
 * the direction of v. So the draw of t can use S/2 as a Gamma(beta) variable, beta = (d-1)/2.
 */
#pragma once
#include "call.h"
#include "rejection.h"

/* Arrays over a group of rows. */
typedef struct { float one_minus_t[GROUP], one_plus_t[GROUP], noise[GROUP]; } cosines;

/* Power Spherical: (1+t)/2 = G/(G + S/2) with G ~ Gamma(kappa + beta). The noise is G. */
INLINE void power_spherical_cosines(cosines *out, const float *squared_length, const float *kappa, float beta,
                                    int64_t row, int count, uint64_t seed) {
    float shape[GROUP];
    for (int i = 0; i < GROUP; i++) shape[i] = kappa[i] + beta;
    draw_gammas(out->noise, shape, row, count, GAMMA, seed);
    for (int i = 0; i < count; i += LANES) {
        floats g = load(out->noise + i), s = load(squared_length + i), sum = g + 0.5f * s;
        floats half = g / sum; /* doubled afterwards, because 2g may overflow */
        store(out->one_minus_t + i, s / sum);
        store(out->one_plus_t + i, half + half);
    }
}

/* In three dimensions u = e^(-S/2) is uniform, and t is its quantile (docs/mathematics.md). The noise is S, which the
 * slope does not use. */

/* Power Spherical: (1+t)/2 = u^(1/(kappa+1)) */
INLINE void power_spherical_cosines_3(cosines *out, const float *squared_length, const float *kappa, int count) {
    for (int i = 0; i < count; i += LANES) {
        floats k = load(kappa + i), s = load(squared_length + i), scale;
        floats e = exp_parts(-0.5f * s / (1.0f + k), &scale) + 0.0f * k; /* keeps NaN */
        store(out->one_minus_t + i, -2.0f * ((scale - 1.0f) + scale * e));
        store(out->one_plus_t + i, 2.0f * (scale + scale * e));
        store(out->noise + i, s);
    }
}

/* von Mises-Fisher: e^(-k(1-t)) = 1 - (1-u)(1 - e^(-2k)) = u + (1-u) e^(-2k). To keep all digits we compute
 *
 *     k(1-t) = S/2 - log1p((e^(S/2) - 1) e^(-2k))   for k >= 1,    -log1p(-(1-u)(1 - e^(-2k)))   below,
 *     k(1+t) = log1p(u (e^(2k) - 1))                for k < 10,    k(2 - (1-t))                  above.
 */
INLINE void von_mises_fisher_cosines_3(cosines *out, const float *squared_length, const float *kappa, int count) {
    for (int i = 0; i < count; i += LANES) {
        floats given = load(kappa + i), s = load(squared_length + i), half = 0.5f * s, scale;
        floats k = larger(given, splat(1e-20f)); /* kappa = 0 is the limit */
        floats e = exp_parts(-half, &scale), u = scale + scale * e, complement = -((scale - 1.0f) + scale * e);
        floats far = half - log1p_of(expm1_of(half) * exp_of(-2.0f * k));
        floats near_uniform = -log1p_of(larger(complement * expm1_of(-2.0f * k), splat(-0.99999994f)));
        floats minus = smaller(pick(k < 1.0f, near_uniform, far) / k, splat(2.0f)); /* rounding may exceed 2 */
        floats plus = log1p_of(u * expm1_of(2.0f * smaller(k, splat(10.0f)))) / k;
        plus = pick(k < 10.0f, smaller(plus, splat(2.0f)), 2.0f - minus);
        store(out->one_minus_t + i, minus + 0.0f * given); /* keeps NaN */
        store(out->one_plus_t + i, plus + 0.0f * given);
        store(out->noise + i, s);
    }
}

/* Wood's parameter b = beta/(kappa + sqrt(kappa^2 + beta^2)), and x0 = (1-b)/(1+b) without the subtraction */
typedef struct { floats b, x0; } wood_parameters;

INLINE wood_parameters wood(floats kappa, float beta) {
    floats r = hypotenuse(kappa, splat(beta));
    return (wood_parameters){beta / (kappa + r), kappa / (r + beta)};
}

typedef struct { const float *squared_length, *kappa; float beta; uint64_t seed; } von_mises_fisher_parameters;

/* A candidate of Wood (1994). With z ~ Beta(beta, beta) it is t = (1 - (1+b)z)/(1 - (1-b)z). The acceptance
 * probability is ((1-r) e^r)^(d-1) with r = y/(1+y), y = x0(1-2z). In this form no large terms cancel.
 * 1-2z is a coordinate n/sqrt(n^2 + S) of a uniform point, where n is normal. Hence z/(1-z) = S/(|n| + sqrt(n^2 + S))^2
 * for n > 0, and the reciprocal for n < 0. The first attempt uses the row's own S. Later attempts draw S as a Gamma
 * variable, and are accepted if both its rejection and Wood's accept. */
INLINE ints wood_candidate(const void *parameters, const lane_rows *rows, floats *one_minus_t, floats *one_plus_t) {
    const von_mises_fisher_parameters *p = parameters;
    floats squared_length, normal, unused;
    ints usable = (ints)splat_word(0xffffffffu);
    if (rows->attempt) {
        usable = gamma_candidate(splat(p->beta), rows, LENGTH, p->seed, &squared_length);
        squared_length += squared_length;
    } else {
        squared_length = take(p->squared_length, rows);
    }
    quartet bits = philox(splat_word(rows->attempt), rows->low, rows->high, PROPOSAL, p->seed);
    normal_pair(bits.a, bits.b, &normal, &unused);
    wood_parameters w = wood(take(p->kappa, rows), p->beta);
    floats far = root(normal * normal + squared_length) + absolute(normal);
    far *= far;
    ints positive = normal > 0.0f;
    floats z = pick(positive, squared_length, far), rest = pick(positive, far, squared_length);
    floats scaled = w.b * z, inverse = 1.0f / (rest + scaled);
    floats r = 0.5f * (rest - z) * w.x0 * (1.0f + w.b) * inverse;
    floats log_acceptance = (2.0f * p->beta) * (log1p_of(larger(-r, splat(-0.99999994f))) + r);
    *one_minus_t = 2.0f * scaled * inverse;
    *one_plus_t = 2.0f * rest * inverse;
    return usable & ~(log_acceptance < -exponential(bits.c)); /* accepts NaN */
}

/* von Mises-Fisher. The slope does not use the noise. We store b, like the torch implementation. */
OUTLINE void von_mises_fisher_cosines(cosines *out, const float *squared_length, const float *kappa, float beta,
                                      int64_t row, int count, uint64_t seed) {
    von_mises_fisher_parameters p = {squared_length, kappa, beta, seed};
    draw_until_accepted(wood_candidate, &p, row, count, out->one_minus_t, out->one_plus_t);
    for (int i = 0; i < count; i += LANES) store(out->noise + i, wood(load(kappa + i), beta).b);
}

/* Spherical Cauchy: (1+t)/(1-t) is (1+kappa)^2 times that of a uniform point. The noise is 1+kappa.
 * The cosine of a uniform point is n/sqrt(n^2 + S), as in `wood_candidate`. */
INLINE void spherical_cauchy_cosines(cosines *out, const float *squared_length, const float *kappa, int64_t row,
                                     int count, uint64_t seed) {
    for (int i = 0; i < count; i += LANES) {
        ints at = (ints)(lane_numbers() + (uint32_t)i);
        lane_rows rows = rows_at(row, (int32_t *)&at, 0);
        quartet bits = philox(splat_word(0), rows.low, rows.high, PROPOSAL, seed);
        floats normal, unused, s = load(squared_length + i), growth = 1.0f + load(kappa + i);
        normal_pair(bits.a, bits.b, &normal, &unused);
        floats far = root(normal * normal + s) + absolute(normal);
        far *= far;
        ints positive = normal > 0.0f;
        floats minus = pick(positive, s, far) / growth / growth; /* growth^2 may overflow */
        floats plus = pick(positive, far, s), scale = 2.0f / (minus + plus);
        store(out->one_minus_t + i, minus * scale);
        store(out->one_plus_t + i, plus * scale);
        store(out->noise + i, growth);
    }
}

/* Loads kappa of the rows into an array over the group. Entries beyond `count` repeat the first row. */
INLINE void load_kappa(const sphere_call *c, float *kappa, int64_t row, int count) {
    for (int i = 0; i < GROUP; i++) kappa[i] = c->kappa[c->kappa_step * (row + (i < count ? i : 0))];
}

/* Draws t for the rows `row`, ..., `row` + count - 1 from their S. Writes t and the noise to `out` and, if they are
 * needed, to the outputs of the call. */
static void draw_cosines(const sphere_call *c, cosines *out, const float *squared_length, int64_t row, int count) {
    float kappa[GROUP], other[GROUP], shape[GROUP], beta = 0.5f * (float)(c->law_dim - 1);
    uint64_t seed = *c->seed;
    load_kappa(c, kappa, row, count);
    if (c->law_dim != c->dim) { /* S must have law_dim - 1 degrees of freedom */
        for (int i = 0; i < GROUP; i++) shape[i] = beta;
        draw_gammas(other, shape, row, count, OTHER_LENGTH, seed);
        for (int i = 0; i < count; i++) other[i] *= 2;
        for (int i = count; i < GROUP; i++) other[i] = 1;
        squared_length = other;
    }
    if (c->family == SPHERICAL_CAUCHY) spherical_cauchy_cosines(out, squared_length, kappa, row, count, seed);
    else if (c->family == POWER_SPHERICAL && c->law_dim == 3)
        power_spherical_cosines_3(out, squared_length, kappa, count);
    else if (c->family == POWER_SPHERICAL)
        power_spherical_cosines(out, squared_length, kappa, beta, row, count, seed);
    else if (c->law_dim == 3) von_mises_fisher_cosines_3(out, squared_length, kappa, count);
    else von_mises_fisher_cosines(out, squared_length, kappa, beta, row, count, seed);
    if (!c->one_minus_t) return;
    size_t size = sizeof(float) * (size_t)count;
    memcpy(c->one_minus_t + row, out->one_minus_t, size);
    memcpy(c->one_plus_t + row, out->one_plus_t, size);
    memcpy(c->noise + row, out->noise, size);
}
