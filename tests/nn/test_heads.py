"""Heads: shapes, bounds of κ, half precision, degenerate features, compilation, copies."""

from __future__ import annotations

import copy
import math
import pickle

import pytest
import torch
from torch import nn
from torch.distributions import Distribution, Independent, kl_divergence

from helpers.examples import FAMILIES, families
from powerspherical import HypersphericalUniform
from powerspherical.nn import SphericalHead

FEATURES, DIM = 7, 5


def base(q: Distribution) -> Distribution:
    return q.base_dist if isinstance(q, Independent) else q


def assert_same(actual: Distribution, expected: Distribution, **tolerances: float) -> None:
    assert (actual.batch_shape, actual.event_shape) == (expected.batch_shape, expected.event_shape)
    torch.testing.assert_close(base(actual).loc, base(expected).loc, **tolerances)
    torch.testing.assert_close(base(actual).concentration, base(expected).concentration, **tolerances)


class TestShapes:
    @families
    @pytest.mark.parametrize("shape", [(), (0,), (4,), (2, 3)], ids=str)
    def test_batches(self, family: type, shape: tuple[int, ...]) -> None:
        q = SphericalHead(FEATURES, DIM, family)(torch.randn(*shape, FEATURES))
        assert type(q) is family
        assert (q.batch_shape, q.event_shape) == (shape, (DIM,))
        assert q.rsample((6,)).shape == (6, *shape, DIM)

    @families
    def test_product(self, family: type) -> None:
        """Each factor behaves as a separate head."""
        head = SphericalHead(FEATURES, DIM, family, product=3)
        features = torch.randn(4, FEATURES)
        q = head(features)
        assert isinstance(q, Independent)
        assert (q.batch_shape, q.event_shape) == ((4,), (3, DIM))
        for factor in range(3):
            single = SphericalHead(FEATURES, DIM, family)
            rows = slice(factor * (DIM + 1), (factor + 1) * (DIM + 1))
            single.load_state_dict({name: value[rows] for name, value in head.state_dict().items()})
            expected = single(features)
            torch.testing.assert_close(q.base_dist.loc[:, factor], expected.loc)
            torch.testing.assert_close(q.base_dist.concentration[:, factor], expected.concentration)

    def test_a_product_of_one_keeps_its_axis(self) -> None:
        assert SphericalHead(FEATURES, DIM, product=1)(torch.randn(2, FEATURES)).event_shape == (1, DIM)

    def test_representation(self) -> None:
        first, second = (
            SphericalHead(FEATURES, DIM),
            SphericalHead(FEATURES, DIM, FAMILIES[1], nats=2, product=3),
        )
        assert "dim=5, family='power_spherical', axis=-1, minimum=0, maximum=1e+06" in repr(first)
        assert "dim=5, family='von_mises_fisher', axis=-1, nats=2, product=3" in repr(second)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"dim": 1}, "dim .*≥ 2"),
            ({"family": "vmf"}, "unknown family 'vmf': choose one of power_spherical"),
            ({"family": HypersphericalUniform}, "family must be a name such as"),
            ({"minimum": -1.0}, "0 ≤ minimum < maximum, got -1"),
            ({"minimum": 5.0, "maximum": 5.0}, "minimum < maximum"),
            ({"minimum": math.nan}, "minimum < maximum"),
            ({"minimum": 1.0, "initial": 1.0}, "initial must lie between"),
            ({"nats": 0.0}, "nats must be a finite rate > 0"),
            ({"nats": math.inf}, "nats must be a finite rate > 0"),
            ({"nats": 1.0, "initial": 2.0}, "initial=2.0 has no meaning"),
            ({"concentration": -1.0}, "concentration must be a finite κ ≥ 0, got -1"),
            ({"concentration": math.inf}, "concentration must be a finite κ ≥ 0"),
            ({"concentration": 1.0, "nats": 2.0}, "concentration=1.0 fixes κ, so nats=2.0 has no meaning"),
            ({"concentration": 1.0, "initial": 2.0}, "concentration=1.0 fixes κ, so initial=2.0"),
            ({"in_features": None, "initial": 2.0}, "set the bias of your own layer"),
            ({"product": 0}, "product .*≥ 1"),
        ],
        ids=str,
    )
    def test_bad_arguments(self, options: dict, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            SphericalHead(**{"in_features": FEATURES, "dim": DIM, **options})

    @families
    @pytest.mark.parametrize("options", [{}, {"nats": 2.0, "product": 3}], ids=str)
    def test_names_and_copies(self, family: type, options: dict) -> None:
        head = SphericalHead(FEATURES, DIM, family, **options)
        named = SphericalHead(FEATURES, DIM, family.family.name, **options)
        named.load_state_dict(head.state_dict())
        features = torch.randn(4, FEATURES)
        for same in (named, copy.deepcopy(head), pickle.loads(pickle.dumps(head))):
            assert type(base(same(features))) is family
            assert repr(same) == repr(head)
            assert_same(same(features), head(features))


class TestSettings:
    """The bounds of κ can be changed. The other settings are read-only."""

    def test_bounds(self) -> None:
        outputs = torch.cat((torch.ones(3, DIM), torch.tensor([[-50.0], [0.0], [1e9]])), -1)
        head = SphericalHead(None, DIM)
        for minimum, maximum in ((2.0, 30.0), (0.0, 3.0), (1.0, math.inf), (2.0, torch.tensor(40.0))):
            head.minimum, head.maximum = 0.0, maximum
            head.minimum = minimum
            fresh = SphericalHead(None, DIM, minimum=minimum, maximum=maximum)
            for one in (head, copy.deepcopy(head), pickle.loads(pickle.dumps(head))):
                assert (one.minimum, one.maximum, repr(one)) == (minimum, maximum, repr(fresh))
                assert_same(one(outputs), fresh(outputs))

    def test_bad_bounds(self) -> None:
        """They are not set."""
        head = SphericalHead(None, DIM, minimum=1.0, maximum=9.0)
        for name, value in (("minimum", 9.0), ("minimum", -1.0), ("maximum", 1.0), ("maximum", math.nan)):
            with pytest.raises(ValueError, match="the bounds of κ must satisfy 0 ≤ minimum < maximum, got"):
                setattr(head, name, value)
        assert (head.minimum, head.maximum) == (1.0, 9.0)

    def test_the_others(self) -> None:
        fixed = "nats", "concentration", "family", "distribution", "dim", "axis", "product", "in_features"
        for options in ({}, {"nats": 2.0}, {"concentration": 2.0}):
            head = SphericalHead(FEATURES, DIM, **options)
            before = repr(head)
            for name in fixed:
                message = f"{name} of a SphericalHead cannot be changed .*a new head"
                with pytest.raises(AttributeError, match=message):
                    setattr(head, name, 5)
            assert repr(head) == before


class TestConcentration:
    def test_the_layer_outputs_v_first_then_r(self) -> None:
        head, features = SphericalHead(FEATURES, DIM), torch.randn(3, FEATURES)
        outputs = features @ head.linear.weight.T + head.linear.bias
        q = head(features)
        torch.testing.assert_close(q.loc, nn.functional.normalize(outputs[:, :DIM], dim=-1))
        torch.testing.assert_close(q.concentration, nn.functional.softplus(outputs[:, DIM]))

    @pytest.mark.parametrize("initial", [0.7, 12.0, 5e4])
    def test_initial(self, initial: float) -> None:
        head = SphericalHead(FEATURES, DIM, initial=initial, minimum=0.5, maximum=1e5, product=3)
        kappa = head(torch.zeros(2, FEATURES)).base_dist.concentration
        torch.testing.assert_close(kappa, torch.full((2, 3), initial), rtol=1e-5, atol=0)

    @families
    @pytest.mark.parametrize("nats", [0.01, 4.0, 60.0])
    def test_rate(self, family: type, nats: float) -> None:
        head = SphericalHead(FEATURES, DIM, family, nats=nats)
        assert head.linear.out_features == DIM
        for dtype, rtol in ((torch.float32, 3e-6), (torch.float64, 1e-12)):
            q = head.to(dtype)(torch.randn(3, FEATURES, dtype=dtype))
            rate = kl_divergence(q, HypersphericalUniform(DIM))
            torch.testing.assert_close(rate, torch.full((3,), nats, dtype=dtype), rtol=rtol, atol=0)


class TestDirections:
    @families
    @pytest.mark.parametrize("product", [None, 2])
    def test_zero_features(self, family: type, product: int | None) -> None:
        """A layer without bias and all-zero features, as after a dead ReLU."""
        head = SphericalHead(FEATURES, DIM, family, product=product, validate_args=True)
        nn.init.zeros_(head.linear.bias)
        features = torch.zeros(4, FEATURES, requires_grad=True)
        q = head(features)
        assert (base(q).loc == torch.eye(DIM)[0]).all()
        (q.rsample().cumsum(-1).sum() + q.entropy().sum()).backward()
        for gradient in (features.grad, head.linear.weight.grad, head.linear.bias.grad):
            assert gradient.isfinite().all()
        assert head.linear.bias.grad.abs().sum() > 0


class TestPrecision:
    @families
    @pytest.mark.parametrize("options", [{}, {"nats": 3.0}, {"product": 2}], ids=str)
    def test_autocast(self, family: type, options: dict) -> None:
        head = SphericalHead(FEATURES, DIM, family, validate_args=True, **options)
        features = torch.randn(3, FEATURES, dtype=torch.bfloat16)
        with torch.autocast("cpu", torch.bfloat16):
            q = head(features)
            z = q.rsample()
            assert base(q).entropy().dtype == torch.float32
        assert base(q).loc.dtype == base(q).concentration.dtype == z.dtype == torch.float32
        torch.testing.assert_close(base(q).loc.norm(dim=-1), torch.ones(base(q).batch_shape))
        assert_same(q, head(features.float()), rtol=0.02, atol=0.02)
        z.cumsum(-1).sum().backward()
        assert head.linear.weight.grad.dtype == torch.float32

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64], ids=str)
    @pytest.mark.parametrize("options", [{}, {"nats": 3.0}], ids=str)
    def test_dtypes(self, dtype: torch.dtype, options: dict) -> None:
        head = SphericalHead(FEATURES, DIM, validate_args=True, **options).to(dtype)
        q = head(torch.randn(3, FEATURES, dtype=dtype))
        assert q.loc.dtype == q.concentration.dtype == torch.promote_types(dtype, torch.float32)


def test_meta_device() -> None:
    with torch.device("meta"):
        head = SphericalHead(FEATURES, DIM, nats=3.0)
    assert set(head.state_dict()) == {"linear.weight", "linear.bias"}
    q = head.to_empty(device="cpu")(torch.zeros(1, FEATURES))
    assert q.concentration.device.type == "cpu"
