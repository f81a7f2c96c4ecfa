"""Coefficients of the asymptotic series of the modified Bessel function, exact, built once an order.

Debye's uniform expansion (DLMF 10.41.3) is I_N(Nz) ~ e^{Nη}/√(2πN s) Σ_k U_k(p)/N^k with s = √(1+z²), p = 1/s.
Its logarithm is again such a series, W(p) = Σ_k D_k(p)/N^k, and the functions that the distributions need are
polynomials in p once N is fixed. Hankel's expansion for large arguments (DLMF 10.40.1) is treated alike.
All is done in exact fractions, because the coefficients alternate and grow.
"""

from __future__ import annotations

import functools
from fractions import Fraction
from typing import NamedTuple

import numpy as np
import torch

from powerspherical._torch.constants import untraced

Polynomial = list[Fraction]


def _add(a: Polynomial, b: Polynomial) -> Polynomial:
    length = max(len(a), len(b))
    a, b = a + [Fraction(0)] * (length - len(a)), b + [Fraction(0)] * (length - len(b))
    return [x + y for x, y in zip(a, b, strict=True)]


def _scale(a: Polynomial, factor: Fraction | int) -> Polynomial:
    return [x * factor for x in a]


def _multiply(a: Polynomial, b: Polynomial) -> Polynomial:
    product = [Fraction(0)] * (len(a) + len(b) - 1)
    for i, x in enumerate(a):
        if x:
            for j, y in enumerate(b):
                product[i + j] += x * y
    return product


def _derivative(a: Polynomial) -> Polynomial:
    return [i * x for i, x in enumerate(a)][1:] or [Fraction(0)]


def _over_one_minus_p(a: Polynomial) -> Polynomial:
    """a(p)/(1-p), exact where a(1) = 0."""
    partial, quotient = Fraction(0), []
    for x in a:
        partial += x
        quotient.append(partial)
    return quotient[:-1]


def _economised(a: Polynomial) -> tuple[float, ...]:
    """Coefficients in u = 2p-1 of the shortest polynomial that equals a(p) to rounding for p in [0, 1].

    Truncating the expansion in Chebyshev polynomials leaves about 20 of the 57 coefficients.
    """
    count = len(a)
    odd = 2 * np.arange(count) + 1
    values = []
    for point in np.cos(odd * (np.pi / (2 * count))):
        p, value = (Fraction(float(point)) + 1) / 2, Fraction(0)
        for coefficient in reversed(a):
            value = value * p + coefficient
        values.append(float(value))
    # The angles are reduced as integers: an error in them would drown the small coefficients.
    cosines = np.cos(np.outer(np.arange(count), odd) % (4 * count) * (np.pi / (2 * count)))
    chebyshev = 2 / count * cosines @ np.array(values)
    chebyshev[0] /= 2
    chebyshev = np.polynomial.chebyshev.chebtrim(chebyshev, 1e-15 * np.abs(values).max())
    return tuple(np.polynomial.chebyshev.cheb2poly(chebyshev).tolist())


def _logarithm(series: list[Polynomial]) -> list[Polynomial]:
    """Coefficients of log Σ_k a_k h^k (a_0 = 1), by k·a_k = Σ_j j·l_j·a_{k-j}."""
    logs: list[Polynomial] = [[Fraction(0)]]
    for k in range(1, len(series)):
        total = _scale(series[k], k)
        for j in range(1, k):
            total = _add(total, _scale(_multiply(logs[j], series[k - j]), -j))
        logs.append(_scale(total, Fraction(1, k)))
    return logs


@functools.cache
def _log_debye(terms: int) -> list[Polynomial]:
    """D_1, D_2, … as polynomials in p, from U_{k+1} = ½p²(1-p²)U_k' + ⅛∫₀^p (1-5u²)U_k du (DLMF 10.41.9)."""
    half, eighth = Fraction(1, 2), Fraction(1, 8)
    series: list[Polynomial] = [[Fraction(1)]]
    for _ in range(terms):
        u = series[-1]
        first = _multiply([Fraction(0), Fraction(0), half, Fraction(0), -half], _derivative(u))
        integrand = _multiply([Fraction(1), Fraction(0), Fraction(-5)], u)
        second = [Fraction(0)] + [eighth * x / (i + 1) for i, x in enumerate(integrand)]
        series.append(_add(first, second))
    return _logarithm(series)[1:]


class Debye(NamedTuple):
    """The expansions at one order N, as polynomials in u = 2p-1; W(p) is the logarithm of Debye's sum.

    Attributes:
        log_sum: (W(p) - W(1))/(1-p).
        ratio: B(p), where I_{N+1}/I_N = z(p/(1+p) + p²B(p)).
        slope: C(p), where the derivative of that ratio in κ = Nz is (p²/(1+p) + p²C(p))/N.
        curvature: (p²C(p))'/p, for the second derivative.
        entropy: (W(1) - W(p) - p(1-p²)W'(p))/(1-p).
    """

    log_sum: tuple[float, ...]
    ratio: tuple[float, ...]
    slope: tuple[float, ...]
    curvature: tuple[float, ...]
    entropy: tuple[float, ...]


@functools.cache
def _debye(order: float, terms: int) -> Debye:
    n = Fraction(order)
    w: Polynomial = [Fraction(0)]
    for k, d_k in enumerate(_log_debye(terms), start=1):
        w = _add(w, _scale(d_k, 1 / n**k))
    w_end, w_slope = sum(w, Fraction(0)), _derivative(w)
    p_minus_p3 = [Fraction(0), Fraction(1), Fraction(0), Fraction(-1)]
    p3 = [Fraction(0)] * 3 + [Fraction(1)]
    ratio = _add([Fraction(0), Fraction(0), Fraction(-1, 2) / n], _scale(_multiply(p3, w_slope), -1 / n))
    slope = _add(ratio, _scale(_multiply(p_minus_p3, _derivative(ratio)), -1))
    entropy = _scale(_add(_multiply(p_minus_p3, w_slope), _add(w, [-w_end])), -1)
    return Debye(
        log_sum=_economised(_over_one_minus_p(_add(w, [-w_end]))),
        ratio=_economised(ratio[2:]),
        slope=_economised(slope[2:]),
        curvature=_economised(_derivative(slope)[1:]),
        entropy=_economised(_over_one_minus_p(entropy)),
    )


@functools.cache
def _hankel(order: float, terms: int) -> tuple[float, ...]:
    nu = Fraction(order)
    series: list[Polynomial] = [[Fraction(1)]]
    for k in range(1, terms + 1):
        series.append(_scale(series[-1], -(4 * nu * nu - (2 * k - 1) ** 2) / (8 * k)))
    return tuple(float(x[0]) for x in _logarithm(series)[1:])


# So many terms are exact to rounding, from the order and the argument on that ``bessel`` gives.
_DEBYE_TERMS = {torch.float64: 14, torch.float32: 5}
_HANKEL_TERMS = {torch.float64: 28, torch.float32: 12}


@untraced
def debye(order: float, dtype: torch.dtype) -> Debye:
    """The polynomials at one order. Not traced by the compiler, to which they are constants."""
    return _debye(order, _DEBYE_TERMS[dtype])


@untraced
def hankel(order: float, dtype: torch.dtype) -> tuple[float, ...]:
    """l_1, l_2, … with I_ν(x) ~ e^x/√(2πx) · exp(Σ_k l_k x^{-k})."""
    return _hankel(order, _HANKEL_TERMS[dtype])
