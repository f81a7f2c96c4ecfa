/* The log-densities of rows and their slopes, in double precision whatever the size of the numbers is. */
#pragma once
#include "rows.h"

/* What they need of up to GROUP rows. Exponential families have the density exp(offset + kappa T) relative to the uniform
 * distribution. */
typedef struct {
    double minus[GROUP], plus[GROUP], kappa[GROUP], offset[GROUP], offset_slope[GROUP], grad[GROUP];
} row_scalars;

/* Writes the log-densities relative to the uniform distribution. */
void AT_LEVEL(row_densities)(const row_scalars *r, int64_t family, int64_t dim, int count, double *out);

/* Writes the derivatives of the log-densities in t and kappa, times `grad`. */
void AT_LEVEL(row_density_slopes)(const row_scalars *r, int64_t family, int64_t dim, int count, double *in_t,
                                  double *in_kappa);
