"""Functions of κ in float32 with each engine, against the same functions in float64, which have tables of their own."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.distributions import kl_divergence

from helpers.engines import Engine
from helpers.examples import families
from powerspherical import HypersphericalUniform, engines, special
from powerspherical.engines import block_limit
from powerspherical.families import POWER_SPHERICAL, SPHERICAL_CAUCHY, VON_MISES_FISHER

# inf - inf and overflow, in Triton's interpreter
pytestmark = pytest.mark.filterwarnings("ignore:(overflow|invalid value|divide by zero):RuntimeWarning")


class Row(NamedTuple):
    """A function of κ and d, and the largest relative errors of its value and its slope in float32."""

    function: Callable[[Tensor, int], Tensor]
    value: float
    slope: float


FUNCTIONS = {
    "PS rate": Row(POWER_SPHERICAL.relative_entropy, 7e-7, 7e-7),
    "vMF rate": Row(VON_MISES_FISHER.relative_entropy, 2e-6, 5e-6),
    "Cauchy rate": Row(SPHERICAL_CAUCHY.relative_entropy, 5e-7, 5e-7),
    "vMF log-partition": Row(VON_MISES_FISHER.log_partition, 2e-6, 1e-6),
    "PS mean statistic": Row(POWER_SPHERICAL.mean_statistic, 5e-6, 5e-6),
    "bessel_ratio": Row(special.bessel_ratio, 1e-6, 5e-6),
    "bessel_ratio_complement": Row(special.bessel_ratio_complement, 1e-6, 5e-6),
    "bessel_ratio_slope": Row(special.bessel_ratio_slope, 5e-6, 5e-6),
    "log_hyp0f1": Row(special.log_hyp0f1, 2e-6, 1e-6),
}
names = pytest.mark.parametrize("name", FUNCTIONS)

#: The recurrences of the functions have other numbers of steps at each of these dimensions.
DIMS = [2, 3, 4, 5, 6, 8, 13, 14, 16, 21, 22, 29, 30, 64, 768, 10**4, 10**6]


def concentrations(dim: int) -> Tensor:
    """From 0 to 1e9, with more points around d."""
    return torch.cat([torch.zeros(1), torch.logspace(-6, 9, 300), torch.logspace(-1, 1, 100) * dim])


def with_slope(name: str, kappa: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    leaf = kappa.detach().requires_grad_()
    value = FUNCTIONS[name].function(leaf, dim)
    (slope,) = torch.autograd.grad(value.sum(), leaf)
    return value.detach().cpu(), slope.cpu()


@names
def test_value_and_slope(engine: Engine, name: str) -> None:
    for dim in (2, 22, 768) if engine.is_interpreted else DIMS:
        kappa = concentrations(dim)
        found, expected = (with_slope(name, x, dim) for x in (kappa.to(engine.device), kappa.double()))
        for single, double, tolerance in zip(found, expected, FUNCTIONS[name][1:], strict=True):
            if engine.name == "torch":
                tolerance = max(tolerance, 5e-6)
            assert single.dtype == torch.float32
            torch.testing.assert_close(single.double(), double, rtol=tolerance, atol=1e-37)


@names
@pytest.mark.parametrize("dim", [2, 3, 16, 64])
def test_extremes(engine: Engine, name: str, dim: int) -> None:
    """As finite as torch operations; NaN stays in its row."""
    kappa = torch.tensor([0.0, 1e-30, math.nan, 1.0, 1e15, 1e25, 1e37, math.inf], device=engine.device)
    found = with_slope(name, kappa, dim)
    with engines.engine("torch"):
        expected = with_slope(name, kappa.cpu(), dim)
    torch.testing.assert_close(found, expected, rtol=5e-6, atol=1e-30, equal_nan=True)
    assert [x.isfinite()[:-1].tolist() for x in found] == [kappa.isfinite()[:-1].tolist()] * 2


@names
@pytest.mark.parametrize("dim", [3, 64])
def test_derivatives(engine: Engine, name: str, dim: int) -> None:
    """The value without gradients, and the first two derivatives, the first also where it can be differentiated."""
    function = FUNCTIONS[name].function
    kappa = torch.logspace(-3, 5, 200, device=engine.device).requires_grad_()
    value = function(kappa, dim)
    (once,) = torch.autograd.grad(value.sum(), kappa, retain_graph=True)
    (first,) = torch.autograd.grad(value.sum(), kappa, create_graph=True)
    with torch.no_grad():
        torch.testing.assert_close(function(kappa, dim), value.detach(), rtol=5e-7, atol=0)
    exact = kappa.detach().double().cpu().requires_grad_()
    (slope,) = torch.autograd.grad(function(exact, dim).sum(), exact, create_graph=True)
    for found in (once, first.detach()):
        torch.testing.assert_close(found.cpu().double(), slope.detach(), rtol=5e-6, atol=0)
    if name != "bessel_ratio_slope":  # differentiable once
        (second,) = torch.autograd.grad(first.sum(), kappa)
        (curvature,) = torch.autograd.grad(slope.sum(), exact)
        torch.testing.assert_close(second.cpu().double(), curvature, rtol=1e-4, atol=1e-7)


@names
def test_transforms(engine: Engine, name: str) -> None:
    """``torch.func``, forward mode and batches of gradients."""
    kappa = torch.tensor([0.0, 0.3, 20.0, 4000.0], device=engine.device)

    def function(kappa: Tensor) -> Tensor:
        return FUNCTIONS[name].function(kappa, 5)

    expected, slope = (x.float().to(kappa) for x in with_slope(name, kappa.double(), 5))
    close = {"rtol": 5e-6, "atol": 1e-7}
    torch.testing.assert_close(torch.func.vmap(function)(kappa), expected, **close)
    torch.testing.assert_close(torch.func.vmap(torch.func.grad(function))(kappa), slope, **close)
    ones = torch.ones_like(kappa)
    torch.testing.assert_close(torch.func.jvp(function, (kappa,), (ones,)), (expected, slope), **close)
    with forward_ad.dual_level():
        dual = forward_ad.unpack_dual(function(forward_ad.make_dual(kappa, ones)))
    torch.testing.assert_close(tuple(dual), (expected, slope), **close)
    leaf = kappa.clone().requires_grad_()
    rows = torch.eye(4, device=engine.device)
    (jacobian,) = torch.autograd.grad(function(leaf), leaf, rows, is_grads_batched=True)
    torch.testing.assert_close(jacobian, slope.diag(), **close)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*Function'> should not be instantiated:DeprecationWarning")
def test_compiled(engine: Engine) -> None:
    kappa = torch.tensor([0.0, 0.3, 20.0, 4000.0], device=engine.device)

    def every(kappa: Tensor) -> Tensor:
        return sum(row.function(kappa, 5) for row in FUNCTIONS.values())

    results = []
    for function in (every, torch.compile(every, fullgraph=True, backend="aot_eager")):
        leaf = kappa.clone().requires_grad_()
        value = function(leaf)
        results.append((value.detach(), *torch.autograd.grad(value.sum(), leaf)))
    torch.testing.assert_close(*results, rtol=5e-6, atol=1e-6)


@names
def test_shapes_and_layouts(engine: Engine, name: str) -> None:
    function = FUNCTIONS[name].function
    kappa = 9 * torch.rand(5, 7).to(engine.device)
    views = [kappa, kappa.T, kappa[:, ::2], kappa[1, 2], kappa[:1, :1], kappa[:, :1].expand(5, 7)]
    views += [kappa.flatten()[1:18], kappa.new_empty(0), kappa.new_empty(3, 0, 2)]
    negative = torch.conj(torch.complex(torch.zeros_like(kappa), -kappa)).imag
    assert negative.is_neg()
    for view in (*views, negative):
        leaf = view.detach().requires_grad_()
        value = function(leaf, 6)
        (slope,) = torch.autograd.grad(value.sum(), leaf)
        expected, expected_slope = with_slope(name, view.double(), 6)
        torch.testing.assert_close(value.detach().cpu().double(), expected, rtol=5e-6, atol=1e-37)
        torch.testing.assert_close(slope.cpu().double(), expected_slope, rtol=5e-6, atol=1e-37)


@names
def test_threads_and_blocks_do_not_change_results(name: str) -> None:
    kappa, results, before = torch.rand(30_001) * 60, [], torch.get_num_threads()
    try:
        for threads in (1, 2, 3, 7):
            torch.set_num_threads(threads)
            with block_limit(1000):  # the least work of a thread
                results.append(with_slope(name, kappa, 5))
    finally:
        torch.set_num_threads(before)
    for other in results[1:]:
        assert all(map(torch.equal, results[0], other))


@pytest.mark.parametrize("dim", [3, 64])
def test_inverse_of_the_bessel_ratio(engine: Engine, dim: int) -> None:
    ratio = torch.linspace(0.01, 0.99, 50, device=engine.device)
    expected = special.bessel_ratio_inverse(ratio.double(), dim, 1 - ratio.double())
    torch.testing.assert_close(special.bessel_ratio_inverse(ratio, dim), expected.float(), rtol=1e-5, atol=0)


@families
def test_divergence_from_the_uniform(engine: Engine, family: type) -> None:
    results = []
    for dtype in (torch.float32, torch.float64):
        loc = torch.eye(3, dtype=dtype, device=engine.device)
        kappa = torch.tensor([0.0, 3.0, 400.0], dtype=dtype, device=engine.device, requires_grad=True)
        divergence = kl_divergence(family(loc, kappa, validate_args=False), HypersphericalUniform(3))
        results.append((divergence.float(), torch.autograd.grad(divergence.sum(), kappa)[0].float()))
    torch.testing.assert_close(*results)
