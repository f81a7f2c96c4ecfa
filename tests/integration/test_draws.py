"""Draws under torch.func, torch.compile, autocast and with generators: their randomness and their gradients."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import grad, jacrev, vmap

from helpers.directions import unit
from helpers.examples import DOUBLE, FAMILIES, FLOAT, IDS, dtypes, families
from helpers.members import DRAWS
from helpers.modes import of_parameters
from powerspherical import PowerSpherical
from powerspherical.engines import block_limit
from powerspherical.families import family_names

# torch.compile uses parts of torch that are deprecated.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

DIM = 5


@pytest.fixture(params=FAMILIES, ids=IDS)
def draws(request: pytest.FixtureRequest) -> Callable[..., Tensor]:
    """``rsample`` of a family as a function of ``loc``, ``concentration`` and its own arguments."""
    return lambda loc, kappa, **options: request.param(loc, kappa).rsample(**options)


def parameters(*shape: int, dtype: torch.dtype = FLOAT) -> tuple[Tensor, Tensor]:
    return unit(*shape, DIM, dtype=dtype), 5 * torch.rand(shape, dtype=dtype)


def different(function: Callable, **options) -> Callable:
    return vmap(function, randomness="different", **options)


def after_seed(function: Callable, *args: Tensor):
    torch.manual_seed(11)
    return function(*args)


def all_distinct(x: Tensor) -> bool:
    rows = x.reshape(-1, x.shape[-1])
    return len(rows.unique(dim=0)) == len(rows)


def gradients_of(function: Callable[..., Tensor]) -> Callable[[Tensor, Tensor], tuple[Tensor, ...]]:
    """Return the gradients in both parameters by the autograd engine, as a function of them."""

    def gradients(loc: Tensor, kappa: Tensor) -> tuple[Tensor, ...]:
        leaves = loc.clone().requires_grad_(), kappa.clone().requires_grad_()
        return torch.autograd.grad(function(*leaves), leaves)

    return gradients


@dtypes
def test_layout_and_precision_of_products_change_nothing(draws, dtype: torch.dtype) -> None:
    loc, kappa = parameters(6, 8, dtype=dtype)
    plain = after_seed(draws, loc, kappa)
    strided = loc.permute(2, 1, 0).contiguous().permute(2, 1, 0), kappa.T.contiguous().T
    torch.testing.assert_close(after_seed(draws, *strided), plain)
    gradients = gradients_of(lambda loc, kappa: draws(loc, kappa)[..., 0].sum())
    expected, previous = after_seed(gradients, loc, kappa), torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("medium")
        assert all(map(torch.equal, after_seed(gradients, loc, kappa), expected))
    finally:
        torch.set_float32_matmul_precision(previous)


@pytest.mark.parametrize("shape", [(40,), (5, 8), (2, 3, 7), (1, 40)])
def test_gradients_in_blocks(draws, shape: tuple[int, ...]) -> None:
    weight = torch.randn(*shape, DIM, dtype=DOUBLE)
    for rows in (shape, shape[-1:], ()):
        loc, kappa = parameters(*rows, dtype=DOUBLE)
        gradients = gradients_of(lambda loc, kappa: (weight * draws(loc, kappa.expand(shape))).sum())
        expected = after_seed(gradients, loc, kappa)
        for entries in (3, 7, 30, 1000):
            with block_limit(entries):
                torch.testing.assert_close(after_seed(gradients, loc, kappa), expected)


@pytest.mark.slow
@dtypes
@pytest.mark.parametrize("name", family_names())
def test_operators_are_registered_soundly(name: str, dtype: torch.dtype) -> None:
    loc, kappa = parameters(4, dtype=dtype)
    forward, backward = torch.ops.powerspherical.draw.default, torch.ops.powerspherical.draw_backward.default
    rest = None, 0, DIM, name
    torch.library.opcheck(forward, (loc.requires_grad_(), kappa.requires_grad_(), (4,), *rest))
    torch.library.opcheck(forward, (loc.detach()[0].expand(4, 5), kappa.detach()[0].expand(4), (4,), *rest))
    for loc_rows, kappa_rows in ((slice(None), slice(None)), (0, slice(None)), (slice(1), 0)):
        directions, kappas = loc.detach()[loc_rows], kappa.detach()[kappa_rows]
        x, scalars = forward(directions, kappas, (3, 4), *rest)
        for needs in ((True, True), (True, False), (False, True)):
            saved = torch.randn_like(x), x, directions, scalars, kappas
            torch.library.opcheck(backward, (*saved, DIM, name, *needs))


class TestVmap:
    def test_batched_parameters(self, draws) -> None:
        loc, kappa = parameters(4, 3)
        assert different(draws)(loc, kappa).shape == (4, 3, DIM)
        assert different(draws, in_dims=(2, 1))(loc.movedim(0, 2), kappa.T).shape == (4, 3, DIM)
        x = different(draws, in_dims=(0, None))(loc[:1].expand(4, 3, DIM), kappa[0])
        y = different(draws, in_dims=(None, 0))(loc[0], kappa[:1].expand(4, 3))
        assert all_distinct(torch.cat([x, y]))
        nested = different(different(draws, in_dims=(0, None)), in_dims=(None, 0))(loc[0], kappa[0])
        assert nested.shape == (3, 3, DIM)
        assert all_distinct(nested)

    def test_parameters_from_outside(self, draws) -> None:
        loc, kappa = parameters(3)
        assert all_distinct(different(lambda _: draws(loc, kappa))(torch.zeros(4)))
        assert all_distinct(different(different(lambda _: draws(loc, kappa)))(torch.zeros(2, 4)))

    @families
    @pytest.mark.parametrize("name", DRAWS)
    def test_each_kind_of_draw(self, family: type, name: str) -> None:
        draw, (loc, kappa) = of_parameters(DRAWS[name], family), parameters(dtype=DOUBLE)
        shared = different(lambda _: draw(loc, kappa))(torch.zeros(6))
        own = different(draw)(loc.expand(6, -1), kappa.expand(6))
        for x in (shared, own):
            assert x.shape == (6, *draw(loc, kappa).shape)
            assert len(x.flatten(1).unique(dim=0)) == 6

    def test_other_randomness(self, draws) -> None:
        loc, kappa = parameters(3)
        shared = vmap(lambda _: draws(loc, kappa), randomness="same")(torch.zeros(4))
        assert torch.equal(shared, shared[:1].expand_as(shared))
        with pytest.raises(RuntimeError, match="randomness='different'"):
            vmap(draws, randomness="same")(loc, kappa)
        for function in (lambda _: draws(loc, kappa), lambda m: draws(m, kappa[0])):
            with pytest.raises(RuntimeError, match="randomness"):
                vmap(function)(loc)

    def test_law_of_a_batched_draw(self, draws) -> None:
        """Each example is drawn from its own parameters."""
        loc, _ = parameters(3)
        kappa = torch.tensor([0.0, 1e4, 1e8])
        x = torch.stack([different(draws)(loc, kappa) for _ in range(200)])
        assert x.mean(0)[0].norm() < 0.3
        torch.testing.assert_close(x.mean(0)[1:], loc[1:], rtol=0, atol=5e-3)


def transforms(draws, weight: Tensor) -> dict[str, Callable[[Tensor, Tensor], tuple[Tensor, ...]]]:
    """Return several ways to compute the gradient of one loss in both parameters."""

    def loss(loc: Tensor, kappa: Tensor) -> Tensor:
        return (draws(loc, kappa) * weight).sum()

    def batched(loc: Tensor, kappa: Tensor) -> Tensor:
        return different(loss)(loc, kappa).sum()

    return {
        "engine": gradients_of(loss),
        "grad": grad(loss, argnums=(0, 1)),
        "engine(vmap)": gradients_of(batched),
        "vmap(grad)": different(grad(loss, argnums=(0, 1))),
        "grad(vmap)": grad(batched, argnums=(0, 1)),
    }


class TestGrad:
    """torch.func.grad and friends give the gradients of the autograd engine."""

    @dtypes
    def test_values(self, draws, dtype: torch.dtype) -> None:
        loc, kappa = parameters(6, dtype=dtype)
        weight = torch.randn(DIM, dtype=dtype)
        for name, transform in transforms(draws, weight).items():

            def reference(loc: Tensor, kappa: Tensor, name: str = name) -> Tensor:
                if "vmap" in name:
                    torch.randint(2**63 - 1, (6,))  # vmap draws one seed per example
                return draws(loc, kappa)

            expected = after_seed(transforms(reference, weight)["engine"], loc, kappa)
            torch.testing.assert_close(after_seed(transform, loc, kappa), expected, msg=name)

    @families
    def test_of_the_marginal(self, family: type) -> None:
        draw = of_parameters(DRAWS["marginal.rsample"], family)
        ways, inputs = transforms(draw, torch.randn(2, dtype=DOUBLE)), parameters(6, dtype=DOUBLE)
        (in_loc, in_kappa), expected = (
            after_seed(ways[name], *inputs) for name in ("vmap(grad)", "grad(vmap)")
        )
        torch.testing.assert_close((in_loc, in_kappa), expected)
        assert (in_loc == 0).all()
        assert (in_kappa != 0).all()

    @dtypes
    def test_vmap_of_the_backward_pass(self, draws, dtype: torch.dtype) -> None:
        loc, kappa = parameters(dtype=dtype)
        jacobians = after_seed(jacrev(draws, argnums=(0, 1)), loc, kappa)
        leaves = loc.clone().requires_grad_(), kappa.clone().requires_grad_()
        x = after_seed(draws, *leaves)
        identity = torch.eye(DIM, dtype=dtype)
        rows = [torch.autograd.grad(x, leaves, axis, retain_graph=True) for axis in identity]
        for jacobian, gradients in zip(jacobians, zip(*rows, strict=True), strict=True):
            torch.testing.assert_close(jacobian, torch.stack(gradients))
        batched = torch.autograd.grad(x, leaves, identity, is_grads_batched=True)
        torch.testing.assert_close(batched, jacobians)

    def test_outer_level_sees_through_an_inner_one(self, draws) -> None:
        """An inner derivative in another variable must not block the outer derivative."""
        loc, kappa = parameters(4)
        weight = torch.randn(DIM)

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
        with pytest.raises(NotImplementedError, match="Use reverse mode"):
            torch.func.jvp(lambda k: draws(loc, k), (kappa,), (kappa,))


class TestGenerator:
    """A generator passed by the caller works under torch.func, and torch's default generator does not advance."""

    @pytest.fixture(autouse=True)
    def _untouched(self):
        before = torch.get_rng_state()
        yield
        assert torch.equal(torch.get_rng_state(), before)

    @pytest.mark.parametrize("name", ["grad", "vmap(grad)", "grad(vmap)"])
    def test_transforms(self, draws, name: str) -> None:
        generator = torch.Generator().manual_seed(3)
        loc, kappa = unit(6, DIM, dtype=FLOAT, seed=3), 5 * torch.rand(6, generator=generator)
        weight = torch.randn(DIM, generator=generator)
        function = transforms(functools.partial(draws, generator=generator), weight)[name]
        results = []
        for seed in (11, 11, 12):
            generator.manual_seed(seed)
            results.append(function(loc, kappa))
        assert all(map(torch.equal, results[0], results[1]))
        assert not any(map(torch.equal, results[0], results[2]))

    def test_shared_parameters(self, draws) -> None:
        loc, kappa = torch.eye(DIM)[0], torch.tensor(2.0)
        generator = torch.Generator().manual_seed(11)
        assert all_distinct(different(lambda _: draws(loc, kappa, generator=generator))(torch.zeros(4)))
        shared = vmap(lambda _: draws(loc, kappa, generator=generator), randomness="same")(torch.zeros(4))
        assert len(shared.unique(dim=0)) == 1

    def test_fake_tensors(self, draws) -> None:
        with FakeTensorMode():
            x = draws(torch.empty(3, DIM), torch.empty(3), generator=torch.Generator())
        assert x.shape == (3, DIM)


class TestCompile:
    @pytest.fixture(autouse=True)
    def _reset(self):
        torch.compiler.reset()
        yield
        torch.compiler.reset()

    @pytest.mark.parametrize("name", ["engine", "grad", "vmap(grad)", "grad(vmap)"])
    def test_gradients(self, draws, name: str) -> None:
        """A seed gives the numbers of eager mode."""
        loc, kappa = parameters(6)
        weight = torch.randn(DIM)
        if name == "engine":
            compiled = torch.compile(draws, backend="aot_eager", fullgraph=True)
            actual = after_seed(transforms(compiled, weight)[name], loc, kappa)
        else:
            compiled = torch.compile(transforms(draws, weight)[name], backend="aot_eager", fullgraph=True)
            actual = after_seed(compiled, loc, kappa)
        torch.testing.assert_close(actual, after_seed(transforms(draws, weight)[name], loc, kappa))

    def test_generator_in_a_full_graph_is_refused(self, draws) -> None:
        function = functools.partial(draws, generator=torch.Generator())
        compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
        with pytest.raises(
            torch._dynamo.exc.Unsupported, match=r"cannot trace a draw from a torch\.Generator"
        ):
            compiled(*parameters(6))

    @pytest.mark.slow
    @pytest.mark.filterwarnings("ignore:Dynamo:UserWarning")  # about graph breaks
    def test_generator_outside_the_graph(self) -> None:
        loc, kappa = parameters(6)
        generator = torch.Generator()

        def function(loc: Tensor, kappa: Tensor) -> Tensor:
            return 2 * PowerSpherical(loc, kappa).rsample(generator=generator.manual_seed(3))

        compiled = torch.compile(function, backend="aot_eager")
        torch.testing.assert_close(compiled(loc, kappa), function(loc, kappa))

    def test_dynamic_shapes(self, draws) -> None:
        compiled = torch.compile(draws, backend="aot_eager", fullgraph=True, dynamic=True)
        for count in (3, 8):
            assert compiled(*parameters(count)).shape == (count, DIM)
