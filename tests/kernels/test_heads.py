"""Heads and bottlenecks without a layer, with each engine: μ and κ from (v, r), and draws with their rate."""

from __future__ import annotations

import math
from collections.abc import Sequence

import mpmath
import pytest
import torch
from torch import Tensor
from torch.distributions import kl_divergence

from helpers.engines import Engine
from helpers.examples import DOUBLE, FLOAT
from powerspherical import HypersphericalUniform
from powerspherical.engines import engine as use_engine
from powerspherical.families import family_names
from powerspherical.nn import SphericalBottleneck, SphericalHead

pytestmark = pytest.mark.filterwarnings(
    "ignore:(overflow|invalid value|divide by zero):RuntimeWarning"  # of Triton's interpreter
)

DIM = 5
BOUNDS = {"bounded": (1.0, 50.0), "unbounded": (0.3, math.inf)}
bounds = pytest.mark.parametrize("bounds", BOUNDS.values(), ids=BOUNDS)
entries = pytest.mark.parametrize("entries", [DIM + 1, DIM], ids=["v and r", "v"])
halves = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)


def parameters(
    outputs: Tensor, bounds: tuple[float, float] = BOUNDS["bounded"], dim: int = DIM
) -> tuple[Tensor, ...]:
    """Return μ and, if the outputs have r, κ of a head whose features are its outputs."""
    fixed = {} if outputs.shape[-1] > dim else {"concentration": 2.0}
    q = SphericalHead(None, dim, minimum=bounds[0], maximum=bounds[1], **fixed)(outputs)
    return (q.loc,) if fixed else (q.loc, q.concentration)


def formulas(
    outputs: Tensor, bounds: tuple[float, float] = BOUNDS["bounded"], dim: int = DIM
) -> tuple[Tensor, ...]:
    """Return the same by the formulas of the documentation, in float64. A v that counts as zero is v + e₁."""
    outputs = outputs.double()
    v, first = outputs[..., :dim], torch.eye(dim, dtype=DOUBLE, device=outputs.device)[0]
    v = torch.where(v.abs().amax(-1, keepdim=True) <= 1e-12, v + first, v)
    loc = v / torch.linalg.vector_norm(v, dim=-1, keepdim=True)
    if outputs.shape[-1] == dim:
        return (loc,)
    minimum, maximum = bounds
    s = torch.nn.functional.softplus(outputs[..., dim])
    return loc, minimum + s / (1 + s / (maximum - minimum))


def made_outputs(engine: Engine, count: int = DIM + 1, dtype: torch.dtype = FLOAT) -> Tensor:
    """Outputs of shape (40, 3, count), with short, long and zero vectors and with extreme r."""
    outputs = 3 * torch.randn(40, 3, count, dtype=DOUBLE)
    if count > DIM:
        outputs[:8, 0, DIM] = torch.tensor([-1e4, -80.0, -25.0, -15.0, 15.0, 25.0, 90.0, 1e4]).double()
    lengths = [0.0, 1e-13] if dtype == torch.float16 else [0.0, 1e-13, 1e-6, 1e20, 1e30]
    for place, length in enumerate(lengths):
        outputs[place, 1, :DIM] *= length
    return outputs.to(engine.device, dtype).requires_grad_()


def gradients(
    found: Sequence[Tensor], exact: Sequence[Tensor], outputs: Tensor, grads: Sequence[Tensor] | None = None
) -> tuple[Tensor, Tensor]:
    """Compare values, and return the gradients of both in the outputs, for random gradients of the values."""
    for value, other in zip(found, exact, strict=True):
        assert value.dtype == torch.float32
        torch.testing.assert_close(value.double(), other, rtol=2e-6, atol=1e-7)
    grads = grads or [torch.randn_like(value) for value in found]
    (gradient,) = torch.autograd.grad(found, outputs, grads, retain_graph=True)
    (reference,) = torch.autograd.grad(exact, outputs, [grad.double() for grad in grads], retain_graph=True)
    return gradient, reference


class TestParameters:
    @bounds
    @entries
    @halves
    def test_values_and_gradient(
        self, engine: Engine, bounds: tuple[float, float], entries: int, dtype: torch.dtype
    ) -> None:
        outputs = made_outputs(engine, entries, dtype)
        gradient, reference = gradients(parameters(outputs, bounds), formulas(outputs, bounds), outputs)
        assert gradient.dtype == dtype
        rounding = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}[dtype]
        # Coordinates of a row cancel, so the error is relative to the largest one.
        scale = reference[..., :DIM].abs().amax(-1, keepdim=True).clamp(min=1e-37)
        assert ((gradient - reference)[..., :DIM] / scale).abs().max() < rounding
        torch.testing.assert_close(gradient[..., DIM:], reference[..., DIM:], rtol=rounding, atol=1e-7)

    def test_rounding_stays_below_the_largest_concentration(self, engine: Engine) -> None:
        for bounds in ((0.1, 10.0), (0.2, 50.0), (0.2, 1000.0), (0.3, 77.7)):
            outputs = torch.full((9, DIM + 1), 1e38, device=engine.device)
            assert parameters(outputs, bounds)[1].max() <= bounds[1]

    def test_dimensions(self, engine: Engine) -> None:
        """Rows that fill vectors of the processor exactly, and rows that leave a rest."""
        for dim in (2, 4, 8, 9, 16, 33, 100):
            outputs = torch.randn(33, dim + 1, device=engine.device, requires_grad=True)
            found, exact = (f(outputs, BOUNDS["bounded"], dim) for f in (parameters, formulas))
            torch.testing.assert_close(*gradients(found, exact, outputs), rtol=1e-5, atol=1e-6)

    def test_one_of_the_two_gradients(self, engine: Engine) -> None:
        outputs = made_outputs(engine)
        for value, exact in zip(parameters(outputs), formulas(outputs), strict=True):
            gradient, reference = gradients([value], [exact], outputs)
            torch.testing.assert_close(gradient[5:], reference[5:], rtol=1e-4, atol=1e-6)

    @bounds
    def test_small_concentrations_keep_their_digits(
        self, engine: Engine, bounds: tuple[float, float]
    ) -> None:
        raw = torch.linspace(-80, 80, 321, device=engine.device)
        outputs = torch.cat((torch.ones(321, DIM, device=engine.device), raw[:, None]), -1)
        limits = 0.0, bounds[1]
        expected = formulas(outputs, limits)[1]
        torch.testing.assert_close(parameters(outputs, limits)[1].double(), expected, rtol=1e-6, atol=0)
        outputs[:, DIM] = -200.0
        assert parameters(outputs, limits)[1].max() <= 2 * torch.finfo(torch.float32).tiny

    @pytest.mark.parametrize("name", ["torch", "c"])
    def test_double_precision(self, name: str) -> None:
        """κ = s/(1 + s·10⁻⁶) with s = log(1 + e^r) by 40 digits. torch's softplus is off by 1e-10 from r = 20 on."""
        raw = torch.linspace(-700, 60, 500, dtype=torch.float64)
        with mpmath.workdps(40):
            sums = [mpmath.log1p(mpmath.exp(mpmath.mpf(r))) for r in raw.tolist()]
            expected = torch.tensor(
                [float(s / (1 + s * mpmath.mpf(10) ** -6)) for s in sums], dtype=torch.float64
            )
        with use_engine(name):
            _, kappa = parameters(torch.cat((torch.ones(500, DIM), raw[:, None]), -1), (0.0, 1e6))
        torch.testing.assert_close(kappa, expected, rtol=1e-15, atol=0)

    def test_derivatives_at_zero_and_far_out(self) -> None:
        """Those of log(1 + e^r), of orders 1 to 3."""
        outputs = torch.ones(4, DIM + 1, dtype=DOUBLE)
        outputs[:, DIM] = torch.tensor([0.0, -1e4, 1e4, -math.inf])
        value = parameters(outputs.requires_grad_(), BOUNDS["unbounded"])[1]
        for expected in ([0.5, 0, 1, 0], [0.25, 0, 0, 0], [0, 0, 0, 0]):
            (gradient,) = torch.autograd.grad(value.sum(), outputs, create_graph=True)
            value = gradient[:, DIM]
            assert value.tolist() == expected

    def test_nan_stays_in_its_row(self, engine: Engine) -> None:
        outputs = torch.randn(4, DIM + 1, device=engine.device)
        outputs[1, 2], outputs[2, DIM], outputs[3, :DIM] = math.nan, math.nan, math.inf
        loc, kappa = parameters(outputs)
        assert loc.isnan().all(-1).tolist() == [False, True, False, True]
        assert loc.isnan().any(-1).tolist() == [False, True, False, True]
        assert kappa.isnan().tolist() == [False, False, True, False]

    def test_layouts(self, engine: Engine) -> None:
        """Strided outputs and gradients, and an empty batch."""
        whole = torch.randn(3, DIM + 1, 7, device=engine.device, requires_grad=True)
        found, exact = (f(whole.movedim(1, -1)) for f in (parameters, formulas))
        assert [x.shape for x in found] == [(3, 7, DIM), (3, 7)]
        grads = torch.randn(DIM, 7, 3).permute(2, 1, 0), torch.ones(()).expand(3, 7)
        grads = [grad.to(engine.device) for grad in grads]
        torch.testing.assert_close(*gradients(found, exact, whole, grads), rtol=1e-4, atol=1e-6)
        empty = torch.zeros(0, DIM + 1, device=engine.device, requires_grad=True)
        loc, kappa = parameters(empty)
        (loc.sum() + kappa.sum()).backward()
        assert (loc.shape, kappa.shape, empty.grad.shape) == ((0, DIM), (0,), (0, DIM + 1))

    @entries
    def test_transforms(self, engine: Engine, entries: int) -> None:
        outputs = made_outputs(engine, entries).detach()[5:]

        def loss(x: Tensor) -> Tensor:
            return sum(value.cumsum(-1).square().sum() for value in parameters(x))

        leaf = outputs.clone().requires_grad_()
        (plain,) = torch.autograd.grad(loss(leaf), leaf)
        torch.testing.assert_close(torch.func.grad(loss)(outputs), plain, rtol=1e-4, atol=1e-3)
        many = torch.func.vmap(torch.func.grad(loss))(outputs)
        each = torch.stack([torch.func.grad(loss)(row) for row in outputs[:3]])
        torch.testing.assert_close(many[:3], each, rtol=1e-4, atol=1e-3)

    @bounds
    @entries
    def test_first_and_second_derivatives(self, bounds: tuple[float, float], entries: int) -> None:
        outputs = torch.randn(3, entries, dtype=DOUBLE)
        outputs[0, :DIM] *= 1e-3
        outputs.requires_grad_()
        assert torch.autograd.gradcheck(lambda x: parameters(x, bounds), outputs)
        assert torch.autograd.gradgradcheck(lambda x: parameters(x, bounds), outputs)

    def test_second_derivative_of_a_short_vector(self) -> None:
        """That of v + e₁."""
        outputs = torch.full((2, DIM + 1), 1e-13, dtype=DOUBLE, requires_grad=True)
        seconds = []
        for function in (parameters, formulas):
            loc, kappa = function(outputs)
            total = loc.cumsum(-1).sum() + kappa.sum()
            (gradient,) = torch.autograd.grad(total, outputs, create_graph=True)
            seconds.append((gradient, *torch.autograd.grad(gradient.square().sum(), outputs)))
        torch.testing.assert_close(*seconds, rtol=1e-8, atol=1e-10)


def latents(
    outputs: Tensor, family: str, dim: int = DIM, radius: float = 2.5, maximum: float = 60.0
) -> tuple[Tensor, Tensor]:
    """Return z and the rate of a bottleneck, after a seed."""
    torch.manual_seed(3)
    return SphericalBottleneck(None, dim, family, minimum=0.5, maximum=maximum, radius=radius)(outputs)


def parts(
    outputs: Tensor, family: str, dim: int = DIM, radius: float = 2.5, maximum: float = 60.0
) -> tuple[Tensor, Tensor]:
    """Return the same from the distribution of the bottleneck's head."""
    bottleneck = SphericalBottleneck(None, dim, family, minimum=0.5, maximum=maximum)
    q = bottleneck.head(outputs)
    torch.manual_seed(3)
    z = radius * q.rsample()
    rate = kl_divergence(q, HypersphericalUniform(dim))
    return z.to(outputs.dtype), rate


names = pytest.mark.parametrize("family", family_names())


def features(engine: Engine, *shape: int, dtype: torch.dtype = FLOAT) -> Tensor:
    return (3 * torch.randn(shape, dtype=DOUBLE)).to(engine.device, dtype).requires_grad_()


class TestLatents:
    """A bottleneck's draws and rate, which may be one kernel, are those of its parts, which have tests of their own."""

    @names
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
    @pytest.mark.parametrize("maximum", [60.0, math.inf], ids=["bounded", "unbounded"])
    def test_values_and_gradient(
        self, engine: Engine, family: str, dtype: torch.dtype, maximum: float
    ) -> None:
        half, rows, dims = dtype == torch.bfloat16, 40, (2, 3, 5, 17)
        if engine.is_interpreted:  # it takes seconds
            rows, dims = 8, (3,) if math.isinf(maximum) else (17,)
        for dim in dims:
            outputs = features(engine, rows, 3, dim + 1, dtype=dtype).detach()
            outputs[3, 1, :dim] = 0.0
            outputs[4, 1, :dim] *= 1e-13
            outputs[5, 1, :dim] *= 1e20
            outputs[6, 1, dim] = 60.0
            outputs.requires_grad_()
            found, expected = (f(outputs, family, dim, 2.5, maximum) for f in (latents, parts))
            assert [x.dtype for x in found] == [dtype, torch.float64 if dtype == DOUBLE else FLOAT]
            # The interpreter truncates to bfloat16, processors round.
            torch.testing.assert_close(found[0], expected[0], rtol=8e-3 if half else 1e-5, atol=2e-6)
            torch.testing.assert_close(found[1], expected[1], rtol=5e-6, atol=1e-7)
            grads = [torch.randn_like(x) for x in found]
            for used in ((0, 1), (0,), (1,)):
                gradients = [
                    torch.autograd.grad(
                        [x[i] for i in used], outputs, [grads[i] for i in used], retain_graph=True
                    )[0].double()
                    for x in (found, expected)
                ]
                scale = gradients[1].abs().amax(-1, keepdim=True).clamp(min=1e-2)
                error = ((gradients[0] - gradients[1]) / scale).abs().max()
                assert error < (1e-2 if half else 3e-4), used

    @names
    def test_half_precision_is_rounded_once(self, family: str, engine: Engine) -> None:
        if engine.is_interpreted:
            pytest.skip("the interpreter truncates to bfloat16")
        outputs = features(engine, 4, 3, DIM + 1, dtype=torch.bfloat16)
        z, rate = latents(outputs, family)
        exact, _ = latents(outputs.float(), family)
        assert rate.dtype == FLOAT
        torch.testing.assert_close(z, exact.bfloat16(), rtol=0, atol=0)

    @names
    def test_radius_and_gradients_change_no_draw(self, engine: Engine, family: str) -> None:
        """They choose what is kept for the backward pass."""
        outputs = features(engine, 40, DIM + 1)
        grad, found = torch.randn(40, DIM, device=engine.device), []
        for radius in (1.0, 2.0):
            z, _ = latents(outputs, family, radius=radius)
            found.append((z / radius, *torch.autograd.grad(z, outputs, grad / radius)))
            with torch.no_grad():
                alone, rate = latents(outputs, family, radius=radius)
            assert not alone.requires_grad
            torch.testing.assert_close(alone, z.detach(), rtol=1e-6, atol=1e-6)
            torch.testing.assert_close(rate, latents(outputs, family)[1].detach(), rtol=1e-6, atol=0)
        assert all(map(torch.equal, *found))

    @names
    @pytest.mark.parametrize("strided", [False, True])
    def test_other_derivatives(self, engine: Engine, family: str, strided: bool) -> None:
        """The rate can be differentiated twice, the draw once; batches of gradients; strided features."""
        outputs = features(engine, 4, 3, DIM + 1).detach()
        outputs = (
            outputs.transpose(0, 1).contiguous().transpose(0, 1) if strided else outputs
        ).requires_grad_()
        seconds = []
        for function in (latents, parts):
            z, rate = function(outputs, family)
            (slope,) = torch.autograd.grad(rate.sum(), outputs, create_graph=True)
            seconds.append(torch.autograd.grad(slope.square().sum(), outputs, retain_graph=True)[0])
        torch.testing.assert_close(*seconds, rtol=1e-4, atol=1e-5)
        z, rate = latents(outputs, family)
        grads = [torch.randn(2, *value.shape, device=engine.device) for value in (z, rate)]
        (many,) = torch.autograd.grad((z, rate), outputs, grads, is_grads_batched=True, retain_graph=True)
        for index in range(2):
            given = [grad[index] for grad in grads]
            (one,) = torch.autograd.grad((z, rate), outputs, given, retain_graph=True)
            torch.testing.assert_close(many[index], one, rtol=1e-4, atol=1e-4)
        (gradient,) = torch.autograd.grad(z.cumsum(-1).sum(), outputs, create_graph=True)
        with pytest.raises(NotImplementedError, match="a draw is differentiable once"):
            gradient.sum().backward()

    @pytest.mark.slow
    @pytest.mark.filterwarnings("ignore:.*Function'> should not be instantiated:DeprecationWarning")
    def test_compiled(self, engine: Engine) -> None:
        """Values and gradient are those of eager mode, and two draws of one graph differ."""
        torch.compiler.reset()
        outputs = features(engine, 7, DIM + 1)
        bottleneck = SphericalBottleneck(None, DIM, "power_spherical", maximum=60.0)

        def once(outputs: Tensor) -> tuple[Tensor, Tensor]:
            return bottleneck(outputs)

        def twice(outputs: Tensor) -> tuple[Tensor, Tensor]:
            return bottleneck(outputs)[0], bottleneck(outputs)[0]

        results = []
        for function in (once, torch.compile(once, backend="aot_eager", fullgraph=True)):
            torch.manual_seed(3)
            z, rate = function(outputs)
            loss = z.cumsum(-1).square().sum() + rate.square().sum()
            results.append((z, rate, *torch.autograd.grad(loss, outputs)))
        torch.testing.assert_close(*results, rtol=1e-5, atol=1e-6)
        for backend in ("aot_eager", "aot_eager_decomp_partition"):
            first, second = torch.compile(twice, backend=backend, fullgraph=True)(outputs)
            assert not (first == second).all(-1).any()

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64], ids=str)
    def test_the_default_dtype_changes_nothing(self, engine: Engine, dtype: torch.dtype) -> None:
        outputs = features(engine, 7, DIM + 1).detach()
        maximum = 61.0 if dtype == torch.bfloat16 else 62.0  # used nowhere else: nothing is cached
        torch.set_default_dtype(dtype)
        try:
            found = latents(outputs, "power_spherical", maximum=maximum)
        finally:
            torch.set_default_dtype(torch.float32)
        torch.testing.assert_close(
            found, latents(outputs, "power_spherical", maximum=maximum), rtol=0, atol=0
        )
