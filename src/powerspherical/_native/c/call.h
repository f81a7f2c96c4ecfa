/* The arguments that Python passes: one struct of 8-byte fields per call. `_POINTERS`, `_SIZES` and
 * `_NORMALS_CALL` in sampling/native.py, `_CALL` in special/_native_curves.py, `_POINTERS` and `_SIZES` in
 * distributions/_native_density.py, and `_CALL` in nn/_native_parameters.py have the same fields in the same order. */
#pragma once
#include <stdint.h>

/* The families, with the numbers that sampling/native.py uses, and the cosine alone (see density_call). */
enum { POWER_SPHERICAL, VON_MISES_FISHER, SPHERICAL_CAUCHY, COSINE_ENDS };

/* n = rows, d = dim, m = directions. All arrays are contiguous and hold float32. */
typedef struct {
    float *x;                 /* n x d: the points */
    float *one_minus_t;       /* n; null if this and the next two are not needed */
    float *one_plus_t;        /* n */
    float *noise;             /* n: noise that the backward pass of some families needs */
    const float *loc;         /* m x d: unit vectors; row r has direction r mod m */
    const float *kappa;       /* n, or 1 with kappa_step = 0 */
    const uint64_t *seed;     /* 1; used by draws only */
    const float *grad;        /* n x d: gradient in x; this and the next two for the pull-back only */
    float *grad_loc;          /* m x d, or null if it is not needed */
    float *grad_kappa;        /* n, or null if it is not needed */
    int64_t threads;          /* largest number of threads */
    int64_t rows;             /* from here on, the fields depend on the shapes only */
    int64_t dim;
    int64_t directions;
    int64_t kappa_step;       /* 1, or 0 if all rows share one kappa */
    int64_t law_dim;          /* dimension used for the law of t; differs from d if the caller needs only t */
    int64_t family;
} sphere_call;

/* A request for standard normals in double precision. */
typedef struct {
    double *out;              /* count */
    const uint64_t *seed;     /* 1 */
    int64_t count;
    int64_t threads;          /* largest number of threads */
} normals_call;

/* A request for a function of kappa, see curve.h. */
typedef struct {
    void *value;              /* count numbers of `size` bytes, as are the next two */
    void *slope;              /* the derivative, or null if it is not needed */
    const void *kappa;
    const void *rows;         /* the table: -offset, scale and coefficients per cell */
    int64_t count;
    int64_t first;            /* cell = (bits of kappa >> shift) - first */
    int64_t last;             /* the last cell */
    int64_t size;             /* 4 for float, 8 for double */
    int64_t threads;          /* largest number of threads */
    double gain, decay;       /* how the function continues beyond the table */
} curve_call;

/* How an argument repeats over the rows of the result: row r has the argument's row (r / inner) % count. */
typedef struct { int64_t inner, count; } tile;

/* Log-densities at n rows of unit vectors, or their gradients. All arrays are contiguous and hold float32. With the form
 * COSINE_ENDS, only 1-t and 1+t are computed, and gradients are those of t. */
typedef struct {
    float *value;             /* n: the log-densities */
    float *one_minus_t;       /* n; null if not needed. The gradients read this and the next. */
    float *one_plus_t;        /* n; null if not needed */
    const float *x;           /* x_tile.count x d */
    const float *loc;         /* loc_tile.count x d */
    const float *kappa;       /* kappa_tile.count, as are the next two */
    const float *offset;      /* minus the log-partition, relative to T = 0; used by exponential families only */
    const float *mean;        /* mean of the statistic T; used by exponential families only */
    const float *grad;        /* n, or 1 with grad_step = 0: gradient in the value, for the gradients only */
    float *grad_x;            /* n x d, or null if it is not needed */
    float *grad_loc;          /* m x d, where row r adds to row r mod m, or null if it is not needed */
    float *grad_kappa;        /* n, or null if it is not needed */
    int64_t grad_step;        /* 1, or 0 if all rows share one gradient */
    int64_t threads;          /* largest number of threads */
    int64_t rows;             /* n */
    int64_t dim;              /* d */
    int64_t directions;       /* m */
    tile x_tile;
    tile loc_tile;
    tile kappa_tile;
    int64_t form;             /* a family or COSINE_ENDS */
    double log_area;          /* log of the area of the sphere */
} density_call;

/* The parameters of a head, or the gradient in its outputs. All arrays are contiguous and hold float32. */
typedef struct {
    float *loc;               /* n x d; the gradient reads it */
    float *kappa;             /* n, or null if the outputs have no r; for the parameters only */
    const float *outputs;     /* n x (d + 1): (v, r), or n x d: v */
    const float *grad_loc;    /* n x d, or null if it is zero; this and the next two for the gradient only */
    const float *grad_kappa;  /* n, or null if it is zero */
    float *gradient;          /* of the shape of the outputs */
    int64_t rows;             /* n */
    int64_t dim;              /* d */
    int64_t entries;          /* d + 1 or d */
    int64_t threads;          /* largest number of threads */
    double minimum, maximum;  /* bounds of kappa; the maximum may be infinite */
    double shortest;          /* see head.h */
} head_call;

/* All return 1, or 0 if there is not enough memory. They write to the outputs above and nowhere else. */
typedef int sphere_function(const sphere_call *call);
typedef int normals_function(const normals_call *call);
typedef int curve_function(const curve_call *call);
typedef int density_function(const density_call *call);
typedef int head_function(const head_call *call);
