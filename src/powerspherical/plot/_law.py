"""A distribution as its law of the cosine t = μᵀx, in float64 on the CPU, and where to evaluate it."""

from typing import Any

import torch
from torch import Tensor

from powerspherical.distributions import Marginal, RotationallySymmetric
from powerspherical.families.derived import log_density
from powerspherical.plot._style import Array
from powerspherical.quadrature.cosine import Cosine
from powerspherical.special.gamma import log_sphere_area


def cosine_law(q: Any) -> Marginal:
    """Return the law of t of a distribution or marginal, in float64, with its batch flattened to shape (b,)."""
    if not isinstance(q, RotationallySymmetric | Marginal):
        raise TypeError(
            f"q must be a distribution with a mean direction, such as PowerSpherical, got {type(q).__name__}: "
            "plot the factors of a product one by one, and the uniform distribution as PowerSpherical(loc, 0.0)"
        )
    concentration = q.concentration.detach().double().cpu().flatten()
    return Marginal(q.dim, concentration, validate_args=False, family=q.family)


def angles(law: Marginal, count: int) -> Tensor:
    """Return increasing angles from the mean direction, (2·count, b), from 0 to π.

    Half of them are evenly spaced. The others are quantiles, down to tails of 1e-6: they resolve a peak however narrow
    it is.
    """
    even = torch.linspace(0, torch.pi, count, dtype=torch.float64)
    logit = torch.linspace(-14, 14, count, dtype=torch.float64)[:, None]
    quantile = law.quantile(logit.sigmoid(), (-logit).sigmoid())
    likely = 2 * torch.atan2(quantile.minus.sqrt(), quantile.plus.sqrt())
    return torch.cat([even[:, None].expand(count, len(law.concentration)), likely]).sort(dim=0).values


def profile(law: Marginal, count: int) -> tuple[Array, Array]:
    """Return increasing angles from the mean direction and the densities on the sphere there, (2·count,) each.

    The law has the batch shape (1,).
    """
    angle = angles(law, count)
    t = Cosine(2 * (angle / 2).sin().square(), 2 * (angle / 2).cos().square())
    relative = log_density(law.family, t, law.concentration, law.dim)
    density = (relative - log_sphere_area(law.dim)).exp()
    return angle.squeeze(-1).numpy(), density.squeeze(-1).numpy()
