/* Transposition of short rows, d <= SMALL. Their vectors hold one coordinate of LANES rows, one row per lane.
 * The vectors of longer rows hold LANES coordinates of one row.
 */
#pragma once
#include "call.h"
#include "vectors.h"

#define SMALL 8
#define GROUP 64 /* rows that are processed together */

/* Calls DO(d), for common d with a constant, so that the compiler unrolls the loops over coordinates. */
#define UNROLLED(d, DO) ((d) == 2 ? DO(2) : (d) == 3 ? DO(3) : (d) == 4 ? DO(4) : DO(d))

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

/* Stores the first `some` lanes of d vectors as rows of d numbers. */
INLINE void scatter_rows(real *to, const reals *v, int64_t d, int some) {
    real columns[SMALL][LANES] ALIGNED;
    for (int k = 0; k < d; k++) store(columns[k], v[k]);
    for (int i = 0; i < some; i++)
        for (int k = 0; k < d; k++) to[i * d + k] = columns[k][i];
}

/* Loads the directions of the rows `row`, ..., `row` + some - 1. */
INLINE void gather_directions(const sphere_call *c, reals *mu, int64_t row, int some, const int64_t d) {
    int64_t m = c->directions, at = row % m;
    if (m == 1) {
        for (int k = 0; k < d; k++) mu[k] = splat(c->loc[k]);
    } else if (at + some <= m) {
        gather_rows(mu, c->loc + at * d, d, some);
    } else {
        real rows[LANES * SMALL];
        for (int i = 0; i < some; i++)
            memcpy(rows + i * d, c->loc + (row + i) % m * d, sizeof(real) * (size_t)d);
        gather_rows(mu, rows, d, some);
    }
}

/* The first `some` numbers of an array. */
INLINE reals load_up_to(const real *from, int some) { return some == LANES ? load(from) : load_some(from, some); }
INLINE void store_up_to(real *to, reals x, int some) {
    if (some == LANES) store(to, x);
    else store_some(to, x, some);
}

/* Where the gradients in mu go: an array with one gradient per row, or one sum per direction, or nowhere (both null).
 * Row r has the direction r mod `directions`. */
typedef struct { real *rows; double *sums; int64_t directions; } loc_gradients;

/* Adds the first `some` lanes to sums. */
INLINE void add_to(double *sums, reals x, int some) {
    real numbers[LANES] ALIGNED;
    store(numbers, x);
    int k = 0;
    for (; k + DOUBLES <= some; k += DOUBLES) *(doubles_anywhere *)(sums + k) += load_doubles(numbers + k);
    for (; k < some; k++) sums[k] += numbers[k];
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
