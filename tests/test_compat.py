"""The names of other packages: their arguments, shapes and conventions, checked against independent formulas."""

import copy
import math
import pickle

import pytest
import scipy.special
import scipy.stats
import torch
from torch.distributions import Beta, kl_divergence

import powerspherical
from helpers.examples import directions
from helpers.statistical import assert_mean
from powerspherical import compat

DOUBLE = torch.float64
LOC, X = directions(6, 5), directions(6, 5, seed=2)
KAPPA = torch.tensor([0.1, 1.0, 3.0, 10.0, 50.0, 300.0], dtype=DOUBLE)


class TestPowerSpherical:
    def test_the_log_normalizer_is_a_method_and_is_added_to_the_density(self):
        p = compat.PowerSpherical(LOC, KAPPA)
        alpha, total = 2 + KAPPA, 4 + KAPPA
        area = total * math.log(2) + 2 * math.log(math.pi) + torch.lgamma(alpha) - torch.lgamma(total)
        torch.testing.assert_close(p.log_normalizer(), -area)
        expected = p.log_normalizer() + p.scale * torch.log1p((LOC * X).sum(-1))
        torch.testing.assert_close(p.log_prob(X), expected)

    def test_parameters_and_the_parts_of_a_draw(self):
        p = compat.PowerSpherical(loc=LOC, scale=KAPPA, validate_args=True)
        assert p.scale is p.concentration
        t, s = p.base_dist
        assert (p.base_dist.marginal_t.dim, s.dim, s.dtype, s.device.type) == (5, 4, DOUBLE, "cpu")
        torch.testing.assert_close(t.base_dist.concentration1, KAPPA + 2)
        torch.testing.assert_close(t.base_dist.concentration0, torch.full_like(KAPPA, 2.0))
        torch.testing.assert_close(p.mean, t.mean.unsqueeze(-1) * LOC)
        assert compat.PowerSpherical(directions(2), 1.0).base_dist.marginal_s is None

    @pytest.mark.parametrize("dim", [2, 5])
    def test_draws_of_the_parts(self, dim):
        """The cosine and the direction in the tangent space, as the original joins them before its transforms."""
        kappa = KAPPA[2:4].requires_grad_()
        p = compat.PowerSpherical(directions(2, dim), kappa)
        assert p.base_dist.rsample().shape == (2, dim)
        parts = p.base_dist.rsample((4000,))
        assert parts.shape == (4000, 2, dim)
        t, direction = parts[..., 0], parts[..., 1:]
        assert_mean(t, p.marginal.mean)
        assert_mean(direction, 0.0)
        torch.testing.assert_close(direction.norm(dim=-1), torch.ones_like(t))
        (gradient,) = torch.autograd.grad(t.sum(), kappa)
        assert (gradient > 0).all()

    def test_the_variance_is_the_covariance_matrix(self):
        p = compat.PowerSpherical(LOC[3], KAPPA[3])
        t, ratio = p.base_dist.marginal_t.variance, (KAPPA[3] + 4) / 4
        outer = LOC[3].outer(LOC[3])
        torch.testing.assert_close(p.variance, t * ((1 - ratio) * outer + ratio * torch.eye(5, dtype=DOUBLE)))
        torch.testing.assert_close(p.stddev, p.variance.sqrt(), equal_nan=True)
        assert compat.PowerSpherical(LOC, KAPPA).variance.shape == (6, 5, 5)

    @pytest.mark.parametrize("shape", [(6,), (6, 1), (1,), ()], ids=str)
    def test_one_scale_per_vector_in_any_shape(self, shape):
        scale = torch.full(shape, 7.0, dtype=DOUBLE)
        assert compat.VonMisesFisher(LOC, scale).batch_shape == (6,)
        p = compat.PowerSpherical(LOC, scale)
        assert p.batch_shape == p.scale.shape == p.entropy().shape == (6,)
        assert p.rsample((3,)).shape == (3, 6, 5)
        assert kl_divergence(p, compat.HypersphericalUniform(5)).shape == (6,)

    def test_a_column_of_another_length_still_gives_all_pairs(self):
        p = compat.PowerSpherical(LOC, torch.ones(2, 1, dtype=DOUBLE))
        assert p.batch_shape == (2, 6)
        assert compat.PowerSpherical(LOC[:1], torch.ones(1, 1, dtype=DOUBLE)).batch_shape == (1,)
        assert compat.PowerSpherical(LOC[0], torch.ones(1, dtype=DOUBLE)).batch_shape == (1,)

    def test_gradients_reach_a_column(self):
        scale = torch.full((6, 1), 9.0, dtype=DOUBLE, requires_grad=True)
        p = compat.PowerSpherical(LOC, scale)
        (p.rsample() @ LOC[0] + p.entropy()).sum().backward()
        assert scale.grad.shape == (6, 1)
        assert (scale.grad != 0).all()

    @pytest.mark.slow
    def test_compiled_as_one_graph(self):
        @torch.compile(fullgraph=True, backend="aot_eager")
        def step(loc, scale):
            q = compat.PowerSpherical(loc, scale)
            rate = kl_divergence(q, compat.HypersphericalUniform(5))
            return q.rsample(), rate, q.log_normalizer()

        x, rate, normalizer = step(LOC, KAPPA.unsqueeze(-1))
        q = compat.PowerSpherical(LOC, KAPPA)
        assert x.shape == (6, 5)
        torch.testing.assert_close(rate, kl_divergence(q, compat.HypersphericalUniform(5)))
        torch.testing.assert_close(normalizer, q.log_normalizer())

    def test_integer_scales(self):
        p = compat.PowerSpherical(LOC, torch.arange(1, 7))
        assert p.scale.dtype == p.rsample().dtype == DOUBLE
        assert compat.PowerSpherical(LOC, 3).scale.tolist() == [3.0] * 6

    def test_everything_else_is_ours(self):
        p, ours = compat.PowerSpherical(LOC, KAPPA), powerspherical.PowerSpherical(LOC, KAPPA)
        assert isinstance(p, powerspherical.PowerSpherical)
        for name in ("mean", "mode", "covariance_matrix"):
            torch.testing.assert_close(getattr(p, name), getattr(ours, name), rtol=0, atol=0)
        torch.testing.assert_close(p.entropy(), ours.entropy(), rtol=0, atol=0)
        assert (kl_divergence(p, ours) == 0).all()
        torch.manual_seed(3)
        x = p.sample((4,))
        torch.manual_seed(3)
        torch.testing.assert_close(x, ours.sample((4,)), rtol=0, atol=0)
        found = compat.PowerSpherical.fit(ours.sample((50,)))
        assert type(found) is compat.PowerSpherical
        assert type(compat.PowerSpherical.from_kl(LOC, 2.0)) is compat.PowerSpherical
        q = p.closest_von_mises_fisher()
        torch.testing.assert_close(q.mean, p.mean)

    def test_what_is_not_a_unit_vector_is_refused(self):
        with pytest.raises(ValueError, match="must hold unit vectors"):
            compat.PowerSpherical(torch.ones(6, 5, dtype=DOUBLE), KAPPA, validate_args=True)
        with pytest.raises(ValueError, match=r"loc must be a torch\.Tensor"):
            compat.PowerSpherical([1.0, 0.0], KAPPA)


class TestMarginal:
    def test_a_scaled_beta_variable(self):
        t = compat.MarginalTDistribution(5, KAPPA)
        z = scipy.stats.beta(2 + KAPPA.numpy(), 2, loc=-1, scale=2)
        torch.testing.assert_close(t.mean, torch.from_numpy(z.mean()))
        torch.testing.assert_close(t.variance, torch.from_numpy(z.var()))
        torch.testing.assert_close(t.stddev, torch.from_numpy(z.std()))
        torch.testing.assert_close(t.entropy(), torch.from_numpy(z.entropy()))
        torch.testing.assert_close(t.log_prob(0.3 * torch.ones_like(KAPPA)), torch.from_numpy(z.logpdf(0.3)))
        assert t.rsample((2,)).shape == (2, 6)
        assert isinstance(t.base_dist, Beta)

    def test_arguments(self):
        t = compat.MarginalTDistribution(torch.tensor(5), torch.tensor([1, 2]), validate_args=True)
        assert (t.dim, t.scale.tolist(), t.scale.dtype) == (5, [1.0, 2.0], torch.float32)


class TestUniform:
    def test_positional_device_and_dtype(self):
        u = compat.HypersphericalUniform(4, "cpu", DOUBLE)
        assert (u.dim, u.device, u.dtype) == (4, "cpu", DOUBLE)
        assert compat.HypersphericalUniform(4, torch.device("cpu")).expand((2,)).device == torch.device("cpu")
        assert u.sample((2, 3)).dtype == DOUBLE
        torch.testing.assert_close(u.entropy(), torch.tensor(math.log(2 * math.pi**2), dtype=DOUBLE))
        assert compat.HypersphericalUniform(torch.tensor(4)).sample().shape == (4,)

    def test_draws_are_float32_whatever_the_default(self):
        torch.set_default_dtype(DOUBLE)
        try:
            assert compat.HypersphericalUniform(4).dtype == torch.float32
            assert compat.hyperspherical_uniform(4).dtype == DOUBLE
        finally:
            torch.set_default_dtype(torch.float32)

    def test_the_other_convention_counts_the_sphere_s_own_dimensions(self):
        u = compat.hyperspherical_uniform(4, device="cpu")
        assert isinstance(u, compat.hyperspherical_uniform)
        assert (u.dim, u.device, u.dtype) == (5, torch.device("cpu"), torch.float32)
        assert u.sample((3,)).shape == u.sample(shape=3).shape == u.rsample(shape=(3,)).shape == (3, 5)
        area = 5 * math.pi**2.5 / math.gamma(3.5)
        torch.testing.assert_close(u.log_prob(LOC), torch.full((6,), -math.log(area), dtype=DOUBLE))

    def test_a_wrong_dimension_is_refused(self):
        with pytest.raises(ValueError, match="dim must be an integer"):
            compat.HypersphericalUniform(torch.tensor(4.0))


class TestVonMisesFisher:
    def test_columns(self):
        q = compat.VonMisesFisher(LOC, KAPPA.unsqueeze(-1), validate_args=True, k=10)
        assert q.scale.shape == (6, 1)
        assert compat.VonMisesFisher(LOC[0], torch.ones(1)).batch_shape == ()
        assert (
            q.rsample(7).shape
            == q.rsample(shape=7).shape
            == q.sample(shape=torch.Size([7])).shape
            == (7, 6, 5)
        )
        assert (q.device, q.dtype, q.k) == (torch.device("cpu"), DOUBLE, 10)
        assert q.expand((2, 6)).k == 10
        assert torch.equal(q.stddev, q.scale)
        torch.manual_seed(1)
        x = q.sample(shape=3, noise=None)
        assert torch.equal(x, q.sample(3, generator=torch.Generator().manual_seed(1)))
        ratio = scipy.special.ive(2.5, KAPPA.numpy()) / scipy.special.ive(1.5, KAPPA.numpy())
        torch.testing.assert_close(q.mean, torch.from_numpy(ratio).unsqueeze(-1) * LOC)
        rate = kl_divergence(q, compat.hyperspherical_uniform(4))
        torch.testing.assert_close(rate, compat.hyperspherical_uniform(4).entropy().double() - q.entropy())


EXAMPLES = [
    compat.HypersphericalUniform(5),
    compat.MarginalTDistribution(5, torch.tensor(3.0)),
    compat.PowerSpherical(torch.eye(5)[0], 3.0),
    compat.VonMisesFisher(torch.eye(5)[0], torch.ones(1)),
    compat.hyperspherical_uniform(4),
]


@pytest.mark.parametrize("p", EXAMPLES, ids=lambda p: type(p).__name__)
def test_expanding_and_copying(p):
    wide = p.expand((3,))
    assert type(wide) is type(p)
    assert wide.sample().shape == (3, *p.event_shape)
    for same in (pickle.loads(pickle.dumps(p)), copy.deepcopy(p)):
        torch.testing.assert_close(same.entropy(), p.entropy())
