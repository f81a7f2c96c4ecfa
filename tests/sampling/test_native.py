"""The native CPU kernel: its law, its derivatives, its random numbers, and how it is built."""

from __future__ import annotations

import concurrent.futures
import ctypes
import importlib.util
import itertools
import math
import shutil
import subprocess
import sys
import textwrap
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import mpmath
import pytest
import scipy.special
import scipy.stats
import torch
from torch import Tensor

from helpers.gamma import log_slope
from helpers.library import use_functions, watched_calls
from helpers.statistical import assert_reproducible
from powerspherical import PowerSpherical, SphericalCauchy, VonMisesFisher
from powerspherical._native import build, library
from powerspherical.distributions.density import log_density
from powerspherical.families import VON_MISES_FISHER, family_named
from powerspherical.nn import _native_parameters
from powerspherical.sampling import geometry, native
from powerspherical.special.bessel import exponential_relative_entropy
from powerspherical.special.gamma import power_relative_entropy

ROOT = Path(__file__).parents[2]
LEVEL = 1e-6
CLASSES = [PowerSpherical, VonMisesFisher, SphericalCauchy]

needs_library = pytest.mark.skipif(isinstance(library.loaded(), str), reason="no native library")
needs_compiler = pytest.mark.skipif(shutil.which(build.compiler()[0]) is None, reason="no C compiler")
names = pytest.mark.parametrize("name", native.FAMILIES)


def unit(*shape: int) -> Tensor:
    return torch.nn.functional.normalize(torch.randn(shape, dtype=torch.float64), dim=-1).float()


def draw(
    name: str, loc: Tensor, kappa: Tensor, dim: int | None = None, seed: int = 1
) -> tuple[Tensor, Tensor]:
    """Return x, and the scalars 1-t, 1+t and noise of each row."""
    generator = torch.Generator().manual_seed(seed)
    return native.draw(name, loc, kappa, kappa.shape, dim or loc.shape[-1], generator, True)


def slopes(name: str, ends: tuple[Tensor, Tensor], noise: Tensor, kappa: Tensor, dim: int) -> Tensor:
    """(dt/dκ)/(1-t²) by the kernel: the gradient in κ for g = μ, where nothing else is left of it."""
    pole = torch.tensor([1.0, 0.0]).expand(*kappa.shape, 2).contiguous()
    scalars = torch.stack((*ends, noise))
    _, rate = native.pull_back(name, pole, pole, pole, scalars, kappa, dim, False, True)
    return rate.double() / (ends[0].double() * ends[1].double())


def exact_ends(ends: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """1-t and 1+t in float64 for the smaller one of the two given numbers."""
    minus, plus = (end.double() for end in ends)
    return torch.where(minus < plus, minus, 2 - plus), torch.where(minus < plus, 2 - minus, plus)


def quantiles(dim: int, kappa: float) -> tuple[tuple[Tensor, Tensor], Tensor]:
    """1-t and 1+t of von Mises–Fisher in float32 at probabilities from 1e-7 to 1-1e-7, and κ."""
    tail = torch.logspace(-7, math.log10(0.5), 40, dtype=torch.float64)
    concentration = torch.full((80,), kappa)
    below, above = torch.cat((tail, 1 - tail)), torch.cat((1 - tail, tail))
    minus, plus = VON_MISES_FISHER.quantile_values(below, above, concentration.double(), dim)
    return (minus.float(), plus.float()), concentration


# Built and loaded


@needs_compiler
def test_it_was_built() -> None:
    """With a C compiler the installation has built the library, from the sources as they are."""
    found = library.loaded()
    if found == f"switched off by {library.SWITCH}=0":
        pytest.skip(found)
    assert not isinstance(found, str), found
    assert library.description() in ("SSE2", "AVX2", "AVX-512", "compiled for this processor")


@pytest.fixture
def _loaded_anew() -> Iterator[None]:
    library.loaded.cache_clear()
    yield
    library.loaded.cache_clear()


@pytest.mark.usefixtures("_loaded_anew")
def test_why_it_is_not_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def reason() -> str:
        library.loaded.cache_clear()
        return library.description()

    monkeypatch.setattr(build, "LIBRARY", tmp_path / "_sphere.so")
    monkeypatch.delenv(library.SWITCH, raising=False)
    assert reason().startswith("not used: it was not built, which takes a C compiler; run: ")
    build.LIBRARY.write_text("no library")
    assert "python -m powerspherical._native.build" in reason()
    monkeypatch.setenv(library.SWITCH, "0")
    assert reason() == "not used: switched off by POWERSPHERICAL_NATIVE=0"


@needs_library
@pytest.mark.usefixtures("_loaded_anew")
def test_an_outdated_library_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "source_digest", lambda: "another")
    assert library.description().startswith("not used: it was built from other sources")


@needs_library
@names
def test_what_it_covers(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    loc, kappa = unit(2, 3), torch.ones(2)
    assert native.covers(name, loc, kappa)
    assert native.covers(name, loc.bfloat16(), kappa)
    assert not native.covers(name, loc.double(), kappa.double())
    assert not native.covers("another", loc, kappa)
    assert not native.covers(name, loc.to("meta"), kappa.to("meta"))
    monkeypatch.setattr(library, "usable", lambda: False)
    assert not native.covers(name, loc, kappa)


@needs_library
@pytest.mark.parametrize("family", CLASSES)
def test_distributions_use_it(family: type, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = watched_calls(monkeypatch)
    kappa = torch.ones(5, requires_grad=True)
    family(unit(5, 4), kappa).rsample().sum().backward()
    assert calls == ["draw", "pull_back"]


# The law


@needs_library
@names
@pytest.mark.parametrize(
    ("dim", "kappa"),
    [(2, 0.0), (2, 0.3), (2, 1e4), (3, 0.0), (3, 0.5), (3, 3.0), (3, 30.0), (3, 1e6), (4, 1.0), (8, 10.0),
     (9, 1e-3), (16, 100.0), (17, 1e6), (64, 0.0), (64, 100.0), (768, 1e3)],
)  # fmt: skip
def test_law(name: str, dim: int, kappa: float) -> None:
    count = 20_000 if dim < 100 else 5000
    loc, concentration = unit(1, dim), torch.full((count,), kappa)
    x, (minus, plus, noise) = draw(name, loc, concentration, seed=dim)
    assert ((minus >= 0) & (plus >= 0)).all()
    torch.testing.assert_close(minus + plus, torch.full_like(minus, 2.0), rtol=0, atol=5e-7)
    torch.testing.assert_close(x.double().norm(dim=-1), torch.ones(count).double(), rtol=0, atol=1e-6)
    log_cdf, _ = family_named(name).log_tails(*exact_ends((minus, plus)), concentration.double(), dim)
    assert scipy.stats.kstest(log_cdf.exp().numpy(), "uniform").pvalue > LEVEL
    if name == "power_spherical":
        law = scipy.stats.gamma(kappa + (dim - 1) / 2) if dim != 3 else scipy.stats.expon(scale=2)
        assert scipy.stats.kstest(noise.double().numpy(), law.cdf).pvalue > LEVEL
    if kappa > 1e3:
        return  # the tangential part of x has lost its digits
    mu, t = loc[0].double(), (x.double() @ loc[0].double())
    torch.testing.assert_close(t, ((plus - minus) / 2).double(), rtol=0, atol=3e-6)
    across = torch.randn(dim, dtype=torch.float64)
    across = torch.nn.functional.normalize(across - (across @ mu) * mu, dim=-1)
    coordinate = (x.double() @ across) / (minus.double() * plus.double()).sqrt()
    if dim == 2:
        assert abs(coordinate.sign().mean()) < 5 / math.sqrt(count)
    else:  # a coordinate of a uniform point of the sphere of R^{d-1}
        law = scipy.stats.beta((dim - 2) / 2, (dim - 2) / 2, loc=-1, scale=2)
        assert scipy.stats.kstest(coordinate.numpy(), law.cdf).pvalue > LEVEL
    assert scipy.stats.pearsonr(coordinate, t).pvalue > LEVEL
    assert scipy.stats.pearsonr(coordinate**2, t).pvalue > LEVEL


@needs_library
@names
@pytest.mark.parametrize("dim", [3, 5, 40])
def test_law_of_another_dimension(name: str, dim: int) -> None:
    """On the circle, with the cosine of ``dim`` dimensions."""
    kappa = torch.full((20_000,), 7.0)
    x, (minus, plus, _) = draw(name, unit(1, 2), kappa, dim)
    log_cdf, _ = family_named(name).log_tails(*exact_ends((minus, plus)), kappa.double(), dim)
    assert scipy.stats.kstest(log_cdf.exp().numpy(), "uniform").pvalue > LEVEL
    torch.testing.assert_close(x.norm(dim=-1), torch.ones(20_000), rtol=0, atol=1e-6)


@needs_library
@pytest.mark.parametrize("kappa", [0.0, 1e-3, 0.3, 0.999, 1.001, 5.0, 9.99, 10.01, 300.0])
@pytest.mark.parametrize("name", ["power_spherical", "von_mises_fisher"])
def test_quantiles_in_three_dimensions(name: str, kappa: float) -> None:
    """t is the quantile of e^{-S/2}, where S is the noise, with all digits in both tails."""
    concentration = torch.full((50_000,), kappa)
    _, (minus, plus, noise) = draw(name, unit(1, 3), concentration)
    ends = exact_ends((minus, plus))
    log_cdf, log_sf = family_named(name).log_tails(*ends, concentration.double(), 3)
    u = torch.exp(-0.5 * noise.double())
    torch.testing.assert_close(torch.exp(log_cdf), u, rtol=1e-5, atol=1e-12)
    torch.testing.assert_close(torch.exp(log_sf), -torch.expm1(-0.5 * noise.double()), rtol=1e-5, atol=1e-12)


@needs_library
@names
@pytest.mark.parametrize("dim", [2, 3, 5, 12, 64])
def test_a_nan_stays_alone(name: str, dim: int) -> None:
    loc, kappa = unit(40, dim), torch.full((40,), 3.0)
    kappa[7] = math.nan
    x, scalars = draw(name, loc, kappa)
    others = torch.arange(40) != 7
    for tensor in (x, *scalars[:2]):
        assert tensor[7].isnan().all()
        assert tensor[others].isfinite().all()
    grads = native.pull_back(name, torch.randn(40, dim), x, loc, scalars, kappa, dim, True, True)
    for tensor in grads:
        assert tensor is not None
        assert tensor[7].isnan().all()
        assert tensor[others].isfinite().all()


@needs_library
@names
@pytest.mark.parametrize("dim", [2, 3, 7, 64])
@pytest.mark.parametrize("kappa", [0.0, 1e-30, 1e9, 1e20, 1e37])
def test_extreme_concentrations(name: str, dim: int, kappa: float) -> None:
    loc, concentration = unit(300, dim), torch.full((300,), kappa)
    x, scalars = draw(name, loc, concentration)
    torch.testing.assert_close(x.norm(dim=-1), torch.ones(300), rtol=0, atol=1e-6)
    if kappa >= 1e9:
        torch.testing.assert_close(x, loc, rtol=0, atol=1e-3)
    grads = native.pull_back(name, torch.randn(300, dim), x, loc, scalars, concentration, dim, True, True)
    assert all(grad is not None and grad.isfinite().all() for grad in grads)


# Derivatives


@needs_library
@pytest.mark.parametrize("dim", [2, 3, 4, 6, 12, 31, 32, 64, 1000, 10_000])
def test_von_mises_fisher_slope(dim: int) -> None:
    """At most 5e-6 from the float64 quadrature, which is tested against mpmath, at probabilities from 1e-7."""
    for kappa in (0.0, 1e-3, 0.2, 0.3, 1.0, 4.0, 10.0, 25.0, 39.0, 41.0, 100.0, 1e4, 1e6, 1e9):
        ends, concentration = quantiles(dim, kappa)
        expected = VON_MISES_FISHER.implicit_slope(*exact_ends(ends), concentration.double(), dim)
        found = slopes("von_mises_fisher", ends, ends[0], concentration, dim)
        assert ((found - expected) / expected).abs().max() < 5e-6, kappa


@needs_library
@pytest.mark.parametrize(
    ("dim", "kappa", "t"), [(2, 30.0, 0.9), (3, 0.2, -0.5), (5, 7.0, 0.25), (5, 60.0, 0.9), (40, 20.0, 0.5)]
)
def test_von_mises_fisher_slope_by_mpmath(dim: int, kappa: float, t: float) -> None:
    """-∂F/∂κ divided by the density and 1-t², 30 digits."""
    with mpmath.workdps(30):

        def weight(s: Any) -> Any:
            return mpmath.exp(kappa * (s - t)) * (1 - s * s) ** mpmath.mpf((dim - 3) / 2)

        def integral(function: Callable[[Any], Any], low: float, high: float) -> Any:
            return mpmath.quad(lambda s: function(s) * weight(s), mpmath.linspace(low, high, 6))

        below, total = integral(lambda s: 1, -1, t), integral(lambda s: 1, -1, 1)
        mean = integral(lambda s: s, -1, 1) / total
        change = integral(lambda s: s - mean, -1, t)
        expected = float(-change / weight(t) / (1 - mpmath.mpf(t) ** 2))
        assert below < total
    ends = torch.full((1,), 1 - t), torch.full((1,), 1 + t)
    found = slopes("von_mises_fisher", ends, ends[0], torch.tensor([kappa]), dim)
    assert abs(found.item() / expected - 1) < 3e-6


@needs_library
@pytest.mark.parametrize(
    ("dim", "tolerance"), [(2, 1.5e-4), (4, 1.5e-4), (9, 1.5e-4), (17, 2e-5), (64, 3e-6), (800, 2e-6)]
)
def test_power_spherical_slope(dim: int, tolerance: float) -> None:
    """Half of dlog G/dα, at probabilities of G from 1e-7 to 1-1e-7."""
    tail = torch.logspace(-7, math.log10(0.5), 60, dtype=torch.float64).numpy()
    for kappa in (0.0, 0.01, 1.0, 3.0, 5.0, 40.0, 1e3):
        alpha = kappa + (dim - 1) / 2
        below, above = scipy.special.gammaincinv(alpha, tail), scipy.special.gammainccinv(alpha, tail)
        noise = torch.cat([torch.from_numpy(part).float() for part in (below, above)])
        concentration, ends = torch.full_like(noise, kappa), (torch.ones_like(noise),) * 2
        expected = 0.5 * log_slope(concentration.double() + (dim - 1) / 2, noise)
        found = slopes("power_spherical", ends, noise, concentration, dim)
        assert ((found - expected) / expected).abs().max() < tolerance, kappa


def gamma_slope_by_mpmath(alpha: float, gamma: float) -> float:
    """dlog G/dα: minus the integral of the score of y = log G up to log G, over the density there; 25 digits."""
    with mpmath.workdps(25):
        mean, end = mpmath.digamma(alpha), mpmath.log(gamma)
        top = mpmath.exp(alpha * end - gamma)
        points = mpmath.linspace(end - 100 / mpmath.mpf(alpha), end, 13)
        integral = mpmath.quad(lambda y: (y - mean) * mpmath.exp(alpha * y - mpmath.exp(y)) / top, points)
        return float(-integral)


@needs_library
@pytest.mark.parametrize("alpha", [0.5, 0.53125, 0.75, 1.0, 1.5, 2.5, 3.984375])
def test_power_spherical_slope_of_small_shapes(alpha: float) -> None:
    """α = κ + ½ < 4, where the kernel has a quadrature, at probabilities of G from 1e-7 to 1-1e-7."""
    tail = torch.logspace(-7, math.log10(0.5), 6, dtype=torch.float64).numpy()
    below, above = scipy.special.gammaincinv(alpha, tail), scipy.special.gammainccinv(alpha, tail)
    noise = torch.cat([torch.from_numpy(part).float() for part in (below, above)])
    expected = 0.5 * noise.double().apply_(lambda g: gamma_slope_by_mpmath(alpha, g))
    found = slopes("power_spherical", (torch.ones(12),) * 2, noise, torch.full((12,), alpha - 0.5), 2)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=0)


@needs_library
def test_power_spherical_slope_in_three_dimensions() -> None:
    """It depends on t and κ alone: the derivative of (1+t)/2 = u^{1/(κ+1)}."""
    minus = torch.cat((torch.logspace(-30, 0, 50), 2 - torch.logspace(-6, 0, 50)))
    ends = minus, (2 - minus.double()).float()
    exact = exact_ends(ends)
    for kappa in (0.0, 0.5, 30.0, 1e6):
        concentration = torch.full_like(minus, kappa)
        near = exact[0] < 1
        logs = torch.where(near, torch.log1p(-exact[0] / 2), torch.log(exact[1] / 2))
        expected = -logs / exact[0] / (1 + concentration.double())
        found = slopes("power_spherical", ends, torch.full_like(minus, math.nan), concentration, 3)
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=0)


@needs_library
@names
@pytest.mark.parametrize("dim", [2, 3, 5, 40])
def test_the_torch_implementation_understands_the_noise(name: str, dim: int) -> None:
    """A backward pass by the composition gives the same slopes."""
    kappa = torch.rand(500) * 20
    _, (minus, plus, noise) = draw(name, unit(1, dim), kappa)
    expected = family_named(name).rapidity_slope(minus, plus, noise, kappa, dim)
    found = slopes(name, (minus, plus), noise, kappa, dim).float()
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=0)


@needs_library
@names
@pytest.mark.parametrize("dim", [2, 3, 4, 6, 9, 33, 100])
@pytest.mark.parametrize("m", [1, 3, 60, 3000])
def test_pull_back(name: str, dim: int, m: int) -> None:
    """Against ``geometry.pull_back`` in float64, with directions of their own and with shared ones."""
    count = 3000
    loc, kappa, grad = unit(m, dim), torch.rand(count // m, m) * 20, torch.randn(count // m, m, dim)
    x, scalars = draw(name, loc, kappa)
    minus, plus, noise = scalars
    found = native.pull_back(name, grad, x, loc, scalars, kappa, dim, True, True)
    expected = geometry.pull_back(
        grad.double(),
        x.double(),
        loc.double(),
        minus.double(),
        plus.double(),
        slopes(name, (minus, plus), noise, kappa, dim),
        needs_loc=True,
    )
    for one, other in zip(found, expected, strict=True):
        assert one is not None
        assert other is not None
        torch.testing.assert_close(one.double(), other, rtol=1e-5, atol=2e-6 * other.abs().max().item())
    alone = native.pull_back(name, grad, x, loc, scalars, kappa, dim, False, True)
    assert alone[0] is None
    torch.testing.assert_close(alone[1], found[1], rtol=0, atol=0)
    alone = native.pull_back(name, grad, x, loc, scalars, kappa, dim, True, False)
    assert alone[1] is None
    torch.testing.assert_close(alone[0], found[0], rtol=0, atol=0)


# Arguments of every kind


@needs_library
@names
def test_layouts(name: str) -> None:
    """Expanded, transposed and negated arguments give what contiguous ones give."""
    shape, dim = torch.Size((6, 5)), 7
    generator = torch.Generator()
    for loc, kappa in [
        (unit(dim), torch.tensor(2.0)),
        (unit(5, dim), torch.rand(6, 1)),
        (unit(6, 1, dim), torch.rand(5)),
        (unit(5, 6, dim).transpose(0, 1), torch.rand(5, 6).T),
        (unit(1, 1, dim).expand(6, 5, dim), torch.rand(1).expand(6, 5)),
        (torch.complex(unit(5, dim), unit(5, dim)).conj().imag, torch.rand(5)),
    ]:
        x, scalars = native.draw(name, loc, kappa, shape, dim, generator.manual_seed(3), True)
        full = loc.expand(*shape, dim).clone(), kappa.expand(shape).clone()
        other, other_scalars = native.draw(name, *full, shape, dim, generator.manual_seed(3), True)
        torch.testing.assert_close((x, scalars), (other, other_scalars), rtol=2e-6, atol=2e-6)
        grad = torch.complex(torch.randn(*shape, dim), torch.randn(*shape, dim)).conj().imag
        got = native.pull_back(name, grad, x, loc, scalars, kappa, dim, True, True)
        full_grad = native.pull_back(name, grad.clone(), x, full[0], scalars, full[1], dim, True, True)
        assert got[0] is not None
        assert full_grad[0] is not None
        assert got[0].shape == loc.shape
        torch.testing.assert_close(got[0], full_grad[0].sum_to_size(loc.shape), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(got[1], full_grad[1], rtol=1e-5, atol=1e-6)


@needs_library
@names
@pytest.mark.parametrize("dim", [2, 3, 40])
def test_no_rows(name: str, dim: int) -> None:
    for m in (0, 4):
        loc, kappa = unit(m, dim), torch.ones(0, 4) if m else torch.ones(0)
        x, scalars = draw(name, loc, kappa)
        assert x.shape == (*kappa.shape, dim)
        grad_loc, grad_kappa = native.pull_back(name, x, x, loc, scalars, kappa, dim, True, True)
        assert grad_loc is not None
        assert grad_kappa is not None
        assert torch.equal(grad_loc, torch.zeros(m, dim))
        assert grad_kappa.shape == kappa.shape


@needs_library
@names
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(name: str, dtype: torch.dtype) -> None:
    """Computed in float32 from the normalised directions; only x and the gradient in loc are rounded."""
    loc, kappa, grad = unit(200, 6).to(dtype), torch.rand(200) * 9, torch.randn(200, 6, dtype=dtype)
    single = torch.nn.functional.normalize(loc.float(), dim=-1)
    x, scalars = draw(name, loc, kappa)
    expected, expected_scalars = draw(name, single, kappa)
    assert x.dtype == dtype
    assert torch.equal(x, expected.to(dtype))
    assert torch.equal(scalars, expected_scalars)
    found = native.pull_back(name, grad, x, loc, scalars, kappa, 6, True, True)
    minus, plus, noise = scalars
    wanted = geometry.pull_back(
        grad,
        x,
        loc,
        minus,
        plus,
        slopes(name, (minus, plus), noise, kappa, 6).float(),
        needs_loc=True,
    )
    assert found[0] is not None
    assert found[0].dtype == dtype
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(found[0], wanted[0], rtol=eps, atol=eps)
    torch.testing.assert_close(found[1], wanted[1], rtol=1e-4, atol=1e-5)


@needs_library
@names
@pytest.mark.parametrize("dim", [2, 3, 40])
def test_scalars_that_are_not_needed(name: str, dim: int) -> None:
    loc, kappa, generator = unit(70, dim), torch.rand(70) * 9, torch.Generator()
    x, scalars = native.draw(name, loc, kappa, kappa.shape, dim, generator.manual_seed(1), False)
    assert scalars is None
    assert torch.equal(x, draw(name, loc, kappa)[0])


@needs_library
@names
@pytest.mark.parametrize("shape", [(1, 4), (4, 1), (1, 1, 4), (6, 0)])
def test_shapes_with_as_many_numbers_as_the_parameters(name: str, shape: tuple[int, ...]) -> None:
    """Results have the batch shape of the draws, even if a parameter with another shape has as many numbers."""
    loc, kappa = unit(*shape[1:], 5), torch.rand(shape[1:])
    x, scalars = native.draw(name, loc, kappa, torch.Size(shape), 5, None, True)
    assert x.shape == (*shape, 5)
    assert scalars.shape == (3, *shape)
    grad_loc, grad_kappa = native.pull_back(name, torch.randn(x.shape), x, loc, scalars, kappa, 5, True, True)
    assert grad_loc.shape == loc.shape
    assert grad_kappa.numel() == math.prod(shape)


# Random numbers, threads and processes


@needs_library
@pytest.mark.parametrize("family", CLASSES)
def test_generators(family: type) -> None:
    assert_reproducible(family(unit(3, 5), torch.ones(3)))


@needs_library
@names
@pytest.mark.parametrize(
    ("rows", "dim"),
    [(1, 2), (1001, 2), (9001, 3), (9999, 5), (5000, 17), (3000, 64), (333, 769), (77, 10_001)],
)
def test_results_do_not_depend_on_the_number_of_threads(
    name: str, rows: int, dim: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for m in {rows, 1}:
        loc, kappa, grad = unit(m, dim), torch.rand(rows) * 60, torch.randn(rows, dim)
        results = []
        for threads in (1, 2, 3, 7):
            monkeypatch.setattr(native, "threads", lambda numbers, threads=threads: threads)
            x, scalars = draw(name, loc, kappa)
            grads = native.pull_back(name, grad, x, loc, scalars, kappa, dim, True, True)
            results.append((x, scalars, *grads))
        for other in results[1:]:
            assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


def test_threads_have_enough_to_do() -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(4)
        assert [native.threads(count << 18) for count in (0, 1, 2, 3, 9)] == [1, 1, 2, 3, 4]
        torch.set_num_threads(1)
        assert native.threads(1 << 30) == 1
    finally:
        torch.set_num_threads(before)


@needs_library
@names
def test_draws_in_python_threads(name: str) -> None:
    loc, kappa = unit(2000, 9), torch.full((2000,), 4.0)
    alone = [draw(name, loc, kappa, seed=seed)[0] for seed in range(40)]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda seed: draw(name, loc, kappa, seed=seed)[0], range(40)))
    assert all(torch.equal(a, b) for a, b in zip(alone, together, strict=True))


@needs_library
def test_a_thread_that_starts_in_inference_mode() -> None:
    """The tensor for seeds is made by a thread's first draw and must be writable later, in any mode."""
    q = PowerSpherical(unit(3, 5), torch.ones(3))

    def work() -> Tensor:
        with torch.inference_mode():
            q.rsample()
        return q.rsample()

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        assert pool.submit(work).result().isfinite().all()


@needs_library
@pytest.mark.slow
def test_a_forked_process_draws_the_same() -> None:
    """The library starts its threads for each call, so that a fork leaves no broken pool behind."""
    code = """
        import os, torch
        from powerspherical import VonMisesFisher
        torch.set_num_threads(2)
        q = VonMisesFisher(torch.nn.functional.normalize(torch.ones(1 << 15, 32), dim=-1), torch.ones(1 << 15))
        q.sample()
        torch.manual_seed(5)
        state = torch.get_rng_state()
        expected = q.sample()
        torch.set_rng_state(state)
        child = os.fork()
        if child == 0:
            os._exit(0 if q.sample().numpy().tobytes() == expected.numpy().tobytes() else 1)
        print(os.waitpid(child, 0)[1])
    """
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(code)],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("0\n", "")


@needs_library
@names
def test_operators_are_well_behaved(name: str) -> None:
    loc, kappa = unit(4, 5).requires_grad_(), torch.ones(4, requires_grad=True)
    checks = ("test_schema", "test_faketensor", "test_autograd_registration")
    arguments = loc, kappa, (4,), None, 0, 5, name
    torch.library.opcheck(torch.ops.powerspherical.draw.default, arguments, test_utils=checks)
    x, scalars = draw(name, loc.detach(), kappa.detach())
    arguments = torch.randn(4, 5), x, loc.detach(), scalars, kappa.detach(), 5, name, True, True
    torch.library.opcheck(torch.ops.powerspherical.draw_backward.default, arguments)


# The C code and its installation


def levels_here() -> tuple[str, ...]:
    """The levels of x86-64 that this processor can run, the highest first; none on other processors."""
    levels = {"AVX-512": ("_v4", "_v3", "_v1"), "AVX2": ("_v3", "_v1"), "SSE2": ("_v1",)}
    return levels.get(library.description(), ())


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("level", levels_here() or [None])
def test_sanitizers(level: str | None, tmp_path: Path) -> None:
    """No access outside of an array, no undefined behaviour: every function on shapes with edges, on threads, too."""
    flags = [
        "-g",
        "-O0",
        "-std=gnu11",
        "-fsanitize=address,undefined",
        "-fno-sanitize-recover=all",
        "-pthread",
    ]
    empty = tmp_path / "empty.c"
    empty.write_text("int main(void) { return 0; }")
    command = [*build.compiler(), *flags, str(empty), "-o", str(tmp_path / "empty")]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("the compiler has no sanitizers")
    program = tmp_path / "fuzz"
    source = Path(__file__).with_name("native_fuzz.c")
    command = [
        *build.compiler(),
        *flags,
        *(build.LEVELS[level] if level else ()),
        f"-I{build.SOURCES}",
        str(source),
        "-o",
        str(program),
        "-lm",
    ]
    subprocess.run(command, check=True, capture_output=True)
    done = subprocess.run([program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert int(done.stdout.split()[0]) > 1000


def at_level(level: str, folder: Path) -> dict[str, Any]:
    """The functions of the library, compiled for one level of x86-64 and nothing else."""
    target, source = folder / f"{level}.so", build.SOURCES / "kernel.c"
    command = [
        *build.compiler(),
        *build.FLAGS,
        "-O1",
        *build.LEVELS[level],
        "-shared",
        str(source),
        "-o",
        str(target),
    ]
    subprocess.run([*command, "-lm"], check=True, capture_output=True)
    kernels = ctypes.CDLL(str(target))
    functions = {name: getattr(kernels, f"sphere_{name}") for name in library.FUNCTIONS}
    for function in functions.values():
        function.argtypes, function.restype = [ctypes.c_char_p], ctypes.c_int
    return functions


@needs_library
@needs_compiler
@pytest.mark.slow
def test_every_level_gives_the_same_numbers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Up to rounding, which can change whether a candidate is rejected: in one row in thousands at most."""
    if len(levels_here()) < 2:
        pytest.skip("the processor has one level")
    levels = [at_level(level, tmp_path) for level in levels_here()]
    like, all_normals = torch.empty(0, dtype=torch.float64), []
    for functions in levels:
        use_functions(monkeypatch, functions)
        all_normals.append(native.standard_normals((10_001,), like, torch.Generator().manual_seed(1)))
    for other in all_normals[1:]:
        torch.testing.assert_close(all_normals[0], other, rtol=2e-15, atol=0)
    kappa = torch.cat([torch.zeros(1), torch.logspace(-6, 9, 400)])
    for function, dim in itertools.product(
        (power_relative_entropy, exponential_relative_entropy), (2, 3, 64)
    ):
        results = []
        for functions in levels:
            use_functions(monkeypatch, functions)
            with torch.no_grad():  # or the derivative would not come from the library
                results.append(torch.stack(function.and_slope(kappa, dim)))
        for other in results[1:]:
            torch.testing.assert_close(results[0], other, rtol=3e-6, atol=0)
    for name, dim in itertools.product(native.FAMILIES, (2, 3, 4, 6, 11, 40, 101)):
        loc, kappa, grad = unit(1000, dim), torch.rand(1000) * 50, torch.randn(1000, dim)
        results = []
        for functions in levels:
            use_functions(monkeypatch, functions)
            x, scalars = draw(name, loc, kappa)
            grads = native.pull_back(name, grad, x, loc, scalars, kappa, dim, True, True)
            results.append([x, *scalars, *grads])
        for other in results[1:]:
            for one, two in zip(results[0], other, strict=True):
                assert one is not None
                assert two is not None
                close = torch.isclose(one, two, rtol=2e-5, atol=2e-5 * one.abs().max().item())
                assert close.view(1000, -1).all(-1).sum() >= 997
    for name, dim in itertools.product(native.FAMILIES, (2, 3, 4, 6, 11, 40, 101)):
        inputs = [unit(1000, dim), unit(10, 1, dim), torch.rand(100) * 50]
        leaves = [inputs[0].view(10, 100, dim), *inputs[1:]]
        results = []
        for functions in levels:
            use_functions(monkeypatch, functions)
            for leaf in leaves:
                leaf.requires_grad_()
            value = log_density(family_named(name), *leaves)
            results.append([value.detach(), *torch.autograd.grad(value.sum(), leaves)])
        for other in results[1:]:
            for one, two in zip(results[0], other, strict=True):
                torch.testing.assert_close(one, two, rtol=2e-6, atol=2e-6 * one.abs().max().item())
    for dim in (2, 3, 4, 6, 11, 40, 101):
        outputs, grads = torch.randn(1000, dim + 1), (torch.randn(1000, dim), torch.randn(1000))
        results = []
        for functions in levels:
            use_functions(monkeypatch, functions)
            loc, kappa = _native_parameters.values(outputs, dim, 0.5, 60.0)
            results.append((loc, kappa, _native_parameters.gradient(outputs, loc, *grads, 0.5, 60.0)))
        for other in results[1:]:
            torch.testing.assert_close(results[0], other, rtol=1e-6, atol=1e-6)


def test_without_a_compiler(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setenv("CC", "no-such-compiler -flag")
    with pytest.raises(FileNotFoundError, match=r"no-such-compiler was not found; set CC"):
        build.build(tmp_path / "library.so")
    assert build.main() == 0
    assert "no-such-compiler" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


class Hook:
    """The installation's hook in a copy of the project, with a compiler that only records its arguments."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = tmp_path / "src" / "powerspherical" / "_native"
        shutil.copytree(build.FOLDER, self.folder, ignore=shutil.ignore_patterns("*.so", "__pycache__", ".*"))
        self.compiler, self.commands = tmp_path / "cc", tmp_path / "commands"
        self.compiler.write_text(
            f'#!/bin/sh\necho "$@" >> {self.commands}\n'
            'while [ $# -gt 0 ]; do if [ "$1" = -o ]; then echo built > "$2"; fi; shift; done\n'
        )
        self.compiler.chmod(0o755)
        interface = types.ModuleType("hatchling.builders.hooks.plugin.interface")
        interface.BuildHookInterface = object  # type: ignore[attr-defined]
        for name in (
            "hatchling",
            "hatchling.builders",
            "hatchling.builders.hooks",
            "hatchling.builders.hooks.plugin",
        ):
            monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
        monkeypatch.setitem(sys.modules, interface.__name__, interface)
        for variable in ("POWERSPHERICAL_PLATFORM", "POWERSPHERICAL_REQUIRE_NATIVE"):
            monkeypatch.delenv(variable, raising=False)
        spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        self.warnings: list[str] = []
        self.hook = module.NativeLibrary()
        self.hook.root = str(tmp_path)
        self.hook.app = types.SimpleNamespace(display_warning=self.warnings.append)

    def __call__(self) -> dict[str, Any]:
        data: dict[str, Any] = {"pure_python": True, "artifacts": []}
        self.hook.initialize("standard", data)
        return data


@pytest.fixture
def hook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hook:
    return Hook(tmp_path, monkeypatch)


def test_installation_with_a_compiler(hook: Hook, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", str(hook.compiler))
    monkeypatch.setenv("POWERSPHERICAL_PLATFORM", "manylinux_2_17_x86_64")
    assert hook() == {
        "pure_python": False,
        "tag": "py3-none-manylinux_2_17_x86_64",
        "artifacts": ["src/powerspherical/_native/_sphere.so"],
    }
    assert (hook.folder / "_sphere.so").read_text() == "built\n"
    commands = hook.commands.read_text()
    assert [f"-DLEVEL={level}" in commands for level in ("_v1", "_v3", "_v4")] == [True] * 3
    assert not any(path.name.startswith(".building") for path in hook.folder.iterdir())


def test_installation_on_another_processor(hook: Hook, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", str(hook.compiler))
    monkeypatch.setenv("POWERSPHERICAL_PLATFORM", "manylinux_2_17_aarch64")
    assert hook()["tag"] == "py3-none-manylinux_2_17_aarch64"
    assert "LEVEL" not in hook.commands.read_text()


@pytest.mark.parametrize("compiler", ["no-such-compiler", "false"])
def test_installation_without_a_compiler(hook: Hook, compiler: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", compiler)
    outdated = hook.folder / "_sphere.so"
    outdated.write_text("of another build")
    assert hook() == {"pure_python": True, "artifacts": []}
    assert not outdated.exists()
    assert len(hook.warnings) == 1
    assert compiler in hook.warnings[0]


@pytest.mark.parametrize("compiler", ["no-such-compiler", "false"])
def test_a_release_needs_a_compiler(hook: Hook, compiler: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", compiler)
    monkeypatch.setenv("POWERSPHERICAL_REQUIRE_NATIVE", "1")
    with pytest.raises((FileNotFoundError, subprocess.CalledProcessError), match=compiler):
        hook()
