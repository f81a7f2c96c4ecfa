/* Short rows, d <= SMALL: a lane holds a row, and a vector one coordinate of LANES rows.
 * Longer rows: a vector holds LANES coordinates of one row.
 */
#pragma once
#include "call.h"
#include "vectors.h"

#define SMALL 8

/* From LANES rows of d numbers in memory to d vectors. Lanes beyond the first `some` repeat the first row. */
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

/* From d vectors to the first `some` rows in memory. */
INLINE void scatter_rows(float *to, const floats *v, int64_t d, int some) {
    float columns[SMALL][LANES] ALIGNED;
    for (int k = 0; k < d; k++) store(columns[k], v[k]);
    for (int i = 0; i < some; i++)
        for (int k = 0; k < d; k++) to[i * d + k] = columns[k][i];
}

/* The directions of `some` rows from `row` on. */
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
