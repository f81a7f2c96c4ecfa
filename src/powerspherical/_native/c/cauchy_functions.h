/* KL(spherical Cauchy || uniform) and its derivative in kappa.
 *
 * special/mobius.py explains the formulas. With S = sinh tau and C = cosh tau, e^tau = 1+kappa, they are averages over
 * s = 1-t^2 for the cosine t of a uniform point:
 *
 *     KL = (d-1)/2 E log(1 + s S^2),    KL' = (d-1)/(1+kappa) E s S C/(1 + s S^2).
 *
 * S^2 is 4q(1+q) with q = sinh^2(tau/2) = kappa^2/(4(1+kappa)). The table is a quadrature rule with `steps` nodes: rows of
 * s, of 1-s (not used here), and of weights. On the circle `steps` is 0, and KL = log(1+q).
 */
#pragma once
#include "call.h"
#include "gamma_functions.h"

#define LARGE_SINH 1e15f /* above it we avoid S^2, which may overflow: log(1 + s S^2) = 2 log S + log(S^-2 + s) */

static value_and_slope cauchy_functions(const functions_call *c, floats kappa) {
    const float *nodes = c->table, *weights = c->table + 2 * c->steps;
    floats growth = 1.0f + kappa, q = 0.25f * kappa * (kappa / growth), nothing = 0.0f * kappa; /* keeps NaN */
    if (!c->steps) return (value_and_slope){log1p_of(q) + nothing, kappa / (kappa + 2.0f) / growth};
    floats sinh = 0.5f * kappa * ((kappa + 2.0f) / growth), cosh = sinh + 1.0f / growth;
    ints large = sinh > LARGE_SINH;
    floats near = pick(large, splat(1.0f), q), far = pick(large, sinh, splat(1.0f));
    floats square = 4.0f * near * (1.0f + near), small = (1.0f / far) * (1.0f / far), logs = nothing, means = nothing;
    for (int64_t i = c->steps - 1; i >= 0; i--) { /* the smallest terms first */
        floats product = square * nodes[i], rest = small + nodes[i];
        logs += weights[i] * pick(large, log_of(rest), log1p_of(product));
        means += weights[i] * nodes[i] / pick(large, rest, 1.0f + product);
    }
    logs += pick(large, 2.0f * log_of(far), splat(0.0f));
    means *= pick(large, cosh / far, sinh * cosh);
    float scale = (float)c->numbers[0]; /* d-1 */
    return (value_and_slope){0.5f * scale * logs, scale * (means / growth)};
}
