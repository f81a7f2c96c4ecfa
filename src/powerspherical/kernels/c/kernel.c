/* The functions of the library: draws from distributions on the unit sphere, log-densities, the parameters of a head, the
 * gradients of these three, and functions of the concentration.
 *
 * Compiled once for each size of numbers (REAL_BITS 32 and 64) and each LEVEL of the processor: _v4 for AVX-512, _v3 for
 * AVX2, _v1 for any x86-64. dispatch.c chooses among them. See build.py for the flags. -ffast-math must not be among them:
 * it breaks NaNs, and flushes denormal numbers to zero in the whole process.
 */
#include <stdlib.h>

#include "call.h"
#include "check.h"
#include "curve.h"
#include "density.h"
#include "draw.h"
#include "head.h"
#include "matrix.h"
#include "pull_back.h"
#include "threads.h"

#define NUMBERS_PER_TASK 32768 /* which take about 20 microseconds */

/* Rows per task, in whole groups. */
static int64_t rows_per_task(int64_t dim) {
    int64_t rows = NUMBERS_PER_TASK / dim / GROUP * GROUP;
    return rows ? rows : dim > 2048 ? 4 : GROUP;
}

/* The public function `name`, which computes `count` items independently of each other, in tasks of `size`. */
#define FUNCTION(name, kind, compute, size, count)      \
    int COMPILED(name)(const kind *c) {                 \
        run_tasks(compute, c, size, count, c->threads); \
        return 1;                                       \
    }

FUNCTION(sphere_draw, sphere_call, draw_rows, rows_per_task(c->dim), c->rows)
FUNCTION(sphere_head, head_call, head_rows, rows_per_task(c->dim), c->rows)
FUNCTION(sphere_head_gradient, head_call, head_gradient_rows, rows_per_task(c->dim), c->rows)
FUNCTION(sphere_matrix, matrix_call, matrix_rows, rows_per_task(c->columns + 1), c->rows)
FUNCTION(sphere_project, project_call, project_rows, rows_per_task(c->dim), c->rows)
FUNCTION(sphere_curve, curve_call, curve_rows, NUMBERS_PER_TASK / 4, c->count)

int COMPILED(sphere_density)(const density_call *c) {
    if (c->offset.rows) COMPILED(sphere_curve)(&c->offset);
    run_tasks(density_rows, c, rows_per_task(c->dim), c->rows, c->threads);
    return 1;
}

int COMPILED(sphere_check)(const check_call *c) {
    int failed = !numbers_pass(c);
    vector_check check = {c, &failed};
    if (!failed) run_tasks(check_rows, &check, rows_per_task(c->dim), c->rows, c->threads);
    return !failed;
}

/* Gradients of rows that may share directions. The gradients of a direction are summed in parts of `part` rows each. The
 * parts do not depend on the number of threads, so neither do the rounding errors of the sums. */
typedef void gradient_function(const void *call, int64_t row, int64_t end, loc_gradients to);
typedef struct {
    gradient_function *compute;
    const void *call;
    int64_t rows, dim, directions, part;
    real *each;
    double *sums;
} gradients;

#define SHARES 16 /* least number of rows per direction and part: each part needs memory for its sums */

static void gradients_task(const void *context, int64_t from, int64_t to) {
    const gradients *g = context;
    for (int64_t p = from; p < to; p++) {
        int64_t row = p * g->part, end = row + g->part < g->rows ? row + g->part : g->rows;
        loc_gradients to = {g->each, 0, g->rows};
        if (g->sums) to = (loc_gradients){0, g->sums + p * g->directions * g->dim, g->directions};
        g->compute(g->call, row, end, to);
    }
}

static int run_gradients(gradients g, int64_t threads) {
    int64_t size = g.directions * g.dim, shared = g.directions != g.rows && g.each;
    g.part = rows_per_task(g.dim);
    if (shared && g.part < SHARES * g.directions) g.part = SHARES * g.directions;
    int64_t parts = (g.rows + g.part - 1) / g.part;
    if (shared && !(g.sums = calloc((size_t)(parts * size) + 1, sizeof(double)))) return 0;
    run_tasks(gradients_task, &g, 1, parts, threads);
    for (int64_t k = 0; shared && k < size; k++) {
        double sum = 0;
        for (int64_t p = 0; p < parts; p++) sum += g.sums[p * size + k];
        g.each[k] = (real)sum;
    }
    free(g.sums);
    return 1;
}

int COMPILED(sphere_pull_back)(const sphere_call *c) {
    return run_gradients((gradients){pull_back_rows, c, c->rows, c->dim, c->directions, 0, c->grad_loc, 0}, c->threads);
}

int COMPILED(sphere_density_gradient)(const density_call *c) {
    return run_gradients((gradients){density_gradient_rows, c, c->rows, c->dim, c->directions, 0, c->grad_loc, 0},
                         c->threads);
}

int COMPILED(sphere_latents)(const latents_call *c) {
    return COMPILED(sphere_head)(&c->head) && COMPILED(sphere_draw)(&c->draw) && COMPILED(sphere_curve)(&c->rate);
}

int COMPILED(sphere_latents_gradient)(const latents_call *c) {
    real *in_kappa = c->draw.grad_kappa;
    if (!COMPILED(sphere_head)(&c->head) || (c->draw.grad && !COMPILED(sphere_pull_back)(&c->draw))) return 0;
    for (int64_t i = 0; i < c->draw.rows; i++) {
        real in_rate = c->grad_rate ? c->grad_rate[i] * c->rate.slope[i] : 0;
        in_kappa[i] = c->draw.grad ? in_kappa[i] + in_rate : in_rate;
    }
    return COMPILED(sphere_head_gradient)(&c->head);
}
