/* Rejection sampling of one or two numbers per row, for up to GROUP rows at a time, and Gamma variables.
 *
 * The first attempt covers all rows. Rejected rows go to a list, and further attempts run over the list in full vectors.
 * So a row that needs many attempts does not delay the other rows of its vector.
 */
#pragma once
#include "random.h"
#include "rows.h"

typedef struct { int32_t at[GROUP + LANES]; int count; } row_list; /* positions of rows in the group */

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

INLINE void append_rejected(row_list *list, const int32_t *at, int some, masks accepted) {
    for (int i = 0; i < some; i++)
        if (!accepted[i]) list->at[list->count++] = at[i];
}

/* Writes the first accepted candidates of the rows `row`, ..., `row` + count - 1 to `first` and, if it is not null,
 * `second`. Both are arrays over the group. */
INLINE void draw_until_accepted(candidate_function *candidate, const void *parameters, int64_t row, int count,
                                real *first, real *second) {
    row_list lists[2], *waiting = lists, *still_waiting = lists + 1;
    reals a, b = splat(0);
    waiting->count = 0;
    for (int i = 0; i < count; i += LANES) {
        int32_t at[LANES];
        for (int k = 0; k < LANES; k++) at[k] = i + k;
        lane_rows rows = {at, 0, places_from((uint64_t)(row + i))};
        masks accepted = candidate(parameters, &rows, &a, &b);
        store(first + i, a);
        if (second) store(second + i, b);
        if (any(~accepted)) append_rejected(waiting, at, lanes_left(count, i), accepted);
    }
    for (uint32_t attempt = 1; waiting->count; attempt++) {
        still_waiting->count = 0;
        for (int i = 0; i < LANES; i++) waiting->at[waiting->count + i] = waiting->at[0]; /* fills the last vector */
        for (int i = 0; i < waiting->count; i += LANES) {
            const int32_t *at = waiting->at + i;
            int some = lanes_left(waiting->count, i);
            lane_rows rows = {at, attempt, places_at((uint64_t)row, at)};
            masks accepted = candidate(parameters, &rows, &a, &b);
            for (int k = 0; k < some; k++) {
                first[at[k]] = a[k];
                if (second) second[at[k]] = b[k];
            }
            append_rejected(still_waiting, at, some, accepted);
        }
        row_list *swapped = waiting;
        waiting = still_waiting;
        still_waiting = swapped;
    }
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
