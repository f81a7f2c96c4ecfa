"""The log-density of a rotationally symmetric family at rows of unit vectors."""

from __future__ import annotations

import operator

import torch
from torch import Tensor

from powerspherical._torch.vectors import cosine_between, unit_vectors_as
from powerspherical.families import Cosine, ExponentialFamily, Family, derived
from powerspherical.kernels import differentiable
from powerspherical.kernels.registry import DensityOptions, Table
from powerspherical.special.curves import kernel_tables
from powerspherical.special.gamma import log_sphere_area


def log_density(family: Family, x: Tensor, loc: Tensor, kappa: Tensor) -> Tensor:
    """Return the log-density at x with respect to the area of the sphere; differentiable twice.

    Args:
        family: the law of the cosine t = μᵀx.
        x: unit vectors, (…, d).
        loc: mean directions μ, (…, d).
        kappa: concentrations κ, float32 or float64. Its dtype is that of the result; vectors are converted to it.

    Batch shapes broadcast. In plain eager mode our families take one kernel per pass. On CUDA exponential families take
    one more for their functions of κ alone.
    """

    def compose(x: Tensor, loc: Tensor, kappa: Tensor, *_: Tensor) -> Tensor:
        t = Cosine(*cosine_between(unit_vectors_as(x, kappa.dtype), unit_vectors_as(loc, kappa.dtype)))
        dim = operator.index(x.shape[-1])  # specialises compiled code on d
        return derived.log_density(family, t, kappa, dim) - log_sphere_area(dim)

    def options() -> DensityOptions:
        dim = x.shape[-1]
        return family.name, offset_table(family, dim, kappa.dtype, kappa.device), log_sphere_area(dim)

    return differentiable("density", compose, options, x, loc, kappa, dim=x.shape[-1], family=family.name)


def offset_table(family: Family, dim: int, dtype: torch.dtype, device: torch.device) -> Table | None:
    """Return the table of -Ψ for kernels, None for a family that is not exponential."""
    if not isinstance(family, ExponentialFamily):
        return None
    return kernel_tables(family.key, "offset", dim, 0, dtype, device)[0]
