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

from helpers import sharded_training
from helpers.directions import unit
from helpers.examples import families
from helpers.processes import in_two_processes
from helpers.statistical import assert_mean
from helpers.waiting import waiting
from powerspherical import HypersphericalUniform
from powerspherical.nn import SphericalBottleneck, SphericalHead

FEATURES, DIM = 7, 5
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


@pytest.mark.slow
def test_changed_settings() -> None:
    """In training and in evaluation, compiled or not, the bottleneck follows its attributes."""
    bottleneck = SphericalBottleneck(None, DIM, "von_mises_fisher", maximum=torch.tensor(50.0))
    compiled = torch.compile(bottleneck, backend="aot_eager", fullgraph=True)
    features = torch.randn(6, DIM + 1, requires_grad=True)
    before = torch.zeros(6)
    for part, name, value in (
        (bottleneck, "radius", 1.0),
        (bottleneck.head, "maximum", 2.0),
        (bottleneck.head, "minimum", 1.0),
        (bottleneck, "radius", 3.0),
    ):
        setattr(part, name, value)
        runs = [bottleneck.train()(features), compiled(features), bottleneck.eval()(features)]
        for z, rate in runs:
            torch.testing.assert_close(z.norm(dim=-1), torch.full((6,), bottleneck.radius))
            torch.testing.assert_close(rate, runs[0][1])
        assert torch.allclose(runs[0][1], before) is (value == 3.0)  # the radius does not change the rate
        before = runs[0][1]


def test_another_head() -> None:
    """A head with its own forward pass, or with a layer of one's own, is called in training too."""
    pole = torch.eye(DIM)[-1]

    class Fixed(SphericalHead):
        def forward(self, features: Tensor, raw: object = None, *, outputs_only: bool = False) -> object:
            outputs = torch.cat((pole, torch.tensor([1e9]))).expand(*features.shape[:-1], DIM + 1)
            return outputs if outputs_only else self.distribution_from_outputs(outputs)

    own_layer = SphericalHead(None, DIM)
    own_layer.linear = nn.Linear(DIM + 1, DIM + 1)
    with torch.no_grad():
        own_layer.linear.weight.zero_()
        own_layer.linear.bias.copy_(torch.cat((pole, torch.tensor([1e9]))))
    bottleneck = SphericalBottleneck(None, DIM)
    for head in (Fixed(None, DIM), own_layer):
        bottleneck.head = head
        for mode in (True, False):
            z, _ = bottleneck.train(mode)(torch.randn(4, DIM + 1))
            torch.testing.assert_close(z, pole.expand(4, DIM), rtol=0, atol=0.02)


def test_a_wrong_number_of_outputs() -> None:
    bottleneck = SphericalBottleneck(FEATURES, DIM)
    bottleneck.head.linear = nn.Linear(FEATURES, DIM + 3)
    with pytest.raises(ValueError, match="the head has 8 outputs per sphere, not 6, for d = 5"):
        bottleneck(torch.randn(4, FEATURES))


class TestValues:
    @families
    def test_the_mode_and_the_rate(self, family: type) -> None:
        bottleneck = SphericalBottleneck(
            None, DIM, family.family.name, evaluate="mode", minimum=1.0, maximum=math.inf
        ).eval()
        outputs = torch.randn(3, 4, DIM + 1)
        z, rate = bottleneck(outputs)
        loc = nn.functional.normalize(outputs[..., :DIM], dim=-1)
        kappa = nn.functional.softplus(outputs[..., DIM]) + 1
        torch.testing.assert_close(z, loc)
        torch.testing.assert_close(rate, kl_divergence(family(loc, kappa), HypersphericalUniform(DIM)))

    @families
    def test_the_draws(self, family: type) -> None:
        bottleneck = SphericalBottleneck(None, DIM, family, concentration=6.0, radius=2.0)
        loc = unit(DIM, dtype=torch.float32)
        z, _ = bottleneck(3 * loc.expand(4000, DIM))
        torch.testing.assert_close(z.norm(dim=-1), torch.full((4000,), 2.0))
        assert_mean(z, 2 * family(loc, 6.0).mean, rounding=1e-6)

    def test_evaluation(self) -> None:
        features = torch.randn(6, FEATURES)
        for options, same in (({"evaluate": "mode"}, True), ({"evaluate": "draw"}, False), ({}, False)):
            bottleneck = SphericalBottleneck(FEATURES, DIM, **options)
            assert not bottleneck(features)[0].equal(bottleneck(features)[0])
            bottleneck.eval()
            assert bottleneck(features)[0].equal(bottleneck(features)[0]) is same
            bottleneck.evaluate = "mode"
            assert bottleneck(features)[0].equal(bottleneck.head(features).mode)

    @families
    def test_fixed_rates(self, family: type) -> None:
        vectors = torch.randn(4, 3 * DIM)
        _, rate = SphericalBottleneck(None, DIM, family, nats=4.0, product=3)(vectors)
        torch.testing.assert_close(rate, torch.full((4,), 12.0))
        for kappa in (2.0, 50.0):
            bottleneck = SphericalBottleneck(None, DIM, family, concentration=kappa, product=3)
            one = kl_divergence(family(torch.eye(DIM)[0], kappa), HypersphericalUniform(DIM))
            torch.testing.assert_close(bottleneck(vectors)[1], (3 * one).expand(4))

    def test_factors_of_a_product(self) -> None:
        """Each factor is a bottleneck of its own."""
        outputs = torch.randn(4, 3, DIM + 1)
        z, rate = SphericalBottleneck(None, DIM, product=3, evaluate="mode").eval()(outputs.flatten(-2))
        each_z, each_rate = SphericalBottleneck(None, DIM, evaluate="mode").eval()(outputs)
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
        bottleneck = SphericalBottleneck(None, DIM, axis=axis, product=product, evaluate="mode").eval()
        torch.testing.assert_close(bottleneck(v, r), bottleneck(joined))


class TestLayout:
    @layouts
    @pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3)], ids=str)
    def test_shapes_and_radius(self, layout: str, shape: tuple[int, ...]) -> None:
        bottleneck, entries = made(layout, radius="sqrt_dim")
        z, rate = bottleneck(torch.randn(*shape, entries))
        assert z.shape == (*shape, DIM * (bottleneck.head.product or 1))
        assert rate.shape == shape
        lengths = z.unflatten(-1, (-1, DIM)).norm(dim=-1)
        torch.testing.assert_close(lengths, torch.full_like(lengths, math.sqrt(DIM)))

    @layouts
    @pytest.mark.parametrize("axis", [1, -3])
    def test_channels_first(self, layout: str, axis: int) -> None:
        first, entries = made(layout, axis=axis, evaluate="mode")
        last, _ = made(layout, evaluate="mode")
        last.load_state_dict(first.state_dict())
        images = torch.randn(2, entries, 4, 3)
        z, rate = first.eval()(images)
        expected, expected_rate = last.eval()(images.permute(0, 2, 3, 1))
        assert rate.shape == (2, 4, 3)
        torch.testing.assert_close(z, expected.permute(0, 3, 1, 2))
        torch.testing.assert_close(rate, expected_rate)

    @pytest.mark.parametrize("training", [True, False])
    @pytest.mark.parametrize("axis", [1, -1])
    @layouts
    def test_results_are_no_views(self, layout: str, axis: int, training: bool) -> None:
        """``fully_shard`` warns about views, whose changes in place it cannot see."""
        bottleneck, entries = made(layout, axis=axis)
        features = torch.randn(2, 3, entries).movedim(-1, axis).contiguous()
        for result in bottleneck.train(training)(features):
            assert not result._is_view()
            assert result.is_contiguous()

    def test_channels_last_stay_last_in_memory(self) -> None:
        images = torch.randn(2, FEATURES, 4, 3).contiguous(memory_format=torch.channels_last)
        z, _ = SphericalBottleneck(FEATURES, DIM, axis=1)(images)
        assert z.is_contiguous(memory_format=torch.channels_last)


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
    def test_gradients(self, layout: str, family: type) -> None:
        bottleneck, entries = made(layout, family=family)
        for dtype, autocast in ((torch.bfloat16, True), (torch.float32, True), (torch.float32, False)):
            features = torch.randn(16, entries, dtype=dtype, requires_grad=True)
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                z, rate = bottleneck(features)
                loss = z.float().cumsum(-1).square().sum() + rate.sum()
            assert (z.dtype, rate.dtype) == (dtype, torch.float32)
            bottleneck.zero_grad()
            loss.backward()
            for tensor in (features, *bottleneck.parameters()):
                assert tensor.grad.dtype == tensor.dtype
                assert tensor.grad.isfinite().all()
                assert (tensor.grad != 0).any()


@pytest.mark.parametrize("noise", [False, True], ids=["draw", "noise"])
@layouts
def test_checkpointing_repeats_the_draws(layout: str, noise: bool) -> None:
    """With explicit noise, also without the state of the generator, which a checkpoint saves and restores."""
    bottleneck, entries = made(layout)
    layer = nn.Linear(entries, entries)
    inputs = torch.randn(8, entries)
    given = bottleneck.head(inputs).noise() if noise else None

    def step(x: Tensor) -> tuple[Tensor, Tensor]:
        return bottleneck(layer(x), noise=given)

    results = []
    for call in (lambda x: checkpoint(step, x, use_reentrant=False, preserve_rng_state=not noise), step):
        torch.manual_seed(1)
        z, rate = call(inputs)
        gradients = torch.autograd.grad(
            z.cumsum(-1).square().sum() + rate.sum(), (*layer.parameters(), *bottleneck.parameters())
        )
        results.append((z, rate, *gradients))
    torch.testing.assert_close(*results, rtol=0, atol=0)


class TestNoise:
    """``noise`` determines z, in training and in evaluation."""

    @pytest.mark.parametrize("axis", [1, -1])
    @layouts
    def test_z(self, layout: str, axis: int) -> None:
        bottleneck, entries = made(layout, axis=axis, radius=2.0)
        features = torch.randn(2, 3, entries).movedim(-1, axis)
        q = bottleneck.head(features)
        noise = q.noise()
        expected = 2 * q.rsample(noise=noise).flatten(2).movedim(-1, axis)
        for _ in range(2):
            z, rate = bottleneck(features, noise=noise)
            torch.testing.assert_close(z, expected)
            torch.testing.assert_close(rate, bottleneck(features)[1])
            bottleneck.eval()

    @pytest.mark.parametrize("shape", [(DIM,), (1, DIM), (3, 5, DIM), (5, DIM + 1)], ids=str)
    def test_other_shapes(self, shape: tuple[int, ...]) -> None:
        bottleneck = SphericalBottleneck(FEATURES, DIM)
        with pytest.raises(ValueError, match=rf"noise must have the shape \(5, {DIM}\) .*, got"):
            bottleneck(torch.randn(5, FEATURES), noise=torch.randn(shape))

    def test_generator(self) -> None:
        bottleneck, features = SphericalBottleneck(FEATURES, DIM), torch.randn(5, FEATURES)
        draws = [bottleneck(features, generator=torch.Generator().manual_seed(seed))[0] for seed in (3, 3, 4)]
        assert torch.equal(draws[0], draws[1])
        assert not torch.equal(draws[0], draws[2])


def test_copies_and_their_representation() -> None:
    bottleneck = SphericalBottleneck(FEATURES, DIM, radius="sqrt_dim", concentration=3.0)
    features = torch.randn(3, FEATURES)
    expected = bottleneck.eval()(features, generator=torch.Generator().manual_seed(3))
    for copied in (copy.deepcopy(bottleneck), pickle.loads(pickle.dumps(bottleneck))):
        found = copied(features, generator=torch.Generator().manual_seed(3))
        torch.testing.assert_close(found, expected, rtol=0, atol=0)
        assert "radius=2.23607, evaluate='draw'" in repr(copied)
        assert "dim=5, family='power_spherical', axis=-1, concentration=3" in repr(copied)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"radius": "sqrt"}, "radius must be a number > 0 or \"sqrt_dim\", got 'sqrt'"),
        ({"radius": 0.0}, "radius must be a number > 0"),
        ({"radius": math.nan}, "radius must be a number > 0"),
        ({"evaluate": "mean"}, 'evaluate must be "draw" or "mode", got \'mean\''),
    ],
    ids=str,
)
def test_bad_arguments(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SphericalBottleneck(**{"in_features": FEATURES, "dim": DIM, **options})


def test_unknown_options() -> None:
    message = "unknown option 'rate' of a bottleneck: choose from radius, evaluate, axis, minimum, .* product"
    with pytest.raises(TypeError, match=message):
        SphericalBottleneck(FEATURES, DIM, nats=3.0, rate=2.0)


class TestBadFeatures:
    @pytest.mark.parametrize("axis", [1, -1])
    @layouts
    def test_shapes_and_dtypes(self, layout: str, axis: int) -> None:
        bottleneck, entries = made(layout, axis=axis)
        for shape in ((), (entries,)[: axis == 1], (3, entries + 1)):
            with pytest.raises(ValueError, match=f"features must have {entries} entries along axis {axis}"):
                bottleneck(torch.zeros(shape))
        with pytest.raises(ValueError, match=r"features must have a floating-point dtype, got torch.int64"):
            bottleneck(torch.zeros(3, entries, dtype=torch.int64))

    @pytest.mark.parametrize(
        ("v", "r", "message"),
        [
            ((2, DIM + 1, 4), None, r"got the shape \(2, 6, 4\); axis 1 has 6 entries: .* axis=1"),
            ((3, DIM), None, r"got the shape \(3, 5\); each sphere takes 5 entries .* unless you pass raw"),
            ((3, DIM + 1), (3, 1), "features must have 5 entries along axis -1"),
            ((3, DIM), (3,), r"raw must have 1 entry along axis -1, got the shape \(3,\)"),
            ((3, DIM), (2, 1), r"got the shapes \(3, 5\) and \(2, 1\)"),
        ],
    )
    def test_without_a_layer(self, v: tuple[int, ...], r: tuple[int, ...] | None, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            SphericalBottleneck(None, DIM)(torch.ones(v), None if r is None else torch.ones(r))

    @pytest.mark.parametrize("layout", ["own layer", "fixed κ"])
    def test_raw_where_nothing_takes_it(self, layout: str) -> None:
        bottleneck, entries = made(layout)
        with pytest.raises(ValueError, match="raw is for heads with in_features=None"):
            bottleneck(torch.ones(3, entries), torch.ones(3, 1))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@families
@layouts
def test_cuda_without_a_sync(layout: str, family: type) -> None:
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
@pytest.mark.parametrize("layout", ["own layer", "fixed κ", "product"])
def test_compile(layout: str) -> None:
    """The second size makes the graph dynamic: it then serves for all."""
    torch.compiler.reset()
    bottleneck, entries = made(layout, axis=1, radius="sqrt_dim", evaluate="mode")
    compiled = torch.compile(bottleneck, fullgraph=True, backend="aot_eager")
    sizes = (2, 5, 9) if layout == "own layer" else (2,)
    for training, autocast, size in ((True, True, 2), (True, False, 2), *((False, False, n) for n in sizes)):
        bottleneck.train(training)
        features = torch.randn(size, entries, 3, requires_grad=True)
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            z, rate = compiled(features)
            expected, expected_rate = bottleneck(features)
        torch.testing.assert_close(rate, expected_rate)
        assert (z.stride(), z.dtype) == (expected.stride(), expected.dtype)
        gradient, other = (
            torch.autograd.grad(z.cumsum(1).sum() + rate.sum(), (features, *bottleneck.parameters()))
            for z, rate in ((z, rate), (expected, expected_rate))
        )
        assert all(x.isfinite().all() for x in gradient)
        if not training:
            torch.testing.assert_close((z, *gradient), (expected, *other))


@pytest.mark.parametrize("training", [True, False])
def test_parameters_are_checked_if_asked(training: bool) -> None:
    bottleneck = SphericalBottleneck(None, 3, validate_args=True).train(training)
    with pytest.raises(ValueError, match="NaN entries in 2 row"):
        bottleneck(torch.full((2, 4), math.nan))


@pytest.mark.slow
def test_two_processes(tmp_path: Path) -> None:
    """Data-parallel training, with whole and with sharded parameters, equals training on the whole batch."""
    paths = [tmp_path / f"rank{rank}.pt" for rank in range(2)]
    in_two_processes(Path(sharded_training.__file__), tmp_path, results=paths)
    expected = sharded_training.trained("alone")
    for path in paths:
        for found in torch.load(path).values():
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
