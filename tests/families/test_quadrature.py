"""The quadrature defaults of ``Family`` where the conformance suite does not compare them with closed forms."""

from __future__ import annotations

import mpmath
import pytest
import torch
from torch import Tensor

from helpers.examples import DOUBLE, FAMILIES, IDS, exponential_families
from powerspherical.families import SPHERICAL_CAUCHY, VON_MISES_FISHER, ExponentialFamily, Family, derived
from powerspherical.quadrature.cosine import Cosine
from powerspherical.testing import plain_twin

KAPPAS = {
    2: [0.5, 10.0, 1e4],
    3: [0.5, 1e4],
    10: [1.0, 50.0, 1e4],
    100: [5.0, 1e5],
    1000: [10.0, 1000.0, 1e5],
}

families = pytest.mark.parametrize("known", [cls.family for cls in FAMILIES], ids=IDS)
dims = pytest.mark.parametrize("dim", KAPPAS)


def assert_close(value: Tensor, expected: Tensor, floor: float = 0.0) -> None:
    """Compare relative errors. Values below ``floor`` are compared by their absolute error over ``floor``."""
    error = (value - expected).abs() / expected.abs().clamp(min=floor)
    assert error.max() <= 1e-8, f"{value.tolist()}, expected {expected.tolist()}"


@families
@dims
def test_functions_of_the_concentration(known: Family, dim: int) -> None:
    """At large and, for the rate, at small concentrations, which lose no digits."""
    kappa, plain = torch.tensor(KAPPAS[dim], dtype=DOUBLE), plain_twin(known)
    for name in ("relative_entropy", "mean_cosine", "mean_loss", "variance_cosine"):
        assert_close(getattr(plain, name)(kappa, dim), getattr(known, name)(kappa, dim))
    assert_close(plain.offset(kappa, dim), known.offset(kappa, dim), 1.0)
    small = torch.tensor([1e-6, 1e-3, 0.03], dtype=DOUBLE)
    assert_close(plain.relative_entropy(small, dim), known.relative_entropy(small, dim))


@families
@pytest.mark.parametrize("haversine", [0.0, 0.01, 0.5, 1.0])
def test_divergence_from_another_direction(known: Family, haversine: float) -> None:
    """And its derivatives, also at equal and at opposite directions."""
    plain = plain_twin(known)
    leaves = [torch.tensor(x, dtype=DOUBLE).requires_grad_() for x in ([2.0], [5.0], [haversine])]
    results = []
    for family in (plain, known):
        *kappas, h = leaves
        value = family.divergence(family, *kappas, Cosine(2 * h, 2 - 2 * h), 5)
        results.append((value.detach(), *torch.autograd.grad(value.sum(), leaves)))
    # At the ends the derivative of sin θ in the haversine is infinite and amplifies rounding errors.
    rtol = 1e-3 if haversine in (0.0, 1.0) else 1e-9
    torch.testing.assert_close(*results, rtol=rtol, atol=1e-9)
    for dim, kappas in KAPPAS.items():
        kappa = torch.tensor(kappas, dtype=DOUBLE)
        minus = torch.full_like(kappa, 2 * haversine)
        arguments = kappa, 1.3 * kappa.flip(0), Cosine(minus, 2 - minus), dim
        assert_close(plain.divergence(plain, *arguments), known.divergence(known, *arguments))


@pytest.mark.parametrize("dim", [2, 3, 10])
def test_divergence_from_a_heavy_tail(dim: int) -> None:
    kappa = torch.tensor([100.0, 1e3, 1e4], dtype=DOUBLE)
    zero = torch.zeros_like(kappa)
    arguments = kappa, 1e4 * torch.ones_like(kappa), Cosine(zero, zero + 2), dim
    found = plain_twin(VON_MISES_FISHER).divergence(SPHERICAL_CAUCHY, *arguments)
    expected = VON_MISES_FISHER.divergence(SPHERICAL_CAUCHY, *arguments)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=0)


@pytest.mark.parametrize("kappa", [0.5, 20.0])
def test_divergence_of_close_members_keeps_its_digits(kappa: float) -> None:
    """On the sphere of R³, where Ψ = log(sinh κ/κ): Ψ(κ) - Ψ(κ_p) - (κ-κ_p)Ψ'(κ_p)."""
    near = torch.tensor([1e-4, -1e-3, 0.01, -0.05, 0.3], dtype=DOUBLE)
    other, expected = kappa * (1 + near), []
    with mpmath.workdps(50):
        p = mpmath.mpf(kappa)
        for k in map(mpmath.mpf, other.tolist()):
            rest = mpmath.log(mpmath.sinh(k) / k) - mpmath.log(mpmath.sinh(p) / p)
            expected.append(float(rest - (k - p) * (mpmath.coth(p) - 1 / p)))
    zero = torch.zeros_like(other)
    found = VON_MISES_FISHER.divergence(VON_MISES_FISHER, zero + kappa, other, Cosine(zero, zero + 2), 3)
    torch.testing.assert_close(found, torch.tensor(expected, dtype=DOUBLE), rtol=1e-12, atol=0)


def plain_exponential(known: ExponentialFamily) -> ExponentialFamily:
    """Return an exponential family that defines nothing but its statistic."""

    class PlainExponential(ExponentialFamily):
        name = title = "plain exponential"

        def statistic(self, t: Cosine) -> Tensor:
            return known.statistic(t)

    return PlainExponential()


@exponential_families
@pytest.mark.parametrize("dim", [2, 3, 10, 100])
def test_moments_of_the_statistic(family: ExponentialFamily, dim: int) -> None:
    """The defaults hold at κ = 0 too, where the fit of a concentration starts."""
    kappa, plain = torch.tensor([0.0, 1e-3, 0.5, 10.0], dtype=DOUBLE), plain_exponential(family)
    mean = derived.mean_score(family, kappa, dim)
    assert_close(derived.mean_score(plain, kappa, dim), mean)
    assert_close(derived.information(plain, kappa, dim), derived.information(family, kappa, dim))
    assert_close(derived.from_mean_score(plain, mean, dim)[1:], kappa[1:])


def test_the_table_of_a_dimension_is_built_once() -> None:
    dims: list[int] = []

    class Counted(Family):
        name = title = "counted"

        def log_kernel(self, t: Cosine, kappa: Tensor, dim: int) -> Tensor:
            dims.append(dim)
            return -kappa * t.minus

    kappa = torch.tensor([0.5, 7.0])
    for dim in (3, 8):
        Counted().mean_cosine(kappa, dim)
        assert dims[-1] == dim
    quadratures = len(dims)
    for dim in (3, 8):
        Counted().relative_entropy(kappa, dim)
        derived.log_partition(Counted(), kappa, dim)
    assert len(dims) == quadratures


def test_a_family_has_few_methods() -> None:
    """The numbers that the documentation states."""
    methods = [
        {name for name in dir(kind) if callable(getattr(kind, name)) and name[0] != "_"}
        for kind in (Family, ExponentialFamily)
    ]
    assert [len(names) for names in methods] == [16, 18]
