"""Checks of random draws. With a fixed seed each fails by chance with probability at most LEVEL."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import scipy.stats
import torch
from torch import Tensor
from torch.distributions import Distribution

LEVEL = 1e-6


def assert_mean(draws: Tensor, expected: Tensor | float, rounding: float = 0.0) -> None:
    """Check that the mean over the first axis is ``expected``, by z-scores plus an absolute ``rounding`` error."""
    draws = draws.detach().double()
    error = (draws.mean(0) - torch.as_tensor(expected).detach().double()).abs()
    standard_error = draws.std(0) / len(draws) ** 0.5
    quantile = scipy.stats.norm.isf(LEVEL / 2 / error.numel())
    worst = (error / (quantile * standard_error + rounding + 1e-300)).max()
    assert worst <= 1, f"off by {worst * quantile:.1f} standard errors, {error.max():.3g} at most"


def assert_law(draws: Tensor, cdf: Callable[[np.ndarray], np.ndarray]) -> None:
    """Check that scalar draws have this distribution function (Kolmogorov–Smirnov)."""
    assert draws.isfinite().all()
    assert scipy.stats.kstest(draws.detach().double().numpy(), cdf).pvalue > LEVEL


def assert_same_law(first: Tensor, second: Tensor) -> None:
    """Check that two samples of scalars have the same law (Kolmogorov–Smirnov)."""
    assert scipy.stats.ks_2samp(first.detach().numpy(), second.detach().numpy()).pvalue > LEVEL


def assert_uncorrelated(first: Tensor, second: Tensor) -> None:
    """Check that two columns of draws have no rank correlation."""
    assert scipy.stats.spearmanr(first.detach().numpy(), second.detach().numpy()).pvalue > LEVEL


def assert_reproducible(q: Distribution) -> None:
    """Check that a seed repeats draws, and that a generator does too, without touching torch's own."""
    torch.manual_seed(1)
    first, second = q.rsample(), q.rsample()
    assert not torch.equal(first, second)
    torch.manual_seed(1)
    assert torch.equal(first, q.rsample())
    state = torch.get_rng_state()
    generator = torch.Generator().manual_seed(1)
    assert torch.equal(first, q.rsample(generator=generator))
    assert torch.equal(second, q.rsample(generator=generator))
    assert torch.equal(state, torch.get_rng_state())
