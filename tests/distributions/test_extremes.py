"""Far out: concentrations, probabilities and vectors near the limits of floating point."""

import math
from collections.abc import Callable

import mpmath
import numpy as np
import pytest
import torch
from torch import Tensor
from torch.distributions import kl_divergence, transform_to
from torch.func import grad_and_value, vmap

from helpers.examples import directions, families
from helpers.statistical import assert_mean
from powerspherical import HypersphericalUniform, PowerSpherical, SphericalCauchy, special
from powerspherical.engines import engine


@families
@pytest.mark.parametrize("dim", [3, 64])
@pytest.mark.parametrize("kappa", [1e6, 1e9])
def test_gradient_along_the_mean_direction(family: type, dim: int, kappa: float) -> None:
    """In float32, for the loss μᵀx, where the tangential part of its gradient is nothing but rounding."""
    if family is SphericalCauchy:
        kappa = kappa**0.5  # the angles are then those of the others
        dim = max(dim, 8)  # below d = 6 the variance of dt/dκ comes from the few points far out
    loc = directions(dim, dtype=torch.float32)
    concentration = torch.full((20_000,), kappa, requires_grad=True)
    (slopes,) = torch.autograd.grad((family(loc, concentration).rsample() * loc).sum(), concentration)
    exact = torch.tensor(kappa, dtype=torch.float64, requires_grad=True)
    pole = torch.eye(dim, dtype=torch.float64)[0]
    (slope,) = torch.autograd.grad(family(pole, exact).marginal.mean, exact)
    assert_mean(slopes.double() / slope, 1.0)


@families
@pytest.mark.parametrize("dim", [2, 3, 8, 12, 22, 64])
def test_huge_concentrations(family: type, dim: int) -> None:
    """KL grows by β log 10 for each factor of ten, and draws have an angle left where 1-t would underflow.

    The spherical Cauchy has angles of order 1/κ instead of 1/√κ, and reaches the same with the root of κ.
    """
    kappas = 10.0 ** (torch.arange(15.0, 37.0, 3.0) / (2 if family is SphericalCauchy else 1))
    p = family(torch.eye(dim)[0], kappas)
    steps = kl_divergence(p, HypersphericalUniform(dim)).diff()
    torch.testing.assert_close(
        steps, torch.full_like(steps, 1.5 * (dim - 1) * math.log(10)), rtol=2e-5, atol=0
    )
    draws = p.sample((20,))
    assert draws[..., 1:].abs().sum(-1).min() > 0
    torch.testing.assert_close(p.mean[:, 0], torch.ones_like(kappas))


def eagerly(density: Callable[[Tensor], Tensor], kappa: Tensor) -> tuple[Tensor, Tensor]:
    leaf = kappa.clone().requires_grad_()
    value = density(leaf)
    return value.detach(), torch.autograd.grad(value.sum(), leaf)[0]


def by_vmap(density: Callable[[Tensor], Tensor], kappa: Tensor) -> tuple[Tensor, Tensor]:
    slope, value = vmap(grad_and_value(density))(kappa)
    return value, slope


def compiled(density: Callable[[Tensor], Tensor], kappa: Tensor) -> tuple[Tensor, Tensor]:
    return eagerly(torch.compile(density, backend="aot_eager", fullgraph=True), kappa)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*Function'> should not be instantiated:DeprecationWarning")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("mode", [eagerly, by_vmap, compiled])
def test_a_spherical_cauchy_whose_square_overflows(mode: Callable, dtype: torch.dtype) -> None:
    """log p = (d-1) (log(1+κ) - log(1 + (1-t)κ(κ+2)/2)) - log(area), from κ = 10¹⁹ on in float32, by 40 digits."""
    loc, x = torch.tensor([[1.0, 0.0, 0.0], [0.28, 0.96, 0.0]], dtype=dtype)
    kappa = torch.tensor([1.0, 1e10, 1e19, 1e20, 1e30, 1e38], dtype=dtype)
    value, slope = mode(lambda k: SphericalCauchy(loc, k, validate_args=False).log_prob(x), kappa)
    with mpmath.workdps(40):
        minus = mpmath.mpf((x.double() - loc.double()).square().sum().item()) / 2
        for k, v, s in zip(kappa.tolist(), value.tolist(), slope.tolist(), strict=True):
            spread = 1 + minus * mpmath.mpf(k) * (mpmath.mpf(k) + 2) / 2
            expected = 2 * (mpmath.log1p(k) - mpmath.log(spread)) - mpmath.log(4 * mpmath.pi)
            expected_slope = 2 * (1 / (1 + mpmath.mpf(k)) - minus * (1 + mpmath.mpf(k)) / spread)
            assert v == pytest.approx(float(expected), rel=8 * torch.finfo(dtype).eps, abs=0)
            assert s == pytest.approx(float(expected_slope), rel=16 * torch.finfo(dtype).eps, abs=0)


@families
def test_caps_of_all_and_nothing(family: type) -> None:
    kappa = torch.tensor(2.0, requires_grad=True)
    angles = family(torch.eye(3)[0], kappa).cap_angle(torch.tensor([0.0, 0.5, 1.0]))
    torch.testing.assert_close(angles[[0, 2]], torch.tensor([0.0, math.pi]))
    whole = family(torch.eye(3, dtype=torch.float64)[0], 2.0).cap_angle(
        torch.tensor(1.0, dtype=torch.float64)
    )
    assert whole.item() == math.pi  # to all digits
    ends = torch.autograd.grad(angles[0] + angles[2], kappa, retain_graph=True)[0]
    assert ends == 0
    assert torch.autograd.grad(angles.sum(), kappa)[0] < 0


@families
@pytest.mark.parametrize(("dim", "area"), [(2, 2.0), (3, math.pi)])
def test_tiny_caps(family: type, dim: int, area: float) -> None:
    """Their probability is the density at the mode times their area."""
    kappa = torch.tensor([0.0, 1.0, 1e3], dtype=torch.float64)
    p = family(torch.eye(dim, dtype=torch.float64)[0], kappa)
    for angle in (1e-12, 1e-100, 1e-147):
        expected = area * angle ** (dim - 1) * p.log_prob(p.loc).exp()
        torch.testing.assert_close(p.cap_probability(angle), expected, rtol=1e-10, atol=0)
        torch.testing.assert_close(p.cap_angle(expected), torch.full_like(kappa, angle), rtol=1e-8, atol=0)


def test_the_way_onto_the_sphere() -> None:
    """The origin goes to the first unit vector."""
    onto, direction = transform_to(PowerSpherical.support), torch.tensor([0.6, 0.8, 0.0])
    for size in (1e-30, 1e-23, 1.0, 1e30):
        torch.testing.assert_close(onto(size * direction), direction)
    start = torch.zeros(3, requires_grad=True)
    point = onto(start)
    torch.testing.assert_close(point.detach(), torch.eye(3)[0])
    (slope,) = torch.autograd.grad(point[1], start)
    torch.testing.assert_close(slope, torch.eye(3)[1])


@families
@pytest.mark.parametrize("dim", [2, 3, 8, 13, 359, 4096])
def test_differences_of_large_terms(family: type, dim: int) -> None:
    """Entropy and normaliser in float32, next to a zero of theirs too: to 2e-6 of the larger of their two terms."""
    loc = torch.eye(1, dim)[0]
    kappas = torch.cat([torch.zeros(1), torch.logspace(-3, 9, 2000), torch.tensor([1228.3])])
    q, exact = family(loc, kappas), family(loc.double(), kappas.double())
    area = HypersphericalUniform(dim, dtype=torch.float64).entropy()
    for value, expected in ((q.entropy(), exact.entropy()), (q.log_normalizer, exact.log_normalizer)):
        larger = torch.maximum((expected - area).abs(), area.abs())
        assert ((value.double() - expected).abs() <= 2e-6 * larger).all()


@families
def test_rates_that_no_concentration_reaches(family: type) -> None:
    with pytest.raises(ValueError, match=r"nats=500 is too large: no concentration in torch.float32 .* d=3"):
        family.from_kl(torch.eye(3)[0], 500.0)
    rate = torch.tensor(200.0, dtype=torch.float64)
    with pytest.raises(ValueError, match=r"nats=200 is too large: .* torch.float32 .*; use loc.double\(\)"):
        family.from_kl(torch.eye(3)[0], rate)
    assert family.from_kl(torch.eye(3)[0].double(), rate).concentration.isfinite()


@pytest.mark.parametrize("wrong", [torch.tensor(1), torch.tensor(1.0, dtype=torch.float16), 1.0])
def test_special_functions_name_what_they_take(wrong: Tensor | float) -> None:
    with pytest.raises(ValueError, match="kappa must be a float32 or float64 tensor, got"):
        special.bessel_ratio(kappa=wrong, dim=3)


def test_numbers_of_numpy() -> None:
    assert HypersphericalUniform(np.int64(3)).dim == 3
    assert PowerSpherical(torch.eye(3)[0], np.float32(2)).concentration == 2


@families
@pytest.mark.parametrize("value", [0.5, torch.full((2,), 0.5, dtype=torch.bfloat16)], ids=["number", "batch"])
def test_half_precision_in_and_out(family: type, value: Tensor | float) -> None:
    """Half-precision directions and rates give half-precision draws, of a concentration with more digits."""
    loc = directions(2, 3, dtype=torch.bfloat16)
    for make in (family.from_kl, family.from_mean_length):
        q = make(loc, value)
        assert q.sample().dtype == q.mean.dtype == torch.bfloat16
    rate = kl_divergence(family.from_kl(loc, value), HypersphericalUniform(3))
    torch.testing.assert_close(rate, torch.full((2,), 0.5), rtol=2e-6, atol=0)


@pytest.mark.parametrize("name", ["auto", "torch"])
def test_the_gradient_of_a_spherical_cauchy_at_its_mode(name: str) -> None:
    """Zero, also where the derivative in t overflows."""
    loc = torch.eye(3)[0].clone().requires_grad_()
    with engine(name):
        value = SphericalCauchy(loc, torch.tensor(1e20)).log_prob(torch.eye(3)[0])
        (gradient,) = torch.autograd.grad(value, loc)
    assert gradient.tolist() == [0.0, 0.0, 0.0]
