/* Runs the native kernel on every shape that has an edge, for the sanitizers: each array has exactly the right size. */
#include <stdio.h>

#include "kernel.c"

static float *numbers(int64_t count) {
    float *p = malloc(sizeof(float) * (size_t)count + 1); /* of at least one byte */
    for (int64_t i = 0; i < count; i++) p[i] = 0.5f;
    return p;
}

int main(void) {
    const int64_t dims[] = {2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 100, 1023, 5000};
    const int64_t rows[] = {0, 1, 2, 15, 16, 17, 63, 64, 65, 130, 2500};
    const float scales[] = {0.0f, 0.05f, 1.0f, 30.0f, 1e7f, 1e30f};
    int cases = 0;
    for (int a = 0; a < 18; a++)
        for (int b = 0; b < 11; b++)
            for (int kind = 0; kind < 9; kind++) {
                int64_t d = dims[a], n = rows[b], m = kind % 3 == 0 ? n : kind % 3 == 1 ? 1 : 5;
                if (n * d > 20000 || n % (m ? m : 1)) continue;
                int64_t law_dim = d == 2 && cases % 2 ? (cases % 4 == 1 ? 3 : 40) : d;
                uint64_t seed = (uint64_t)cases * 0x9E3779B97F4A7C15u;
                sphere_call c = {
                    .x = numbers(n * d), .one_minus_t = numbers(n), .one_plus_t = numbers(n), .noise = numbers(n),
                    .rows = n, .dim = d, .directions = m, .kappa_step = cases % 5 > 0, .law_dim = law_dim,
                    .family = kind / 3, .threads = 1 + cases % 3, .seed = &seed,
                };
                float *loc = numbers(m * d), *kappa = numbers(n + 1), *grad = numbers(n * d);
                float *grad_loc = numbers(m * d), *grad_kappa = numbers(n);
                for (int64_t i = 0; i < m * d; i++) loc[i] = (i % 3 ? 1 : -1) / sqrtf((float)d);
                for (int64_t i = 0; i < n; i++) kappa[i] = scales[cases % 6] * (float)(i * 37 % 100);
                c.loc = loc;
                c.kappa = kappa;
                if (!sphere_draw(&c)) return printf("draw: d=%d n=%d\n", (int)d, (int)n), 1;
                sphere_call values = c; /* without what the backward pass needs */
                values.one_minus_t = values.one_plus_t = values.noise = 0;
                if (!sphere_draw(&values)) return printf("values: d=%d n=%d\n", (int)d, (int)n), 1;
                c.grad = grad;
                for (int needs = 1; needs < 4; needs++) {
                    c.grad_loc = needs & 1 ? grad_loc : 0;
                    c.grad_kappa = needs & 2 ? grad_kappa : 0;
                    if (!sphere_pull_back(&c)) return printf("pull-back: d=%d n=%d\n", (int)d, (int)n), 1;
                }
                for (int64_t i = 0; i < n * d; i++)
                    if (!(fabsf(c.x[i]) <= 1.00001f)) return printf("x: case %d d=%d n=%d\n", cases, (int)d, (int)n), 1;
                for (int64_t i = 0; i < n; i++)
                    if (!isfinite(grad_kappa[i])) return printf("slope: case %d d=%d n=%d\n", cases, (int)d, (int)n), 1;
                float *all[] = {c.x, c.one_minus_t, c.one_plus_t, c.noise, loc, kappa, grad, grad_loc, grad_kappa};
                for (int i = 0; i < 9; i++) free(all[i]);
                cases++;
            }
    const int64_t counts[] = {0, 1, 2, 31, 32, 33, 63, 64, 65, 1000, 32767, 32768, 32769, 70001};
    for (int a = 0; a < 14; a++)
        for (int threads = 1; threads < 4; threads++, cases++) {
            uint64_t seed = (uint64_t)cases * 0x9E3779B97F4A7C15u;
            normals_call c = {malloc(sizeof(double) * (size_t)counts[a] + 1), &seed, counts[a], threads};
            if (!sphere_normals(&c)) return printf("normals: n=%d\n", (int)c.count), 1;
            for (int64_t i = 0; i < c.count; i++)
                if (!(fabs(c.out[i]) < 8.6)) return printf("normals: case %d n=%d\n", cases, (int)c.count), 1;
            free(c.out);
        }
    const int64_t values[] = {0, 1, 3, 4, 5, 15, 16, 17, 33, 1000, 4095, 4097, 9000};
    for (int a = 0; a < 13; a++)
        for (int kind = 0; kind < 8; kind++, cases++) {
            /* Tables of 3 cells for all kappa, whose x is in [0, 1]. */
            int64_t n = values[a], is_double = kind & 1, size = is_double ? 8 : 4, width = is_double ? 15 : 9;
            char *kappa = malloc((size_t)(size * n) + 1), *value = malloc((size_t)(size * n) + 1);
            char *slope = malloc((size_t)(size * n) + 1), *table = malloc((size_t)(size * 3 * width));
#define SET(to, i, x) (is_double ? (void)(((double *)(to))[i] = (x)) : (void)(((float *)(to))[i] = (float)(x)))
#define GET(from, i) (is_double ? ((double *)(from))[i] : (double)((float *)(from))[i])
            const double extremes[] = {0.0, NAN, INFINITY, -3.0, 1e25, 0x1p64};
            for (int64_t i = 0; i < n; i++) SET(kappa, i, i < 6 ? extremes[i] : scales[cases % 6] * (double)(i * 37 % 100));
            for (int64_t i = 0; i < 3 * width; i++) SET(table, i, i % width == 0 ? 0.0 : i % width == 1 ? 0x1p-64 : 0.5);
            curve_call c = {
                .value = value, .slope = kind & 2 ? slope : 0, .kappa = kappa, .rows = table, .count = n, .first = 1000,
                .last = 2, .size = size, .threads = 1 + cases % 3, .gain = kind & 4 ? 1.0 : 0.0, .decay = kind & 4 ? 0.0 : 1.5,
            };
            if (!sphere_curve(&c)) return printf("curve: n=%d\n", (int)n), 1;
            for (int64_t i = 0; i < n; i++)
                if (isnan(GET(kappa, i)) ? !isnan(GET(value, i)) : isfinite(GET(kappa, i)) && !isfinite(GET(value, i)))
                    return printf("curve: case %d n=%d i=%d\n", cases, (int)n, (int)i), 1;
            char *all[] = {kappa, value, slope, table};
            for (int i = 0; i < 4; i++) free(all[i]);
        }
    for (int a = 0; a < 18; a++)
        for (int b = 0; b < 11; b++)
            for (int kind = 0; kind < 8; kind++) {
                int64_t d = dims[a], n = rows[b], entries = d + kind % 2;
                if (n * d > 20000) continue;
                float *loc = numbers(n * d), *kappa = numbers(n), *outputs = numbers(n * entries);
                float *in_loc = numbers(n * d), *in_kappa = numbers(n), *gradient = numbers(n * entries);
                for (int64_t i = 0; i < n * entries; i++) outputs[i] = scales[cases % 6] * (i % 3 ? 1 : -1);
                head_call c = {
                    .loc = loc, .kappa = kind % 2 ? kappa : 0, .outputs = outputs, .rows = n, .dim = d,
                    .entries = entries, .threads = 1 + cases % 3, .minimum = 0.5,
                    .maximum = kind < 4 ? INFINITY : 40.0, .shortest = 1e-12,
                };
                if (!sphere_head(&c)) return printf("head: d=%d n=%d\n", (int)d, (int)n), 1;
                c.grad_loc = kind / 2 % 2 ? in_loc : 0;
                c.grad_kappa = cases % 3 ? in_kappa : 0;
                c.gradient = gradient;
                if (!sphere_head_gradient(&c)) return printf("head: d=%d n=%d\n", (int)d, (int)n), 1;
                for (int64_t i = 0; i < n * d; i++)
                    if (!(fabsf(loc[i]) <= 1.00001f)) return printf("head: case %d d=%d\n", cases, (int)d), 1;
                for (int64_t i = 0; i < n * entries; i++)
                    if (!isfinite(gradient[i])) return printf("head: case %d d=%d\n", cases, (int)d), 1;
                float *all[] = {loc, kappa, outputs, in_loc, in_kappa, gradient};
                for (int i = 0; i < 6; i++) free(all[i]);
                cases++;
            }
    for (int a = 0; a < 18; a++)
        for (int b = 0; b < 11; b++)
            for (int kind = 0; kind < 12; kind++) {
                /* x and kappa repeat in turn as loc does: not at all, as a whole (or as one vector), or per row */
                int64_t d = dims[a], n = rows[b], some = n % 5 ? 1 : 5;
                if (n * d > 20000 || n == 0) continue;
                const tile tiles[] = {{1, n}, {1, some}, {n / some, some}, {n, 1}};
                tile x_tile = tiles[cases % 4], loc_tile = tiles[kind % 4], kappa_tile = tiles[cases / 4 % 4];
                int whole = loc_tile.inner == 1 || loc_tile.count == 1;
                int64_t m = whole ? loc_tile.count : n;
                float *x = numbers(x_tile.count * d), *loc = numbers(loc_tile.count * d);
                float *kappa = numbers(kappa_tile.count), *grad = numbers(n), *minus = numbers(n), *plus = numbers(n);
                float *value = numbers(n), *grad_x = numbers(n * d), *grad_loc = numbers(m * d), *in_kappa = numbers(n);
                for (int64_t i = 0; i < x_tile.count * d; i++) x[i] = (i % 7 ? 1 : -1) / sqrtf((float)d);
                for (int64_t i = 0; i < loc_tile.count * d; i++) loc[i] = (i % 3 ? 1 : -1) / sqrtf((float)d);
                for (int64_t i = 0; i < kappa_tile.count; i++) kappa[i] = scales[cases % 5] * (float)(i * 37 % 100);
                density_call c = {
                    .value = value, .one_minus_t = minus, .one_plus_t = plus, .x = x, .loc = loc, .kappa = kappa,
                    .offset = kappa, .mean = kappa, .grad = grad, .grad_step = cases % 3 > 0, .threads = 1 + cases % 3,
                    .rows = n, .dim = d, .directions = m, .x_tile = x_tile, .loc_tile = loc_tile,
                    .kappa_tile = kappa_tile, .form = kind / 4 == 0 ? COSINE_ENDS : cases % 3, .log_area = 1.0,
                };
                if (!sphere_density(&c)) return printf("density: d=%d n=%d\n", (int)d, (int)n), 1;
                for (int64_t i = 0; i < n; i++)
                    if (!(minus[i] >= 0 && fabsf(minus[i] + plus[i] - 2) < 1e-4f) || isnan(value[i]))
                        return printf("density: case %d d=%d n=%d\n", cases, (int)d, (int)n), 1;
                for (int needs = 1; needs < 8; needs++) {
                    c.grad_x = needs & 1 ? grad_x : 0;
                    c.grad_loc = needs & 2 ? grad_loc : 0;
                    c.grad_kappa = needs & 4 && c.form != COSINE_ENDS ? in_kappa : 0;
                    if (!sphere_density_gradients(&c)) return printf("gradients: d=%d n=%d\n", (int)d, (int)n), 1;
                }
                c.one_minus_t = c.one_plus_t = 0;
                if (!sphere_density(&c)) return printf("density: d=%d n=%d\n", (int)d, (int)n), 1;
                for (int64_t i = 0; i < n * d; i++)
                    if (isnan(grad_x[i])) return printf("in x: case %d d=%d n=%d\n", cases, (int)d, (int)n), 1;
                float *all[] = {x, loc, kappa, grad, minus, plus, value, grad_x, grad_loc, in_kappa};
                for (int i = 0; i < 10; i++) free(all[i]);
                cases++;
            }
    printf("%d cases\n", cases);
    return 0;
}
