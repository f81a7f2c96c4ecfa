"""μ and κ from a head's outputs: the hand-written gradient, the kernels, and the modes that see torch operations."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from helpers.engines import Engine
from powerspherical.nn import _parameters
from powerspherical.nn._parameters import Bounds, parameters

CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
DIM = 5
BOUNDS = {"bounded": Bounds(1.0, 50.0), "unbounded": Bounds(0.3, math.inf)}
bounds = pytest.mark.parametrize("bounds", BOUNDS.values(), ids=BOUNDS)
entries = pytest.mark.parametrize("entries", [DIM + 1, DIM], ids=["v and r", "v"])


@pytest.fixture
def fused(engine: Engine) -> Engine:
    """What computes float32 and half precision."""
    if engine.device != DEVICE:
        pytest.skip("on a machine with a GPU, the outputs are there")
    return engine


def made_outputs(count: int = DIM + 1, dtype: torch.dtype = torch.float32) -> Tensor:
    """Outputs of shape (40, 3, count), with short, long and zero vectors and with extreme r."""
    outputs = 3 * torch.randn(40, 3, count, dtype=torch.float64)
    if count > DIM:
        outputs[:8, 0, DIM] = torch.tensor([-1e4, -80.0, -25.0, -15.0, 15.0, 25.0, 90.0, 1e4]).double()
    lengths = [0.0, 1e-13] if dtype == torch.float16 else [0.0, 1e-13, 1e-6, 1e20, 1e30]
    for place, length in enumerate(lengths):
        outputs[place, 1, :DIM] *= length
    return outputs.to(dtype).to(DEVICE).requires_grad_()


def expected(outputs: Tensor, bounds: Bounds) -> tuple[Tensor, ...]:
    """The parameters by torch operations in float64."""
    return tuple(x for x in _parameters.composition(outputs.double(), DIM, bounds) if x is not None)


@pytest.mark.usefixtures("fused")
class TestPlain:
    @bounds
    @entries
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
    def test_values_and_gradient(self, bounds: Bounds, entries: int, dtype: torch.dtype) -> None:
        outputs = made_outputs(entries, dtype)
        found = [x for x in parameters(outputs, DIM, bounds) if x is not None]
        exact = expected(outputs, bounds)
        for value, other in zip(found, exact, strict=True):
            assert value.dtype == torch.float32
            torch.testing.assert_close(value.double(), other, rtol=2e-6, atol=1e-7)
        grads = [torch.randn_like(value) for value in found]
        (gradient,) = torch.autograd.grad(found, outputs, grads)
        (reference,) = torch.autograd.grad(exact, outputs, [grad.double() for grad in grads])
        assert gradient.dtype == dtype
        rounding = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}[dtype]
        # Coordinates of a row cancel, so the error is relative to the largest one.
        scale = reference[..., :DIM].abs().amax(-1, keepdim=True).clamp(min=1e-37)
        error = ((gradient - reference)[..., :DIM] / scale).abs().max()
        assert error < rounding
        torch.testing.assert_close(gradient[..., DIM:], reference[..., DIM:], rtol=rounding, atol=1e-7)

    @pytest.mark.parametrize("dim", [2, 4, 8, 9, 16, 33, 100])
    def test_dimensions(self, dim: int) -> None:
        """Rows that fill vectors of the processor exactly, and rows that leave a rest."""
        outputs = torch.randn(33, dim + 1, device=DEVICE, requires_grad=True)
        found, exact = (
            function(x, dim, BOUNDS["bounded"])
            for function, x in ((parameters, outputs), (_parameters.composition, outputs.double()))
        )
        for value, other in zip(found, exact, strict=True):
            torch.testing.assert_close(value.double(), other, rtol=1e-6, atol=1e-7)
        grads = [torch.randn_like(value) for value in found]
        (gradient,) = torch.autograd.grad(found, outputs, grads)
        (reference,) = torch.autograd.grad(exact, outputs, [grad.double() for grad in grads])
        torch.testing.assert_close(gradient, reference, rtol=1e-5, atol=1e-6)

    @entries
    def test_one_of_the_two_gradients(self, entries: int) -> None:
        for index in range(entries - DIM + 1):
            outputs = made_outputs(entries)
            value, exact = (
                parameters(outputs, DIM, BOUNDS["bounded"])[index],
                expected(outputs, BOUNDS["bounded"]),
            )
            grad = torch.randn_like(value)
            (gradient,) = torch.autograd.grad(value, outputs, grad)
            (reference,) = torch.autograd.grad(exact[index], outputs, grad)
            torch.testing.assert_close(gradient[5:], reference[5:], rtol=1e-4, atol=1e-6)

    @bounds
    def test_small_concentrations_keep_their_digits(self, bounds: Bounds) -> None:
        raw = torch.linspace(-80, 80, 321, device=DEVICE)
        outputs = torch.cat((torch.ones(321, DIM, device=DEVICE), raw[:, None]), -1)
        limits = bounds._replace(minimum=0.0)
        _, kappa = parameters(outputs, DIM, limits)
        torch.testing.assert_close(kappa.double(), expected(outputs, limits)[1], rtol=1e-6, atol=0)
        outputs[:, DIM] = -200.0
        assert not parameters(outputs, DIM, limits)[1].any()

    @pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # of the interpreter
    def test_nan_stays_in_its_row(self) -> None:
        outputs = torch.randn(4, DIM + 1, device=DEVICE)
        outputs[1, 2], outputs[2, DIM], outputs[3, :DIM] = math.nan, math.nan, math.inf
        loc, kappa = parameters(outputs, DIM, BOUNDS["bounded"])
        assert loc.isnan().all(-1).tolist() == [False, True, False, True]
        assert loc.isnan().any(-1).tolist() == [False, True, False, True]
        assert kappa.isnan().tolist() == [False, False, True, False]

    def test_layouts(self) -> None:
        """Strided outputs and gradients, and an empty batch."""
        whole = torch.randn(3, DIM + 1, 7, device=DEVICE, requires_grad=True)
        found = parameters(whole.movedim(1, -1), DIM, BOUNDS["bounded"])
        assert [x.shape for x in found] == [(3, 7, DIM), (3, 7)]
        exact = expected(whole.movedim(1, -1), BOUNDS["bounded"])
        for value, other in zip(found, exact, strict=True):
            torch.testing.assert_close(value.double(), other, rtol=2e-6, atol=1e-7)
        grads = (
            torch.randn(DIM, 7, 3, device=DEVICE).permute(2, 1, 0),
            torch.ones((), device=DEVICE).expand(3, 7),
        )
        (gradient,) = torch.autograd.grad(found, whole, grads)
        (reference,) = torch.autograd.grad(exact, whole, [grad.double() for grad in grads])
        torch.testing.assert_close(gradient, reference, rtol=1e-4, atol=1e-6)
        empty = torch.zeros(0, DIM + 1, device=DEVICE, requires_grad=True)
        loc, kappa = parameters(empty, DIM, BOUNDS["bounded"])
        (loc.sum() + kappa.sum()).backward()
        assert (loc.shape, kappa.shape, empty.grad.shape) == ((0, DIM), (0,), (0, DIM + 1))

    def test_a_batch_of_gradients(self) -> None:
        outputs = made_outputs()
        loc, kappa = parameters(outputs, DIM, BOUNDS["bounded"])
        grads = torch.randn(2, *loc.shape, device=DEVICE), torch.randn(2, *kappa.shape, device=DEVICE)
        (many,) = torch.autograd.grad((loc, kappa), outputs, grads, is_grads_batched=True, retain_graph=True)
        for index in range(2):
            (one,) = torch.autograd.grad((loc, kappa), outputs, [g[index] for g in grads], retain_graph=True)
            torch.testing.assert_close(many[index], one, rtol=1e-4, atol=1e-6)


@bounds
@entries
def test_first_and_second_derivatives(bounds: Bounds, entries: int) -> None:
    outputs = torch.randn(3, entries, dtype=torch.float64)
    outputs[0, :DIM] *= 1e-3

    def function(x: Tensor) -> tuple[Tensor, ...]:
        return tuple(value for value in parameters(x, DIM, bounds) if value is not None)

    outputs.requires_grad_()
    assert torch.autograd.gradcheck(function, outputs)
    assert torch.autograd.gradgradcheck(function, outputs)


def test_second_derivative_of_a_short_vector() -> None:
    """It is that of the composition."""
    bounds = BOUNDS["bounded"]

    def penalty(function: object, outputs: Tensor) -> Tensor:
        loc, kappa = function(outputs, DIM, bounds)
        (gradient,) = torch.autograd.grad((loc.cumsum(-1).sum() + kappa.sum()), outputs, create_graph=True)
        return torch.autograd.grad(gradient.square().sum(), outputs)[0]

    outputs = torch.full((2, DIM + 1), 1e-13, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(
        penalty(parameters, outputs), penalty(_parameters.composition, outputs), rtol=1e-8, atol=1e-10
    )


@entries
def test_transforms_agree(entries: int) -> None:
    outputs = made_outputs(entries).detach()[5:].double()
    bounds = BOUNDS["bounded"]

    def loss(x: Tensor) -> Tensor:
        return sum(
            value.cumsum(-1).square().sum() for value in parameters(x, DIM, bounds) if value is not None
        )

    x = outputs.clone().requires_grad_()
    (plain,) = torch.autograd.grad(loss(x), x)
    torch.testing.assert_close(torch.func.grad(loss)(outputs), plain)
    _, tangent = torch.func.jvp(loss, (outputs,), (torch.ones_like(outputs),))
    torch.testing.assert_close(tangent, plain.sum())
