"""Reference values for the conformance suite: sums over a fine grid, and the quadrature defaults of ``Family``."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import scipy.stats
import torch
from torch import Tensor

from powerspherical.families import VON_MISES_FISHER, Family
from powerspherical.families.derived import log_density, log_partition, log_tails
from powerspherical.quadrature.cosine import Cosine
from powerspherical.special.gamma import log_cosine_normalizer

#: Significance level of the randomised tests, whose seed is fixed.
LEVEL = 1e-6


@functools.cache
def plain_twin(family: Family) -> Family:
    """Return a family with the same ``log_kernel``, whose other methods are the defaults by quadrature.

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

        def log_kernel(self, t: Cosine, kappa: Tensor, dim: int) -> Tensor:
            return family.log_kernel(t, kappa, dim)

    return PlainTwin()


def grid_mean(
    family: Family, kappa: Tensor, dim: int, function: Callable[[Cosine], Tensor] | None = None
) -> Tensor:
    """E function(t), by default the integral of the density, for d up to 1e4.

    Uses the trapezoidal rule on a fixed grid of artanh t.
    """
    y = torch.linspace(-40.0, 40.0, 16001, dtype=torch.float64)
    t = Cosine.of_rapidity(y)
    log_cosh = y.abs() + torch.log1p(torch.exp(-2 * y.abs())) - math.log(2)
    log_uniform = log_cosine_normalizer(dim) - (dim - 1) * log_cosh
    density = torch.exp(log_density(family, t, kappa.unsqueeze(-1), dim) + log_uniform)
    values = density if function is None else density * function(t)
    return values.sum(-1) * (y[1] - y[0])


def cosines() -> Cosine:
    """Nine cosines, one of them with 1-t = 1e-12."""
    t = torch.linspace(-0.97, 0.97, 8, dtype=torch.float64)
    near = torch.tensor([1e-12], dtype=torch.float64)
    return Cosine(torch.cat((1 - t, near)), torch.cat((1 + t, 2 - near)))


def _cosines_with(kappa: Tensor) -> tuple[Cosine, Tensor]:
    """``cosines()`` and κ of shape (k, 1), broadcast to (k, 9)."""
    minus, plus, kappa = torch.broadcast_tensors(*cosines(), kappa)
    return Cosine(minus, plus), kappa


def _angles_with(kappa: Tensor) -> tuple[Tensor, Cosine]:
    """κ of shape (k, 1) and cosines of angles between two directions, broadcast to (k, 4)."""
    minus = torch.tensor([0.0, 0.04, 1.0, 1.8], dtype=torch.float64)
    kappa, minus = torch.broadcast_tensors(kappa, minus)
    return kappa, Cosine(minus, 2 - minus)


def _divergence(family: Family, p: Family, kappa: Tensor, dim: int) -> Tensor:
    first, angle = _angles_with(kappa)
    return family.divergence(p, first, 0.6 * first + 1, angle, dim)


def _probabilities_with(kappa: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Probabilities and their complements, both with full relative accuracy, and κ, broadcast to (k, 7)."""
    u = torch.tensor([1e-12, 1e-3, 0.3, 0.5, 0.9], dtype=torch.float64)
    u, complement, kappa = torch.broadcast_tensors(
        torch.cat((u, 1 - u[:2])), torch.cat((1 - u, u[:2])), kappa
    )
    return u, complement, kappa


#: Functions of (family, κ of shape (k, 1), d) that call the methods which read tables of functions of κ.
FUNCTIONS_OF_KAPPA: dict[str, Callable[[Family, Tensor, int], Any]] = {
    "offset": lambda f, k, d: f.offset(k, d),
    "relative_entropy": lambda f, k, d: f.relative_entropy(k, d),
    "mean_cosine": lambda f, k, d: f.mean_cosine(k, d),
    "mean_loss": lambda f, k, d: f.mean_loss(k, d),
    "variance_cosine": lambda f, k, d: f.variance_cosine(k, d),
    "log_partition": lambda f, k, d: log_partition(f, k, d) - k * f.peak,
    "from_mean_cosine": lambda f, k, d: f.from_mean_cosine(k / (k + 9), 9 / (k + 9), d),
}

#: The same for the other methods that may have a closed form.
CLOSED_FORMS: dict[str, Callable[[Family, Tensor, int], Any]] = {
    "log_tail": lambda f, k, d: log_tails(f, *_cosines_with(k), d),
    "quantile": lambda f, k, d: f.quantile(*_probabilities_with(k), d),
    "slope": lambda f, k, d: f.slope(_cosines_with(k)[0], None, _cosines_with(k)[1], d),
    "misalignment": lambda f, k, d: f.misalignment(*_angles_with(k), d),
    "divergence": lambda f, k, d: (_divergence(f, f, k, d), _divergence(f, VON_MISES_FISHER, k, d)),
    "derivatives": lambda f, k, d: f.derivatives(*_cosines_with(k), d),
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
