/* Log-densities of all pairs of members and points, given the inner products of vectors of any length, or their gradients
 * in these products and in kappa.
 *
 * A cosine t from inner products has an absolute error of about one rounding, so the logarithm of (1+t)/2 is as accurate
 * as that of another form, and takes less time. Rounding may take 1-t or 1+t to 0 or below. */
#pragma once
#include <float.h>

#include "draw.h"

#define STEP 4096 /* columns whose gradients in kappa are added in the precision of the numbers */

/* The log-density relative to the uniform distribution, up to the offset. */
INLINE reals pair_density(reals minus, reals plus, reals kappa, int64_t family, real degrees) {
    if (family == SPHERICAL_CAUCHY) return cauchy_log_density(minus, kappa, degrees);
    return kappa * (family == POWER_SPHERICAL ? log_of((real)0.5 * plus) : -minus);
}

/* Its derivatives in t and kappa. */
INLINE pair pair_slopes(reals minus, reals plus, reals kappa, int64_t family, real degrees) {
    if (family == SPHERICAL_CAUCHY) return cauchy_slopes(minus, kappa, degrees);
    if (family == VON_MISES_FISHER) return (pair){kappa, -minus};
    return (pair){kappa / plus, log_of((real)0.5 * plus)};
}

INLINE void matrix_row(const matrix_call *c, int64_t row, const int64_t family) {
    const real smallest = (real)(REAL_BITS == 64 ? DBL_EPSILON : FLT_EPSILON), degrees = (real)(c->dim - 1);
    const real *products = c->products + row * c->columns, *grad = c->grad ? c->grad + row * c->columns : 0;
    reals kappa = splat(c->kappa[row]), offset = splat((real)(c->offset[row] + c->shift));
    double in_kappa = 0;
    for (int64_t from = 0; from < c->columns; from += STEP) {
        int64_t end = from + STEP < c->columns ? from + STEP : c->columns;
        reals sum = splat(0);
        for (int64_t j = from; j < end; j += LANES) {
            int some = lanes_left(end, j);
            reals scale = c->row_scale[row] * load_up_to(c->column_scale + j, some), result;
            reals t = scale * load_up_to(products + j, some);
            reals minus = at_least_of(1 - t, smallest), plus = at_least_of(1 + t, 2 * smallest);
            if (grad) {
                pair slopes = pair_slopes(minus, plus, kappa, family, degrees);
                reals g = load_up_to(grad + j, some);
                result = g * slopes.first * scale;
                sum += g * (offset + slopes.second);
            } else {
                result = offset + pair_density(minus, plus, kappa, family, degrees);
            }
            store_up_to(c->result + row * c->columns + j, result, some);
        }
        in_kappa += total(sum);
    }
    if (grad) c->grad_kappa[row] = (real)in_kappa;
}

/* Computes the rows `row`, ..., `end` - 1, each family in a loop of its own. */
static void matrix_rows(const void *call, int64_t row, int64_t end) {
    const matrix_call *c = call;
    for (; row < end; row++)
        if (c->family == POWER_SPHERICAL) matrix_row(c, row, POWER_SPHERICAL);
        else if (c->family == VON_MISES_FISHER) matrix_row(c, row, VON_MISES_FISHER);
        else matrix_row(c, row, SPHERICAL_CAUCHY);
}

/* Projects gradients on the tangent spaces at vectors of any length: g becomes g - (g.v) v/|v|^2. */
static void project_rows(const void *call, int64_t row, int64_t end) {
    const project_call *c = call;
    for (; row < end; row++) {
        real *grad = c->gradients + row * c->dim;
        point_and_direction r = {grad, c->vectors + row * c->dim};
        real along = total(sum_of(dot_and_square, &r, 0, c->dim).one);
        combine(grad, r.mu, c->dim, 1, -along * c->scale[row] * c->scale[row]);
    }
}
