/* Rejection sampling of one or two numbers per row, for up to GROUP rows at a time, and Gamma variables.
 *
 * The first attempt covers all rows. Further attempts run over a list of the rejected rows, in full vectors. So a row that
 * needs many attempts does not delay the other rows of its vector.
 */
#pragma once
#include "random.h"
#include "rows.h"

/* The rows of the lanes: their positions in the group, which are consecutive in attempt 0, and their absolute numbers. */
typedef struct { const int32_t *at; uint32_t attempt; places rows; } lane_rows;

/* Writes candidates for the lanes and returns a mask of the accepted ones. It must accept NaN. Otherwise the loop over
 * attempts would not end. */
typedef masks candidate_function(const void *parameters, const lane_rows *rows, reals *first, reals *second);

/* Reads a number for each lane from an array over the group. */
INLINE reals take(const real *from, const lane_rows *rows) {
    if (!rows->attempt) return load(from + rows->at[0]);
    real r[LANES];
    for (int i = 0; i < LANES; i++) r[i] = from[rows->at[i]];
    return load(r);
}
/* Writes the numbers of the first `some` lanes to an array over the group. */
INLINE void put(real *to, reals x, const lane_rows *rows, int some) {
    if (!rows->attempt) store(to + rows->at[0], x);
    else
        for (int i = 0; i < some; i++) to[rows->at[i]] = x[i];
}

/* Makes one attempt for the rows at[0], ..., at[count-1], and keeps those that were rejected at the start of this list.
 * Returns their number. */
INLINE int attempt_rows(candidate_function *candidate, const void *parameters, uint32_t attempt, int64_t row, int32_t *at,
                        int count, real *first, real *second) {
    int rejected = 0;
    for (int i = 0; i < count; i += LANES) {
        reals a, b = splat(0);
        int some = lanes_left(count, i);
        lane_rows rows = {at + i, attempt, attempt ? places_at((uint64_t)row, at + i) : places_from((uint64_t)(row + i))};
        masks accepted = candidate(parameters, &rows, &a, &b);
        put(first, a, &rows, some);
        if (second) put(second, b, &rows, some);
        if (!any(~accepted)) continue;
        for (int k = 0; k < some; k++)
            if (!accepted[k]) at[rejected++] = at[i + k];
    }
    for (int i = 0; i < LANES; i++) at[rejected + i] = at[0]; /* fills the last vector */
    return rejected;
}

/* Writes the first accepted candidates of the rows `row`, ..., `row` + count - 1 to `first` and, if it is not null,
 * `second`. Both are arrays over the group. */
INLINE void draw_until_accepted(candidate_function *candidate, const void *parameters, int64_t row, int count,
                                real *first, real *second) {
    int32_t at[GROUP + LANES];
    for (int i = 0; i < GROUP; i++) at[i] = i;
    int waiting = attempt_rows(candidate, parameters, 0, row, at, count, first, second);
    for (uint32_t attempt = 1; waiting; attempt++)
        waiting = attempt_rows(candidate, parameters, attempt, row, at, waiting, first, second);
}

/* ---- Gamma variables (Marsaglia & Tsang 2000) ---- */

/* log(1+w) - w + w^2/2 - w^3/3, by its power series near 0, where the terms cancel */
INLINE reals log1p_rest(reals w) {
    const int terms = REAL_BITS == 64 ? 20 : 7;
    const real near = REAL_BITS == 64 ? (real)0.15 : (real)0.25;
    reals series = splat(0);
#pragma GCC unroll 20
    for (int k = terms - 1; k >= 0; k--) series = series * -w + (real)1 / (real)(k + 4);
    reals square = w * w, direct = log_of(1 + w) - w + square * ((real)0.5 - w * ((real)1 / 3));
    return pick(abs_of(w) < near, -(square * square) * series, direct);
}

/* A candidate for a Gamma variable of shape >= 1/2: d (1+w)^3 with w = z/sqrt(9d), z normal, d = shape - 1/3. Its
 * acceptance probability is exp(d(3 log(1+w) - (1+w)^3 + 1) + z^2/2) = exp(3d (log(1+w) - w + w^2/2 - w^3/3)).
 * A shape below 1 is raised by one first: a Gamma variable of shape+1 times u^(1/shape) has the smaller shape. */
INLINE masks gamma_candidate(reals shape, const lane_rows *rows, uint32_t stream, uint64_t seed, reals *gamma) {
    masks raised = shape < 1;
    reals d = shape + pick(raised, splat((real)2 / 3), splat((real)-1 / 3)), z, unused;
    bits drawn[4];
    draw_four(rows->attempt, rows->rows, stream, seed, drawn);
    normal_pair(drawn[0], drawn[1], &z, &unused);
    reals w = z / root_of(9 * d);
    masks inside = ~(w <= -1); /* also for NaN */
    w = pick(inside, w, splat(0));
    reals v = 1 + w;
    *gamma = d * v * v * v;
    if (any(raised)) *gamma = pick(raised, *gamma * exp_of(-exponential(drawn[3]) / shape), *gamma);
    return inside & ~(-exponential(drawn[2]) >= d * (3 * log1p_rest(w)));
}

typedef struct { const real *shape; uint32_t stream; uint64_t seed; } gamma_parameters;

INLINE masks gamma_from_array(const void *parameters, const lane_rows *rows, reals *gamma, reals *unused) {
    const gamma_parameters *p = parameters;
    (void)unused;
    return gamma_candidate(take(p->shape, rows), rows, p->stream, p->seed, gamma);
}

/* Gamma variables of the given shapes; both are arrays over the group. */
OUTLINE void draw_gammas(real *out, const real *shape, int64_t row, int count, uint32_t stream, uint64_t seed) {
    gamma_parameters p = {shape, stream, seed};
    draw_until_accepted(gamma_from_array, &p, row, count, out, 0);
}
