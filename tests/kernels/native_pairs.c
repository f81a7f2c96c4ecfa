/* The normals of random.h, which the library does not export. */
#include "random.h"

/* The pairs of normals that belong to random bits; `count` is a multiple of LANES. */
void pairs(const void *a, const void *b, real *one, real *two, int64_t count) {
    for (int64_t i = 0; i < count; i += LANES) {
        bits first, second;
        reals x, y;
        memcpy(&first, (const real *)a + i, sizeof first);
        memcpy(&second, (const real *)b + i, sizeof second);
        normal_pair(first, second, &x, &y);
        store(one + i, x);
        store(two + i, y);
    }
}

/* The normals start, start + 1, ... of a sequence, requested in parts of the given lengths. */
void sequence(uint64_t seed, real *out, int64_t start, const int64_t *lengths, int64_t parts) {
    normal_sequence s = {.seed = seed, .block = -1};
    for (int64_t i = 0; i < parts; i++) {
        normals(&s, out, start, lengths[i]);
        out += lengths[i];
        start += lengths[i];
    }
}
