"""Conversions: NumPy arrays to tensors and back, and SciPy's ``random_state`` to torch seeds."""

from __future__ import annotations

import numbers
from typing import Any

import numpy as np
import torch
from torch import Tensor

from powerspherical._torch.rows import row_lengths

Array = np.ndarray[Any, np.dtype[Any]]

#: Largest deviation of a norm from one, as in SciPy. It accepts float32 unit vectors, which are then renormalised.
NORM_TOLERANCE = 1e-5
_SEEDS = 2**63 - 1


def real(name: str, value: Any) -> Tensor:
    """An array of real numbers as a float64 tensor."""
    array = np.asarray(value)
    if array.dtype.kind not in "fiu":
        raise ValueError(f"{name} must be an array of real numbers, got {array.dtype} of shape {array.shape}")
    return torch.from_numpy(array.astype(np.float64))


def unit_vectors(name: str, value: Any, dim: int | None = None) -> Tensor:
    """An array of unit vectors along the last axis, of length ``dim`` if given, as a renormalised float64 tensor."""
    vectors = real(name, value)
    shape = tuple(vectors.shape)
    if dim is not None and shape[-1:] != (dim,):
        raise ValueError(f"{name} must have the shape (…, {dim}), got {shape}")
    if not shape or shape[-1] < 2:
        raise ValueError(
            f"{name} must hold vectors, of shape (…, d) with d ≥ 2 (2 is the circle), got {shape}"
        )
    lengths = row_lengths(vectors.reshape(-1, shape[-1]), name, allow_zeros=True)
    norms = lengths.reshape(*shape[:-1], 1)
    error = (norms - 1).abs()
    if not (error <= NORM_TOLERANCE).all():
        worst = norms.flatten()[error.argmax()].item()
        raise ValueError(
            f"{name} of shape {shape} must hold unit vectors along its last axis, but one has the norm {worst:.9g}: "
            f"divide by np.linalg.norm({name}, axis=-1, keepdims=True)"
        )
    return vectors / norms


def array_of(values: Tensor) -> Any:
    """The tensor as a NumPy array, or as a NumPy scalar if it has no axes."""
    return values.numpy()[()]


def generator_of(random_state: Any) -> Any:
    """SciPy's ``random_state`` as a NumPy generator. None, for NumPy's global state, stays None."""
    if isinstance(random_state, numbers.Integral) and int(random_state) >= 0:
        return np.random.default_rng(int(random_state))
    if random_state is None or isinstance(random_state, np.random.Generator | np.random.RandomState):
        return random_state
    raise ValueError(
        "random_state must be None, an integer ≥ 0, or a Generator or RandomState of numpy.random, "
        f"got {random_state!r}"
    )


def seed_from(random_state: Any) -> int:
    """A seed for torch, drawn from SciPy's ``random_state``."""
    generator = generator_of(random_state)
    if isinstance(generator, np.random.Generator):
        return int(generator.integers(_SEEDS))
    draw = np.random.randint if generator is None else generator.randint
    return int(draw(_SEEDS, dtype=np.int64))
