"""The fused log-density and cosine, by the C library and by Triton.

Without a GPU, Triton's kernels run on the CPU, in its interpreter (see conftest.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from types import ModuleType

import pytest
import torch
from torch import Tensor

from powerspherical import PowerSpherical, SphericalCauchy, VonMisesFisher, engines
from powerspherical._native import library
from powerspherical.distributions import _native_density, density, geometry
from powerspherical.families import POWER_SPHERICAL, SPHERICAL_CAUCHY, VON_MISES_FISHER, Family
from powerspherical.sampling import native

CUDA = torch.cuda.is_available()
FLOAT = torch.float32

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


@pytest.fixture(autouse=True, params=["native", "triton"])
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module with the kernels that the test uses. Skips the test if they cannot run."""
    if request.param == "native":
        if not library.usable():
            pytest.skip("no native library")
        return _native_density
    pytest.importorskip("triton", reason="Triton is not installed")
    from powerspherical.distributions import _triton_density

    if not CUDA:
        monkeypatch.setattr(engines, "_chosen", "triton")
    return _triton_density


@pytest.fixture
def device(kernels: ModuleType) -> str:
    return "cpu" if kernels is _native_density or not CUDA else "cuda"


Leaves = Callable[..., tuple[list[Tensor], list[Tensor]]]


@pytest.fixture
def leaves(device: str) -> Leaves:
    """Makes leaves on the device in a dtype, by default float32, and the same numbers in float64 on the CPU."""

    def make(*tensors: Tensor, dtype: torch.dtype = torch.float32) -> tuple[list[Tensor], list[Tensor]]:
        fused = [tensor.to(device, dtype).requires_grad_() for tensor in tensors]
        return fused, [leaf.detach().cpu().double().requires_grad_() for leaf in fused]

    return make


def directions(*shape: int) -> Tensor:
    return torch.nn.functional.normalize(torch.randn(shape, dtype=torch.float64), dim=-1)


def arguments(x: tuple[int, ...], loc: tuple[int, ...], kappa: tuple[int, ...], dim: int) -> list[Tensor]:
    return [directions(*x, dim), directions(*loc, dim), 5 * torch.rand(kappa, dtype=torch.float64) * dim**0.5]


def assert_close(actual: Tensor, expected: Tensor, tolerance: float) -> None:
    """Relative to the largest number of the tensor, and of the same shape."""
    assert actual.shape == expected.shape
    scale = expected.abs().max().clamp(min=1).item()
    torch.testing.assert_close(actual.cpu().double(), expected, rtol=0, atol=tolerance * scale)


def check(function: Callable[..., Tensor], fused: list[Tensor], exact: list[Tensor]) -> None:
    """Compare values and gradients in float32, by the kernels, and in float64."""
    value, expected = function(*fused), function(*exact)
    assert value.grad_fn.plan is not None
    assert_close(value.detach(), expected.detach(), 2e-6)
    each = torch.randn(expected.shape, dtype=torch.float64)
    one = value.detach().new_tensor(2.0).expand(value.shape)  # one number in memory, as the gradient of a sum
    for on_device in (each.to(one), one):
        weight = on_device.double().cpu()
        grads = torch.autograd.grad(value, fused, on_device, retain_graph=True)
        wanted = torch.autograd.grad(expected, exact, weight, retain_graph=True)
        for grad, want in zip(grads, wanted, strict=True):
            assert_close(grad, want, 1e-5)


@families
@pytest.mark.parametrize(("x", "loc", "kappa"), SHAPES)
def test_density(
    leaves: Leaves, family: Family, x: tuple[int, ...], loc: tuple[int, ...], kappa: tuple[int, ...]
) -> None:
    fused, exact = leaves(*arguments(x, loc, kappa, 5))
    check(lambda *args: density.log_density(family, *args), fused, exact)


@families
@pytest.mark.parametrize("dim", [2, 3, 64, 200, 4096])
def test_dimensions(leaves: Leaves, family: Family, dim: int) -> None:
    fused, exact = leaves(*arguments((6,), (6,), (6,), dim))
    check(lambda *args: density.log_density(family, *args), fused, exact)


@pytest.mark.parametrize(("x", "loc"), [shapes[:2] for shapes in SHAPES])
@pytest.mark.parametrize("end", [0, 1])
def test_cosine_ends(leaves: Leaves, x: tuple[int, ...], loc: tuple[int, ...], end: int) -> None:
    fused, exact = leaves(directions(*x, 5), directions(*loc, 5))
    check(lambda *args: geometry.cosine_ends(*args)[end], fused, exact)


def test_both_ends_are_differentiated(leaves: Leaves) -> None:
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
def test_near_the_poles(leaves: Leaves, family: Family, dim: int, sign: float) -> None:
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
def test_at_the_poles(leaves: Leaves, family: Family, kappa: float, sign: float) -> None:
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
def test_nan_stays_in_its_row(leaves: Leaves, family: Family) -> None:
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
def test_half_precision(leaves: Leaves, family: Family, dtype: torch.dtype, loc_rows: int) -> None:
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
def test_some_gradients(
    leaves: Leaves, family: Family, needed: tuple[int, ...], loc: tuple[int, ...]
) -> None:
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
def test_without_gradients(leaves: Leaves, family: Family) -> None:
    fused, exact = leaves(*arguments((8,), (), (), 3))
    with torch.no_grad():
        value = density.log_density(family, *fused)
    assert_close(value, density.log_density(family, *exact).detach(), 2e-6)


@families
def test_second_derivatives(leaves: Leaves, family: Family) -> None:
    fused, exact = leaves(*arguments((4,), (), (4,), 3))
    seconds = []
    for inputs in (fused, exact):
        value = density.log_density(family, *inputs)
        first = torch.autograd.grad(value.sum(), inputs, create_graph=True)
        seconds.append(torch.autograd.grad(sum(grad.square().sum() for grad in first), inputs))
    for actual, expected in zip(*seconds, strict=True):
        assert_close(actual, expected, 1e-5)


def test_second_derivatives_of_the_ends(leaves: Leaves) -> None:
    fused, exact = leaves(directions(4, 3), directions(3))
    seconds = []
    for inputs in (fused, exact):
        minus, plus = geometry.cosine_ends(*inputs)
        first = torch.autograd.grad((minus * plus).sum(), inputs, create_graph=True)
        seconds.append(torch.autograd.grad(sum(grad.square().sum() for grad in first), inputs))
    for actual, expected in zip(*seconds, strict=True):
        assert_close(actual, expected, 1e-5)


@families
def test_batches_of_gradients(leaves: Leaves, family: Family) -> None:
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
def test_transforms(leaves: Leaves, family: Family) -> None:
    """Under ``torch.func`` the density runs as torch operations."""
    fused, exact = leaves(*arguments((4,), (4,), (4,), 3))
    slope = torch.func.vmap(
        torch.func.grad(lambda *args: density.log_density(family, *args), argnums=(0, 1, 2))
    )
    value = density.log_density(family, *exact)
    wanted = torch.autograd.grad(value.sum(), exact)
    for actual, expected in zip(slope(*(leaf.detach() for leaf in fused)), wanted, strict=True):
        assert_close(actual, expected, 1e-5)


def test_shapes_that_are_left_to_torch(leaves: Leaves, kernels: ModuleType) -> None:
    """Empty batches, arguments that broadcast between their own axes, and for Triton long rows."""
    size = torch.Size
    assert kernels.plan("ends", size((0, 3)), size((3,)), size()) is None
    assert kernels.plan("ends", size((2, 1, 2, 3)), size((2, 4, 2, 3)), size()) is None
    long_rows = kernels.plan("ends", size((2, 5000)), size((2, 5000)), size())
    assert (long_rows is None) == (kernels is not _native_density)
    (x, loc, kappa), exact = leaves(*arguments((2, 1, 2), (2, 4, 2), (), 3))
    value = density.log_density(VON_MISES_FISHER, x, loc, kappa)
    assert "Fused" not in value.grad_fn.name()
    assert_close(value.detach(), density.log_density(VON_MISES_FISHER, *exact).detach(), 2e-6)


@families
def test_double_precision_takes_torch_operations(family: Family, device: str) -> None:
    inputs = [tensor.to(device).requires_grad_() for tensor in arguments((4,), (4,), (4,), 3)]
    assert "Fused" not in density.log_density(family, *inputs).grad_fn.name()
    assert geometry.cosine_ends(*inputs[:2])[0].grad_fn.plan is None
    mixed = density.log_density(family, inputs[0].float(), *inputs[1:])
    assert ("Fused" not in mixed.grad_fn.name(), mixed.dtype) == (True, torch.float64)


@families
@pytest.mark.parametrize("shape", [(0,), (3, 0)])
def test_no_rows(family: Family, leaves: Leaves, shape: tuple[int, ...]) -> None:
    inputs, _ = leaves(*arguments(shape, (), shape, 3))
    value = density.log_density(family, *inputs)
    grads = torch.autograd.grad(value.sum(), inputs)
    assert value.shape == shape
    assert [grad.shape for grad in grads] == [(*shape, 3), (3,), shape]
    assert (grads[1] == 0).all()


def check_values(function: Callable[..., Tensor], fused: list[Tensor], exact: list[Tensor]) -> None:
    """``check`` for a function whose result is a view."""
    value, expected = function(*fused), function(*exact)
    assert_close(value.detach(), expected.detach(), 2e-6)
    weight = torch.randn(expected.shape, dtype=torch.float64).float()
    grads = torch.autograd.grad(value, fused, weight.to(value.device))
    for grad, want in zip(grads, torch.autograd.grad(expected, exact, weight.double()), strict=True):
        assert_close(grad, want, 1e-5)


@families
def test_strides(family: Family, leaves: Leaves) -> None:
    """Transposed, sliced and expanded arguments, and a gradient with strides."""
    x, loc, kappa = arguments((5, 6), (6, 5), (12, 5), 9)
    fused, exact = leaves(x, loc, kappa)

    def function(x: Tensor, loc: Tensor, kappa: Tensor) -> Tensor:
        rows = x[:, ::2, None].expand(5, 3, 4, 9)
        directions = loc.transpose(0, 1)[:, :3, None]
        return density.log_density(family, rows, directions, kappa.t().view(5, 3, 4)).transpose(0, 2)

    check_values(function, fused, exact)


@pytest.mark.parametrize("distribution", [PowerSpherical, VonMisesFisher, SphericalCauchy])
def test_log_prob(device: str, distribution: type) -> None:
    """Through the distribution: parameters of smaller shapes than the batch, a sample shape, an expanded batch."""
    x, loc, kappa = arguments((7, 4), (), (4,), 3)
    p = distribution(loc.to(device, torch.float32), kappa.to(device, torch.float32))
    exact = distribution(loc, kappa)
    points = x.to(device, torch.float32)
    assert_close(p.log_prob(points), exact.log_prob(x), 2e-6)
    assert_close(p.expand((7, 4)).log_prob(points[0, 0]), exact.expand((7, 4)).log_prob(x[0, 0]), 2e-6)
    p.log_prob(points.requires_grad_()).sum().backward()
    exact.log_prob(x.requires_grad_()).sum().backward()
    assert_close(points.grad, x.grad, 1e-5)


# The C library


native_only = pytest.mark.parametrize("kernels", ["native"], indirect=True)


@native_only
@families
@pytest.mark.parametrize("dim", [5, 8, 9, 15, 16, 17, 33, 513, 1000, 100_000])
def test_any_dimension(family: Family, dim: int, leaves: Leaves) -> None:
    fused, exact = leaves(*arguments((5,), (5,), (5,), dim))
    check(lambda *args: density.log_density(family, *args), fused, exact)
    for end, expected in zip(geometry.cosine_ends(*fused[:2]), geometry.cosine_ends(*exact[:2]), strict=True):
        torch.testing.assert_close(end.detach().double(), expected.detach(), rtol=2e-7, atol=0)


@native_only
@families
@pytest.mark.parametrize("count", [1, 2, 15, 16, 17, 63, 64, 65, 130])
@pytest.mark.parametrize("dim", [2, 4, 20])
def test_any_number_of_rows(family: Family, count: int, dim: int, leaves: Leaves) -> None:
    for loc in ((count,), ()):
        fused, exact = leaves(*arguments((3, count), loc, (count,), dim))
        check(lambda *args: density.log_density(family, *args), fused, exact)


@native_only
@families
@pytest.mark.parametrize("dim", [3, 16])
@pytest.mark.parametrize("loc", [(), (7,)])
def test_long_sums_keep_their_digits(family: Family, dim: int, loc: tuple[int, ...], leaves: Leaves) -> None:
    """The gradient in loc is the sum of many gradients that point the same way, right to the last digit."""
    x, mu, kappa = arguments((20_000, 7), loc, loc, dim)
    axes = torch.eye(dim, dtype=torch.float64)
    inputs = [torch.nn.functional.normalize(v, dim=-1) for v in (x + 2 * axes[0], 0.1 * mu + axes[1])]
    fused, exact = leaves(*inputs, kappa)
    grads = [
        torch.autograd.grad(density.log_density(family, *leaf).sum(), leaf[1])[0] for leaf in (fused, exact)
    ]
    error = (grads[0].double() - grads[1]).norm(dim=-1)
    assert (error <= 2e-7 * grads[1].norm(dim=-1)).all()


@native_only
@families
@pytest.mark.parametrize(
    ("x", "loc"),
    [((40_000,), (40_000,)), ((40_000,), ()), ((400, 100), (100,)), ((400, 100), (400, 1)), ((), (40_000,))],
)
@pytest.mark.parametrize("dim", [4, 16])
def test_threads_give_the_same_bits(
    family: Family, x: tuple[int, ...], loc: tuple[int, ...], dim: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = [tensor.float().requires_grad_() for tensor in arguments(x, loc, loc, dim)]
    results = []
    for threads in (1, 2, 7):
        monkeypatch.setattr(native, "threads", lambda numbers, threads=threads: threads)
        value = density.log_density(family, *inputs)
        results.append([value, *torch.autograd.grad(value.sin().sum(), inputs)])
    for other in results[1:]:
        assert all(torch.equal(one, two) for one, two in zip(results[0], other, strict=True))


@native_only
@families
def test_negative_views(family: Family) -> None:
    """The imaginary part of a conjugate is a view whose numbers in memory have the opposite sign."""
    x, loc, kappa = (tensor.float() for tensor in arguments((4,), (4,), (4,), 3))

    def negative_view(tensor: Tensor) -> Tensor:
        view = torch.complex(torch.zeros_like(tensor), -tensor).conj().imag
        assert view.is_neg()
        return view.requires_grad_()

    plain = [tensor.clone().requires_grad_() for tensor in (x, loc, kappa)]
    results = []
    for inputs, grad in (
        (plain, x[:, 0]),
        ([negative_view(tensor) for tensor in (x, loc, kappa)], negative_view(x[:, 0]).detach()),
    ):
        value = density.log_density(family, *inputs)
        results.append([value, *torch.autograd.grad(value, inputs, grad)])
    for one, two in zip(*results, strict=True):
        torch.testing.assert_close(one, two, rtol=0, atol=0)


@native_only
@families
@pytest.mark.parametrize("kappa", [1e-30, 1e20, 3e38])
def test_extreme_concentrations(family: Family, kappa: float, leaves: Leaves) -> None:
    """At the mode, and for small κ elsewhere. Nothing overflows."""
    loc = directions(5, 4)
    x = directions(5, 4) if kappa < 1 else loc
    fused, exact = leaves(x, loc, torch.full((5,), kappa, dtype=torch.float64))
    value, expected = (density.log_density(family, *inputs) for inputs in (fused, exact))
    torch.testing.assert_close(value.detach().double(), expected.detach(), rtol=2e-6, atol=2e-6)
    assert all(grad.isfinite().all() for grad in torch.autograd.grad(value.sum(), fused))


@native_only
@families
def test_the_library_can_be_switched_off(
    family: Family, leaves: Leaves, monkeypatch: pytest.MonkeyPatch
) -> None:
    fused, exact = leaves(*arguments((4,), (4,), (4,), 3))
    with engines.engine("torch"):
        value = density.log_density(family, *fused)
    assert "Fused" not in value.grad_fn.name()
    assert_close(value.detach(), density.log_density(family, *exact).detach(), 2e-6)
    assert "Fused" in density.log_density(family, *fused).grad_fn.name()
