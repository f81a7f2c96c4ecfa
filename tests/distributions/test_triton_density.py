"""The fused log-density and cosine: on a GPU as compiled, elsewhere in Triton's interpreter (see tests/conftest.py)."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from powerspherical import PowerSpherical, SphericalCauchy, VonMisesFisher
from powerspherical._torch.modes import is_plain
from powerspherical.distributions import density, geometry
from powerspherical.families import POWER_SPHERICAL, SPHERICAL_CAUCHY, VON_MISES_FISHER, Family
from powerspherical.special import bessel, gamma

pytest.importorskip("triton", reason="Triton is not installed")

from powerspherical.distributions import _triton_density

CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"

families = pytest.mark.parametrize(
    "family", [VON_MISES_FISHER, POWER_SPHERICAL, SPHERICAL_CAUCHY], ids=lambda family: family.name
)

#: Batch shapes of x, loc and κ.
SHAPES = [
    ((37,), (37,), (37,)),
    ((40,), (), ()),
    ((40,), (), (40,)),
    ((3000,), (), ()),
    ((3, 5), (5,), (5,)),
    ((700, 3), (3,), (3,)),
    ((6, 150), (150,), (150,)),
    ((7,), (4, 1), (4, 1)),
    ((2, 3, 6), (3, 1), (6,)),
    ((), (), ()),
    ((), (6,), (6,)),
    ((5,), (3, 5), ()),
    ((), (), (6,)),
    ((1, 4), (4, 1), (4, 4)),
]


@pytest.fixture(autouse=True)
def _fused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a GPU, use the kernels on the CPU, in the interpreter, wherever a GPU would use them."""
    if not CUDA:

        def runs_fused(computed: Tensor, *others: Tensor) -> bool:
            served = all(x.dtype in geometry._FUSED_DTYPES for x in others)
            return computed.dtype == torch.float32 and served and is_plain(computed, *others)

        for module in (geometry, density, bessel, gamma):
            monkeypatch.setattr(module, "runs_fused", runs_fused)


def directions(*shape: int) -> Tensor:
    return torch.nn.functional.normalize(torch.randn(shape, dtype=torch.float64), dim=-1)


def leaves(*tensors: Tensor, dtype: torch.dtype = torch.float32) -> tuple[list[Tensor], list[Tensor]]:
    """Leaves on the device in ``dtype``, and the same numbers in float64 on the CPU."""
    fused = [tensor.to(DEVICE, dtype).requires_grad_() for tensor in tensors]
    return fused, [leaf.detach().cpu().double().requires_grad_() for leaf in fused]


def arguments(x: tuple[int, ...], loc: tuple[int, ...], kappa: tuple[int, ...], dim: int) -> list[Tensor]:
    return [directions(*x, dim), directions(*loc, dim), 5 * torch.rand(kappa, dtype=torch.float64) * dim**0.5]


def assert_close(actual: Tensor, expected: Tensor, tolerance: float) -> None:
    """Relative to the largest number of the tensor, and of the same shape."""
    assert actual.shape == expected.shape
    scale = expected.abs().max().clamp(min=1).item()
    torch.testing.assert_close(actual.cpu().double(), expected, rtol=0, atol=tolerance * scale)


def check(function: Callable[..., Tensor], fused: list[Tensor], exact: list[Tensor]) -> None:
    """Compare values and gradients in float32, by Triton, and in float64."""
    value, expected = function(*fused), function(*exact)
    assert value.grad_fn.plan is not None
    assert_close(value.detach(), expected.detach(), 2e-6)
    each = torch.randn(expected.shape, dtype=torch.float64)
    one = torch.full((), 2.0, device=DEVICE).expand(
        value.shape
    )  # one number in memory, as the gradient of a sum
    for on_device in (each.to(DEVICE, torch.float32), one):
        weight = on_device.double().cpu()
        grads = torch.autograd.grad(value, fused, on_device, retain_graph=True)
        wanted = torch.autograd.grad(expected, exact, weight, retain_graph=True)
        for grad, want in zip(grads, wanted, strict=True):
            assert_close(grad, want, 1e-5)


@families
@pytest.mark.parametrize(("x", "loc", "kappa"), SHAPES)
def test_density(family: Family, x: tuple[int, ...], loc: tuple[int, ...], kappa: tuple[int, ...]) -> None:
    fused, exact = leaves(*arguments(x, loc, kappa, 5))
    check(lambda *args: density.log_density(family, *args), fused, exact)


@families
@pytest.mark.parametrize("dim", [2, 3, 64, 200, 4096])
def test_dimensions(family: Family, dim: int) -> None:
    fused, exact = leaves(*arguments((6,), (6,), (6,), dim))
    check(lambda *args: density.log_density(family, *args), fused, exact)


@pytest.mark.parametrize(("x", "loc"), [shapes[:2] for shapes in SHAPES])
@pytest.mark.parametrize("end", [0, 1])
def test_cosine_ends(x: tuple[int, ...], loc: tuple[int, ...], end: int) -> None:
    fused, exact = leaves(directions(*x, 5), directions(*loc, 5))
    check(lambda *args: geometry.cosine_ends(*args)[end], fused, exact)


def test_both_ends_are_differentiated() -> None:
    fused, exact = leaves(directions(6, 4), directions(6, 4))
    for ends, inputs in ((geometry.cosine_ends(*fused), fused), (geometry.cosine_ends(*exact), exact)):
        (ends[0] * ends[1].exp()).sum().backward()
        assert inputs[0].grad is not None
    for leaf, other in zip(fused, exact, strict=True):
        assert_close(leaf.grad, other.grad, 1e-5)


def near_pole(dim: int, sign: float, distances: Tensor) -> tuple[Tensor, Tensor]:
    """Float32 mean directions, and points at these distances from them (or from their antipodes)."""
    loc, other = directions(len(distances), dim), directions(len(distances), dim)
    return loc, torch.nn.functional.normalize(sign * loc + distances.unsqueeze(-1) * other, dim=-1)


@families
@pytest.mark.parametrize("dim", [2, 3, 64])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_near_the_poles(family: Family, dim: int, sign: float) -> None:
    """Each row is right to its own size: both ends, the density at κ = 1e4, and the gradients."""
    loc, x = near_pole(dim, sign, torch.logspace(-6, -1, 30, dtype=torch.float64))
    kappa = torch.full((30,), 1e4, dtype=torch.float64)
    fused, exact = leaves(x, loc, kappa)
    for end, expected in zip(geometry.cosine_ends(*fused[:2]), geometry.cosine_ends(*exact[:2]), strict=True):
        torch.testing.assert_close(end.detach().cpu().double(), expected.detach(), rtol=1e-6, atol=0)
    value = density.log_density(family, *fused)
    expected = density.log_density(family, *exact)
    torch.testing.assert_close(value.detach().cpu().double(), expected.detach(), rtol=2e-6, atol=1e-5)
    grads = torch.autograd.grad(value.sum(), fused)
    wanted = torch.autograd.grad(expected.sum(), exact)
    for grad, want in zip(grads[:2], wanted[:2], strict=True):
        error = (grad.cpu().double() - want).norm(dim=-1)
        assert (error <= 1e-6 * want.norm(dim=-1)).all()
    torch.testing.assert_close(grads[2].cpu().double(), wanted[2], rtol=5e-6, atol=1e-9)


@families
@pytest.mark.parametrize("kappa", [0.0, 3.0, 1e6])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_at_the_poles(family: Family, kappa: float, sign: float) -> None:
    """As with torch operations in float64, where the gradients in x and loc vanish."""
    loc = torch.eye(4, dtype=torch.float64)
    fused, exact = leaves(sign * loc, loc, torch.full((4,), kappa, dtype=torch.float64))
    results = []
    for inputs in (fused, exact):
        value = density.log_density(family, *inputs)
        results.append([value.detach(), *torch.autograd.grad(value.sum(), inputs)])
    for actual, expected in zip(*results, strict=True):
        torch.testing.assert_close(actual.cpu().double(), expected, rtol=2e-6, atol=1e-6)
    assert not any(result.isnan().any() for result in results[0])


@families
def test_nan_stays_in_its_row(family: Family) -> None:
    x, loc, kappa = arguments((4,), (4,), (4,), 3)
    x[0, 1] = loc[1, 2] = kappa[2] = math.nan
    fused, _ = leaves(x, loc, kappa)
    value = density.log_density(family, *fused)
    assert value.isnan().tolist() == [True, True, True, False]
    grads = torch.autograd.grad(value.sum(), fused)
    for grad in grads:
        assert grad.view(4, -1).isnan().any(-1).tolist() == [True, True, True, False]


@families
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("loc_rows", [1, 9])
def test_half_precision(family: Family, dtype: torch.dtype, loc_rows: int) -> None:
    """As the same numbers normalised in float64; gradients in half precision."""
    (x, loc), exact = leaves(directions(9, 16), directions(loc_rows, 16), dtype=dtype)
    (kappa,), (exact_kappa,) = leaves(torch.linspace(0, 20, 9))
    value = density.log_density(family, x, loc, kappa)
    assert (value.dtype, value.grad_fn.name()) == (torch.float32, "_FusedDensityBackward")
    units = (torch.nn.functional.normalize(leaf, dim=-1) for leaf in exact)
    expected = density.log_density(family, *units, exact_kappa)
    assert_close(value.detach(), expected.detach(), 2e-6)
    grads = torch.autograd.grad(value.sum(), (x, loc, kappa))
    wanted = torch.autograd.grad(expected.sum(), (*exact, exact_kappa))
    assert [grad.dtype for grad in grads] == [dtype, dtype, torch.float32]
    for grad, want, tolerance in zip(grads, wanted, [torch.finfo(dtype).eps] * 2 + [1e-5], strict=True):
        assert_close(grad, want, tolerance)


@families
@pytest.mark.parametrize("needed", [(0,), (1,), (2,), (0, 2), (1, 2)])
@pytest.mark.parametrize("loc", [(), (8,)])
def test_some_gradients(family: Family, needed: tuple[int, ...], loc: tuple[int, ...]) -> None:
    fused, exact = leaves(*arguments((8,), loc, (8,), 3))
    for inputs in (fused, exact):
        for place, leaf in enumerate(inputs):
            leaf.requires_grad_(place in needed)
        density.log_density(family, *inputs).exp().sum().backward()
    for leaf, other in zip(fused, exact, strict=True):
        assert (leaf.grad is None) == (other.grad is None)
        if leaf.grad is not None:
            assert_close(leaf.grad, other.grad, 1e-5)


@families
def test_without_gradients(family: Family) -> None:
    fused, exact = leaves(*arguments((8,), (), (), 3))
    with torch.no_grad():
        value = density.log_density(family, *fused)
    assert_close(value, density.log_density(family, *exact).detach(), 2e-6)


@families
def test_second_derivatives(family: Family) -> None:
    fused, exact = leaves(*arguments((4,), (), (4,), 3))
    seconds = []
    for inputs in (fused, exact):
        value = density.log_density(family, *inputs)
        first = torch.autograd.grad(value.sum(), inputs, create_graph=True)
        seconds.append(torch.autograd.grad(sum(grad.square().sum() for grad in first), inputs))
    for actual, expected in zip(*seconds, strict=True):
        assert_close(actual, expected, 1e-5)


def test_second_derivatives_of_the_ends() -> None:
    fused, exact = leaves(directions(4, 3), directions(3))
    seconds = []
    for inputs in (fused, exact):
        minus, plus = geometry.cosine_ends(*inputs)
        first = torch.autograd.grad((minus * plus).sum(), inputs, create_graph=True)
        seconds.append(torch.autograd.grad(sum(grad.square().sum() for grad in first), inputs))
    for actual, expected in zip(*seconds, strict=True):
        assert_close(actual, expected, 1e-5)


@families
def test_batches_of_gradients(family: Family) -> None:
    fused, exact = leaves(*arguments((4,), (4,), (4,), 3))
    rows = torch.eye(4, dtype=torch.float64)
    jacobians = [
        torch.autograd.grad(
            density.log_density(family, *inputs), inputs, rows.to(inputs[0]), is_grads_batched=True
        )
        for inputs in (fused, exact)
    ]
    for actual, expected in zip(*jacobians, strict=True):
        assert_close(actual, expected, 1e-5)


@families
def test_transforms(family: Family) -> None:
    """Under ``torch.func`` the density runs as torch operations."""
    fused, exact = leaves(*arguments((4,), (4,), (4,), 3))
    slope = torch.func.vmap(
        torch.func.grad(lambda *args: density.log_density(family, *args), argnums=(0, 1, 2))
    )
    value = density.log_density(family, *exact)
    wanted = torch.autograd.grad(value.sum(), exact)
    for actual, expected in zip(slope(*(leaf.detach() for leaf in fused)), wanted, strict=True):
        assert_close(actual, expected, 1e-5)


def test_shapes_that_are_left_to_torch() -> None:
    """Empty batches, long rows, and arguments that broadcast between their own axes."""
    size = torch.Size
    assert _triton_density.plan("ends", size((0, 3)), size((3,)), size()) is None
    assert _triton_density.plan("ends", size((2, 5000)), size((2, 5000)), size()) is None
    assert _triton_density.plan("ends", size((2, 1, 2, 3)), size((2, 4, 2, 3)), size()) is None
    (x, loc, kappa), exact = leaves(*arguments((2, 1, 2), (2, 4, 2), (), 3))
    value = density.log_density(VON_MISES_FISHER, x, loc, kappa)
    assert "Fused" not in value.grad_fn.name()
    assert_close(value.detach(), density.log_density(VON_MISES_FISHER, *exact).detach(), 2e-6)


@pytest.mark.parametrize("distribution", [PowerSpherical, VonMisesFisher, SphericalCauchy])
def test_log_prob(distribution: type) -> None:
    """Through the distribution: parameters of smaller shapes than the batch, a sample shape, an expanded batch."""
    x, loc, kappa = arguments((7, 4), (), (4,), 3)
    p = distribution(loc.to(DEVICE, torch.float32), kappa.to(DEVICE, torch.float32))
    exact = distribution(loc, kappa)
    points = x.to(DEVICE, torch.float32)
    assert_close(p.log_prob(points), exact.log_prob(x), 2e-6)
    assert_close(p.expand((7, 4)).log_prob(points[0, 0]), exact.expand((7, 4)).log_prob(x[0, 0]), 2e-6)
    p.log_prob(points.requires_grad_()).sum().backward()
    exact.log_prob(x.requires_grad_()).sum().backward()
    assert_close(points.grad, x.grad, 1e-5)
