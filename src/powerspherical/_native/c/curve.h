/* Functions of kappa as tables of polynomials (special/tables.py), for one type of numbers. The includer defines REAL, WORD
 * (an integer of its size), SHIFT (the bits of its mantissa, less three), WIDTH (the numbers per row), CURVE and, if the
 * processor has vectors of four such numbers, QUAD and WORDS. */
INLINE void CURVE(const curve_call *c, int64_t from, int64_t to) {
    const REAL *restrict kappa = c->kappa, *restrict rows = c->rows;
    REAL *restrict value = c->value, *restrict slope = c->slope;
    const REAL top = (REAL)0x1p64;
    const WORD first = (WORD)c->first, last = (WORD)c->last;
    int outside = 0;
    int64_t i = from;
#ifdef QUAD
    /* Loading four rows and transposing them takes half the time of loading their numbers one by one. */
    WORDS outliers = {0};
    for (; i + 4 <= to; i += 4) {
        QUAD k = *(const QUAD *)(kappa + i);
        WORDS above = k > top, below = k < 0;
        outliers |= above | below;
        k = (QUAD)((above & (WORDS)(top - (QUAD){0})) | (~(above | below) & (WORDS)k)); /* NaN stays */
        WORDS cell = ((WORDS)k >> SHIFT) - first;
        cell &= cell >= 0;
        cell = ((cell > last) & last) | ((cell <= last) & cell);
        cell *= WIDTH;
        QUAD row[WIDTH];
        _Pragma("GCC unroll 4") for (int j = 0; j < WIDTH; j += 4) {
            const int n = j + 4 > WIDTH ? WIDTH - 4 : j;
            QUAD p = *(const QUAD *)(rows + cell[0] + n), q = *(const QUAD *)(rows + cell[1] + n);
            QUAD r = *(const QUAD *)(rows + cell[2] + n), s = *(const QUAD *)(rows + cell[3] + n);
            QUAD pq = __builtin_shufflevector(p, q, 0, 4, 2, 6), qp = __builtin_shufflevector(p, q, 1, 5, 3, 7);
            QUAD rs = __builtin_shufflevector(r, s, 0, 4, 2, 6), sr = __builtin_shufflevector(r, s, 1, 5, 3, 7);
            row[n] = __builtin_shufflevector(pq, rs, 0, 1, 4, 5);
            row[n + 1] = __builtin_shufflevector(qp, sr, 0, 1, 4, 5);
            row[n + 2] = __builtin_shufflevector(pq, rs, 2, 3, 6, 7);
            row[n + 3] = __builtin_shufflevector(qp, sr, 2, 3, 6, 7);
        }
        QUAD x = k * row[1] + row[0], v = row[WIDTH - 1], s = {0};
        _Pragma("GCC unroll 16") for (int j = WIDTH - 2; j >= 2; j--) {
            s = s * x + v;
            v = v * x + row[j];
        }
        *(QUAD *)(value + i) = v;
        if (slope) *(QUAD *)(slope + i) = s * row[1];
    }
    outside = (outliers[0] | outliers[1] | outliers[2] | outliers[3]) != 0;
#endif
    for (; i < to; i++) {
        REAL k = kappa[i];
        outside |= (k > top) | (k < 0);
        k = k > top ? top : k < 0 ? 0 : k; /* NaN stays */
        WORD cell;
        memcpy(&cell, &k, sizeof k);
        cell = (cell >> SHIFT) - first;
        cell = cell < 0 ? 0 : cell > last ? last : cell;
        const REAL *row = rows + cell * WIDTH;
        REAL x = k * row[1] + row[0], v = row[WIDTH - 1], s = 0;
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
        value[i] = (REAL)v;
        if (slope) slope[i] = (REAL)((c->decay != 0 ? -c->decay * v : c->gain) / kappa[i]);
    }
}
