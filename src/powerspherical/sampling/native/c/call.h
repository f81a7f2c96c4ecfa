/* What Python passes: one struct of 8-byte fields. The order of the fields is that of `_CALL` and `_NORMALS_CALL` in
 * kernel.py. */
#pragma once
#include <stdint.h>

/* The numbers of the families in kernel.py. */
enum { POWER_SPHERICAL, VON_MISES_FISHER, SPHERICAL_CAUCHY };

/* n = rows, d = dim, m = directions. All arrays are contiguous and hold float32. */
typedef struct {
    float *x;                 /* n x d: the points */
    float *one_minus_t;       /* n */
    float *one_plus_t;        /* n */
    float *noise;             /* n: what the family keeps for the backward pass */
    const float *loc;         /* m x d: unit vectors; row r has direction r mod m */
    const float *kappa;       /* n, or 1 with kappa_step = 0 */
    const uint64_t *seed;     /* 1; draws only */
    const float *grad;        /* n x d: gradient in x; from here on for the pull-back only */
    float *grad_loc;          /* m x d, or null if nobody needs it */
    float *grad_kappa;        /* n, or null if nobody needs it */
    int64_t rows;
    int64_t dim;
    int64_t directions;
    int64_t kappa_step;       /* 1, or 0 if all rows share one kappa */
    int64_t law_dim;          /* the dimension whose law t has: d, unless t alone is wanted and x lies on a circle */
    int64_t family;
    int64_t threads;          /* the most to use */
} sphere_call;

/* A request for standard normals in double precision. */
typedef struct {
    double *out;              /* count */
    const uint64_t *seed;     /* 1 */
    int64_t count;
    int64_t threads;          /* the most to use */
} normals_call;

/* All return whether there was memory for it. They never write anything else than the outputs above. */
typedef int sphere_function(const sphere_call *call);
typedef int normals_function(const normals_call *call);
