"""The fused kernels: compiled on a GPU, otherwise in Triton's interpreter (see conftest.py)."""

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
from powerspherical.sampling.triton import exponential_slope as exponential_kernel  # noqa: E402
from powerspherical.sampling.triton import pull_back as pull_back_kernel  # noqa: E402
from powerspherical.sampling.triton import slope as slope_kernel  # noqa: E402
from powerspherical.sampling.triton.random import normal_pair  # noqa: E402

LEVEL = 1e-6
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
COMPILED = DEVICE == "cuda"
COUNT = 100_000 if COMPILED else 1000  # draws; the interpreter is slow
families = pytest.mark.parametrize("name", FAMILIES)


def directions(*shape: int) -> Tensor:
    return torch.nn.functional.normalize(torch.randn(shape, device=DEVICE), dim=-1)


def draw(
    name: str, loc: Tensor, kappa: Tensor, seed: int = 1, dim: int | None = None
) -> tuple[Tensor, Tensor]:
    """Return x, and the scalars 1-t, 1+t and noise of each row."""
    x = torch.empty(len(kappa), loc.shape[-1], dtype=loc.dtype, device=DEVICE)
    scalars = torch.zeros(3, len(kappa), device=DEVICE)
    number = FAMILIES[name]
    draw_kernel.draw(x, scalars, loc, kappa, seed, number, dim or loc.shape[-1])
    return x, scalars


def constant(value: float, count: int = COUNT) -> Tensor:
    return torch.full((count,), value, device=DEVICE)


@triton.jit
def _largest_uniform(out_ptr, FAST: tl.constexpr):
    ones = tl.full((1,), 0xFFFFFFFF, tl.uint32)
    normal, _ = normal_pair(ones, ones * 0, FAST)
    tl.store(out_ptr + tl.arange(0, 1), normal)


def test_no_normal_vector_is_zero() -> None:
    """A uniform number that is rounded to 1 must not give the radius 0, because x needs a direction."""
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
    x, (one_minus_t, one_plus_t, noise) = draw(name, loc, constant(kappa), seed=dim)
    ends = (end.double() for end in (one_minus_t, one_plus_t))
    log_cdf, _ = family_named(name).log_tails(*ends, constant(kappa).double(), dim)
    assert scipy.stats.kstest(log_cdf.exp().cpu().numpy(), "uniform").pvalue > LEVEL
    if dim == 3 and name != SPHERICAL_CAUCHY.name:
        assert scipy.stats.kstest(noise.cpu().numpy(), scipy.stats.chi2(2).cdf).pvalue > LEVEL
    elif name == POWER_SPHERICAL.name:
        law = scipy.stats.gamma((dim - 1) / 2 + kappa).cdf
        assert scipy.stats.kstest(noise.cpu().numpy(), law).pvalue > LEVEL
    torch.testing.assert_close(x.norm(dim=-1), torch.ones_like(one_minus_t), rtol=0, atol=1e-6)
    if kappa < 1e3:  # for larger κ the dot product is not accurate enough
        torch.testing.assert_close((x * loc).sum(-1), 1 - one_minus_t, rtol=0, atol=1e-6)


@families
@pytest.mark.parametrize("dim", [2, 3, 6])
def test_the_direction_is_uniform_and_independent_of_the_cosine(name: str, dim: int) -> None:
    loc = directions(1, dim)
    x, (one_minus_t, one_plus_t, _) = draw(name, loc, constant(2.0))
    across = torch.linalg.svd(loc).Vh[1]
    coordinate = ((x @ across) / (one_minus_t * one_plus_t).sqrt()).cpu()
    if dim == 2:
        coordinate = coordinate.sign()  # ±1 up to rounding
        assert abs(coordinate.mean().item()) < 5 / math.sqrt(COUNT)
    else:  # a coordinate of a uniform point of the sphere of R^{d-1}
        law = scipy.stats.beta((dim - 2) / 2, (dim - 2) / 2, loc=-1, scale=2).cdf
        assert scipy.stats.kstest(coordinate.double().numpy(), law).pvalue > LEVEL
    assert scipy.stats.spearmanr(coordinate.numpy(), one_minus_t.cpu().numpy()).pvalue > LEVEL


@families
def test_a_row_depends_on_nothing_but_seed_and_number(name: str) -> None:
    """A row does not depend on the other rows or on their number, which changes the blocks."""
    loc = directions(40, 5)
    kappa = torch.rand(40, device=DEVICE) * 10
    x, scalars = draw(name, loc, kappa)
    few, few_scalars = draw(name, loc[:7].contiguous(), kappa[:7])
    assert torch.equal(x[:7], few)
    assert torch.equal(scalars[:, :7], few_scalars)
    (again, _), (other, _) = draw(name, loc, kappa), draw(name, loc, kappa, seed=2)
    assert torch.equal(x, again)
    assert not torch.isclose(x, other).all(-1).any()
    assert len(x.unique(dim=0)) == 40


@families
@pytest.mark.parametrize("dim", [3, 5])
def test_scalars_that_are_not_needed(name: str, dim: int) -> None:
    loc, kappa = directions(40, dim), torch.rand(40, device=DEVICE) * 10
    x = torch.empty_like(loc)
    draw_kernel.draw(x, None, loc, kappa, 1, FAMILIES[name], dim)
    # Compiled for a GPU, the variant without the scalars may round differently.
    tolerance = 1e-6 if COMPILED else 0.0
    torch.testing.assert_close(x, draw(name, loc, kappa)[0], rtol=tolerance, atol=tolerance)


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
    _, (one_minus_t, one_plus_t, _) = draw(name, directions(1, 4), constant(kappa), dim=dim)
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
    scalars = torch.empty(3, 40, device=DEVICE)
    draw_kernel.draw(x, scalars, loc, each[:1], seed, FAMILIES[name], 5)
    assert torch.equal(x, draw(name, loc, each)[0])


@pytest.mark.parametrize(
    ("rows", "count", "dim"),
    [(37, 37, 5), (40, 1, 7), (36, 6, 3), (1500, 1, 4), (10, 5, 200), (3, 3, 2), (4, 4, 5000), (3, 1, 5000)],
)
def test_pull_back(rows: int, count: int, dim: int) -> None:
    loc, kappa = directions(count, dim), constant(max(4.0, dim / 4), rows)
    x, scalars = draw("power_spherical", loc, kappa)
    grad, slope = torch.randn_like(x), torch.rand(rows, device=DEVICE).clamp_(min=0.01)
    reciprocal = slope_kernel.RECIPROCAL.value  # the slope 1/(1+κ), which we can set to any value
    kappa = 1 / slope - 1

    def pull_back(method, kappa=kappa, **options):
        return pull_back_kernel.pull_back(grad, x, loc, scalars, kappa, method, dim, **options)

    grad_loc, grad_kappa = pull_back(reciprocal)
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
    nothing, only_kappa = pull_back(reciprocal, needs_loc=False)
    assert nothing is None
    torch.testing.assert_close(only_kappa, grad_kappa)
    # With one κ and one direction for all rows, the gradient in κ is the sum.
    _, each = pull_back(reciprocal, kappa[:1].expand(rows).contiguous())
    for options in ({}, {"needs_loc": False}):
        _, one = pull_back(reciprocal, kappa[0], **options)
        assert one.shape == (() if count == 1 else (rows,))
        torch.testing.assert_close(one.sum(), each.sum(), rtol=1e-4, atol=1e-5 * rows)


@pytest.mark.parametrize("dim", [2, 4, 5, 8, 9, 40, 5000])
def test_rapidity_slope(dim: int) -> None:
    """Compare with finite differences of the quantile of G in float64."""
    kappa = torch.cat([torch.zeros(5), torch.logspace(-1, 5, 75 if dim < 100 else 15)]).to(DEVICE)
    loc = directions(1, dim)
    x, scalars = draw("power_spherical", loc, kappa)
    # If the gradient in x is μ, the gradient in κ is dt/dκ.
    saved = loc.expand_as(x).contiguous(), x, loc, scalars
    slope = slope_kernel.slope_method(POWER_SPHERICAL.name, dim)
    _, grad_kappa = pull_back_kernel.pull_back(*saved, kappa, slope, dim)
    one_minus_t, one_plus_t, gamma = scalars
    relative = grad_kappa.double() / (one_minus_t.double() * one_plus_t.double())
    expected = 0.5 * log_slope(kappa.double() + (dim - 1) / 2, gamma)
    torch.testing.assert_close(relative.cpu(), expected, rtol=2e-4, atol=0)


def test_rapidity_slope_of_a_long_row_with_a_small_shape() -> None:
    """The kernel for long rows, with a law of t of a lower dimension."""
    kappa, dim = torch.tensor([0.5, 2.0, 100.0], device=DEVICE), 4
    loc = directions(3, 5000)
    x, scalars = draw(POWER_SPHERICAL.name, loc, kappa, dim=dim)
    slope = slope_kernel.slope_method(POWER_SPHERICAL.name, dim)
    _, grad_kappa = pull_back_kernel.pull_back(loc, x, loc, scalars, kappa, slope, dim)
    one_minus_t, one_plus_t, gamma = scalars
    relative = grad_kappa.double() / (one_minus_t.double() * one_plus_t.double())
    expected = 0.5 * log_slope(kappa.double() + (dim - 1) / 2, gamma)
    torch.testing.assert_close(relative.cpu(), expected, rtol=2e-4, atol=0)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # raised by NumPy in the interpreter
@pytest.mark.parametrize("name", [POWER_SPHERICAL.name, VON_MISES_FISHER.name])
@pytest.mark.parametrize("shared", [False, True], ids=["each", "shared"])
def test_two_sphere(name: str, shared: bool) -> None:
    """At d = 3: 1-t and 1+t from ‖v‖² in float64, and the slope at a fixed probability."""
    kappa = torch.tensor([0.0, 1e-12, 1e-3, 0.1, 0.49, 0.51, 1.0, 9.9, 10.1, 60.0, 1e3, 1e6, 1e12, 1e18])
    kappa = kappa.repeat_interleave(40).to(DEVICE)
    family, loc = family_named(name), directions(1 if shared else len(kappa), 3)
    x, (one_minus_t, one_plus_t, noise) = draw(name, loc, kappa)
    found = one_minus_t.double(), one_plus_t.double()
    for end, expected in zip(found, family.draw_cosine(noise.double(), kappa.double(), 3)[:2], strict=True):
        torch.testing.assert_close(end, expected, rtol=3e-6, atol=0)
    unused = torch.full_like(noise, math.nan)
    # If μ and the gradient in x are the same axis, the gradient in κ is dt/dκ without further rounding errors.
    axis = torch.eye(3, device=DEVICE)[:1]
    grad = axis.expand_as(x).contiguous()
    saved = grad, x, axis if shared else grad, torch.stack((one_minus_t, one_plus_t, unused))
    _, slope = pull_back_kernel.pull_back(*saved, kappa, slope_kernel.slope_method(name, 3), 3)
    expected = family.rapidity_slope(*found, unused.double(), kappa.double(), 3)
    torch.testing.assert_close(slope.double() / (found[0] * found[1]), expected, rtol=2e-6, atol=0)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # raised by NumPy in the interpreter
@pytest.mark.parametrize("name", [POWER_SPHERICAL.name, VON_MISES_FISHER.name])
@pytest.mark.parametrize("dim", [3, 4])
def test_gradient_of_what_is_not_a_number_stays_in_its_row(name: str, dim: int) -> None:
    kappa = torch.tensor([1.0, math.nan, 1e9, 0.0], device=DEVICE)
    loc = directions(4, dim)
    x, scalars = draw(name, loc, kappa)
    method = slope_kernel.slope_method(name, dim)
    _, grad_kappa = pull_back_kernel.pull_back(loc, x, loc, scalars, kappa, method, dim)
    assert grad_kappa.isnan().tolist() == [False, True, False, False]


def test_rapidity_slope_of_spherical_cauchy() -> None:
    kappa = torch.logspace(-3, 8, 50, device=DEVICE)
    loc = directions(1, 5)
    x, scalars = draw(SPHERICAL_CAUCHY.name, loc, kappa)
    one_minus_t, one_plus_t, _ = scalars
    slope = slope_kernel.slope_method(SPHERICAL_CAUCHY.name, 5)
    saved = loc.expand_as(x).contiguous(), x, loc, scalars
    _, grad_kappa = pull_back_kernel.pull_back(*saved, kappa, slope, 5)
    # The tangential part of the gradient is zero up to the square of a rounding error.
    scaled, expected = grad_kappa.double() * (1 + kappa.double()), one_minus_t.double() * one_plus_t.double()
    torch.testing.assert_close(scaled, expected, rtol=1e-5, atol=1e-13)


def von_mises_fisher_slope(ends: tuple[Tensor, Tensor], kappa: Tensor, dim: int, width: int = 2) -> Tensor:
    """Return d artanh(t)/dκ from the pull-back of points x with the cosines 1 - ``ends[0]``.

    The gradient g in x is parallel to μ, so the gradient in κ is dt/dκ · g·μ. We choose g·μ = 1/(1-t²).
    """
    one_minus_t, one_plus_t = (end.to(DEVICE) for end in ends)
    loc = torch.eye(width, device=DEVICE)[:1].repeat(len(one_minus_t), 1)
    x = (1 - one_minus_t).unsqueeze(-1) * loc
    grad = loc / (one_minus_t * one_plus_t).unsqueeze(-1)
    method = exponential_kernel.slope_method(dim)
    saved = grad, x, loc, torch.stack((one_minus_t, one_plus_t, one_minus_t))
    _, slope = pull_back_kernel.pull_back(*saved, kappa.to(DEVICE), method, dim, needs_loc=False)
    return slope.cpu()


LEVELS = torch.tensor([1e-7, 1e-5, 1e-2, 0.3, 0.8, 1 - 1e-3, 1 - 1e-7], dtype=torch.float64)


def quantiles(kappa: Tensor, dim: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return 1-t, 1+t and κ for a grid of concentrations and probabilities, flattened, in float32."""
    kappa = kappa.repeat_interleave(len(LEVELS))
    levels = LEVELS.repeat(len(kappa) // len(LEVELS))
    ends = VON_MISES_FISHER.quantile(levels, 1 - levels, kappa.double(), dim)
    minus, plus = (end.float() for end in ends)
    return minus, plus, kappa


def by_quadrature(minus: Tensor, plus: Tensor, kappa: Tensor, dim: int) -> Tensor:
    """Return the float64 slope at the t given by the smaller of 1-t and 1+t, since their sum is rounded."""
    minus, plus = minus.double(), plus.double()
    ends = torch.where(minus < plus, minus, 2 - plus), torch.where(minus < plus, 2 - minus, plus)
    return VON_MISES_FISHER.implicit_slope(*ends, kappa.double(), dim)


@pytest.mark.parametrize("dim", [2, 3, 4, 9, 31, 32, 63, 64, 1000, 65_536])
def test_rapidity_slope_of_von_mises_fisher(dim: int) -> None:
    """Compare with the quadrature in float64, for small κ, large κ, and both in one block."""
    low, high = [0.0, 1e-3, 0.1, 1.0, 5.0, 10.0, 30.0, 39.9], [40.0, 60.0, 1e2, 1e3, 1e4, 1e5, 1e6, 1e9]
    for kappas in (low, high, low + high):
        minus, plus, kappa = quantiles(torch.tensor(kappas), dim)
        slope = von_mises_fisher_slope((minus, plus), kappa, dim)
        exact = by_quadrature(minus, plus, kappa, dim)
        torch.testing.assert_close(slope.double(), exact, rtol=5e-6, atol=0)


@pytest.mark.parametrize("dim", [3, 40])
def test_rapidity_slope_of_von_mises_fisher_with_one_concentration(dim: int) -> None:
    minus, plus, kappa = quantiles(torch.tensor([7.0]), dim)
    one = von_mises_fisher_slope((minus, plus), kappa[:1], dim)
    torch.testing.assert_close(one, von_mises_fisher_slope((minus, plus), kappa, dim))


@pytest.mark.parametrize("dim", [3, 6000])
def test_rapidity_slope_of_von_mises_fisher_in_long_rows(dim: int) -> None:
    """The kernel that reads a row in chunks."""
    minus, plus, kappa = (x[::3].contiguous() for x in quantiles(torch.tensor([2.0, 50.0]), dim))
    slope = von_mises_fisher_slope((minus, plus), kappa, dim, width=6000)
    exact = by_quadrature(minus, plus, kappa, dim)
    torch.testing.assert_close(slope.double(), exact, rtol=5e-6, atol=0)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # raised by NumPy in the interpreter
@pytest.mark.parametrize("dim", [2, 5, 40, 1000])
def test_rapidity_slope_of_von_mises_fisher_at_extreme_concentrations(dim: int) -> None:
    """No overflow, and NaN stays in its row."""
    kappa = torch.tensor([1.0, math.nan, 1e15, 1e18, 1e22, 1e30, 1e37])
    # About the mean, 1-t = (d-1)/(2κ).
    minus = torch.where(kappa > 1e3, (dim - 1) / 2 / kappa.double(), 0.5).float()
    slope = von_mises_fisher_slope((minus, 2 - minus), kappa, dim)
    assert slope.isnan().tolist() == [value != value for value in kappa.tolist()]
    # At large κ, 1-t is proportional to 1/κ: d artanh(t)/dκ = 1/(2κ).
    torch.testing.assert_close(2 * kappa[2:] * slope[2:], torch.ones(5), rtol=5e-6, atol=0)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # raised by NumPy in the interpreter
@families
def test_the_largest_and_the_wrong_concentrations(name: str) -> None:
    """The rejection loops end for all parameters, valid or not."""
    largest = torch.finfo(torch.float32).max
    kappa = torch.tensor([largest, math.inf, -1e3, -0.5, math.nan], device=DEVICE)
    for dim in (2, 3, 5):
        loc = directions(len(kappa), dim)
        x, *_ = draw(name, loc, kappa)
        torch.testing.assert_close(x[0], loc[0])
        assert x[-1].isnan().all()
