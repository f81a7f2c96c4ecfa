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
INLINE words interleave(long_words even, long_words odd) { return (words)((even & 0xffffffffu) | (odd << 32)); }

/* Two types say what a random number consists of: `bits`, as many bits as a real has, in each lane; and `places`, the
 * 64-bit places of the lanes. */
#if REAL_BITS == 64
typedef long_words bits;
typedef struct { long_words place; } places;

INLINE places places_from(uint64_t first) {
    places p;
    for (int i = 0; i < LANES; i++) p.place[i] = first + (uint64_t)i;
    return p;
}
/* The places first + at[0], first + at[1], ... */
INLINE places places_at(uint64_t first, const int32_t *at) {
    places p;
    for (int i = 0; i < LANES; i++) p.place[i] = first + (uint64_t)at[i];
    return p;
}

/* Two random numbers per lane, from a counter of four words: index, place (low and high) and stream. */
INLINE void draw_two(uint32_t index, places p, uint32_t stream, uint64_t seed, bits *a, bits *b) {
    const long_words zero = {0};
    wide_quartet drawn = philox_rounds((wide_quartet){zero + index, p.place, p.place >> 32, zero + stream},
                                       (uint32_t)seed, (uint32_t)(seed >> 32));
    *a = (bits)interleave(drawn.a, drawn.b);
    *b = (bits)interleave(drawn.c, drawn.d);
}
INLINE void draw_four(uint32_t index, places p, uint32_t stream, uint64_t seed, bits *out) {
    draw_two(2 * index, p, stream, seed, out, out + 1);
    draw_two(2 * index + 1, p, stream, seed, out + 2, out + 3);
}

/* The midpoint of one of 2^52 equal parts of (0, 1), from the high bits: an odd multiple of 2^-53. So both u and 1-u
 * are exact, and neither is 0. */
INLINE doubles midpoint(bits b) {
    return (doubles)((b >> 12) | UINT64_C(0x3ff0000000000000)) - (1.0 - 0x1p-53);
}

/* An exponential variable, -log u */
INLINE doubles exponential(bits b) { return -log_of_normal(midpoint(b)); }

/* sin(y pi/2) and cos(y pi/2) for |y| <= 1/2, z = y^2; the polynomials are (sin(y pi/2)/y - pi/2)/z and
 * (cos(y pi/2) - 1)/z */
INLINE doubles sine_of_quarter_turns(doubles y, doubles z) {
    return y * POLYNOMIAL_OF_DOUBLES(z, 5.642225369163528e-08, -3.5987029509735105e-06, 0.00016044116661409423,
                                     -0.004681754134254207, 0.07969262624614423, -0.6459640975062462,
                                     1.5707963267948966);
}
INLINE doubles cosine_of_quarter_turns(doubles z) {
    return POLYNOMIAL_OF_DOUBLES(z, -6.329396344967424e-09, 4.710678405505227e-07, -2.5202039028029178e-05,
                                 0.0009192602745468447, -0.020863480763340773, 0.2536695079010478,
                                 -1.2337005501361697, 1.0);
}

/* Two independent normals (Box & Muller 1958), between 1e-24 and 8.6 in size, each with an error of at most 4 units in
 * the last place. The angle is within an eighth of a turn of a half-axis, and the last two bits of b choose which of the
 * four. */
INLINE void normal_pair(bits a, bits b, doubles *one, doubles *two) {
    doubles radius = root_of(-2.0 * log_of_normal(midpoint(a)));
    doubles y = midpoint(b) - 0.5, z = y * y;
    long_words across = (long_words)sine_of_quarter_turns(y, z);
    long_words along = (long_words)cosine_of_quarter_turns(z) ^ (b << 63);
    long_words swap = (across ^ along) & ((long_words){0} - (b >> 1 & 1));
    *one = radius * (doubles)(across ^ swap);
    *two = radius * (doubles)(along ^ swap);
}

#define BLOCK 32 /* normals per block of a sequence: 16 draws of a pair */
INLINE void draw_normals(places p, uint64_t seed, real *out) {
    bits a, b;
    reals one, two;
    draw_two(0, p, NORMALS, seed, &a, &b);
    normal_pair(a, b, &one, &two);
    store(out, one);
    store(out + 16, two);
}
#else
typedef words bits;
typedef struct { words low, high; } places;

INLINE words lane_numbers(void) {
    words r;
    for (int i = 0; i < LANES; i++) r[i] = (uint32_t)i;
    return r;
}
INLINE places with_carry(uint64_t first, words low) {
    words high = (uint32_t)(first >> 32) - (words){0};
    return (places){low, high - (words)(low < (uint32_t)first)};
}
INLINE places places_from(uint64_t first) { return with_carry(first, lane_numbers() + (uint32_t)first); }
/* The places first + at[0], first + at[1], ... */
INLINE places places_at(uint64_t first, const int32_t *at) {
    typedef words words_anywhere __attribute__((aligned(4), may_alias));
    return with_carry(first, *(const words_anywhere *)at + (uint32_t)first);
}

/* Four random numbers per lane, from a counter of four words: index, place (low and high) and stream. */
INLINE void draw_four(uint32_t index, places p, uint32_t stream, uint64_t seed, bits *out) {
    const long_words i = index - (long_words){0}, s = stream - (long_words){0};
    long_words low = (long_words)p.low, high = (long_words)p.high;
    uint32_t key0 = (uint32_t)seed, key1 = (uint32_t)(seed >> 32);
    wide_quartet even = philox_rounds((wide_quartet){i, low, high, s}, key0, key1);
    wide_quartet odd = philox_rounds((wide_quartet){i, low >> 32, high >> 32, s}, key0, key1);
    out[0] = interleave(even.a, odd.a);
    out[1] = interleave(even.b, odd.b);
    out[2] = interleave(even.c, odd.c);
    out[3] = interleave(even.d, odd.d);
}

/* An exponential variable, -log u, where u is the midpoint of one of 2^31 equal parts of (0, 1): between 2e-10 and 22.2.
 * For u > sqrt(1/2), log u is computed from 1-u, so that the result is accurate and never 0. */
INLINE floats exponential(bits b) {
    ints k = (ints)(b >> 1), e;
    floats f = split(floats_of(k) + 0.5f, &e);
    e -= 31;
    f = pick(e == 0, (floats_of(k ^ 0x7fffffff) + 0.5f) * -0x1p-31f, f);
    return floats_of(e) * -(float)LOG_2 - log1p_near(f);
}

/* sin(x pi/2) and cos(x pi/2) for |x| <= 1, z = x^2; the cosine has an absolute error of 1e-7 */
INLINE floats sine_of_quarter_turns(floats x, floats z) {
    return x * POLYNOMIAL_OF_FLOATS(z, 0.000151678532f, -0.0046741575f, 0.0796899269f, -0.645963761f, 1.57079632f);
}
INLINE floats cosine_of_quarter_turns(floats z) {
    return POLYNOMIAL_OF_FLOATS(z, 0.000858190618f, -0.0208106275f, 0.253650745f, -1.23369821f, 0.999999953f);
}

/* Two independent normals (Box & Muller 1958), at most 6.66 in absolute value. The angle is in the half turn where the
 * cosine is positive. The last bit of b gives the cosine its sign. */
INLINE void normal_pair(bits a, bits b, floats *one, floats *two) {
    floats e = exponential(a), radius = root_of(e + e);
    floats x = floats_of((ints)b) * 0x1p-31f, z = x * x;
    *one = radius * sine_of_quarter_turns(x, z);
    *two = radius * (floats)((words)cosine_of_quarter_turns(z) ^ (b << 31));
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
#endif

/* An unlimited sequence of normals, drawn in blocks. If a request ends inside a block, `kept` holds that block for the
 * next request. */
typedef struct {
    uint64_t seed;
    int64_t block;
    real kept[BLOCK] ALIGNED;
} normal_sequence;

INLINE void draw_blocks(uint64_t seed, real *out, int64_t block, int64_t count) {
    for (; count > 0; count--, block++, out += BLOCK) {
#pragma GCC unroll 1
        for (int i = 0; i < 16; i += LANES) draw_normals(places_from((uint64_t)block * 16 + (uint64_t)i), seed, out + i);
    }
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
