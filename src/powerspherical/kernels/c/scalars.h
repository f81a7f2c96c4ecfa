/* The formulas of one row, for vectors of `reals`, and under names that end in `_in_double` for vectors of doubles. */
#pragma once
#include "elementary.h"

#define REAL real
#define VECTOR reals
#define PAIR pair
#define NAME(name) name
typedef struct { reals first, second; } pair;
#include "formulas.h"
#undef REAL
#undef VECTOR
#undef PAIR
#undef NAME

#define REAL double
#define VECTOR doubles
#define PAIR pair_in_double
#define NAME(name) name##_in_double
typedef struct { doubles first, second; } pair_in_double;
#include "formulas.h"
#undef REAL
#undef VECTOR
#undef PAIR
#undef NAME
