"""The functions of ``powerspherical.special`` for JAX arrays: accurate to a few roundings, with derivatives.

Functions of a concentration take ``kappa``, a float32 or float64 array of any shape, and ``dim``, the ambient dimension
d ≥ 2 as a Python number. Results have the shape and dtype of the argument. Relative errors are about 1e-15 in float64
and 2e-7 in float32.

>>> bessel_ratio(1.0, 3)  # coth 1 - 1
Array(0.31303528, dtype=float32)
>>> bessel_ratio_complement(1e4, 3)
Array(0.0001, dtype=float32)
>>> bessel_ratio_slope(0.0, 3), bessel_ratio_inverse(bessel_ratio(2.0, 3), 3)
(Array(0.33333334, dtype=float32), Array(2., dtype=float32))
>>> log_hyp0f1(1.0, 3)  # log sinh 1
Array(0.16143936, dtype=float32)
>>> digamma_difference(0.0, 3), trigamma_difference(0.0, 3)  # 1/α and 1/α² at α = β = 1
(Array(1., dtype=float32), Array(1., dtype=float32))
>>> log_gamma_ratio(2.0, 3)  # log of 4/3
Array(0.2876821, dtype=float32)
>>> mean_log1p(0.0, 3)  # log 2 - 1
Array(-0.30685282, dtype=float32)
>>> mean_log_boost_inverse(mean_log_boost(1.0, 2), 2)
Array(1., dtype=float32)
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
from jax import Array
from jax.scipy.special import xlogy

from powerspherical.jax import curves
from powerspherical.jax.precision import floats, in_float64

__all__ = [
    "bessel_ratio",
    "bessel_ratio_complement",
    "bessel_ratio_inverse",
    "bessel_ratio_slope",
    "digamma_difference",
    "log_bessel_i",
    "log_gamma_ratio",
    "log_hyp0f1",
    "log_sphere_area",
    "mean_log1p",
    "mean_log_boost",
    "mean_log_boost_inverse",
    "trigamma_difference",
]

_value = jax.jit(curves.value, static_argnums=(1, 2, 3, 4))


def _function(name: str, family: str, curve: str, doc: str) -> Callable[[Any, float], Array]:
    """Return the public function that reads a curve."""

    def function(kappa: Any, dim: float) -> Array:
        return _value(*floats(kappa), family, curve, dim, 0)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"{doc} The result has the shape of κ."
    return function


_VMF, _POWER = "von_mises_fisher", "power_spherical"
bessel_ratio = _function(
    "bessel_ratio",
    _VMF,
    "mean",
    "Return A_d(κ) = I_{d/2}(κ)/I_{d/2-1}(κ), the mean of t under von Mises–Fisher.",
)
bessel_ratio_complement = _function(
    "bessel_ratio_complement", _VMF, "loss", "Return 1 - A_d(κ), accurate also where A_d is nearly 1."
)
bessel_ratio_slope = _function(
    "bessel_ratio_slope", _VMF, "variance", "Return A'_d(κ), the variance of t under von Mises–Fisher."
)
log_hyp0f1 = _function("log_hyp0f1", _VMF, "log_partition", "Return log ₀F₁(; d/2; κ²/4) = log E_U e^{κt}.")
trigamma_difference = _function(
    "trigamma_difference", _POWER, "information", "Return ψ₁(α) - ψ₁(α+β) with β = (d-1)/2 and α = β+κ."
)
digamma_difference = _function(
    "digamma_difference", _POWER, "score_loss", "Return ψ(α+β) - ψ(α) with β = (d-1)/2 and α = β+κ."
)
mean_log1p = _function(
    "mean_log1p",
    _POWER,
    "log_partition_slope",
    "Return E log(1+t) under Power Spherical: log 2 - ψ(α+β) + ψ(α).",
)
log_gamma_ratio = _function("log_gamma_ratio", _POWER, "log_partition", "Return log E_U (1+t)^κ.")
mean_log_boost = _function(
    "mean_log_boost",
    "log_boost",
    "mean",
    "Return E_U log(cosh τ - t sinh τ) as a function of κ = sinh²(τ/2) ≥ 0.",
)


def log_sphere_area(dim: int) -> float:
    """log of the area 2π^{d/2}/Γ(d/2) of the unit sphere in R^d, as a Python number.

    >>> round(math.exp(log_sphere_area(3)) / math.pi, 12)  # 4π
    4.0
    """
    return math.log(2) + 0.5 * dim * math.log(math.pi) - math.lgamma(dim / 2)


def log_bessel_i(order: float, x: Any) -> Array:
    """Return log I_ν(x) of the modified Bessel function of the first kind, in the shape of x.

    The order ν ≥ 0 is a Python number, and x ≥ 0 an array.

    >>> log_bessel_i(0.5, 1e4)  # x - ½ log(2πx)
    Array(9994.477, dtype=float32)
    """
    if not order >= 0:
        raise ValueError(f"order must be a number ≥ 0, got {order}")
    (x,) = floats(x)
    growth = log_hyp0f1(x, 2 * order + 2)
    return growth if order == 0 else xlogy(order, x / 2) + (growth - math.lgamma(order + 1))


@functools.partial(jax.jit, static_argnums=1)
def bessel_ratio_inverse(ratio: Any, dim: float, complement: Any = None) -> Array:
    """Return the κ with A_d(κ) = ratio, in the shape of ``ratio``, which is in [0, 1); differentiable in it.

    ``complement`` is 1 - ratio, if it is known more accurately than by subtraction.
    """
    (ratio,) = floats(ratio)
    return curves.inverse_mean(ratio, 1 - ratio if complement is None else complement, _VMF, dim)


@functools.partial(jax.jit, static_argnums=1)
def mean_log_boost_inverse(mean: Any, dim: int) -> Array:
    """Return the q ≥ 0 with ``mean_log_boost(q, dim)`` = mean."""
    return in_float64(lambda mean: curves.inverse(mean, "log_boost", "mean", dim))(*floats(mean))
