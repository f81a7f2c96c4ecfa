/* Random numbers as functions of a 64-bit seed, a stream and a place: Philox 4x32-7 (Salmon et al. 2011).
 *
 * Seven is the smallest number of rounds that passes all tests of BigCrush (section 5 there). Ten rounds, as in torch,
 * take a third longer. There is no state. So the results do not depend on how rows are distributed over threads nor,
 * apart from rounding, on the number of lanes.
 */
#pragma once
#include "elementary.h"

/* Streams: what the numbers are used for. Different streams are independent. */
enum { NORMALS, GAMMA, LENGTH, PROPOSAL, OTHER_LENGTH };

typedef struct { long_words a, b, c, d; } wide_quartet;

#define ROUNDS 7

/* The rounds of Philox, on counters in the low halves of 64-bit lanes. multiply_low ignores the high halves, so no
 * shuffling is needed between rounds. */
INLINE wide_quartet philox_rounds(wide_quartet counter, uint32_t key0, uint32_t key1) {
    const long_words factor0 = 0xD2511F53u - (long_words){0}, factor1 = 0xCD9E8D57u - (long_words){0};
#pragma GCC unroll 7
    for (int i = 0; i < ROUNDS; i++) {
        long_words p0 = multiply_low(counter.a, factor0), p1 = multiply_low(counter.c, factor1);
        counter = (wide_quartet){(p1 >> 32) ^ counter.b ^ (uint64_t)key0, p1,
                                 (p0 >> 32) ^ counter.d ^ (uint64_t)key1, p0};
        key0 += 0x9E3779B9u;
        key1 += 0xBB67AE85u;
    }
    return counter;
}
INLINE bits interleave(long_words low, long_words high) { return (bits)((low & 0xffffffffu) | high << 32); }

/* The 64-bit places of the lanes. In single precision, those of the even lanes and those of the odd lanes. */
#define PARTS (64 / REAL_BITS)
typedef struct { long_words part[PARTS]; } places;

INLINE places places_from(uint64_t first) {
    places p;
    for (int k = 0; k < PARTS; k++) {
        long_words numbers;
        for (int i = 0; i < DOUBLES; i++) numbers[i] = (uint64_t)(PARTS * i + k);
        p.part[k] = numbers + first;
    }
    return p;
}
/* The places first + at[0], first + at[1], ... */
INLINE places places_at(uint64_t first, const int32_t *at) {
    uint64_t numbers[PARTS][DOUBLES];
    for (int i = 0; i < LANES; i++) numbers[i % PARTS][i / PARTS] = first + (uint64_t)at[i];
    places p;
    memcpy(&p, numbers, sizeof p);
    return p;
}

/* Four random numbers per lane. Counters have four words: index, place (low and high) and stream. */
INLINE void draw_four(uint32_t index, places p, uint32_t stream, uint64_t seed, bits *out) {
    const long_words zero = {0}, place = p.part[0], other = p.part[PARTS - 1];
    uint32_t key0 = (uint32_t)seed, key1 = (uint32_t)(seed >> 32), n = REAL_BITS / 32 * index, next = n + 2 - PARTS;
    wide_quartet one = philox_rounds((wide_quartet){zero + n, place, place >> 32, zero + stream}, key0, key1);
    wide_quartet two = philox_rounds((wide_quartet){zero + next, other, other >> 32, zero + stream}, key0, key1);
#if REAL_BITS == 64
    out[0] = interleave(one.a, one.b);
    out[1] = interleave(one.c, one.d);
    out[2] = interleave(two.a, two.b);
    out[3] = interleave(two.c, two.d);
#else
    out[0] = interleave(one.a, two.a);
    out[1] = interleave(one.b, two.b);
    out[2] = interleave(one.c, two.c);
    out[3] = interleave(one.d, two.d);
#endif
}

#if REAL_BITS == 64
/* An exponential variable, -log u, where u is the midpoint of one of 2^52 equal parts of (0, 1), an odd multiple of 2^-53:
 * between 1e-16 and 36.8. */
INLINE reals exponential(bits b) {
    reals e, f = split((reals)(b >> 12 | ONE) - (1.0 - 0x1p-53), &e);
    return e * -LOG_2 - log1p_near(f);
}

/* One of 2^52 numbers between -1 and 1. */
INLINE reals symmetric(bits b) { return (reals)(b >> 12 | (bits)splat(2)) - 3; }

#define SINE -6.449471237809134e-10, 5.688318064017795e-08, -3.5988107063136794e-06, 0.0001604411695631063, \
             -0.004681754131447062, 0.07969262624568337, -0.6459640975062232, 1.5707963267948963
#define COSINE 6.3317327178079e-11, -6.382235924529259e-09, 4.7108307433635577e-07, -2.5202039782228713e-05, \
               0.0009192602739434877, -0.02086348076317886, 0.25366950790103104, -1.233700550136169, 1.0
#else
/* An exponential variable, -log u, where u is the midpoint of one of 2^31 equal parts of (0, 1): between 2e-10 and 22.2.
 * For u > sqrt(1/2), log u is computed from 1-u, so that the result is accurate and never 0. */
INLINE reals exponential(bits b) {
    ints k = (ints)(b >> 1);
    reals e, f = split(__builtin_convertvector(k, reals) + 0.5f, &e);
    e -= 31;
    f = pick(e == 0, (__builtin_convertvector(k ^ 0x7fffffff, reals) + 0.5f) * -0x1p-31f, f);
    return e * -LOG_2 - log1p_near(f);
}

INLINE reals symmetric(bits b) { return __builtin_convertvector((ints)b, reals) * 0x1p-31f; }

#define SINE 0.000151678532f, -0.0046741575f, 0.0796899269f, -0.645963761f, 1.57079632f
#define COSINE 0.000858190618f, -0.0208106275f, 0.253650745f, -1.23369821f, 0.999999953f
#endif

/* Two independent normals (Box & Muller 1958), at most 6.66 in absolute value, or 8.58 in double precision. The angle
 * x pi/2, |x| <= 1, is in the half turn where the cosine is positive. The last bit of b gives the cosine its sign. The
 * polynomials are sin(x pi/2)/x and cos(x pi/2) in z = x^2, with absolute errors of 1e-7 or 2e-16. */
INLINE void normal_pair(bits a, bits b, reals *one, reals *two) {
    reals e = exponential(a), radius = root_of(e + e), x = symmetric(b), z = x * x;
    *one = radius * (x * POLYNOMIAL(z, SINE));
    *two = radius * (reals)((bits)POLYNOMIAL(z, COSINE) ^ b << (REAL_BITS - 1));
}

#define BLOCK 64 /* normals per block of a sequence: 16 draws of four */
INLINE void draw_normals(places p, uint64_t seed, real *out) {
    bits b[4];
    reals n[4];
    draw_four(0, p, NORMALS, seed, b); /* the place is the index of a sequence */
    normal_pair(b[0], b[1], n, n + 1);
    normal_pair(b[2], b[3], n + 2, n + 3);
    for (int i = 0; i < 4; i++) store(out + 16 * i, n[i]);
}

/* An unlimited sequence of normals, drawn in blocks. If a request ends inside a block, `kept` holds that block for the
 * next request. */
typedef struct {
    uint64_t seed;
    int64_t block;
    real kept[BLOCK] ALIGNED;
} normal_sequence;

INLINE void draw_blocks(uint64_t seed, real *out, int64_t block, int64_t count) {
    for (; count > 0; count--, block++, out += BLOCK)
#pragma GCC unroll 1
        for (int i = 0; i < 16; i += LANES) draw_normals(places_from((uint64_t)block * 16 + (uint64_t)i), seed, out + i);
}

/* Writes the normals start, ..., start + count - 1 of the sequence. */
OUTLINE void normals(normal_sequence *s, real *out, int64_t start, int64_t count) {
    int64_t block = start / BLOCK, skip = start % BLOCK;
    if (skip) {
        if (s->block != block) draw_blocks(s->seed, s->kept, s->block = block, 1);
        int64_t k = BLOCK - skip < count ? BLOCK - skip : count;
        memcpy(out, s->kept + skip, sizeof(real) * (size_t)k);
        out += k;
        count -= k;
        block++;
    }
    draw_blocks(s->seed, out, block, count / BLOCK);
    if (count % BLOCK) {
        draw_blocks(s->seed, s->kept, s->block = block + count / BLOCK, 1);
        memcpy(out + count / BLOCK * BLOCK, s->kept, sizeof(real) * (size_t)(count % BLOCK));
    }
}
