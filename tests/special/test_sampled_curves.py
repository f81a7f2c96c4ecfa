"""Tables of any formula: von Mises–Fisher by Gauss–Jacobi quadrature, closed forms, and what has no table."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy.special import roots_jacobi
from torch import Tensor

from powerspherical.special import curves, moments, tables
from powerspherical.special.tables import Array, sampled_curves

KAPPA = torch.cat([torch.tensor([5e-324, 1e-100]), torch.logspace(-12, 18, 1001)]).double()
NAN_FROM = 1024.0


_numbers = itertools.count()


def registered(formula: Callable) -> tuple[str, Callable[..., Tensor]]:
    """Register the curves of a formula under a new key. Return it, and a function that evaluates them."""
    key = f"formula {next(_numbers)} of a test"
    tables.register(key, lambda dim: sampled_curves(formula, dim))
    return key, lambda kappa, name, dim, order=0: curves.value(kappa, key, name, dim, order)


def by_quadrature(kappa: Array, dim: float) -> dict[str, Array]:
    """Functions of the density ∝ e^{κ(t-1)}, with too few nodes for a large κ."""
    t, weights = roots_jacobi(200, (dim - 3) / 2, (dim - 3) / 2)
    kernel = weights / weights.sum() * np.exp(kappa[:, None] * (t - 1))
    total = kernel.sum(1)
    share = kernel / total[:, None]
    mean = share @ t
    functions = {
        "mean": mean,
        "loss": share @ (1 - t),
        "variance": (share * (t - mean[:, None]) ** 2).sum(1),
        "relative_entropy": kappa * mean - (np.log(total) + kappa),
    }
    return {name: np.where(kappa < NAN_FROM, values, np.nan) for name, values in functions.items()}


@pytest.mark.parametrize("dim", [2, 3, 16, 100])
def test_quadrature(dim: int) -> None:
    """The errors are those of the formula, whose entropy cancels for a small κ."""
    key, value = registered(by_quadrature)
    kappa = KAPPA[KAPPA < NAN_FROM]
    for name in ("mean", "loss", "variance", "relative_entropy"):
        for order in (0, 1) if name != "variance" else (0,):
            exact = curves.value(kappa, "von_mises_fisher", name, dim, order)
            error = 1e-8 if name == "relative_entropy" else 1e-9
            torch.testing.assert_close(value(kappa, name, dim, order), exact, rtol=error, atol=0)
            single = kappa.float()
            exact = curves.value(single.double(), "von_mises_fisher", name, dim, order).float()
            torch.testing.assert_close(value(single, name, dim, order), exact, rtol=3e-7, atol=1e-37)
        assert value(torch.tensor([NAN_FROM, 1e30]), name, dim).isnan().all()
    nats = value(kappa[300:], "relative_entropy", dim)
    found = curves.inverse(nats, key, "relative_entropy", dim)
    torch.testing.assert_close(value(found, "relative_entropy", dim), nats, rtol=1e-13, atol=0)


@pytest.mark.parametrize("dim", [2, 5, 1000, 10**6])
def test_moments(dim: int) -> None:
    """A power at both ends; the slope of the variance of T has a formula of its own."""
    _, value = registered(moments.power_spherical)
    exact = curves.value(KAPPA, "power_spherical", "information", dim)
    torch.testing.assert_close(value(KAPPA, "variance", dim), exact, rtol=5e-15, atol=0)
    exact = curves.value(KAPPA, "power_spherical", "information", dim, 1)
    torch.testing.assert_close(value(KAPPA, "variance", dim, 1), exact, rtol=1e-11, atol=0)
    single = value(KAPPA.float(), "variance", dim, 1)
    torch.testing.assert_close(single, exact.float(), rtol=3e-7, atol=1e-37)


def test_closed_forms() -> None:
    """Leading powers 0, 1 and 2, a zero, and growth like a constant, a logarithm and a power."""
    forms = {
        "mean": lambda kappa: kappa / (kappa + 2),
        "loss": lambda kappa: 2 / (kappa + 2),
        "relative_entropy": lambda kappa: np.log1p(0.25 * kappa * (kappa / (1 + kappa))),
        "parabola": lambda kappa: kappa * (3 + kappa),
        "crossing": lambda kappa: (kappa - 7) / (kappa + 5),
        "nothing": lambda kappa: 0 * kappa,
    }
    _, value = registered(lambda kappa, dim: {name: form(kappa) for name, form in forms.items()})
    kappa = torch.cat([KAPPA, torch.tensor([2.0**64, 1e25]).double()])
    for name, form in forms.items():
        exact = torch.from_numpy(form(kappa.numpy()))
        floor = 1e-14 if name == "crossing" else 0
        torch.testing.assert_close(value(kappa, name, 2), exact, rtol=2e-14, atol=floor)
    slope = 2 / (kappa + 2) ** 2
    torch.testing.assert_close(value(kappa, "mean", 2, 1), slope, rtol=1e-9, atol=0)  # as 1 - mean is there
    slope = kappa / ((1 + kappa) * (kappa + 2))
    torch.testing.assert_close(value(kappa, "relative_entropy", 2, 1), slope, rtol=1e-9, atol=0)


def test_functions_without_a_table() -> None:
    """They are left out, and the others stay."""
    bad = {
        "root": np.sqrt,
        "kink": lambda kappa: 1 + np.abs(kappa - 3.3),
        "oscillation": lambda kappa: 2 + np.sin(kappa),
        "noise": lambda kappa: 1 + 1e-7 * (np.frexp(kappa * 12345.678)[0] - 0.75),
        "nan": lambda kappa: np.nan * kappa,
    }
    functions = {**bad, "good": np.log1p}
    found = sampled_curves(lambda kappa, dim: {name: f(kappa) for name, f in functions.items()}, 3)
    assert list(found) == ["good"]
    assert sampled_curves(lambda kappa, dim: {"root": np.sqrt(kappa)}, 3) == {}


def test_register() -> None:
    key, _ = registered(lambda kappa, dim: {"loss": dim / (dim + kappa)})
    assert curves.has(key, "loss", 3)
    assert not curves.has(key, "mean", 3)
    with pytest.raises(ValueError, match=f"'{key}' are registered already"):
        tables.register(key, dict)
    build = functools.partial(sampled_curves, by_quadrature)
    for _ in range(2):  # the same function may be registered again
        tables.register("registered twice", build)


def test_old_tables_are_dropped() -> None:
    built: list[float] = []
    tables.register("counted", lambda dim: built.append(dim) or {})
    for dim in range(2, 102):
        tables.curves("counted", dim)
    tables.curves("counted", 101)
    assert built == list(range(2, 102))
    tables.curves("counted", 2)
    assert built[-1] == 2
