/* Checks of arguments: are vectors unit vectors, and numbers in [0, largest]? NaN is neither. */
#pragma once
#include "rows.h"

INLINE terms squares(const void *row, int64_t k, int some) {
    reals x = load_up_to((const real *)row + k, some);
    return (terms){x * x, {0}};
}

static int are_unit(const check_call *c, int64_t row, int64_t end) {
    const double least = (1 - c->tolerance) * (1 - c->tolerance), most = (1 + c->tolerance) * (1 + c->tolerance);
    int64_t d = c->dim;
    for (; d <= SMALL && row < end; row += LANES) {
        reals v[SMALL], sum = splat(0);
        gather_rows(v, c->vectors + row * d, d, lanes_left(end, row));
        for (int k = 0; k < d; k++) sum += v[k] * v[k];
        if (any(~((sum >= (real)least) & (sum <= (real)most)))) return 0;
    }
    for (; row < end; row++) {
        double square = precise_sum_of(squares, c->vectors + row * d, d).one;
        if (!(square >= least && square <= most)) return 0;
    }
    return 1;
}

static int numbers_pass(const check_call *c) {
    masks wrong = {0};
    for (int64_t i = 0; i < c->count; i += LANES) {
        reals x = load_up_to(c->numbers + i, lanes_left(c->count, i)); /* the rest of the lanes is 0 */
        wrong |= ~((x >= 0) & (x <= (real)c->largest));
    }
    return !any(wrong);
}

typedef struct { const check_call *call; int *failed; } vector_check;

static void check_rows(const void *context, int64_t row, int64_t end) {
    const vector_check *check = context;
    if (!are_unit(check->call, row, end)) __atomic_store_n(check->failed, 1, __ATOMIC_RELAXED);
}
