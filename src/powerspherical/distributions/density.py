"""The log-density of a rotationally symmetric family at rows of unit vectors."""

from __future__ import annotations

import operator

from torch import Tensor

from powerspherical._torch.vectors import cosine_between, unit_vectors_as
from powerspherical.families import Cosine, ExponentialFamily, Family, derived
from powerspherical.kernels import differentiable
from powerspherical.kernels.registry import DensityOptions
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
        dim, table = x.shape[-1], None
        if isinstance(family, ExponentialFamily):
            (table,) = kernel_tables(family.key, "offset", dim, 0, kappa.dtype, kappa.device)
        return family.name, table, log_sphere_area(dim)

    return differentiable("density", compose, options, x, loc, kappa, dim=x.shape[-1], family=family.name)
