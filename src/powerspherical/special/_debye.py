"""Polynomials of the asymptotic series of the modified Bessel function, computed once per order.

Debye's uniform expansion (DLMF 10.41.3) is I_N(Nz) ~ e^{Nη}/√(2πN s) Σ_k U_k(p)/N^k with s = √(1+z²) and p = 1/s. The
logarithm of the sum is a series of the same kind, W(p) = Σ_k D_k(p)/N^k. At a fixed N the functions that ``bessel``
needs are polynomials in p. Hankel's expansion for large arguments (DLMF 10.40.1) is treated in the same way. The
coefficients alternate in sign and grow, so we compute them in exact fractions.
"""

from __future__ import annotations

import functools
from fractions import Fraction
from typing import NamedTuple

import numpy as np
import torch

from powerspherical._torch.constants import tensor_constant, untraced

#: The functions that the fused kernels compute, each with its derivative in κ. The last one is a pair of functions,
#: KL and E t - 1.
FORMS = (
    "ratio",
    "complement",
    "slope",
    "relative_entropy",
    "log_partition",
    "scaled_log_partition",
    "entropy_and_mean",
)

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
    """Return a(p)/(1-p), for a polynomial with a(1) = 0."""
    partial, quotient = Fraction(0), []
    for x in a:
        partial += x
        quotient.append(partial)
    return quotient[:-1]


def _economised(a: Polynomial, tolerance: float) -> tuple[float, ...]:
    """Return coefficients in u = 2p-1 of a short polynomial that approximates a(p) on [0, 1] to about ``tolerance``.

    It is the truncated expansion in Chebyshev polynomials. In float64 this leaves about 20 of 57 coefficients.
    """
    count = len(a)
    odd = 2 * np.arange(count) + 1
    values = []
    for point in np.cos(odd * (np.pi / (2 * count))):
        p, value = (Fraction(float(point)) + 1) / 2, Fraction(0)
        for coefficient in reversed(a):
            value = value * p + coefficient
        values.append(float(value))
    # We reduce the angles as integers, because rounding errors in large angles would exceed the small coefficients.
    cosines = np.cos(np.outer(np.arange(count), odd) % (4 * count) * (np.pi / (2 * count)))
    chebyshev = 2 / count * cosines @ np.array(values)
    chebyshev[0] /= 2
    rounding = 1e-15 * np.abs(values).max()
    chebyshev = np.polynomial.chebyshev.chebtrim(chebyshev, max(tolerance, rounding))
    coefficients = np.polynomial.chebyshev.cheb2poly(chebyshev).tolist()
    return tuple(coefficients + [0.0] * (2 - len(coefficients)))  # ``horner`` needs at least two


def _logarithm(series: list[Polynomial]) -> list[Polynomial]:
    """Return the coefficients l_k of log Σ_k a_k h^k, where a_0 = 1, by k·a_k = Σ_j j·l_j·a_{k-j}."""
    logs: list[Polynomial] = [[Fraction(0)]]
    for k in range(1, len(series)):
        total = _scale(series[k], k)
        for j in range(1, k):
            total = _add(total, _scale(_multiply(logs[j], series[k - j]), -j))
        logs.append(_scale(total, Fraction(1, k)))
    return logs


@functools.cache
def _log_debye(terms: int) -> list[Polynomial]:
    """Return D_1, D_2, … as polynomials in p, from U_{k+1} = ½p²(1-p²)U_k' + ⅛∫₀^p (1-5u²)U_k du (DLMF 10.41.9)."""
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
    """Debye's expansion at one order N: coefficients of polynomials in u = 2p-1.

    W(p) is the logarithm of Debye's sum.

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


class Hankel(NamedTuple):
    """Hankel's expansion log I_ν(κ) ~ κ - ½log(2πκ) + Σ_k l_k x^k: coefficients of polynomials in x = 1/κ.

    With h = ν+½ and G = log ₀F₁ as in ``bessel``:

    Attributes:
        ratio: k·l_k, where 1 - I_{ν+1}/I_ν = x(h + x·ratio).
        slope: k(k+1)·l_k, where the derivative of the ratio in κ is x²(h + x·slope).
        curvature: k(k+1)(k+2)·l_k, where its second derivative is -x³(2h + x·curvature).
        entropy: -(k+1)·l_k, where the relative entropy is h log κ - constant + x·entropy.
    """

    ratio: tuple[float, ...]
    slope: tuple[float, ...]
    curvature: tuple[float, ...]
    entropy: tuple[float, ...]


@functools.cache
def _debye(order: float, terms: int, tolerance: float) -> Debye:
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
        log_sum=_economised(_over_one_minus_p(_add(w, [-w_end])), tolerance),
        ratio=_economised(ratio[2:], tolerance),
        slope=_economised(slope[2:], tolerance),
        curvature=_economised(_derivative(slope)[1:], tolerance),
        entropy=_economised(_over_one_minus_p(entropy), tolerance),
    )


@functools.cache
def _hankel(order: float, terms: int) -> Hankel:
    nu = Fraction(order)
    series: list[Polynomial] = [[Fraction(1)]]
    for k in range(1, terms + 1):
        series.append(_scale(series[-1], -(4 * nu * nu - (2 * k - 1) ** 2) / (8 * k)))
    logs = [(k, float(x[0])) for k, x in enumerate(_logarithm(series)[1:], start=1)]
    return Hankel(
        ratio=tuple(k * c for k, c in logs),
        slope=tuple(k * (k + 1) * c for k, c in logs),
        curvature=tuple(k * (k + 1) * (k + 2) * c for k, c in logs),
        entropy=tuple(-(k + 1) * c for k, c in logs),
    )


# With these numbers of terms each series is exact to rounding in the range where ``bessel`` uses it.
_DEBYE_TERMS = {torch.float64: 14, torch.float32: 8}
_HANKEL_TERMS = {torch.float64: 28, torch.float32: 12}

# Absolute error that ``_economised`` may cause. The polynomials are added to terms of order one.
_TOLERANCE = {torch.float64: 2e-17, torch.float32: 5e-9}


@untraced
def debye(order: float, dtype: torch.dtype) -> Debye:
    """Return Debye's polynomials at one order, as constants for the compiler."""
    return _debye(order, _DEBYE_TERMS[dtype], _TOLERANCE[dtype])


@untraced
def hankel(order: float, dtype: torch.dtype) -> Hankel:
    """Return Hankel's polynomials at one order, as constants for the compiler."""
    return _hankel(order, _HANKEL_TERMS[dtype])


# Numbers of coefficients in the rows of ``kernel_table``. All rows have the length of the longest one, the curvature in
# Debye's expansion. The others end with zeros, of which SHORT_ROW counts only those that some dimension needs. So all
# dimensions with the same number of recurrence steps share a compiled kernel. The C library has the same numbers.
LONG_ROW = 20
SHORT_ROW = 13


@tensor_constant
def kernel_table(order: float, top: float) -> list[list[float]]:
    """The float32 polynomials for the fused kernels: ratio, slope, curvature, entropy, first Debye's and then Hankel's.

    Debye's are those at the order ``top``. Call it as ``kernel_table(like, order, top)``.
    """
    series = debye(top, torch.float32)
    rows = [series.ratio, series.slope, series.curvature, series.entropy, *hankel(order, torch.float32)]
    return [[*row, *[0.0] * (LONG_ROW - len(row))] for row in rows]
