/* The arguments that Python passes: one struct of 8-byte fields per call. `_CALL` and `_NORMALS_CALL` in
 * sampling/native.py and `_CALL` in special/_native.py have the same fields in the same order. */
#pragma once
#include <stdint.h>

/* The families, with the numbers that sampling/native.py uses. */
enum { POWER_SPHERICAL, VON_MISES_FISHER, SPHERICAL_CAUCHY };

/* n = rows, d = dim, m = directions. All arrays are contiguous and hold float32. */
typedef struct {
    float *x;                 /* n x d: the points */
    float *one_minus_t;       /* n */
    float *one_plus_t;        /* n */
    float *noise;             /* n: noise that the backward pass of some families needs */
    const float *loc;         /* m x d: unit vectors; row r has direction r mod m */
    const float *kappa;       /* n, or 1 with kappa_step = 0 */
    const uint64_t *seed;     /* 1; used by draws only */
    const float *grad;        /* n x d: gradient in x; this and the next two for the pull-back only */
    float *grad_loc;          /* m x d, or null if it is not needed */
    float *grad_kappa;        /* n, or null if it is not needed */
    int64_t rows;
    int64_t dim;
    int64_t directions;
    int64_t kappa_step;       /* 1, or 0 if all rows share one kappa */
    int64_t law_dim;          /* dimension used for the law of t; differs from d if the caller needs only t */
    int64_t family;
    int64_t threads;          /* largest number of threads */
} sphere_call;

/* A request for standard normals in double precision. */
typedef struct {
    double *out;              /* count */
    const uint64_t *seed;     /* 1 */
    int64_t count;
    int64_t threads;          /* largest number of threads */
} normals_call;

/* The functions of kappa, with the numbers that special/_native.py uses. Each is computed with its derivative in kappa.
 * The two named ..._AND_MEAN have the mean of the statistic T in its place. */
enum {
    BESSEL_RATIO, BESSEL_COMPLEMENT, BESSEL_SLOPE, /* of the mean cosine A of von Mises-Fisher: A, 1-A, A' */
    RELATIVE_ENTROPY, LOG_PARTITION, SCALED_LOG_PARTITION, ENTROPY_AND_MEAN, /* of von Mises-Fisher */
    POWER_SPHERICAL_ENTROPY, POWER_SPHERICAL_ENTROPY_AND_MEAN, SPHERICAL_CAUCHY_ENTROPY
};

/* A request for a function of kappa. */
typedef struct {
    float *value;             /* count */
    float *slope;             /* count: the derivative or the mean, or null if it is not needed */
    const float *kappa;       /* count */
    const float *table;       /* coefficients of polynomials that depend on the dimension only */
    int64_t count;
    int64_t form;
    int64_t steps;            /* of a recurrence; spherical Cauchy: nodes of the quadrature rule */
    int64_t terms;            /* of a series; Power Spherical only */
    int64_t threads;          /* largest number of threads */
    double numbers[4];        /* Bessel: top, start, half, constant; Power Spherical: beta, b; Cauchy: d-1 */
} functions_call;

/* All return 1, or 0 if there is not enough memory. They write to the outputs above and nowhere else. */
typedef int sphere_function(const sphere_call *call);
typedef int normals_function(const normals_call *call);
typedef int functions_function(const functions_call *call);
