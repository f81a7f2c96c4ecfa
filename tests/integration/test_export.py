"""``torch.export`` and ONNX: exported programs compute what eager mode does, at any batch size."""

from __future__ import annotations

import onnxruntime
import pytest
import torch
from torch import Tensor, nn
from torch.distributions import kl_divergence

from helpers.examples import FAMILIES, directions, exponential_families, families
from powerspherical import HypersphericalUniform, VonMisesFisher
from powerspherical._torch import elementary
from powerspherical.families._precise import PreciseFamily
from powerspherical.nn import SphericalBottleneck, SphericalHead

BATCH = torch.export.Dim("batch")
KAPPAS = (0.0, 1e-3, 1.0, 50.0, 1e4, 1e6)
LAYOUTS = {
    "own layer": ((8, 16), {"radius": "sqrt_dim"}, (8,)),
    "product along channels": ((None, 4), {"axis": 1, "product": 2}, (10, 3, 2)),
    "fixed rate": ((8, 3), {"nats": 3.0}, (8,)),
}


def exported(module: nn.Module, *inputs: Tensor) -> torch.export.ExportedProgram:
    """The program of a module, with a dynamic batch size. It is traced with a batch of four."""
    shapes = tuple({0: BATCH} for _ in inputs)
    return torch.export.export(module.eval(), tuple(x[:4] for x in inputs), dynamic_shapes=shapes)


def run_onnx(program: torch.export.ExportedProgram, *inputs: Tensor) -> list[Tensor]:
    model = torch.onnx.export(program, dynamo=True, verbose=False).model_proto
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [node.name for node in session.get_inputs()]
    fed = {name: x.numpy() for name, x in zip(names, inputs, strict=True)}
    return [torch.from_numpy(value) for value in session.run(None, fed)]


def assert_exports(
    module: nn.Module, *inputs: Tensor, near_zero: int = 0, onnx: bool = True, error: float | None = None
) -> None:
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


class ClosedForms(nn.Module):
    """log_prob, entropy, KL from the uniform distribution and mean of a family."""

    def __init__(self, family: type) -> None:
        super().__init__()
        self.family = family

    def forward(self, loc: Tensor, kappa: Tensor, x: Tensor) -> tuple[Tensor, ...]:
        q = self.family(loc, kappa, validate_args=False)
        rate = kl_divergence(q, HypersphericalUniform(loc.shape[-1]))
        return q.log_prob(x), q.entropy(), rate, q.mean


def closed_form_inputs(dim: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Directions, concentrations, and points at distances that fit them: at the mode, the antipode and between."""
    kappa = torch.tensor(KAPPAS, dtype=dtype).repeat(3)
    loc, noise = (directions(len(kappa), dim, dtype=dtype, seed=seed) for seed in (1, 2))
    x = nn.functional.normalize(loc + 2 * noise / (1 + kappa).sqrt().unsqueeze(-1), dim=-1)
    count = len(KAPPAS)
    x[:count] = loc[:count]
    x[count : 2 * count] = -loc[count : 2 * count]
    return loc, kappa, x


@families
class TestClosedForms:
    @pytest.mark.slow
    @pytest.mark.parametrize("dim", [2, 512])
    def test_onnx(self, family: type, dim: int) -> None:
        assert_exports(ClosedForms(family), *closed_form_inputs(dim, torch.float32), near_zero=2)

    def test_float64(self, family: type) -> None:
        """Without ONNX, whose exporter rounds Python numbers to float32."""
        inputs = closed_form_inputs(5, torch.float64)
        assert_exports(ClosedForms(family), *inputs, near_zero=2, onnx=False)

    def test_a_batch_of_one(self, family: type) -> None:
        inputs = closed_form_inputs(3, torch.float32)
        program = exported(ClosedForms(family), *inputs).module()
        torch.testing.assert_close(
            program(*(x[:1] for x in inputs)), ClosedForms(family)(*(x[:1] for x in inputs))
        )

    def test_vectors_are_normalised(self, family: type) -> None:
        """With validation, as in eager mode, although an exported program cannot check values."""

        class Density(nn.Module):
            def forward(self, loc: Tensor, kappa: Tensor, x: Tensor) -> tuple[Tensor]:
                return (family(loc, kappa, validate_args=True).log_prob(x),)

        loc, kappa, x = (value[-6:-2] for value in closed_form_inputs(16, torch.float32))
        program = exported(Density(), loc, kappa, x).module()
        torch.testing.assert_close(program(0.995 * loc, kappa, 1.005 * x), Density()(loc, kappa, x))


class Outputs(nn.Module):
    """The parameters and the density of the distribution that a head returns."""

    def __init__(self, head: SphericalHead) -> None:
        super().__init__()
        self.head = head

    def forward(self, features: Tensor, x: Tensor) -> tuple[Tensor, ...]:
        q = self.head(features)
        return q.log_prob(x), q.mode, q.concentration


@pytest.mark.slow
@families
def test_heads(family: type) -> None:
    features = torch.randn(6, 8) * torch.logspace(-2, 3, 6).unsqueeze(-1)  # small and large concentrations
    head = SphericalHead(8, 16, distribution=family)
    assert_exports(Outputs(head), features, directions(6, 16, dtype=torch.float32), near_zero=1)


@pytest.mark.slow
@pytest.mark.parametrize(("family", "layout"), list(zip(FAMILIES, LAYOUTS, strict=True)))
def test_bottlenecks(family: type, layout: str) -> None:
    arguments, options, shape = LAYOUTS[layout]
    bottleneck = SphericalBottleneck(*arguments, family, **options)
    # Sums of a linear layer are rounded in another order, so entries of z near zero lose relative accuracy.
    assert_exports(bottleneck, torch.randn(6, *shape), near_zero=1)


@pytest.mark.slow
def test_the_documented_call() -> None:
    """A module instead of a program."""
    bottleneck = SphericalBottleneck(8, 3).eval()
    features = torch.randn(4, 8)
    program = torch.onnx.export(
        bottleneck, (features,), dynamic_shapes=({0: BATCH},), dynamo=True, verbose=False
    )
    z, rate = program(features)
    expected = bottleneck(features)
    torch.testing.assert_close(z, expected[0], rtol=2e-6, atol=2e-6)
    torch.testing.assert_close(rate, expected[1], rtol=2e-6, atol=0)


class Draws(nn.Module):
    """Draws with explicit noise in several dimensions, each from the first coordinates of the inputs."""

    def __init__(self, family: type, dims: tuple[int, ...]) -> None:
        super().__init__()
        self.family, self.dims = family, dims

    def forward(self, loc: Tensor, kappa: Tensor, noise: Tensor) -> tuple[Tensor, ...]:
        locs = [nn.functional.normalize(loc[..., :dim], dim=-1) for dim in self.dims]
        members = [self.family(part, kappa, validate_args=False) for part in locs]
        return tuple(q.rsample(noise=noise[..., : q.event_shape[0]]) for q in members)


def draw_inputs(dim: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Directions, and all pairs of a concentration and a first coordinate of the noise."""
    kappa, normal = torch.cartesian_prod(
        torch.tensor(KAPPAS, dtype=dtype), torch.linspace(-5, 5, 10, dtype=dtype)
    ).unbind(-1)
    noise = directions(len(kappa), dim, dtype=dtype, seed=2)
    noise[:, 0] = normal
    return directions(len(kappa), dim, dtype=dtype), kappa, noise


class TestDraws:
    @pytest.mark.slow
    @families
    def test_onnx(self, family: type) -> None:
        dims = (3, 16)
        assert_exports(Draws(family, dims), *draw_inputs(16, torch.float32), near_zero=len(dims), error=5e-7)

    @exponential_families
    @pytest.mark.parametrize("dim", [2, 5, 512])
    @pytest.mark.parametrize(("farthest", "error"), [(5, 1e-10), (8, 2e-7)])
    def test_quantiles(self, family: PreciseFamily, dim: int, farthest: float, error: float) -> None:
        """Against Newton's method of eager mode."""
        kappa, normal = torch.cartesian_prod(
            torch.tensor((*KAPPAS, 500.0)).double(), torch.linspace(-farthest, farthest, 51).double()
        ).unbind(-1)
        tails = elementary.normal_cdf(normal), elementary.normal_cdf(-normal)
        found, wanted = (
            torch.stack((minus, (minus * plus).sqrt()))
            for minus, plus in (
                family.exported_quantile(*tails, kappa, dim),
                family.quantile_values(*tails, kappa, dim),
            )
        )
        torch.testing.assert_close(found, wanted, rtol=0.0, atol=error)

    def test_far_tails_are_finite(self) -> None:
        loc, kappa, noise = draw_inputs(2, torch.float64)
        noise[:, 0] *= 6
        module = Draws(VonMisesFisher, (2,))
        (x,) = exported(module, loc, kappa, noise).module()(loc, kappa, noise)
        torch.testing.assert_close(torch.linalg.vector_norm(x, dim=-1), torch.ones_like(kappa))

    @pytest.mark.slow
    @families
    def test_derivatives(self, family: type) -> None:
        """Of an exported program that is trained further, also at κ = 0."""
        inputs = [x.requires_grad_() for x in draw_inputs(5, torch.float64)]
        module = Draws(family, (5,))
        program = torch.export.export(module, tuple(inputs)).module()
        weights = directions(len(inputs[0]), 5, seed=3)
        found, wanted = (
            torch.autograd.grad((weights * run(*inputs)[0]).sum(), inputs) for run in (program, module)
        )
        torch.testing.assert_close(found, wanted, rtol=1e-8, atol=1e-12)

    def test_bottleneck(self) -> None:
        class Drawn(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.bottleneck = SphericalBottleneck(8, 3)

            def forward(self, features: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
                return self.bottleneck(features, noise=noise)

        assert_exports(Drawn(), torch.randn(6, 8), torch.randn(6, 3), near_zero=1, onnx=False)


class TestElementary:
    """The functions as they are exported, against torch's in float64."""

    NUMBERS = torch.logspace(-38, 38, 1001)

    def compare(self, function, reference, *inputs: Tensor) -> None:
        class Function(nn.Module):
            def forward(self, *args: Tensor) -> Tensor:
                return function(*args)

        found = torch.export.export(Function(), inputs).module()(*inputs)
        wanted = reference(*(x.double() for x in inputs)).float()
        torch.testing.assert_close(found, wanted, rtol=5e-7, atol=0.0)

    def test_log1p(self) -> None:
        x = self.NUMBERS
        ends = torch.tensor([-1.0, 0.0, torch.inf])
        self.compare(elementary.log1p, torch.log1p, torch.cat((x, -x[x < 1], ends)))

    def test_expm1(self) -> None:
        x = self.NUMBERS
        self.compare(elementary.expm1, torch.expm1, torch.cat((x, -x, torch.zeros(1))))

    def test_hypot(self) -> None:
        x = self.NUMBERS
        self.compare(elementary.hypot, torch.hypot, torch.cat((x, -x)), torch.ones(2 * len(x)))

    def test_sigmoid(self) -> None:
        x = torch.linspace(-87.0, 87.0, 1001)
        self.compare(elementary.sigmoid, torch.sigmoid, x)

    def test_normal_cdf(self) -> None:
        z = torch.linspace(-9.0, 9.0, 2001, dtype=torch.float64)

        class Function(nn.Module):
            def forward(self, z: Tensor) -> Tensor:
                return elementary.normal_cdf(z)

        found = torch.export.export(Function(), (z,)).module()(z)
        torch.testing.assert_close(found, elementary.normal_cdf(z), rtol=1e-13, atol=0.0)

    @pytest.mark.parametrize("name", ["log1p", "expm1"])
    def test_derivatives(self, name: str) -> None:
        """Of an exported program that is trained further."""
        x = torch.cat((self.NUMBERS, -self.NUMBERS))
        x = x[x.abs() < 0.9].requires_grad_()

        class Function(nn.Module):
            def forward(self, x: Tensor) -> Tensor:
                return getattr(elementary, name)(x)

        value = torch.export.export(Function(), (x,)).module()(x)
        (found,) = torch.autograd.grad(value.sum(), x)
        (wanted,) = torch.autograd.grad(getattr(torch, name)(x).sum(), x)
        torch.testing.assert_close(found, wanted, rtol=1e-6, atol=0.0)
