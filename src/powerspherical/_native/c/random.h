/* Random numbers as functions of a 64-bit seed, a stream and a place: Philox 4x32-7 (Salmon et al. 2011).
 *
 * Seven is the smallest number of rounds that passes all tests of BigCrush (section 5 there). Ten rounds, as in torch,
 * take a third longer. There is no state. So the results do not depend on how rows are distributed over threads nor,
 * apart from rounding, on the number of lanes.
 */
#pragma once
#include "elementary.h"

/* Streams: what the numbers are used for. Different streams are independent. */
enum { NORMALS, GAMMA, LENGTH, PROPOSAL, OTHER_LENGTH, DOUBLE_NORMALS };

typedef struct { words a, b, c, d; } quartet;
typedef struct { longs a, b, c, d; } wide_quartet;

#define ROUNDS 7

/* The rounds of Philox, on counters in the low halves of 64-bit lanes. multiply_low ignores the high halves, so no
 * shuffling is needed between rounds. */
INLINE wide_quartet philox_rounds(wide_quartet counter, uint32_t key0, uint32_t key1) {
    const longs factor0 = 0xD2511F53u - (longs){0}, factor1 = 0xCD9E8D57u - (longs){0};
#pragma GCC unroll 7
    for (int i = 0; i < ROUNDS; i++) {
        longs p0 = multiply_low(counter.a, factor0), p1 = multiply_low(counter.c, factor1);
        counter = (wide_quartet){(p1 >> 32) ^ counter.b ^ (uint64_t)key0, p1,
                                 (p0 >> 32) ^ counter.d ^ (uint64_t)key1, p0};
        key0 += 0x9E3779B9u;
        key1 += 0xBB67AE85u;
    }
    return counter;
}
INLINE words interleave(longs even, longs odd) { return (words)((even & 0xffffffffu) | (odd << 32)); }

/* Four random words per lane, from a counter of four words: (index, low, high, stream). */
INLINE quartet philox(words index, words low, words high, uint32_t stream, uint64_t seed) {
    longs i = (longs)index, l = (longs)low, h = (longs)high, s = (uint64_t)stream - (longs){0};
    uint32_t key0 = (uint32_t)seed, key1 = (uint32_t)(seed >> 32);
    wide_quartet even = philox_rounds((wide_quartet){i, l, h, s}, key0, key1);
    wide_quartet odd = philox_rounds((wide_quartet){i >> 32, l >> 32, h >> 32, s}, key0, key1);
    return (quartet){interleave(even.a, odd.a), interleave(even.b, odd.b), interleave(even.c, odd.c),
                     interleave(even.d, odd.d)};
}

/* -log u, where u is the midpoint of one of 2^31 equal parts of (0, 1): between 2e-10 and 22.2.
 * For u > sqrt(1/2), log u is computed from 1-u, so that the result is accurate and never 0. */
INLINE floats exponential(words bits) {
    ints k = (ints)(bits >> 1), e;
    floats f = split(to_floats(k) + 0.5f, &e);
    e -= 31;
    f = pick(e == 0, (to_floats(k ^ 0x7fffffff) + 0.5f) * -0x1p-31f, f);
    return to_floats(e) * -LOG_2 - log1p_near(f);
}

/* Two independent normals (Box & Muller 1958), at most 6.66 in absolute value. The angle is in the half turn where the
 * cosine is positive. The last bit of the word gives the cosine its sign. */
INLINE void normal_pair(words a, words b, floats *one, floats *two) {
    floats e = exponential(a), radius = root(e + e);
    floats x = to_floats((ints)b) * 0x1p-31f, z = x * x;
    *one = radius * sine_of_quarter_turns(x, z);
    *two = radius * (floats)((words)cosine_of_quarter_turns(z) ^ (b << 31));
}

/* An unlimited sequence of normals, drawn in blocks of 64. If a request ends inside a block, `kept` holds that block for
 * the next request. */
typedef struct {
    uint64_t seed;
    int64_t block;
    float kept[64] ALIGNED;
} normal_sequence;

INLINE void draw_blocks(uint64_t seed, float *out, int64_t block, int64_t count) {
    for (; count > 0; count--, block++, out += 64) {
        uint64_t place = (uint64_t)block * 16;
        words high = splat_word((uint32_t)(place >> 32)), low = lane_numbers() + (uint32_t)place;
#pragma GCC unroll 1
        for (int i = 0; i < 16; i += LANES) {
            quartet bits = philox(low + (uint32_t)i, high, splat_word(0), NORMALS, seed);
            floats n0, n1, n2, n3;
            normal_pair(bits.a, bits.b, &n0, &n1);
            normal_pair(bits.c, bits.d, &n2, &n3);
            store(out + i, n0);
            store(out + 16 + i, n1);
            store(out + 32 + i, n2);
            store(out + 48 + i, n3);
        }
    }
}

/* Writes the normals start, ..., start + count - 1 of the sequence. */
OUTLINE void normals(normal_sequence *s, float *out, int64_t start, int64_t count) {
    int64_t block = start >> 6, skip = start & 63;
    if (skip) {
        if (s->block != block) draw_blocks(s->seed, s->kept, s->block = block, 1);
        int64_t k = 64 - skip < count ? 64 - skip : count;
        memcpy(out, s->kept + skip, sizeof(float) * (size_t)k);
        out += k;
        count -= k;
        block++;
    }
    draw_blocks(s->seed, out, block, count >> 6);
    if (count & 63) {
        draw_blocks(s->seed, s->kept, s->block = block + (count >> 6), 1);
        memcpy(out + (count & ~(int64_t)63), s->kept, sizeof(float) * (size_t)(count & 63));
    }
}
