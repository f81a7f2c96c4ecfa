"""Reference values for the conformance suite: sums over a fine grid, and the quadrature defaults of ``Family``."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import scipy.stats
import torch
from torch import Tensor

from powerspherical.families import VON_MISES_FISHER, Family
from powerspherical.special.gamma import log_cosine_normalizer

#: Significance level of the randomised tests, whose seed is fixed.
LEVEL = 1e-6


def plain_twin(family: Family) -> Family:
    """Return a family with the same ``log_kernel``, whose other methods are quadrature defaults.

    The defaults are those of ``powerspherical.families.Family``. The suite compares closed forms with them.

    >>> import torch
    >>> from powerspherical.families import POWER_SPHERICAL
    >>> kappa = torch.tensor([0.5, 20.0], dtype=torch.float64)
    >>> twin = plain_twin(POWER_SPHERICAL)
    >>> error = twin.mean_cosine(kappa, 3) - POWER_SPHERICAL.mean_cosine(kappa, 3)
    >>> error.abs() < 1e-12
    tensor([True, True])
    """

    class PlainTwin(Family):
        name = f"{family.name}_by_quadrature"
        title = f"{family.title} (by quadrature)"

        def log_kernel(self, one_minus_t: Tensor, one_plus_t: Tensor, kappa: Tensor, dim: int) -> Tensor:
            return family.log_kernel(one_minus_t, one_plus_t, kappa, dim)

        def antipode_power(self, kappa: Tensor) -> Tensor | None:
            return family.antipode_power(kappa)

    return PlainTwin()


def grid_mean(
    family: Family, kappa: Tensor, dim: int, function: Callable[[Tensor, Tensor], Tensor] | None = None
) -> Tensor:
    """E function(1-t, 1+t), by default the integral of the density, for d up to 1e4.

    Uses the trapezoidal rule on a fixed grid of artanh t.
    """
    y = torch.linspace(-40.0, 40.0, 16001, dtype=torch.float64)
    ends = 2 * torch.sigmoid(-2 * y), 2 * torch.sigmoid(2 * y)
    log_cosh = y.abs() + torch.log1p(torch.exp(-2 * y.abs())) - math.log(2)
    log_uniform = log_cosine_normalizer(dim) - (dim - 1) * log_cosh
    density = torch.exp(family.log_density(*ends, kappa.unsqueeze(-1), dim) + log_uniform)
    values = density if function is None else density * function(*ends)
    return values.sum(-1) * (y[1] - y[0])


def cosines() -> tuple[Tensor, Tensor]:
    """1-t and 1+t at nine points, one of them with 1-t = 1e-12."""
    t = torch.linspace(-0.97, 0.97, 8, dtype=torch.float64)
    near = torch.tensor([1e-12], dtype=torch.float64)
    return torch.cat((1 - t, near)), torch.cat((1 + t, 2 - near))


def _cosines_with(kappa: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """``cosines()`` and κ of shape (k, 1), broadcast to (k, 9)."""
    minus, plus, kappa = torch.broadcast_tensors(*cosines(), kappa)
    return minus, plus, kappa


def _haversines_with(kappa: Tensor) -> tuple[Tensor, Tensor]:
    """κ and half the distance between two mean directions, broadcast against each other."""
    haversines = torch.tensor([0.0, 0.02, 0.5, 0.9], dtype=torch.float64)
    kappa, haversines = torch.broadcast_tensors(kappa.unsqueeze(-1), haversines)
    return kappa, haversines


def _divergence(family: Family, p: Family, kappa: Tensor, dim: int) -> Tensor:
    first, haversine = _haversines_with(kappa)
    return family.divergence_from(p, first, 0.6 * first + 1, haversine, dim)


def _probabilities() -> tuple[Tensor, Tensor]:
    """Probabilities and their complements, both with full relative accuracy."""
    u = torch.tensor([1e-12, 1e-3, 0.3, 0.5, 0.9], dtype=torch.float64)
    return torch.cat((u, 1 - u[:2])), torch.cat((1 - u, u[:2]))


def _centred_score(family: Family, kappa: Tensor, dim: int) -> Tensor:
    """The score minus its value at the first point, because it is determined only up to a constant."""
    score = family.score(*_cosines_with(kappa), dim)
    return score - score[..., :1]


#: For each method that may have a closed form: a function of (family, κ of shape (k, 1), d) that calls it.
CLOSED_FORMS: dict[str, Callable[[Family, Tensor, int], Any]] = {
    "log_partition": lambda f, k, d: f.log_partition(k, d),
    "log_density": lambda f, k, d: f.log_density(*cosines(), k, d),
    "relative_entropy": lambda f, k, d: f.relative_entropy(k, d),
    "mean_cosine": lambda f, k, d: f.mean_cosine(k, d),
    "mean_cosine_complement": lambda f, k, d: f.mean_cosine_complement(k, d),
    "variance_cosine": lambda f, k, d: f.variance_cosine(k, d),
    "mean_log1p_cosine": lambda f, k, d: f.mean_log1p_cosine(k, d),
    "mean_log1m_cosine": lambda f, k, d: f.mean_log1m_cosine(k, d),
    "mean_log_loss": lambda f, k, d: f.mean_log_loss(k, d),
    "log_near_tail": lambda f, k, d: f.log_tails(*cosines(), k, d),
    "quantile_values": lambda f, k, d: f.quantile(*_probabilities(), k, d),
    "implicit_slope": lambda f, k, d: f.implicit_slope(*_cosines_with(k), d),
    "concentration_from_mean_cosine": lambda f, k, d: f.concentration_from_mean_cosine(
        k / (k + 9), 9 / (k + 9), d
    ),
    "concentration_from_relative_entropy": lambda f, k, d: f.concentration_from_relative_entropy(
        torch.log1p(k), d
    ),
    "misalignment": lambda f, k, d: f.misalignment(*_haversines_with(k), d),
    "divergence_from": lambda f, k, d: (_divergence(f, f, k, d), _divergence(f, VON_MISES_FISHER, k, d)),
    "divergence_from_uniform": lambda f, k, d: f.divergence_from_uniform(k, d),
    "score": _centred_score,
    "pull_and_bend": lambda f, k, d: f.pull_and_bend(*_cosines_with(k), d),
}


def assert_mean(draws: Tensor, expected: Tensor) -> None:
    """Assert, by a z-test, that the mean over the first axis is ``expected``."""
    draws = draws.detach().double()
    error = (draws.mean(0) - expected).abs() * len(draws) ** 0.5
    worst = (error / (draws.std(0) + 1e-9)).max()
    limit = scipy.stats.norm.isf(LEVEL / 2 / error.numel())
    assert worst < limit, f"the mean over {len(draws)} draws is off by {worst:.1f} standard errors"


def assert_law(probabilities: Tensor) -> None:
    """Assert, by a Kolmogorov–Smirnov test, that the CDF evaluated at draws is uniformly distributed."""
    assert probabilities.isfinite().all()
    found = scipy.stats.kstest(probabilities.double().numpy(), "uniform")
    assert found.pvalue > LEVEL, f"Kolmogorov–Smirnov statistic {found.statistic:.4f} of the draws"
