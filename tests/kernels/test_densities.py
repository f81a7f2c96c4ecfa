"""``log_prob`` in float32 and half precision with each engine, against the same numbers in float64."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from helpers.directions import unit
from helpers.engines import Engine, assert_threads_change_nothing, negative_view
from helpers.examples import DOUBLE, FLOAT, families
from helpers.own_family import registered
from powerspherical import PowerSpherical, VonMisesFisher
from powerspherical.distributions import distribution_named

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's, in Triton's interpreter

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
    ((2, 1, 2), (2, 4, 2), ()),
]


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> type:
    """A distribution whose density no kernel knows. Kernels compute its cosines."""
    return distribution_named(registered(monkeypatch).name)


def log_prob(family: type, x: Tensor, loc: Tensor, kappa: Tensor) -> Tensor:
    return family(loc, kappa, validate_args=False).log_prob(x)


def arguments(shapes: Sequence[tuple[int, ...]], dim: int) -> list[Tensor]:
    x, loc, kappa = shapes
    return [unit(*x, dim), unit(*loc, dim), 5 * torch.rand(kappa, dtype=DOUBLE) * dim**0.5]


def leaves(engine: Engine, *tensors: Tensor, dtype: torch.dtype = FLOAT) -> tuple[list[Tensor], list[Tensor]]:
    """Return leaves of the engine in ``dtype``, and the same numbers in float64 on the CPU."""
    single = [tensor.to(engine.device, dtype).requires_grad_() for tensor in tensors]
    return single, [leaf.detach().cpu().double().requires_grad_() for leaf in single]


def assert_close(actual: Tensor, expected: Tensor, tolerance: float) -> None:
    """Relative to the largest number of the tensor, and of the same shape."""
    assert actual.shape == expected.shape
    scale = max(1.0, expected.abs().max().item()) if expected.numel() else 1.0
    torch.testing.assert_close(
        actual.detach().cpu().double(), expected.detach(), rtol=0, atol=tolerance * scale
    )


def check(function: Callable[..., Tensor], single: list[Tensor], exact: list[Tensor]) -> None:
    """Compare values, and gradients for different numbers per row and for those of a sum."""
    value, expected = function(*single), function(*exact)
    assert_close(value, expected, 2e-6)
    each = torch.randn(expected.shape, dtype=DOUBLE).to(value)
    for weight in (each, value.detach().new_tensor(2.0).expand(value.shape)):
        grads = torch.autograd.grad(value, single, weight, retain_graph=True)
        wanted = torch.autograd.grad(expected, exact, weight.cpu().double(), retain_graph=True)
        for grad, want in zip(grads, wanted, strict=True):
            assert_close(grad, want, 1e-5)


@families
@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_shapes(engine: Engine, family: type, shapes: tuple[tuple[int, ...], ...]) -> None:
    if engine.is_interpreted and family is not PowerSpherical and len(arguments(shapes, 2)[0]) > 100:
        pytest.skip("slow in the interpreter")
    check(lambda *args: log_prob(family, *args), *leaves(engine, *arguments(shapes, 5)))


@pytest.mark.parametrize("shapes", [SHAPES[0], SHAPES[1], SHAPES[4], SHAPES[7], SHAPES[14]], ids=str)
def test_shapes_of_a_family_of_ones_own(
    engine: Engine, own: type, shapes: tuple[tuple[int, ...], ...]
) -> None:
    check(lambda *args: log_prob(own, *args), *leaves(engine, *arguments(shapes, 5)))


@families
def test_dimensions(engine: Engine, family: type) -> None:
    dims = (
        [2, 3, 64, 200, 4096]
        if engine.is_interpreted
        else [2, 3, 8, 9, 15, 16, 17, 33, 64, 513, 4096, 100_000]
    )
    for dim in (*dims, 5000):  # too long for the kernels of Triton
        check(lambda *args: log_prob(family, *args), *leaves(engine, *arguments([(6,)] * 3, dim)))


@families
def test_numbers_of_rows(engine: Engine, family: type) -> None:
    """Which fill vectors of the processor exactly, or leave a rest."""
    counts = (0, 1, 17) if engine.is_interpreted else (0, 1, 2, 15, 16, 17, 63, 64, 65, 130)
    for dim in (4,) if engine.is_interpreted else (2, 4, 20):
        for count in counts:
            for loc in ((count,), ()):
                x, mean, kappa = arguments([(3, count), loc, (count,)], dim)
                # Near -μ the gradients show the rounding of the norms, which kernels keep.
                x = torch.where((x * mean).sum(-1, keepdim=True) < -0.9, -x, x)
                check(lambda *args: log_prob(family, *args), *leaves(engine, x, mean, kappa))


@families
@pytest.mark.parametrize("dim", [2, 3, 64])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_near_the_poles(engine: Engine, family: type, dim: int, sign: float) -> None:
    """Each row is right to its own size: the density at κ = 1e4, and the gradients."""
    distances = torch.logspace(-6, -1, 30, dtype=DOUBLE)
    loc = unit(30, dim)
    x = torch.nn.functional.normalize(sign * loc + distances.unsqueeze(-1) * unit(30, dim), dim=-1)
    single, exact = leaves(engine, x, loc, torch.full((30,), 1e4, dtype=DOUBLE))
    value, expected = log_prob(family, *single), log_prob(family, *exact)
    torch.testing.assert_close(value.detach().cpu().double(), expected.detach(), rtol=2e-6, atol=1e-5)
    grads, wanted = torch.autograd.grad(value.sum(), single), torch.autograd.grad(expected.sum(), exact)
    for grad, want, leaf in zip(grads[:2], wanted[:2], exact[:2], strict=True):
        error = grad.cpu().double() - want
        across = (
            error - (error * leaf).sum(-1, keepdim=True) * leaf
        )  # the radial part is a rounding error of the norm
        assert (across.norm(dim=-1) <= 1e-6 * want.norm(dim=-1)).all()
    torch.testing.assert_close(grads[2].cpu().double(), wanted[2], rtol=5e-6, atol=1e-9)


@families
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_at_the_poles(engine: Engine, family: type, sign: float) -> None:
    """Where the gradients in x and loc vanish."""
    loc = torch.eye(4, dtype=DOUBLE)
    for kappa in (0.0, 3.0, 1e6):
        results = []
        for inputs in leaves(engine, sign * loc, loc, torch.full((4,), kappa, dtype=DOUBLE)):
            value = log_prob(family, *inputs)
            results.append([value.detach(), *torch.autograd.grad(value.sum(), inputs)])
        for actual, expected in zip(*results, strict=True):
            torch.testing.assert_close(actual.cpu().double(), expected, rtol=2e-6, atol=1e-6)


@families
@pytest.mark.parametrize("kappa", [1e-30, 1e20, 3e38])
def test_extreme_concentrations(engine: Engine, family: type, kappa: float) -> None:
    """At the mode, and for small κ elsewhere. Nothing overflows."""
    loc = unit(5, 4)
    x = unit(5, 4) if kappa < 1 else loc
    single, exact = leaves(engine, x, loc, torch.full((5,), kappa, dtype=DOUBLE))
    value, expected = log_prob(family, *single), log_prob(family, *exact)
    torch.testing.assert_close(value.detach().cpu().double(), expected.detach(), rtol=2e-6, atol=2e-6)
    assert all(grad.isfinite().all() for grad in torch.autograd.grad(value.sum(), single))


@families
def test_nan_stays_in_its_row(engine: Engine, family: type) -> None:
    x, loc, kappa = arguments([(4,)] * 3, 3)
    x[0, 1] = loc[1, 2] = kappa[2] = math.nan
    single, _ = leaves(engine, x, loc, kappa)
    value = log_prob(family, *single)
    for result in (value, *torch.autograd.grad(value.sum(), single)):
        assert result.view(4, -1).isnan().any(-1).tolist() == [True, True, True, False]


@families
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("loc_rows", [1, 9])
def test_half_precision(engine: Engine, family: type, dtype: torch.dtype, loc_rows: int) -> None:
    """As the same numbers, of norms that are a little off, normalised in float64; gradients in half precision."""
    (x, loc), exact = leaves(engine, 1.008 * unit(9, 16), 1.008 * unit(loc_rows, 16), dtype=dtype)
    (kappa,), (exact_kappa,) = leaves(engine, torch.linspace(0, 20, 9))
    value = log_prob(family, x, loc, kappa)
    units = (torch.nn.functional.normalize(leaf, dim=-1) for leaf in exact)
    expected = log_prob(family, *units, exact_kappa)
    assert value.dtype == FLOAT
    assert_close(value, expected, 2e-6)
    grads = torch.autograd.grad(value.sum(), (x, loc, kappa))
    wanted = torch.autograd.grad(expected.sum(), (*exact, exact_kappa))
    assert [grad.dtype for grad in grads] == [dtype, dtype, FLOAT]
    for grad, want, tolerance in zip(grads, wanted, [torch.finfo(dtype).eps] * 2 + [1e-5], strict=True):
        assert_close(grad, want, tolerance)


@families
def test_mixed_precision_is_computed_in_float64(engine: Engine, family: type) -> None:
    x, loc, kappa = (tensor.to(engine.device) for tensor in arguments([(4,)] * 3, 3))
    value = log_prob(family, x.float(), loc, kappa)
    expected = log_prob(family, torch.nn.functional.normalize(x.float().double(), dim=-1), loc, kappa)
    assert value.dtype == DOUBLE
    torch.testing.assert_close(value, expected, rtol=1e-12, atol=1e-12)


@families
@pytest.mark.parametrize("loc", [(), (8,)])
def test_some_gradients(engine: Engine, family: type, loc: tuple[int, ...]) -> None:
    single, exact = leaves(engine, *arguments([(8,), loc, (8,)], 3))
    for needed in ((0,), (1,), (2,), (0, 2), (1, 2)):
        for inputs in (single, exact):
            for place, leaf in enumerate(inputs):
                leaf.grad = None
                leaf.requires_grad_(place in needed)
            log_prob(family, *inputs).exp().sum().backward()
        for leaf, other in zip(single, exact, strict=True):
            assert (leaf.grad is None) == (other.grad is None)
            if leaf.grad is not None:
                assert_close(leaf.grad, other.grad, 1e-5)
    with torch.no_grad():
        assert_close(log_prob(family, *single), log_prob(family, *exact), 2e-6)


@pytest.mark.parametrize("family", [PowerSpherical, VonMisesFisher, None])
def test_other_derivatives(engine: Engine, own: type, family: type | None) -> None:
    """Second derivatives, also with a direction that depends on κ, batches of gradients, and ``torch.func``."""
    family = family or own
    single, exact = leaves(engine, *arguments([(4,)] * 3, 3))
    found = []
    for inputs in (single, exact):
        value = log_prob(family, *inputs)
        first = torch.autograd.grad(value.sum(), inputs, create_graph=True)
        seconds = torch.autograd.grad(sum(grad.square().sum() for grad in first), inputs, retain_graph=True)
        jacobians = torch.autograd.grad(value, inputs, torch.eye(4).to(value), is_grads_batched=True)
        x, loc, kappa = inputs
        dependent = torch.nn.functional.normalize(loc + 0.1 * kappa.unsqueeze(-1), dim=-1)
        (first,) = torch.autograd.grad(log_prob(family, x, dependent, kappa).sum(), kappa, create_graph=True)
        found.append((*seconds, *jacobians, *torch.autograd.grad(first.square().sum(), kappa)))
    for actual, expected in zip(*found, strict=True):
        assert_close(actual, expected, 1e-5)
    slopes = torch.func.vmap(torch.func.grad(lambda *args: log_prob(family, *args), argnums=(0, 1, 2)))
    wanted = torch.autograd.grad(log_prob(family, *exact).sum(), exact)
    for actual, expected in zip(slopes(*(leaf.detach() for leaf in single)), wanted, strict=True):
        assert_close(actual, expected, 1e-5)


@families
def test_strides(engine: Engine, family: type) -> None:
    """Transposed, sliced, expanded and negated arguments, and a gradient with strides."""
    single, exact = leaves(engine, *arguments([(5, 6), (6, 5), (12, 5)], 9))

    def function(x: Tensor, loc: Tensor, kappa: Tensor) -> Tensor:
        rows = x[:, ::2, None].expand(5, 3, 4, 9)
        directions = loc.transpose(0, 1)[:, :3, None]
        return log_prob(family, rows, directions, kappa.t().view(5, 3, 4)).transpose(0, 2)

    check(function, single, exact)
    plain = [leaf.detach()[:, 0].float().clone() for leaf in single[:2]] + [single[2].detach()[:5, 0].clone()]
    plain[1] = plain[1][:5]
    results = []
    for inputs, weight in ((plain, plain[2]), (map(negative_view, plain), negative_view(plain[2]))):
        inputs = [tensor.detach().requires_grad_() for tensor in inputs]
        value = log_prob(family, *inputs)
        results.append((value, *torch.autograd.grad(value, inputs, weight)))
    torch.testing.assert_close(*results, rtol=0, atol=0)


@families
@pytest.mark.parametrize(("dim", "loc"), [(3, ()), (16, (7,))])
def test_long_sums_keep_their_digits(engine: Engine, family: type, dim: int, loc: tuple[int, ...]) -> None:
    """The gradient in loc is the sum of many gradients that point the same way, right to the last digit in C."""
    x, mu, kappa = arguments([(200 if engine.is_interpreted else 20_000, 7), loc, loc], dim)
    axes = torch.eye(dim, dtype=DOUBLE)
    inputs = [torch.nn.functional.normalize(v, dim=-1) for v in (x + 2 * axes[0], 0.1 * mu + axes[1])]
    single, exact = leaves(engine, *inputs, kappa)
    found, expected = (
        torch.autograd.grad(log_prob(family, *leaf).sum(), leaf[1])[0].cpu().double()
        for leaf in (single, exact)
    )
    tolerance = 2e-7 if engine.name == "c" else 2e-6
    assert ((found - expected).norm(dim=-1) <= tolerance * expected.norm(dim=-1)).all()


@families
@pytest.mark.parametrize("dim", [4, 16])
def test_threads_give_the_same_bits(family: type, dim: int) -> None:
    for x, loc in (
        ((4000,), (4000,)),
        ((4000,), ()),
        ((40, 100), (100,)),
        ((40, 100), (40, 1)),
        ((), (4000,)),
    ):
        inputs = [tensor.float().requires_grad_() for tensor in arguments((x, loc, loc), dim)]

        def results(inputs: list[Tensor] = inputs) -> list[Tensor]:
            value = log_prob(family, *inputs)
            return [value, *torch.autograd.grad(value.sin().sum(), inputs)]

        assert_threads_change_nothing(results, 1000)
