"""The autograd functions behind ``drawn``, in eager mode and as kernels, against a composition."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import scipy.stats
import torch
from torch import Tensor
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import make_boxed_func

from powerspherical import engines
from powerspherical.families import Family, family_named, family_names
from powerspherical.nn import _latents, _parameters
from powerspherical.nn._latents import Settings, drawn, latents, packed, unpack_record
from powerspherical.nn._parameters import Bounds
from powerspherical.sampling import draw
from powerspherical.sampling.triton import fused

CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"

DIM, RADIUS = 5, 2.5
families = pytest.mark.parametrize(
    "family", [family_named(name) for name in family_names()], ids=lambda family: family.name
)
dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)


BOUNDS = Bounds(0.5, 60.0)


def made_outputs(dtype: torch.dtype) -> Tensor:
    """Outputs (v, r) of a head."""
    return (3 * torch.randn(4, 3, DIM + 1, dtype=dtype)).requires_grad_()


def drawn_from(outputs: Tensor, family: Family, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    return drawn(outputs, Settings(family.name, DIM, BOUNDS), RADIUS, dtype)


def composition(outputs: Tensor, family: Family, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    loc, kappa = _parameters.composition(outputs, DIM, BOUNDS)
    return (RADIUS * draw(family, loc, kappa)).to(dtype), family.relative_entropy(kappa, DIM)


@families
@dtypes
@pytest.mark.parametrize("used", ["z", "rate", "both"])
def test_it_equals_the_composition(family: Family, dtype: torch.dtype, used: str) -> None:
    outputs = made_outputs(dtype)
    found, grads = [], []
    for function in (drawn_from, composition):
        torch.manual_seed(3)
        z, rate = function(outputs, family, dtype)
        found.append((z, rate))
        loss = (z.cumsum(-1).square().sum() if used != "rate" else 0) + (
            rate.square().sum() if used != "z" else 0
        )
        grads.append(torch.autograd.grad(loss, outputs))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)
    for one, other in zip(*grads, strict=True):
        torch.testing.assert_close(one, other)


@families
def test_half_precision_is_rounded_once(family: Family) -> None:
    outputs = made_outputs(torch.float32)
    torch.manual_seed(3)
    z, rate = drawn_from(outputs, family, torch.bfloat16)
    torch.manual_seed(3)
    exact, _ = composition(outputs, family, torch.float32)
    assert rate.dtype == torch.float32
    assert torch.equal(z, exact.to(torch.bfloat16))
    grad = torch.randn_like(z)
    found = torch.autograd.grad(z, outputs, grad)
    expected = torch.autograd.grad(exact, outputs, grad.float())
    torch.testing.assert_close(found, expected)


@families
def test_the_rate_is_differentiable_twice(family: Family) -> None:
    outputs = made_outputs(torch.float64)
    second = []
    for function in (drawn_from, composition):
        _, rate = function(outputs, family, torch.float64)
        (slope,) = torch.autograd.grad(rate.sum(), outputs, create_graph=True)
        second.append(torch.autograd.grad(slope.square().sum(), outputs)[0])
    torch.testing.assert_close(*second)


def test_the_draw_is_differentiable_once() -> None:
    outputs = made_outputs(torch.float64)
    z, _ = drawn_from(outputs, family_named("power_spherical"), torch.float64)
    (gradient,) = torch.autograd.grad(z.cumsum(-1).sum(), outputs, create_graph=True)
    with pytest.raises(NotImplementedError, match="a draw is differentiable once"):
        gradient.sum().backward()


@families
def test_a_batch_of_gradients(family: Family) -> None:
    outputs = made_outputs(torch.float32)
    found = drawn_from(outputs, family, torch.float32)
    grads = [torch.randn(2, *value.shape) for value in found]
    many = torch.autograd.grad(found, outputs, grads, is_grads_batched=True, retain_graph=True)
    for index in range(2):
        one = torch.autograd.grad(found, outputs, [grad[index] for grad in grads], retain_graph=True)
        for whole, part in zip(many, one, strict=True):
            torch.testing.assert_close(whole[index], part)


def test_without_gradients_nothing_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_latents, "_plain_latents", None)
    with torch.no_grad():
        z, rate = drawn_from(made_outputs(torch.float32), family_named("von_mises_fisher"), torch.float16)
    assert (z.dtype, rate.dtype, z.requires_grad) == (torch.float16, torch.float32, False)


@pytest.mark.filterwarnings(
    "ignore:(overflow|invalid value|divide by zero):RuntimeWarning"
)  # of the interpreter
class TestFused:
    """The kernels: compiled on a GPU, otherwise in Triton's interpreter."""

    @pytest.fixture(autouse=True)
    def _kernels(self, monkeypatch: pytest.MonkeyPatch) -> None:
        pytest.importorskip("triton", reason="Triton is not installed")
        if CUDA:
            return
        monkeypatch.setattr(engines, "_chosen", "triton")

    kernel_families = pytest.mark.parametrize(
        "family", list(map(family_named, fused.FAMILIES)), ids=fused.FAMILIES
    )

    @kernel_families
    @pytest.mark.parametrize("dim", [2, 3, 5, 17])
    @pytest.mark.parametrize("bounds", [BOUNDS, Bounds(0.0, math.inf)], ids=["bounded", "unbounded"])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
    def test_values_and_gradient(self, family: Family, dim: int, bounds: Bounds, dtype: torch.dtype) -> None:
        outputs = (3 * torch.randn(40, 3, dim + 1)).to(DEVICE, dtype)
        outputs[3, 1, :dim] = 0.0
        outputs[4, 1, :dim] *= 1e-13
        outputs[5, 1, :dim] *= 1e20
        outputs[6, 1, dim] = 60.0
        outputs.requires_grad_()
        z, rate = drawn(outputs, Settings(family.name, dim, bounds), RADIUS, dtype)
        x, scalars = unpack_record(*z.grad_fn.saved_tensors)
        assert (z.shape, z.dtype, rate.dtype) == (x.shape, dtype, torch.float32)
        # The interpreter truncates to bfloat16; a GPU rounds.
        torch.testing.assert_close(
            z.float(), RADIUS * x, rtol=1e-6 if dtype == torch.float32 else 8e-3, atol=0
        )
        # The draw is one around μ with the cosine that is saved.
        exact = outputs.detach().double().requires_grad_()
        loc, kappa = _parameters.composition(exact, dim, bounds)
        torch.testing.assert_close(x.double().norm(dim=-1), torch.ones_like(kappa), rtol=0, atol=1e-6)
        torch.testing.assert_close(
            (x.double() - loc).square().sum(-1) / 2, scalars[0].double(), rtol=1e-4, atol=1e-6
        )
        torch.testing.assert_close(rate.double(), family.relative_entropy(kappa, dim), rtol=5e-6, atol=1e-7)
        # Compare the gradient with torch operations on the same draw.
        grads = torch.randn_like(z), torch.randn_like(rate)
        for used in ((0, 1), (0,), (1,)):
            (found,) = torch.autograd.grad(
                [(z, rate)[i] for i in used], outputs, [grads[i] for i in used], retain_graph=True
            )
            given = [grads[i].double() if i in used else None for i in (0, 1)]
            (expected,) = self.expected(family, exact, loc, kappa, bounds, x, scalars, *given)
            scale = expected.abs().amax(-1, keepdim=True).clamp(min=1e-30)
            rounding = {torch.float32: 3e-4, torch.bfloat16: 1e-2}[dtype]
            error = ((found.double() - expected) / scale).abs()
            assert error.max() < rounding, (used, error.amax((0, 1)), error.amax(-1).argmax())

    @staticmethod
    def expected(family, outputs, loc, kappa, bounds, x, scalars, grad, grad_rate) -> tuple[Tensor, ...]:
        """The gradient in float64, given the draw: the derivative of x by rotation and along the meridian."""
        loss = torch.zeros((), dtype=torch.float64, device=x.device)
        dim = x.shape[-1]
        if grad is not None:
            one_minus_t, one_plus_t = (one.double() for one in scalars[:2])
            t = (1 - one_minus_t).unsqueeze(-1)
            slope = family.rapidity_slope(*scalars[:3], kappa.detach().float(), dim).double()
            fixed, point = loc.detach(), x.double()
            turned = t * (loc - fixed) - ((loc - fixed) * point).sum(-1, keepdim=True) * fixed
            squared_sine = (one_minus_t * one_plus_t).unsqueeze(-1)
            along = squared_sine * fixed - t * (point - t * fixed)
            moved = point + turned + (slope * (kappa - kappa.detach())).unsqueeze(-1) * along
            loss = loss + RADIUS * (grad * moved).sum()
        if grad_rate is not None:
            loss = loss + (grad_rate * family.relative_entropy(kappa, dim)).sum()
        return torch.autograd.grad(loss, outputs, retain_graph=True)

    @kernel_families
    @pytest.mark.parametrize(("dim", "raw"), [(2, 1.0), (3, 5.0), (5, 30.0), (17, 300.0)])
    def test_law(self, family: Family, dim: int, raw: float) -> None:
        count = 100_000 if CUDA else 1000
        torch.manual_seed(dim)
        outputs = torch.randn(count, dim + 1, device=DEVICE)
        outputs[:, dim] = raw
        settings = Settings(family.name, dim, Bounds(0.0, math.inf))
        z, _ = drawn(outputs.requires_grad_(), settings, 1.0, torch.float32)
        x, scalars = unpack_record(*z.grad_fn.saved_tensors)
        assert torch.equal(x, z)
        kappa = torch.full((count,), math.log1p(math.exp(-raw)) + raw, dtype=torch.float64)
        log_cdf, _ = family.log_tails(*scalars[:2].detach().double().cpu(), kappa, dim)
        assert scipy.stats.kstest(log_cdf.exp().numpy(), "uniform").pvalue > 1e-6

    @kernel_families
    @pytest.mark.parametrize("dim", [2, 3, 5, 17])
    def test_radius(self, family: Family, dim: int) -> None:
        """With radius 1 in float32, z is the point itself, and no second copy is kept."""
        outputs = torch.randn(40, dim + 1, device=DEVICE, requires_grad=True)
        grad, found = torch.randn(40, dim, device=DEVICE), []
        for radius in (1.0, 2.0):
            torch.manual_seed(3)
            z, _ = drawn(outputs, Settings(family.name, dim, BOUNDS), radius, torch.float32)
            _, record, point = z.grad_fn.saved_tensors
            assert record.numel() == 40 * (4 if radius == 1 else dim + 4)
            assert (point is None) == (radius != 1)
            found.append((z / radius, *torch.autograd.grad(z, outputs, grad / radius)))
        for one, other in zip(*found, strict=True):
            assert torch.equal(one, other)

    @kernel_families
    def test_without_gradients(self, family: Family) -> None:
        with torch.no_grad():
            z, rate = drawn_from(made_outputs(torch.float32).to(DEVICE), family, torch.float16)
        assert (z.dtype, z.requires_grad) == (torch.float16, False)
        torch.testing.assert_close(z.float().norm(dim=-1), torch.full_like(rate, RADIUS), rtol=2e-3, atol=0)

    @kernel_families
    @pytest.mark.parametrize("strided", [False, True])
    def test_derivatives_that_need_torch_operations(self, family: Family, strided: bool) -> None:
        outputs = made_outputs(torch.float32).detach().to(DEVICE)
        outputs = (
            outputs.transpose(0, 1).contiguous().transpose(0, 1) if strided else outputs
        ).requires_grad_()
        assert outputs.is_contiguous() != strided
        found = drawn_from(outputs, family, torch.float32)
        assert "Fused" in found[1].grad_fn.name()
        (slope,) = torch.autograd.grad(found[1].sum(), outputs, create_graph=True)
        (second,) = torch.autograd.grad(slope.square().sum(), outputs, retain_graph=True)
        _, rate = composition(outputs, family, torch.float32)
        (slope,) = torch.autograd.grad(rate.sum(), outputs, create_graph=True)
        (expected,) = torch.autograd.grad(slope.square().sum(), outputs)
        torch.testing.assert_close(second, expected, rtol=1e-4, atol=1e-5)
        grads = [torch.randn(2, *value.shape, device=DEVICE) for value in found]
        (many,) = torch.autograd.grad(found, outputs, grads, is_grads_batched=True, retain_graph=True)
        for index in range(2):
            given = [grad[index] for grad in grads]
            (one,) = torch.autograd.grad(found, outputs, given, retain_graph=True)
            torch.testing.assert_close(many[index], one, rtol=1e-4, atol=1e-4)

    @kernel_families
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
    @pytest.mark.parametrize("radius", [1.0, RADIUS])
    def test_compiled_code_calls_operators(self, family: Family, dtype: torch.dtype, radius: float) -> None:
        """The compiled graphs have one operator each. Values and gradient are those of eager mode."""
        features = (3 * torch.randn(7, DIM + 1)).to(DEVICE, dtype).requires_grad_()
        called: list[str] = []

        def record(graph: torch.fx.GraphModule, _: list) -> Callable:
            targets = [node.target for node in graph.graph.nodes if node.op == "call_function"]
            called.extend(str(target) for target in targets if "powerspherical" in str(target))
            return make_boxed_func(graph.forward)

        def results(function: Callable) -> tuple[Tensor, ...]:
            torch.manual_seed(3)
            z, rate = function(features, None, packed(Settings(family.name, DIM, BOUNDS)), radius)
            loss = z.float().cumsum(-1).square().sum() + rate.square().sum()
            return z, rate, *torch.autograd.grad(loss, features)

        torch.compiler.reset()
        compiled = torch.compile(latents, backend=aot_autograd(fw_compiler=record), fullgraph=True)
        torch.testing.assert_close(results(compiled), results(latents), rtol=0, atol=0)
        assert called == ["powerspherical.draw_latents.default", "powerspherical.pull_back_latents.default"]

    def test_a_batch_of_gradients_of_compiled_code(self) -> None:
        settings = packed(Settings("power_spherical", DIM, BOUNDS))
        features = torch.randn(7, DIM + 1, device=DEVICE, requires_grad=True)
        torch.compiler.reset()
        z, rate = torch.compile(latents, backend="aot_eager")(features, None, settings, 2.0)
        weights = torch.randn(3, 7, DIM, device=DEVICE), torch.randn(3, 7, device=DEVICE)
        (batch,) = torch.autograd.grad((z, rate), features, weights, is_grads_batched=True, retain_graph=True)
        for gradient, *one in zip(batch, *weights, strict=True):
            torch.testing.assert_close(
                gradient, *torch.autograd.grad((z, rate), features, one, retain_graph=True)
            )

    @pytest.mark.parametrize("backend", ["aot_eager", "aot_eager_decomp_partition"])
    def test_draws_of_one_graph_differ(self, backend: str) -> None:
        """The compiler merges equal calls, unless it knows that they are random."""
        settings = packed(Settings("power_spherical", DIM, BOUNDS))

        def two(features: Tensor) -> tuple[Tensor, Tensor]:
            return latents(features, None, settings, RADIUS)[0], latents(features, None, settings, RADIUS)[0]

        torch.compiler.reset()
        features = torch.randn(7, DIM + 1, device=DEVICE, requires_grad=True)
        first, second = torch.compile(two, backend=backend, fullgraph=True)(features)
        assert not (first == second).all(-1).any()

    @kernel_families
    @pytest.mark.parametrize("radius", [1.0, RADIUS])
    def test_operators_are_registered_soundly(self, family: Family, radius: float) -> None:
        outputs = torch.randn(4, 3, DIM + 1, device=DEVICE)
        settings = packed(Settings(family.name, DIM, BOUNDS))
        arguments = outputs, settings, radius, torch.float32, 0
        torch.library.opcheck(torch.ops.powerspherical.draw_latents.default, arguments)
        z, rate, record = torch.ops.powerspherical.draw_latents(*arguments)
        grads = torch.randn_like(z), torch.randn_like(rate)
        for grad, grad_rate in (grads, (grads[0], None), (None, grads[1])):
            arguments = outputs, record, z if radius == 1 else None, grad, grad_rate, settings, radius
            torch.library.opcheck(torch.ops.powerspherical.pull_back_latents.default, arguments)

    @kernel_families
    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64], ids=str)
    def test_the_default_dtype_changes_nothing(self, family: Family, dtype: torch.dtype) -> None:
        from powerspherical.nn import _triton_latents

        outputs = torch.randn(7, DIM + 1, device=DEVICE)
        rates = []
        for default in (dtype, torch.float32):
            _triton_latents._draw_plan.cache_clear()
            torch.set_default_dtype(default)
            try:
                rates.append(drawn(outputs, Settings(family.name, DIM, BOUNDS), 1.0, torch.float32)[1])
            finally:
                torch.set_default_dtype(torch.float32)
        torch.testing.assert_close(*rates, rtol=0, atol=0)
