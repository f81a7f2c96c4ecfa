/* Functions of kappa as tables of polynomials (special/tables.py). */
#pragma once
#include "call.h"

#if REAL_BITS == 64
typedef int64_t word; /* an integer of the size of a number */
#define SHIFT 49      /* the bits of the mantissa, less three */
#define WIDTH 15      /* numbers per row */
#else
typedef int32_t word;
#define SHIFT 20
#define WIDTH 9
#endif

#if defined(__AVX2__) && defined(__has_builtin)
#if __has_builtin(__builtin_shufflevector) /* gcc from version 12 on, and clang */
#define HAS_QUADS
#endif
#endif
typedef real quad __attribute__((vector_size(REAL_BITS / 2), aligned(REAL_BITS / 8), may_alias));
typedef word quad_words __attribute__((vector_size(REAL_BITS / 2), aligned(REAL_BITS / 8), may_alias));

static void curve_rows(const void *call, int64_t from, int64_t to) {
    const curve_call *c = call;
    const real *restrict kappa = c->kappa, *restrict rows = c->rows;
    real *restrict value = c->value, *restrict slope = c->slope;
    const real top = (real)0x1p64;
    const word first = (word)c->first, last = (word)c->last;
    int outside = 0;
    int64_t i = from;
#ifdef HAS_QUADS
    /* Loading four rows and transposing them takes half the time of loading their numbers one by one. */
    quad_words outliers = {0};
    for (; i + 4 <= to; i += 4) {
        quad k = *(const quad *)(kappa + i);
        quad_words above = k > top, below = k < 0;
        outliers |= above | below;
        k = (quad)((above & (quad_words)(top - (quad){0})) | (~(above | below) & (quad_words)k)); /* NaN stays */
        quad_words cell = ((quad_words)k >> SHIFT) - first;
        cell &= cell >= 0;
        cell = ((cell > last) & last) | ((cell <= last) & cell);
        cell *= WIDTH;
        quad row[WIDTH];
        _Pragma("GCC unroll 4") for (int j = 0; j < WIDTH; j += 4) {
            const int n = j + 4 > WIDTH ? WIDTH - 4 : j;
            quad p = *(const quad *)(rows + cell[0] + n), q = *(const quad *)(rows + cell[1] + n);
            quad r = *(const quad *)(rows + cell[2] + n), s = *(const quad *)(rows + cell[3] + n);
            quad pq = __builtin_shufflevector(p, q, 0, 4, 2, 6), qp = __builtin_shufflevector(p, q, 1, 5, 3, 7);
            quad rs = __builtin_shufflevector(r, s, 0, 4, 2, 6), sr = __builtin_shufflevector(r, s, 1, 5, 3, 7);
            row[n] = __builtin_shufflevector(pq, rs, 0, 1, 4, 5);
            row[n + 1] = __builtin_shufflevector(qp, sr, 0, 1, 4, 5);
            row[n + 2] = __builtin_shufflevector(pq, rs, 2, 3, 6, 7);
            row[n + 3] = __builtin_shufflevector(qp, sr, 2, 3, 6, 7);
        }
        quad x = k * row[1] + row[0], v = row[WIDTH - 1], s = {0};
        _Pragma("GCC unroll 16") for (int j = WIDTH - 2; j >= 2; j--) {
            s = s * x + v;
            v = v * x + row[j];
        }
        *(quad *)(value + i) = v;
        if (slope) *(quad *)(slope + i) = s * row[1];
    }
    outside = (outliers[0] | outliers[1] | outliers[2] | outliers[3]) != 0;
#endif
    for (; i < to; i++) {
        real k = kappa[i];
        outside |= (k > top) | (k < 0);
        k = k > top ? top : k < 0 ? 0 : k; /* NaN stays */
        word cell;
        memcpy(&cell, &k, sizeof k);
        cell = (cell >> SHIFT) - first;
        cell = cell < 0 ? 0 : cell > last ? last : cell;
        const real *row = rows + cell * WIDTH;
        real x = k * row[1] + row[0], v = row[WIDTH - 1], s = 0;
        _Pragma("GCC unroll 16") for (int j = WIDTH - 2; j >= 2; j--) {
            s = s * x + v;
            v = v * x + row[j];
        }
        value[i] = v;
        if (slope) slope[i] = s * row[1];
    }
    if (!outside) return;
    for (i = from; i < to; i++) { /* rare: beyond the table, and below 0 */
        if (kappa[i] < 0 && slope) slope[i] = 0;
        if (!(kappa[i] > top)) continue;
        double growth = log(kappa[i] / (double)top), v = value[i];
        if (c->gain != 0) v += c->gain * growth;
        if (c->decay != 0) v *= exp(-c->decay * growth);
        value[i] = (real)v;
        if (slope) slope[i] = (real)((c->decay != 0 ? -c->decay * v : c->gain) / kappa[i]);
    }
}
