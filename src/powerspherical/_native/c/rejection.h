/* Rejection sampling of one or two numbers per row, for up to GROUP rows at a time, and Gamma variables.
 *
 * The first attempt covers all rows. Rejected rows go to a list, and further attempts run over the list in full vectors.
 * So a row that needs many attempts does not delay the other rows of its vector.
 */
#pragma once
#include "random.h"

#define GROUP 64

typedef struct { int32_t at[GROUP + LANES]; int count; } row_list; /* positions of rows in the group */

/* The rows of the lanes. `at` has their positions in the group, which are consecutive in attempt 0. `low` and `high` are
 * the two words of the absolute row numbers, for Philox. */
typedef struct { const int32_t *at; uint32_t attempt; words low, high; } lane_rows;

/* Writes candidates for the lanes and returns a mask of the accepted ones. It must accept NaN. Otherwise the loop over
 * attempts would not end. */
typedef ints candidate_function(const void *parameters, const lane_rows *rows, floats *first, floats *second);

INLINE lane_rows rows_at(int64_t row, const int32_t *at, uint32_t attempt) {
    words start = splat_word((uint32_t)row), low = start + (words) * (const ints_anywhere *)at;
    words high = splat_word((uint32_t)((uint64_t)row >> 32)) - (words)(low < start); /* with the carry */
    return (lane_rows){at, attempt, low, high};
}

/* Reads a number for each lane from an array over the group. */
INLINE floats take(const float *from, const lane_rows *rows) {
    if (!rows->attempt) return load(from + rows->at[0]);
    float r[LANES];
    for (int i = 0; i < LANES; i++) r[i] = from[rows->at[i]];
    return load(r);
}

INLINE void append_rejected(row_list *list, const int32_t *at, int some, ints accepted) {
    for (int i = 0; i < some; i++)
        if (!accepted[i]) list->at[list->count++] = at[i];
}

/* Writes the first accepted candidates of the rows `row`, ..., `row` + count - 1 to `first` and, if it is not null,
 * `second`. Both are arrays over the group. */
INLINE void draw_until_accepted(candidate_function *candidate, const void *parameters, int64_t row, int count,
                                float *first, float *second) {
    row_list lists[2], *waiting = lists, *still_waiting = lists + 1;
    floats a, b = splat(0.0f);
    waiting->count = 0;
    for (int i = 0; i < count; i += LANES) {
        ints at = (ints)(lane_numbers() + (uint32_t)i);
        lane_rows rows = rows_at(row, (int32_t *)&at, 0);
        ints accepted = candidate(parameters, &rows, &a, &b);
        store(first + i, a);
        if (second) store(second + i, b);
        if (any(~accepted)) append_rejected(waiting, (int32_t *)&at, lanes_left(count, i), accepted);
    }
    for (uint32_t attempt = 1; waiting->count; attempt++) {
        still_waiting->count = 0;
        for (int i = 0; i < LANES; i++) waiting->at[waiting->count + i] = waiting->at[0]; /* fills the last vector */
        for (int i = 0; i < waiting->count; i += LANES) {
            const int32_t *at = waiting->at + i;
            int some = lanes_left(waiting->count, i);
            lane_rows rows = rows_at(row, at, attempt);
            ints accepted = candidate(parameters, &rows, &a, &b);
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
INLINE floats log1p_rest(floats w) {
    floats s = w * 0.1f - 1.0f / 9;
    s = s * w + 0.125f;
    s = s * w - 1.0f / 7;
    s = s * w + 1.0f / 6;
    s = s * w - 0.2f;
    s = s * w + 0.25f;
    floats square = w * w, direct = log_of(1.0f + w) - w + square * (0.5f - w * (1.0f / 3));
    return pick(absolute(w) < 0.25f, -(square * square) * s, direct);
}

/* A candidate for a Gamma variable of shape >= 1/2: d (1+w)^3 with w = z/sqrt(9d), z normal, d = shape - 1/3. Its
 * acceptance probability is exp(d(3 log(1+w) - (1+w)^3 + 1) + z^2/2) = exp(3d (log(1+w) - w + w^2/2 - w^3/3)).
 * A shape below 1 is raised by one first: a Gamma variable of shape+1 times u^(1/shape) has the smaller shape. */
INLINE ints gamma_candidate(floats shape, const lane_rows *rows, uint32_t stream, uint64_t seed, floats *gamma) {
    ints raised = shape < 1.0f;
    floats d = shape + pick(raised, splat(2.0f / 3), splat(-1.0f / 3)), z, unused;
    quartet bits = philox(splat_word(rows->attempt), rows->low, rows->high, stream, seed);
    normal_pair(bits.a, bits.b, &z, &unused);
    floats w = z / root(9.0f * d);
    ints inside = ~(w <= -1.0f); /* also for NaN */
    w = pick(inside, w, splat(0.0f));
    floats v = 1.0f + w;
    *gamma = d * v * v * v;
    if (any(raised)) *gamma = pick(raised, *gamma * exp_of(-exponential(bits.d) / shape), *gamma);
    return inside & ~(-exponential(bits.c) >= d * (3.0f * log1p_rest(w)));
}

typedef struct { const float *shape; uint32_t stream; uint64_t seed; } gamma_parameters;

INLINE ints gamma_from_array(const void *parameters, const lane_rows *rows, floats *gamma, floats *unused) {
    const gamma_parameters *p = parameters;
    (void)unused;
    return gamma_candidate(take(p->shape, rows), rows, p->stream, p->seed, gamma);
}

/* Gamma variables of the given shapes; both are arrays over the group. */
OUTLINE void draw_gammas(float *out, const float *shape, int64_t row, int count, uint32_t stream, uint64_t seed) {
    gamma_parameters p = {shape, stream, seed};
    draw_until_accepted(gamma_from_array, &p, row, count, out, 0);
}
