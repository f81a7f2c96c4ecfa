/* Rows of d numbers. The vectors of short rows, d <= SMALL, hold one coordinate of LANES rows, one row per lane. The vectors
 * of longer rows hold LANES coordinates of one row.
 */
#pragma once
#include "call.h"

#define SMALL 8
#define GROUP 64 /* rows that are processed together */

/* Calls DO(d), for common d with a constant, so that the compiler unrolls the loops over coordinates. */
#define UNROLLED(d, DO) ((d) == 2 ? DO(2) : (d) == 3 ? DO(3) : (d) == 4 ? DO(4) : DO(d))

/* The rows `row`, ..., `row` + count - 1 of the result, at most GROUP, need the rows at[0], ... of an argument. */
typedef struct { const real *from; tile repeats; int64_t at[GROUP]; } argument_rows;

INLINE void find_rows(argument_rows *a, const real *from, tile t, int64_t row, int count) {
    int64_t place = row / t.inner % t.count, left = t.inner - row % t.inner;
    a->from = from, a->repeats = t;
    if (t.count == 1 || (t.inner == 1 && place + count <= t.count)) {
        for (int i = 0; i < GROUP; i++) a->at[i] = place + (t.count == 1 ? 0 : i);
        return;
    }
    for (int i = 0; i < count; i++) {
        a->at[i] = place;
        if (--left > 0) continue;
        left = t.inner;
        if (++place == t.count) place = 0;
    }
}

/* Loads `some` rows of d numbers into d vectors. Lanes beyond the first `some` repeat the first row. */
INLINE void gather_rows(reals *v, const real *from, int64_t d, int some) {
    real columns[SMALL][LANES] ALIGNED;
    if (some == LANES) {
        for (int i = 0; i < LANES; i++)
            for (int k = 0; k < d; k++) columns[k][i] = from[i * d + k];
    } else {
        for (int i = 0; i < LANES; i++)
            for (int k = 0; k < d; k++) columns[k][i] = from[(i < some ? i : 0) * d + k];
    }
    for (int k = 0; k < d; k++) v[k] = load(columns[k]);
}

/* Loads the rows of an argument that the rows i, ..., i + some - 1 of the group need. */
INLINE void gather(const argument_rows *a, int i, reals *v, int64_t d, int some) {
    const int64_t *at = a->at + i;
    if (a->repeats.count == 1) {
        for (int k = 0; k < d; k++) v[k] = splat(a->from[k]);
    } else if (at[some - 1] - at[0] == some - 1) { /* consecutive */
        gather_rows(v, a->from + at[0] * d, d, some);
    } else {
        real rows[LANES * SMALL];
        for (int j = 0; j < some; j++)
            for (int k = 0; k < d; k++) rows[j * d + k] = a->from[at[j] * d + k];
        gather_rows(v, rows, d, some);
    }
}

/* Stores the first `some` lanes of d vectors as rows of d numbers. */
INLINE void scatter_rows(real *to, const reals *v, int64_t d, int some) {
    real columns[SMALL][LANES] ALIGNED;
    for (int k = 0; k < d; k++) store(columns[k], v[k]);
    for (int i = 0; i < some; i++)
        for (int k = 0; k < d; k++) to[i * d + k] = columns[k][i];
}

/* One or two terms of the coordinates k, ..., k + some - 1 of a long row. */
typedef struct { reals one, two; } terms;
typedef terms terms_function(const void *row, int64_t k, int some);
typedef struct { const real *x, *mu; } point_and_direction; /* two rows, for terms that depend on both */

/* Sums of terms over the coordinates k, ..., end - 1. Their lanes are still to be added. */
INLINE terms sum_of(terms_function *terms_at, const void *row, int64_t k, int64_t end) {
    terms a = {{0}, {0}}, b = {{0}, {0}}, each; /* two sums each, to hide the latency of additions */
    for (; k + 2 * LANES <= end; k += 2 * LANES) {
        each = terms_at(row, k, LANES), a.one += each.one, a.two += each.two;
        each = terms_at(row, k + LANES, LANES), b.one += each.one, b.two += each.two;
    }
    for (; k < end; k += LANES) each = terms_at(row, k, lanes_left(end, k)), a.one += each.one, a.two += each.two;
    return (terms){a.one + b.one, a.two + b.two};
}

/* The same over all coordinates, more precisely: sums of so many coordinates are added in double precision. */
#define STRETCH 512
typedef struct { double one, two; } sums;
INLINE sums precise_sum_of(terms_function *terms_at, const void *row, int64_t d) {
    sums result = {0, 0};
    for (int64_t from = 0; from < d; from += STRETCH) {
        terms part = sum_of(terms_at, row, from, d - from < STRETCH ? d : from + STRETCH);
        result.one += total(part.one), result.two += total(part.two);
    }
    return result;
}

/* Where the gradients in mu go: an array with one gradient per row, or one sum per direction, or nowhere (both null).
 * Row r has the direction r mod `directions`. */
typedef struct { real *rows; double *sums; int64_t directions; } loc_gradients;

/* The place of one row there. */
INLINE loc_gradients gradient_of_row(loc_gradients to, int64_t row, int64_t d) {
    return (loc_gradients){to.rows ? to.rows + row * d : 0, to.sums ? to.sums + row % to.directions * d : 0, 1};
}

/* Writes `some` coordinates of a gradient to the place of its row. */
INLINE void write_coordinates(loc_gradients to, int64_t k, reals x, int some) {
    if (to.rows) store_up_to(to.rows + k, x, some);
    if (!to.sums) return;
    real numbers[LANES] ALIGNED;
    store(numbers, x);
    int i = 0;
    for (; i + DOUBLES <= some; i += DOUBLES) *(doubles_anywhere *)(to.sums + k + i) += load_doubles(numbers + i);
    for (; i < some; i++) to.sums[k + i] += numbers[i];
}

/* Writes the gradients of `some` rows with d <= SMALL. */
INLINE void write_small(loc_gradients to, int64_t row, const reals *v, int64_t d, int some) {
    if (to.rows) scatter_rows(to.rows + row * d, v, d, some);
    if (!to.sums) return;
    real rows[LANES * SMALL];
    scatter_rows(rows, v, d, some);
    for (int i = 0; i < some; i++)
        for (int k = 0; k < d; k++) to.sums[(row + i) % to.directions * d + k] += rows[i * d + k];
}
