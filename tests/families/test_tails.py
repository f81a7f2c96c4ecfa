"""Tail probabilities, density, quantiles and dt/dκ of t = μᵀx against mpmath, out to probabilities of 1e-30.

Their ends and second derivatives are tested in ``tests/distributions/test_marginals.py``.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from helpers import mpmath_tables
from helpers.examples import family_objects
from powerspherical.families import POWER_SPHERICAL, Family, derived
from powerspherical.quadrature import law
from powerspherical.quadrature.cosine import Cosine

PARTS = {**mpmath_tables.FAMILIES, "power_spherical_extremes": POWER_SPHERICAL}
CASES = [(part, dim) for part in PARTS for dim in mpmath_tables.dims("marginals.json", part)]


class Rows(NamedTuple):
    """Rows of the table. Of 1-t and 1+t, one is the exact value in the table and the other is 2 minus it."""

    family: Family
    dim: int
    t: Cosine
    kappa: Tensor
    log_cdf: Tensor
    log_sf: Tensor
    log_pdf: Tensor
    dt_dkappa: Tensor


@pytest.fixture(params=CASES, ids=lambda case: f"{case[0]}-{case[1]}")
def rows(request: pytest.FixtureRequest) -> Rows:
    part, dim = request.param
    table = mpmath_tables.columns("marginals.json", part, dim)
    t = table["t"]
    one_minus_t = torch.where(t > 0, table["one_minus_t"], 1 - t)
    one_plus_t = torch.where(t > 0, 2 - table["one_minus_t"], 1 + t)
    values = (table[name] for name in ("kappa", "log_cdf", "log_sf", "log_pdf", "dt_dkappa"))
    return Rows(PARTS[part], dim, Cosine(one_minus_t, one_plus_t), *values)


def assert_close(
    name: str, rows: Rows, value: Tensor, expected: Tensor, relative: bool = False, tolerance: float = 1e-8
) -> None:
    error = (value - expected).abs() / (expected.abs() if relative else 1)
    error = torch.where(value == expected, 0.0, error)
    worst = error.nan_to_num(nan=torch.inf).argmax()
    assert error[worst] <= tolerance, (
        f"{name} at κ = {rows.kappa[worst]:g}, 1-t = {rows.t.minus[worst]}, 1+t = {rows.t.plus[worst]}: "
        f"{value[worst]}, expected {expected[worst]}, error {error[worst]:.1e}"
    )


def test_tail_probabilities(rows: Rows) -> None:
    """The relative error is at most 1e-8, down to probabilities of 1e-30."""
    log_cdf, log_sf = derived.log_tails(rows.family, rows.t, rows.kappa, rows.dim)
    assert_close("log_cdf", rows, log_cdf, rows.log_cdf)
    assert_close("log_sf", rows, log_sf, rows.log_sf)


def test_slopes_of_the_tails_are_hazards(rows: Rows) -> None:
    """d log F/dt = pdf/F and d log(1-F)/dt = -pdf/(1-F). A step in t changes both 1-t and 1+t."""
    t = Cosine(*(end.requires_grad_() for end in rows.t))
    tails = derived.log_tails(rows.family, t, rows.kappa, rows.dim)
    for sign, value, expected in zip((1, -1), tails, (rows.log_cdf, rows.log_sf), strict=True):
        minus, plus = torch.autograd.grad(value.sum(), t, retain_graph=True)
        assert_close("the hazard", rows, torch.log(sign * (plus - minus)), rows.log_pdf - expected)


def test_implicit_slope(rows: Rows) -> None:
    tolerance = max(1e-12, 1e-15 * rows.dim)
    for slope in (
        rows.family.slope(rows.t, None, rows.kappa, rows.dim),
        law.slope(rows.family, *rows[2:4], rows.dim),
    ):
        value = slope * rows.t.minus * rows.t.plus
        assert_close("dt/dκ", rows, value, rows.dt_dkappa, relative=True, tolerance=tolerance)


def test_slope_of_the_tails_in_kappa(rows: Rows) -> None:
    """dF/dκ = -pdf · dt/dκ."""
    kappa = rows.kappa.requires_grad_()
    log_cdf, log_sf = derived.log_tails(rows.family, rows.t, kappa, rows.dim)
    (slope,) = torch.autograd.grad(log_cdf.sum(), kappa, retain_graph=True)
    expected = -torch.exp(rows.log_pdf - rows.log_cdf) * rows.dt_dkappa
    assert_close("d log F/dκ", rows, slope, expected, relative=True)
    (slope,) = torch.autograd.grad(log_sf.sum(), kappa)
    expected = torch.exp(rows.log_pdf - rows.log_sf) * rows.dt_dkappa
    assert_close("d log(1-F)/dκ", rows, slope, expected, relative=True)


def test_quantiles(rows: Rows) -> None:
    """Quantiles recover the points of the table, for probabilities down to 5e-7 in either tail."""
    inside = torch.minimum(rows.log_cdf, rows.log_sf) > math.log(5e-7)
    u, complement, kappa = rows.log_cdf.exp()[inside], rows.log_sf.exp()[inside], rows.kappa[inside]
    t = derived.quantile(rows.family, u, complement, kappa, rows.dim)
    log_cdf, log_sf = derived.log_tails(rows.family, t, kappa, rows.dim)
    torch.testing.assert_close(log_cdf, rows.log_cdf[inside], rtol=0, atol=1e-8)
    torch.testing.assert_close(log_sf, rows.log_sf[inside], rtol=0, atol=1e-8)
    # The smaller of 1-t and 1+t is exact in the table.
    torch.testing.assert_close(torch.minimum(*t), torch.minimum(*rows.t)[inside], rtol=1e-6, atol=0)


@family_objects
def test_slope_of_a_draw_keeps_shape_and_dtype(family: Family) -> None:
    one_minus_t = torch.linspace(0.1, 1.9, 70_000).reshape(7, 100, 100)  # several chunks
    kappa = torch.full_like(one_minus_t, 2.0)
    value = Family.slope(family, Cosine(one_minus_t, 2 - one_minus_t), kappa, kappa, 5)
    assert value.shape == one_minus_t.shape
    assert value.dtype == torch.float32
    last = one_minus_t[-1, -1].double()
    exact = family.slope(Cosine(last, 2 - last), None, torch.full_like(last, 2.0), 5)
    torch.testing.assert_close(value[-1, -1], exact.float(), rtol=1e-6, atol=0)


@family_objects
@pytest.mark.parametrize("name", ["log_tails", "quantile"])
def test_single_precision_is_rounded_double(family: Family, name: str) -> None:
    """Values and gradients."""
    is_tail = name == "log_tails"
    first = torch.tensor([0.001, 0.3, 0.6, 0.999])
    results = []
    for dtype in (torch.float32, torch.float64):
        kappa = torch.tensor([0.1, 7.0, 150.0, 3000.0]).to(dtype).requires_grad_()
        place = first.to(dtype), ((2.0 if is_tail else 1.0) - first).to(dtype)
        if is_tail:
            values = derived.log_tails(family, Cosine(*place), kappa, 12)
        else:
            values = derived.quantile(family, *place, kappa, 12)
        results.append((*values, *torch.autograd.grad(values[0].sum(), kappa)))
    for single, double in zip(*results, strict=True):
        assert single.dtype == torch.float32
        torch.testing.assert_close(single, double.float(), rtol=2e-7, atol=0)
