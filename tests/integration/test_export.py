"""``torch.export`` and ONNX: exported programs compute what eager mode does, at any batch size."""

from __future__ import annotations

import onnxruntime
import pytest
import torch
from torch import Tensor, nn
from torch.distributions import kl_divergence

from helpers.examples import directions, exponential_families, families
from powerspherical import HypersphericalUniform, PowerSpherical, SphericalCauchy, VonMisesFisher
from powerspherical._torch import elementary
from powerspherical.families._precise import PreciseFamily
from powerspherical.nn import SphericalBottleneck, SphericalHead

BATCH = torch.export.Dim("batch")
KAPPAS = (0.0, 1e-3, 1.0, 50.0, 1e4, 1e6)


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

    The program also runs with a batch of one. The first ``near_zero`` outputs may be near a zero. For them the error is
    absolute there. The default ``error`` is 2e-6 in float32 and 1e-14 in float64.
    """
    with torch.no_grad():
        expected = module.eval()(*inputs)
        program = exported(module, *inputs)
        results = [program.module()(*inputs), *([run_onnx(program, *inputs)] if onnx else [])]
        alone = program.module()(*(x[:1] for x in inputs))
    torch.testing.assert_close(alone, tuple(value[:1] for value in expected))
    if error is None:
        error = 2e-6 if inputs[0].dtype == torch.float32 else 1e-14
    for found in results:
        for index, (value, wanted) in enumerate(zip(found, expected, strict=True)):
            absolute = error if index < near_zero else 0.0
            torch.testing.assert_close(value, wanted, rtol=error, atol=absolute)


class ClosedForms(nn.Module):
    """log_prob, KL from the uniform distribution, and mean of a family."""

    def __init__(self, family: type, validate_args: bool = False) -> None:
        super().__init__()
        self.family, self.validate_args = family, validate_args

    def forward(self, loc: Tensor, kappa: Tensor, x: Tensor) -> tuple[Tensor, ...]:
        q = self.family(loc, kappa, validate_args=self.validate_args)
        rate = kl_divergence(q, HypersphericalUniform(loc.shape[-1]))
        return q.log_prob(x), rate, q.mean


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
    """``test_head`` has the functions of von Mises–Fisher in a low dimension."""

    @pytest.mark.slow
    @pytest.mark.parametrize(("family", "dim"), [(PowerSpherical, 2), (SphericalCauchy, 3)])
    def test_onnx(self, family: type, dim: int) -> None:
        assert_exports(ClosedForms(family), *closed_form_inputs(dim, torch.float32), near_zero=1)

    @families
    def test_float64(self, family: type) -> None:
        """Without ONNX, whose exporter rounds Python numbers to float32."""
        inputs = closed_form_inputs(512, torch.float64)
        assert_exports(ClosedForms(family), *inputs, near_zero=1, onnx=False)

    def test_vectors_are_normalised(self) -> None:
        """With validation, as in eager mode, although an exported program cannot check values."""
        loc, kappa, x = (value[-6:-2] for value in closed_form_inputs(16, torch.float32))
        module = ClosedForms(SphericalCauchy, validate_args=True)
        program = exported(module, loc, kappa, x).module()
        torch.testing.assert_close(program(0.995 * loc, kappa, 1.005 * x), module(loc, kappa, x))


class Outputs(nn.Module):
    """The parameters and the density of the distribution that a head returns."""

    def __init__(self, head: SphericalHead) -> None:
        super().__init__()
        self.head = head

    def forward(self, features: Tensor, x: Tensor) -> tuple[Tensor, ...]:
        q = self.head(features)
        return q.log_prob(x), q.mode, q.concentration


@pytest.mark.slow
def test_head() -> None:
    features = torch.randn(6, 8) * torch.logspace(-2, 3, 6).unsqueeze(-1)  # small and large concentrations
    head = SphericalHead(8, 4, distribution=VonMisesFisher)
    assert_exports(Outputs(head), features, directions(6, 4, dtype=torch.float32), near_zero=1)


@pytest.mark.slow
def test_product() -> None:
    bottleneck = SphericalBottleneck(None, 4, SphericalCauchy, axis=1, product=2)
    assert_exports(bottleneck, torch.randn(6, 10, 3, 2))


def test_a_fixed_rate() -> None:
    assert_exports(SphericalBottleneck(8, 3, VonMisesFisher, nats=3.0), torch.randn(6, 8))


@pytest.mark.slow
def test_the_documented_call() -> None:
    """A module instead of a program."""
    bottleneck = SphericalBottleneck(8, 16, radius="sqrt_dim").eval()
    features = torch.randn(6, 8)
    program = torch.onnx.export(
        bottleneck, (features[:4],), dynamic_shapes=({0: BATCH},), dynamo=True, verbose=False
    )
    z, rate = program(features)
    torch.testing.assert_close((z, rate), bottleneck(features), rtol=2e-6, atol=0.0)


class Draws(nn.Module):
    """Draws with explicit noise."""

    def __init__(self, family: type) -> None:
        super().__init__()
        self.family = family

    def forward(self, loc: Tensor, kappa: Tensor, noise: Tensor) -> tuple[Tensor]:
        return (self.family(loc, kappa, validate_args=False).rsample(noise=noise),)


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
    def test_a_large_dimension(self) -> None:
        """By the table of cells that all families share, except at d = 3."""
        inputs = draw_inputs(64, torch.float32)
        assert_exports(Draws(VonMisesFisher), *inputs, near_zero=1, error=5e-7)

    @pytest.mark.slow
    def test_bottleneck(self) -> None:
        """At d = 3, where quantiles have a closed form."""

        class Drawn(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.bottleneck = SphericalBottleneck(8, 3)

            def forward(self, features: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
                return self.bottleneck(features, noise=noise)

        features = torch.randn(60, 8) * torch.logspace(-2, 3, 60).unsqueeze(-1)
        assert_exports(Drawn(), features, 2 * torch.randn(60, 3), near_zero=2)

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
        kappa, normal = torch.cartesian_prod(
            torch.tensor(KAPPAS).double(), torch.tensor([-30.0, 30.0]).double()
        ).unbind(-1)
        tails = elementary.normal_cdf(normal), elementary.normal_cdf(-normal)
        minus, plus = VonMisesFisher.family.exported_quantile(*tails, kappa, 2)
        torch.testing.assert_close(minus + plus, torch.full_like(kappa, 2.0))

    @pytest.mark.slow
    @families
    def test_derivatives(self, family: type) -> None:
        """Of an exported program that is trained further, also at κ = 0."""
        inputs = [x.requires_grad_() for x in draw_inputs(5, torch.float64)]
        module = Draws(family)
        program = torch.export.export(module, tuple(inputs)).module()
        weights = directions(len(inputs[0]), 5, seed=3)
        draws = [run(*inputs)[0] for run in (program, module)]
        torch.testing.assert_close(*draws, rtol=0.0, atol=1e-10)
        found, wanted = (torch.autograd.grad((weights * x).sum(), inputs) for x in draws)
        torch.testing.assert_close(found, wanted, rtol=1e-8, atol=1e-12)


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
