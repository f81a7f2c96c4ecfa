"""Every public member on a device without float64: the numbers of the CPU in float32, with gradients.

``helpers.no_float64`` acts that device. What it cannot show: the speed and the rounding of a real one, the compiler and
``torch.func`` there, and generators, which cannot be made without one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from unittest import mock

import pytest
import scipy.stats
import torch
from torch import Tensor
from torch.autograd.functional import hessian
from torch.distributions import kl_divergence, transform_to

from helpers import no_float64
from helpers.examples import BRAIN, DOUBLE, FLOAT, directions, families
from helpers.members import DRAWS, MOMENTS, SMOOTH, members, naming
from helpers.modes import of_parameters
from helpers.no_float64 import DEVICE, OnDevice, download, downloads, has_kernel, upload
from helpers.own_family import registered
from helpers.statistical import assert_law
from powerspherical import (
    HypersphericalUniform,
    PowerSpherical,
    ProductOfSpheres,
    SphericalCauchy,
    VonMisesFisher,
    pairwise_kl,
    special,
)
from powerspherical._torch import private
from powerspherical._torch.random import standard_gamma, uniform_doubles
from powerspherical.distributions import distribution_named
from powerspherical.engines import block_limit, engine
from powerspherical.mixture import SphericalKMeans
from powerspherical.nn import ProbabilisticEmbeddingLoss, SphericalBottleneck, SphericalHead

KAPPAS = (0.5, 0.75, 4.0, 30.0)
#: Each takes other formulas: the circle, inversion, a quadrature and a series for the slopes of draws.
dims = pytest.mark.parametrize("dim", [2, 3, 8, 40])

#: Members that pass through the CPU. All others, draws included, stay on the device.
THROUGH_CPU = {
    *("pairwise_kl", "KL to PS", "KL to vMF", "KL to Cauchy", "KL from uniform", "from_kl"),
    *("marginal.cdf", "marginal.log_sf", "marginal.icdf", "marginal.entropy", "cap_probability", "cap_angle"),
}
#: The same of some families only.
THROUGH_CPU_OF = {
    PowerSpherical: {"variance", "covariance_matrix", "marginal.variance", "closest_von_mises_fisher"},
    VonMisesFisher: {"from_mean_length"},
    SphericalCauchy: {"from_mean_length"},
}


@pytest.fixture(autouse=True)
def _device() -> Iterator[None]:
    with no_float64.acting():
        yield


def parameters(dim: int) -> tuple[Tensor, Tensor]:
    return directions(len(KAPPAS), dim, dtype=FLOAT), torch.tensor(KAPPAS)


def both(*tensors: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """Return leaves with these values on the device, and on the CPU."""
    return [upload(x).requires_grad_() for x in tensors], [x.clone().requires_grad_() for x in tensors]


def with_gradients(value: Tensor, leaves: Sequence[Tensor]) -> list[Tensor]:
    """Return a value and the gradients of a weighted sum of its entries."""
    if not value.requires_grad:
        return [value]
    weights = torch.arange(1.0, value.numel() + 1, device=value.device)
    loss = (value.flatten() * weights).sum()
    return [value, *torch.autograd.grad(loss, leaves, materialize_grads=True)]


def assert_same(found: Sequence[Tensor], expected: Sequence[Tensor], tolerance: float = 2e-5) -> None:
    """Check that tensors on the device have the values of those on the CPU, up to rounding of the largest entry."""
    for one, other in zip(found, expected, strict=True):
        assert isinstance(one, OnDevice)
        assert one.dtype == other.dtype
        atol = tolerance * float(other.detach().abs().max())
        torch.testing.assert_close(download(one.detach()), other.detach(), rtol=tolerance, atol=atol)


def assert_agrees(function: Callable[..., Tensor], *tensors: Tensor, tolerance: float = 2e-5) -> None:
    """Check the values and gradients of a function of tensors."""
    there, here = both(*tensors)
    found = with_gradients(function(*there), there)
    assert_same(found, with_gradients(function(*here), here), tolerance)


# Distributions


@families
@dims
def test_members(family: type, dim: int) -> None:
    for name, member in members(family).items():
        with naming(name):
            assert_agrees(of_parameters(member, family), *parameters(dim))


@families
@dims
def test_what_passes_through_the_cpu(family: type, dim: int) -> None:
    q = family(*map(upload, parameters(dim)), validate_args=True)
    found = set()
    for name, member in (members(family) | DRAWS).items():
        downloads.clear()
        member(q)
        found |= {name} if downloads else set()
    assert found == THROUGH_CPU | THROUGH_CPU_OF[family]


@families
@dims
@pytest.mark.parametrize("name", ["rsample", "marginal.rsample"])
def test_draws(family: type, dim: int, name: str) -> None:
    """With the same random numbers, the draws and gradients of torch operations on the CPU."""

    def function(loc: Tensor, kappa: Tensor) -> Tensor:
        torch.manual_seed(2)
        return DRAWS[name](family(loc, kappa, validate_args=True))

    with engine("torch"), mock.patch.object(private, "standard_gamma", None):
        assert_agrees(function, *parameters(dim), tolerance=1e-4)


@families
@dims
def test_slopes_stay_on_the_device(family: type, dim: int) -> None:
    """But for those that take a quadrature: von Mises–Fisher, except d = 3 and d ≥ 32."""
    loc, kappa = (upload(x).requires_grad_() for x in parameters(dim))
    x = family(loc, kappa).rsample()
    downloads.clear()
    x.sum().backward()
    assert bool(downloads) == (family is VonMisesFisher and dim in (2, 8))


@families
def test_second_derivatives(family: type) -> None:
    loc, kappa = upload(parameters(8)[0][1]), upload(parameters(8)[1][2])
    for name in SMOOTH.keys() - {"from_mean_length"}:
        with naming(name):
            function = of_parameters(SMOOTH[name], family)

            def of_kappa(
                kappa: Tensor, loc: Tensor = loc, function: Callable[..., Tensor] = function
            ) -> Tensor:
                return function(loc, kappa).sum()

            found = hessian(of_kappa, kappa)
            expected = hessian(lambda kappa, f=of_kappa: f(kappa, download(loc)), download(kappa))
            assert_same([found], [expected], 1e-3)


@families
def test_half_precision(family: type) -> None:
    loc, kappa = (x.to(BRAIN) for x in parameters(8))
    q, expected = family(upload(loc), upload(kappa)), family(loc, kappa)
    for name, member in members(family).items():
        with naming(name):
            assert_same([member(q)], [member(expected)], 1e-2 if name in MOMENTS else 1e-4)
    assert q.rsample().dtype == BRAIN


@families
def test_other_constructors(family: type) -> None:
    """Numbers, and tensors without axes, which move to the device."""
    loc = parameters(8)[0]
    for kappa in (2.0, torch.tensor(2.0, dtype=DOUBLE)):
        found = family(upload(loc), kappa, validate_args=True).log_prob(upload(loc).roll(1, -1))
        assert_same([found], [family(loc, 2.0).log_prob(loc.roll(1, -1))])
    for build, number in ((family.from_kl, 1.5), (family.from_mean_length, 0.4)):
        assert_same([build(upload(loc), number).concentration], [build(loc, number).concentration])


@families
@pytest.mark.parametrize("options", [{}, {"bias_correction": True}], ids=["plain", "without bias"])
def test_fit(family: type, options: dict[str, bool]) -> None:
    if options and family is SphericalCauchy:
        pytest.skip("it is not an exponential family")
    x, weights = family(*parameters(3)).sample((50,)), torch.rand(50, len(KAPPAS))
    for pair in ((x,), (x, weights)):
        q, expected = family.fit(*map(upload, pair), **options), family.fit(*pair, **options)
        assert_same([q.loc, q.concentration], [expected.loc, expected.concentration], 1e-6)


@families
def test_explicit_noise(family: type) -> None:
    q = family(*map(upload, parameters(8)), validate_args=True)
    noise = q.noise(8, sobol=True)
    assert isinstance(noise, OnDevice)
    assert noise.shape == (8, len(KAPPAS), 8)
    assert download(noise).abs().max() < 7
    assert isinstance(q.noise(8), OnDevice)

    def draw(noise: Tensor, *leaves: Tensor) -> Tensor:
        return family(*leaves, validate_args=True).rsample(noise=noise)

    assert_agrees(draw, download(noise), *parameters(8), tolerance=1e-4)
    assert_agrees(lambda z, kappa: family(directions(3, dtype=FLOAT).to(kappa.device), kappa).marginal.rsample(noise=z),
                  torch.randn(5, len(KAPPAS)), parameters(3)[1], tolerance=1e-4)  # fmt: skip


def test_tails_in_float64_are_on_the_cpu() -> None:
    marginal = PowerSpherical(*map(upload, parameters(8))).marginal
    t = marginal.quantile(upload(torch.tensor(0.25)), upload(torch.tensor(0.75)))
    below, above = marginal.tails(t)
    for value in (t.minus, t.plus, below, above):
        assert not isinstance(value, OnDevice)
        assert value.dtype == DOUBLE
    torch.testing.assert_close(below.exp(), torch.full_like(below, 0.25))


def test_divergences_of_batches() -> None:
    """More pairs than a block has."""
    loc, kappa = directions(70, 4, dtype=FLOAT), torch.linspace(0.1, 9.0, 70)
    for family in (PowerSpherical, SphericalCauchy):

        def pairs(loc: Tensor, kappa: Tensor, family: type = family) -> Tensor:
            with block_limit(64):
                return pairwise_kl(family(loc, kappa), VonMisesFisher(loc[:2], kappa[:2]))

        assert_agrees(pairs, loc, kappa)


def test_uniform_and_products() -> None:
    uniform = HypersphericalUniform(5, device=DEVICE, validate_args=True).expand((3,))
    x = uniform.sample((4,))
    assert isinstance(x, OnDevice)
    assert_same([uniform.log_prob(x)], [HypersphericalUniform(5).log_prob(download(x))])
    moments = uniform.mean, uniform.variance, uniform.covariance_matrix, uniform.mode, uniform.entropy()
    others = (
        uniform.log_prob_matrix(x),
        uniform.rsample(noise=uniform.noise(2)),
        pairwise_kl(uniform, uniform),
    )
    for value in (*moments, *others):
        assert isinstance(value, OnDevice)
    product = ProductOfSpheres(VonMisesFisher(*map(upload, parameters(5)), validate_args=True))
    prior = ProductOfSpheres(HypersphericalUniform(5, device=DEVICE).expand((4,)))
    z = product.rsample((2,))
    for value in (z, product.log_prob(z), product.entropy(), kl_divergence(product, prior), product.mean):
        assert isinstance(value, OnDevice)


def test_normalisation() -> None:
    assert_agrees(lambda x: transform_to(PowerSpherical.support)(x), torch.randn(4, 3))


def test_family_of_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    family = distribution_named(registered(monkeypatch).name)
    for name in ("log_prob", "entropy", "mean", "KL to uniform", "KL to vMF", "marginal.cdf"):
        with naming(name):
            assert_agrees(of_parameters(members(family)[name], family), *parameters(4))
    loc, kappa = (upload(x).requires_grad_() for x in parameters(4))
    x = family(loc, kappa).rsample((3,))
    x.sum().backward()
    assert isinstance(x, OnDevice)
    assert download(kappa.grad).isfinite().all()


# Heads, the bottleneck and the loss


@families
@pytest.mark.parametrize("options", [{}, {"product": 2}, {"nats": 3.0}, {"concentration": 2.0}], ids=str)
@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
def test_bottleneck(family: type, options: dict[str, float], training: bool) -> None:
    fixed = {"nats", "concentration"} & options.keys()
    features = torch.randn(6, options.get("product", 1) * (40 + (not fixed)))
    bottleneck = SphericalBottleneck(None, 40, family, evaluate="mode", **options).train(training)
    leaf = upload(features).requires_grad_()
    downloads.clear()
    z, rate = bottleneck(leaf)
    (gradient,) = torch.autograd.grad(z.square().sum() + z.sum() + rate.sum(), leaf)
    assert not downloads
    assert all(isinstance(x, OnDevice) for x in (z, rate, gradient))
    assert download(gradient).isfinite().all()
    expected, same_rate = bottleneck(features)
    assert_same([rate], [same_rate])
    if not training:
        assert_same([z], [expected])


@families
def test_head(family: type) -> None:
    head = SphericalHead(None, 8, family)
    assert_agrees(
        lambda features: head(features).log_prob(torch.eye(8, device=features.device)[0]), torch.randn(6, 9)
    )


def test_loss() -> None:
    loss = ProbabilisticEmbeddingLoss(beta=0.1)

    def to_points(loc: Tensor, kappa: Tensor) -> Tensor:
        return loss(VonMisesFisher(loc, kappa), loc.roll(1, -1))

    def to_distributions(loc: Tensor, kappa: Tensor) -> Tensor:
        return loss(VonMisesFisher(loc, kappa), PowerSpherical(loc.roll(1, -1), kappa))

    assert_agrees(to_points, *parameters(8))
    assert_agrees(to_distributions, *parameters(8))


# Functions and random numbers

#: Those of a concentration. Two more take other arguments.
FUNCTIONS = set(special.__all__) - {"log_sphere_area", "log_bessel_i", "bessel_ratio_inverse"}


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_special_functions(name: str) -> None:
    for dim in (2, 3, 40):
        kappa = torch.tensor([1e-3, 0.5, 2.0, 30.0, 1e6])
        kappa = kappa[:-2] if name.endswith("inverse") else kappa
        assert_agrees(lambda kappa, dim=dim: getattr(special, name)(kappa, dim), kappa)


def test_special_functions_of_other_arguments() -> None:
    assert_agrees(lambda x: special.log_bessel_i(1.5, x), torch.tensor([1e-3, 0.5, 2.0, 1e6]))
    assert_agrees(lambda r: special.bessel_ratio_inverse(r, 5), torch.tensor([1e-3, 0.5, 0.99]))
    assert_agrees(lambda r: special.bessel_ratio_inverse(r, 5, 1 - r.detach()), torch.tensor([0.3, 0.9]))


@pytest.mark.parametrize("shape", [0.5, 1.0, 3.5, 100.0, 1e6])
def test_gamma_variables(shape: float) -> None:
    draws = download(standard_gamma(upload(torch.full((40_000,), shape))))
    assert_law(draws, scipy.stats.gamma(shape).cdf)
    assert download(standard_gamma(upload(torch.tensor([torch.nan, shape])))).isnan().tolist() == [
        True,
        False,
    ]


def test_uniform_variables() -> None:
    draws = uniform_doubles(upload(torch.empty(40_000)))
    assert draws.dtype == DOUBLE
    assert 0 < draws.min() < draws.max() < 1
    assert_law(draws, scipy.stats.uniform.cdf)
    assert_law((draws * 2**24).frac(), scipy.stats.uniform.cdf)  # the lower bits


# The device itself


def test_the_device_refuses() -> None:
    x = upload(torch.ones(3))
    for refused in (x.double, lambda: torch.zeros(2, dtype=DOUBLE, device=DEVICE), lambda: x.to(DOUBLE)):
        with pytest.raises(TypeError, match="float64"):
            refused()
    with pytest.raises(RuntimeError, match="on the CPU"):
        x + torch.ones(3)
    with pytest.raises(NotImplementedError, match="no operation of the device"):
        torch.special.ndtri(x)
    assert isinstance(x + torch.tensor(1.0), OnDevice)


def test_operations_have_kernels() -> None:
    assert not [name for name in no_float64.OPERATIONS if not has_kernel(name)]
    assert not has_kernel("special_ndtri")


def test_rows_of_mixtures_are_refused() -> None:
    with pytest.raises(ValueError, match=r"mps:0, which has no float64: use X.cpu\(\)"):
        SphericalKMeans(2).fit(upload(directions(9, 3, dtype=FLOAT)))
