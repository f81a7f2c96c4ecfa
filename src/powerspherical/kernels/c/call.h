/* The arguments that Python passes: one struct of 8-byte fields per call. kernels/native.py has the same fields in the
 * same order. `size` is that of a real number, 4 or 8 bytes, and `threads` the largest number of threads. All arrays are
 * contiguous. */
#pragma once
#include <stdint.h>

/* The name of a function at a level of the processor, such as row_densities_v4, and for a size of numbers, such as
 * sphere_draw_32_v4. */
#define JOIN_NAMES(a, b) a##b
#define JOIN(a, b) JOIN_NAMES(a, b)
#define AT_LEVEL(name) JOIN(name, LEVEL)
#define COMPILED(name) AT_LEVEL(JOIN(name##_, REAL_BITS))

#ifdef REAL_BITS
#include "vectors.h"
#else
typedef void real; /* dispatch.c does not look into arrays */
#endif

/* The families, with the numbers that kernels/registry.py gives them. */
enum { POWER_SPHERICAL, VON_MISES_FISHER, SPHERICAL_CAUCHY };

#define RULE 48 /* nodes of sphere_call.rule */

/* Draws from distributions on the sphere, or their gradients: n = rows, d = dim, m = directions. */
typedef struct {
    int64_t size, threads;
    real *x;                  /* n x d: the points */
    real *scalars;            /* 3 x n: 1-t, 1+t and the noise that some pull-backs need; null if not needed */
    const real *loc;          /* m x d: unit vectors; row r has direction r mod m */
    const real *kappa;        /* n, or 1 with kappa_step = 0 */
    const uint64_t *seed;     /* 1; used by draws only. The rest is for the pull-back only: */
    const real *grad;         /* n x d: gradient in x; if it is null, grad_kappa gets d artanh(t)/d kappa */
    real *grad_loc;           /* m x d, or null if it is not needed */
    real *grad_kappa;         /* n, or null if it is not needed */
    const real *mean;         /* like kappa: mean of the statistic of an exponential family; in double precision only */
    const real *rule;         /* RULE nodes, then their weights (quadrature/law.py); in double precision only */
    int64_t rows;             /* from here on, the fields depend on the shapes only */
    int64_t dim;
    int64_t directions;
    int64_t kappa_step;       /* 1, or 0 if all rows share one kappa */
    int64_t law_dim;          /* dimension used for the law of t; differs from d if the caller needs only t */
    int64_t family;
} sphere_call;

/* A function of kappa as a table, see curve.h. */
typedef struct {
    int64_t size, threads;
    real *value;              /* count */
    real *slope;              /* count: the derivative, or null if it is not needed */
    const real *kappa;        /* count */
    const real *rows;         /* the table: -offset, scale and coefficients per cell */
    int64_t count;
    int64_t first;            /* cell = (bits of kappa >> shift) - first */
    int64_t last;             /* the last cell */
    double gain, decay;       /* how the function continues beyond the table */
} curve_call;

/* How an argument repeats over the rows of the result: row r has the argument's row (r / inner) % count. */
typedef struct { int64_t inner, count; } tile;

/* Log-densities at n rows of unit vectors, or their gradients. */
typedef struct {
    int64_t size, threads;
    real *value;              /* n: the log-densities; null for the gradients */
    real *ends;               /* 2 x n: 1-t and 1+t, which the gradients read; null if not needed */
    const real *x;            /* x_tile.count x d */
    const real *loc;          /* loc_tile.count x d */
    const real *kappa;        /* kappa_tile.count */
    const real *grad;         /* n, or 1 with grad_step = 0: gradient in the value, for the gradients only */
    real *grad_x;             /* n x d, or null if it is not needed */
    real *grad_loc;           /* m x d, where row r adds to row r mod m, or null if it is not needed */
    real *grad_kappa;         /* n, or null if it is not needed */
    int64_t grad_step;        /* 1, or 0 if all rows share one gradient */
    int64_t rows;             /* n */
    int64_t dim;              /* d */
    int64_t directions;       /* m */
    tile x_tile;
    tile loc_tile;
    tile kappa_tile;
    int64_t family;
    double log_area;          /* log of the area of the sphere */
    curve_call offset;        /* minus the log-partition, relative to T = 0; values null for other families. The gradients
                               * read its slope. */
} density_call;

/* Log-densities of all pairs of n members and m points, or their gradients. */
typedef struct {
    int64_t size, threads;
    real *result;             /* n x m: the log-densities, or the gradient in the products. It may be that of `products` */
    const real *products;     /* n x m: inner products of directions and points of any length */
    const real *row_scale;    /* n: 1 over the lengths of the directions */
    const real *column_scale; /* m: 1 over those of the points */
    const real *kappa;        /* n */
    const real *offset;       /* n: added to the log-densities, or for the gradients to those in kappa */
    const real *grad;         /* n x m: gradient in the log-densities; null for these themselves */
    real *grad_kappa;         /* n; for the gradients only */
    int64_t rows;             /* n */
    int64_t columns;          /* m */
    int64_t dim;
    int64_t family;
    double shift;             /* added to the offset */
} matrix_call;

/* Gradients in vectors of any length, to be projected on the tangent spaces of the sphere. */
typedef struct {
    int64_t size, threads;
    real *gradients;          /* rows x dim, changed in place */
    const real *vectors;      /* rows x dim */
    const real *scale;        /* rows: 1 over the lengths of the vectors */
    int64_t rows;
    int64_t dim;
} project_call;

/* The parameters of a head, or the gradient in its outputs. */
typedef struct {
    int64_t size, threads;
    real *loc;                /* n x d; the gradient reads it */
    real *kappa;              /* n, or null if the outputs have no r; for the parameters only */
    const real *outputs;      /* n x (d + 1): (v, r), or n x d: v */
    const real *grad_loc;     /* n x d, or null if it is zero; this and the next two for the gradient only */
    const real *grad_kappa;   /* n, or null if it is zero */
    real *gradient;           /* of the shape of the outputs */
    int64_t rows;             /* n */
    int64_t dim;              /* d */
    int64_t entries;          /* d + 1 or d */
    double minimum, maximum;  /* bounds of kappa; the maximum may be infinite */
    double shortest;          /* see head.h */
} head_call;

/* A head, draws around its directions and a function of its concentrations, in one call. The gradient recomputes the
 * parameters, whose arrays may be uninitialised. */
typedef struct {
    int64_t size, threads;
    const real *grad_rate;    /* n, or null if it is zero; for the gradient only */
    head_call head;
    sphere_call draw;         /* for the gradient: `grad` may be null, which means zero */
    curve_call rate;          /* for the gradient: only its slope is read */
} latents_call;

/* A check of arguments. */
typedef struct {
    int64_t size, threads;
    const real *vectors;      /* rows x dim: their norms must be one to within `tolerance` */
    const real *numbers;      /* count: they must be in [0, largest] */
    int64_t rows;
    int64_t dim;
    int64_t count;
    double tolerance, largest;
} check_call;

/* The functions, with the structs that they take. sphere_check returns whether the arguments pass. The others return 1,
 * or 0 if there is not enough memory, and write to the outputs above and nowhere else. */
#define FOR_ALL_FUNCTIONS(DO)                      \
    DO(sphere_check, check_call)                   \
    DO(sphere_draw, sphere_call)                   \
    DO(sphere_pull_back, sphere_call)              \
    DO(sphere_curve, curve_call)                   \
    DO(sphere_density, density_call)               \
    DO(sphere_density_gradient, density_call)      \
    DO(sphere_matrix, matrix_call)                 \
    DO(sphere_project, project_call)               \
    DO(sphere_head, head_call)                     \
    DO(sphere_head_gradient, head_call)            \
    DO(sphere_latents, latents_call)               \
    DO(sphere_latents_gradient, latents_call)
