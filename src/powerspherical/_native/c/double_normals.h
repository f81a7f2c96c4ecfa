/* Standard normals in double precision, for draws that torch operations finish.
 *
 * Each normal has an error of at most 4 units in the last place. The polynomials interpolate the function that the
 * comment names at the Chebyshev nodes of the interval.
 */
#pragma once
#include "call.h"
#include "random.h"

#define BITS_OF_ROOT_HALF_DOUBLE UINT64_C(0x3fe6a09e667f3bcd) /* sqrt(1/2) as a double */

/* The midpoint of one of 2^52 equal parts of (0, 1), from the high bits: an odd multiple of 2^-53. So both u and 1-u
 * are exact, and neither is 0. */
INLINE doubles midpoint(longs bits) {
    return (doubles)((bits >> 12) | UINT64_C(0x3ff0000000000000)) - (1.0 - 0x1p-53);
}

/* log u for a positive u that is not denormal: u = 2^e (1+f), sqrt(1/2) <= 1+f <= sqrt(2), s = f/(2+f), z = s^2,
 * log(1+f) = 2 artanh(s) = f - s(f - r) with r = 2z/3 + 2z^2/5 + ...; the polynomial is r/z on z <= 0.0295. */
INLINE doubles log_of_doubles(doubles u) {
    longs shifted = (longs)u + (UINT64_C(0x3ff0000000000000) - BITS_OF_ROOT_HALF_DOUBLE);
    /* An integer below 2^52 in the last bits of 2^52 is their sum. */
    doubles e = (doubles)((shifted >> 52) | UINT64_C(0x4330000000000000)) - (0x1p52 + 1023.0);
    doubles f = (doubles)((shifted & UINT64_C(0xfffffffffffff)) + BITS_OF_ROOT_HALF_DOUBLE) - 1.0;
    doubles s = f / (2.0 + f), z = s * s;
    doubles r = z * 0.14616449685043406 + 0.15331721600556042;
    r = r * z + 0.18182889125261723;
    r = r * z + 0.2222221113479508;
    r = r * z + 0.28571428625975487;
    r = r * z + 0.39999999999899505;
    r = r * z + 0.666666666666667;
    return e * 0.6931471805599453 + (f - s * (f - z * r));
}

/* sin(y pi/2) and cos(y pi/2) for |y| <= 1/2, z = y^2; the polynomials are (sin(y pi/2)/y - pi/2)/z and
 * (cos(y pi/2) - 1)/z */
INLINE doubles sine_of_doubles(doubles y, doubles z) {
    doubles q = z * 5.642225369163528e-08 - 3.5987029509735105e-06;
    q = q * z + 0.00016044116661409423;
    q = q * z - 0.004681754134254207;
    q = q * z + 0.07969262624614423;
    q = q * z - 0.6459640975062462;
    return y * (q * z + 1.5707963267948966);
}
INLINE doubles cosine_of_doubles(doubles z) {
    doubles q = z * -6.329396344967424e-09 + 4.710678405505227e-07;
    q = q * z - 2.5202039028029178e-05;
    q = q * z + 0.0009192602745468447;
    q = q * z - 0.020863480763340773;
    q = q * z + 0.2536695079010478;
    q = q * z - 1.2337005501361697;
    return q * z + 1.0;
}

/* Two independent normals (Box & Muller 1958), between 1e-24 and 8.6 in size, from 64 random bits each.
 * The angle is within an eighth of a turn of a half-axis, and the last two bits of b choose which of the four. */
INLINE void double_normal_pair(longs a, longs b, doubles *one, doubles *two) {
    doubles radius = root_of_doubles(-2.0 * log_of_doubles(midpoint(a)));
    doubles y = midpoint(b) - 0.5, z = y * y;
    longs across = (longs)sine_of_doubles(y, z), along = (longs)cosine_of_doubles(z) ^ (b << 63);
    longs swap = (across ^ along) & ((longs){0} - (b >> 1 & 1));
    *one = radius * (doubles)(across ^ swap);
    *two = radius * (doubles)(along ^ swap);
}

#define DOUBLES_PER_BLOCK 32

/* Block number `block` of the sequence of normals that belongs to the seed. */
INLINE void draw_block_of_doubles(uint64_t seed, double *out, int64_t block) {
    uint64_t place = (uint64_t)block * (DOUBLES_PER_BLOCK / 2);
    longs lanes, high = (place >> 32) - (longs){0}, stream = (uint64_t)DOUBLE_NORMALS - (longs){0};
    for (int i = 0; i < LANES / 2; i++) lanes[i] = (uint64_t)i;
#pragma GCC unroll 1
    for (int i = 0; i < DOUBLES_PER_BLOCK / 2; i += LANES / 2) {
        wide_quartet counter = {lanes + (place + (uint64_t)i), high, (longs){0}, stream};
        wide_quartet bits = philox_rounds(counter, (uint32_t)seed, (uint32_t)(seed >> 32));
        doubles one, two;
        double_normal_pair((longs)interleave(bits.a, bits.b), (longs)interleave(bits.c, bits.d), &one, &two);
        store_doubles(out + i, one);
        store_doubles(out + DOUBLES_PER_BLOCK / 2 + i, two);
    }
}

/* Writes the blocks `block`, ..., `end` - 1 of the output, of which the last may be cut off. */
static void fill_with_normals(const normals_call *c, int64_t block, int64_t end) {
    uint64_t seed = *c->seed;
    for (; block < end; block++) {
        int64_t start = block * DOUBLES_PER_BLOCK, left = c->count - start;
        if (left >= DOUBLES_PER_BLOCK) {
            draw_block_of_doubles(seed, c->out + start, block);
        } else {
            double whole[DOUBLES_PER_BLOCK];
            draw_block_of_doubles(seed, whole, block);
            memcpy(c->out + start, whole, sizeof(double) * (size_t)left);
        }
    }
}
