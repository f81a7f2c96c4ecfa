"""Explicit noise: draws as a deterministic, differentiable function of standard normals and the parameters."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import scipy.stats
import torch
from torch import Tensor
from torch.autograd import gradcheck
from torch.distributions import Distribution

from helpers.examples import (
    BRAIN,
    DOUBLE,
    FLOAT,
    Example,
    comparable,
    directions,
    examples,
    families,
)
from helpers.statistical import assert_law, assert_mean, assert_uncorrelated
from powerspherical import (
    HypersphericalUniform,
    PowerSpherical,
    PowerSphericalMarginal,
    ProductOfSpheres,
    VonMisesFisher,
)
from powerspherical.families.derived import log_tails
from powerspherical.quadrature.cosine import Cosine

dimensions = pytest.mark.parametrize("dim", [2, 3, 4, 16])


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def parameters(family: type, dim: int, dtype: torch.dtype = DOUBLE) -> tuple[Tensor, Tensor]:
    """Six directions, among them ±e₁ and the neighbourhood of -e₁, and a range of concentrations."""
    loc = directions(6, dim)
    loc[0], loc[1] = torch.eye(dim)[0], -torch.eye(dim)[0]
    loc[2] = torch.nn.functional.normalize(1e-6 * loc[2] - torch.eye(dim)[0], dim=-1)
    kappa = torch.tensor([comparable(family, kappa, dim) for kappa in (0.0, 0.5, 3.0, 30.0, 300.0, 1e4)])
    return loc.to(dtype), kappa.to(dtype)


@examples()
def test_shapes_and_dtypes(example: Example) -> None:
    q = example.make()
    noise = q.noise((3, 2), generator=generator())
    assert noise.shape == (3, 2, *example.batch_shape, example.dim)
    assert noise.dtype == (DOUBLE if example.dtype == DOUBLE else FLOAT)
    x = q.rsample(noise=noise)
    assert (x.shape, x.dtype) == (noise.shape, example.dtype)
    rounding = 0.01 if example.dtype == BRAIN else 1e-6
    assert ((x.double().norm(dim=-1) - 1).abs() < rounding).all()
    assert torch.equal(x, q.sample(noise=noise))
    assert not torch.equal(noise, q.noise((3, 2)))
    assert torch.equal(noise, q.noise((3, 2), generator=generator()))


@families
@dimensions
class TestLaw:
    def test_cosines(self, family: type, dim: int) -> None:
        q = family(*parameters(family, dim))
        noise = q.noise((2000,), generator=generator())
        x = q.rsample(noise=noise)
        assert ((x.norm(dim=-1) - 1).abs() < 1e-14).all()
        assert_mean(x, q.mean)
        t = q.marginal.rsample(noise=noise[..., 0])
        torch.testing.assert_close((x * q.loc).sum(-1), t, rtol=0, atol=1e-14)
        for probabilities in q.marginal.cdf(t).unbind(-1):
            assert_law(probabilities, scipy.stats.uniform.cdf)

    def test_both_tails_keep_their_digits(self, family: type, dim: int) -> None:
        """At ±6 standard deviations in float32: from the tangential part of the point, which is not rounded away."""
        pole, kappa = torch.eye(dim)[0], comparable(family, 5.0, dim)
        noise = torch.randn(2, dim, generator=generator())
        noise[:, 0] = torch.tensor([-6.0, 6.0])
        x = family(pole, kappa).rsample(noise=noise).double()
        near = x[:, 1:].square().sum(-1) / (1 + x[:, 0].abs())
        t = Cosine(torch.stack((2 - near[0], near[1])), torch.stack((near[0], 2 - near[1])))
        log_cdf, log_sf = log_tails(family.family, t, torch.full((2,), kappa, dtype=DOUBLE), dim)
        expected = torch.special.log_ndtr(torch.tensor(-6.0, dtype=DOUBLE))
        torch.testing.assert_close(
            torch.stack((log_cdf[0], log_sf[1])), expected.expand(2), rtol=0, atol=1e-5
        )

    def test_tangents_are_turned_without_distortion(self, family: type, dim: int) -> None:
        """The tangential parts have the inner products of the noise, also next to -e₁, to rounding in float32."""
        for dtype, rounding in ((DOUBLE, 1e-13), (FLOAT, 2e-6)):
            steps = torch.tensor([0.0, 1e-30, 1e-12, 1e-7, 1e-4, 0.1, 1.0, 10.0, 1e9], dtype=DOUBLE)
            loc = torch.nn.functional.normalize(steps[:, None] * directions(dim) - torch.eye(dim)[0], dim=-1)
            noise = torch.randn(20, 1, dim, dtype=dtype, generator=generator()).expand(20, 9, dim).clone()
            noise[..., 0] = 0.3
            q = family(loc.to(dtype), 0.5)
            x = q.rsample(noise=noise)
            t = (x * q.loc).sum(-1, keepdim=True)
            assert ((t - t[:1, :1]).abs() < rounding).all()
            across = torch.nn.functional.normalize(x - t * q.loc, dim=-1)
            flat = torch.nn.functional.normalize(noise[..., 1:], dim=-1)
            found, expected = (torch.einsum("ikd,jkd->kij", y, y) for y in (across, flat))
            torch.testing.assert_close(found, expected, rtol=0, atol=10 * rounding)


@families
@pytest.mark.parametrize("dim", [2, 3, 5])
def test_gradients_are_those_of_the_map(family: type, dim: int) -> None:
    vectors, kappa = parameters(family, dim)
    chosen = [0, 3, 4] if dim > 2 else [0, 1, 3, 4]
    vectors, kappa = vectors[chosen], kappa[chosen] + 0.1
    noise = torch.randn(len(chosen), dim, dtype=DOUBLE, generator=generator())

    def x(vectors: Tensor, kappa: Tensor, noise: Tensor) -> Tensor:
        loc = torch.nn.functional.normalize(vectors, dim=-1)
        return family(loc, kappa, validate_args=False).rsample(noise=noise)

    inputs = [tensor.clone().requires_grad_() for tensor in (vectors, kappa, noise)]
    assert gradcheck(x, inputs, rtol=1e-5, atol=1e-7)


@families
@pytest.mark.parametrize("dtype", [FLOAT, DOUBLE, BRAIN], ids=str)
def test_gradients_are_finite_and_tangential(family: type, dtype: torch.dtype) -> None:
    loc, kappa = (p.requires_grad_() for p in parameters(family, 4, dtype))
    noise, weight = torch.randn(2, 6, 4, generator=generator())
    noise[0, 1:] = 0
    (family(loc, kappa).rsample(noise=noise) * weight).sum().backward()
    assert kappa.grad.isfinite().all()
    in_loc = loc.grad.double()
    assert ((in_loc * loc.double()).sum(-1).abs() <= 0.02 * in_loc.norm(dim=-1)).all()


class TestReuse:
    def test_noise_broadcasts(self) -> None:
        q = VonMisesFisher(directions(3, 4), torch.tensor([1.0, 5.0, 9.0], dtype=DOUBLE))
        shared = torch.randn(7, 1, 4, dtype=DOUBLE)
        x = q.rsample(noise=shared)
        assert x.shape == (7, 3, 4)
        torch.testing.assert_close(x, q.rsample(noise=shared.expand(7, 3, 4)))
        single = VonMisesFisher(q.loc[1], q.concentration[1])
        torch.testing.assert_close(x[:, 1], single.rsample(noise=shared[:, 0]))
        assert HypersphericalUniform(4).expand((3,)).rsample(noise=shared.float()).shape == (7, 3, 4)

    @families
    def test_antithetic_pairs(self, family: type) -> None:
        """-noise mirrors the tangential part, and the probability of the cosine."""
        q = family(directions(5), 3.0)
        noise = q.noise((50,))
        x, y = q.rsample(noise=noise), q.rsample(noise=-noise)
        t, s = x @ q.loc, y @ q.loc
        torch.testing.assert_close(q.marginal.cdf(s), 1 - q.marginal.cdf(t), rtol=0, atol=1e-9)
        across, mirrored = x - t[:, None] * q.loc, y - s[:, None] * q.loc
        cosine = torch.nn.functional.cosine_similarity(across, mirrored, dim=-1)
        torch.testing.assert_close(cosine, torch.full_like(cosine, -1.0))

    def test_antithetic_draws_of_the_uniform(self) -> None:
        q, noise = HypersphericalUniform(5), torch.randn(9, 5)
        assert torch.equal(q.rsample(noise=-noise), -q.rsample(noise=noise))


class TestSobol:
    @dimensions
    def test_is_standard_normal(self, dim: int) -> None:
        q = PowerSpherical(directions(50, dim), 1.0)
        noise = q.noise((64,), sobol=True, generator=generator())
        assert noise.shape == (64, 50, dim)
        assert_law(noise[0].flatten(), lambda x: torch.special.ndtr(torch.as_tensor(x)).numpy())
        # Every 64 points have one in each of 64 intervals of equal probability.
        cells = (torch.special.ndtr(noise) * 64).long().sort(0).values
        assert torch.equal(cells, torch.arange(64)[:, None, None].expand_as(cells))

    def test_batch_elements_are_uncorrelated(self) -> None:
        noise = PowerSpherical(directions(2, 3), 1.0).noise((1024,), sobol=True, generator=generator())
        assert_uncorrelated(noise[:, 0, 0], noise[:, 1, 0])
        # The product would be extreme if one were a function of the other.
        assert_mean(noise[:, 0].abs() * noise[:, 1].abs(), 2 / torch.pi)

    def test_a_product_is_covered_jointly(self) -> None:
        q = ProductOfSpheres(HypersphericalUniform(2).expand((3, 2)))
        noise = q.noise((256,), sobol=True, generator=generator())
        assert noise.shape == (256, 3, 2, 2)
        # A net in base 2: each of 16 × 16 cells of the first coordinates of both factors has one point.
        first, second = ((torch.special.ndtr(noise[:, 0, i, 0].double()) * 16).long() for i in (0, 1))
        assert len((16 * first + second).unique()) == 256

    def test_reproducible(self) -> None:
        q = HypersphericalUniform(3)
        first, second = (q.noise((8,), sobol=True, generator=generator()) for _ in range(2))
        assert torch.equal(first, second)
        torch.manual_seed(0)
        assert torch.equal(first, q.noise((8,), sobol=True))
        assert not torch.equal(first, q.noise((8,), sobol=True))

    def test_many_dimensions(self) -> None:
        with pytest.raises(ValueError, match="at most 21201 dimensions, but a draw needs 21202 normals"):
            HypersphericalUniform(21202).noise((2,), sobol=True)


def test_products() -> None:
    factors = PowerSpherical(directions(2, 3, 4), torch.tensor([0.0, 1.0, 20.0]).double())
    q = ProductOfSpheres(factors)
    noise = q.noise((5,), generator=generator())
    assert noise.shape == (5, 2, 3, 4)
    assert torch.equal(q.rsample(noise=noise), factors.rsample(noise=noise))
    assert torch.equal(q.sample(noise=noise), q.rsample(noise=noise))
    for shape in ((4,), (1, 4), (5, 3, 3, 4)):
        with pytest.raises(ValueError, match="noise"):
            q.rsample(noise=torch.ones(shape, dtype=DOUBLE))


MAKERS: list[Callable[[], Distribution]] = [
    lambda: PowerSpherical(directions(3, 4), 2.0),
    lambda: HypersphericalUniform(4, dtype=DOUBLE).expand((3,)),
    lambda: ProductOfSpheres(PowerSpherical(directions(3, 2, 4), 2.0)),
    lambda: PowerSphericalMarginal(4, torch.ones(3)),
]


@pytest.mark.parametrize("make", MAKERS)
def test_bad_noise(make: Callable[[], Distribution]) -> None:
    q = make()
    shape = (3, *q.event_shape)
    nan = q.noise()
    nan.view(-1)[0] = torch.nan
    bad = {
        r"noise must be a torch\.Tensor, got int": 3,
        r"noise must have a floating-point dtype, got torch\.int64": torch.ones(shape, dtype=torch.int64),
        r"noise is on meta, but the draws are on cpu: use noise\.to\('cpu'\)": torch.ones(
            shape, device="meta"
        ),
        r"noise must be finite, but has 1 other value\(s\)": nan,
        r"the batch shapes do not broadcast: noise.shape.* \(2,\) and": torch.ones(
            2, *shape[1:], dtype=DOUBLE
        ),
    }
    if q.event_shape:
        wide = torch.ones(*shape[:-1], 5, dtype=DOUBLE)
        bad[r"noise must have the shape \(…, .*\), got \(.*\); use the"] = wide
    for message, noise in bad.items():
        with pytest.raises(ValueError, match=message):
            q.rsample(noise=noise)


@pytest.mark.parametrize("make", MAKERS)
def test_bad_arguments(make: Callable[[], Distribution]) -> None:
    q = make()
    for options in ({"sample_shape": 3}, {"generator": generator()}):
        with pytest.raises(ValueError, match="leave out sample_shape and generator"):
            q.rsample(noise=q.noise(), **options)
    with pytest.raises(ValueError, match=r"generator must be a torch\.Generator"):
        q.noise(generator=5)
    with pytest.raises(ValueError, match="sample_shape must be an integer"):
        q.noise(-1)


@families
@dimensions
def test_vmap(family: type, dim: int) -> None:
    inputs = *parameters(family, dim), torch.randn(6, dim, dtype=DOUBLE)

    def x(loc: Tensor, kappa: Tensor, noise: Tensor) -> Tensor:
        return family(loc, kappa).rsample(noise=noise)[..., 0]

    torch.testing.assert_close(torch.func.vmap(x)(*inputs), x(*inputs))
    in_kappa = torch.func.grad(lambda *leaves: x(*leaves).sum(), argnums=1)(*inputs)
    torch.testing.assert_close(torch.func.vmap(torch.func.grad(x, argnums=1))(*inputs), in_kappa)


@pytest.mark.parametrize("dtype", [FLOAT, DOUBLE], ids=str)
@pytest.mark.parametrize("size", [1e-300, 1e-30, 1e20, 1e300])
def test_noise_of_any_size(dtype: torch.dtype, size: float) -> None:
    """Points stay on the sphere where squares of the noise overflow or underflow."""
    if dtype == FLOAT and abs(torch.tensor(size).log10()) > 38:
        pytest.skip("no number of float32")
    loc = directions(4).to(dtype)
    for q in (PowerSpherical(loc, 2.0), HypersphericalUniform(4, dtype=dtype)):
        x = q.rsample(noise=size * q.noise((50,), generator=generator()))
        torch.testing.assert_close(x.norm(dim=-1), torch.ones(50, dtype=dtype))


@pytest.mark.parametrize("sobol", [False, True])
def test_no_samples(sobol: bool) -> None:
    assert PowerSpherical(torch.eye(3)[0], 1.0).noise((0,), sobol=sobol).shape == (0, 3)
