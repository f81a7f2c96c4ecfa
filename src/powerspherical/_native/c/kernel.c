/* The functions of the library: draws from distributions on the unit sphere in float32, log-densities, the parameters of
 * a head, the gradients of these three, functions of the concentration, and standard normals in double precision.
 *
 * Compiled once for each level of the processor, with -DLEVEL=_v4 for AVX-512, _v3 for AVX2, _v1 for any x86-64;
 * dispatch.c chooses among them. Elsewhere it is compiled once, without LEVEL. See build.py for the flags. -ffast-math
 * must not be among them: it breaks NaNs, and flushes denormal numbers to zero in the whole process.
 */
#include <stdlib.h>

#include "density.h"
#include "double_normals.h"
#include "draw.h"
#include "head.h"
#include "pull_back.h"
#include "threads.h"

#ifdef LEVEL
#define JOIN_NAMES(a, b) a##b
#define WITH_LEVEL(name, level) JOIN_NAMES(name, level)
#define PUBLIC(name) WITH_LEVEL(name, LEVEL)
#else
#define PUBLIC(name) __attribute__((visibility("default"))) name
#endif

/* Rows per task, in whole groups: about 32768 numbers, which take 20 microseconds. */
static int64_t rows_per_task(int64_t dim) {
    int64_t rows = 32768 / dim / GROUP * GROUP;
    return rows ? rows : dim > 2048 ? 4 : GROUP;
}

static void draw_task(void *context, int64_t from, int64_t to) { draw_rows(context, from, to); }

int PUBLIC(sphere_draw)(const sphere_call *call) {
    sphere_call c = *call;
    uint64_t seed = *c.seed;
    c.seed = &seed;
    run_tasks(draw_task, &c, rows_per_task(c.dim), c.rows, c.threads);
    return 1;
}

static void pull_back_task(void *context, int64_t from, int64_t to) {
    const sphere_call *c = context;
    pull_back_rows(c, from, to, c->grad_loc, 0);
}

/* If rows share directions, we sum their gradients in parts of `part` rows each. The parts do not depend on the number of
 * threads, so neither do the rounding errors of the sums. */
typedef struct { const sphere_call *call; float *sums; int64_t part; } shared_directions;

static void shared_task(void *context, int64_t from, int64_t to) {
    const shared_directions *s = context;
    const sphere_call *c = s->call;
    int64_t size = c->directions * c->dim;
    for (int64_t p = from; p < to; p++) {
        int64_t end = (p + 1) * s->part < c->rows ? (p + 1) * s->part : c->rows;
        float *sums = s->sums + p * size;
        memset(sums, 0, sizeof(float) * (size_t)size);
        pull_back_rows(c, p * s->part, end, sums, 1);
    }
}

#define ROWS_PER_PART 2048 /* at least, and at least SHARES rows per direction: each part needs memory for its sums */
#define SHARES 16

int PUBLIC(sphere_pull_back)(const sphere_call *call) {
    sphere_call c = *call;
    if (c.directions == c.rows || !c.grad_loc) {
        run_tasks(pull_back_task, &c, rows_per_task(c.dim), c.rows, c.threads);
        return 1;
    }
    int64_t size = c.directions * c.dim, shares = (ROWS_PER_PART + c.directions - 1) / c.directions;
    if (shares < SHARES) shares = SHARES;
    shared_directions s = {&c, c.grad_loc, shares * c.directions};
    int64_t parts = (c.rows + s.part - 1) / s.part;
    if (parts == 0) memset(c.grad_loc, 0, sizeof(float) * (size_t)size);
    if (parts > 1 && !(s.sums = malloc(sizeof(float) * (size_t)(parts * size)))) return 0;
    run_tasks(shared_task, &s, 1, parts, c.threads);
    if (parts > 1) {
        for (int64_t k = 0; k < size; k++) {
            double sum = 0;
            for (int64_t p = 0; p < parts; p++) sum += s.sums[p * size + k];
            c.grad_loc[k] = (float)sum;
        }
        free(s.sums);
    }
    return 1;
}

#define BLOCKS_PER_TASK 1024 /* 32768 numbers */

static void normals_task(void *context, int64_t from, int64_t to) { fill_with_normals(context, from, to); }

int PUBLIC(sphere_normals)(const normals_call *call) {
    normals_call c = *call;
    int64_t blocks = (c.count + DOUBLES_PER_BLOCK - 1) / DOUBLES_PER_BLOCK;
    run_tasks(normals_task, &c, BLOCKS_PER_TASK, blocks, c.threads);
    return 1;
}

/* Quads of numbers in any place, and of integers of their size. */
typedef float quad_floats __attribute__((vector_size(16), aligned(4), may_alias));
typedef int32_t quad_ints __attribute__((vector_size(16), aligned(4), may_alias));
typedef double quad_doubles __attribute__((vector_size(32), aligned(8), may_alias));
typedef int64_t quad_longs __attribute__((vector_size(32), aligned(8), may_alias));
#if defined(__AVX2__) && defined(__has_builtin)
#if __has_builtin(__builtin_shufflevector) /* gcc from version 12 on, and clang */
#define HAS_QUADS
#endif
#endif

#define REAL float
#define WORD int32_t
#define SHIFT 20
#define WIDTH 9
#define CURVE float_curve
#ifdef HAS_QUADS
#define QUAD quad_floats
#define WORDS quad_ints
#endif
#include "curve.h"
#undef QUAD
#undef WORDS
#undef REAL
#undef WORD
#undef SHIFT
#undef WIDTH
#undef CURVE
#define REAL double
#define WORD int64_t
#define SHIFT 49
#define WIDTH 15
#define CURVE double_curve
#ifdef HAS_QUADS
#define QUAD quad_doubles
#define WORDS quad_longs
#endif
#include "curve.h"

#define VALUES_PER_TASK 8192 /* about 15 microseconds */

static void curve_task(void *context, int64_t from, int64_t to) {
    const curve_call *c = context;
    if (c->size == sizeof(float)) float_curve(c, from, to);
    else double_curve(c, from, to);
}

int PUBLIC(sphere_curve)(const curve_call *call) {
    curve_call c = *call;
    run_tasks(curve_task, &c, VALUES_PER_TASK, c.count, c.threads);
    return 1;
}

/* The public function `name`, which takes a `kind`_call and computes rows independently of each other. */
#define BY_ROWS(name, kind, compute)                                                                       \
    static void name##_task(void *context, int64_t from, int64_t to) { compute(context, from, to); }       \
    int PUBLIC(name)(const kind##_call *call) {                                                            \
        kind##_call c = *call;                                                                             \
        run_tasks(name##_task, &c, rows_per_task(c.dim), c.rows, c.threads);                               \
        return 1;                                                                                          \
    }

BY_ROWS(sphere_density, density, density_rows)
BY_ROWS(sphere_head, head, head_rows)
BY_ROWS(sphere_head_gradient, head, head_gradient_rows)

static void gradients_task(void *context, int64_t from, int64_t to) {
    const density_call *c = context;
    density_gradient_rows(c, from, to, (loc_gradients){c->grad_loc, 0, c->rows});
}

/* As with shared_directions, the parts do not depend on the number of threads. */
typedef struct { const density_call *call; double *sums; int64_t part; } shared_gradients;

static void shared_gradients_task(void *context, int64_t from, int64_t to) {
    const shared_gradients *s = context;
    const density_call *c = s->call;
    int64_t size = c->directions * c->dim;
    for (int64_t p = from; p < to; p++) {
        int64_t end = (p + 1) * s->part < c->rows ? (p + 1) * s->part : c->rows;
        double *sums = s->sums + p * size;
        memset(sums, 0, sizeof(double) * (size_t)size);
        density_gradient_rows(c, p * s->part, end, (loc_gradients){0, sums, c->directions});
    }
}

int PUBLIC(sphere_density_gradients)(const density_call *call) {
    density_call c = *call;
    if (c.directions == c.rows || !c.grad_loc) {
        run_tasks(gradients_task, &c, rows_per_task(c.dim), c.rows, c.threads);
        return 1;
    }
    int64_t part = SHARES * c.directions, size = c.directions * c.dim;
    if (part < rows_per_task(c.dim)) part = rows_per_task(c.dim);
    int64_t parts = (c.rows + part - 1) / part;
    shared_gradients s = {&c, malloc(sizeof(double) * (size_t)(parts * size)), part};
    if (!s.sums) return 0;
    run_tasks(shared_gradients_task, &s, 1, parts, c.threads);
    for (int64_t k = 0; k < size; k++) {
        double sum = 0;
        for (int64_t p = 0; p < parts; p++) sum += s.sums[p * size + k];
        c.grad_loc[k] = (float)sum;
    }
    free(s.sums);
    return 1;
}
