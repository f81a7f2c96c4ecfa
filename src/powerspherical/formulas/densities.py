"""Log-densities of the families as functions of t, given 1-t and 1+t, and their derivatives in t and κ."""

from __future__ import annotations

import math

from powerspherical.formulas.ops import Lanes, Number, log, log1p, where

INFINITY = math.inf


def power_statistic(minus: Lanes, plus: Lanes) -> Lanes:
    """T = log((1+t)/2) of the Power Spherical family; -inf at the antipode, and maybe where 1+t is subnormal."""
    return where(plus <= 0, -INFINITY, -log1p(minus / where(plus <= 0, 1.0, plus)))


def sinh_rapidity(kappa: Lanes) -> Lanes:
    """sinh τ with e^τ = 1+κ, without cancellation."""
    return 0.5 * kappa * ((kappa + 2) / (kappa + 1))


def cauchy_distance(minus: Lanes, kappa: Lanes) -> Lanes:
    """cosh τ - t sinh τ with e^τ = 1+κ, as a sum of two terms ≥ 0."""
    return 1 / (1 + kappa) + minus * sinh_rapidity(kappa)


def cauchy_log_density(minus: Lanes, kappa: Lanes, degrees: Number) -> Lanes:
    """log p = -(d-1) log(cosh τ - t sinh τ) of the spherical Cauchy family, with ``degrees`` = d-1."""
    shrink = 1 / (1 + kappa)
    sinh = 0.5 * kappa * ((kappa + 2) * shrink)
    distance = shrink + minus * sinh
    error = minus * sinh - kappa * shrink - (distance - 1)  # the rounding error of a distance near 1
    return -degrees * (log(distance) + where(kappa < 1, error / distance, 0.0))


def cauchy_slopes(minus: Lanes, kappa: Lanes, degrees: Number) -> tuple[Lanes, Lanes]:
    """The derivatives of the log-density of the spherical Cauchy family in t and κ, with ``degrees`` = d-1."""
    shrink = 1 / (1 + kappa)
    sinh = 0.5 * kappa * ((kappa + 2) * shrink)
    distance = shrink + minus * sinh
    in_kappa = shrink * ((shrink * (1 - minus) - minus * sinh) / distance)
    return degrees * (sinh / distance), degrees * in_kappa
