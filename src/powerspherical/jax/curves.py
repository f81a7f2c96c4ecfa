"""Functions of κ, read from the tables of ``powerspherical.special.tables``, with derivatives of any order.

They are the functions that torch, C and Triton read. κ = 0 and subnormal κ give the limits and their derivatives, κ = ∞
gives the limit, NaN gives NaN, and a negative κ counts as 0, with the derivative 0.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from powerspherical.jax.precision import in_float64, row_by_row
from powerspherical.special.tables import TOP, Curve, curves

#: By the bytes of a number: the integers of its size, the bits of its mantissa but for three, the bias of its exponent.
_BITS = {4: (np.int32, 20, 127), 8: (np.int64, 49, 1023)}


def curve(family: str, name: str, dim: float, order: int = 0) -> Curve:
    """Return a function of κ, or its derivative of some order, as a table."""
    found = curves(family, dim)[name]
    for _ in range(order):
        found = found.slope
    return found


@functools.lru_cache(256)
def _rows(size: int, family: str, name: str, dim: float, order: int) -> np.ndarray:
    return curve(family, name, dim, order).rows(size)


@functools.partial(jax.custom_jvp, nondiff_argnums=(1, 2, 3, 4))
def value(kappa: Array, family: str, name: str, dim: float, order: int = 0) -> Array:
    """Return a function of κ, or its derivative of some order.

    Args:
        kappa: any shape, float32 or float64. The result has its shape and dtype.
        family, name: a curve of ``tables.curves``.
        dim: the ambient dimension d ≥ 2.
        order: how often to differentiate.
    """
    found, size = curve(family, name, dim, order), kappa.dtype.itemsize
    rows = jnp.asarray(_rows(size, family, name, dim, order), kappa.dtype)
    result = row_by_row(functools.partial(_looked_up, rows, found), kappa)
    return jnp.where(kappa < 0, 0.0, result) if order else result


def _looked_up(rows: Array, found: Curve, kappa: Array) -> Array:
    """Evaluate a curve with these rows."""
    integers, shift, bias = _BITS[kappa.dtype.itemsize]
    inside = jnp.clip(kappa, 0.0, 2.0**TOP)
    cell = (lax.bitcast_convert_type(inside, integers) >> shift) - (8 * (found.cells.low + bias) - 1)
    row = rows[jnp.clip(cell, 0, len(rows) - 1)]
    result = _polynomial(row[..., 2:], row[..., 0] + inside * row[..., 1])
    if found.gain or found.decay:
        beyond = jnp.maximum(kappa, 2.0**TOP) * 2.0**-TOP  # 1 inside the table
        return result + found.gain * jnp.log(beyond) if found.gain else result * beyond**-found.decay
    return result


@value.defjvp
def _(family: str, name: str, dim: float, order: int, primals: Any, tangents: Any) -> tuple[Array, Array]:
    (kappa,), (change,) = primals, tangents
    slope = value(kappa, family, name, dim, order + 1)
    return value(kappa, family, name, dim, order), slope * change


def _polynomial(coefficients: Array, x: Array) -> Array:
    """Evaluate polynomials whose coefficients are on the last axis."""
    result = coefficients[..., -1]
    for place in range(coefficients.shape[-1] - 2, -1, -1):
        result = result * x + coefficients[..., place]
    return result


_NEWTON_STEPS = 4


@functools.partial(jax.custom_jvp, nondiff_argnums=(1, 2, 3))
def inverse(target: Array, family: str, name: str, dim: float) -> Array:
    """Return the κ at which a curve has the value ``target``. The curve must increase from 0, or decrease.

    The table is searched for the cell. In the cell Newton's method starts from the chord, or in cell 0 from the
    leading power. Beyond the table the curve is a logarithm or a power. If no finite κ reaches ``target``, the result
    is infinite, or 0 on the side of κ = 0. Arrays are float64.
    """
    found = curve(family, name, dim)
    table = _rows(8, family, name, dim, 0)
    power = int((found.fit[0] != 0).argmax())  # the curve is ∝ κ^power near κ = 0
    sign = 1.0 if power else -1.0
    begins, top = table[:, 2], float(table[-1, 2:].sum())
    ascending = np.where(np.isnan(begins), np.inf, sign * begins)  # NaN beyond the range of a sampled curve
    cell = jnp.maximum(jnp.searchsorted(jnp.asarray(ascending), sign * target, side="right") - 1, 0)
    row = jnp.asarray(table)[cell]
    coefficients = row[..., 2:]
    slopes = coefficients[..., 1:] * np.arange(1.0, coefficients.shape[-1])
    x = jnp.clip((target - row[..., 2]) / coefficients[..., 1:].sum(-1), 0.0, 1.0)
    if power > 1:
        x = jnp.where(cell == 0, x ** (1 / power), x)
    for _ in range(_NEWTON_STEPS):
        error = _polynomial(coefficients.at[..., 0].add(-target), x)
        x = x - jnp.where(error == 0, 0.0, error / _polynomial(slopes, x))
    beyond = jnp.full_like(target, jnp.inf)
    if found.gain:
        beyond = 2.0**TOP * jnp.exp((target - top) / found.gain)
    elif found.decay > 0:
        beyond = 2.0**TOP * (target / top) ** (-1 / found.decay)
    kappa = jnp.where(x > 1 + 1e-9, beyond, (x - row[..., 0]) / row[..., 1])
    at_zero = jnp.where(jnp.isnan(target), target, 0.0)
    return jnp.where(sign * target > sign * float(begins[0]), kappa, at_zero)


@inverse.defjvp
def _(family: str, name: str, dim: float, primals: Any, tangents: Any) -> tuple[Array, Array]:
    kappa = inverse(*primals, family, name, dim)
    return kappa, tangents[0] / value(kappa, family, name, dim, 1)


def inverse_mean(length: Array, loss: Array, family: str, dim: float) -> Array:
    """Return the κ ≥ 0 with E t = ``length`` = 1 - ``loss``, differentiable in ``length``.

    It is computed in float64, because κ² leaves the range of float32.
    """
    compute = in_float64(lambda length, loss: _inverse_mean(length, loss, family, dim))
    return compute(*jnp.broadcast_arrays(length, lax.stop_gradient(loss)))


@functools.partial(jax.custom_jvp, nondiff_argnums=(2, 3))
def _inverse_mean(length: Array, loss: Array, family: str, dim: float) -> Array:
    low, high = inverse(length, family, "mean", dim), inverse(loss, family, "loss", dim)
    return jnp.where(length < 0.5, low, high)


@_inverse_mean.defjvp
def _(family: str, dim: float, primals: Any, tangents: Any) -> tuple[Array, Array]:
    kappa = _inverse_mean(*primals, family, dim)
    return kappa, tangents[0] / value(kappa, family, "mean", dim, 1)
