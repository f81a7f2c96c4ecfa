"""The marginals of t = μᵀx as distributions on [-1, 1]: against mpmath, at the ends, in both dtypes, differentiated."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from helpers import mpmath_tables
from powerspherical import (
    PowerSphericalMarginal,
    RotationallySymmetric,
    SphericalCauchyMarginal,
    VonMisesFisherMarginal,
)
from powerspherical.distributions.marginal import Marginal

DOUBLE = torch.float64
MARGINALS = {
    "power_spherical": PowerSphericalMarginal,
    "von_mises_fisher": VonMisesFisherMarginal,
    "spherical_cauchy": SphericalCauchyMarginal,
}
DIMS = mpmath_tables.dims("marginals.json", "power_spherical")

families = pytest.mark.parametrize("family", MARGINALS)
families_of_the_table = pytest.mark.parametrize("family", mpmath_tables.FAMILIES)
dims = pytest.mark.parametrize("dim", DIMS)


def representable(family: str, dim: int) -> tuple[Marginal, dict[str, Tensor]]:
    """The rows whose t, rounded to a double, is still the place of the table, and the marginals there.

    Rounding t moves log F by eps·pdf/F, and log pdf by eps/(1±t) times about d.
    """
    table = mpmath_tables.columns("marginals.json", family, dim)
    near = torch.minimum(table["one_minus_t"], 1 + table["t"])
    hazard = torch.exp(table["log_pdf"] - torch.minimum(table["log_cdf"], table["log_sf"]))
    chosen = torch.finfo(DOUBLE).eps * torch.maximum(hazard, dim / near) < 2e-9
    assert chosen.sum() > 10
    rows = {name: column[chosen] for name, column in table.items()}
    return MARGINALS[family](dim, rows["kappa"]), rows


@families_of_the_table
@dims
def test_probabilities_and_density(family: str, dim: int) -> None:
    marginal, rows = representable(family, dim)
    torch.testing.assert_close(marginal.log_cdf(rows["t"]), rows["log_cdf"], rtol=0, atol=1e-8)
    torch.testing.assert_close(marginal.log_sf(rows["t"]), rows["log_sf"], rtol=0, atol=1e-8)
    torch.testing.assert_close(marginal.cdf(rows["t"]), rows["log_cdf"].exp(), rtol=1e-8, atol=0)
    torch.testing.assert_close(marginal.log_prob(rows["t"]), rows["log_pdf"], rtol=0, atol=1e-8)


@families_of_the_table
@dims
def test_entropy(family: str, dim: int) -> None:
    table = mpmath_tables.columns("marginals.json", f"{family}_entropy", dim, "entropy_columns")
    entropy = MARGINALS[family](dim, table["kappa"]).entropy()
    error = (entropy - table["entropy"]).abs() / table["entropy"].abs().clamp(min=1)
    assert error.max() <= 1e-9


@families
@pytest.mark.parametrize("dim", [2, 3, 10, 64])
def test_moments_by_quadrature(family: str, dim: int) -> None:
    """Mean, variance and entropy are those of ``log_prob``, by the trapezium rule in u, t = tanh u."""
    marginal = MARGINALS[family](dim, torch.tensor([0.0, 2.0, 30.0], dtype=DOUBLE))
    u = torch.linspace(-18, 18, 20_001, dtype=DOUBLE).unsqueeze(-1)
    t = torch.tanh(u).clamp(-1 + 1e-15, 1 - 1e-15)
    log_prob = marginal.log_prob(t)
    mass = log_prob.exp() / torch.cosh(u).square() * (u[1] - u[0])
    torch.testing.assert_close(mass.sum(0), torch.ones(3, dtype=DOUBLE), rtol=1e-6, atol=0)
    torch.testing.assert_close((mass * t).sum(0), marginal.mean, rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(
        (mass * (t - marginal.mean).square()).sum(0), marginal.variance, rtol=1e-6, atol=0
    )
    torch.testing.assert_close(-(mass * log_prob).sum(0), marginal.entropy(), rtol=1e-5, atol=1e-5)


@families
@pytest.mark.parametrize("dim", [2, 3, 64])
@pytest.mark.parametrize("kappa", [0.0, 3.0])
def test_ends(family: str, dim: int, kappa: float) -> None:
    marginal = MARGINALS[family](dim, torch.tensor(kappa, dtype=DOUBLE))
    ends = torch.tensor([-1.0, 1.0], dtype=DOUBLE)
    assert marginal.log_cdf(ends).tolist() == [-math.inf, 0.0]
    assert marginal.log_sf(ends).tolist() == [0.0, -math.inf]
    assert marginal.cdf(ends).tolist() == [0.0, 1.0]
    assert marginal.icdf((ends + 1) / 2).tolist() == [-1.0, 1.0]
    assert not marginal.log_prob(ends).isnan().any()
    if dim == 2 and kappa == 0:  # the angle is uniform
        t = torch.linspace(-0.99, 0.99, 12, dtype=DOUBLE)
        torch.testing.assert_close(marginal.cdf(t), 1 - torch.acos(t) / math.pi, rtol=1e-12, atol=0)
        torch.testing.assert_close(marginal.icdf(marginal.cdf(t)), t, rtol=1e-12, atol=1e-14)


def test_density_at_the_lower_end() -> None:
    """On the circle (1+t)/2 has the law Beta(κ+1/2, 1/2): its density at 0 is infinite, 1/2, or zero."""
    for dtype in (torch.float32, DOUBLE):
        marginal = PowerSphericalMarginal(2, torch.tensor([0.25, 0.5, 1.0], dtype=dtype))
        expected = torch.tensor([math.inf, math.log(0.25), -math.inf], dtype=dtype)
        torch.testing.assert_close(marginal.log_prob(torch.tensor(-1.0, dtype=dtype)), expected)


@families
@pytest.mark.parametrize("dim", [2, 3, 64, 768])
def test_float32(family: str, dim: int) -> None:
    """Results in float32, as accurate as rounding the float64 ones."""
    kappa = torch.tensor([[0.1], [3.0], [200.0]])
    marginal, exact = MARGINALS[family](dim, kappa), MARGINALS[family](dim, kappa.double())
    t, probability = torch.tensor([-0.3, 0.2, 0.9]), torch.tensor([1e-6, 0.3, 0.99])
    results = {
        "log_cdf": (marginal.log_cdf(t), exact.log_cdf(t.double())),
        "log_sf": (marginal.log_sf(t), exact.log_sf(t.double())),
        "cdf": (marginal.cdf(t), exact.cdf(t.double())),
        "icdf": (marginal.icdf(probability), exact.icdf(probability.double())),
        "log_prob": (marginal.log_prob(t), exact.log_prob(t.double())),
        "mean": (marginal.mean, exact.mean),
        "variance": (marginal.variance, exact.variance),
        "entropy": (marginal.entropy(), exact.entropy()),
    }
    assert marginal.log_prob(t.double()).dtype == marginal.icdf(probability.double()).dtype == DOUBLE
    for name, (value, expected) in results.items():
        assert value.dtype == torch.float32, name
        # exp(log_cdf) magnifies the rounding of a logarithm of -100; log_prob that of 1-t by d.
        loss = {"cdf": 1e-5, "log_prob": 1e-6 * dim}.get(name, 2e-6)
        torch.testing.assert_close(
            value.double(), expected, rtol=max(2e-6, loss), atol=loss, msg=lambda m, n=name: f"{n}: {m}"
        )


@families
@pytest.mark.parametrize("dim", [2, 3, 10, 50])
def test_gradients(family: str, dim: int) -> None:
    def of(method: str, value: Tensor, kappa: Tensor) -> Tensor:
        return getattr(MARGINALS[family](dim, kappa), method)(value)

    kappa = torch.tensor([0.3, 5.0, 40.0], dtype=DOUBLE, requires_grad=True)
    t = torch.tensor([-0.4, 0.1, 0.7], dtype=DOUBLE, requires_grad=True)
    probability = torch.tensor([0.02, 0.5, 0.9], dtype=DOUBLE, requires_grad=True)
    for method, value in (("log_cdf", t), ("log_sf", t), ("cdf", t), ("icdf", probability), ("log_prob", t)):
        assert gradcheck(partial(of, method), (value, kappa), rtol=1e-6, atol=1e-8), method
    assert gradgradcheck(partial(of, "log_prob"), (t, kappa), rtol=1e-6, atol=1e-8)
    assert gradcheck(lambda kappa: MARGINALS[family](dim, kappa).entropy(), kappa, rtol=1e-6, atol=1e-8)
    assert gradgradcheck(lambda kappa: MARGINALS[family](dim, kappa).entropy(), kappa, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("family", [None, "power_spherical"])
def test_without_a_family(family: object) -> None:
    with pytest.raises(TypeError, match=r"Marginal needs family=…, such as .*POWER_SPHERICAL, or .*; got"):
        Marginal(3, 1.0, family=family)


def test_a_distribution_without_a_family() -> None:
    with pytest.raises(TypeError, match=r"RotationallySymmetric has no family: .* such as PowerSpherical"):
        RotationallySymmetric(torch.eye(3)[0], 1.0)
