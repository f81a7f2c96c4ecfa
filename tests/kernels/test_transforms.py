"""Draws and their operators under torch.compile, torch.func, autocast and other modes of torch."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import grad, jacrev, vmap

from helpers.directions import unit
from helpers.engines import is_missing
from helpers.examples import DOUBLE, FLOAT
from powerspherical._torch import TORCH
from powerspherical._torch.private import PUBLIC_ONLY
from powerspherical.engines import engine as use_engine
from powerspherical.families import POWER_SPHERICAL, VON_MISES_FISHER, Family, family_named, family_names
from powerspherical.nn import SphericalBottleneck
from powerspherical.sampling import draw

# torch.compile and torch.func use parts of torch that are deprecated.
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


@pytest.fixture(params=family_names())
def family(request: pytest.FixtureRequest) -> Family:
    return family_named(request.param)


@pytest.fixture
def draws(family: Family) -> Callable[..., Tensor]:
    """``draw`` for the family, as a function of ``loc``, ``concentration`` and the other arguments."""
    return functools.partial(draw, family)


@pytest.fixture(params=[FLOAT, DOUBLE], ids=["float32", "float64"])
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    return request.param


#: Compiled code sees an operator, and not which family it draws from.
one_family = pytest.mark.parametrize("family", [VON_MISES_FISHER], ids=str)


#: Tests of draws that follow the seed as outside of a transform.
sees_vmap = pytest.mark.skipif(
    PUBLIC_ONLY, reason="without private names every transform counts as vmap, with other random numbers"
)


def parameters(*shape: int, dim: int = 5, dtype: torch.dtype = FLOAT) -> tuple[Tensor, Tensor]:
    return unit(*shape, dim, dtype=dtype), 5 * torch.rand(shape, dtype=dtype)


def different(function, **options):
    return vmap(function, randomness="different", **options)


def after_seed(function, *args):
    torch.manual_seed(11)
    return function(*args)


def all_distinct(x: Tensor) -> bool:
    rows = x.reshape(-1, x.shape[-1])
    return len(rows.unique(dim=0)) == len(rows)


@pytest.mark.slow
def test_operators_are_registered_soundly(family: Family) -> None:
    dtype = DOUBLE if family is VON_MISES_FISHER else FLOAT
    loc, kappa = parameters(4, dtype=dtype)
    forward, backward = torch.ops.powerspherical.draw.default, torch.ops.powerspherical.draw_backward.default
    rest = 0, 5, family.name, None, None
    for directions, kappas in ((loc, kappa), (loc[0].expand(4, 5), kappa[0].expand(4))):
        for with_slope in (False, True):
            torch.library.opcheck(forward, (directions, kappas, (4,), with_slope, *rest))
    for loc_rows, kappa_rows, needs in (
        (slice(None), slice(None), (True, True)),
        (0, slice(None), (True, False)),
        (slice(1), 0, (False, True)),
    ):
        directions, kappas = loc[loc_rows], kappa[kappa_rows]
        x, scalars = forward(directions, kappas, (3, 4), False, *rest)
        saved = torch.randn_like(x), x, directions, scalars, kappas
        torch.library.opcheck(backward, (*saved, 5, family.name, *needs))


@pytest.mark.slow
@pytest.mark.skipif(is_missing("triton"), reason="Triton is not installed")
@pytest.mark.parametrize("radius", [1.0, 2.5])
def test_operators_of_latents_are_registered_soundly(radius: float) -> None:
    """Compiled code calls these for a bottleneck whose kernels are Triton's."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    outputs = torch.randn(4, 3, 6, device=device)
    settings = SphericalBottleneck(None, 5, "power_spherical", maximum=60.0).head.packed_settings
    arguments = outputs, settings, radius, FLOAT, 0
    with use_engine("triton"):
        torch.library.opcheck(torch.ops.powerspherical.draw_latents.default, arguments)
        z, rate, x, scalars = torch.ops.powerspherical.draw_latents(*arguments)
        grads = torch.randn_like(z), torch.randn_like(rate)
        for grad_z, grad_rate in (grads, (grads[0], None), (None, grads[1])):
            saved = outputs, z if radius == 1 else x, scalars, grad_z, grad_rate
            torch.library.opcheck(
                torch.ops.powerspherical.pull_back_latents.default, (*saved, settings, radius)
            )


class Sampler(torch.nn.Module):
    def forward(self, loc: Tensor, kappa: Tensor) -> Tensor:
        return draw(POWER_SPHERICAL, loc, kappa)


@pytest.mark.slow
@pytest.mark.parametrize("strict", [True, False])
def test_exported_draws(strict: bool) -> None:
    """Exported, a draw is one operator, also where the compiler's tracer reads our Python code."""
    loc, kappa = parameters(4)
    program = torch.export.export(Sampler(), (loc, kappa), strict=strict)
    assert "powerspherical.draw.default" in [str(node.target) for node in program.graph.nodes]
    first, second = (program.module()(loc, kappa) for _ in range(2))
    assert not torch.equal(first, second)
    torch.testing.assert_close(torch.linalg.vector_norm(first, dim=-1), torch.ones_like(kappa))


class TestVmap:
    def test_batched_parameters(self, draws) -> None:
        loc, kappa = parameters(4, 3)
        assert different(draws)(loc, kappa).shape == (4, 3, 5)
        assert different(draws, in_dims=(2, 1))(loc.movedim(0, 2), kappa.T).shape == (4, 3, 5)
        x = different(draws, in_dims=(0, None))(loc[:1].expand(4, 3, 5), kappa[0])
        y = different(draws, in_dims=(None, 0))(loc[0], kappa[:1].expand(4, 3))
        assert all_distinct(torch.cat([x, y]))

    def test_parameters_from_outside(self, draws) -> None:
        loc, kappa = parameters(3)
        assert all_distinct(different(lambda _: draws(loc, kappa))(torch.zeros(4)))
        assert all_distinct(different(different(lambda _: draws(loc, kappa)))(torch.zeros(2, 4)))

    def test_nested(self, draws) -> None:
        loc, kappa = parameters(3)
        x = different(different(draws, in_dims=(0, None)), in_dims=(None, 0))(loc, kappa)
        assert x.shape == (3, 3, 5)
        assert all_distinct(x)

    def test_other_randomness(self, draws) -> None:
        loc, kappa = parameters(3)
        shared = vmap(lambda _: draws(loc, kappa), randomness="same")(torch.zeros(4))
        assert torch.equal(shared, shared[:1].expand_as(shared))
        with pytest.raises(RuntimeError, match="randomness='different'"):
            vmap(draws, randomness="same")(loc, kappa)
        for function in (lambda _: draws(loc, kappa), lambda m: draws(m, kappa[0])):
            with pytest.raises(RuntimeError, match="randomness"):
                vmap(function)(loc)


def transforms(draws, weight: Tensor) -> dict[str, Callable[[Tensor, Tensor], tuple[Tensor, ...]]]:
    """Return several ways to compute the gradient of one loss in both parameters."""

    def loss(loc: Tensor, kappa: Tensor) -> Tensor:
        return (draws(loc, kappa) * weight).sum()

    def batched(loc: Tensor, kappa: Tensor) -> Tensor:
        return different(loss)(loc, kappa).sum()

    def by_engine(function):
        def gradients(loc: Tensor, kappa: Tensor) -> tuple[Tensor, ...]:
            leaves = loc.clone().requires_grad_(), kappa.clone().requires_grad_()
            return torch.autograd.grad(function(*leaves), leaves)

        return gradients

    return {
        "engine": by_engine(loss),
        "grad": grad(loss, argnums=(0, 1)),
        "engine(vmap)": by_engine(batched),
        "vmap(grad)": different(grad(loss, argnums=(0, 1))),
        "grad(vmap)": grad(batched, argnums=(0, 1)),
    }


class TestGrad:
    """torch.func.grad and friends give the gradients of the autograd engine."""

    @pytest.mark.parametrize("name", ["grad", "engine(vmap)", "vmap(grad)", "grad(vmap)"])
    def test_values(self, draws, dtype: torch.dtype, name: str) -> None:
        loc, kappa = parameters(6, dtype=dtype)
        weight = torch.randn(5, dtype=dtype)

        def reference(loc: Tensor, kappa: Tensor) -> Tensor:
            if "vmap" in name:
                torch.randint(2**63 - 1, (6,))  # vmap draws one seed per example
            return draws(loc, kappa)

        expected = after_seed(transforms(reference, weight)["engine"], loc, kappa)
        torch.testing.assert_close(after_seed(transforms(draws, weight)[name], loc, kappa), expected)

    @sees_vmap
    def test_vmap_of_the_backward_pass(self, draws, dtype: torch.dtype) -> None:
        loc, kappa = parameters(dtype=dtype)
        jacobians = after_seed(jacrev(draws, argnums=(0, 1)), loc, kappa)
        leaves = loc.clone().requires_grad_(), kappa.clone().requires_grad_()
        x = after_seed(draws, *leaves)
        rows = [torch.autograd.grad(x, leaves, unit, retain_graph=True) for unit in torch.eye(5, dtype=dtype)]
        for jacobian, gradients in zip(jacobians, zip(*rows, strict=True), strict=True):
            torch.testing.assert_close(jacobian, torch.stack(gradients))
        batched = torch.autograd.grad(x, leaves, torch.eye(5, dtype=dtype), is_grads_batched=True)
        torch.testing.assert_close(batched, jacobians)

    @sees_vmap
    def test_outer_level_sees_through_an_inner_one(self, draws) -> None:
        """An inner derivative in another variable must not block the outer derivative."""
        loc, kappa = parameters(4)
        weight = torch.randn(5)

        def inner(kappa: Tensor) -> Tensor:
            return grad(lambda w: (draws(loc, kappa) * w * w).sum())(weight).sum()

        leaf = kappa.clone().requires_grad_()
        (expected,) = torch.autograd.grad((after_seed(draws, loc, leaf) * 2 * weight).sum(), leaf)
        torch.testing.assert_close(after_seed(grad(inner), kappa), expected)
        leaf = kappa.clone().requires_grad_()
        torch.testing.assert_close(torch.autograd.grad(after_seed(inner, leaf), leaf)[0], expected)

    def test_further_derivatives_are_refused(self, draws) -> None:
        loc, kappa = parameters()
        with pytest.raises(NotImplementedError, match="differentiable once"):
            grad(grad(lambda k: draws(loc, k).pow(3).sum()))(kappa)

        def push(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
            return lambda k: torch.func.jvp(function, (k,), (k,))[1]

        for outer, inner in ((push, grad), (grad, push), (push, push)):
            with pytest.raises(NotImplementedError, match="differentiable once"):
                outer(inner(lambda k: draws(loc, k).pow(3).sum()))(kappa)

    @staticmethod
    def assert_pushes(draws, dtype: torch.dtype, **options) -> None:
        """Check a product with the Jacobian, as reverse mode gives it, compiled if there are options."""
        loc, kappa = parameters(4, dtype=dtype)
        for point, function in ((loc, lambda m: draws(m, kappa)), (kappa, lambda k: draws(loc, k))):
            tangent = torch.randn_like(point)

            def push(point: Tensor, tangent: Tensor, function=function) -> Tensor:
                return torch.func.jvp(function, (point,), (tangent,))[1]

            jacobian = after_seed(jacrev(function), point)
            expected = (jacobian * tangent).flatten(2).sum(-1)
            found = after_seed(torch.compile(push, **options) if options else push, point, tangent)
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
            columns = torch.func.jacfwd(function, randomness="same")(point)
            assert columns.shape == jacobian.shape
            assert columns.isfinite().all()

    def test_forward_mode(self, draws, dtype: torch.dtype) -> None:
        self.assert_pushes(draws, dtype)

    @one_family
    def test_compiled_forward_mode(self, draws) -> None:
        torch.compiler.reset()
        self.assert_pushes(draws, DOUBLE, backend="aot_eager", fullgraph=True)

    @pytest.mark.slow
    @one_family
    def test_second_derivatives_in_compiled_code_are_no_numbers(self, draws) -> None:
        torch.compiler.reset()
        loc, kappa = parameters(4)
        once = grad(lambda k: draws(loc, k).pow(3).sum())
        for twice in (grad(lambda k: once(k).sum()), lambda k: torch.func.jvp(once, (k,), (k,))[1]):
            found = torch.compile(twice, backend="aot_eager", fullgraph=True)(kappa)
            assert not found.isfinite().any()


class TestGenerator:
    """A generator passed by the caller works under torch.func, and torch's default generator does not advance."""

    @pytest.fixture(autouse=True)
    def _untouched(self):
        before = torch.get_rng_state()
        yield
        assert torch.equal(torch.get_rng_state(), before)

    @pytest.mark.parametrize("name", ["grad", "vmap(grad)", "grad(vmap)"])
    def test_transforms(self, draws, name: str) -> None:
        noise = torch.Generator().manual_seed(3)
        loc = torch.nn.functional.normalize(torch.randn(6, 5, generator=noise), dim=-1)
        kappa, weight = 5 * torch.rand(6, generator=noise), torch.randn(5, generator=noise)
        generator = torch.Generator()
        function = transforms(functools.partial(draws, generator=generator), weight)[name]
        results = []
        for seed in (11, 11, 12):
            generator.manual_seed(seed)
            results.append(function(loc, kappa))
        assert all(torch.equal(a, b) for a, b in zip(results[0], results[1], strict=True))
        assert not any(torch.equal(a, b) for a, b in zip(results[0], results[2], strict=True))

    def test_shared_parameters(self, draws) -> None:
        loc, kappa = torch.eye(5)[0], torch.tensor(2.0)
        generator = torch.Generator().manual_seed(11)
        assert all_distinct(different(lambda _: draws(loc, kappa, generator=generator))(torch.zeros(4)))
        shared = vmap(lambda _: draws(loc, kappa, generator=generator), randomness="same")(torch.zeros(4))
        assert len(shared.unique(dim=0)) == 1

    def test_fake_tensors(self, draws) -> None:
        with FakeTensorMode():
            x = draws(torch.empty(3, 5), torch.empty(3), generator=torch.Generator())
        assert x.shape == (3, 5)


class TestCompile:
    @pytest.fixture(autouse=True)
    def _reset(self):
        torch.compiler.reset()
        yield
        torch.compiler.reset()

    @one_family
    def test_backward(self, draws, dtype: torch.dtype) -> None:
        loc, kappa = parameters(6, dtype=dtype)
        weight = torch.randn(5, dtype=dtype)
        compiled = torch.compile(draws, backend="aot_eager", fullgraph=True)
        expected = after_seed(transforms(draws, weight)["engine"], loc, kappa)
        torch.testing.assert_close(after_seed(transforms(compiled, weight)["engine"], loc, kappa), expected)

    @one_family
    @pytest.mark.parametrize("name", ["grad", "vmap(grad)", "grad(vmap)"])
    def test_transforms(self, draws, name: str) -> None:
        loc, kappa = parameters(6)
        function = transforms(draws, torch.randn(5))[name]
        compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
        torch.testing.assert_close(after_seed(compiled, loc, kappa), after_seed(function, loc, kappa))

    @one_family
    @pytest.mark.parametrize("backend", ["aot_eager", "aot_eager_decomp_partition"])
    def test_equal_calls_differ(self, draws, backend: str) -> None:
        """The compiler merges equal calls, unless it knows that they are random."""
        loc, kappa = parameters(6)
        kappa.requires_grad_()
        twice = torch.compile(lambda m, k: (draws(m, k), draws(m, k)), backend=backend, fullgraph=True)
        assert all_distinct(torch.cat([*twice(loc, kappa), *twice(loc, kappa)]))

    @pytest.mark.skipif(
        PUBLIC_ONLY or TORCH < (2, 8),
        reason="without private names, and before torch 2.8, the error is the compiler's",
    )
    @one_family
    def test_generator_in_a_full_graph_is_refused(self, draws) -> None:
        function = functools.partial(draws, generator=torch.Generator())
        compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
        with pytest.raises(
            torch._dynamo.exc.Unsupported, match=r"cannot trace a draw from a torch\.Generator"
        ):
            compiled(*parameters(6))

    @one_family
    @pytest.mark.slow
    @pytest.mark.filterwarnings("ignore:Dynamo:UserWarning")  # about graph breaks
    def test_generator_outside_the_graph(self, draws) -> None:
        loc, kappa = parameters(6)
        generator = torch.Generator()

        def function(loc: Tensor, kappa: Tensor) -> Tensor:
            return 2 * draws(loc, kappa, generator=generator.manual_seed(3))

        compiled = torch.compile(function, backend="aot_eager")
        torch.testing.assert_close(compiled(loc, kappa), function(loc, kappa))
