"""From noise to the cosine t = μᵀx of a draw, as 1-t and 1+t; and from the output of a head to a concentration."""

from __future__ import annotations

from powerspherical.formulas.ops import Lanes, Number, at_least, at_most, exp, expm1, log, log1p, where

#: Smaller κ are replaced by this one, so that formulas can divide by κ.
LEAST_KAPPA = 1e-20

#: From this κ on we compute 1+t as 2 - (1-t). A small 1+t would lose digits, but it is improbable: the probability of
#: 1+t < ε is about e^{-2κ}κε.
LARGE_KAPPA = 10.0


def power_spherical_ends_3(squared_length: Lanes, kappa: Lanes) -> tuple[Lanes, Lanes]:
    """1-t and 1+t of Power Spherical draws for d = 3, given S = ``squared_length`` of the tangent vector.

    u = e^{-S/2} is uniform. From u = P(T ≤ t) = ((1+t)/2)^{κ+1} follows log((1+t)/2) = -S/(2(κ+1)).
    """
    log_half = squared_length / (-2 * (kappa + 1))
    return -2 * expm1(log_half), 2 * exp(log_half)


def von_mises_fisher_ends_3(squared_length: Lanes, kappa: Lanes) -> tuple[Lanes, Lanes]:
    """1-t and 1+t of von Mises–Fisher draws for d = 3, given S = ``squared_length`` of the tangent vector.

    u = e^{-S/2} is uniform. From u = P(T ≤ t) = (e^{κ(1+t)} - 1)/(e^{2κ} - 1) follow κ(1+t) = log(1 + u(e^{2κ}-1)) and
    κ(1-t) = -log q with q = u + (1-u)e^{-2κ} = 1 - (1-u)(1-e^{-2κ}). We use the second form of q if it is above ½.
    """
    kappa = at_least(kappa, LEAST_KAPPA)
    u = exp(-0.5 * squared_length)
    rest = -expm1(-0.5 * squared_length)
    complement = -expm1(-2 * kappa) * rest
    far = log(u + rest * exp(-2 * kappa))
    minus = where(complement < 0.5, log1p(-at_most(complement, 0.5)), far) / -kappa
    small = at_most(kappa, LARGE_KAPPA)
    close = log1p(u * expm1(2 * small)) / small
    return minus, where(kappa < LARGE_KAPPA, close, 2 - minus)


def boosted(minus: Lanes, plus: Lanes, growth: Lanes) -> tuple[Lanes, Lanes]:
    """1-t and 1+t after multiplying (1+t)/(1-t) by growth² ≥ 1. The inputs may have a common factor."""
    shrunk = minus / growth / growth  # growth² may overflow
    scale = 2 / (shrunk + plus)
    return shrunk * scale, plus * scale


#: From this r on log(1 + e^r) is r, also in float64.
LINEAR = 40.0


def softplus(r: Lanes) -> Lanes:
    """log(1 + e^r). NaN takes the second branch, because the C library's exponentials turn it into a number."""
    return where(r < LINEAR, log1p(exp(at_most(r, LINEAR))), r)


def concentration(raw: Lanes, minimum: Number, maximum: Number, rate: Number) -> Lanes:
    """κ = minimum + s/(1 + s·rate) for the output r = ``raw`` of a head, with s = log(1 + e^r).

    ``rate`` is 1/(maximum - minimum).
    """
    excess = softplus(at_most(raw, 1e38))  # keeps s·rate a number
    return at_most(minimum + excess / (1 + excess * rate), maximum)  # rounding may exceed it


def concentration_slope(raw: Lanes, rate: Number) -> Lanes:
    """The derivative dκ/dr of ``concentration``."""
    growth = exp(at_most(raw, LINEAR))
    shrink = 1 / (1 + softplus(at_most(raw, 1e38)) * rate)
    return where(raw < LINEAR, growth / (1 + growth), 1.0) * shrink * shrink
