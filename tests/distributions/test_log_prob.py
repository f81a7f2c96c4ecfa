"""log_prob from the mode to the antipode, from d = 2 to 1000 and κ = 0 to 1e6: values and derivatives."""

from __future__ import annotations

import math

import mpmath
import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from helpers.examples import DOUBLE, FLOAT, directions, dtypes, families
from powerspherical import PowerSpherical, SphericalCauchy
from powerspherical.engines import engine
from powerspherical.families.derived import log_density
from powerspherical.quadrature.cosine import Cosine

dims = pytest.mark.parametrize("dim", [2, 3, 64, 1000])
kappas = pytest.mark.parametrize("kappa", [0.0, 0.5, 10.0, 1e3, 1e6])
places = pytest.mark.parametrize("place", ["mode", "typical", "uniform", "near the antipode", "antipode"])

COUNT = 20


def points(family: type, dim: int, kappa: float, place: str) -> tuple[Tensor, Tensor]:
    """Mean directions and points at the named place, rounded to float32."""
    loc = directions(COUNT, dim)
    if place == "typical":
        x = family(loc, kappa).sample()
    elif place == "near the antipode":
        x = torch.nn.functional.normalize(1e-3 * directions(COUNT, dim, seed=2) - loc, dim=-1)
    else:
        x = {"mode": loc, "antipode": -loc, "uniform": directions(COUNT, dim, seed=2)}[place]
    return loc.float(), x.float()


def bend(family: type, kappa: float, dim: int) -> float:
    """-d²/dφ² log p at the mode, along a great circle."""
    if family is SphericalCauchy:
        return (dim - 1) * kappa * (kappa + 2) / 2
    return kappa / 2 if family is PowerSpherical else kappa


def tangent(x: Tensor, towards: Tensor) -> Tensor:
    """The unit tangent at x in the direction of another point."""
    return torch.nn.functional.normalize(towards - (towards * x).sum(-1, keepdim=True) * x, dim=-1)


@families
@dims
@kappas
@places
def test_single_precision_is_right(family: type, dim: int, kappa: float, place: str) -> None:
    """Against float64 on the same numbers, which are unit vectors in float32 only: not to be validated."""
    loc, x = points(family, dim, kappa, place)
    actual = family(loc, kappa).log_prob(x)
    expected = family(loc.double(), kappa, validate_args=False).log_prob(x.double())
    assert (actual.dtype, expected.dtype) == (FLOAT, DOUBLE)
    assert not expected.isnan().any()
    if place == "antipode" and family is PowerSpherical and kappa > 0:
        assert (actual == -math.inf).all()
        assert (expected == -math.inf).all()
    else:
        error = (actual.double() - expected).abs()
        assert (error <= 1e-5 * expected.abs().clamp(min=1)).all()


@families
@dims
@kappas
def test_is_a_function_of_the_cosine(family: type, dim: int, kappa: float) -> None:
    loc, x = directions(COUNT, dim), directions(COUNT, dim, seed=2)
    p = family(loc, kappa)
    t = (loc * x).sum(-1)
    if family is SphericalCauchy:  # ((1-ρ²)/‖x-ρμ‖²)^{d-1}
        rho = kappa / (kappa + 2)
        spread = (x - rho * loc).square().sum(-1)
        unnormalised = (dim - 1) * (math.log(4 * (1 + kappa) / (kappa + 2) ** 2) - torch.log(spread))
    else:
        unnormalised = kappa * torch.log1p(t) if family is PowerSpherical else kappa * t
    torch.testing.assert_close(p.log_prob(x), unnormalised - p.log_normalizer, rtol=1e-11, atol=1e-11)


@families
@dims
@kappas
@dtypes
@places
def test_gradients_are_finite_and_tangential(
    family: type, dim: int, kappa: float, dtype: torch.dtype, place: str
) -> None:
    unit = [torch.nn.functional.normalize(v.double(), dim=-1) for v in points(family, dim, kappa, place)]
    loc, x = (v.to(dtype).requires_grad_() for v in unit)
    concentration = torch.full((COUNT,), kappa, dtype=dtype, requires_grad=True)
    value = family(loc, concentration).log_prob(x)
    in_loc, in_x, in_kappa = torch.autograd.grad(value.sum(), (loc, x, concentration))
    assert not value.isnan().any()
    assert not in_kappa.isnan().any()
    # |d log p/dt|, by which a rounding error of t comes out along the point
    steepness = torch.full((COUNT,), kappa, dtype=DOUBLE)
    if family is PowerSpherical:
        steepness /= ((x + loc).detach().double().square().sum(-1) / 2).clamp(min=1e-30)
    if family is SphericalCauchy:
        weight = kappa * (kappa + 2) / 2
        steepness = (dim - 1) * weight / (1 + weight * (x - loc).detach().double().square().sum(-1) / 2)
    for gradient, point in ((in_loc, loc), (in_x, x)):
        assert gradient.isfinite().all()
        along = (gradient.double() * point.double()).sum(-1).abs()
        assert (along <= 4 * torch.finfo(dtype).eps * dim**0.5 * steepness).all()


@pytest.mark.parametrize("name", ["torch", "c"])
def test_power_spherical_next_to_the_antipode(name: str) -> None:
    """log p = log(κ+1) - log(4π) + κ log((1+t)/2) at d = 3. At the angle s from the antipode, 1+t is s²/2."""
    loc, angle = torch.eye(3, dtype=DOUBLE)[0], 10.0 ** torch.arange(-150, -8, dtype=DOUBLE)
    x = torch.stack((-torch.ones_like(angle), angle, torch.zeros_like(angle)), -1).requires_grad_()
    with engine(name):
        value = PowerSpherical(loc, 2.5).log_prob(x)
        (gradient,) = torch.autograd.grad(value.sum(), x)
    with mpmath.workdps(30):
        rest = mpmath.log(3.5) - mpmath.log(4 * mpmath.pi)
        exact = [float(rest + 5 * mpmath.log(mpmath.mpf(s) / 2)) for s in angle.tolist()]
    torch.testing.assert_close(value.detach(), torch.tensor(exact, dtype=DOUBLE), rtol=1e-15, atol=0)
    torch.testing.assert_close(gradient[:, 1], 5 / angle, rtol=1e-15, atol=0)


@pytest.mark.parametrize("angle", [1e-22, 1e-20, 1e-19])
def test_a_subnormal_distance_from_the_antipode_gives_no_nan(angle: float) -> None:
    loc, x, kappa = (torch.tensor(v, requires_grad=True) for v in ([1.0, 0, 0], [-1.0, angle, 0], 2.5))
    for name in ("torch", "c"):
        with engine(name):
            value = PowerSpherical(loc, kappa).log_prob(x)
            gradients = torch.autograd.grad(value, (loc, x, kappa))
        assert value < -180
        assert not any(gradient.isnan().any() for gradient in gradients)


@families
@dims
@pytest.mark.parametrize("kappa", [0.5, 10.0, 1e3, 1e6])
def test_gradients_along_great_circles(family: type, dim: int, kappa: float) -> None:
    """In x, in loc and in κ, those of the log-density as a function of the angle, at typical points."""
    loc = directions(COUNT, dim)
    x, concentration = family(loc, kappa).sample(), torch.full((COUNT,), kappa, dtype=DOUBLE)
    leaves = [v.requires_grad_() for v in (x, loc.clone(), concentration)]
    value = family(leaves[1], leaves[2]).log_prob(leaves[0])
    in_x, in_loc, in_kappa = torch.autograd.grad(value.sum(), leaves)
    # The angle, from the chord: 1-t = 2 sin²(φ/2).
    x, kappas = x.detach(), concentration.detach().requires_grad_()
    angle = (2 * torch.asin((x - loc).norm(dim=-1) / 2)).requires_grad_()
    t = Cosine(2 * torch.sin(angle / 2).square(), 2 * torch.cos(angle / 2).square())
    of_angle, expected = torch.autograd.grad(
        log_density(family.family, t, kappas, dim).sum(), (angle, kappas)
    )
    for gradient, start, other in ((in_x, x, loc), (in_loc, loc, x)):
        away = (gradient * tangent(start, other)).sum(-1)
        torch.testing.assert_close(away, -of_angle, rtol=1e-9, atol=1e-11 * kappa)
        torch.testing.assert_close(gradient.norm(dim=-1), of_angle.abs(), rtol=1e-9, atol=1e-9 * kappa)
    torch.testing.assert_close(in_kappa, expected, rtol=1e-9, atol=1e-11)


@families
@pytest.mark.parametrize(("dim", "kappa"), [(2, 0.5), (2, 10.0), (3, 0.7), (3, 5.0), (5, 30.0)])
def test_first_and_second_derivatives(family: type, dim: int, kappa: float) -> None:
    """On a parametrisation that keeps all arguments where they belong."""

    def density(x: Tensor, loc: Tensor, kappa: Tensor) -> Tensor:
        x, loc = (torch.nn.functional.normalize(v, dim=-1) for v in (x, loc))
        return family(loc, torch.nn.functional.softplus(kappa), validate_args=False).log_prob(x)

    inputs = (1.5 * directions(3, dim, seed=2), 0.7 * directions(dim), torch.tensor([kappa], dtype=DOUBLE))
    leaves = [v.requires_grad_() for v in inputs]
    assert gradcheck(density, leaves)
    assert gradgradcheck(density, leaves)


@families
@dims
@pytest.mark.parametrize("kappa", [0.5, 10.0, 1e6])
def test_curvature_at_the_mode(family: type, dim: int, kappa: float) -> None:
    """Along a great circle d²/dφ² log p = -κ/2 for (1+cos φ)^κ, -κ for e^{κ cos φ}, -(d-1)κ(κ+2)/2 for the Cauchy."""
    loc = directions(dim)
    direction = tangent(loc, directions(dim, seed=2))
    angle = torch.zeros((), dtype=DOUBLE, requires_grad=True)
    value = family(loc, kappa).log_prob(angle.cos() * loc + angle.sin() * direction)
    (first,) = torch.autograd.grad(value, angle, create_graph=True)
    (second,) = torch.autograd.grad(first, angle)
    assert abs(first.item()) <= 1e-12 * bend(family, kappa, dim)
    assert second.item() == pytest.approx(-bend(family, kappa, dim), rel=1e-12)
