"""Functions of κ of the spherical Cauchy family, and its divergences, against mpmath."""

from __future__ import annotations

import pytest
import torch

from helpers import mpmath_tables
from powerspherical import SphericalCauchy, special
from powerspherical.families import SPHERICAL_CAUCHY
from powerspherical.quadrature.cosine import Cosine
from powerspherical.special import curves

TABLE = "cauchy.json"
TOLERANCE = {torch.float64: 2e-15, torch.float32: 2e-7}
QUANTITIES = {
    "kl_uniform": SPHERICAL_CAUCHY.relative_entropy,
    "mean_complement": SPHERICAL_CAUCHY.mean_loss,
    "variance": SPHERICAL_CAUCHY.variance_cosine,
    "log_loss": lambda kappa, dim: curves.value(kappa, "spherical_cauchy", "log_loss", dim),
}

dtypes = pytest.mark.parametrize("dtype", TOLERANCE, ids=["float64", "float32"])
dims = pytest.mark.parametrize("dim", mpmath_tables.dims(TABLE, "moments"))


@dtypes
@dims
@pytest.mark.parametrize("name", QUANTITIES)
def test_moments(name: str, dim: int, dtype: torch.dtype) -> None:
    table = mpmath_tables.columns(TABLE, "moments", dim)
    kappa, expected = table["kappa"].to(dtype), table[name]
    # In float32 we skip κ that are rounded and variances that underflow.
    exact = kappa.double() == table["kappa"]
    kept = exact & (expected.abs() > 1e3 * torch.finfo(dtype).tiny)
    assert kept.sum() >= 4
    found = QUANTITIES[name](kappa, dim).double()
    torch.testing.assert_close(found[kept], expected[kept], rtol=TOLERANCE[dtype], atol=0)


@dims
def test_mean(dim: int) -> None:
    table = mpmath_tables.columns(TABLE, "moments", dim)
    found = SPHERICAL_CAUCHY.mean_cosine(table["kappa"], dim)
    torch.testing.assert_close(found, 1 - table["mean_complement"], rtol=0, atol=1e-15)


@dtypes
@dims
def test_inverse_of_the_mean(dim: int, dtype: torch.dtype) -> None:
    table = mpmath_tables.columns(TABLE, "moments", dim)
    complement = table["mean_complement"].to(dtype)
    kept = table["mean_complement"] < 0.99  # elsewhere 1 - complement has lost digits
    found = SPHERICAL_CAUCHY.from_mean_cosine(1 - complement, complement, dim)
    torch.testing.assert_close(
        found.double()[kept], table["kappa"][kept], rtol=8 * torch.finfo(dtype).eps, atol=0
    )


@dtypes
@dims
def test_divergence_of_two_members(dim: int, dtype: torch.dtype) -> None:
    """d up to 10⁶ and ρ up to 1 - 10⁻⁹, at any angle. We call the family, since float32 vectors round such angles."""
    table = mpmath_tables.columns(TABLE, "pairs", dim, "pair_columns")
    half = table["theta"] / 2
    angle = Cosine(2 * torch.sin(half).square(), 2 * torch.cos(half).square())
    family = SphericalCauchy.family
    found = family.divergence(family, table["kappa_p"], table["kappa_q"], angle, dim)
    torch.testing.assert_close(found.to(dtype).double(), table["kl"], rtol=TOLERANCE[dtype], atol=0)


@dtypes
@pytest.mark.parametrize("dim", [2, 3, 64, 10**4])
def test_inverse_of_the_mean_of_the_log(dim: int, dtype: torch.dtype) -> None:
    mean = torch.cat((torch.zeros(1), torch.logspace(-12, 1.8, 50))).to(dtype)
    found = special.mean_log_boost(special.mean_log_boost_inverse(mean, dim), dim)
    torch.testing.assert_close(found, mean, rtol={torch.float64: 4e-15, torch.float32: 8e-7}[dtype], atol=0)
