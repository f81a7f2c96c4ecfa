"""``torch.export`` and ONNX: exported programs compute what eager mode does, at any batch size."""

from __future__ import annotations

from collections.abc import Callable

import onnxruntime
import pytest
import scipy.stats
import torch
from torch import Tensor, nn
from torch.distributions import kl_divergence

from helpers.examples import FAMILIES, IDS, directions, families
from helpers.statistical import assert_law, assert_mean
from powerspherical import HypersphericalUniform, ProductOfSpheres
from powerspherical._torch import TORCH, elementary
from powerspherical.nn import SphericalBottleneck, SphericalHead

# torch 2.6 warns of its own constants.
pytestmark = pytest.mark.filterwarnings("ignore:.*get_attr.? Node:UserWarning")

BATCH = torch.export.Dim("batch")
KAPPAS = (0.0, 1e-3, 1.0, 50.0, 1e4, 1e6)


class Program(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., tuple[Tensor, ...]], *parts: nn.Module) -> None:
        super().__init__()
        self.function, self.parts = function, nn.ModuleList(parts)

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        return self.function(*inputs)


def exported(module: nn.Module, *inputs: Tensor) -> torch.export.ExportedProgram:
    """The program of a module, with a dynamic batch size. It is traced with a batch of four."""
    shapes = tuple({0: BATCH} for _ in inputs)
    if isinstance(module, Program):
        shapes = (shapes,)
    return torch.export.export(module.eval(), tuple(x[:4] for x in inputs), dynamic_shapes=shapes)


def started(program: torch.onnx.ONNXProgram) -> Callable[..., list[Tensor]]:
    """The program as a function of its inputs, run by onnxruntime."""
    model = program.model_proto.SerializeToString()
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    names = [node.name for node in session.get_inputs()]

    def run(*inputs: Tensor) -> list[Tensor]:
        fed = {name: x.numpy() for name, x in zip(names, inputs, strict=True)}
        return [torch.from_numpy(value) for value in session.run(None, fed)]

    return run


def run_onnx(program: torch.export.ExportedProgram, *inputs: Tensor) -> list[Tensor]:
    return started(torch.onnx.export(program, dynamo=True, verbose=False))(*inputs)


def assert_exports(
    module: nn.Module, *inputs: Tensor, near_zero: int = 0, onnx: bool = True, error: float | None = None
) -> torch.export.ExportedProgram:
    """Compare the exported program and its ONNX model with eager mode: to a few roundings of each entry.

    The first ``near_zero`` outputs may be near a zero. For them the error is absolute there. The default ``error`` is
    2e-6 in float32 and 1e-14 in float64.
    """
    with torch.no_grad():
        expected = module.eval()(*inputs)
        program = exported(module, *inputs)
        results = [program.module()(*inputs), *([run_onnx(program, *inputs)] if onnx else [])]
    if error is None:
        error = 2e-6 if inputs[0].dtype == torch.float32 else 1e-14
    for found in results:
        for index, (value, wanted) in enumerate(zip(found, expected, strict=True)):
            absolute = error if index < near_zero else 0.0
            torch.testing.assert_close(value, wanted, rtol=error, atol=absolute)
    return program


def closed_forms(family: type) -> Program:
    """log_prob, entropy, KL from the uniform distribution and mean of a family."""

    def function(loc: Tensor, kappa: Tensor, x: Tensor) -> tuple[Tensor, ...]:
        q = family(loc, kappa, validate_args=False)
        rate = kl_divergence(q, HypersphericalUniform(loc.shape[-1]))
        return q.log_prob(x), q.entropy(), rate, q.mean

    return Program(function)


def closed_form_inputs(dim: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Directions, concentrations, and points at distances that fit them: at the mode, the antipode and between."""
    kappa = torch.tensor(KAPPAS, dtype=dtype).repeat(3)
    loc, noise = (directions(len(kappa), dim, dtype=dtype, seed=seed) for seed in (1, 2))
    x = nn.functional.normalize(loc + 2 * noise / (1 + kappa).sqrt().unsqueeze(-1), dim=-1)
    count = len(KAPPAS)
    x[:count] = loc[:count]
    x[count : 2 * count] = -loc[count : 2 * count]
    return loc, kappa, x


class TestClosedForms:
    @pytest.mark.slow
    def test_onnx(self) -> None:
        """Of all families, in one model."""
        dims = 2, 512, 2
        inputs = [x for dim in dims for x in closed_form_inputs(dim, torch.float32)]

        def function(*inputs: Tensor) -> tuple[Tensor, ...]:
            each = (closed_forms(family)(*inputs[3 * i : 3 * i + 3]) for i, family in enumerate(FAMILIES))
            return tuple(x for kind in zip(*each, strict=True) for x in kind)

        assert_exports(Program(function), *inputs, near_zero=6)

    @pytest.mark.slow
    @families
    def test_float64(self, family: type) -> None:
        """Without ONNX, whose exporter rounds Python numbers to float32. Also a batch of one."""
        module, inputs = closed_forms(family), closed_form_inputs(5, torch.float64)
        program = assert_exports(module, *inputs, near_zero=2, onnx=False).module()
        single = [x[-2:-1] for x in inputs]
        torch.testing.assert_close(program(*single), module(*single))

    @families
    def test_vectors_are_normalised(self, family: type) -> None:
        """With validation, as in eager mode, although an exported program cannot check values."""
        module = Program(lambda loc, kappa, x: (family(loc, kappa, validate_args=True).log_prob(x),))
        loc, kappa, x = (value[-6:-2] for value in closed_form_inputs(16, torch.float32))
        program = exported(module, loc, kappa, x).module()
        torch.testing.assert_close(program(0.995 * loc, kappa, 1.005 * x), module(loc, kappa, x))


@pytest.mark.slow
def test_heads() -> None:
    """The parameters and the density of the distribution that a head returns."""
    head = SphericalHead(8, 16, "von_mises_fisher")

    def outputs(features: Tensor, x: Tensor) -> tuple[Tensor, ...]:
        q = head(features)
        return q.log_prob(x), q.mode, q.concentration

    features = torch.randn(6, 8) * torch.logspace(-2, 3, 6).unsqueeze(-1)  # small and large concentrations
    assert_exports(Program(outputs, head), features, directions(6, 16, dtype=torch.float32), near_zero=1)


@pytest.mark.slow
def test_bottlenecks() -> None:
    """With a layer of its own, of a product along channels, and with a fixed rate."""
    parts = (
        SphericalBottleneck(8, 16, FAMILIES[0], radius="sqrt_dim"),
        SphericalBottleneck(None, 4, FAMILIES[1], axis=1, product=2),
        SphericalBottleneck(8, 3, FAMILIES[2], nats=3.0),
    )
    for part in parts:
        part.evaluate = "mode"

    def outputs(*features: Tensor) -> tuple[Tensor, ...]:
        z, rate = zip(*(part(x) for part, x in zip(parts, features, strict=True)), strict=True)
        return z + rate

    features = [torch.randn(6, *shape) for shape in ((8,), (10, 3, 2), (8,))]
    # Sums of a linear layer are rounded in another order, so entries of z near zero lose relative accuracy.
    assert_exports(Program(outputs, *parts), *features, near_zero=3)


def test_bottleneck_with_noise() -> None:
    bottleneck = SphericalBottleneck(8, 3)
    module = Program(lambda features, noise: bottleneck(features, noise=noise), bottleneck)
    assert_exports(module, torch.randn(6, 8), torch.randn(6, 3), near_zero=1, onnx=False)


def draws(*cases: tuple[type, int]) -> Program:
    """Draws of several families and dimensions with explicit noise, each from the first coordinates of the inputs."""

    def function(loc: Tensor, kappa: Tensor, noise: Tensor) -> tuple[Tensor, ...]:
        locs = [nn.functional.normalize(loc[..., :dim], dim=-1) for _, dim in cases]
        members = [
            family(part, kappa, validate_args=False) for (family, _), part in zip(cases, locs, strict=True)
        ]
        return tuple(q.rsample(noise=noise[..., : q.event_shape[0]]) for q in members)

    return Program(function)


def draw_inputs(dim: int, dtype: torch.dtype, farthest: float = 5.0) -> tuple[Tensor, Tensor, Tensor]:
    """Directions, and all pairs of a concentration and a first coordinate of the noise."""
    kappa, normal = torch.cartesian_prod(
        torch.tensor((*KAPPAS, 500.0), dtype=dtype), torch.linspace(-farthest, farthest, 12, dtype=dtype)
    ).unbind(-1)
    noise = directions(len(kappa), dim, dtype=dtype, seed=2)
    noise[:, 0] = normal
    return directions(len(kappa), dim, dtype=dtype), kappa, noise


class TestDraws:
    @pytest.mark.slow
    def test_onnx(self) -> None:
        """By the closed forms at d = 3, and by a quantile. Its graph is long, so one family has to do."""
        module = draws(*((family, 3) for family in FAMILIES), (FAMILIES[1], 16))
        program = assert_exports(module, *draw_inputs(16, torch.float32), near_zero=4, error=5e-7)
        targets = {str(node.target) for node in program.graph.nodes if node.op == "call_function"}
        assert not [target for target in targets if "powerspherical" in target]

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("family", "dims"), list(zip(FAMILIES, [(2, 512), (2, 512), (5,)], strict=True)), ids=IDS
    )
    def test_program(self, family: type, dims: tuple[int, ...]) -> None:
        """The graph of a quantile has a fixed number of steps; eager mode iterates until it has all digits.

        The derivatives are those of a program that is trained further, also at κ = 0.
        """
        draw = draws(*((family, dim) for dim in dims))

        def function(loc: Tensor, kappa: Tensor, noise: Tensor) -> tuple[Tensor, ...]:
            tail = family(loc, kappa, validate_args=False).cap_probability(noise[..., 1].abs())
            return *draw(loc, kappa, noise), tail

        module = Program(function)
        program = exported(module, *draw_inputs(dims[-1], torch.float64)).module()
        inputs = draw_inputs(dims[-1], torch.float64, 30.0)
        for x in program(*inputs)[:-1]:  # so far out, at least points of the sphere
            torch.testing.assert_close(torch.linalg.vector_norm(x, dim=-1), torch.ones_like(inputs[1]))
        for farthest, error in ((8, 2e-6), (5, 1e-9)):
            inputs = [x.requires_grad_() for x in draw_inputs(dims[-1], torch.float64, farthest)]
            results = program(*inputs), module(*inputs)
            torch.testing.assert_close(*results, rtol=0.0, atol=error)
        for pair in zip(*results, strict=True):
            weights = torch.linspace(-1, 1, pair[0].numel(), dtype=torch.float64).view_as(pair[0])
            gradients = [
                torch.autograd.grad(x, inputs, weights, allow_unused=True, materialize_grads=True)
                for x in pair
            ]
            torch.testing.assert_close(*gradients, rtol=1e-8, atol=1e-12)


def random_model(
    function: Callable[..., tuple[Tensor, ...]], *parts: nn.Module, rows: Tensor
) -> Callable[..., list[Tensor]]:
    """A function with random draws as an ONNX model, exported from the module and run with a fixed seed."""
    onnxruntime.set_seed(3)
    shapes = (({0: torch.export.Dim.DYNAMIC},),)
    module = Program(function, *parts).eval()
    exported = torch.onnx.export(module, (rows[:2],), dynamic_shapes=shapes, dynamo=True, verbose=False)
    assert not [node.domain for node in exported.model_proto.graph.node if "powerspherical" in node.domain]
    return started(exported)


@pytest.mark.skipif(TORCH < (2, 8), reason="before torch 2.8 draws cannot see that the export is to ONNX")
class TestRandomDraws:
    """ONNX has no operator for our draws, so they come from its normals."""

    ROWS = torch.randn(20_000, 8, generator=torch.Generator().manual_seed(1))

    @pytest.mark.slow
    def test_law(self) -> None:
        """Of the draws of bottlenecks, whose rates do not change: cosines and tangent directions."""
        parts = [SphericalBottleneck(8, 3, family, initial=5.0, radius=2.0) for family in FAMILIES]
        model = random_model(
            lambda rows: tuple(x for part in parts for x in part(rows)), *parts, rows=self.ROWS
        )
        results = iter(model(self.ROWS))
        for bottleneck, z, rate in zip(parts, results, results, strict=True):
            with torch.no_grad():
                q = bottleneck.head(self.ROWS)
                _, expected = bottleneck(self.ROWS)
            torch.testing.assert_close(rate, expected, rtol=2e-6, atol=0)
            torch.testing.assert_close(z.norm(dim=-1), torch.full_like(rate, 2.0))
            x = z / 2
            t = (x * q.loc).sum(-1).clamp(-1, 1)
            assert_law(q.marginal.cdf(t), scipy.stats.uniform.cdf)
            assert_mean(x - q.mean, 0.0)
            # The part of x orthogonal to its mean direction points everywhere: so does its sign along a fixed vector.
            tangent = x - t.unsqueeze(-1) * q.loc
            assert_mean(tangent.sign(), 0.0)

    def test_every_distribution(self) -> None:
        """Draws of one model differ from each other and between runs, and have the shapes of eager mode."""
        loc = torch.eye(3)[:2]

        def function(rows: Tensor) -> tuple[Tensor, ...]:
            p = FAMILIES[0](loc, torch.tensor([3.0, 9.0]), validate_args=False)
            members = p, p, HypersphericalUniform(5), p.marginal, ProductOfSpheres(p)
            return *(q.rsample(rows.shape[:1]) for q in members), p.sample()

        run = random_model(function, rows=self.ROWS)
        first, second = run(self.ROWS[:9]), run(self.ROWS[:7])
        for found, expected in zip(second, function(self.ROWS[:7]), strict=True):
            assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
        pairs = first[:2], (first[0], first[4]), (first[0][:7], second[0]), (first[-1], second[-1])
        for one, other in pairs:
            assert (one != other).any(-1).all()
        uniform, cosines = run(self.ROWS)[2:4]
        assert_law(uniform[:, 0], scipy.stats.beta(2, 2, loc=-1, scale=2).cdf)
        assert_mean(uniform, 0.0)
        assert_mean(cosines, torch.tensor([3 / 5, 9 / 11]))


_NUMBERS = torch.logspace(-38, 38, 1001)
#: Over ranges that no public function needs in full: a function of ``_torch.elementary`` and its arguments.
ELEMENTARY = {
    "log1p": (
        torch.log1p,
        torch.cat((_NUMBERS, -_NUMBERS[_NUMBERS < 1], torch.tensor([-1.0, 0.0, torch.inf]))),
    ),
    "expm1": (torch.expm1, torch.cat((_NUMBERS, -_NUMBERS, torch.zeros(1)))),
    "hypot": (torch.hypot, torch.cat((_NUMBERS, -_NUMBERS)), torch.ones(2 * len(_NUMBERS))),
    "sigmoid": (torch.sigmoid, torch.linspace(-87.0, 87.0, 1001)),
}


@pytest.mark.parametrize("name", ELEMENTARY)
def test_elementary_functions(name: str) -> None:
    """As they are exported, against torch's in float64, with the derivatives of a program that is trained further."""
    reference, *inputs = ELEMENTARY[name]
    module = Program(lambda *args: (getattr(elementary, name)(*args),))
    (found,) = torch.export.export(module, tuple(inputs)).module()(*inputs)
    wanted = reference(*(x.double() for x in inputs)).float()
    torch.testing.assert_close(found, wanted, rtol=5e-7, atol=0.0)
    if name in ("log1p", "expm1"):
        x = inputs[0][inputs[0].abs() < 0.9].requires_grad_()
        (value,) = torch.export.export(module, (x,)).module()(x)
        (found,) = torch.autograd.grad(value.sum(), x)
        (wanted,) = torch.autograd.grad(reference(x).sum(), x)
        torch.testing.assert_close(found, wanted, rtol=1e-6, atol=0.0)
