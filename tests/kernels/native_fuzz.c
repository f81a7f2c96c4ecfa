/* Calls every function of the library on shapes with edges, for the sanitizers. Each array has exactly the size that
 * call.h states. Compiled for one REAL_BITS at a time, with an empty LEVEL. With LIBRARY defined, the program has no code of
 * the library, but is linked to one. */
#include <stdio.h>

#ifdef LIBRARY
#include <stdlib.h>

#include "curve.h"
#undef COMPILED
#define COMPILED(name) name
#define DECLARE(name, kind) int name(const kind *call);
FOR_ALL_FUNCTIONS(DECLARE)
#else
#include "kernel.c"
#endif

#define COUNT(array) ((int)(sizeof(array) / sizeof *(array)))
#define REQUIRE(condition, what) \
    if (!(condition)) return printf("%s: case %d, d = %d, n = %d\n", what, cases, (int)d, (int)n), 0

static const double scales[] = {0, 0.05, 1, 30, 1e7, REAL_BITS == 64 ? 1e290 : 1e30};
static void *arrays[24];
static int used, cases; /* arrays of the present case, and the number of the case */

static real *numbers(int64_t count) {
    real *p = arrays[used++] = malloc(sizeof(real) * (size_t)count + (count == 0));
    for (int64_t i = 0; i < count; i++) p[i] = (real)0.5;
    return p;
}

/* Vectors of length one, whose entries +-1/sqrt(d) change their sign with the given period. */
static real *vectors(int64_t count, int64_t d, int period) {
    real *p = numbers(count * d);
    for (int64_t i = 0; i < count * d; i++) p[i] = (real)((i % period ? 1 : -1) / sqrt((double)d));
    return p;
}

static real *concentrations(int64_t count, double scale) {
    real *p = numbers(count);
    for (int64_t i = 0; i < count; i++) p[i] = (real)(scale * (double)(i * 37 % 100));
    return p;
}

/* A table of three cells for all kappa, whose x is in [0, 1]. */
static real *table(void) {
    real *rows = numbers(3 * WIDTH);
    for (int cell = 0; cell < 3; cell++) rows[cell * WIDTH] = 0, rows[cell * WIDTH + 1] = (real)0x1p-64;
    return rows;
}

/* Whether the numbers are finite and at most `largest` in size. */
static int bounded(const real *p, int64_t count, double largest) {
    for (int64_t i = 0; i < count; i++)
        if (!(fabs((double)p[i]) <= largest) || isinf(p[i])) return 0;
    return 1;
}

static int next_case(void) {
    while (used) free(arrays[--used]);
    return ++cases;
}

static int checks(int64_t d, int64_t n, int kind) {
    const real wrong[] = {NAN, INFINITY, -1, 101};
    real *v = vectors(n, d, 3), *values = concentrations(n, 1);
    check_call c = {sizeof(real), 1 + cases % 3, v, n ? values : 0, n, d, n, 1e-4, 100};
    REQUIRE(COMPILED(sphere_check)(&c), "valid arguments");
    for (int i = 0; n && i < 4; i++) {
        int64_t at = i == 0 ? 0 : i == 1 ? n - 1 : (n - 1) * kind / 5;
        real value = values[at], entry = v[at * d + d - 1];
        values[at] = wrong[i];
        REQUIRE(!COMPILED(sphere_check)(&c), "an invalid number");
        values[at] = value;
        v[at * d + d - 1] = i < 2 ? wrong[i] : entry * (1 + (real)3e-4 * (real)d);
        REQUIRE(!COMPILED(sphere_check)(&c), "an invalid vector");
        v[at * d + d - 1] = entry;
    }
    return 1;
}

static int draws(int64_t d, int64_t n, int kind) {
    int64_t m = kind % 3 == 0 ? n : kind % 3 == 1 ? 1 : 5, law_dim = d == 2 && cases % 2 ? (cases % 4 == 1 ? 3 : 40) : d;
    uint64_t seed = (uint64_t)cases * UINT64_C(0x9E3779B97F4A7C15);
    if (n % (m ? m : 1)) return 1;
    int64_t step = cases % 5 > 0, given = step ? n : 1;
    real *kappa = concentrations(given, scales[cases % 6]), *grad_loc = numbers(m * d), *grad_kappa = numbers(n);
    sphere_call c = {
        .size = sizeof(real), .x = numbers(n * d), .scalars = numbers(3 * n), .loc = vectors(m, d, 3), .kappa = kappa, .seed = &seed, .threads = 1 + cases % 3, .rows = n, .dim = d,
        .directions = m, .kappa_step = step, .law_dim = law_dim, .family = kind / 4,
    };
    REQUIRE(COMPILED(sphere_draw)(&c), "draw");
    sphere_call points = c; /* without what the backward pass needs */
    points.scalars = 0;
    REQUIRE(COMPILED(sphere_draw)(&points), "points");
    REQUIRE(bounded(c.x, n * d, 1.00001), "x");
    c.grad = numbers(n * d);
    c.mean = REAL_BITS == 64 ? numbers(given) : 0;
    c.rule = REAL_BITS == 64 ? numbers(2 * RULE) : 0;
    c.seed = 0;
    for (int needs = 1; needs < 4; needs++) {
        c.grad_loc = needs & 1 ? grad_loc : 0;
        c.grad_kappa = needs & 2 ? grad_kappa : 0;
        REQUIRE(COMPILED(sphere_pull_back)(&c), "pull-back");
    }
    REQUIRE(bounded(grad_kappa, n, INFINITY) && bounded(grad_loc, m * d, INFINITY), "gradients of a draw");
    c.x = 0, c.loc = c.grad = 0, c.grad_loc = 0, c.dim = c.directions = 1; /* for the slopes only */
    REQUIRE(COMPILED(sphere_pull_back)(&c) && bounded(grad_kappa, n, INFINITY), "slopes");
    for (int64_t i = 0; i < given; i++) kappa[i] = (const real[]){NAN, INFINITY, -3, -1e30f}[i % 4];
    REQUIRE(COMPILED(sphere_draw)(&points), "a draw that ends");
    return 1;
}

/* x and kappa repeat in turn as loc does: not at all, as a whole or as one vector, or per row. */
static int densities(int64_t d, int64_t n, int kind) {
    int64_t some = n % 5 ? 1 : 5;
    if (n == 0) return 1;
    const tile tiles[] = {{1, n}, {1, some}, {n / some, some}, {n, 1}};
    tile x = tiles[cases % 4], loc = tiles[kind % 4], kappa = tiles[cases / 4 % 4];
    int64_t m = loc.inner == 1 || loc.count == 1 ? loc.count : n;
    real *value = numbers(n), *ends = numbers(2 * n), *plus = ends + n;
    real *grad_x = numbers(n * d), *grad_loc = numbers(m * d), *grad_kappa = numbers(n);
    real *kappas = concentrations(kappa.count, scales[cases % 6]);
    density_call c = {
        .size = sizeof(real), .value = value, .ends = ends, .x = vectors(x.count, d, 7),
        .loc = vectors(loc.count, d, 3), .kappa = kappas, .grad = numbers(cases % 3 ? n : 1),
        .grad_step = cases % 3 > 0, .threads = 1 + cases % 3, .rows = n, .dim = d, .directions = m, .x_tile = x,
        .loc_tile = loc, .kappa_tile = kappa, .family = kind / 4, .log_area = 1,
        .offset = {.size = sizeof(real), .value = numbers(kappa.count), .slope = numbers(kappa.count), .kappa = kappas, .threads = 1,
                   .rows = kind / 4 == SPHERICAL_CAUCHY ? 0 : table(), .count = kappa.count, .first = 1000, .last = 2},
    };
    REQUIRE(COMPILED(sphere_density)(&c), "density");
    for (int64_t i = 0; i < n; i++)
        REQUIRE(ends[i] >= 0 && fabs((double)(ends[i] + plus[i] - 2)) < 1e-4 && !isnan(value[i]), "value");
    for (int needs = 1; needs < 8; needs++) {
        c.grad_x = needs & 1 ? grad_x : 0;
        c.grad_loc = needs & 2 ? grad_loc : 0;
        c.grad_kappa = needs & 4 ? grad_kappa : 0;
        REQUIRE(COMPILED(sphere_density_gradient)(&c), "gradients of a density");
    }
    for (int64_t i = 0; i < n * d; i++) REQUIRE(!isnan(grad_x[i]), "gradient in x");
    c.ends = c.offset.slope = 0;
    REQUIRE(COMPILED(sphere_density)(&c), "density alone");
    return 1;
}

/* Values in place and gradients, for members and points of length 2, and the projection of gradients. */
static int matrices(int64_t d, int64_t n, int kind) {
    int64_t m = 1 + cases % 40 + (kind % 4 == 1 ? 4090 : 0);
    if (n * m > 300000) return 1;
    real *products = numbers(n * m), *grad_kappa = numbers(n), *kappa = concentrations(n, scales[cases % 6]);
    for (int64_t i = 0; i < n * m; i++) products[i] = (real)(4.001 * (double)(i % 3 - 1));
    matrix_call c = {
        .size = sizeof(real), .result = numbers(n * m), .products = products, .row_scale = numbers(n),
        .column_scale = numbers(m), .kappa = kappa, .offset = numbers(n), .grad = numbers(n * m),
        .grad_kappa = grad_kappa, .threads = 1 + cases % 3, .rows = n, .columns = m, .dim = d, .family = kind / 4, .shift = 1,
    };
    REQUIRE(COMPILED(sphere_matrix)(&c), "gradients of a matrix");
    for (int64_t i = 0; i < n * m; i++) REQUIRE(!isnan(c.result[i]), "gradient in a product");
    REQUIRE(bounded(grad_kappa, n, INFINITY), "gradient in kappa");
    c.result = products, c.grad = 0, c.grad_kappa = 0;
    REQUIRE(COMPILED(sphere_matrix)(&c) && bounded(products, n * m, INFINITY), "matrix");
    real *v = vectors(n, d, 3), *g = numbers(n * d);
    project_call p = {sizeof(real), 1 + cases % 3, g, v, c.row_scale, n, d};
    for (int64_t i = 0; i < n * d; i++) g[i] = 3 * v[i], v[i] *= 2;
    REQUIRE(COMPILED(sphere_project)(&p) && bounded(g, n * d, 1e-4), "projection");
    return 1;
}

static int heads(int64_t d, int64_t n, int kind) {
    int64_t entries = d + kind % 2;
    real *loc = numbers(n * d), *kappa = numbers(n), *outputs = numbers(n * entries), *gradient = numbers(n * entries);
    for (int64_t i = 0; i < n * entries; i++) outputs[i] = (real)(scales[cases % 6] * (i % 3 ? 1 : -1));
    head_call c = {
        .size = sizeof(real), .loc = loc, .kappa = kind % 2 ? kappa : 0, .outputs = outputs, .rows = n, .dim = d,
        .entries = entries, .threads = 1 + cases % 3, .minimum = 0.5, .maximum = kind < 4 ? INFINITY : 40,
        .shortest = 1e-12,
    };
    REQUIRE(COMPILED(sphere_head)(&c) && bounded(loc, n * d, 1.00001), "head");
    c.kappa = 0;
    c.grad_loc = kind / 2 % 2 ? numbers(n * d) : 0;
    c.grad_kappa = cases % 3 ? numbers(n) : 0;
    c.gradient = gradient;
    REQUIRE(COMPILED(sphere_head_gradient)(&c) && bounded(gradient, n * entries, INFINITY), "gradient of a head");
    return 1;
}

static int curves(int64_t n, int kind) {
    const double extremes[] = {0, NAN, INFINITY, -3, 1e25, 0x1p64};
    int64_t d = 0;
    real *kappa = concentrations(n, scales[cases % 6]), *value = numbers(n), *slope = numbers(n);
    for (int64_t i = 0; i < n && i < 6; i++) kappa[i] = (real)extremes[i];
    curve_call c = {
        .size = sizeof(real), .value = value, .slope = kind & 1 ? slope : 0, .kappa = kappa, .rows = table(),
        .threads = 1 + cases % 3, .count = n, .first = 1000, .last = 2, .gain = kind & 2 ? 1 : 0, .decay = kind & 2 ? 0 : 1.5,
    };
    REQUIRE(COMPILED(sphere_curve)(&c), "curve");
    for (int64_t i = 0; i < n; i++) {
        REQUIRE(isnan(kappa[i]) ? isnan(value[i]) : isinf(kappa[i]) || isfinite(value[i]), "value of a curve");
        REQUIRE(isnan(kappa[i]) || isinf(kappa[i]) || isfinite(slope[i]), "slope of a curve");
    }
    return 1;
}

/* In double precision only spherical Cauchy, whose slopes need neither means nor a rule. */
static int bottlenecks(int64_t d, int64_t n, int kind) {
    uint64_t seed = (uint64_t)cases;
    int64_t most = n * d, family = REAL_BITS == 64 ? SPHERICAL_CAUCHY : kind / 4;
    real *loc = numbers(most), *kappa = numbers(n), *outputs = numbers(n * (d + 1));
    real *scalars = numbers(4 * n), *in_kappa = numbers(n), *in_loc = numbers(most);
    for (int64_t i = 0; i < n * (d + 1); i++) outputs[i] = (real)(3 * (i % 3) - 2);
    latents_call c = {
        .size = sizeof(real),
        .head = {.size = sizeof(real), .loc = loc, .kappa = kappa, .outputs = outputs, .rows = n, .dim = d,
                 .entries = d + 1, .threads = 1 + cases % 3, .maximum = 60, .shortest = 1e-12},
        .draw = {.size = sizeof(real), .x = numbers(most), .scalars = scalars, .loc = loc, .kappa = kappa,
                 .seed = &seed, .threads = 1 + cases % 3, .rows = n, .dim = d, .directions = n, .kappa_step = 1, .law_dim = d, .family = family},
        .rate = {.size = sizeof(real), .value = numbers(n), .slope = scalars + 3 * n, .kappa = kappa, .rows = table(),
                 .threads = 1, .count = n, .first = 1000, .last = 2},
    };
    REQUIRE(COMPILED(sphere_latents)(&c) && bounded(c.draw.x, most, 1.00001) && bounded(c.rate.value, n, INFINITY), "bottleneck");
    c.draw.grad = kind & 1 ? numbers(most) : 0;
    c.grad_rate = kind & 2 ? numbers(n) : 0;
    c.draw.grad_loc = in_loc;
    c.draw.grad_kappa = in_kappa;
    c.head.grad_kappa = in_kappa;
    c.head.grad_loc = c.draw.grad ? in_loc : 0;
    c.head.gradient = numbers(n * (d + 1));
    REQUIRE(COMPILED(sphere_latents_gradient)(&c) && bounded(c.head.gradient, n * (d + 1), INFINITY), "its gradient");
    return 1;
}

/* The numbers of kinds have a sum without a divisor of 60, so that each kind meets every remainder of `cases`. */
static int all_kinds(int64_t d, int64_t n) {
    const struct { int (*run)(int64_t d, int64_t n, int kind), kinds; } functions[] = {
        {checks, 5}, {draws, 12}, {densities, 12}, {matrices, 12}, {heads, 8}, {bottlenecks, REAL_BITS == 64 ? 4 : 12},
    };
    for (int f = 0; f < COUNT(functions); f++)
        for (int kind = 0; kind < functions[f].kinds; kind++, next_case())
            if (!functions[f].run(d, n, kind)) return 0;
    return 1;
}

int main(void) {
    const int64_t dims[] = {2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 100, 1023, 5000};
    const int64_t rows[] = {0, 1, 2, 15, 16, 17, 63, 64, 65, 130};
    const int64_t several_tasks[][2] = {{2, 16400}, {3, 10900}, {64, 520}, {1023, 35}, {5000, 10}};
    const int64_t counts[] = {0, 1, 3, 4, 5, 15, 16, 17, 33, 1000, 4095, 4097, 9000};
    for (int a = 0; a < COUNT(dims); a++)
        for (int b = 0; b < COUNT(rows) && dims[a] * rows[b] <= 20000; b++)
            if (!all_kinds(dims[a], rows[b])) return 1;
    for (int a = 0; a < COUNT(several_tasks); a++)
        if (!all_kinds(several_tasks[a][0], several_tasks[a][1])) return 1;
    for (int a = 0; a < COUNT(counts); a++)
        for (int kind = 0; kind < 4; kind++, next_case())
            if (!curves(counts[a], kind)) return 1;
    printf("%d cases\n", cases);
    return 0;
}
