"""The functions of κ from which ``tables`` are built, in float64 NumPy: one formula per family.

KL, E t, 1-E t and E T of a family are integrals of these over κ, which ``tables`` takes. All sums have positive terms,
and nothing cancels for any d ≥ 2 and κ ≥ 0. ``kappa`` is an array with one axis.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

_STEPS = 16  # of the recurrence, after which Stirling's series with _BERNOULLI is exact to rounding
_BERNOULLI = [1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66]  # B_2, B_4, …


def _series(coefficients: list[float], x: Array) -> Array:
    """Return c[0] + c[1] x + c[2] x² + …"""
    return np.asarray(np.polyval(coefficients[::-1], x))


def power_spherical(kappa: Array, dim: float) -> dict[str, Array]:
    """Return the variance and the third cumulant of T = log((1+t)/2) under the Power Spherical distribution.

    They are ψ₁(α) - ψ₁(α+β) and ψ₂(α) - ψ₂(α+β) with β = (d-1)/2 and α = β+κ. With x = 1/α and y = 1/(α+β), one
    step of ψ₁(z) = 1/z² + ψ₁(z+1) adds x² - y² = βxy(x+y), and one of ψ₂ subtracts 2(x³ - y³) = 2βxy(x² + xy + y²).
    """
    beta = (dim - 1) / 2
    z = np.add.outer(beta + kappa, np.arange(float(_STEPS)))
    x, y = 1 / z, 1 / (z + beta)
    variance = beta * (x * y * (x + y)).sum(-1)
    third = -2 * beta * (x * y * (x * x + x * y + y * y)).sum(-1)
    # ψ₁(z) ~ 1/z + 1/2z² + Σ B_2k/z^{2k+1}. Only the first terms cancel, so they are subtracted on paper.
    x, y = 1 / (beta + kappa + _STEPS), 1 / (2 * beta + kappa + _STEPS)
    bends = [-(2 * k + 3) * b for k, b in enumerate(_BERNOULLI)]
    small_x, small_y = (v * v * (0.5 + v * _series(_BERNOULLI, v * v)) for v in (x, y))
    small_third_x, small_third_y = (v * v * v * (v * _series(bends, v * v) - 1) for v in (x, y))
    variance += beta * x * y + (small_x - small_y)
    third += (small_third_x - small_third_y) - beta * x * y * (x + y)
    return {"variance": variance, "third": third}


def mean_log1p_of_uniform(dim: float) -> float:
    """Return E log(1+t) < 0 for uniform points: log 2 + ψ(β) - ψ(2β) with β = (d-1)/2, as a sum of negative terms."""
    beta = (dim - 1) / 2
    total = sum(-1 / ((2 * beta + 2 * i) * (2 * beta + 2 * i + 1)) for i in range(_STEPS))
    b = beta + _STEPS
    # ψ(z) ~ log z - 1/2z - Σ B_2k/(2k z^{2k})
    series = sum(c / (2 * k) * (1 - 4.0**-k) * b ** (-2 * k) for k, c in enumerate(_BERNOULLI, start=1))
    return total - 0.25 / b - series


def rapidity_rule(
    dim: float, step: float, decay: float, stretch: float | None = None
) -> tuple[Array, Array, Array, Array]:
    """Return y, tanh y, log cosh y and weights of the trapezoidal rule in the rapidity y = artanh t.

    The rule converges geometrically for integrands that are analytic in a strip (Trefethen & Weideman 2014). The
    weights are relative to the step.

    Args:
        dim: the step is in units of the width of cosh^{1-d} y.
        step: the distance of the nodes near y = 0.
        decay: the nodes go on until cosh^-decay y is below e^-45.
        stretch: if given, the nodes are y = step·stretch·sinh(j/stretch), whose distances grow; else y = step·j.
    """
    step /= np.sqrt(1 + (dim - 1) / 12)
    fall = 45 / decay
    end = min(85.0, fall + np.log1p(np.sqrt(-np.expm1(-2 * fall)))) / step  # arcosh(e^fall), in steps
    last = np.ceil(stretch * np.arcsinh(end / stretch) if stretch else end)
    j = np.arange(-last, last + 1)
    y = step * (stretch * np.sinh(j / stretch) if stretch else j)
    near = 2 * np.sinh(np.clip(y, -1, 1) / 2) ** 2  # cosh y - 1
    log_cosh = np.where(np.abs(y) < 1, np.log1p(near), np.logaddexp(y, -y) - np.log(2))
    return y, np.tanh(y), log_cosh, np.cosh(j / stretch) if stretch else np.ones_like(y)


def _log1pmx(x: Array) -> Array:
    """Return log(1+x) - x for x > -1."""
    r = x / (2 + x)  # log(1+x) = 2 artanh r
    series = _series([2 / k for k in range(3, 24, 2)], r * r)
    return np.where(np.abs(r) < 0.17, r * (r * r * series - x), np.log1p(x) - x)


def von_mises_fisher(kappa: Array, dim: float) -> dict[str, Array]:
    """Return Var t and Cov(t, log(1+t)) under the von Mises–Fisher distribution.

    The density of y = artanh t is ∝ e^{κt} cosh^{1-d} y, with the mode where tanh y = m. At y = artanh m + δ, let
    w = m tanh δ and v = w/(1+w). The log of the density relative to the mode is (d-1)(log(1-v) + v - log cosh δ),
    because κ(1-m²) = (d-1)m. The difference from the mode is t - m = (1-m²) tanh δ/(1+w).
    """
    delta, tanh, log_cosh, weights = rapidity_rule(dim, 0.095, dim - 1, stretch=28)
    kappa = kappa[:, None]
    root = np.hypot(dim - 1, 2 * kappa)
    mode = 2 * kappa / (dim - 1 + root)
    rest = (dim - 1) * (1 + (dim - 1) / (root + 2 * kappa)) / (dim - 1 + root)  # 1 - m
    change = tanh / (rest + mode * (2 / (1 + np.exp(-2 * delta))))  # tanh δ/(1+w)
    # The expansion loses no digits where d is large. Elsewhere the logarithm is as good.
    excess = _log1pmx(-mode * change) if dim > 16 else np.log1p(-mode * change) + mode * change
    share = weights * np.exp((dim - 1) * (excess - log_cosh))
    share /= share.sum(-1, keepdims=True)
    change -= (share * change).sum(-1, keepdims=True)
    spread = (rest * (1 + mode))[:, 0]
    # log((1+t)/2) = -log1p(e^{-2y}), where e^{-2 artanh m} = (1-m)/(1+m)
    log_loss = np.log1p(rest / (1 + mode) * np.exp(-2 * delta))
    covariance = -spread * (share * change * log_loss).sum(-1)
    return {"variance": spread**2 * (share * change**2).sum(-1), "covariance": covariance}


def spherical_cauchy(kappa: Array, dim: float) -> dict[str, Array]:
    """Return E t, E (1-t²) and Var t of the spherical Cauchy distribution.

    It is the uniform distribution shifted in rapidity: t = tanh(τ+y) with e^τ = 1+κ and the density ∝ cosh^{1-d} y
    of y. The nodes y and -y are taken together. With s = 1-tanh²y, S = sinh τ and D = 1+sS², their means are

        1 - t: A = (1 - sSe^{-τ})/D,    t: sS cosh τ/D,    1 - t²: s(s + (1+2S²)(1 + tanh²y))/2D²,

    and the variance of t given ±y is tanh²y/D². On the circle there are closed forms.
    """
    if dim == 2:
        variance = 2 * (1 + kappa) / (kappa + 2) ** 2
        return {"mean": kappa / (kappa + 2), "sines": variance, "variance": variance}
    y, tanh, log_cosh, share = rapidity_rule(dim, 0.17, max(dim - 5, 0.5))
    share *= np.exp((1 - dim) * log_cosh)
    share /= share.sum()
    # Up to the largest τ the integrands may grow like e^{4y}. Beyond it they only fall.
    kept = (y >= 0) & (log_cosh < np.log1p(kappa.max()) + 42 / (dim - 1))
    log_cosh, square, share = log_cosh[kept], tanh[kept] ** 2, share[kept]
    share[1:] *= 2
    s = np.exp(-2 * log_cosh)
    kappa = kappa[:, None]
    sinh = 0.5 * kappa * (kappa + 2) / (kappa + 1)
    cosh, shrink = sinh + 1 / (1 + kappa), sinh / (1 + kappa)
    inverse = 1 / (1 + s * sinh**2)
    inverse_square = inverse * inverse
    below = (1 - s * shrink) * inverse
    below -= (below @ share)[:, None]
    mean = (inverse @ (share * s)) * (sinh * cosh)[:, 0]
    stretched = (1 + 2 * sinh**2)[:, 0] * (inverse_square @ (share * s * (1 + square)))
    sines = 0.5 * (inverse_square @ (share * s * s) + stretched)
    variance = (below * below) @ share + inverse_square @ (share * square)
    return {"mean": mean, "sines": sines, "variance": variance}
