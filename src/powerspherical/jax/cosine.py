"""A cosine as its distances from both ends of [-1, 1], each accurate where it is small, and angles between vectors."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from powerspherical.formulas.densities import power_statistic


class Cosine(NamedTuple):
    """The cosine t of an angle, as the arrays ``minus`` = 1-t and ``plus`` = 1+t of one shape.

    Close to ±1 the number t itself has lost the digits that a large concentration needs.

    >>> t = Cosine.of_rapidity(jnp.array([0.0, 10.0]))
    >>> t.minus, t.value
    (Array([1.0000000e+00, 4.1223074e-09], dtype=float32), Array([0., 1.], dtype=float32))
    >>> t.rapidity
    Array([ 0., 10.], dtype=float32)
    >>> t.map(lambda ends: ends[:, None]).plus.shape
    (2, 1)
    """

    minus: Array
    plus: Array

    @classmethod
    def of_rapidity(cls, y: Array) -> Cosine:
        """Return t = tanh y, in the shape of ``y``."""
        return cls(2 * jax.nn.sigmoid(-2 * y), 2 * jax.nn.sigmoid(2 * y))

    @property
    def value(self) -> Array:
        """The number t, in the shape of ``minus``."""
        return 0.5 * (self.plus - self.minus)

    @property
    def rapidity(self) -> Array:
        """The rapidity y = artanh t, in the shape of ``minus``."""
        return 0.5 * (jnp.log(self.plus) - jnp.log(self.minus))

    def map(self, function: Any) -> Cosine:
        """Return the cosine after a function of both arrays, such as one that adds an axis."""
        return Cosine(function(self.minus), function(self.plus))


@jax.custom_jvp
def log_half_cosine(t: Cosine) -> Array:
    """Return log((1+t)/2), accurate where it is small; -inf at the antipode, where we define the derivative as 0."""
    return power_statistic(*t)


@log_half_cosine.defjvp
def _(primals: Any, tangents: Any) -> tuple[Array, Array]:
    (t,), (change,) = primals, tangents
    known = t.plus >= jnp.finfo(t.plus.dtype).tiny
    in_plus = jnp.where(known, t.minus / jnp.where(known, t.plus, 1.0), 0.0)
    return log_half_cosine(t), (in_plus * change.plus - change.minus) / (t.minus + t.plus)


def log_of_share(share: Array, rest: Array) -> Array:
    """Return the log of a share, given also rest = 1 - share. It is accurate where either is small."""
    near = rest < 0.5
    return jnp.where(near, jnp.log1p(-jnp.where(near, rest, 0.0)), jnp.log(jnp.where(near, 1.0, share)))


def direction(vectors: Array) -> Array:
    """Return v/‖v‖ along the last axis, without overflow. At the origin it is e₁, with a finite derivative."""
    longest = jnp.abs(lax.stop_gradient(vectors)).max(-1, keepdims=True)
    missing = longest == 0
    first = jnp.zeros(vectors.shape[-1:], vectors.dtype).at[0].set(1.0)
    scaled = vectors / jnp.where(missing, 1.0, longest) + jnp.where(missing, first, 0.0)
    return scaled / jnp.sqrt((scaled * scaled).sum(-1, keepdims=True))


def cosine_between(x: Array, loc: Array) -> Cosine:
    """Return the cosine of unit vectors over the last axis. Arguments broadcast; differentiable to any order.

    1 ∓ t is ‖x ∓ μ‖²/2. The dot product would lose digits of 1-t, which a large concentration multiplies. Derivatives
    are tangential to the sphere.
    """
    x, loc = _tangential(x), _tangential(loc)
    minus, plus = 0.5 * jnp.square(x - loc).sum(-1), 0.5 * jnp.square(x + loc).sum(-1)
    # Both ends have the derivative of the smaller one. That of the other is a small difference of large vectors.
    t = jnp.where(minus < plus, -minus, plus)
    change = t - lax.stop_gradient(t)
    return Cosine(lax.stop_gradient(minus) - change, lax.stop_gradient(plus) + change)


def _tangential(vectors: Array) -> Array:
    """Return unit vectors v unchanged, with the derivatives of v/‖v‖: normalising again would round them."""
    unit = vectors / jnp.sqrt((vectors * vectors).sum(-1, keepdims=True))
    return lax.stop_gradient(vectors) + (unit - lax.stop_gradient(unit))
