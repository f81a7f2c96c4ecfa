"""Computations in float64 inside of programs whose default is float32.

Differences of large terms, as in KL divergences, need float64. JAX's default turns it into float32 everywhere, except
in a block where ``jax.enable_x64`` is on. Such a block works under ``jit``, ``vmap`` and ``shard_map``. Derivatives of
some of its operations are taken outside of it, where they fail. So functions in float64 have derivatives of their own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array


def computing(*arrays: Any) -> Any:
    """Return the dtype in which functions of the arrays are computed: float64 if one of them is, otherwise float32."""
    return jnp.promote_types(jnp.result_type(*arrays), jnp.float32)


def floats(*arrays: Any) -> list[Array]:
    """Return the arrays in their common dtype, at least float32."""
    dtype = computing(*arrays)
    return [jnp.asarray(x, dtype) for x in arrays]


def row_by_row(function: Callable[..., Any], *arrays: Array) -> Any:
    """Return function(*arrays), which computes each entry, or row, from those of the last array and of the others.

    Under explicit sharding its results are sharded like the last array, and the compiler finds out about the rest: a
    lookup in a table has no sharding that JAX could infer.
    """
    sharding = jax.typeof(arrays[-1]).sharding
    if jax.sharding.AxisType.Explicit not in sharding.mesh.axis_types:
        return function(*arrays)
    return jax.sharding.auto_axes(function, out_sharding=sharding)(*arrays)


def as_float64(function: Callable[..., Any], *arrays: Array) -> Any:
    """Return function(*arrays), computed in float64, in the common dtype of the arrays. It is not to be derived."""
    dtype = computing(*arrays)

    def compute(*arrays: Array) -> Any:
        with jax.enable_x64(True):
            doubles = (x.astype(jnp.float64) for x in arrays)
            return jax.tree.map(lambda x: x.astype(dtype), function(*doubles))

    return row_by_row(compute, *arrays)


def in_float64(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make an elementwise function of arrays of one shape compute in float64, with derivatives of any order.

    It may return several arrays. Results have the common dtype of the arguments.
    """

    def gradients(*arrays: Array) -> Any:
        value, pull_back = jax.vjp(function, *arrays)
        if isinstance(value, Array):
            return pull_back(jnp.ones_like(value))
        return [
            jax.jvp(_in_one(function, arrays, i), (x,), (jnp.ones_like(x),))[1] for i, x in enumerate(arrays)
        ]

    call = jax.custom_jvp(functools.partial(as_float64, function))

    @call.defjvp
    def _(primals: Any, tangents: Any) -> tuple[Any, Any]:
        slopes = in_float64(gradients)(*primals)
        changes = [
            jax.tree.map(lambda s, dx=dx: s * dx, slope) for slope, dx in zip(slopes, tangents, strict=True)
        ]
        return call(*primals), functools.reduce(lambda a, b: jax.tree.map(jnp.add, a, b), changes)

    return call


def _in_one(function: Callable[..., Any], arrays: tuple[Array, ...], place: int) -> Callable[[Array], Any]:
    """Return the function of one of the arrays."""
    return lambda x: function(*arrays[:place], x, *arrays[place + 1 :])
