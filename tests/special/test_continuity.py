"""Special functions do not jump where they switch from one formula to another.

The branch points are copied from the source. If one moves there, it must move here.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from helpers.continuity import DOUBLE, assert_continuous_in_dim, assert_no_jump
from helpers.examples import dtypes
from powerspherical.special import (
    bessel,
    bessel_ratio,
    bessel_ratio_complement,
    bessel_ratio_inverse,
    bessel_ratio_slope,
    digamma_difference,
    gamma,
    log_hyp0f1,
    mean_log1p,
    mean_log_boost,
    trigamma_difference,
)
from powerspherical.special.bessel import exponential_relative_entropy
from powerspherical.special.gamma import log_cosine_normalizer, power_relative_entropy

# ---------------------------------------------------------------------------------------------- branches in κ


def excess_switches(dim: int, dtype: torch.dtype) -> list[float]:
    """Return the κ > 0 with κ(1-κ)/((2a+κ)(2a+1+κ)) = -0.4, for each a of the recurrence."""
    beta = (dim - 1) / 2
    steps, _, _ = gamma.shift(beta, dtype)
    roots = []
    for a in (beta + i for i in range(steps)):
        linear, constant = 1 + 0.4 * (4 * a + 1), 0.4 * 2 * a * (2 * a + 1)
        roots.append((linear + math.sqrt(linear**2 + 4 * 0.6 * constant)) / (2 * 0.6))
    return roots


@dtypes
@pytest.mark.parametrize("dim", [2, 3, 4, 7])
def test_recurrence_of_the_power_relative_entropy(dim: int, dtype: torch.dtype) -> None:
    assert_no_jump(lambda kappa: power_relative_entropy(kappa, dim), excess_switches(dim, dtype), dtype)


@dtypes
@pytest.mark.parametrize("dim", [2, 3, 10, 64, 1001])
def test_mean_logarithm_at_beta(dim: int, dtype: torch.dtype) -> None:
    beta = [(dim - 1) / 2]
    assert_no_jump(lambda kappa: mean_log1p(kappa, dim), beta, dtype)


@dtypes
@pytest.mark.parametrize("dim", [2, 3, 4, 5, 10, 20])
@pytest.mark.parametrize(
    "function",
    [bessel_ratio, bessel_ratio_complement, bessel_ratio_slope, exponential_relative_entropy, log_hyp0f1],
)
def test_bessel_functions_where_hankels_series_starts(
    function: Callable[[Tensor, int], Tensor], dim: int, dtype: torch.dtype
) -> None:
    switch = bessel._HANKEL_START[dtype] + (dim / 2 - 1) ** 2
    assert_no_jump(lambda kappa: function(kappa, dim), [switch], dtype)


@dtypes
@pytest.mark.parametrize("dim", [2, 3, 10, 20, 41])
def test_at_a_ratio_of_one_half(dim: int, dtype: torch.dtype) -> None:
    """The formulas use A below one half and 1-A above."""
    half = torch.tensor([0.5], dtype=DOUBLE)
    kappa = bessel_ratio_inverse(half, dim)
    assert_no_jump(lambda kappa: exponential_relative_entropy(kappa, dim), kappa, dtype)
    assert_no_jump(lambda ratio: bessel_ratio_inverse(ratio, dim), half, dtype)


@dtypes
@pytest.mark.parametrize("dim", [3, 10, 1000])
def test_logarithm_of_a_large_boost(dim: int, dtype: torch.dtype) -> None:
    """For q ≥ 1e8 the log of a product is computed as a sum of logs, to avoid overflow."""
    assert_no_jump(lambda q: mean_log_boost(q, dim), [1e8], dtype)


# ---------------------------------------------------------------------------------------------- branches in d

#: Functions that shift β to Stirling's series: the number of steps changes at every odd d.
STIRLING = {
    "relative entropy": power_relative_entropy,
    "digamma_difference": digamma_difference,
    "trigamma_difference": trigamma_difference,
    "mean_log1p": mean_log1p,
}
#: Functions that step down from Debye's series: the number of steps changes at every even d.
DEBYE = {
    "relative entropy": exponential_relative_entropy,
    "bessel_ratio": bessel_ratio,
    "bessel_ratio_complement": bessel_ratio_complement,
    "bessel_ratio_slope": bessel_ratio_slope,
    "log_hyp0f1": log_hyp0f1,
}


@dtypes
@pytest.mark.parametrize("dim", [3, 5, 11, 13, 31, 33])
@pytest.mark.parametrize("name", STIRLING)
def test_steps_to_stirlings_series(name: str, dim: int, dtype: torch.dtype) -> None:
    assert_continuous_in_dim(STIRLING[name], dim, dtype)


@dtypes
@pytest.mark.parametrize("dim", [4, 6, 20, 22, 40, 42])
@pytest.mark.parametrize("name", DEBYE)
def test_steps_from_debyes_series(name: str, dim: int, dtype: torch.dtype) -> None:
    assert_continuous_in_dim(DEBYE[name], dim, dtype)


def test_normalizer_of_the_cosine_where_its_series_starts() -> None:
    assert log_cosine_normalizer(60) == pytest.approx(log_cosine_normalizer(math.nextafter(60, 0)), rel=3e-14)
