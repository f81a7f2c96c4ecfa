/* KL(Power Spherical || uniform), and its derivative in kappa or the mean of log((1+t)/2).
 *
 * special/gamma.py explains the formulas. beta = (d-1)/2 is first shifted to b = beta + steps, where Stirling's series
 * with `terms` terms is exact up to rounding.
 */
#pragma once
#include "call.h"
#include "elementary.h"

/* What a form computes. */
typedef struct { floats value, slope; } value_and_slope;

/* The Bernoulli numbers B_2k, k = 1, ..., 4, and B_2k/(2k): coefficients of Stirling's series of psi_1 and psi */
static const float BERNOULLI[] = {1.0f / 6, -1.0f / 30, 1.0f / 42, -1.0f / 30};
static const float BERNOULLI_OVER_INDEX[] = {1.0f / 12, -1.0f / 120, 1.0f / 252, -1.0f / 240};

/* The polynomial c[0] + c[stride] x + c[2 stride] x^2 + ... with `count` coefficients */
INLINE floats polynomial(const float *c, int64_t count, int64_t stride, floats x) {
    floats value = splat(c[(count - 1) * stride]);
    for (int64_t i = count - 2; i >= 0; i--) value = value * x + c[i * stride];
    return value;
}

/* log(1+x) - x for -0.4 <= x < 1, by the series of 2 artanh(r), r = x/(2+x) */
INLINE floats log1p_minus(floats x) {
    static const float odd[] = {2.0f / 3,  2.0f / 5,  2.0f / 7,  2.0f / 9,
                                2.0f / 11, 2.0f / 13, 2.0f / 15, 2.0f / 17};
    floats r = x / (2.0f + x), s = r * r;
    return r * (s * polynomial(odd, 8, 1, s) - x);
}

INLINE floats power_spherical_entropy(const functions_call *c, floats kappa) {
    float beta = (float)c->numbers[0], b = (float)c->numbers[1];
    int64_t powers = 2 * c->terms - 1; /* the table has a row of two coefficients per power, for b and for 2b */
    floats z = kappa + b, y = kappa + 2.0f * b, v = kappa / z, w = kappa / y, stretch = y / z;
    floats leading = log1p_of(kappa * (v * (0.25f / b))); /* log of y^2/(4bz) */
    floats value = beta * leading + 0.5f * log1p_minus(w) + w * w / (1.0f + w);
    value += v * v * polynomial(c->table, powers, 2, b / z) - w * w * polynomial(c->table + 1, powers, 2, 2.0f * b / y);
    for (int64_t step = 0; step < c->steps; step++) {
        float a = beta + (float)step, scale = (2.0f * a + 1.0f) / (2.0f * b);
        floats first = 1.0f / (kappa + 2.0f * a), second = 1.0f / (kappa + (2.0f * a + 1.0f)), sum = kappa + a;
        floats excess = (kappa * first) * ((1.0f - kappa) * second);
        floats close = leading + log1p_minus(larger(excess, splat(-0.4f)));
        floats far = log_of((y * first) * (sum * second) * (stretch * scale)) - excess;
        value += pick(excess > -0.4f, close, far) + (kappa * first) * (kappa * second) * ((a + 1.0f) / sum);
    }
    return value;
}

/* psi_1(beta + kappa) - psi_1(2 beta + kappa), the variance of log(1+t) */
INLINE floats power_spherical_variance(const functions_call *c, floats kappa) {
    float beta = (float)c->numbers[0], b = (float)c->numbers[1];
    floats x = 1.0f / (kappa + b), y = 1.0f / (kappa + (b + beta)), sum = x * y;
    for (int64_t step = 0; step < c->steps; step++) {
        float a = beta + (float)step;
        floats p = 1.0f / (kappa + a), q = 1.0f / (kappa + (a + beta));
        sum += (p + q) * (p * q);
    }
    floats x2 = x * x, y2 = y * y;
    return beta * sum + (x2 * (0.5f + x * polynomial(BERNOULLI, c->terms, 1, x2)) -
                         y2 * (0.5f + y * polynomial(BERNOULLI, c->terms, 1, y2)));
}

/* psi(beta + kappa) - psi(2 beta + kappa), the mean of log((1+t)/2) */
INLINE floats power_spherical_mean(const functions_call *c, floats kappa) {
    float beta = (float)c->numbers[0], b = (float)c->numbers[1];
    floats x = 1.0f / (kappa + b), y = 1.0f / (kappa + (b + beta)), x2 = x * x, y2 = y * y;
    floats sum = log1p_of(beta * x) + 0.5f * beta * x * y;
    sum += x2 * polynomial(BERNOULLI_OVER_INDEX, c->terms, 1, x2) - y2 * polynomial(BERNOULLI_OVER_INDEX, c->terms, 1, y2);
    for (int64_t step = 0; step < c->steps; step++) {
        floats p = kappa + (beta + (float)step);
        sum += beta / (p * (p + beta));
    }
    return -sum;
}

static value_and_slope gamma_functions(const functions_call *c, floats kappa) {
    value_and_slope result = {.value = power_spherical_entropy(c, kappa)};
    if (c->slope && c->form == POWER_SPHERICAL_ENTROPY_AND_MEAN) result.slope = power_spherical_mean(c, kappa);
    else if (c->slope) result.slope = kappa * power_spherical_variance(c, kappa);
    return result;
}
