"""What the mean of log(1 + νᵀX) loses if ν is not the mean direction of X: see ``quadrature.misalignment``.

With y = (1 + μᵀν)/2, β = (d-1)/2 and e(b) = b^κ for Power Spherical or E_U e^{κb(1+t)} for von Mises–Fisher it is

    ∫₀¹ (1-v)^{β-1} (e(1-yv) - e(1-v))/e(1) dv/v.

The integrand is positive. We substitute v = 1-e^{-x} and x = a sinh(s) with the finest scale a = 1/(β+κ), and use
Gauss–Legendre nodes in s. All arrays are float64 and of one shape.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from powerspherical.jax import curves
from powerspherical.jax.cosine import Cosine, log_of_share
from powerspherical.jax.law import legendre

_NODES = 64
_EXPONENT = 42.0  # the integrand is followed until it has fallen by e^-42


def _rule(kappa: Array, y: Array, beta: float, turn: Array | None) -> tuple[Array, Array]:
    """Return nodes x > 0 and weights for integrals over v = 1-e^{-x} against (1-v)^{β-1} dv/v, both (…, nodes).

    ``turn`` is an x near which the integrand changes its behaviour: two panels meet there.
    """
    kappa, y, scale = lax.stop_gradient((kappa, y, 1 / (beta + kappa)))
    # e(1-yv)/e(1) ≤ e^{-κyv} for both families.
    bound = _EXPONENT / (kappa * y)
    end = jnp.where(bound < 0.5, -jnp.log1p(-jnp.minimum(bound, 0.5)), jnp.inf)
    span = jnp.arcsinh(jnp.minimum(end, _EXPONENT / beta) / scale)
    middle = (
        span
        if turn is None
        else jnp.clip(jnp.arcsinh(lax.stop_gradient(turn) / scale), 0.1 * span, 0.9 * span)
    )
    scale, span, middle = scale[..., None], span[..., None], middle[..., None]
    unit, shares = legendre(_NODES)
    s, weights = middle * unit, middle * shares
    if turn is not None:  # panels as sums, because XLA takes longer to compile a concatenation
        none = np.zeros(_NODES)
        s = middle * np.append(unit, none + 1) + (span - middle) * np.append(none, unit)
        weights = middle * np.append(shares, none) + (span - middle) * np.append(none, shares)
    growth = jnp.expm1(s)  # instead of sinh and cosh, for which XLA writes much code
    x = 0.5 * scale * (growth + growth / (growth + 1))
    dx = 0.5 * scale * (growth + 1 + 1 / (growth + 1)) * weights
    return x, dx * jnp.exp(-beta * x) / -jnp.expm1(-x)


def _misalignment(log_shrink: Any, kappa: Array, angle: Cosine, dim: int, *, is_power: bool) -> Array:
    y, haversine = 0.5 * angle.plus, 0.5 * angle.minus  # haversine = 1-y
    # If e is a power, e(1-yv) turns from e^{-κx} into a constant as 1-v = e^{-x} falls below 1-y.
    x, weights = _rule(kappa, y, (dim - 1) / 2, -jnp.log(haversine) if is_power else None)
    v, one_minus_v = -jnp.expm1(-x), jnp.exp(-x)
    gap = haversine[..., None] * v
    start = log_shrink(kappa[..., None], one_minus_v + gap, y[..., None] * v, dim)  # from 1 to 1-yv
    drop = log_shrink(kappa[..., None], one_minus_v, gap, dim)  # from there to 1-v
    return (weights * jnp.exp(start) * -jnp.expm1(drop)).sum(-1)


def of_power_spherical(kappa: Array, angle: Cosine, dim: int) -> Array:
    """Return ``Family.misalignment`` of Power Spherical."""
    return _misalignment(_power_shrink, kappa, angle, dim, is_power=True)


def _power_shrink(kappa: Array, lower: Array, gap: Array, dim: int) -> Array:
    """Return log e(lower)/e(lower+gap) with e(b) = b^κ."""
    return kappa * log_of_share(lower / (lower + gap), gap / (lower + gap))


def of_von_mises_fisher(kappa: Array, angle: Cosine, dim: int) -> Array:
    """Return ``Family.misalignment`` of von Mises–Fisher."""
    return _misalignment(_von_mises_fisher_shrink, kappa, angle, dim, is_power=False)


_SHRINK_NODES = 8


def _von_mises_fisher_shrink(kappa: Array, lower: Array, gap: Array, dim: int) -> Array:
    """Return log e(lower)/e(lower+gap) with e(b) = E_U e^{κb(1+t)}.

    log e(b) is 2κb - offset(κb). Differences of the offset are integrals of 1 - E t where they would cancel.
    """
    near = 2 * gap <= lower
    nodes, weights = legendre(_SHRINK_NODES)
    path = kappa[..., None] * (lower[..., None] + jnp.where(near, gap, 0.0)[..., None] * nodes)
    close = kappa * gap * (curves.value(path, "von_mises_fisher", "loss", dim) * weights).sum(-1)
    upper, low = (curves.value(kappa * x, "von_mises_fisher", "offset", dim) for x in (lower + gap, lower))
    return jnp.where(near, close, upper - low) - 2 * kappa * gap
