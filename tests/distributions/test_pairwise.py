"""Log-densities and KL divergences of all pairs, against those of single pairs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

import pytest
import torch
from torch import Tensor
from torch.autograd import gradgradcheck
from torch.distributions import Independent, kl_divergence
from torch.nn.functional import normalize

from helpers.engines import Engine
from helpers.examples import DOUBLE, FAMILIES, FLOAT, comparable, directions, dtypes, families
from powerspherical import (
    HypersphericalUniform,
    PowerSpherical,
    SphericalCauchy,
    VonMisesFisher,
    engines,
    pairwise_kl,
)
from powerspherical.engines import block_limit

pairs = pytest.mark.parametrize(("first", "second"), [(p, q) for p in FAMILIES for q in FAMILIES])

B, N = 5, 23

#: Blocks of two rows for four columns, the last of them incomplete, and of one row for more columns.
few_rows_a_block = partial(block_limit, 8)


def slope(family: type, kappa: float, one_minus_t: Tensor, dim: int) -> Tensor:
    """|d log p/dt|."""
    if family is SphericalCauchy:
        weight = kappa * (kappa + 2) / 2
        return (dim - 1) * weight / (1 + weight * one_minus_t)
    return kappa / (2 - one_minus_t) if family is PowerSpherical else torch.full_like(one_minus_t, kappa)


def with_gradients(
    function: Callable[..., Tensor], weights: Tensor, inputs: Iterable[Tensor]
) -> tuple[Tensor, ...]:
    """Return a matrix and the gradients of its weighted sum."""
    leaves = [x.clone().requires_grad_() for x in inputs]
    value = function(*leaves)
    return value.detach(), *torch.autograd.grad((weights * value).sum(), leaves)


def log_prob_matrix(family: type, loc: Tensor, kappa: Tensor, x: Tensor) -> Tensor:
    return family(loc, kappa, validate_args=False).log_prob_matrix(x)


class TestLogProbMatrix:
    @families
    @dtypes
    @pytest.mark.parametrize("dim", [2, 3, 64, 768])
    @pytest.mark.parametrize("kappa", [0.0, 0.5, 30.0, 1e4])
    def test_accuracy(self, family: type, dtype: torch.dtype, dim: int, kappa: float) -> None:
        """From the mode to the antipode, by the error that the docstring allows t."""
        kappa = comparable(family, kappa, dim)
        angles = torch.tensor([0.0, 1e-5, 1e-3, 0.1, 1.0, 2.0, 3.0, torch.pi - 1e-2], dtype=DOUBLE)
        loc = directions(B, dim)
        across = directions(dim, seed=2)
        across = normalize(across - (loc[0] @ across) * loc[0], dim=-1)
        x = angles.cos().unsqueeze(-1) * loc[0] + angles.sin().unsqueeze(-1) * across
        actual = family(loc.to(dtype), kappa).log_prob_matrix(x.to(dtype))
        # in float64, of the same rounded vectors
        exact_loc, exact_x = (normalize(v.to(dtype).double(), dim=-1) for v in (loc, x))
        expected = family(exact_loc.unsqueeze(1), kappa).log_prob(exact_x)
        one_minus_t = (exact_loc.unsqueeze(1) - exact_x).square().sum(-1) / 2
        eps = torch.finfo(dtype).eps
        # the slope within the rounding of t, which matters at the antipode alone
        steep = slope(family, kappa, (one_minus_t + 2 * eps).clamp(max=2 - 2 * eps), dim)
        bound = 4 * eps * (steep + slope(family, kappa, one_minus_t, dim) + kappa + expected.abs() + dim)
        assert actual.dtype == dtype
        assert ((actual.double() - expected).abs() <= bound).all()

    @families
    def test_shapes(self, family: type) -> None:
        q = family(directions(2, 1, 4), torch.rand(3, dtype=DOUBLE))
        x = directions(5, 6, 4, seed=2)
        found = q.log_prob_matrix(x)
        assert found.shape == (2, 3, 5, 6)
        expected = family(q.loc[:, :, None, None], q.concentration[:, :, None, None]).log_prob(x)
        torch.testing.assert_close(found, expected)
        assert q.log_prob_matrix(x[:0]).shape == (2, 3, 0, 6)
        assert q.expand((0, 2, 3)).log_prob_matrix(x).shape == (0, 2, 3, 5, 6)
        assert family(directions(4), 2.0).log_prob_matrix(x[0]).shape == (6,)

    @families
    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
    @pytest.mark.parametrize(("rows", "columns"), [(0, 5), (3, 0), (3, 5)])
    def test_gradients_in_half_precision(
        self, family: type, dtype: torch.dtype, rows: int, columns: int
    ) -> None:
        """They have the dtypes of the parameters, and are zero if there are no points or no members."""
        loc, x = (directions(count, 4, seed=count).float() for count in (rows, columns))
        leaves = [one.requires_grad_() for one in (loc.to(dtype), torch.ones(rows, dtype=dtype), x)]
        found = torch.autograd.grad(log_prob_matrix(family, *leaves).sum(), leaves)
        for leaf, grad in zip(leaves, found, strict=True):
            assert (grad.dtype, grad.shape) == (leaf.dtype, leaf.shape)
            assert (grad != 0).any() == bool(rows and columns)

    @families
    def test_derivatives(self, family: type) -> None:
        """They are those of ``log_prob``. The second ones are those of the first."""
        kappa = torch.tensor([0.0, 0.3, 2.0, 20.0, 1e3], dtype=DOUBLE)
        inputs, weights = (directions(B, 6), kappa, directions(N, 6, seed=2)), torch.randn(B, N, dtype=DOUBLE)

        def log_prob(loc: Tensor, kappa: Tensor, x: Tensor) -> Tensor:
            return family(loc.unsqueeze(1), kappa.unsqueeze(1)).log_prob(x)

        matrix = partial(log_prob_matrix, family)
        expected = with_gradients(log_prob, weights, inputs)
        with few_rows_a_block():
            torch.testing.assert_close(
                with_gradients(matrix, weights, inputs), expected, rtol=1e-11, atol=1e-11
            )
            free = 1.5 * directions(3, 4), kappa[1:4].clone(), 0.7 * directions(4, 4, seed=2)
            assert gradgradcheck(matrix, [v.requires_grad_() for v in free])

    @families
    def test_batches_of_gradients(self, family: type) -> None:
        kappa = torch.tensor([0.3, 2.0], dtype=DOUBLE, requires_grad=True)
        matrix = family(directions(2, 4), kappa).log_prob_matrix(directions(3, 4, seed=2))
        grads = torch.eye(6, dtype=DOUBLE).reshape(6, 2, 3)
        (many,) = torch.autograd.grad(matrix, kappa, grads, is_grads_batched=True, retain_graph=True)
        each = [torch.autograd.grad(matrix, kappa, grad, retain_graph=True)[0] for grad in grads]
        torch.testing.assert_close(many, torch.stack(each))

    @families
    def test_nan_stays_in_its_row_or_column(self, family: type) -> None:
        loc, x = directions(B, 4), directions(N, 4, seed=2)
        loc[1], x[2] = torch.nan, torch.nan
        nan = family(loc, 3.0, validate_args=False).log_prob_matrix(x).isnan()
        assert nan[1].all()
        assert nan[:, 2].all()
        assert nan.sum() == B + N - 1

    def test_uniform(self) -> None:
        q = HypersphericalUniform(3).expand((4,))
        x = directions(N, 3)
        found = q.log_prob_matrix(x)
        assert (found.shape, found.dtype) == ((4, N), DOUBLE)
        torch.testing.assert_close(found[1], HypersphericalUniform(3).log_prob(x))

    @pytest.mark.parametrize(
        ("x", "message"),
        [
            (torch.ones(5, 4), r"x must have the shape \(…, 3\), got \(5, 4\)"),
            (torch.ones(5, 3), r"x of shape \(5, 3\).*unit vectors.*normalize\(x, dim=-1\)"),
            ([[1.0, 0.0, 0.0]], r"x must be a torch\.Tensor.*list"),
        ],
        ids=["dimension", "length", "list"],
    )
    def test_bad_points(self, x: object, message: str) -> None:
        checked = PowerSpherical(torch.eye(3), 1.0, validate_args=True)
        for q in (checked, HypersphericalUniform(3, validate_args=True)):
            with pytest.raises(ValueError, match=message):
                q.log_prob_matrix(x)


def kl_matrix(
    first: type, second: type, loc_p: Tensor, kappa_p: Tensor, loc_q: Tensor, kappa_q: Tensor
) -> Tensor:
    p, q = first(loc_p, kappa_p, validate_args=False), second(loc_q, kappa_q, validate_args=False)
    return pairwise_kl(p, q)


class TestPairwiseKl:
    @pairs
    @dtypes
    def test_is_the_divergence_of_each_pair(self, first: type, second: type, dtype: torch.dtype) -> None:
        loc_p, loc_q = directions(B, 6, dtype=dtype), directions(N, 6, seed=2, dtype=dtype)
        loc_q[0] = loc_p[0]
        kappa_p = torch.tensor([0.0, 0.3, 2.0, 20.0, 300.0], dtype=dtype)
        inputs = loc_p, kappa_p, loc_q, torch.linspace(0.0, 50.0, N, dtype=dtype)
        weights = torch.randn(B, N, dtype=dtype)

        def each(loc_p: Tensor, kappa_p: Tensor, *q: Tensor) -> Tensor:
            return kl_divergence(first(loc_p.unsqueeze(1), kappa_p.unsqueeze(1)), second(*q))

        expected, tolerance = with_gradients(each, weights, inputs), 1e-10 if dtype == DOUBLE else 2e-5
        with few_rows_a_block():
            found = with_gradients(partial(kl_matrix, first, second), weights, inputs)
        torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)

    @families
    def test_second_derivatives(self, family: type) -> None:
        kappa = torch.tensor([0.5, 3.0], dtype=DOUBLE)
        leaves = [v.requires_grad_() for v in (directions(2, 4), kappa, directions(2, 4, seed=2), 2 * kappa)]
        assert gradgradcheck(partial(kl_matrix, family, family), leaves)

    @families
    @pytest.mark.parametrize("kappa", [1e-3, 1.0, 1e3, 1e6])
    def test_of_a_batch_with_itself(self, family: type, kappa: float) -> None:
        """The diagonal is zero to 2e-16·|dKL/dt|."""
        p = family(directions(B, 6), kappa)
        steep = 5 * (kappa * (kappa + 2)) ** 2 if family is SphericalCauchy else kappa
        found = pairwise_kl(p, p)
        assert (found.diagonal() >= 0).all()
        assert (found.diagonal() <= 4e-16 * steep).all()

    @families
    def test_uniform(self, family: type) -> None:
        p, uniform = family(directions(2, 1, 4), torch.rand(3, dtype=DOUBLE)), HypersphericalUniform(4)
        to, back = pairwise_kl(p, uniform.expand((5,))), pairwise_kl(uniform.expand((5,)), p)
        torch.testing.assert_close(to, kl_divergence(p, uniform).unsqueeze(-1).expand(2, 3, 5))
        torch.testing.assert_close(back, kl_divergence(uniform, p).expand(5, 2, 3))
        assert torch.equal(pairwise_kl(uniform.expand((2,)), uniform.expand((3,))), torch.zeros(2, 3))

    def test_bad_distributions(self) -> None:
        p = VonMisesFisher(torch.eye(3), 1.0)
        with pytest.raises(ValueError, match="the same dimension, got dim 3 and dim 4"):
            pairwise_kl(p, VonMisesFisher(torch.eye(4), 1.0))
        with pytest.raises(TypeError, match=r"p must be a distribution .*, got VonMisesFisherMarginal"):
            pairwise_kl(p.marginal, p)
        with pytest.raises(TypeError, match=r"q must be a distribution of this package.*Independent"):
            pairwise_kl(p, Independent(p, 1))


@families
def test_engines(family: type, engine: Engine) -> None:
    """Values and gradients in float32 against torch operations in float64, over more columns than a program takes."""
    kappa = torch.tensor([0.0, 3.0, 500.0], dtype=DOUBLE)
    inputs = directions(3, 8), kappa, directions(1500, 8, seed=2)
    matrix, weights = partial(log_prob_matrix, family), torch.randn(3, 1500, dtype=DOUBLE)
    with engines.engine("torch"):
        expected = with_gradients(matrix, weights, inputs)
    rounded, weights = [x.to(engine.device, FLOAT) for x in inputs], weights.to(engine.device, FLOAT)
    for limit in (1 << 12, 1 << 20):
        with block_limit(limit):
            found = with_gradients(matrix, weights, rounded)
        for actual, wanted in zip(found, expected, strict=True):
            scale = wanted.abs().max().clamp(min=1)
            torch.testing.assert_close(actual.cpu().double() / scale, wanted / scale, rtol=1e-5, atol=2e-5)


@families
def test_engines_and_lengths(family: type, engine: Engine) -> None:
    """Without checks, vectors may have any length. Gradients are those of the normalised vectors."""
    matrix, weights = partial(log_prob_matrix, family), torch.randn(2, 5, dtype=DOUBLE)
    kappa = torch.tensor([2.0, 20.0], dtype=DOUBLE)
    inputs = 2 * directions(2, 8), kappa, 0.25 * directions(5, 8, seed=2)
    with engines.engine("torch"):
        expected = with_gradients(matrix, weights, inputs)
    rounded = [x.to(engine.device, FLOAT) for x in inputs]
    found = with_gradients(matrix, weights.to(engine.device, FLOAT), rounded)
    for actual, wanted in zip(found, expected, strict=True):
        torch.testing.assert_close(
            actual.cpu().double(), wanted, rtol=1e-4, atol=1e-4 * wanted.abs().max().item()
        )


@families
def test_engines_at_the_ends(family: type, engine: Engine) -> None:
    """Finite densities at the mode and the antipode, and NaN only for a point that has one."""
    pole = torch.eye(4)[:1].to(engine.device)
    loc, x = pole.clone().requires_grad_(), torch.cat((-pole, pole, torch.nan * pole))
    q = family(loc, 3.0, validate_args=False)
    assert q.log_prob_matrix(x).isnan().tolist() == [[False, False, True]]
    value = q.log_prob_matrix(x[:2])
    assert value.isfinite().all()
    (gradient,) = torch.autograd.grad(value.sum(), loc)
    assert gradient.isfinite().all()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@families
def test_memory_on_a_gpu(family: type) -> None:
    loc, x = (directions(2000, 32, dtype=FLOAT, seed=seed).cuda().requires_grad_() for seed in (1, 2))
    kappa = torch.linspace(0.1, 50.0, 2000, device="cuda", requires_grad=True)
    family(loc[:2], kappa[:2]).log_prob_matrix(x[:2]).sum().backward()  # compiles
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    found = family(loc, kappa, validate_args=False).log_prob_matrix(x)
    assert torch.cuda.max_memory_allocated() - before < 1.3 * found.nbytes


def peak_memory(function: Callable[[], object]) -> int:
    """Return the largest number of bytes that torch holds during a call: its allocator reports to the profiler."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profile:
        function()
    level = peak = 0
    for event in profile.profiler.kineto_results.events():
        if event.name() == "[memory]":
            level += event.nbytes()
            peak = max(peak, level)
    return peak


@pytest.mark.filterwarnings("ignore:.*Profiler clears events:UserWarning")  # torch 2.11, in every profile
class TestMemory:
    def test_a_backward_pass_takes_that_of_a_block(self) -> None:
        """It is far below the dozen matrices that autograd would keep."""
        count = 1500
        loc, x = (directions(count, 4, dtype=FLOAT, seed=seed).requires_grad_() for seed in (1, 2))
        q = PowerSpherical(loc, 2.0, validate_args=False)
        with block_limit(1 << 16):
            peak = peak_memory(lambda: q.log_prob_matrix(x).mean().backward())
        assert 4 * count**2 < peak < 16 * count**2

    @families
    def test_without_gradients_nothing_is_kept(self, family: type) -> None:
        """Parameters that require gradients change nothing under ``no_grad``."""
        count = 1 << 18
        x = directions(count, 4, dtype=FLOAT)
        kappa = torch.tensor(2.0, requires_grad=True)
        q = family(torch.eye(4)[0], kappa, validate_args=False)
        q.log_prob(x[:2])  # makes tables
        with torch.no_grad():
            assert peak_memory(lambda: q.log_prob(x)) < 1.5 * 4 * count
        assert peak_memory(lambda: q.log_prob(x)) > 1.5 * 4 * count
