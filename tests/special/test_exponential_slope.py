"""d artanh(t)/dκ of von Mises–Fisher without quadrature, against mpmath, and without jumps between the formulas."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import pytest
import torch
from torch import Tensor

from helpers import mpmath_tables
from helpers.examples import DOUBLE, FLOAT, dtypes
from powerspherical.families import VON_MISES_FISHER
from powerspherical.special import exponential_slope as module
from powerspherical.special._slope_series import correction
from powerspherical.special.exponential_slope import exponential_slope_double, recurrence, series

TOLERANCE = {FLOAT: 5e-6, DOUBLE: 1e-12}


def slopes(one_minus_t: Tensor, one_plus_t: Tensor, kappa: Tensor, dim: int) -> Tensor:
    return VON_MISES_FISHER.rapidity_slope(one_minus_t, one_plus_t, kappa, kappa, dim)


def quantiles(kappa: Tensor, dim: int, least: float = 1e-7) -> tuple[Tensor, Tensor, Tensor]:
    """Return 1-t, 1+t and κ at probabilities from ``least`` to 1 - ``least``, for each κ, flattened, in float64."""
    log_odds = torch.linspace(-1, 1, 21, dtype=DOUBLE) * math.log(1 / least - 1)
    log_odds, kappa = (x.reshape(-1) for x in torch.meshgrid(log_odds, kappa.double(), indexing="ij"))
    ends = VON_MISES_FISHER.quantile(torch.sigmoid(log_odds), torch.sigmoid(-log_odds), kappa, dim)
    return *ends, kappa


@dtypes
@pytest.mark.parametrize("dim", mpmath_tables.dims("slopes.json", "von_mises_fisher"))
def test_against_mpmath(dim: int, dtype: torch.dtype) -> None:
    table = mpmath_tables.columns("slopes.json", "von_mises_fisher", dim)
    near, mode = table["near"], table["sign"] > 0
    ends = torch.where(mode, near, 2 - near), torch.where(mode, 2 - near, near)
    value = slopes(*(x.to(dtype) for x in (*ends, table["kappa"])), dim)
    assert value.dtype == dtype
    torch.testing.assert_close(value.double(), table["slope"], rtol=TOLERANCE[dtype], atol=0)


@dtypes
@pytest.mark.parametrize("dim", [2, 3, 5, 7, 8, 12, 20, 31, 32, 48, 63, 64, 100, 1000])
def test_against_the_quadrature(dim: int, dtype: torch.dtype) -> None:
    """On a finer grid than the table, with all concentrations in one call."""
    few = torch.tensor([0.0, 1e-4, 0.3, 2.0, 7.0, 11.0, 15.9, 17.0, 24.0, 33.0, 39.9, 41.0, 70.0, 300.0])
    kappa = torch.cat([few, torch.logspace(3, 9, 5)])
    minus, plus, kappa = (x.to(dtype) for x in quantiles(kappa, dim))
    value = slopes(minus, plus, kappa, dim)
    # In float32, 1-t and 1+t do not sum to 2. The smaller one determines t.
    minus, plus = minus.double(), plus.double()
    ends = torch.where(minus < plus, minus, 2 - plus), torch.where(minus < plus, 2 - minus, plus)
    exact = VON_MISES_FISHER.implicit_slope(*ends, kappa.double(), dim)
    # At d = 1000 and large κ the quadrature itself is off by 1.2e-12.
    tolerance = max(TOLERANCE[dtype], 2e-15 * dim)
    torch.testing.assert_close(value.double(), exact, rtol=tolerance, atol=0)


@pytest.mark.parametrize("dim", [2, 3, 7, 8, 31, 63])
def test_improbable_rows_in_float64(dim: int) -> None:
    """In the far lower tail, where the series is not accurate, the quadrature is used."""
    minus, plus, kappa = quantiles(torch.tensor([3.0, 39.0, 45.0, 60.0, 1e3]), dim, least=1e-25)
    _, known = exponential_slope_double(minus, plus, kappa, dim)
    assert known.all() == (dim == 63)
    exact = VON_MISES_FISHER.implicit_slope(minus, plus, kappa, dim)
    torch.testing.assert_close(slopes(minus, plus, kappa, dim), exact, rtol=3e-12, atol=0)


@dtypes
@pytest.mark.parametrize(
    ("dim", "border"), [(2, 16.0), (7, 16.0), (2, 40.0), (7, 40.0), (8, 40.0), (31, 40.0), (63, 40.0)]
)
def test_no_jump_in_kappa(dim: int, border: float, dtype: torch.dtype) -> None:
    """At a fixed t the slope is smooth in κ across a border: its third differences vanish."""
    step = {FLOAT: 1e-2, DOUBLE: 1e-4}[dtype]
    minus, plus, _ = quantiles(torch.tensor([border]), dim)
    at = [
        slopes(*(x.to(dtype) for x in (minus, plus, torch.full_like(minus, border + place * step))), dim)
        for place in (-1.5, -0.5, 0.5, 1.5)
    ]
    below, near_below, near_above, above = (x.double() for x in at)
    jump = (above - 3 * near_above + 3 * near_below - below).abs() / 3
    assert (jump / below).max() <= TOLERANCE[dtype]


def test_formulas_agree_where_the_dimension_changes_them() -> None:
    """At each border in d, compare the formula below the border with the formula above it, in the same dimension."""

    def agree(one: Tensor, other: Tensor, dtype: torch.dtype) -> None:
        torch.testing.assert_close(one.double(), other.double(), rtol=TOLERANCE[dtype], atol=0)

    low, every = torch.tensor([0.5, 5.0, 20.0, 39.0]), torch.tensor([0.5, 30.0, 50.0, 1e3, 1e6])
    minus, plus, kappa = quantiles(low, module.LOW_DIM)
    down = recurrence(minus, plus, kappa, module.LOW_DIM, module.LOW_DIM + 80)
    agree(series(plus.float(), kappa.float(), module.LOW_DIM, module.TERMS), down, FLOAT)

    _, plus, kappa = quantiles(every, module.TWO_TERMS_DIM)
    two, three = (series(plus.float(), kappa.float(), module.TWO_TERMS_DIM, terms) for terms in (2, 3))
    agree(two, three, FLOAT)

    minus, plus, kappa = quantiles(low, module._DOUBLE_DIM)
    down = recurrence(minus, plus, kappa, module._DOUBLE_DIM, module._DOUBLE_DIM + 80)
    agree(series(plus, kappa, module._DOUBLE_DIM, module._DOUBLE_TERMS), down, DOUBLE)


def test_order_of_the_series() -> None:
    """Each further term reduces the error by a factor of about 1/d."""
    minus, plus, kappa = quantiles(torch.tensor([50.0]), 100)
    exact = VON_MISES_FISHER.implicit_slope(minus, plus, kappa, 100)
    errors = [(series(plus, kappa, 100, terms) / exact - 1).abs().max().item() for terms in (1, 2, 3, 4, 5)]
    for error, better in itertools.pairwise(errors):
        assert better < error / 10


def test_corrections() -> None:
    """P₁ = (1+g)(1-g-y/2), and all P_k vanish at κ = 0, where w = 1/(d-1)."""
    first = {(0, 0): 1, (0, 2): -1, (1, 0): Fraction(-1, 2), (1, 1): Fraction(-1, 2)}
    assert correction(1) == first
    for order in range(1, 13):
        constant = [x for (power, _), x in correction(order).items() if power == 0]  # y = 0 and g = 1
        assert sum(constant) == 0


@dtypes
@pytest.mark.parametrize("dim", [2, 5, 40, 1000])
def test_extreme_concentrations(dim: int, dtype: torch.dtype) -> None:
    largest = torch.finfo(dtype).max
    kappa = torch.tensor([1.0, math.nan, 1e15, 1e18, 1e30, 1e37, largest], dtype=dtype)
    minus = torch.where(kappa > 1e3, (dim - 1) / 2 / kappa.double(), 0.5).to(dtype)
    value = slopes(minus, 2 - minus, kappa, dim)
    assert value.isnan().tolist() == kappa.isnan().tolist()
    # At large κ, 1-t is proportional to 1/κ: d artanh(t)/dκ = 1/(2κ).
    torch.testing.assert_close(2 * kappa[2:6] * value[2:6], torch.ones(4, dtype=dtype), rtol=5e-6, atol=0)
    assert 0 <= value[-1] < 1e-37


@dtypes
def test_concentrations_out_of_range_raise_nothing(dtype: torch.dtype) -> None:
    """Without validation κ can be any number, so the number of steps must always be valid."""
    kappa = torch.tensor([-math.inf, -5.0, math.inf, math.nan], dtype=dtype)
    for dim in (2, 100):
        for rows in (kappa, kappa[:1], kappa[1:2], kappa[2:3], kappa[3:]):
            half = torch.full_like(rows, 0.5)
            assert slopes(half, 2 - half, rows, dim).shape == rows.shape


@dtypes
def test_shapes(dtype: torch.dtype) -> None:
    """Any shape and stride, more rows than a block, and no rows."""
    one_minus_t = torch.rand(3, 7000, dtype=dtype) + 0.5
    kappa = torch.tensor([[1.0], [50.0], [20.0]], dtype=dtype).expand(3, 7000)
    for dim in (3, 40, 70):
        whole = slopes(one_minus_t, 2 - one_minus_t, kappa, dim)
        turned = slopes(one_minus_t.T, 2 - one_minus_t.T, kappa.T, dim)
        torch.testing.assert_close(turned.T, whole)
        one = slopes(one_minus_t[1, 5], 2 - one_minus_t[1, 5], kappa[1, 5], dim)
        torch.testing.assert_close(one, whole[1, 5])
        empty = torch.empty(0, dtype=dtype)
        assert slopes(empty, empty, empty, dim).shape == (0,)
