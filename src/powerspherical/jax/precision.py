"""Computations in float64 inside of programs whose default is float32.

Differences of large terms, as in KL divergences, need float64. JAX's default turns it into float32 everywhere, except
in a block where ``jax.enable_x64`` is on. Such a block works under all transforms.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

import jax
from jax import Array


def computing(*arrays: Any) -> Any:
    """Return the dtype in which functions of the arrays are computed: float64 if one of them is, otherwise float32."""
    return jnp.promote_types(jnp.result_type(*arrays), jnp.float32)


def floats(*arrays: Any) -> list[Array]:
    """Return the arrays in their common dtype, at least float32."""
    dtype = computing(*arrays)
    return [jnp.asarray(x, dtype) for x in arrays]


def in_float64(function: Callable[..., Any], count: int | None = None) -> Callable[..., Any]:
    """Make a function of arrays compute in float64. Results have the dtype of ``computing`` of its arguments.

    Args:
        function: takes arrays, and then constants.
        count: the number of arrays. Default: all positional arguments.
    """

    @functools.wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        arrays, rest = args[:count], args[len(args[:count]) :]
        dtype = computing(*arrays)
        with jax.enable_x64(True):
            doubles = [jnp.asarray(x).astype(jnp.float64) for x in arrays]
            return jax.tree.map(lambda x: x.astype(dtype), function(*doubles, *rest, **options))

    return call
