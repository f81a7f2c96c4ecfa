/* Transposition of short rows, d <= SMALL. Their vectors hold one coordinate of LANES rows, one row per lane.
 * The vectors of longer rows hold LANES coordinates of one row.
 */
#pragma once
#include "call.h"
#include "vectors.h"

#define SMALL 8

/* Loads `some` rows of d numbers into d vectors. Lanes beyond the first `some` repeat the first row. */
INLINE void gather_rows(floats *v, const float *from, int64_t d, int some) {
    float columns[SMALL][LANES] ALIGNED;
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
INLINE void scatter_rows(float *to, const floats *v, int64_t d, int some) {
    float columns[SMALL][LANES] ALIGNED;
    for (int k = 0; k < d; k++) store(columns[k], v[k]);
    for (int i = 0; i < some; i++)
        for (int k = 0; k < d; k++) to[i * d + k] = columns[k][i];
}

/* Loads the directions of the rows `row`, ..., `row` + some - 1. */
INLINE void gather_directions(const sphere_call *c, floats *mu, int64_t row, int some, const int64_t d) {
    int64_t m = c->directions, at = row % m;
    if (m == 1) {
        for (int k = 0; k < d; k++) mu[k] = splat(c->loc[k]);
    } else if (at + some <= m) {
        gather_rows(mu, c->loc + at * d, d, some);
    } else {
        float rows[LANES * SMALL];
        for (int i = 0; i < some; i++)
            memcpy(rows + i * d, c->loc + (row + i) % m * d, sizeof(float) * (size_t)d);
        gather_rows(mu, rows, d, some);
    }
}
