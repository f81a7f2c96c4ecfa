"""Draws with each engine: their law and gradients, the arguments and modes that they take, seeds and threads."""

from __future__ import annotations

import concurrent.futures
import itertools
import math
import subprocess
import sys
import textwrap

import pytest
import scipy.stats
import torch
import torch.autograd.forward_ad as forward_ad
from torch import Tensor

from helpers.directions import unit
from helpers.draws import draw, slopes
from helpers.engines import ENGINES, Engine, assert_threads_change_nothing, is_missing, negative_view
from helpers.examples import DOUBLE, FLOAT, comparable, exponential_families, families, family_objects
from helpers.statistical import assert_law, assert_mean, assert_reproducible, assert_uncorrelated
from powerspherical import PowerSpherical, engines, sampling
from powerspherical.engines import block_limit
from powerspherical.families import Family
from powerspherical.families.derived import log_tails
from powerspherical.quadrature.cosine import Cosine
from powerspherical.sampling import uniform

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's, in Triton's interpreter


def parameters(
    engine: Engine,
    loc_shape: tuple[int, ...],
    kappa_shape: tuple[int, ...],
    dim: int = 5,
    dtype: torch.dtype = FLOAT,
) -> tuple[Tensor, Tensor]:
    loc = unit(*loc_shape, dim, dtype=dtype, device=engine.device)
    return loc.requires_grad_(), (9 * torch.rand(kappa_shape)).to(loc).requires_grad_()


def after_seed(family: type, loc: Tensor, kappa: Tensor, shape: tuple[int, ...] = ()) -> Tensor:
    torch.manual_seed(3)
    return family(loc, kappa, validate_args=False).rsample(shape)


def assert_unit(x: Tensor, dtype: torch.dtype) -> None:
    assert x.dtype == dtype
    assert (x.double().norm(dim=-1) - 1).abs().max() < 5 * torch.finfo(dtype).eps


# The law


#: d and κ. The first ones take the ways on which the kernels differ, and are enough for the slow interpreter.
LAWS = [(2, 3.0), (3, 1.0), (17, 100.0), (2, 0.0), (2, 0.3), (3, 0.0), (4, 1.0), (8, 10.0), (9, 1e-3),
        (16, 100.0), (64, 0.0), (64, 20.0), (768, 500.0)]  # fmt: skip


def law_of(family: type, dim: int, kappa: float):
    """Return the distribution function of t, by formulas of SciPy where they are other ones than ours."""
    beta = (dim - 1) / 2
    if family is PowerSpherical:
        return scipy.stats.beta(beta + kappa, beta, loc=-1, scale=2).cdf
    marginal = family(unit(dim), kappa).marginal
    return lambda t: marginal.cdf(torch.as_tensor(t)).numpy()


@families
def test_law(engine: Engine, dtype: torch.dtype, family: type) -> None:
    """t has its law. The direction around μ is uniform, and independent of t."""
    for dim, kappa in LAWS[:3] if engine.is_interpreted else LAWS:
        count = 500 if engine.is_interpreted else 20_000 if dim < 100 else 5000
        if (dim, kappa) == (2, 0.0) and engine.name == "c":
            count = 400_000  # Gamma variables of the smallest shape reuse no random number of their rejection
        loc = unit(dim, dtype=dtype, device=engine.device)
        x = family(loc, kappa).sample((count,))
        assert_unit(x, dtype)
        x, loc = x.cpu().double(), loc.cpu().double()
        minus, plus = ((x - sign * loc).square().sum(-1) / 2 for sign in (1, -1))
        t = torch.where(minus < plus, 1 - minus, plus - 1)  # where rounding of the norm of x matters least
        assert_law(t.clamp(-1, 1), law_of(family, dim, kappa))
        coordinate = (x @ torch.linalg.svd(loc.unsqueeze(0)).Vh[1]) / (minus * plus).sqrt()
        if dim == 2:
            coordinate = coordinate.sign()
            assert abs(coordinate.mean()) < 5 / math.sqrt(count)
        else:  # a coordinate of a uniform point on the sphere of R^{d-1}
            assert_law(coordinate, scipy.stats.beta((dim - 2) / 2, (dim - 2) / 2, loc=-1, scale=2).cdf)
            assert_uncorrelated(coordinate.abs(), t)
        assert_uncorrelated(coordinate, t)


CONCENTRATED = [(2, 1e4), (3, 1e6), (9, 1e6), (3, 1e9), (1000, 1e9)]


@families
def test_law_of_concentrated_draws(engine: Engine, dtype: torch.dtype, family: type) -> None:
    """1-t has all its digits: if μ is an axis, it can be computed from the other coordinates of x."""
    for dim, kappa in CONCENTRATED[:2] if engine.is_interpreted else CONCENTRATED:
        pole = torch.eye(dim, dtype=dtype, device=engine.device)[0]
        count = 500 if engine.is_interpreted or dim > 100 else 20_000
        x = family(pole, kappa).sample((count,)).cpu().double()
        minus = x[:, 1:].square().sum(-1) / (1 + x[:, 0])
        log_cdf, _ = log_tails(family.family, Cosine(minus, 2 - minus), torch.full_like(minus, kappa), dim)
        assert_law(log_cdf.exp(), scipy.stats.uniform.cdf)


@exponential_families
def test_three_dimensions(engine: Engine, family: Family) -> None:
    """t is the quantile of e^{-S/2}, where S is random, with all digits of 1-t and 1+t."""
    kappa = torch.tensor([0.0, 1e-12, 1e-3, 0.3, 0.49, 0.51, 1.0, 9.99, 10.01, 300.0, 1e6, 1e18])
    kappa = kappa.repeat_interleave(40 if engine.is_interpreted else 20_000)
    q = draw(family, torch.eye(3, device=engine.device)[0], kappa.to(engine.device))
    expected, _ = family.draw_cosine(q.noise.double().cpu(), kappa.double(), 3)
    torch.testing.assert_close(q.minus.double().cpu(), expected[0], rtol=3e-6, atol=0)
    torch.testing.assert_close(q.plus.double().cpu(), expected[1], rtol=1e-5, atol=0)


@families
def test_cosine_of_another_dimension(engine: Engine, dtype: torch.dtype, family: type) -> None:
    """A marginal draws t with the law of R^d without points of that many coordinates."""
    for dim, kappa in ((2, 0.5), (3, 5.0), (64, 20.0), (10**6, 1e5))[2 * engine.is_interpreted :]:
        kappa = comparable(family, kappa, dim)
        concentration = torch.tensor(kappa, dtype=dtype, device=engine.device)
        marginal = type(family(unit(2), 1.0).marginal)(dim, concentration)
        t = marginal.sample((500 if engine.is_interpreted else 20_000,))
        assert t.dtype == dtype
        assert_law(t.double().cpu(), law_of(family, dim, kappa))


def test_uniform(dtype: torch.dtype, engine: Engine) -> None:
    x = uniform((20_000, 4), dtype=dtype, device=engine.device)
    assert_unit(x, dtype)
    for coordinate in x.double().cpu().unbind(-1):
        assert_law(coordinate, scipy.stats.beta(1.5, 1.5, loc=-1, scale=2).cdf)
    assert uniform((0, 3)).shape == (0, 3)
    with pytest.raises(ValueError, match=r"shape must be \(…, d\) with d ≥ 2 .*got \(4, 1\)"):
        uniform((4, 1))


def test_normals_that_are_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    """One in 2²⁴ float32 normals of torch is exactly zero and has no direction. Draws must handle it."""

    loc, kappa = unit(100, 2, dtype=FLOAT).requires_grad_(), torch.ones(100, requires_grad=True)

    def zeros(tensor: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        return tensor.zero_()

    monkeypatch.setattr(Tensor, "normal_", zeros)
    with engines.engine("torch"):
        x = PowerSpherical(loc, kappa).rsample()
    assert_unit(x, FLOAT)
    for gradient in torch.autograd.grad(x.sum(), (loc, kappa)):
        assert gradient.isfinite().all()


# Extremes


@families
def test_unit_length(engine: Engine, dtype: torch.dtype, family: type) -> None:
    """To five roundings: few directions are nearly parallel to their noise, and many rows find them."""
    kappa = torch.tensor([[0.0], [1.0], [1e3], [1e9]], dtype=dtype, device=engine.device)
    for dim in (2, 3, 5, 9, 64):
        rows = 10 if engine.is_interpreted else 50_000 // dim
        loc = unit(rows, dim, dtype=dtype, device=engine.device)
        assert_unit(family(loc, kappa).sample(), dtype)


@families
@pytest.mark.parametrize("dim", [2, 3, 7, 64])
def test_extreme_concentrations(engine: Engine, dtype: torch.dtype, family: type, dim: int) -> None:
    values = [0.0, 1e-30, 1e-6, 1e9, 1e20, 1e37, torch.finfo(dtype).max]
    kappa = torch.tensor(values, dtype=dtype, device=engine.device).requires_grad_()
    rows = 1 if engine.is_interpreted else 200
    loc = unit(rows, 1, dim, dtype=dtype, device=engine.device).requires_grad_()
    x = family(loc, kappa, validate_args=False).rsample()
    assert_unit(x, dtype)
    torch.testing.assert_close(x[..., 3:, :], loc.expand_as(x)[..., 3:, :], rtol=0, atol=1e-3)
    in_loc, in_kappa = torch.autograd.grad(x, (loc, kappa), torch.randn_like(x))
    assert in_loc.isfinite().all()
    assert in_kappa[:-1].isfinite().all()


@families
@pytest.mark.parametrize("dim", [2, 3, 7, 64])
def test_nan_and_wrong_concentrations(engine: Engine, dtype: torch.dtype, family: type, dim: int) -> None:
    """NaN stays in its row, in any place. Rejection ends for concentrations that are none."""
    loc = unit(40, dim, dtype=dtype, device=engine.device).requires_grad_()
    kappa = torch.full((40,), 3.0, dtype=dtype, device=engine.device)
    kappa[torch.tensor([0, 7, 39])] = math.nan
    x = family(loc, kappa.requires_grad_(), validate_args=False).rsample()
    for result in (x, *torch.autograd.grad(x, (loc, kappa), torch.randn_like(x))):
        rows = result.detach().view(40, -1).isnan()
        assert torch.equal(rows.all(-1), kappa.isnan())
        assert torch.equal(rows.any(-1), kappa.isnan())
    wrong = torch.tensor([math.inf, -1e3, -0.5, math.nan], dtype=dtype, device=engine.device)
    assert family(loc[:4], wrong, validate_args=False).sample()[-1].isnan().all()


# Gradients


@families
def test_mean_of_the_gradient(engine: Engine, dtype: torch.dtype, family: type) -> None:
    """dt/dκ is that of E t on average. vMF's would be 0.1277, not 0.1474, if rejected proposals were forgotten."""
    cases, count = [(5, 2.0), (2, 1.0), (3, 0.0), (3, 1.0), (20, 300.0)], 50_000
    if engine.is_interpreted:
        cases, count = cases[:1], 1000
    for dim, kappa in cases:
        rows = torch.full((count,), kappa, dtype=dtype, device=engine.device)
        loc = unit(dim, dtype=dtype, device=engine.device)
        (slope,) = torch.autograd.grad((family(loc, rows.requires_grad_()).rsample() @ loc).sum(), rows)
        one = torch.tensor(kappa, dtype=DOUBLE, requires_grad=True)
        (expected,) = torch.autograd.grad(family.family.mean_cosine(one, dim), one)
        assert_mean(slope.cpu(), expected, rounding=1e-6)


def gradients_of_the_same_draw(
    family: Family, loc: Tensor, kappa: Tensor, shape: tuple[int, ...], grad: Tensor
) -> tuple[Tensor, tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Return the points, their gradients in both parameters, and those by autograd through a motion in float64.

    The rotation that takes μ to μ + dμ moves x by t dμ - (x·dμ)μ, and κ moves x along the meridian through μ.
    """
    q = draw(family, loc, kappa, shape)
    found = torch.autograd.grad(q.x, (loc, kappa), grad)
    minus, plus, noise = (part.detach() for part in q[1:])
    rows = kappa.detach().expand(shape)
    slope = slopes(family, *(p.reshape(-1) for p in (minus, plus, noise, rows)), loc.shape[-1]).view(shape)
    leaves = [parameter.detach().double().requires_grad_() for parameter in (loc, kappa)]
    moving = torch.nn.functional.normalize(leaves[0], dim=-1)
    mu, point, sine = moving.detach(), q.x.detach().double(), (minus.double() * plus.double()).unsqueeze(-1)
    t = (plus.double() - minus.double()).unsqueeze(-1) / 2
    turned = t * (moving - mu) - ((moving - mu) * point).sum(-1, keepdim=True) * mu
    along = sine * mu - t * (point - t * mu)
    moved = turned + (slope * (leaves[1] - leaves[1].detach())).unsqueeze(-1) * along
    return q.x.detach(), found, torch.autograd.grad(moved, leaves, grad.double())


#: Batch shapes of loc, κ and the draws.
SHAPES = [
    ((), (), ()),
    ((), (3,), (3,)),
    ((3,), (), (3,)),
    ((3,), (2, 3), (4, 2, 3)),
    ((1, 3), (2, 1), (2, 3)),
    ((2, 1, 3), (4, 1), (2, 4, 3)),
    ((3,), (3,), (0, 3)),
    ((0,), (0,), (0,)),
    ((4,), (4,), (1, 4)),
    ((1,), (1,), (4, 1)),
    ((0,), (0,), (6, 0)),
]


@family_objects
def test_gradients_and_shapes(engine: Engine, dtype: torch.dtype, family: Family) -> None:
    """Each row uses its own direction, concentration and noise, and contributes to the gradients."""
    tolerance = {FLOAT: 1e-5, DOUBLE: 1e-12}[dtype]
    for loc_shape, kappa_shape, shape in SHAPES:
        loc, kappa = parameters(engine, loc_shape, kappa_shape, dtype=dtype)
        x = sampling.draw(family, loc, 1e8 * kappa + 1e8, shape)
        assert x.shape == (*shape, 5)
        torch.testing.assert_close(x, loc.expand_as(x), rtol=0, atol=2e-3)  # near μ at large concentrations
        points, found, expected = gradients_of_the_same_draw(family, loc, kappa, shape, torch.randn_like(x))
        rows = points.reshape(-1, 5)
        assert len(rows.unique(dim=0)) == len(rows)
        for one, other, parameter in zip(found, expected, (loc, kappa), strict=True):
            assert one.shape == parameter.shape
            torch.testing.assert_close(one.double(), other, rtol=10 * tolerance, atol=tolerance)


#: d, and the number of directions that 3000 rows share.
SUMS = [(2, 1), (2, 3000), (3, 3), (3, 60), (4, 1), (6, 60), (9, 3), (9, 3000), (33, 1), (33, 60), (100, 3),
        (100, 3000)]  # fmt: skip


@family_objects
def test_gradients_and_sums(engine: Engine, dtype: torch.dtype, family: Family) -> None:
    """Many rows share few directions, in several blocks; and rows of many numbers."""
    cases = [(dim, 3000 // count, count) for dim, count in SUMS]
    if engine.is_interpreted:
        cases = [(3, 9, 4), (33, 1, 36)]
    tolerance = {FLOAT: 1e-5, DOUBLE: 1e-12}[dtype]
    for dim, *shape in (*cases, (200, 2, 5), (5000, 1, 4), (5000, 3, 1)):
        loc, kappa = parameters(engine, (shape[1],), tuple(shape), dim, dtype)
        kappa = (kappa.detach() + dim / 4).requires_grad_()
        grad = torch.randn(*shape, dim, dtype=dtype).to(engine.device)
        with block_limit(5000):
            _, found, expected = gradients_of_the_same_draw(family, loc, kappa, tuple(shape), grad)
        for one, other in zip(found, expected, strict=True):
            atol = tolerance * max(1.0, other.abs().max().item())
            torch.testing.assert_close(one.double(), other, rtol=tolerance, atol=atol)


@families
def test_gradients_that_are_not_needed(engine: Engine, dtype: torch.dtype, family: type) -> None:
    loc, kappa = parameters(engine, (6,), (6,), dtype=dtype)
    both = torch.autograd.grad(after_seed(family, loc, kappa)[..., 0].sum(), (loc, kappa))
    for index, pair in enumerate(((loc, kappa.detach()), (loc.detach(), kappa))):
        (alone,) = torch.autograd.grad(after_seed(family, *pair)[..., 0].sum(), pair[index])
        torch.testing.assert_close(alone, both[index], rtol=1e-6, atol=1e-7)
    assert not after_seed(family, loc.detach(), kappa.detach()).requires_grad
    with torch.no_grad():  # the variants that keep nothing for the backward pass draw the same
        x = after_seed(family, loc, kappa)
    assert not x.requires_grad
    torch.testing.assert_close(x, after_seed(family, loc, kappa).detach(), rtol=1e-6, atol=1e-6)
    with torch.inference_mode():
        assert after_seed(family, loc, kappa).shape == (6, 5)


@families
def test_second_derivatives_are_refused(engine: Engine, family: type) -> None:
    loc, kappa = parameters(engine, (5,), (5,))
    loss = after_seed(family, loc, kappa).pow(3).sum()
    linear = after_seed(family, loc, kappa)[..., 0].sum()  # its gradient in x does not depend on x
    for wanted, value in itertools.product((loc, kappa), (loss, linear)):
        (grad,) = torch.autograd.grad(value, wanted, create_graph=True)
        for other in (loc, kappa):
            with pytest.raises(NotImplementedError, match=r"differentiable once.*detached sample"):
                torch.autograd.grad(grad.sum() + other.square().sum(), other, retain_graph=True)


@families
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # raised inside torch
def test_forward_mode(engine: Engine, dtype: torch.dtype, family: type) -> None:
    """dx/dκ as reverse mode gives it, for the same draws."""
    loc, kappa = parameters(engine, (5,), (5,), dtype=dtype)
    weights = torch.randn_like(loc)
    (expected,) = torch.autograd.grad((after_seed(family, loc, kappa) * weights).sum(), kappa)
    with forward_ad.dual_level():
        x = after_seed(family, loc.detach(), forward_ad.make_dual(kappa.detach(), torch.ones_like(kappa)))
        tangent = forward_ad.unpack_dual(x).tangent
    torch.testing.assert_close((tangent * weights).sum(-1), expected, rtol=1e-5, atol=1e-6)


# Arguments of every kind


@families
def test_layouts(engine: Engine, dtype: torch.dtype, family: type) -> None:
    """Expanded, transposed, negated and misaligned arguments and gradients give what contiguous ones give."""
    loc, kappa = (p.detach() for p in parameters(engine, (6, 5), (6, 5), 7, dtype))
    odd = torch.empty(loc.numel() + 1, dtype=dtype, device=engine.device)[1:].view_as(loc)
    grad = torch.randn(6, 5, 7, dtype=dtype).to(engine.device)
    for other in (
        (loc.permute(2, 1, 0).contiguous().permute(2, 1, 0), kappa.T.contiguous().T),
        (loc[:1, :1].expand(6, 5, 7), kappa[0, :1].expand(6, 5)),
        (loc[0], kappa[:, :1]),
        (loc[:, ::2].repeat(1, 2, 1)[:, :5], torch.stack((kappa, kappa), -1)[..., 1]),
        (negative_view(loc), negative_view(kappa)),
        (loc, negative_view(kappa[0, 0])),  # contiguous too
        (odd.copy_(loc), kappa),
    ):
        results = []
        for pair, upstream in (
            (other, negative_view(grad.permute(2, 0, 1).contiguous().permute(1, 2, 0))),
            ([p.expand(6, 5, *rest).clone() for p, rest in zip(other, ((-1,), ()), strict=True)], grad),
        ):
            leaves = [p.detach().requires_grad_() for p in pair]
            x = after_seed(family, *leaves)
            results.append((x, *torch.autograd.grad(x, leaves, upstream)))
        (x, *gradients), (expected, *sums) = results
        torch.testing.assert_close(x, expected, rtol=2e-6, atol=2e-6)
        for found, total in zip(gradients, sums, strict=True):
            torch.testing.assert_close(found, total.sum_to_size(found.shape), rtol=1e-5, atol=1e-5)


@family_objects
@pytest.mark.parametrize("half", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision(engine: Engine, family: Family, half: torch.dtype) -> None:
    """Computed in float32 from normalised directions. Only x and the gradient in loc are rounded."""
    eps = torch.finfo(half).eps
    for shape in ((), (40,)):
        loc, kappa = parameters(engine, shape, (40,), 6)
        loc = loc.detach().to(half).requires_grad_()
        results = []
        for directions in (loc, torch.nn.functional.normalize(loc.float(), dim=-1)):
            torch.manual_seed(3)
            x = sampling.draw(family, directions, kappa)
            grad = torch.linspace(-1, 1, x.numel(), device=engine.device).view(x.shape).to(half)
            results.append((x, *torch.autograd.grad(x, (loc, kappa), grad.to(x.dtype))))
        assert [tensor.dtype for tensor in results[0]] == [half, half, FLOAT]
        if engine.name != "triton":  # whose interpreter truncates
            assert torch.equal(results[0][0], results[1][0].to(half))
        for one, other, tolerance in zip(*results, (eps, eps, 10 * eps), strict=True):
            atol = tolerance * other.abs().max().item()
            torch.testing.assert_close(one.float(), other.float(), rtol=0, atol=atol)


@families
def test_autocast_and_matmul_precision_change_nothing(
    engine: Engine, dtype: torch.dtype, family: type
) -> None:
    loc, kappa = parameters(engine, (6, 8), (6, 8), dtype=dtype)
    results, before = [], torch.get_float32_matmul_precision()
    try:
        for enabled, precision in ((False, "highest"), (True, "medium")):
            torch.set_float32_matmul_precision(precision)
            with torch.autocast(engine.device, dtype=torch.bfloat16, enabled=enabled):
                x = after_seed(family, loc, kappa)
                results.append((x, *torch.autograd.grad(x[..., 0].sum(), (loc, kappa))))
    finally:
        torch.set_float32_matmul_precision(before)
    assert all(map(torch.equal, *results))


# Random numbers, threads and processes


@families
@pytest.mark.parametrize("dim", [2, 3, 40])
def test_generators(engine: Engine, dtype: torch.dtype, family: type, dim: int) -> None:
    if engine.device != "cpu":
        pytest.skip("tests/integration/test_cuda.py")
    assert_reproducible(family(unit(7, dim, dtype=dtype), 4.0))


@families
@pytest.mark.parametrize("dim", [2, 3, 5])
def test_an_infinite_concentration_gives_the_mean_direction(
    engine: Engine, dtype: torch.dtype, family: type, dim: int
) -> None:
    if engine.name == "triton":
        pytest.skip("validation refuses it, and a formula of this kernel is ∞ - ∞")
    loc = unit(7, dim, dtype=dtype, device=engine.device).requires_grad_()
    kappa = torch.full((7,), torch.inf, dtype=dtype, device=engine.device, requires_grad=True)
    x = family(loc, kappa, validate_args=False).rsample()
    torch.testing.assert_close(x, loc)
    x[:, 0].sum().backward()
    assert loc.grad.isfinite().all()
    torch.testing.assert_close(kappa.grad, torch.zeros_like(kappa))


@families
@pytest.mark.parametrize("name", ["c", "triton"])
def test_a_row_depends_on_its_place_and_the_seed_only(name: str, family: type) -> None:
    """Not on the other rows or on their number, which change the blocks, nor on sharing parameters."""
    if is_missing(name):
        pytest.skip("no such kernels here")
    device = ENGINES[name].device
    loc, kappa = unit(40, 5, dtype=FLOAT).to(device), (torch.rand(40) * 10).to(device)
    with engines.engine(name):
        x = after_seed(family, loc, kappa)
        assert torch.equal(after_seed(family, loc[:7], kappa[:7]), x[:7])
        shared = after_seed(family, loc[:1], kappa)
        assert torch.equal(shared, after_seed(family, loc[:1].repeat(40, 1), kappa))
        other = family(loc, kappa).sample()
    assert not torch.isclose(x, other).all(-1).any()


@families
@pytest.mark.parametrize(
    ("rows", "dim"),
    [(1, 2), (1001, 2), (9001, 3), (9999, 5), (5000, 17), (3000, 64), (333, 769), (77, 10_001)],
)
@pytest.mark.skipif(is_missing("c"), reason="there is no C library")
def test_results_do_not_depend_on_the_number_of_threads(family: type, rows: int, dim: int) -> None:
    for directions in {rows, 1}:
        loc, kappa = unit(directions, dim, dtype=FLOAT), 60 * torch.rand(rows)
        leaves, grad = (loc.requires_grad_(), kappa.requires_grad_()), torch.randn(rows, dim)

        def results(leaves: tuple[Tensor, ...] = leaves, grad: Tensor = grad) -> list[Tensor]:
            x = after_seed(family, *leaves)
            return [x, *torch.autograd.grad(x, leaves, grad)]

        assert_threads_change_nothing(results, max(1, rows * dim // 10))


@families
def test_blocks_do_not_change_results(engine: Engine, dtype: torch.dtype, family: type) -> None:
    for shape in ((40,), (40, 3), (2, 3, 7, 3), (1, 40, 3)):
        if engine.is_interpreted and len(shape) > 1:
            continue
        loc, kappa = parameters(engine, shape, shape, 17, dtype)
        whole = after_seed(family, loc, kappa)
        expected = torch.autograd.grad(whole.cumsum(-1).square().sum(), (loc, kappa))
        for block in (3, 50, 1000):
            with block_limit(block):
                x = after_seed(family, loc, kappa)
                found = torch.autograd.grad(x.cumsum(-1).square().sum(), (loc, kappa))
            torch.testing.assert_close((x, *found), (whole, *expected))


@families
@pytest.mark.parametrize("dtype", [FLOAT, DOUBLE], ids=str)
def test_draws_in_python_threads(family: type, dtype: torch.dtype) -> None:
    q = family(unit(2000, 9, dtype=dtype), 4.0)

    def one(seed: int) -> Tensor:
        return q.sample(generator=torch.Generator().manual_seed(seed))

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        assert all(map(torch.equal, map(one, range(20)), pool.map(one, range(20))))


def test_a_thread_that_starts_in_inference_mode() -> None:
    """The tensor for seeds is made by a thread's first draw and must be writable later, in any mode."""
    q = PowerSpherical(unit(3, 5, dtype=FLOAT), 1.0)

    def work() -> Tensor:
        with torch.inference_mode():
            q.rsample()
        return q.rsample()

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        assert pool.submit(work).result().isfinite().all()


@pytest.mark.slow
@pytest.mark.skipif(is_missing("c"), reason="there is no C library")
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
