"""Draws x = tμ + √(1-t²) v, differentiable once in μ and κ: the estimators of ``powerspherical.sampling``."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from powerspherical.jax.cosine import Cosine
from powerspherical.jax.families import SPHERICAL_CAUCHY, Family
from powerspherical.jax.precision import floats, row_by_row
from powerspherical.jax.random import normal

#: Up to this dimension the part of the noise along μ is subtracted twice, because the rest may be short. Up to the
#: next one it is subtracted once, and beyond in the sum that makes x, which saves an array of the size of x.
_PROJECT_TWICE, _PROJECT = 8, 16


@functools.partial(jax.jit, static_argnums=(0, 4))
def draw(family: Family, key: Array, loc: Array, concentration: Array, shape: Sequence[int]) -> Array:
    """Draw unit vectors x of shape ``shape + (d,)``.

    Args:
        family: the law of t.
        key: a JAX random key, typed or of raw bits.
        loc: unit vectors of shape (…, d). Half precision is computed in float32, and x has the common dtype.
        concentration: κ ≥ 0 of shape (…). NaN gives NaN.
        shape: to which both broadcast.

    A second derivative raises.
    """
    if not jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        key = jax.random.wrap_key_data(key)
    dtype, dim = jnp.result_type(loc, concentration), loc.shape[-1]
    loc, kappa = floats(loc, concentration)
    # ∞ would be ∞ - ∞ in formulas, and multiples of the largest number are ∞. The points are μ either way.
    kappa = jnp.minimum(kappa, 0.01 * jnp.finfo(kappa.dtype).max)
    mu, kappa = jnp.broadcast_to(loc, (*shape, dim)), jnp.broadcast_to(kappa, shape)
    return _draw(family, key, mu, kappa)[0].astype(dtype)


def uniform(key: Array, shape: Sequence[int], dtype: Any) -> Array:
    """Draw uniform unit vectors of the given shape (…, d)."""
    *batch, dim = shape
    pole = jnp.zeros(dim, dtype).at[0].set(1.0)
    # The uniform is the member κ = 0 of every family. This one draws it fastest.
    return draw(SPHERICAL_CAUCHY, key, pole, jnp.zeros((), dtype), tuple(batch))


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _draw(family: Family, key: Array, mu: Array, kappa: Array) -> tuple[Array, Cosine, Array]:
    """Return x, t, and the noise that its slope needs."""
    dim = mu.shape[-1]
    z = normal(key, mu.shape, mu.dtype, 0)
    along = None
    if dim == 2:  # the tangent space is spanned by (-μ₂, μ₁)
        length = jnp.where(z[..., 0] == 0, 1e-9, z[..., 0])
        z = length[..., None] * jnp.stack((-mu[..., 1], mu[..., 0]), -1)
        square = length * length
    elif dim > _PROJECT:
        along = (z * mu).sum(-1)
        square = (z * z).sum(-1) - along * along
    else:
        for _ in range(2 if dim <= _PROJECT_TWICE else 1):
            z = z - (z * mu).sum(-1, keepdims=True) * mu
        square = (z * z).sum(-1)
    t, noise = row_by_row(functools.partial(family.draw_cosine, dim=dim), key, square, kappa)
    stretch = jnp.sqrt(t.minus * t.plus / square)
    in_mu = t.value if along is None else t.value - stretch * along
    return stretch[..., None] * z + in_mu[..., None] * mu, t, noise


@functools.partial(_draw.defjvp, symbolic_zeros=True)
def _(family: Family, primals: Any, tangents: Any) -> tuple[Any, Any]:
    # The key is an argument with a derivative, not a constant: it may be traced.
    key, mu, kappa = primals
    _, dmu, dkappa = tangents
    x, cosine, noise = found = _draw(family, key, mu, kappa)
    mu, kappa, point, cosine, noise = _differentiated_once((mu, kappa, x, cosine, noise))
    t = cosine.value[..., None]
    # By rotation coupling. The rotation that takes μ to μ + dμ in their plane moves x by t dμ - (x·dμ)μ.
    change: Any = 0.0
    along: Any = 0.0
    if not isinstance(dmu, jax.custom_derivatives.SymbolicZero):
        change, along = t * dmu, -(point * dmu).sum(-1, keepdims=True)
    # A change of artanh t by dy moves x by (1-t²)μ dy - tw dy with w = x - tμ. The component of w along μ is rounding
    # only, but it would be a bias at large κ, where 1-t² ~ 1/κ.
    if not isinstance(dkappa, jax.custom_derivatives.SymbolicZero):
        turn = (family.slope(cosine, noise, kappa, mu.shape[-1]) * dkappa)[..., None]
        w = turn * t * (point - t * mu)
        change = change - w
        along = along + (w * mu).sum(-1, keepdims=True) + (cosine.minus * cosine.plus)[..., None] * turn
    others = jax.tree.map(jnp.zeros_like, (cosine, noise))  # nobody uses them
    return found, (change + along * mu, *others)


@jax.custom_jvp
def _differentiated_once(arrays: Any) -> Any:
    """The identity. Its derivative, the second one of a draw, raises."""
    return arrays


@_differentiated_once.defjvp
def _(primals: Any, tangents: Any) -> Any:
    raise NotImplementedError(
        "a draw is differentiable once, its second derivative is not implemented. Leave out the second "
        "differentiation (hessian, nested grad), or differentiate a closed form (log_prob, entropy, kl_divergence) at "
        "lax.stop_gradient of a sample."
    )
