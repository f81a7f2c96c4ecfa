"""dlog G/dα of Gamma variables in float32, against mpmath over shapes and probabilities."""

from __future__ import annotations

import functools
import math

import mpmath
import pytest
import scipy.special
import torch
from torch import Tensor

from helpers.gamma import log_slope
from powerspherical.special import gamma_draw
from powerspherical.special.gamma_draw import LARGE_SHAPE, log_gamma_slope

TAILS = [1e-7, 1e-4, 0.03, 0.3]
BELOW = math.nextafter(LARGE_SHAPE, 0)


def exact_slope(alpha: float, gamma: float) -> float:
    """Return -(∂P/∂α)/(G ∂P/∂G) for the distribution function P, from its integral, differentiated in α."""
    with mpmath.workdps(40):
        a, x = mpmath.mpf(alpha), mpmath.mpf(gamma)
        mean = mpmath.digamma(a)
        peak = min(mpmath.log(x), mpmath.log(a))
        width = 1 / mpmath.sqrt(a) + 1 / a
        points = [peak - 120 / a, peak - 30 * width, peak - 8 * width, peak - 2 * width, peak, mpmath.log(x)]
        points = sorted(set(points))

        def score(y):  # score of log G times its density, divided by the density at log x
            return (y - mean) * mpmath.exp(a * (y - mpmath.log(x)) - mpmath.exp(y) + x)

        return float(-mpmath.quad(score, points))


@functools.cache
def quantiles(alpha: float) -> list[float]:
    """Return quantiles at probabilities from 1e-7 to 1 - 1e-7, rounded to float32."""
    below, above = scipy.special.gammaincinv(alpha, TAILS), scipy.special.gammainccinv(alpha, TAILS)
    return torch.tensor([*below, *above], dtype=torch.float32).tolist()


@pytest.mark.parametrize(
    ("alpha", "tolerance"),
    [
        *((alpha, 1e-5) for alpha in (0.5, 0.75, 1.0, 1.5, 2.5, 3.875)),
        *((4.0, 2e-4), (4.5, 1e-4), (6.0, 5e-5), (8.0, 2e-5), (16.0, 3e-6), (100.0, 1e-6), (1e4, 1e-6)),
    ],
)
def test_against_mpmath(alpha: float, tolerance: float) -> None:
    gamma = quantiles(alpha)
    exact = torch.tensor([exact_slope(alpha, x) for x in gamma], dtype=torch.float64)
    actual = log_gamma_slope(torch.full((len(gamma),), alpha), torch.tensor(gamma), 0.5).double()
    torch.testing.assert_close(actual, exact, rtol=tolerance, atol=0)


@pytest.mark.parametrize("count", [300, 30_000])
def test_against_quantiles(count: int) -> None:
    """Few and many rows, with all shapes mixed."""
    alpha = torch.logspace(math.log10(0.5), 7, count)[torch.randperm(count)]
    gamma = torch._standard_gamma(alpha)
    actual = log_gamma_slope(alpha, gamma, 0.5).double()
    torch.testing.assert_close(actual, log_slope(alpha, gamma), rtol=1.5e-4, atol=0)
    matrix = log_gamma_slope(alpha.view(3, -1).T, gamma.view(3, -1).T, 0.5)
    torch.testing.assert_close(matrix.T.reshape(-1).double(), actual, rtol=1e-6, atol=0)


@pytest.mark.parametrize("alpha", [0.5, 2.0, BELOW, LARGE_SHAPE, 50.0, 1e18])
def test_both_methods_everywhere_give_the_same(alpha: float) -> None:
    """On a GPU both methods are computed for all rows, and one result is chosen per row."""
    shapes = torch.tensor([alpha, 0.5, 4.0, 1e6])
    gamma = torch._standard_gamma(shapes)
    expected = log_gamma_slope(shapes, gamma, 0.5)
    chosen = torch.where(
        shapes < LARGE_SHAPE, gamma_draw._one_tail(shapes, gamma), gamma_draw._expansion(shapes, gamma)
    )
    torch.testing.assert_close(chosen, expected, rtol=1e-6, atol=0)
    assert chosen.isfinite().all()


def test_no_jump_where_the_expansion_begins() -> None:
    """Up to the error of the expansion."""
    gamma = torch.tensor(quantiles(LARGE_SHAPE))
    below = log_gamma_slope(torch.full_like(gamma, BELOW), gamma, 0.5)
    above = log_gamma_slope(torch.full_like(gamma, LARGE_SHAPE), gamma, 0.5)
    torch.testing.assert_close(below, above, rtol=2e-4, atol=0)


def slopes(alpha: list[float], gamma: list[float], least: float) -> Tensor:
    return log_gamma_slope(torch.tensor(alpha), torch.tensor(gamma), least)


def test_not_a_number_and_extremes() -> None:
    nan = math.nan
    assert slopes([nan, 2.0, nan, 9.0], [nan, nan, 2.0, 9.0], 0.5).isnan().tolist() == [True] * 3 + [False]
    assert slopes([nan, 9.0], [nan, 9.0], 4.0).isnan().tolist() == [True, False]
    # As G → 0 the probability is ∝ G^α/α, so dlog G/dα = (ψ(α) + 1/α - log G)/α.
    tiny = slopes([0.5, 0.5, 3.0], [0.0, 1e-30, 1e-20], 0.5)
    assert tiny.isfinite().all()
    expected = (scipy.special.digamma(1.5) + 30 * math.log(10)) / 0.5
    assert tiny[1].item() == pytest.approx(expected, rel=1e-5)
    assert slopes([3e38], [3e38], 4.0).item() == pytest.approx(1 / 3e38, rel=1e-5)
    assert log_gamma_slope(torch.empty(0, 2), torch.empty(0, 2), 0.5).shape == (0, 2)
