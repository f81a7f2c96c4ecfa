"""The functions of a family do not jump where they switch from one formula to another.

The branch points are copied from the source. If one moves there, it must move here.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from helpers.continuity import DOUBLE, assert_continuous_in_dim, assert_no_jump
from helpers.examples import dtypes, exponential_families, family_objects
from powerspherical.families import POWER_SPHERICAL, VON_MISES_FISHER, Family
from powerspherical.families import _overlap as overlap
from powerspherical.families._precise import PreciseFamily

# ---------------------------------------------------------------------------------------------- branches in κ


@dtypes
@family_objects
@pytest.mark.parametrize("dim", [2, 3, 10, 64, 1001])
def test_mean_logarithm_at_beta(family: Family, dim: int, dtype: torch.dtype) -> None:
    assert_no_jump(lambda kappa: family.mean_log1p_cosine(kappa, dim), [(dim - 1) / 2], dtype)


@dtypes
@exponential_families
@pytest.mark.parametrize("dim", [2, 3, 4, 10, 64, 1001])
def test_end_of_the_overlap_quadrature(family: PreciseFamily, dim: int, dtype: torch.dtype) -> None:
    """The last node is determined by κ, by β or by both, with switches at E/κy = ½ and -log(1-E/κy) = E/β.

    The quadrature error changes there by a few 1e-13.
    """
    edge = overlap._EXPONENT
    ends = torch.tensor([2 * edge, edge / -math.expm1(-2 * edge / (dim - 1))], dtype=DOUBLE)
    assert_no_jump(lambda kappa: overlap.mean_log_cosine(family, kappa, dim), ends, dtype, 1e-13)
    for y in (0.9, 0.2):
        chord = torch.tensor(1 - y, dtype=dtype)
        assert_no_jump(
            lambda kappa, chord=chord: family.misalignment(kappa, chord, dim), ends / y, dtype, 1e-13
        )


@dtypes
@family_objects
@pytest.mark.parametrize("dim", [2, 3, 64])
def test_concentration_at_one_nat(family: Family, dim: int, dtype: torch.dtype) -> None:
    assert_no_jump(lambda nats: family.concentration_from_relative_entropy(nats, dim), [1.0], dtype)


@dtypes
def test_power_statistic_at_the_equator(dtype: torch.dtype) -> None:
    assert_no_jump(lambda one_minus_t: POWER_SPHERICAL.statistic(one_minus_t, 2 - one_minus_t), [1.0], dtype)


@dtypes
def test_power_shrink_where_the_base_halves(dtype: torch.dtype) -> None:
    kappa, lower = torch.tensor(3.0, dtype=dtype), torch.tensor([0.01, 0.5], dtype=dtype)
    assert_no_jump(lambda gap: POWER_SPHERICAL.log_shrink(kappa, lower, gap, 5), lower, dtype)


# ---------------------------------------------------------------------------------------------- branches in d

#: Functions that step down from Debye's series: the number of steps changes at every even d.
DEBYE = {
    "mean_log1p_cosine": VON_MISES_FISHER.mean_log1p_cosine,
    "mean_log1m_cosine": VON_MISES_FISHER.mean_log1m_cosine,
    "misalignment": lambda kappa, dim: VON_MISES_FISHER.misalignment(kappa, torch.full_like(kappa, 0.3), dim),
}


@dtypes
@pytest.mark.parametrize("dim", [4, 6, 20, 22, 40, 42])
@pytest.mark.parametrize("name", DEBYE)
def test_steps_from_debyes_series(name: str, dim: int, dtype: torch.dtype) -> None:
    assert_continuous_in_dim(DEBYE[name], dim, dtype)


@family_objects
@pytest.mark.parametrize("dim", [2, 10])
def test_tails_where_the_rule_changes_with_the_dimension(family: Family, dim: int) -> None:
    """d = 2 has no factor sin^{d-2} φ. For d < 10 nodes may concentrate at the antipode."""
    one_minus_t = torch.linspace(0.01, 1.99, 100, dtype=DOUBLE)
    kappa = torch.full_like(one_minus_t, 1.5)
    here, there = (
        torch.stack(family.log_tails(one_minus_t, 2 - one_minus_t, kappa, d))
        for d in (dim, math.nextafter(dim, 3 if dim == 2 else 0))
    )
    torch.testing.assert_close(here, there, rtol=0, atol=1e-11)


# ------------------------------------------------------------------------------------- windows and sides of tails


def cosines(family: Family, kappa: float, dim: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return 1-t, 1+t and κ on a fine grid of the logit of (1+t)/2, several widths around the median."""
    concentration, half = torch.tensor(kappa, dtype=DOUBLE), torch.tensor(0.5, dtype=DOUBLE)
    one_minus_t, one_plus_t = family.quantile(half, half, concentration, dim)
    logit = torch.log(one_plus_t / one_minus_t) + torch.linspace(-6, 6, 3001, dtype=DOUBLE) * math.sqrt(
        4 / (dim - 1)
    )
    return 2 * torch.sigmoid(-logit), 2 * torch.sigmoid(logit), concentration.expand(3001)


def largest_jump(values: Tensor) -> float:
    """Estimate the largest jump. Sixth differences of a smooth function are rounding errors; a jump s adds 10 s."""
    differences = values
    for _ in range(6):
        differences = differences.diff()
    return (differences / values[3:-3].abs().clamp(min=1)).abs().max().item() / 10


@family_objects
@pytest.mark.parametrize("dim", [2, 3, 5, 9, 10, 64, 1000])
@pytest.mark.parametrize("kappa", [0.1, 1.0, 10.0, 1e3, 1e5])
def test_tails_are_smooth_in_the_cosine(family: Family, kappa: float, dim: int) -> None:
    """The grid crosses the mean, where the side changes, the mode, where the window changes, and the median."""
    one_minus_t, one_plus_t, kappas = cosines(family, kappa, dim)
    log_cdf, log_sf = family.log_tails(one_minus_t, one_plus_t, kappas, dim)
    flow = family.implicit_slope(one_minus_t, one_plus_t, kappas, dim) * one_minus_t * one_plus_t
    assert log_cdf[0] < -5
    assert log_sf[-1] < -5
    assert largest_jump(log_cdf) <= 2e-11
    assert largest_jump(log_sf) <= 2e-11
    assert largest_jump(torch.log(flow)) <= 2e-11


@family_objects
@pytest.mark.parametrize("dim", [2, 3, 64])
@pytest.mark.parametrize("kappa", [0.0, 1.0, 1e3])
def test_quantile_at_the_median(family: Family, kappa: float, dim: int) -> None:
    """At the median the smaller tail changes from the lower to the upper one."""
    u = torch.tensor([0.5 - 1e-9, 0.5 + 1e-9], dtype=DOUBLE, requires_grad=True)
    one_minus_t, _ = family.quantile(u, 1 - u, torch.full_like(u, kappa).detach(), dim)
    (slope,) = torch.autograd.grad(one_minus_t.sum(), u)
    change = (one_minus_t[1] - one_minus_t[0]).item()
    assert change == pytest.approx(2e-9 * slope.mean().item(), abs=1e-11 * one_minus_t[0].item())
