/* Functions of kappa as tables of polynomials (special/tables.py), for one type of numbers. The includer defines REAL, WORD
 * (an integer of its size), SHIFT (the bits of its mantissa, less three), WIDTH (the numbers per row) and CURVE.
 *
 * Plain loops, which the compiler turns into vector instructions with gathers. */
INLINE void CURVE(const curve_call *c, int64_t from, int64_t to) {
    const REAL *restrict kappa = c->kappa, *restrict rows = c->rows;
    REAL *restrict value = c->value, *restrict slope = c->slope;
    const REAL top = (REAL)0x1p64;
    const WORD first = (WORD)c->first, last = (WORD)c->last;
    int outside = 0;
    for (int64_t i = from; i < to; i++) {
        REAL k = kappa[i];
        outside |= (k > top) | (k < 0);
        k = k > top ? top : k < 0 ? 0 : k; /* NaN stays */
        WORD cell;
        memcpy(&cell, &k, sizeof k);
        cell = (cell >> SHIFT) - first;
        cell = cell < 0 ? 0 : cell > last ? last : cell;
        const int32_t at = (int32_t)cell * WIDTH;
        REAL x = k * rows[at + 1] + rows[at], v = rows[at + WIDTH - 1], s = 0;
        _Pragma("GCC unroll 16") for (int j = WIDTH - 2; j >= 2; j--) {
            s = s * x + v;
            v = v * x + rows[at + j];
        }
        value[i] = v;
        if (slope) slope[i] = s * rows[at + 1];
    }
    if (!outside) return;
    for (int64_t i = from; i < to; i++) { /* rare: beyond the table, and below 0 */
        if (kappa[i] < 0 && slope) slope[i] = 0;
        if (!(kappa[i] > top)) continue;
        double growth = log(kappa[i] / (double)top), v = value[i];
        if (c->gain != 0) v += c->gain * growth;
        if (c->decay != 0) v *= exp(-c->decay * growth);
        value[i] = (REAL)v;
        if (slope) slope[i] = (REAL)((c->decay != 0 ? -c->decay * v : c->gain) / kappa[i]);
    }
}
