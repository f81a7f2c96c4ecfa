"""No jump where a special function passes from one formula to another.

The branch points are those of the sources: if one moves there, it moves here.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from powerspherical.special.inverse import concentration_from_relative_entropy
from torch import Tensor

import mpmath_tables
from powerspherical.special import (
    EXPONENTIAL_TILT,
    POWER_TILT,
    Tilt,
    bessel,
    bessel_ratio,
    bessel_ratio_complement,
    bessel_ratio_inverse,
    bessel_ratio_slope,
    digamma_difference,
    gamma,
    implicit_gradient,
    log_hyp0f1,
    log_tails,
    mean_log1m_cosine,
    mean_log1p,
    mean_log1p_cosine,
    misalignment,
    overlap,
    quantile,
    trigamma_difference,
)
from powerspherical.special.bessel import exponential_relative_entropy
from powerspherical.special.gamma import power_relative_entropy
from powerspherical.special.sphere import log_cosine_normalizer

FLOAT, DOUBLE = torch.float32, torch.float64
TOLERANCE = {DOUBLE: 3e-14, FLOAT: 1e-6}
STEP = {DOUBLE: 1e-8, FLOAT: 1e-3}  # far enough to be on both sides of the branch for certain

Function = Callable[[Tensor], Tensor]

dtypes = pytest.mark.parametrize("dtype", [DOUBLE, FLOAT], ids=["float64", "float32"])
tilts = pytest.mark.parametrize("tilt", mpmath_tables.TILTS.values(), ids=mpmath_tables.TILTS)


def assert_no_jump(
    function: Function, points: Tensor | list[float], dtype: torch.dtype, tolerance: float = 0.0
) -> None:
    """Between x(1-h) and x(1+h) a function changes as its derivative says."""
    x = torch.as_tensor(points, dtype=dtype).clone().requires_grad_()
    value = function(x)
    (slope,) = torch.autograd.grad(value.sum(), x)
    below, above = (x * (1 - STEP[dtype])).detach(), (x * (1 + STEP[dtype])).detach()
    jump = (function(above) - function(below)).double() - slope.double() * (above - below).double()
    worst = (jump / value.double()).abs().max().item()
    assert worst <= max(tolerance, TOLERANCE[dtype]), f"{worst:.1e}"


# ---------------------------------------------------------------------------------------------- branches in κ


def excess_switches(dim: int, dtype: torch.dtype) -> list[float]:
    """The κ > 0 with κ(1-κ)/((2a+κ)(2a+1+κ)) = -0.4, for each a of the recurrence."""
    beta = (dim - 1) / 2
    steps, _, _ = gamma._shift(beta, dtype)
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
    for tilt in mpmath_tables.TILTS.values():
        assert_no_jump(lambda kappa, tilt=tilt: mean_log1p_cosine(tilt, kappa, dim), beta, dtype)


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
    """Below, A itself is subtracted from, and above its complement."""
    half = torch.tensor([0.5], dtype=DOUBLE)
    kappa = bessel_ratio_inverse(half, dim)
    assert_no_jump(lambda kappa: exponential_relative_entropy(kappa, dim), kappa, dtype)
    assert_no_jump(lambda ratio: bessel_ratio_inverse(ratio, dim), half, dtype)


@dtypes
@tilts
@pytest.mark.parametrize("dim", [2, 3, 4, 10, 64, 1001])
def test_end_of_the_overlap_quadrature(tilt: Tilt, dim: int, dtype: torch.dtype) -> None:
    """Where the end of the nodes is no longer set by κ, and where by β: E/κy = ½ and -log(1-E/κy) = E/β.

    The error of the quadrature itself changes there, by a few 1e-13.
    """
    edge = overlap._EXPONENT
    ends = torch.tensor([2 * edge, edge / -math.expm1(-2 * edge / (dim - 1))], dtype=DOUBLE)
    assert_no_jump(lambda kappa: overlap.mean_log_cosine(tilt, kappa, dim), ends, dtype, 1e-13)
    for y in (0.9, 0.2):
        chord = torch.tensor(1 - y, dtype=dtype)
        assert_no_jump(
            lambda kappa, chord=chord: misalignment(tilt, kappa, chord, dim), ends / y, dtype, 1e-13
        )


@dtypes
@tilts
@pytest.mark.parametrize("dim", [2, 3, 64])
def test_concentration_at_one_nat(tilt: Tilt, dim: int, dtype: torch.dtype) -> None:
    assert_no_jump(lambda nats: concentration_from_relative_entropy(tilt, nats, dim), [1.0], dtype)


@dtypes
def test_power_statistic_at_the_equator(dtype: torch.dtype) -> None:
    assert_no_jump(lambda one_minus_t: POWER_TILT.statistic(one_minus_t, 2 - one_minus_t), [1.0], dtype)


@dtypes
def test_power_shrink_where_the_base_halves(dtype: torch.dtype) -> None:
    kappa, lower = torch.tensor(3.0, dtype=dtype), torch.tensor([0.01, 0.5], dtype=dtype)
    assert_no_jump(lambda gap: POWER_TILT.log_shrink(kappa, lower, gap, 5), lower, dtype)


# ---------------------------------------------------------------------------------------------- branches in d

KAPPAS = torch.tensor([1e-3, 0.4, 3.0, 30.0, 500.0, 1e6], dtype=DOUBLE)

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
    "mean_log1p_cosine": lambda kappa, dim: mean_log1p_cosine(EXPONENTIAL_TILT, kappa, dim),
    "mean_log1m_cosine": lambda kappa, dim: mean_log1m_cosine(EXPONENTIAL_TILT, kappa, dim),
    "misalignment": lambda kappa, dim: misalignment(
        EXPONENTIAL_TILT, kappa, torch.full_like(kappa, 0.3), dim
    ),
}


def assert_continuous_in_dim(
    function: Callable[[Tensor, float], Tensor], dim: int, dtype: torch.dtype
) -> None:
    """At d and at the number before it, which is an ambient dimension on paper; 1/d is the scale near a zero."""
    kappa = KAPPAS.to(dtype)
    here, before = function(kappa, dim).double(), function(kappa, math.nextafter(dim, 0)).double()
    worst = ((here - before) / here.abs().clamp(min=1e-2 / dim)).abs().max().item()
    assert worst <= TOLERANCE[dtype], f"{worst:.1e}"


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


@tilts
@pytest.mark.parametrize("dim", [2, 10])
def test_tails_where_the_rule_changes_with_the_dimension(tilt: Tilt, dim: int) -> None:
    """d = 2 has no sin^{d-2} φ, and from d = 10 on no nodes crowd at the antipode."""
    one_minus_t = torch.linspace(0.01, 1.99, 100, dtype=DOUBLE)
    kappa = torch.full_like(one_minus_t, 1.5)
    here, there = (
        torch.stack(log_tails(tilt, one_minus_t, 2 - one_minus_t, kappa, d))
        for d in (dim, math.nextafter(dim, 3 if dim == 2 else 0))
    )
    torch.testing.assert_close(here, there, rtol=0, atol=1e-11)


# ------------------------------------------------------------------------------------- windows and sides of tails


def cosines(tilt: Tilt, kappa: float, dim: int) -> tuple[Tensor, Tensor, Tensor]:
    """1-t, 1+t and κ on a fine grid of the logit of (1+t)/2, some widths to both sides of the median."""
    concentration, half = torch.tensor(kappa, dtype=DOUBLE), torch.tensor(0.5, dtype=DOUBLE)
    one_minus_t, one_plus_t = quantile(tilt, half, half, concentration, dim)
    logit = torch.log(one_plus_t / one_minus_t) + torch.linspace(-6, 6, 3001, dtype=DOUBLE) * math.sqrt(
        4 / (dim - 1)
    )
    return 2 * torch.sigmoid(-logit), 2 * torch.sigmoid(logit), concentration.expand(3001)


def largest_jump(values: Tensor) -> float:
    """Sixth differences vanish to rounding for a smooth function on this grid; a jump by s makes one of 10 s."""
    differences = values
    for _ in range(6):
        differences = differences.diff()
    return (differences / values[3:-3].abs().clamp(min=1)).abs().max().item() / 10


@tilts
@pytest.mark.parametrize("dim", [2, 3, 5, 9, 10, 64, 1000])
@pytest.mark.parametrize("kappa", [0.1, 1.0, 10.0, 1e3, 1e5])
def test_tails_are_smooth_in_the_cosine(tilt: Tilt, kappa: float, dim: int) -> None:
    """Across the mean, where the side changes; the mode and the antipode, where the window does; and the median."""
    one_minus_t, one_plus_t, kappas = cosines(tilt, kappa, dim)
    log_cdf, log_sf = log_tails(tilt, one_minus_t, one_plus_t, kappas, dim)
    flow = implicit_gradient(tilt, one_minus_t, one_plus_t, kappas, dim)
    assert log_cdf[0] < -5
    assert log_sf[-1] < -5
    assert largest_jump(log_cdf) <= 2e-11
    assert largest_jump(log_sf) <= 2e-11
    assert largest_jump(torch.log(flow)) <= 2e-11


@tilts
@pytest.mark.parametrize("dim", [2, 3, 64])
@pytest.mark.parametrize("kappa", [0.0, 1.0, 1e3])
def test_quantile_at_the_median(tilt: Tilt, kappa: float, dim: int) -> None:
    """The smaller tail is the one below, then the one above."""
    u = torch.tensor([0.5 - 1e-9, 0.5 + 1e-9], dtype=DOUBLE, requires_grad=True)
    one_minus_t, _ = quantile(tilt, u, 1 - u, torch.full_like(u, kappa).detach(), dim)
    (slope,) = torch.autograd.grad(one_minus_t.sum(), u)
    change = (one_minus_t[1] - one_minus_t[0]).item()
    assert change == pytest.approx(2e-9 * slope.mean().item(), abs=1e-11 * one_minus_t[0].item())
