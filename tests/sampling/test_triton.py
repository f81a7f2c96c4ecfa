"""The logic of the fused kernels: on a GPU as compiled, elsewhere in Triton's interpreter (see tests/conftest.py)."""

from __future__ import annotations

import math

import pytest
import scipy.special
import scipy.stats
import torch
from torch import Tensor

from helpers.gamma import log_slope
from powerspherical.families import POWER_SPHERICAL, SPHERICAL_CAUCHY, VON_MISES_FISHER, family_named
from powerspherical.sampling import geometry
from powerspherical.sampling.triton.fused import FAMILIES

triton = pytest.importorskip("triton", reason="Triton is not installed")
tl = triton.language

from powerspherical.sampling.triton import draw as draw_kernel  # noqa: E402
from powerspherical.sampling.triton import pull_back as pull_back_kernel  # noqa: E402
from powerspherical.sampling.triton import slope as slope_kernel  # noqa: E402
from powerspherical.sampling.triton import tail as tail_kernel  # noqa: E402
from powerspherical.sampling.triton.random import normal_pair  # noqa: E402

LEVEL = 1e-6
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
COMPILED = DEVICE == "cuda"
COUNT = 100_000 if COMPILED else 1000  # draws; the interpreter takes milliseconds for each
families = pytest.mark.parametrize("name", FAMILIES)


def directions(*shape: int) -> Tensor:
    return torch.nn.functional.normalize(torch.randn(shape, device=DEVICE), dim=-1)


def draw(name: str, loc: Tensor, kappa: Tensor, seed: int = 1, dim: int | None = None) -> tuple[Tensor, ...]:
    x = torch.empty(len(kappa), loc.shape[-1], dtype=loc.dtype, device=DEVICE)
    # Each with memory of its own, as in the operator: unaligned pointers get another variant of the kernel.
    scalars = tuple(torch.zeros(len(kappa), device=DEVICE) for _ in range(3))
    number = FAMILIES[name]
    draw_kernel.draw(x, scalars, loc, kappa, seed, number, dim or loc.shape[-1], fast=COMPILED)
    return x, *scalars


def constant(value: float, count: int = COUNT) -> Tensor:
    return torch.full((count,), value, device=DEVICE)


@triton.jit
def _largest_uniform(out_ptr, FAST: tl.constexpr):
    ones = tl.full((1,), 0xFFFFFFFF, tl.uint32)
    normal, _ = normal_pair(ones, ones * 0, FAST)
    tl.store(out_ptr + tl.arange(0, 1), normal)


def test_no_normal_vector_is_zero() -> None:
    """A uniform number that is rounded to 1 gives a short radius, not none: x needs a direction."""
    out = torch.zeros(1, device=DEVICE)
    _largest_uniform[(1,)](out, COMPILED)
    assert 0 < abs(out.item()) < 3e-4


@pytest.mark.slow
@families
@pytest.mark.parametrize(
    ("dim", "kappa"),
    [(2, 0.0), (2, 3.0), (3, 0.0), (3, 1.0), (3, 1e6), (5, 30.0), (8, 1e6), (17, 1e3), (64, 100.0)],
)
def test_law(name: str, dim: int, kappa: float) -> None:
    loc = directions(1, dim)
    x, one_minus_t, one_plus_t, noise = draw(name, loc, constant(kappa), seed=dim)
    ends = (end.double() for end in (one_minus_t, one_plus_t))
    log_cdf, _ = family_named(name).log_tails(*ends, constant(kappa).double(), dim)
    assert scipy.stats.kstest(log_cdf.exp().cpu().numpy(), "uniform").pvalue > LEVEL
    if dim == 3 and name != SPHERICAL_CAUCHY.name:
        assert scipy.stats.kstest(noise.cpu().numpy(), scipy.stats.chi2(2).cdf).pvalue > LEVEL
    elif name == POWER_SPHERICAL.name:
        law = scipy.stats.gamma((dim - 1) / 2 + kappa).cdf
        assert scipy.stats.kstest(noise.cpu().numpy(), law).pvalue > LEVEL
    torch.testing.assert_close(x.norm(dim=-1), torch.ones_like(one_minus_t), rtol=0, atol=1e-6)
    if kappa < 1e3:  # beyond, the dot product has not the digits
        torch.testing.assert_close((x * loc).sum(-1), 1 - one_minus_t, rtol=0, atol=1e-6)


@families
@pytest.mark.parametrize("dim", [2, 3, 6])
def test_the_direction_is_uniform_and_independent_of_the_cosine(name: str, dim: int) -> None:
    loc = directions(1, dim)
    x, one_minus_t, one_plus_t, _ = draw(name, loc, constant(2.0))
    across = torch.linalg.svd(loc).Vh[1]
    coordinate = ((x @ across) / (one_minus_t * one_plus_t).sqrt()).cpu()
    if dim == 2:
        coordinate = coordinate.sign()  # all it has but for rounding
        assert abs(coordinate.mean().item()) < 5 / math.sqrt(COUNT)
    else:  # a coordinate of a uniform point of the sphere of R^{d-1}
        law = scipy.stats.beta((dim - 2) / 2, (dim - 2) / 2, loc=-1, scale=2).cdf
        assert scipy.stats.kstest(coordinate.double().numpy(), law).pvalue > LEVEL
    assert scipy.stats.spearmanr(coordinate.numpy(), one_minus_t.cpu().numpy()).pvalue > LEVEL


@families
def test_a_row_depends_on_nothing_but_seed_and_number(name: str) -> None:
    """Not on the other rows, nor on how many there are: other blocks, the same numbers."""
    loc = directions(40, 5)
    kappa = torch.rand(40, device=DEVICE) * 10
    many, few = draw(name, loc, kappa), draw(name, loc[:7].contiguous(), kappa[:7])
    for whole, part in zip(many, few, strict=True):
        assert torch.equal(whole[:7], part)
    again, other = draw(name, loc, kappa), draw(name, loc, kappa, seed=2)
    assert torch.equal(many[0], again[0])
    assert not torch.isclose(many[0], other[0]).all(-1).any()
    assert len(many[0].unique(dim=0)) == 40


@families
@pytest.mark.parametrize("count", [1, 4])
def test_rows_share_directions(name: str, count: int) -> None:
    loc, kappa = directions(count, 6), torch.rand(12, device=DEVICE) * 10
    shared = draw(name, loc, kappa)
    apart = draw(name, loc.repeat(12 // count, 1), kappa)
    for one, other in zip(shared, apart, strict=True):
        assert torch.equal(one, other)


@families
def test_half_precision(name: str) -> None:
    loc, kappa = directions(9, 16).bfloat16(), constant(20.0, 9)
    x, *_ = draw(name, loc, kappa)
    exact, *_ = draw(name, torch.nn.functional.normalize(loc.float(), dim=-1), kappa)
    assert x.dtype == torch.bfloat16
    torch.testing.assert_close(x, exact.bfloat16())


@families
@pytest.mark.parametrize("dim", [2, 3, 40])
def test_cosine_of_another_dimension(name: str, dim: int) -> None:
    kappa = 5.0
    _, one_minus_t, one_plus_t, _ = draw(name, directions(1, 4), constant(kappa), dim=dim)
    ends = (end.double() for end in (one_minus_t, one_plus_t))
    log_cdf, _ = family_named(name).log_tails(*ends, constant(kappa).double(), dim)
    assert scipy.stats.kstest(log_cdf.exp().cpu().numpy(), "uniform").pvalue > LEVEL


@families
def test_what_is_not_a_number_stays_in_its_row(name: str) -> None:
    kappa = torch.tensor([1.0, math.nan, 1e9, 0.0], device=DEVICE)
    x, *_ = draw(name, directions(4, 3), kappa)
    assert x.isnan().any(-1).tolist() == [False, True, False, False]


@families
def test_one_concentration_for_all_and_a_seed_in_memory(name: str) -> None:
    loc, each = directions(40, 5), constant(3.0, 40)
    x = torch.empty_like(loc)
    seed = torch.tensor(1, device=DEVICE)
    draw_kernel.draw(
        x, tuple(torch.empty(3, 40, device=DEVICE)), loc, each[:1], seed, FAMILIES[name], 5, fast=COMPILED
    )
    assert torch.equal(x, draw(name, loc, each)[0])


@pytest.mark.parametrize(
    ("rows", "count", "dim"),
    [(37, 37, 5), (40, 1, 7), (36, 6, 3), (1500, 1, 4), (10, 5, 200), (3, 3, 2), (4, 4, 5000), (3, 1, 5000)],
)
def test_pull_back(rows: int, count: int, dim: int) -> None:
    loc, kappa = directions(count, dim), constant(max(4.0, dim / 4), rows)
    x, *scalars = draw("power_spherical", loc, kappa)
    grad, slope = torch.randn_like(x), torch.rand(rows, device=DEVICE)

    def pull_back(slope, kappa=kappa, **options):
        return pull_back_kernel.pull_back(grad, x, loc, *scalars, kappa, slope, dim, **options)

    given = slope_kernel.GIVEN.value, slope
    grad_loc, grad_kappa = pull_back(given)
    grouped = (rows // count, count)
    ungrouped = (tensor.view(*grouped, *tensor.shape[1:]) for tensor in (grad, x))
    expected = geometry.pull_back(
        *ungrouped,
        loc,
        *(end.view(grouped) for end in scalars[:2]),
        slope.clone().view(grouped),
        needs_loc=True,
    )
    torch.testing.assert_close(grad_loc, expected[0], rtol=1e-5, atol=1e-6 * rows)
    torch.testing.assert_close(grad_kappa.view(grouped), expected[1], rtol=1e-4, atol=1e-5)

    only_loc, nothing = pull_back(None)
    assert nothing is None
    torch.testing.assert_close(only_loc, grad_loc)
    nothing, only_kappa = pull_back(given, needs_loc=False)
    assert nothing is None
    torch.testing.assert_close(only_kappa, grad_kappa)
    # One κ for all: summed, where there is also one direction.
    for options in ({}, {"needs_loc": False}):
        _, one = pull_back(given, kappa[0], **options)
        assert one.shape == (() if count == 1 else (rows,))
        torch.testing.assert_close(one.sum(), grad_kappa.sum(), rtol=1e-4, atol=1e-5 * rows)


@pytest.mark.parametrize("dim", [2, 4, 5, 8, 9, 40, 5000])
def test_rapidity_slope(dim: int) -> None:
    """From the derivative of a quantile of G, by differences in float64."""
    kappa = torch.cat([torch.zeros(5), torch.logspace(-1, 5, 75 if dim < 100 else 15)]).to(DEVICE)
    loc = directions(1, dim)
    x, one_minus_t, one_plus_t, gamma = draw("power_spherical", loc, kappa)
    # With the gradient μ in x, that in κ is dt/dκ.
    saved = loc.expand_as(x).contiguous(), x, loc, one_minus_t, one_plus_t, gamma
    slope = slope_kernel.power_spherical_slope(gamma, dim)
    _, grad_kappa = pull_back_kernel.pull_back(*saved, kappa, slope, dim)
    relative = grad_kappa.double() / (one_minus_t.double() * one_plus_t.double())
    expected = 0.5 * log_slope(kappa.double() + (dim - 1) / 2, gamma)
    torch.testing.assert_close(relative.cpu(), expected, rtol=2e-4, atol=0)


def test_rapidity_slope_of_a_long_row_with_a_small_shape() -> None:
    """The kernel for long rows, at a law of t that is not the one of their dimension."""
    kappa, dim = torch.tensor([0.5, 2.0, 100.0], device=DEVICE), 4
    loc = directions(3, 5000)
    x, one_minus_t, one_plus_t, gamma = draw(POWER_SPHERICAL.name, loc, kappa, dim=dim)
    slope = slope_kernel.power_spherical_slope(gamma, dim)
    _, grad_kappa = pull_back_kernel.pull_back(loc, x, loc, one_minus_t, one_plus_t, gamma, kappa, slope, dim)
    relative = grad_kappa.double() / (one_minus_t.double() * one_plus_t.double())
    expected = 0.5 * log_slope(kappa.double() + (dim - 1) / 2, gamma)
    torch.testing.assert_close(relative.cpu(), expected, rtol=2e-4, atol=0)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of NumPy, which the interpreter computes with
@pytest.mark.parametrize("name", [POWER_SPHERICAL.name, VON_MISES_FISHER.name])
@pytest.mark.parametrize("shared", [False, True], ids=["each", "shared"])
def test_two_sphere(name: str, shared: bool) -> None:
    """At d = 3: 1-t and 1+t from ‖v‖² in float64, and the slope at a fixed probability."""
    kappa = torch.tensor([0.0, 1e-12, 1e-3, 0.1, 0.49, 0.51, 1.0, 9.9, 10.1, 60.0, 1e3, 1e6, 1e12, 1e18])
    kappa = kappa.repeat_interleave(40).to(DEVICE)
    family, loc = family_named(name), directions(1 if shared else len(kappa), 3)
    x, one_minus_t, one_plus_t, noise = draw(name, loc, kappa)
    found = one_minus_t.double(), one_plus_t.double()
    for end, expected in zip(found, family.draw_cosine(noise.double(), kappa.double(), 3)[:2], strict=True):
        torch.testing.assert_close(end, expected, rtol=3e-6, atol=0)
    way = {
        POWER_SPHERICAL.name: slope_kernel.power_spherical_slope(noise, 3),
        VON_MISES_FISHER.name: (slope_kernel.VON_MISES_FISHER_3.value, noise),
    }[name]
    unused = torch.full_like(noise, math.nan)
    saved = torch.randn_like(x), x, loc, one_minus_t, one_plus_t, unused
    # The gradient in κ is the slope times what it is for slopes of one.
    one = slope_kernel.GIVEN.value, torch.ones_like(noise)
    actual, unit = (pull_back_kernel.pull_back(*saved, kappa, slope, 3)[1] for slope in (way, one))
    expected = family.rapidity_slope(*found, unused.double(), kappa.double(), 3)
    torch.testing.assert_close(actual.double() / unit.double(), expected, rtol=2e-6, atol=0)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of NumPy, which the interpreter computes with
@pytest.mark.parametrize("name", [POWER_SPHERICAL.name, VON_MISES_FISHER.name])
@pytest.mark.parametrize("dim", [3, 4])
def test_gradient_of_what_is_not_a_number_stays_in_its_row(name: str, dim: int) -> None:
    kappa = torch.tensor([1.0, math.nan, 1e9, 0.0], device=DEVICE)
    loc = directions(4, dim)
    x, *scalars = draw(name, loc, kappa)
    if name == POWER_SPHERICAL.name:
        way = slope_kernel.power_spherical_slope(scalars[2], dim)
    elif dim == 3:
        way = slope_kernel.VON_MISES_FISHER_3.value, scalars[2]
    else:
        way = slope_kernel.GIVEN.value, tail_kernel.implicit_slope(*scalars[:2], kappa, dim)
    _, grad_kappa = pull_back_kernel.pull_back(loc, x, loc, *scalars, kappa, way, dim)
    assert grad_kappa.isnan().tolist() == [False, True, False, False]


def test_rapidity_slope_of_spherical_cauchy() -> None:
    kappa = torch.logspace(-3, 8, 50, device=DEVICE)
    loc = directions(1, 5)
    x, *scalars = draw(SPHERICAL_CAUCHY.name, loc, kappa)
    one_minus_t, one_plus_t, noise = scalars
    slope = slope_kernel.SHIFTED.value, noise
    saved = loc.expand_as(x).contiguous(), x, loc, *scalars
    _, grad_kappa = pull_back_kernel.pull_back(*saved, kappa, slope, 5)
    # The part of the gradient across the direction is zero up to the square of a rounding error.
    scaled, expected = grad_kappa.double() * (1 + kappa.double()), one_minus_t.double() * one_plus_t.double()
    torch.testing.assert_close(scaled, expected, rtol=1e-5, atol=1e-13)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of NumPy, which the interpreter computes with
@pytest.mark.parametrize("dim", [2, 3, 4, 9, 64, 1000, 65_536])
def test_rapidity_slope_of_von_mises_fisher(dim: int) -> None:
    """By the same quadrature as the general one, but in two tails, where that takes the mean from Bessel functions."""
    kappa = torch.tensor([0.0, 1e-3, 0.1, 1.0, 10.0, 1e2, 1e3, 1e4, 1e5, 1e6, 1e9]).repeat(20)
    circle = directions(len(kappa), 2)
    cosines = torch.ops.powerspherical.draw(
        circle.double().cpu(), kappa.double(), kappa.shape, torch.tensor(0), dim, VON_MISES_FISHER.name
    )[1:3]
    ends = [end.float().to(DEVICE) for end in cosines]
    slope = tail_kernel.implicit_slope(*ends, kappa.to(DEVICE), dim)
    minus, plus = (end.cpu().double() for end in ends)
    exact = VON_MISES_FISHER.implicit_slope(minus, plus, kappa.double(), dim)
    # t itself is rounded to float32, and what it is off the mean by, 1/√d, is all that counts.
    torch.testing.assert_close(slope.cpu().double(), exact, rtol=3e-7 * dim**0.5, atol=0)
    one = tail_kernel.implicit_slope(*(end[:20].contiguous() for end in ends), kappa[3].to(DEVICE), dim)
    torch.testing.assert_close(one[3], slope[3])


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of NumPy, which the interpreter computes with
@families
def test_the_largest_and_the_wrong_concentrations(name: str) -> None:
    """No rejection goes on for ever, whatever the parameters are."""
    largest = torch.finfo(torch.float32).max
    kappa = torch.tensor([largest, math.inf, -1e3, -0.5, math.nan], device=DEVICE)
    for dim in (2, 3, 5):
        loc = directions(len(kappa), dim)
        x, *_ = draw(name, loc, kappa)
        torch.testing.assert_close(x[0], loc[0])
        assert x[-1].isnan().all()
