"""The fused Bessel functions: in the C library, and in Triton, which runs in its interpreter if there is no GPU."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.distributions import kl_divergence

from helpers import fused
from powerspherical import HypersphericalUniform, VonMisesFisher
from powerspherical.special import _debye, bessel
from powerspherical.special._debye import LONG_ROW, SHORT_ROW, debye, hankel

DIMS = [2, 3, 4, 5, 8, 16, 21, 22, 64, 768, 10**4, 10**6]

#: The float64 function that each form computes, and the largest relative errors of its value and its derivative.
FORMS = {
    "ratio": (bessel.bessel_ratio, 1e-6, 5e-6),
    "complement": (bessel.bessel_ratio_complement, 1e-6, 5e-6),
    "slope": (bessel.bessel_ratio_slope, 5e-6, 5e-6),
    "relative_entropy": (bessel.exponential_relative_entropy, 2e-6, 5e-6),
    "log_partition": (bessel.log_hyp0f1, 2e-6, 1e-6),
    "scaled_log_partition": (bessel.log_hyp0f1_scaled, 2e-6, 1e-6),
}


def concentrations(dim: int) -> Tensor:
    """From 0 to 1e9, with more points around κ = d and where Hankel's expansion starts."""
    start, _ = bessel.hankel_range(dim / 2 - 1, torch.float32)
    near = torch.tensor([math.nextafter(start, 0), start, math.nextafter(start, math.inf)])
    return torch.cat([torch.zeros(1), torch.logspace(-6, 9, 300), torch.logspace(-1, 1, 100) * dim, near])


@pytest.fixture(params=fused.ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def kernels(engine: str) -> fused.Kernels:
    return fused.kernels(engine, "bessel")


@pytest.fixture
def device(kernels: fused.Kernels) -> str:
    return kernels.device


@pytest.fixture
def _dispatched(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fused.use(monkeypatch, engine)


def test_every_form_is_tested() -> None:
    assert (*FORMS, "entropy_and_mean") == _debye.FORMS


@pytest.mark.parametrize("dim", DIMS)
def test_entropy_and_mean(dim: int, kernels: fused.Kernels) -> None:
    kappa = concentrations(dim)
    pair = kernels.module.evaluate(
        "entropy_and_mean", kappa.to(kernels.device), dim / 2 - 1, needs_slope=True
    )
    expected = (
        bessel.exponential_relative_entropy(kappa.double(), dim),
        -bessel.bessel_ratio_complement(kappa.double(), dim),
    )
    for value, exact, tolerance in zip(pair, expected, (2e-6, 1e-6), strict=True):
        torch.testing.assert_close(value.cpu().double(), exact, rtol=tolerance, atol=1e-37)


@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("form", FORMS)
def test_value_and_slope(form: str, dim: int, kernels: fused.Kernels) -> None:
    function, tolerance, slope_tolerance = FORMS[form]
    kappa = concentrations(dim)
    value, slope = kernels.module.evaluate(form, kappa.to(kernels.device), dim / 2 - 1, needs_slope=True)
    exact = kappa.double().requires_grad_()
    expected = function(exact, dim)
    (derivative,) = torch.autograd.grad(expected.sum(), exact)
    torch.testing.assert_close(value.cpu().double(), expected.detach(), rtol=tolerance, atol=1e-37)
    torch.testing.assert_close(slope.cpu().double(), derivative, rtol=slope_tolerance, atol=1e-37)


@pytest.mark.filterwarnings("ignore:invalid value")  # inf - inf, in Triton's interpreter
@pytest.mark.parametrize("dim", [2, 3, 16, 64])
@pytest.mark.parametrize("form", FORMS)
def test_extremes(form: str, dim: int, kernels: fused.Kernels, monkeypatch: pytest.MonkeyPatch) -> None:
    """As finite as the same formulas in torch; NaN stays in its row."""
    function = FORMS[form][0]
    kappa = torch.tensor([0.0, 1e-30, math.nan, 1.0, 1e15, 1e25, 3e38, math.inf])
    value, slope = kernels.module.evaluate(form, kappa.to(kernels.device), dim / 2 - 1, needs_slope=True)
    fused.switch_off(monkeypatch)
    leaf = kappa.clone().requires_grad_()
    expected = function(leaf, dim)
    (derivative,) = torch.autograd.grad(expected.sum(), leaf)
    torch.testing.assert_close(value.cpu(), expected.detach(), rtol=5e-6, atol=1e-30, equal_nan=True)
    torch.testing.assert_close(slope.cpu(), derivative, rtol=5e-6, atol=1e-30, equal_nan=True)
    finite = value.isfinite() & slope.isfinite()
    assert finite[:-1].tolist() == kappa.isfinite()[:-1].tolist()


def test_the_value_alone(kernels: fused.Kernels) -> None:
    kappa = torch.rand(3, 4, device=kernels.device).T
    value, slope = kernels.module.evaluate("ratio", kappa, 0.5, needs_slope=False)
    assert slope.shape == (0,)
    torch.testing.assert_close(value, bessel.bessel_ratio(kappa, 3))


def test_empty(kernels: fused.Kernels) -> None:
    empty = torch.empty(0, 3, device=kernels.device)
    value, slope = kernels.module.evaluate("relative_entropy", empty, 0.5, needs_slope=True)
    assert value.shape == slope.shape == (0, 3)


@pytest.mark.parametrize("order", [0.0, 0.5, 4.0, 9.5, 10.0, 10.5, 11.0, 31.0, 1e6])
def test_polynomials_fit_into_the_table(order: float) -> None:
    _, top = bessel.recurrence_steps(order, torch.float32)
    series = debye(top, torch.float32)
    assert len(series.curvature) <= LONG_ROW
    others = (series.ratio, series.slope, series.entropy, *hankel(order, torch.float32))
    assert max(map(len, others)) <= SHORT_ROW


@pytest.mark.usefixtures("_dispatched")
class TestDispatch:
    @pytest.mark.parametrize("dim", [3, 64])
    @pytest.mark.parametrize("form", FORMS)
    def test_derivatives(self, form: str, dim: int, device: str) -> None:
        function = FORMS[form][0]
        kappa = torch.logspace(-3, 5, 200, device=device).requires_grad_()
        value = function(kappa, dim)
        assert "Fused" in value.grad_fn.name()
        (once,) = torch.autograd.grad(value.sum(), kappa, retain_graph=True)
        (first,) = torch.autograd.grad(value.sum(), kappa, create_graph=True)
        with torch.no_grad():
            # Compiled for a GPU, the variant without the derivative may round differently.
            ulps = 4 if device == "cuda" else 0
            rtol = ulps * torch.finfo(torch.float32).eps
            torch.testing.assert_close(function(kappa, dim), value, rtol=rtol, atol=0)
        # Under a transform the functions run as torch operations.
        derivative = torch.func.grad(lambda k: function(k, dim))
        exact = kappa.detach().double().cpu()
        expected = torch.func.vmap(derivative)(exact)
        for slope in (once, first.detach()):
            torch.testing.assert_close(slope.cpu().double(), expected, rtol=5e-6, atol=0)
        if form != "slope":  # its second derivative is not known
            (second,) = torch.autograd.grad(first.sum(), kappa)
            curvature = torch.func.vmap(torch.func.grad(derivative))(exact)
            torch.testing.assert_close(second.cpu().double(), curvature, rtol=1e-4, atol=1e-7)

    @pytest.mark.parametrize("dim", [3, 64])
    def test_inverse(self, dim: int, device: str) -> None:
        ratio = torch.linspace(0.01, 0.99, 50, device=device)
        kappa = bessel.bessel_ratio_inverse(ratio, dim)
        expected = bessel.bessel_ratio_inverse(ratio.double(), dim, 1 - ratio.double())
        torch.testing.assert_close(kappa, expected.float(), rtol=1e-5, atol=0)

    def test_divergence_from_the_uniform(self, device: str) -> None:
        kappa = torch.tensor([0.0, 3.0, 400.0], device=device, requires_grad=True)
        loc = torch.eye(3, device=device)
        q = VonMisesFisher(loc, kappa, validate_args=False)
        divergence = kl_divergence(q, HypersphericalUniform(3))
        (slope,) = torch.autograd.grad(divergence.sum(), kappa)
        exact = VonMisesFisher(loc.double(), kappa.double(), validate_args=False)
        torch.testing.assert_close(divergence, kl_divergence(exact, HypersphericalUniform(3)).float())
        torch.testing.assert_close(slope, kappa.detach() * exact.marginal.variance.detach().float())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
class TestOnAGpu:
    def test_transforms(self) -> None:
        kappa = torch.logspace(-3, 5, 200, device="cuda")
        entropy = bessel.exponential_relative_entropy
        mapped = torch.func.vmap(torch.func.grad(lambda x: entropy(x, 5)))
        torch.testing.assert_close(mapped(kappa), kappa * bessel.bessel_ratio_slope(kappa, 5))

    def test_compiled(self) -> None:
        kappa = torch.logspace(-3, 5, 200, device="cuda")
        function = torch.compile(
            lambda x: bessel.exponential_relative_entropy(x, 64), fullgraph=True, backend="aot_eager"
        )
        torch.testing.assert_close(function(kappa), bessel.exponential_relative_entropy(kappa, 64))

    @pytest.mark.filterwarnings("ignore:.*Profiler clears events")  # of torch 2.11
    def test_launches(self) -> None:
        """One kernel forward, and one multiplication backward."""
        kappa = torch.rand(1000, device="cuda", requires_grad=True)
        activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
        bessel.exponential_relative_entropy(kappa, 3).backward(torch.ones_like(kappa))
        grad = torch.ones_like(kappa)
        with torch.profiler.profile(activities=activities) as profile:
            value = bessel.exponential_relative_entropy(kappa, 3)
            torch.autograd.grad(value, kappa, grad)
            torch.cuda.synchronize()
        kernels = [event for event in profile.events() if event.device_type == torch.autograd.DeviceType.CUDA]
        assert len(kernels) == 2
