"""Coefficients of the series for d artanh(t)/dκ of the von Mises–Fisher distribution, in exact fractions.

``docs/mathematics.md`` derives the series. Let δ = d-1, R = √(δ²+4κ²), g = δ/R, s = 2δ/(R+δ+2κt) and y = s-g. Then

    δ d artanh(t)/dκ = s + s² (P₁/δ + P₂/δ² + P₃/δ³ + …),    P_{k+1} = D[Q ∂/∂y (s² P_k)],    P₁ = D[Q].

Here Q = ½g²(1-g) + (1-g²)y - ½(1+g)y², and D is the divided difference D f = (f(y) - f(0))/y, which lowers every power
of y by one. So each P_k is a polynomial in y and g.
"""

from __future__ import annotations

import functools
from fractions import Fraction

from powerspherical._torch.constants import Numbers, tensor_constant

#: A polynomial in y and g: maps (i, j) to the coefficient of y^i g^j.
Polynomial = dict[tuple[int, int], Fraction]

_HALF = Fraction(1, 2)
_Q: Polynomial = {
    (0, 2): _HALF,
    (0, 3): -_HALF,
    (1, 0): Fraction(1),
    (1, 2): Fraction(-1),
    (2, 0): -_HALF,
    (2, 1): -_HALF,
}
_S_SQUARED: Polynomial = {(0, 2): Fraction(1), (1, 1): Fraction(2), (2, 0): Fraction(1)}


def _product(a: Polynomial, b: Polynomial) -> Polynomial:
    result: Polynomial = {}
    for (i, j), x in a.items():
        for (k, m), y in b.items():
            result[i + k, j + m] = result.get((i + k, j + m), Fraction(0)) + x * y
    return {powers: x for powers, x in result.items() if x}


def _derivative(a: Polynomial) -> Polynomial:
    return {(i - 1, j): i * x for (i, j), x in a.items() if i}


def _divided_difference(a: Polynomial) -> Polynomial:
    return {(i - 1, j): x for (i, j), x in a.items() if i}


@functools.cache
def correction(order: int) -> Polynomial:
    """Return P_k for k = ``order`` ≥ 1."""
    if order == 1:
        return _divided_difference(_Q)
    return _divided_difference(_product(_Q, _derivative(_product(_S_SQUARED, correction(order - 1)))))


@tensor_constant
def correction_sum(dim: int, terms: int) -> Numbers:
    """Return P₁/δ + … + P_K/δ^K, K = ``terms``, as a tensor (J, I, 1): entry (j, i) is the coefficient of y^i g^j."""
    total: Polynomial = {}
    for order in range(1, terms + 1):
        for powers, x in correction(order).items():
            total[powers] = total.get(powers, Fraction(0)) + x / (dim - 1) ** order
    columns, rows = (1 + max(powers[axis] for powers in total) for axis in (0, 1))
    return [[[float(total.get((i, j), 0))] for i in range(columns)] for j in range(rows)]
