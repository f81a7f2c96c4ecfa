/* Parts of the native kernel that the library does not export, for tests of single numbers. */
#include "kernel.c"

#define EXPORT __attribute__((visibility("default")))

/* The pairs of normals for `count` pairs of 64 random bits, a multiple of LANES / 2. */
EXPORT void pairs(const uint64_t *a, const uint64_t *b, double *one, double *two, int64_t count) {
    typedef uint64_t longs_anywhere __attribute__((vector_size(4 * LANES), aligned(8), may_alias));
    for (int64_t i = 0; i < count; i += LANES / 2) {
        doubles first, second;
        double_normal_pair(*(const longs_anywhere *)(a + i), *(const longs_anywhere *)(b + i), &first, &second);
        store_doubles(one + i, first);
        store_doubles(two + i, second);
    }
}

EXPORT void block(uint64_t seed, double *out, int64_t number) { draw_block_of_doubles(seed, out, number); }
