"""What a family is compared with: plain sums over a fine grid, and its own defaults."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import scipy.stats
import torch
from torch import Tensor

from powerspherical.families import VON_MISES_FISHER, Family
from powerspherical.special.gamma import log_cosine_normalizer

#: Randomised tests fix their seed and reject at this level.
LEVEL = 1e-6


def plain_twin(family: Family) -> Family:
    """A family with the same ``log_kernel`` and nothing else: all of its methods are the defaults of ``Family``."""

    class PlainTwin(Family):
        name = f"{family.name}_by_quadrature"
        title = f"{family.title} (by quadrature)"

        def log_kernel(self, one_minus_t: Tensor, one_plus_t: Tensor, kappa: Tensor, dim: int) -> Tensor:
            return family.log_kernel(one_minus_t, one_plus_t, kappa, dim)

        def antipode_power(self, kappa: Tensor) -> Tensor | None:
            return family.antipode_power(kappa)

    return PlainTwin()


def overridden(family: Family, method: str) -> bool:
    """Whether a family has a method of its own in place of the default."""
    return getattr(type(family), method) is not getattr(Family, method)


def grid_mean(
    family: Family, kappa: Tensor, dim: int, function: Callable[[Tensor, Tensor], Tensor] | None = None
) -> Tensor:
    """E function(1-t, 1+t), or ∫ density: the trapezoidal rule on a fixed grid of artanh t, for d up to 1e4."""
    y = torch.linspace(-40.0, 40.0, 16001, dtype=torch.float64)
    ends = 2 * torch.sigmoid(-2 * y), 2 * torch.sigmoid(2 * y)
    log_cosh = y.abs() + torch.log1p(torch.exp(-2 * y.abs())) - math.log(2)
    log_uniform = log_cosine_normalizer(dim) - (dim - 1) * log_cosh
    density = torch.exp(family.log_density(*ends, kappa.unsqueeze(-1), dim) + log_uniform)
    values = density if function is None else density * function(*ends)
    return values.sum(-1) * (y[1] - y[0])


def rows(kappa: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """``cosines`` and κ (k, 1), of one shape."""
    minus, plus, column = torch.broadcast_tensors(*cosines(), kappa)
    return minus, plus, column


def cosines(count: int = 9) -> tuple[Tensor, Tensor]:
    """1-t and 1+t for t from near -1 to near 1, and closer to 1 than a subtraction could tell."""
    t = torch.linspace(-0.97, 0.97, count - 1, dtype=torch.float64)
    near = torch.tensor([1e-12], dtype=torch.float64)
    return torch.cat((1 - t, near)), torch.cat((1 + t, 2 - near))


def _centred(values: Tensor) -> Tensor:
    """Less the value at the first of the points: a score is determined up to a constant."""
    return values - values[..., :1]


def _half_chords() -> Tensor:
    return torch.tensor([0.0, 0.02, 0.5, 0.9], dtype=torch.float64)


def _elsewhere(kappa: Tensor) -> tuple[Tensor, Tensor]:
    first, second = torch.broadcast_tensors(kappa.unsqueeze(-1), _half_chords())
    return first, second


def _divergence(family: Family, p: Family, kappa: Tensor, dim: int) -> Tensor:
    first, chord = _elsewhere(kappa)
    return family.divergence_from(p, first, 0.6 * first + 1, chord, dim)


def _probabilities() -> tuple[Tensor, Tensor]:
    u = torch.tensor([1e-12, 1e-3, 0.3, 0.5, 0.9], dtype=torch.float64)
    return torch.cat((u, 1 - u[:2])), torch.cat((1 - u, u[:2]))


#: Each method that may have a closed form, as a function of (family, κ of shape (k, 1), d) to compare in two families.
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
    "implicit_slope": lambda f, k, d: f.implicit_slope(*rows(k), d),
    "concentration_from_mean_cosine": lambda f, k, d: f.concentration_from_mean_cosine(
        k / (k + 9), 9 / (k + 9), d
    ),
    "concentration_from_relative_entropy": lambda f, k, d: f.concentration_from_relative_entropy(
        torch.log1p(k), d
    ),
    "misalignment": lambda f, k, d: f.misalignment(*_elsewhere(k), d),
    "divergence_from": lambda f, k, d: (_divergence(f, f, k, d), _divergence(f, VON_MISES_FISHER, k, d)),
    "divergence_from_uniform": lambda f, k, d: f.divergence_from_uniform(k, d),
    "score": lambda f, k, d: _centred(f.score(*rows(k), d)),
    "pull_and_bend": lambda f, k, d: f.pull_and_bend(*rows(k), d),
}


def assert_mean(draws: Tensor, expected: Tensor) -> None:
    """The mean over the first axis is ``expected``, by a z-score."""
    draws = draws.detach().double()
    error = (draws.mean(0) - expected).abs() * len(draws) ** 0.5
    worst = (error / (draws.std(0) + 1e-9)).max()
    limit = scipy.stats.norm.isf(LEVEL / 2 / error.numel())
    assert worst < limit, f"the mean over {len(draws)} draws is off by {worst:.1f} standard errors"


def assert_law(probabilities: Tensor) -> None:
    """The distribution function of a law at draws from it is uniform (Kolmogorov–Smirnov)."""
    assert probabilities.isfinite().all()
    found = scipy.stats.kstest(probabilities.double().numpy(), "uniform")
    assert found.pvalue > LEVEL, f"Kolmogorov–Smirnov statistic {found.statistic:.4f} of the draws"
