/* The points: x = t mu + sqrt(1-t^2) v/|v|, where v = e - (e.mu) mu is the tangential part of a normal vector e. */
#pragma once
#include "cosines.h"

#define SHORT 16  /* up to this dimension v may be short, and |e|^2 - (e.mu)^2 would lose digits */
#define NEAR ((int64_t)(16384 / sizeof(real))) /* numbers of x per block: they stay in the L1 cache between two passes */

/* Rows with d <= SMALL. Row 16q + i uses the normals 16(qd + k) + i, k = 0, ..., d-1, so no transposition is needed. */
INLINE void draw_small(const sphere_call *c, normal_sequence *s, const argument_rows *loc, int64_t row, int count,
                       const int64_t d) {
    real noise[SMALL * GROUP] ALIGNED, squared_length[GROUP];
    reals v[GROUP / LANES][SMALL], mu[GROUP / LANES][SMALL];
    cosines t;
    int64_t each = d == 2 ? 1 : d; /* normals per row */
    normals(s, noise, row * each, (count + 15) / 16 * 16 * each);
    for (int i = 0, b = 0; i < count; i += LANES, b++) {
        const real *from = noise + i / 16 * 16 * each + i % 16;
        reals square = splat(0);
        gather(loc, i, mu[b], d, lanes_left(count, i));
        if (d == 2) { /* the tangent space is spanned by (-mu1, mu0), so no projection is needed */
            reals n = load(from);
            n = pick(abs_of(n) < (real)1e-9, splat((real)1e-9), n);
            v[b][0] = -mu[b][1] * n;
            v[b][1] = mu[b][0] * n;
            square = n * n;
        } else {
            for (int k = 0; k < d; k++) v[b][k] = load(from + 16 * k);
            for (int again = 0; again < 2; again++) { /* the second projection removes rounding errors along mu */
                reals along = splat(0);
                for (int k = 0; k < d; k++) along += v[b][k] * mu[b][k];
                for (int k = 0; k < d; k++) v[b][k] -= along * mu[b][k];
            }
            for (int k = 0; k < d; k++) square += v[b][k] * v[b][k];
            square = at_least_of(square, (real)1e-30);
        }
        store(squared_length + i, square);
    }
    draw_cosines(c, &t, squared_length, row, count);
    for (int i = 0, b = 0; i < count; i += LANES, b++) {
        reals minus = load(t.one_minus_t + i), plus = load(t.one_plus_t + i), cosine = (real)0.5 * (plus - minus);
        reals stretch = root_of(minus / load(squared_length + i) * plus);
        for (int k = 0; k < d; k++) v[b][k] = stretch * v[b][k] + cosine * mu[b][k];
        scatter_rows(c->x + (row + i) * d, v[b], d, lanes_left(count, i));
    }
}

/* x.mu and x.x */
INLINE terms dot_and_square(const void *row, int64_t k, int some) {
    const point_and_direction *r = row;
    reals x = load_up_to(r->x + k, some);
    return (terms){x * load_up_to(r->mu + k, some), x * x};
}

/* Replaces x by of_x x + of_mu mu. */
INLINE void combine(real *x, const real *mu, int64_t d, real of_x, real of_mu) {
    for (int64_t k = 0; k < d; k += LANES) {
        int some = lanes_left(d, k);
        store_up_to(x + k, of_x * load_up_to(x + k, some) + of_mu * load_up_to(mu + k, some), some);
    }
}

/* Rows with d > SMALL. The first pass writes the normals e to x, and the second pass turns them into points.
 * v = e - (e.mu) mu is never stored, and |v|^2 = |e|^2 - (e.mu)^2. */
static void draw_large(const sphere_call *c, normal_sequence *s, const argument_rows *loc, int64_t row, int count) {
    real along[GROUP], squared_length[GROUP], of_x[GROUP], of_mu[GROUP];
    cosines t;
    int64_t d = c->dim;
    normals(s, c->x + row * d, row * d, count * d);
    for (int i = 0; i < count; i++) {
        real *x = c->x + (row + i) * d;
        const real *mu = c->loc + loc->at[i] * d;
        point_and_direction r = {x, mu};
        terms found = sum_of(dot_and_square, &r, 0, d);
        if (d <= SHORT) {
            combine(x, mu, d, 1, -total(found.one));
            found = sum_of(dot_and_square, &r, 0, d);
        }
        along[i] = total(found.one);
        squared_length[i] = total(found.two) - along[i] * along[i];
    }
    for (int i = count; i % LANES; i++) along[i] = 0, squared_length[i] = 1;
    draw_cosines(c, &t, squared_length, row, count);
    for (int i = 0; i < count; i += LANES) {
        reals minus = load(t.one_minus_t + i), plus = load(t.one_plus_t + i);
        reals stretch = root_of(minus / load(squared_length + i) * plus);
        store(of_x + i, stretch);
        store(of_mu + i, (real)0.5 * (plus - minus) - stretch * load(along + i));
    }
    for (int i = 0; i < count; i++)
        combine(c->x + (row + i) * d, c->loc + loc->at[i] * d, d, of_x[i], of_mu[i]);
}

/* Draws the rows `row`, ..., `end` - 1. */
static void draw_rows(const void *call, int64_t row, int64_t end) {
    const sphere_call *c = call;
    normal_sequence s = {.seed = *c->seed, .block = -1};
    int64_t d = c->dim, most = d <= SMALL ? GROUP : NEAR / d;
    most = most > GROUP ? GROUP : most >= LANES ? most / LANES * LANES : most < 1 ? 1 : most;
    for (; row < end; row += most) {
        int count = end - row < most ? (int)(end - row) : (int)most;
        argument_rows loc;
        find_rows(&loc, c->loc, (tile){1, c->directions}, row, count);
#define DRAW(d) draw_small(c, &s, &loc, row, count, d)
        d > SMALL ? draw_large(c, &s, &loc, row, count) : UNROLLED(d, DRAW);
    }
}
