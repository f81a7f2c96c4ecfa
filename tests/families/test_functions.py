"""Normalisers, moments and KL to the uniform against mpmath, for d from 2 to 1e7 and κ from 0 to 1e9; float32."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from helpers import mpmath_tables
from helpers.examples import family_objects
from powerspherical.families import POWER_SPHERICAL, ExponentialFamily, Family, derived
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
        "1 - E t": Quantity(family.mean_loss, "mean_complement"),
        "Var T": Quantity(partial(derived.information, family), "log_normalizer_second"),
        "log-partition": Quantity(
            partial(derived.log_partition, family), "log_normalizer", floor=kappa_over_dim if power else zero
        ),
    }
    if power:
        found["D'"] = Quantity(mean_log1p, "mean_log1p", "mean_log1p_prime", one_over_dim)
    return found


def assert_close(
    name: str, kappa: Tensor, value: Tensor, expected: Tensor, floor: Tensor, tolerance: float
) -> None:
    """|value - expected| ≤ tolerance · max(|expected|, floor), everywhere."""
    error = (value - expected).abs()
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
        leaf = kappa.clone().requires_grad_()
        value = quantity.function(leaf, dim)
        floor = quantity.floor(kappa, dim)
        assert_close(name, kappa, value.detach(), table[quantity.column], floor, 2e-15)
        if quantity.slope:
            (slope,) = torch.autograd.grad(value.sum(), leaf)
            assert_close(f"slope of {name}", kappa, slope, table[quantity.slope], zero(kappa, dim), 2e-15)


@pytest.mark.parametrize(("family", "dim"), CASES)
def test_float32_agrees_with_the_table(family: str, dim: int) -> None:
    """KL, means and variances, at the κ that are float32 numbers."""
    table = mpmath_tables.columns("functions.json", family, dim)
    kappa = table["kappa"].float()
    for name in ("KL", "E t", "1 - E t", "Var T"):
        function, column, *_ = quantities(mpmath_tables.FAMILIES[family])[name]
        kept = (kappa.double() == table["kappa"]) & (table[column] > 1e-34)  # others may underflow
        assert kept.sum() >= 4
        found = function(kappa, dim).double()
        torch.testing.assert_close(found[kept], table[column][kept], rtol=2e-7, atol=0)


@family_objects
@pytest.mark.parametrize("name", ["relative_entropy", "mean_cosine", "mean_loss", "variance_cosine"])
def test_float32_agrees_with_float64(family: Family, name: str) -> None:
    kappa = torch.logspace(-9, 9, 20_000)
    for dim in (2, 3, 16, 768, 10**6):
        found, exact = (getattr(family, name)(k, dim).double() for k in (kappa, kappa.double()))
        kept = exact > 1e-34
        torch.testing.assert_close(found[kept], exact[kept], rtol=2e-7, atol=0)
