"""The bottleneck: values, layouts, precision, compilation, checkpointing, several processes."""

from __future__ import annotations

import copy
import math
import pickle
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import kl_divergence
from torch.utils.checkpoint import checkpoint

from helpers.processes import in_two_processes
from helpers.statistical import assert_mean
from helpers.waiting import waiting
from powerspherical import HypersphericalUniform, PowerSpherical, SphericalCauchy, VonMisesFisher
from powerspherical.nn import SphericalBottleneck, SphericalHead

FEATURES, DIM = 7, 5
FAMILIES = {
    "power_spherical": PowerSpherical,
    "von_mises_fisher": VonMisesFisher,
    "spherical_cauchy": SphericalCauchy,
}
families = pytest.mark.parametrize("family", FAMILIES)
LAYOUTS = {
    "own layer": (FEATURES, {}),
    "encoder's layer": (None, {}),
    "fixed κ": (None, {"concentration": 3.0}),
    "product": (None, {"product": 2}),
    "product with fixed rates": (FEATURES, {"product": 2, "nats": 4.0}),
}
layouts = pytest.mark.parametrize("layout", LAYOUTS)


def made(layout: str, **options: object) -> tuple[SphericalBottleneck, int]:
    """A bottleneck and the number of its features."""
    in_features, own = LAYOUTS[layout]
    bottleneck = SphericalBottleneck(in_features, DIM, **{**own, **options})
    per_sphere = DIM + (not {"concentration", "nats"} & own.keys())
    return bottleneck, in_features or per_sphere * own.get("product", 1)


def autograd_nodes(*outputs: Tensor) -> list[str]:
    """Names of the nodes of the autograd graph, without those of leaves."""
    found, waiting_nodes = [], [output.grad_fn for output in outputs]
    while waiting_nodes:
        node = waiting_nodes.pop()
        if node is not None and node not in found and node.next_functions:
            found.append(node)
            waiting_nodes += [following for following, _ in node.next_functions]
    return sorted(node.name() for node in found)


def test_few_autograd_nodes() -> None:
    """The host time of a step on CUDA is mostly that of the nodes of the autograd graph."""
    features = torch.randn(6, DIM + 1, dtype=torch.bfloat16, requires_grad=True)
    names = autograd_nodes(*SphericalBottleneck(None, DIM, radius="sqrt_dim")(features))
    assert names == ["_PlainLatentsBackward"]


def test_changed_settings() -> None:
    """In training and in evaluation, compiled or not, the bottleneck follows its attributes."""
    bottleneck = SphericalBottleneck(None, DIM, "von_mises_fisher", maximum=torch.tensor(50.0))
    compiled = torch.compile(bottleneck, backend="aot_eager", fullgraph=True)
    features = torch.randn(6, DIM + 1, requires_grad=True)

    def rates() -> list[Tensor]:
        bottleneck.train()
        found = [bottleneck(features), compiled(features)]
        assert all(torch.allclose(z.norm(dim=-1), torch.tensor(bottleneck.radius)) for z, _ in found)
        found.append(bottleneck.eval()(features))
        return [rate for _, rate in found]

    before = rates()
    for name, value in (("maximum", 2.0), ("distribution", FAMILIES["power_spherical"])):
        setattr(bottleneck.head, name, value)
        after = rates()
        for rate, old in zip(after, before, strict=True):
            torch.testing.assert_close(rate, after[0])
            assert not torch.allclose(rate, old)
        before = after
    bottleneck.radius = 3.0
    rates()
    bottleneck.head.axis, bottleneck.head.product = 0, 2
    for run in (bottleneck.train(), compiled, bottleneck.eval()):
        assert [x.shape for x in run(torch.randn(2 * DIM + 2, 6))] == [(2 * DIM, 6), (6,)]


def test_another_head() -> None:
    """A head with its own forward pass, or with a layer of one's own, is called in training too."""

    class Fixed(SphericalHead):
        def forward(
            self, features: Tensor, raw: Tensor | None = None, *, outputs_only: bool = False
        ) -> object:
            outputs = torch.tensor([0.0, 0.0, 0.0, 0.0, 1.0, 1e9]).expand(*features.shape[:-1], DIM + 1)
            return outputs if outputs_only else self.distribution_from_outputs(outputs)

    bottleneck, pole = SphericalBottleneck(None, DIM), torch.eye(DIM)[-1].expand(4, DIM)
    linear = nn.Linear(DIM + 1, DIM + 1)
    with torch.no_grad():
        linear.weight.zero_()
        linear.bias.copy_(torch.tensor([0.0, 0.0, 0.0, 0.0, 1.0, 1e9]))
    for change in ("head", "linear"):
        if change == "head":
            bottleneck.head = Fixed(None, DIM, distribution=PowerSpherical)
        else:
            bottleneck.head = SphericalHead(None, DIM, distribution=PowerSpherical)
            bottleneck.head.linear = linear
        for mode in (True, False):
            z, _ = bottleneck.train(mode)(torch.randn(4, DIM + 1))
            torch.testing.assert_close(z, pole, rtol=0, atol=0.02)


def test_a_wrong_number_of_outputs() -> None:
    bottleneck = SphericalBottleneck(FEATURES, DIM)
    bottleneck.head.dim = DIM + 2
    with pytest.raises(ValueError, match="the head has 6 outputs per sphere, not 8, for d = 7"):
        bottleneck(torch.randn(4, FEATURES))


def test_changed_concentration() -> None:
    bottleneck, entries = made("fixed κ")
    features = torch.randn(4, entries)
    bottleneck.head.concentration = 50.0
    rate = kl_divergence(bottleneck.head(features), HypersphericalUniform(DIM))
    torch.testing.assert_close(bottleneck(features)[1], rate)


class TestValues:
    @families
    def test_the_mode_and_the_rate(self, family: str) -> None:
        bottleneck = SphericalBottleneck(None, DIM, family, minimum=1.0, maximum=math.inf).eval()
        outputs = torch.randn(3, 4, DIM + 1)
        z, rate = bottleneck(outputs)
        loc = nn.functional.normalize(outputs[..., :DIM], dim=-1)
        kappa = nn.functional.softplus(outputs[..., DIM]) + 1
        torch.testing.assert_close(z, loc)
        q = FAMILIES[family](loc, kappa)
        torch.testing.assert_close(rate, kl_divergence(q, HypersphericalUniform(DIM)))

    @families
    def test_the_draws(self, family: str) -> None:
        bottleneck = SphericalBottleneck(None, DIM, FAMILIES[family], concentration=6.0, radius=2.0)
        direction = torch.randn(DIM)
        z, _ = bottleneck(direction.expand(4000, DIM))
        torch.testing.assert_close(z.norm(dim=-1), torch.full((4000,), 2.0))
        q = FAMILIES[family](nn.functional.normalize(direction, dim=0), 6.0)
        assert_mean(z, 2 * q.mean, rounding=1e-6)

    def test_evaluation(self) -> None:
        features = torch.randn(6, FEATURES)
        for evaluate, same in (("mode", True), ("draw", False)):
            bottleneck = SphericalBottleneck(FEATURES, DIM, evaluate=evaluate)
            assert not bottleneck(features)[0].equal(bottleneck(features)[0])
            bottleneck.eval()
            assert bottleneck(features)[0].equal(bottleneck(features)[0]) is same

    @pytest.mark.parametrize("radius", ["sqrt_dim", 3, 1.0])
    @layouts
    def test_radius(self, layout: str, radius: float | str) -> None:
        bottleneck, entries = made(layout, radius=radius)
        z, _ = bottleneck(torch.randn(4, entries))
        lengths = z.unflatten(-1, (-1, DIM)).norm(dim=-1)
        expected = math.sqrt(DIM) if radius == "sqrt_dim" else float(radius)
        torch.testing.assert_close(lengths, torch.full_like(lengths, expected))

    @pytest.mark.parametrize("product", [None, 3])
    @families
    def test_fixed_rates(self, family: str, product: int | None) -> None:
        factors = product or 1
        vectors = torch.randn(4, DIM * factors)
        _, rate = SphericalBottleneck(None, DIM, family, nats=4.0, product=product)(vectors)
        torch.testing.assert_close(rate, torch.full((4,), 4.0 * factors))
        bottleneck = SphericalBottleneck(None, DIM, family, concentration=2.0, product=product)
        one = kl_divergence(FAMILIES[family](torch.eye(DIM)[0], 2.0), HypersphericalUniform(DIM))
        torch.testing.assert_close(bottleneck(vectors)[1], (factors * one).expand(4))

    def test_factors_of_a_product(self) -> None:
        """Each factor is a bottleneck of its own."""
        outputs = torch.randn(4, 3, DIM + 1)
        z, rate = SphericalBottleneck(None, DIM, product=3).eval()(outputs.flatten(-2))
        each_z, each_rate = SphericalBottleneck(None, DIM).eval()(outputs)
        torch.testing.assert_close(z, each_z.flatten(-2))
        torch.testing.assert_close(rate, each_rate.sum(-1))

    @pytest.mark.parametrize("product", [None, 3])
    @pytest.mark.parametrize("axis", [1, -1])
    def test_two_tensors(self, axis: int, product: int | None) -> None:
        """v of shape (B, m·d) and r of shape (B, m) give the same as (v, r) of each factor in one tensor."""
        outputs = torch.randn(4, product or 1, DIM + 1)
        v, r = outputs[..., :DIM].flatten(1), outputs[..., DIM]
        joined = outputs.flatten(1)
        if axis == 1:
            v, r, joined = v.unsqueeze(-1), r.unsqueeze(-1), joined.unsqueeze(-1)
        bottleneck = SphericalBottleneck(None, DIM, axis=axis, product=product).eval()
        torch.testing.assert_close(bottleneck(v, r), bottleneck(joined))

    def test_the_distribution(self) -> None:
        bottleneck, features = SphericalBottleneck(FEATURES, DIM, initial=9.0), torch.zeros(2, FEATURES)
        torch.testing.assert_close(bottleneck.head(features).concentration, torch.full((2,), 9.0))


class TestLayout:
    @layouts
    @pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3)], ids=str)
    def test_shapes(self, layout: str, shape: tuple[int, ...]) -> None:
        bottleneck, entries = made(layout)
        z, rate = bottleneck(torch.randn(*shape, entries))
        assert z.shape == (*shape, DIM * (bottleneck.head.product or 1))
        assert rate.shape == shape

    @layouts
    @pytest.mark.parametrize("axis", [1, -3])
    def test_channels_first(self, layout: str, axis: int) -> None:
        first, entries = made(layout, axis=axis)
        last = copy.deepcopy(first)
        last.head.axis = -1
        images = torch.randn(2, entries, 4, 3)
        z, rate = first.eval()(images)
        expected, expected_rate = last.eval()(images.permute(0, 2, 3, 1))
        assert rate.shape == (2, 4, 3)
        torch.testing.assert_close(z, expected.permute(0, 3, 1, 2))
        torch.testing.assert_close(rate, expected_rate)

    def test_memory_format(self) -> None:
        bottleneck = SphericalBottleneck(FEATURES, DIM, axis=1)
        images = torch.randn(2, FEATURES, 4, 3)
        for memory_format in (torch.contiguous_format, torch.channels_last):
            z, _ = bottleneck(images.contiguous(memory_format=memory_format))
            assert z.is_contiguous(memory_format=memory_format)

    @pytest.mark.parametrize("training", [True, False])
    @pytest.mark.parametrize("axis", [1, -1])
    @layouts
    def test_results_are_no_views(self, layout: str, axis: int, training: bool) -> None:
        """``fully_shard`` warns about views, whose changes in place it cannot see."""
        bottleneck, entries = made(layout, axis=axis)
        features = torch.randn(2, 3, entries).movedim(-1, axis).contiguous()
        z, rate = bottleneck.train(training)(features)
        assert not z._is_view()
        assert not rate._is_view()
        assert z.is_contiguous()

    def test_audio(self) -> None:
        z, rate = SphericalBottleneck(None, 64, axis=1)(torch.randn(2, 65, 30))
        assert (z.shape, rate.shape) == ((2, 64, 30), (2, 30))


class TestPrecision:
    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64], ids=str)
    @layouts
    def test_dtypes(self, layout: str, dtype: torch.dtype) -> None:
        bottleneck, entries = made(layout)
        z, rate = bottleneck.to(dtype)(torch.randn(3, entries, dtype=dtype))
        assert z.dtype == dtype
        assert rate.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)

    @families
    @layouts
    def test_autocast(self, layout: str, family: str) -> None:
        bottleneck, entries = made(layout, family=family)
        for dtype in (torch.bfloat16, torch.float32):
            features = torch.randn(3, entries, dtype=dtype, requires_grad=True)
            with torch.autocast("cpu", torch.bfloat16):
                z, rate = bottleneck(features)
                loss = z.float().cumsum(-1).sum() + rate.sum()
            assert (z.dtype, rate.dtype) == (dtype, torch.float32)
            loss.backward()
            assert features.grad.isfinite().all()
            assert (features.grad != 0).any()
        assert all(parameter.grad.dtype == torch.float32 for parameter in bottleneck.parameters())


@layouts
def test_gradients_reach_everything(layout: str) -> None:
    bottleneck, entries = made(layout)
    features = torch.randn(16, entries, requires_grad=True)
    z, rate = bottleneck(features)
    (z.cumsum(-1).square().sum() + rate.sum()).backward()
    for tensor in (features, *bottleneck.parameters()):
        assert tensor.grad.isfinite().all()
        assert (tensor.grad != 0).any()


@layouts
def test_checkpointing_repeats_the_draws(layout: str) -> None:
    bottleneck, entries = made(layout)
    layer = nn.Linear(entries, entries)
    inputs = torch.randn(8, entries)

    def step(x: Tensor) -> tuple[Tensor, Tensor]:
        return bottleneck(layer(x))

    results = []
    for call in (lambda x: checkpoint(step, x, use_reentrant=False), step):
        torch.manual_seed(1)
        z, rate = call(inputs)
        gradients = torch.autograd.grad(
            z.cumsum(-1).square().sum() + rate.sum(), (*layer.parameters(), *bottleneck.parameters())
        )
        results.append((z, rate, *gradients))
    torch.testing.assert_close(*results, rtol=0, atol=0)


class TestNoise:
    """``noise`` determines z, in training and in evaluation."""

    @layouts
    def test_z(self, layout: str) -> None:
        bottleneck, entries = made(layout)
        features = torch.randn(5, entries)
        q = bottleneck.head(features)
        noise = q.noise()
        expected = bottleneck.radius * q.rsample(noise=noise).flatten(1)
        for _ in range(2):
            z, rate = bottleneck(features, noise=noise)
            torch.testing.assert_close(z, expected)
            torch.testing.assert_close(rate, bottleneck(features)[1])
            bottleneck.eval()

    def test_channels_first(self) -> None:
        bottleneck = SphericalBottleneck(FEATURES, DIM, axis=1, product=2)
        images, noise = torch.randn(2, FEATURES, 3, 3), torch.randn(2, 3, 3, 2, DIM)
        z, _ = bottleneck(images, noise=noise)
        expected = bottleneck.head(images).rsample(noise=noise).flatten(-2).movedim(-1, 1)
        torch.testing.assert_close(z, expected)

    @pytest.mark.parametrize("shape", [(DIM,), (1, DIM), (3, 5, DIM), (5, DIM + 1)], ids=str)
    def test_other_shapes(self, shape: tuple[int, ...]) -> None:
        bottleneck = SphericalBottleneck(FEATURES, DIM)
        with pytest.raises(ValueError, match=rf"noise must have the shape \(5, {DIM}\) .*, got"):
            bottleneck(torch.randn(5, FEATURES), noise=torch.randn(shape))

    @layouts
    def test_checkpointing(self, layout: str) -> None:
        """Draws repeat without the state of the generator, which a checkpoint otherwise saves and restores."""
        bottleneck, entries = made(layout)
        features, noise = torch.randn(5, entries), bottleneck.head(torch.randn(5, entries)).noise()

        def step(x: Tensor) -> Tensor:
            z, rate = bottleneck(x.tanh(), noise=noise)
            return z.cumsum(-1).square().sum() + rate.sum()

        gradients = []
        for call in (lambda x: checkpoint(step, x, use_reentrant=False, preserve_rng_state=False), step):
            x = features.clone().requires_grad_()
            gradients += torch.autograd.grad(call(x), x)
        torch.testing.assert_close(*gradients, rtol=0, atol=0)

    def test_generator(self) -> None:
        bottleneck, features = SphericalBottleneck(FEATURES, DIM), torch.randn(5, FEATURES)
        first, second = (
            bottleneck(features, generator=torch.Generator().manual_seed(3))[0] for _ in range(2)
        )
        assert torch.equal(first, second)
        assert not torch.equal(first, bottleneck(features)[0])


@layouts
def test_copies(layout: str) -> None:
    bottleneck, entries = made(layout)
    features = torch.randn(3, entries)
    bottleneck.eval()
    for copied in (copy.deepcopy(bottleneck), pickle.loads(pickle.dumps(bottleneck))):
        torch.testing.assert_close(copied(features), bottleneck(features))


def test_representation() -> None:
    text = repr(SphericalBottleneck(None, 4, radius="sqrt_dim", concentration=3.0))
    assert "radius=2, evaluate='mode'" in text
    assert "dim=4, axis=-1, concentration=3" in text


def test_meta_device() -> None:
    with torch.device("meta"):
        bottleneck = SphericalBottleneck(FEATURES, DIM, nats=2.0, product=2)
    z, rate = bottleneck.to_empty(device="cpu")(torch.zeros(1, FEATURES))
    assert z.device.type == rate.device.type == "cpu"


class TestBadInput:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"dim": 1}, "dim .*≥ 2"),
            ({"family": "vmf"}, "unknown family 'vmf': choose one of power_spherical"),
            ({"family": HypersphericalUniform}, "family must be a name such as"),
            ({"radius": "sqrt"}, "radius must be a number > 0 or \"sqrt_dim\", got 'sqrt'"),
            ({"radius": 0.0}, "radius must be a number > 0"),
            ({"radius": math.nan}, "radius must be a number > 0"),
            ({"evaluate": "mean"}, 'evaluate must be "mode" or "draw", got \'mean\''),
            ({"concentration": -1.0}, "concentration must be a finite κ ≥ 0, got -1"),
            ({"concentration": math.inf}, "concentration must be a finite κ ≥ 0"),
            ({"concentration": 1.0, "nats": 2.0}, "concentration=1.0 fixes κ, so nats=2.0 has no meaning"),
            ({"concentration": 1.0, "initial": 2.0}, "concentration=1.0 fixes κ, so initial=2.0"),
            ({"in_features": None, "initial": 2.0}, "set the bias of your own layer"),
            ({"minimum": 2.0, "maximum": 1.0}, "minimum < maximum"),
            ({"product": 0}, "product .*≥ 1"),
        ],
        ids=str,
    )
    def test_arguments(self, options: dict, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            SphericalBottleneck(**{"in_features": FEATURES, "dim": DIM, **options})

    @pytest.mark.parametrize("axis", [1, -1])
    @layouts
    def test_features(self, layout: str, axis: int) -> None:
        bottleneck, entries = made(layout, axis=axis)
        for shape in ((), (entries,)[: axis == 1], (3, entries + 1)):
            with pytest.raises(ValueError, match=f"features must have {entries} entries along axis {axis}"):
                bottleneck(torch.zeros(shape))
        with pytest.raises(ValueError, match=r"features must have a floating-point dtype, got torch.int64"):
            bottleneck(torch.zeros(3, entries, dtype=torch.int64))

    def test_another_axis(self) -> None:
        with pytest.raises(ValueError, match=r"got the shape \(2, 6, 4\); axis 1 has 6 entries: .* axis=1"):
            SphericalBottleneck(None, DIM)(torch.ones(2, DIM + 1, 4))

    def test_two_tensors(self) -> None:
        bottleneck = SphericalBottleneck(None, DIM)
        for v, r, message in (
            ((3, DIM + 1), (3, 1), "features must have 5 entries along axis -1"),
            ((3, DIM), (3,), r"raw must have 1 entry along axis -1, got the shape \(3,\)"),
            ((3, DIM), (2, 1), r"got the shapes \(3, 5\) and \(2, 1\)"),
        ):
            with pytest.raises(ValueError, match=message):
                bottleneck(torch.ones(v), torch.ones(r))
        with pytest.raises(
            ValueError, match=r"got the shape \(3, 5\); each sphere takes 5 entries .* unless you pass raw"
        ):
            bottleneck(torch.ones(3, DIM))
        for other in (SphericalBottleneck(FEATURES, DIM), SphericalBottleneck(None, DIM, nats=1.0)):
            with pytest.raises(ValueError, match="raw is for heads with in_features=None"):
                other(torch.ones(3, DIM), torch.ones(3, 1))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@families
@layouts
def test_cuda_without_a_sync(layout: str, family: str) -> None:
    bottleneck, entries = made(layout, family=family, axis=1, radius="sqrt_dim")
    bottleneck.cuda()
    features = torch.randn(2, entries, 30, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    for mode in ("default", "error"):  # the first pass compiles kernels
        with waiting(mode), torch.autocast("cuda", torch.bfloat16):
            z, rate = bottleneck(features)
            (z.float().cumsum(1).sum() + rate.sum()).backward()
    lengths = z.float().movedim(1, -1).unflatten(-1, (-1, DIM)).norm(dim=-1)
    torch.testing.assert_close(lengths, torch.full_like(lengths, math.sqrt(DIM)), rtol=0.01, atol=0)
    assert features.grad.isfinite().all()


# Dynamo makes an instance of torch.autograd.Function to trace one.
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*Function'> should not be instantiated:DeprecationWarning")
class TestCompile:
    @pytest.fixture(autouse=True)
    def _reset(self):
        torch.compiler.reset()
        yield
        torch.compiler.reset()

    @pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
    @layouts
    def test_step(self, layout: str, training: bool) -> None:
        bottleneck, entries = made(layout, axis=1, radius="sqrt_dim")
        bottleneck.train(training)
        features = torch.randn(2, entries, 3, requires_grad=True)
        z, rate = torch.compile(bottleneck, fullgraph=True, backend="aot_eager")(features)
        expected, expected_rate = bottleneck(features)
        torch.testing.assert_close(rate, expected_rate)
        assert z.stride() == expected.stride()
        if not training:
            torch.testing.assert_close(z, expected)
        (z.cumsum(1).sum() + rate.sum()).backward()
        assert features.grad.isfinite().all()

    def test_autocast(self) -> None:
        bottleneck = SphericalBottleneck(FEATURES, DIM)
        compiled = torch.compile(bottleneck, fullgraph=True, backend="aot_eager")
        with torch.autocast("cpu", torch.bfloat16):
            z, rate = compiled(torch.randn(3, FEATURES, dtype=torch.bfloat16))
        assert (z.dtype, rate.dtype) == (torch.bfloat16, torch.float32)
        (z.float().cumsum(-1).sum() + rate.sum()).backward()
        assert bottleneck.head.linear.weight.grad.isfinite().all()


def trained(wrap: str, rank: int = 0, size: int = 1) -> list[Tensor]:
    """The weights after three steps on one half of the batch per process. The loss does not depend on the draws."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, FEATURES), SphericalBottleneck(FEATURES, 4, radius="sqrt_dim"))
    if wrap == "ddp":
        model = nn.parallel.DistributedDataParallel(model)
    elif wrap == "fsdp":
        from torch.distributed.fsdp import fully_shard

        for layer in model:
            fully_shard(layer)
        fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    x = torch.randn(8, 6, generator=torch.Generator().manual_seed(1)).chunk(size)[rank]
    for _ in range(3):
        z, rate = model(x)
        (z.square().sum(-1).mean() + (rate - 2).square().mean()).backward()
        optimizer.step()
        optimizer.zero_grad()
    weights = model.state_dict().values()
    return [weight.full_tensor() for weight in weights] if wrap == "fsdp" else list(weights)


def in_each_process(folder: Path) -> None:
    """The program that ``torchrun`` runs."""
    torch.distributed.init_process_group("gloo")
    rank, size = torch.distributed.get_rank(), torch.distributed.get_world_size()
    results = {wrap: trained(wrap, rank, size) for wrap in ("ddp", "fsdp")}
    torch.save(results, folder / f"rank{rank}.pt")
    torch.distributed.destroy_process_group()


@pytest.mark.slow
def test_two_processes(tmp_path: Path) -> None:
    """Data-parallel training, with whole and with sharded parameters, equals training on the whole batch."""
    if not (torch.distributed.is_available() and torch.distributed.is_gloo_available()):
        pytest.skip("torch was built without gloo")
    in_two_processes(Path(__file__), "in_each_process", tmp_path)
    expected = trained("alone")
    for rank in range(2):
        for found in torch.load(tmp_path / f"rank{rank}.pt").values():
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
