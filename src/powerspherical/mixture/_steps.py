"""The sums over points that a maximisation step needs."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from powerspherical.families import POWER_SPHERICAL, Family
from powerspherical.families.derived import forces
from powerspherical.quadrature.cosine import Cosine


class PointSums(NamedTuple):
    """Sums over b points for k mixture components, weighted by responsibilities; see ``derived.forces``.

    Attributes:
        total: (k,), the sum of the responsibilities, float64.
        pulls: (k, b), the pull of each point. The sum over points is ``factor``·Σ pulls·x.
        bend: (k,), Σ bend, float64.
        score: (k,), Σ score, float64. Zero for families that are linear in t, which need only Σ pulls·x.
        factor: see ``pulls``.
    """

    total: Tensor
    pulls: Tensor
    bend: Tensor
    score: Tensor
    factor: float = 1.0


def point_sums_(
    family: Family, kept: tuple[Tensor, ...], shares: Tensor, kappa: Tensor, dim: int
) -> PointSums:
    """Return the sums over points.

    Args:
        family: the family of the components.
        kept: the second result of ``cosine_matrix.log_densities_`` with ``keep=True``.
        shares: responsibilities, (k, b), may be overwritten.
        kappa: (k, 1).
        dim: the ambient dimension d.

    >>> from powerspherical.distributions.cosine_matrix import log_densities_
    >>> cosines, kappa, zeros = torch.tensor([[0.0, 0.5]]), torch.ones(1, 1), torch.zeros(1, 1)
    >>> _, kept = log_densities_(POWER_SPHERICAL, cosines, kappa, zeros, 3, keep=True)
    >>> sums = point_sums_(POWER_SPHERICAL, kept, torch.tensor([[1.0, 0.5]]), kappa, 3)
    >>> sums.total, sums.factor * sums.pulls  # 1/(1+t) times the responsibility
    (tensor([1.5000], dtype=torch.float64), tensor([[1.0000, 0.3333]]))
    """
    total = shares.sum(1).double()
    if family.linear:
        nothing = torch.zeros_like(total)
        return PointSums(total, shares, nothing, nothing)
    if family is POWER_SPHERICAL:
        halves, logs = kept
        score = logs.mul_(shares).sum(1).double()
        pulls = shares.div_(halves)
        return PointSums(total, pulls, pulls.sum(1).double() - total, score, factor=0.5)
    t = Cosine(*kept)
    pull, bend = forces(family, t, kappa.expand_as(t.minus), dim)
    bends, scores = ((shares * x).sum(1).double() for x in (bend, family.score(t, kappa, dim)))
    return PointSums(total, shares * pull, bends, scores)
