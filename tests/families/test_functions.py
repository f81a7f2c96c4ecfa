"""Normalisers, moments and KL to the uniform against mpmath, for d from 2 to 1e7 and κ from 0 to 1e9."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from helpers import mpmath_tables
from helpers.engines import Engine
from powerspherical.families import POWER_SPHERICAL, ExponentialFamily
from powerspherical.special import mean_log1p

Function = Callable[[Tensor, int], Tensor]


def zero(kappa: Tensor, dim: int) -> Tensor:
    return torch.zeros_like(kappa)


def one_over_dim(kappa: Tensor, dim: int) -> Tensor:
    return torch.full_like(kappa, 1 / dim)


def kappa_over_dim(kappa: Tensor, dim: int) -> Tensor:
    return kappa.clamp(max=1) / dim


class Quantity(NamedTuple):
    """A function of κ and d, its column in the table, and the column of its κ-derivative.

    ``floor`` is the scale of errors near a zero of the function.
    """

    function: Function
    column: str
    slope: str | None = None
    floor: Function = zero


def quantities(family: ExponentialFamily) -> dict[str, Quantity]:
    power = family is POWER_SPHERICAL
    found = {
        "KL": Quantity(family.relative_entropy, "kl_uniform", "kl_uniform_prime"),
        "E t": Quantity(family.mean_cosine, "mean", "mean_prime"),
        "1 - E t": Quantity(family.mean_cosine_complement, "mean_complement"),
        "Var T": Quantity(family.variance_statistic, "log_normalizer_second"),
        "log-partition": Quantity(
            family.log_partition, "log_normalizer", floor=kappa_over_dim if power else zero
        ),
        "E log(1+t)": Quantity(family.mean_log1p_cosine, "mean_log1p", "mean_log1p_prime", one_over_dim),
    }
    if power:
        found["D'"] = Quantity(mean_log1p, "mean_log1p", "mean_log1p_prime", one_over_dim)
    return found


def with_slope(function: Function, kappa: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    kappa = kappa.detach().requires_grad_()
    value = function(kappa, dim)
    (slope,) = torch.autograd.grad(value.sum(), kappa)
    return value.detach(), slope


def assert_close(
    name: str, kappa: Tensor, value: Tensor, expected: Tensor, floor: Tensor, tolerance: float
) -> None:
    """|value - expected| ≤ tolerance · max(|expected|, floor), everywhere."""
    error = (value.double() - expected).abs()
    allowed = tolerance * torch.maximum(expected.abs(), floor)
    worst = (error - allowed).argmax()
    assert (error <= allowed).all(), (
        f"{name} at κ = {kappa[worst]}: {value[worst]}, expected {expected[worst]}, error {error[worst]:.2e}"
    )


CASES = [(name, dim) for name in mpmath_tables.FAMILIES for dim in mpmath_tables.dims("functions.json", name)]


@pytest.mark.parametrize(("family", "dim"), CASES)
def test_float64_agrees_with_the_table(family: str, dim: int) -> None:
    table = mpmath_tables.columns("functions.json", family, dim)
    kappa = table["kappa"]
    for name, quantity in quantities(mpmath_tables.FAMILIES[family]).items():
        value, slope = with_slope(quantity.function, kappa, dim)
        assert_close(name, kappa, value, table[quantity.column], quantity.floor(kappa, dim), 1e-12)
        if quantity.slope:
            assert_close(f"slope of {name}", kappa, slope, table[quantity.slope], zero(kappa, dim), 1e-12)


@pytest.mark.parametrize(("family", "dim"), CASES)
def test_float32_agrees_with_float64_at_the_same_concentration(engine: Engine, family: str, dim: int) -> None:
    if engine.is_interpreted:
        pytest.skip("tests/kernels/test_functions.py")
    kappa = mpmath_tables.columns("functions.json", family, dim)["kappa"].float().to(engine.device)
    for name, quantity in quantities(mpmath_tables.FAMILIES[family]).items():
        value, slope = (x.cpu() for x in with_slope(quantity.function, kappa, dim))
        exact, exact_slope = with_slope(quantity.function, kappa.cpu().double(), dim)
        assert value.dtype == slope.dtype == torch.float32, name
        tolerance = 2e-6 if name in ("KL", "E t") else 5e-6
        assert_close(name, kappa, value, exact, quantity.floor(kappa.cpu().double(), dim), tolerance)
        if quantity.slope:
            assert_close(f"slope of {name}", kappa, slope, exact_slope, zero(exact, dim), 5e-6)


@pytest.mark.parametrize("family", mpmath_tables.FAMILIES)
def test_a_batch_is_computed_element_by_element(family: str) -> None:
    kappa = torch.tensor([[0.0, 0.3, 7.0], [41.0, 300.0, 1e8]], dtype=torch.float64)
    for name, quantity in quantities(mpmath_tables.FAMILIES[family]).items():
        one_by_one = torch.stack([quantity.function(x, 5) for x in kappa.flatten()]).view(2, 3)
        torch.testing.assert_close(quantity.function(kappa, 5), one_by_one, rtol=1e-14, atol=1e-15, msg=name)
