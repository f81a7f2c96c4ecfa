"""The slope w = d artanh(t)/dκ = (dt/dκ)/(1-t²) of draws: how the cosine moves with κ at fixed random numbers."""

from __future__ import annotations

import math

from powerspherical.formulas.ops import (
    Lanes,
    Number,
    at_least,
    at_most,
    exp,
    expm1,
    horner,
    hypot,
    log,
    log1p,
    where,
)

#: Smaller values of 1-t and 1+t are replaced by these, so that formulas can divide by them.
LEAST_MINUS, LEAST_PLUS = 1e-30, 1e-37


def power_spherical_slope_3(minus: Lanes, plus: Lanes, kappa: Lanes) -> Lanes:
    """w = -log((1+t)/2)/((1-t)(1+κ)) of Power Spherical draws for d = 3, at a fixed probability."""
    minus = at_least(minus, LEAST_MINUS)
    return log1p(minus / at_least(plus, LEAST_PLUS)) / minus / (1 + kappa)


#: Below this κ the next slope is a quotient of two power series, because the other formula would cancel.
SMALL_KAPPA = 0.5
#: For k from 7 to 1: 1/(2k)! and 1/(2k+1)!.
SERIES = tuple((1 / math.factorial(2 * k), 1 / math.factorial(2 * k + 1)) for k in range(7, 0, -1))


def von_mises_fisher_slope_3(minus: Lanes, plus: Lanes, kappa: Lanes) -> Lanes:
    """w of von Mises–Fisher draws for d = 3, at a fixed probability.

    With E(z) = 1 - e^{-z}, a = κ(1+t) and b = κ(1-t), w = [E(a)/a - e^{-a} E(b)/b]/E(2κ). For small κ,
    w = κ/sinh κ · Σ κ^{2k-2} p_k c_k, where p_k = 1 + t² + … + t^{2k-2} and c_k = 1/(2k)! - κt/(2k+1)!. Two nested
    Horner schemes compute the sum h_1: s_k = c_k + κ² s_{k+1} and h_k = s_k + κ²t² h_{k+1}.
    """
    large = at_least(kappa, SMALL_KAPPA)
    a = large * at_least(plus, LEAST_MINUS)
    b = large * at_least(minus, LEAST_MINUS)
    far = (expm1(-a) / a - exp(-a) * (expm1(-b) / b)) / expm1(-2 * large)
    small = at_most(kappa, SMALL_KAPPA)
    square = small * small
    tilt = 0.5 * small * (plus - minus)
    tilt_square = tilt * tilt
    partial = 0 * square
    total = partial
    sinhc = partial
    for even, odd in SERIES:
        partial = even - odd * tilt + square * partial
        total = partial + tilt_square * total
        sinhc = (sinhc + odd) * square
    return where(kappa < SMALL_KAPPA, total / (sinhc + 1), far)


#: The dimension and the κ from which on the next series is accurate. Elsewhere kernels use a recurrence.
SERIES_DIM, SERIES_KAPPA = 32, 40.0


def von_mises_fisher_slope(plus: Lanes, kappa: Lanes, degrees: Number) -> Lanes:
    """w of von Mises–Fisher draws for d ≥ 32 or κ ≥ 40, at a fixed probability; ``degrees`` is δ = d-1.

    Three terms of a series in e = 1/R, R² = δ² + 4κ². Differentiating the cdf gives
    (1-t²) w' + (κ(1-t²) - δt) w = E t - t. With g = δe, u = 1+v = 2R/(R + δ + 2κt) and y = gv, the solution that is
    regular where the bracket vanishes is

        w = e u [1 + e u (1+g)(p₁ + e p₂ - e² p₃)],      p₁ = 1 - g - y/2,

    and e p₂ and e² p₃ are polynomials in y, g and ev. Relative error 2e-6.
    """
    twice = 2 * at_most(kappa, 1e37)
    radius = hypot(twice, 0 * twice + degrees)
    # R + δ + 2κt without cancellation: R - 2κ = δ²/(R + 2κ)
    denominator = degrees + degrees * (degrees / (radius + twice)) + twice * plus
    e = 1 / radius
    u = 2 * radius / denominator
    g = degrees * e
    v = u - 1
    y = g * v
    ev = e * v
    one = 1 + g
    second = 0.75 * one * y * y + 0.5 * one * (7 * g - 5) * y
    second = ev * (second + 0.5 * horner(g, 4, -10, -5, 12)) + 0.5 * e * (g - 1) * horner(g, -4, -1, 9)
    third = one * one * y * y * (1.875 * y + 1.25 * (11 * g - 7))
    third = third + 0.5 * one * horner(g, 26, -70, -23, 85) * y
    third = ev * ev * (third + 0.75 * one * horner(g, -8, 56, -53, -86, 95))
    third = third + 0.125 * e * ev * horner(g, -96, 224, 376, -749, -296, 545)
    third = third + 0.5 * e * e * (g - 1) * horner(g, 12, 8, -69, -13, 70)
    return e * u * (1 + e * u * one * (1 - g - 0.5 * y + second - third))


# Power Spherical draws: w = ½ dlog G/dα, where (1+t)/2 = G/(G + S/2) with a Gamma variable G of shape α = κ + (d-1)/2.

#: From this shape on the expansion serves.
LARGE_SHAPE = 4.0

#: Up to this |h| the function p is a series.
SMALL_H = 0.1


def gamma_slope_by_expansion(shape: Lanes, gamma: Lanes) -> Lanes:
    """dlog G/dα at a fixed probability, for α ≥ 4. With h = G/α - 1, r = (h - log(1+h))/h² and p = (r - ½)/h,

        α dlog G/dα = 1 - hr + (r + p)/α + R/α².

    R tends to 1/60 as h → 0 and α → ∞. In its place stands a polynomial in c = hp and 1/α, fitted to exact values for α
    from 4 to 160 (``tests/reference/fit_gamma_draw.py``). The relative error is 1.1e-4 at α = 4, 1.3e-5 at 8 and 1.5e-6
    at 16.
    """
    inverse = 1 / shape
    h = (gamma - shape) * inverse
    series = horner(h, -1 / 3, 1 / 4, -1 / 5, 1 / 6, -1 / 7, 1 / 8)
    over = 1 / where(h == 0, 1.0, h)
    direct = ((h - log1p(at_least(h, -0.9999999))) * over * over - 0.5) * over
    p = where(abs(h) < SMALL_H, series, direct)
    c = h * p
    r = 0.5 + c
    rest = horner(c, 0.01665816, 0.0002601254, -0.03988036, 0.01380286)
    rest = rest + inverse * horner(c, -0.01312838, -4.515679e-05, 0.04289951, -0.02721489)
    return inverse * (1 - h * r + inverse * (r + p + inverse * rest))


#: Nodes and weights of the Gauss–Legendre rule on [0, 1] with twelve nodes.
RULE = (
    (0.009219682876640378, 0.023587668193255706),
    (0.0479413718147626, 0.05346966299765953),
    (0.11504866290284765, 0.08003916427167321),
    (0.20634102285669126, 0.10158371336153287),
    (0.31608425050090994, 0.1167462682691773),
    (0.43738329574426554, 0.12457352290670134),
    (0.5626167042557344, 0.12457352290670134),
    (0.6839157494990901, 0.1167462682691773),
    (0.7936589771433087, 0.10158371336153287),
    (0.8849513370971523, 0.08003916427167321),
    (0.9520586281852375, 0.05346966299765953),
    (0.9907803171233596, 0.023587668193255706),
)
#: The quadrature ends where its integrand has fallen to about e^-FALL.
FALL = 18.0


def digamma(x: Lanes) -> Lanes:
    """ψ(x) for x ≥ ½: Stirling's series at x+4, minus 1/x + … + 1/(x+3) = (2x+3)(2q+2)/(q(q+2)) with q = x(x+3)."""
    q = x * (x + 3)
    inverse = 1 / (x + 4)
    square = inverse * inverse
    series = 0.5 + inverse * horner(square, 1 / 12, -1 / 120, 1 / 252)
    return log(x + 4) - inverse * series - (2 * x + 3) * (2 * q + 2) / (q * (q + 2))


def gamma_slope_by_quadrature(shape: Lanes, gamma: Lanes) -> Lanes:
    """dlog G/dα at a fixed probability, for ½ ≤ α ≤ 4, by a quadrature over one tail. With c = log G - ψ(α),

        dlog G/dα = ∫₀^∞ (s + c) exp(αs - G expm1(s)) ds = -∫_{-∞}^0 (s + c) exp(αs - G expm1(s)) ds.

    We use the first integral if c > 0 and otherwise the second, so that the integrand does not change its sign. The
    upper window follows from one step of the fixed-point iteration s ← log1p((αs + FALL)/G), the lower one from
    expm1(s) ≥ -1. The relative error is 1e-6, and 1e-5 near c = 0.
    """
    gamma = at_least(gamma, LEAST_PLUS)
    score = log(gamma) - digamma(shape)
    inverse = 1 / at_least(gamma, 0.1)  # the upper tail is used for G > 0.14 only
    above = log1p((shape * log1p(FALL * inverse) + FALL) * inverse)
    window = where(score > 0, above, -(gamma + FALL) / shape)
    total = 0 * score
    for node, weight in RULE:
        s = node * window
        total = total + weight * (s + score) * exp(shape * s - gamma * expm1(s))
    return window * total
