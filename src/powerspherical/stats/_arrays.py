"""NumPy arrays as the torch distributions take them, and randomness as SciPy takes it."""

from __future__ import annotations

import numbers
from typing import Any

import numpy as np
import torch
from torch import Tensor

from powerspherical.distributions.sampling import sizes

Array = np.ndarray[Any, np.dtype[Any]]

#: How far from one a norm may be, as in SciPy: unit vectors in float32 are among those. They are normalised again.
NORM_TOLERANCE = 1e-5
_SEEDS = 2**63 - 1


def real(name: str, value: Any) -> Tensor:
    """Real numbers, in float64."""
    array = np.asarray(value)
    if array.dtype.kind not in "fiu":
        raise ValueError(f"{name} must be an array of real numbers, got {array.dtype} of shape {array.shape}")
    return torch.from_numpy(array.astype(np.float64))


def unit_vectors(name: str, value: Any, dim: int | None = None) -> Tensor:
    """Vectors of length one along the last axis, in float64 and with its digits; of ``dim`` numbers, where given."""
    vectors = real(name, value)
    shape = tuple(vectors.shape)
    if dim is not None and shape[-1:] != (dim,):
        raise ValueError(f"{name} must have the shape (…, {dim}), got {shape}")
    if not shape or shape[-1] < 2:
        raise ValueError(
            f"{name} must hold vectors, of shape (…, d) with d ≥ 2 (2 is the circle), got {shape}"
        )
    norms = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)
    error = (norms - 1).abs()
    if not (error <= NORM_TOLERANCE).all():
        worst = norms.flatten()[torch.where(error.isnan(), torch.inf, error).argmax()].item()
        raise ValueError(
            f"{name} of shape {shape} must hold unit vectors along its last axis, but one has the norm {worst:.9g}: "
            f"divide by np.linalg.norm({name}, axis=-1, keepdims=True)"
        )
    return vectors / norms


def array_of(values: Tensor) -> Any:
    """A NumPy array, or a number where there is one only."""
    return values.numpy()[()]


def shape_of(size: Any) -> torch.Size:
    """The shape that ``size`` means: a number, a tuple, or None for a single draw."""
    return torch.Size() if size is None else sizes("size", size)


def generator_of(random_state: Any) -> Any:
    """What SciPy takes for randomness as a generator of NumPy's, or None, which is NumPy's global state."""
    if isinstance(random_state, numbers.Integral) and int(random_state) >= 0:
        return np.random.default_rng(int(random_state))
    if random_state is None or isinstance(random_state, np.random.Generator | np.random.RandomState):
        return random_state
    raise ValueError(
        "random_state must be None, an integer ≥ 0, or a Generator or RandomState of numpy.random, "
        f"got {random_state!r}"
    )


def seed_from(random_state: Any) -> int:
    """A seed for torch, drawn from what SciPy takes for randomness."""
    generator = generator_of(random_state)
    if isinstance(generator, np.random.Generator):
        return int(generator.integers(_SEEDS))
    draw = np.random.randint if generator is None else generator.randint
    return int(draw(_SEEDS, dtype=np.int64))
