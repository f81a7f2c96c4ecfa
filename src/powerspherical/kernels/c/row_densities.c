/* Compiled once for each level of the processor. */
#undef REAL_BITS
#define REAL_BITS 64
#include "row_densities.h"
#include "elementary.h"

/* T. At kappa = 0 the density is uniform, so there T is finite also at the antipode. */
INLINE reals statistic_of(reals minus, reals plus, int64_t family) {
    return family == VON_MISES_FISHER ? -minus : power_statistic(minus, plus);
}

void AT_LEVEL(row_densities)(const row_scalars *r, int64_t family, int64_t dim, int count, double *out) {
    for (int i = 0; i < count; i += LANES) {
        reals minus = load(r->minus + i), kappa = load(r->kappa + i), result;
        if (family == SPHERICAL_CAUCHY) {
            result = cauchy_log_density(minus, kappa, (double)(dim - 1));
        } else {
            reals statistic = statistic_of(minus, load(r->plus + i), family);
            result = load(r->offset + i) + kappa * pick((kappa == 0) & (statistic < -1e3), kappa, statistic);
        }
        store(out + i, result);
    }
}

void AT_LEVEL(row_density_slopes)(const row_scalars *r, int64_t family, int64_t dim, int count, double *in_t,
                                  double *in_kappa) {
    for (int i = 0; i < count; i += LANES) {
        reals minus = load(r->minus + i), plus = load(r->plus + i), kappa = load(r->kappa + i), grad = load(r->grad + i);
        pair slopes;
        if (family == SPHERICAL_CAUCHY) {
            slopes = cauchy_slopes(minus, kappa, (double)(dim - 1));
        } else {
            slopes = (pair){kappa, statistic_of(minus, plus, family) + load(r->offset_slope + i)};
            if (family == POWER_SPHERICAL) { /* 0 at the antipode, by definition */
                reals length = pick(minus < 1, 2 - minus, plus);
                slopes.first = where_of(length <= 0, 0 * kappa, kappa / length);
            }
        }
        store(in_t + i, grad * slopes.first);
        store(in_kappa + i, grad * slopes.second);
    }
}
