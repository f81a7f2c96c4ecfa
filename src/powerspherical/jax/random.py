"""Random numbers that XLA fuses with their use: for a threefry key the bits of ``jax.random.bits``, but written out.

On a CPU, JAX lowers threefry to a loop over whole arrays, which takes 80 % of the time of ``jax.random.normal``.
Written out, its 20 rounds stay in registers. A ``stream`` is the upper half of the counter. It gives independent
numbers without splitting the key. For other kinds of keys, and for float64, we call ``jax.random``.
"""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax, random

from powerspherical.formulas.ops import horner

_ROTATIONS = (13, 15, 26, 6), (17, 29, 16, 24)
_PARITY = np.uint32(0x1BD11BDA)


def bits(key: Array, shape: tuple[int, ...], stream: Any = 0) -> Array:
    """Return 32 random bits per entry, by threefry (Salmon et al. 2011). With stream 0 those of ``jax.random.bits``."""
    if str(random.key_impl(key)) != "threefry2x32" or math.prod(shape) >= 2**32:
        return random.bits(random.fold_in(key, stream), shape, np.uint32)
    data = random.key_data(key)
    keys = data[0], data[1], data[0] ^ data[1] ^ _PARITY
    y = lax.iota(np.uint32, math.prod(shape)).reshape(shape) + keys[1]
    x = jnp.full_like(y, jnp.asarray(stream, np.uint32) + keys[0])
    for i in range(5):
        for r in _ROTATIONS[i % 2]:
            x = x + y
            y = x ^ ((y << np.uint32(r)) | (y >> np.uint32(32 - r)))
        x, y = x + keys[(i + 1) % 3], y + keys[(i + 2) % 3] + np.uint32(i + 1)
    return x ^ y


def uniform(key: Array, shape: tuple[int, ...], dtype: Any, stream: Any) -> Array:
    """Return uniform numbers in (0, 1), in float32 odd multiples of 2^-24."""
    if dtype != jnp.float32:
        return random.uniform(random.fold_in(key, stream), shape, dtype, float(jnp.finfo(dtype).tiny))
    signed = (bits(key, shape, stream) >> np.uint32(9)).astype(np.int32)  # converted faster than unsigned
    return (signed.astype(dtype) + 0.5) * np.float32(2**-23)


# Giles (2012), "Approximating the erfinv function": the quantile divided by √2 u, as polynomials in w - 2.5
# and in √w - 3, where w = -log(1-u²).
_CENTRE = (
    *(1.50140941, 0.246640727, -0.00417768164, -0.00125372503, 0.00021858087),
    *(-4.39150654e-06, -3.5233877e-06, 3.43273939e-07, 2.81022636e-08),
)
_TAIL = (
    *(2.83297682, 1.00167406, 0.00943887047, -0.0076224613, 0.00573950773),
    *(-0.00367342844, 0.00134934322, 0.000100950558, -0.000200214257),
)


def normal_of_bits(value: Array) -> Array:
    """Return the float32 normals to which inversion takes the upper 24 of 32 random bits."""
    signed = lax.bitcast_convert_type(value, np.int32) >> 8
    # Not a·x + b: XLA would fold b into 1 + u, which is then 0 for the smallest u.
    u = (signed.astype(jnp.float32) + 0.5) * np.float32(2**-23)
    w = -jnp.log((1 - u) * (1 + u))
    return math.sqrt(2) * u * jnp.where(w < 5, horner(w - 2.5, *_CENTRE), horner(jnp.sqrt(w) - 3, *_TAIL))


def normal(key: Array, shape: tuple[int, ...], dtype: Any, stream: Any) -> Array:
    """Return standard normals, in float32 from 24 bits each."""
    if dtype != jnp.float32:
        return random.normal(random.fold_in(key, stream), shape, dtype)
    return normal_of_bits(bits(key, shape, stream))
