"""Fits: the maximum of the likelihood, found; the truth, recovered; hard data, survived."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.distributions import Distribution
from torch.func import grad, hessian
from torch.nn.functional import normalize

from helpers.examples import BRAIN, DOUBLE, FAMILIES, FLOAT, IDS, directions, dtypes, families
from powerspherical import ConvergenceWarning, PowerSpherical, SphericalCauchy, VonMisesFisher
from powerspherical.families import derived
from powerspherical.special import bessel_ratio

ROWS = 20_000


def total_log_prob(p: Distribution, x: Tensor) -> Tensor:
    return p.log_prob(x).sum(0)


exponential = pytest.mark.parametrize("family", FAMILIES[:2], ids=IDS[:2])


class TestRecovery:
    @exponential
    def test_the_correction_recovers_weak_signals(self, family: type) -> None:
        """To five standard errors. Without it κ is overstated, by five on average, and the direction is the same."""
        truth = family(directions(100), 0.5)
        x = truth.sample((ROWS,))
        plain, corrected = family.fit(x), family.fit(x, bias_correction=True)
        variance = derived.information(family.family, truth.concentration, 100)
        error = 5 / (ROWS * variance).sqrt()
        assert (corrected.concentration - 0.5).abs() < error
        assert plain.concentration - 0.5 > error / 2
        torch.testing.assert_close(plain.loc, corrected.loc)

    @pytest.mark.slow
    @exponential
    @pytest.mark.parametrize("length", [0.3, 0.6, 0.9])
    @pytest.mark.parametrize("rows", [2, 5, 20])
    def test_few_vectors_in_many_dimensions(self, family: type, length: float, rows: int) -> None:
        """The mean corrected κ over 200 samples is right to five of its standard errors, or to 1 %."""
        truth = family.from_mean_length(directions(384), length)
        x = truth.expand((200,)).sample((rows,))
        found = family.fit(x, bias_correction=True).concentration / truth.concentration
        assert abs(found.mean() - 1) < 0.01 + 5 * found.std() / 200**0.5
        assert family.fit(x).concentration.mean() > 1.05 * truth.concentration

    @pytest.mark.slow
    @pytest.mark.filterwarnings("ignore::powerspherical.ConvergenceWarning")
    @pytest.mark.parametrize(
        ("family", "length", "least", "most"),
        [
            (PowerSpherical, 0.9, 0.04, 0.08),
            (VonMisesFisher, 0.6, 0.04, 0.08),
            (PowerSpherical, 0.3, 0.10, 0.14),
            (VonMisesFisher, 0.3, 0.0, 0.02),
        ],
    )
    def test_few_vectors_in_three_dimensions(
        self, family: type, length: float, least: float, most: float
    ) -> None:
        """The remaining bias is that of the docstring and of docs/few_vectors.md. Its standard error is below 0.5 %."""
        truth = family.from_mean_length(directions(3), length)
        x = truth.expand((20_000,)).sample((20,))
        found = family.fit(x, bias_correction=True).concentration / truth.concentration
        assert found.std() / 20_000**0.5 < 5e-3
        assert least < found.mean() - 1 < most

    @exponential
    def test_orthogonal_vectors_have_no_common_direction(self, family: type) -> None:
        """Their mean inner product is zero: nearly all of the maximum-likelihood κ is bias."""
        x = torch.eye(400, dtype=DOUBLE)[:5]
        assert family.fit(x).concentration > 100
        assert family.fit(x, bias_correction=True).concentration < 0.1 * family.fit(x).concentration

    @pytest.mark.slow
    @exponential
    def test_uniform_points_are_told_from_none(self, family: type) -> None:
        """κ = 0 for about half of all uniform samples, and none far from it."""
        x = family(directions(50), 0.0).sample((200, 100))
        corrected = family.fit(x, bias_correction=True).concentration
        assert 0.2 < (corrected == 0).double().mean() < 0.8
        assert (corrected <= family.fit(x).concentration).all()

    @pytest.mark.parametrize("dim", [100, 768, 2048])
    @pytest.mark.parametrize("kappa", [100.0, 5000.0])
    def test_von_mises_fisher_in_many_dimensions(self, dim: int, kappa: float) -> None:
        """Where scipy.stats.vonmises_fisher.fit returns 1e-8."""
        x = VonMisesFisher(directions(dim), kappa).sample((2000,))
        found = VonMisesFisher.fit(x)
        length = torch.linalg.vector_norm(x.mean(0))
        torch.testing.assert_close(bessel_ratio(found.concentration, dim), length, rtol=1e-12, atol=0)
        torch.testing.assert_close(found.loc, x.mean(0) / length)


class TestMaximum:
    @dtypes
    @pytest.mark.parametrize("rows", [2, 3])
    def test_a_million_dimensions(self, dtype: torch.dtype, rows: int) -> None:
        """The direction of the mean, which needs no search and so never warns, with a norm of one to all digits."""
        x = directions(rows, 10**6, dtype=dtype)
        found = VonMisesFisher.fit(x)
        expected = normalize(x.double().mean(0), dim=-1)
        error = torch.linalg.vector_norm(found.loc.double() - expected)
        assert error <= 20 * torch.finfo(dtype).eps
        PowerSpherical.fit(x)

    @dtypes
    @pytest.mark.parametrize("dim", [3, 20])
    @pytest.mark.parametrize("stretch", [1.0, 6.0, 40.0])
    def test_the_direction(self, dtype: torch.dtype, dim: int, stretch: float) -> None:
        """Of Power Spherical, against Newton's method on the mean of log(1+t), in coordinates of the tangent space."""
        noise = torch.randn(300, dim, dtype=DOUBLE)
        noise[:, 0] += 1.0
        noise[:, 1] *= stretch
        x = normalize(noise, dim=-1).to(dtype)
        found = normalize(PowerSpherical.fit(x).loc.double(), dim=-1)
        x, loc = normalize(x.double(), dim=-1), found
        for _ in range(4):
            basis = torch.linalg.svd(loc.unsqueeze(0)).Vh[1:]

            def objective(shift: Tensor, loc: Tensor = loc, basis: Tensor = basis) -> Tensor:
                return torch.log1p(x @ normalize(loc + shift @ basis, dim=-1)).mean()

            zero = torch.zeros(dim - 1, dtype=DOUBLE)
            step = torch.linalg.solve(hessian(objective)(zero), grad(objective)(zero))
            loc = normalize(loc - step @ basis, dim=-1)
        assert (found - loc).norm() <= {DOUBLE: 3e-11, FLOAT: 1e-4}[dtype]

    @families
    @pytest.mark.parametrize("dim", [3, 8, 40])
    @pytest.mark.parametrize("stretch", [1.0, 6.0])
    def test_no_neighbour_is_likelier(self, family: type, dim: int, stretch: float) -> None:
        """Also for points that lie far from evenly around their mean. The gradient vanishes."""
        noise = torch.randn(300, dim, dtype=DOUBLE)
        noise[:, 0] += 1.0
        noise[:, 1] *= stretch
        x = normalize(noise, dim=-1)
        found = family.fit(x)
        loc, kappa = found.loc.requires_grad_(), found.concentration.requires_grad_()
        top = total_log_prob(family(loc, kappa), x)
        in_loc, in_kappa = torch.autograd.grad(top, (loc, kappa))
        assert in_loc.norm() < 1e-8 * len(x)
        assert in_kappa.abs() < 1e-9 * len(x)
        around = normalize(loc + 1e-3 * torch.randn(200, dim, dtype=DOUBLE), dim=-1)
        for others in (family(around, kappa), family(loc, torch.stack((0.99 * kappa, 1.01 * kappa)))):
            assert (total_log_prob(others, x.unsqueeze(1)) < top).all()

    @families
    def test_batches_are_fitted_one_by_one(self, family: type) -> None:
        x = family(directions(3, 2, 5), torch.tensor([1.0, 30.0], dtype=DOUBLE)).sample((200,))
        weights = torch.rand(200, 3, 2, dtype=DOUBLE)
        together = family.fit(x, weights)
        assert together.batch_shape == (3, 2)
        for i in range(3):
            for j in range(2):
                alone = family.fit(x[:, i, j], weights[:, i, j])
                torch.testing.assert_close(together.loc[i, j], alone.loc, rtol=0, atol=1e-10)
                torch.testing.assert_close(together.concentration[i, j], alone.concentration)

    @families
    def test_weights_stand_for_repetitions(self, family: type) -> None:
        x = family(directions(4), 3.0).sample((60,))
        times = torch.randint(0, 4, (60,))
        weighted = family.fit(x, 5e307 * times.double())  # of which four add up to infinity
        repeated = family.fit(x.repeat_interleave(times, 0))
        torch.testing.assert_close(weighted.loc, repeated.loc)
        torch.testing.assert_close(weighted.concentration, repeated.concentration)

    @families
    def test_dtypes(self, family: type) -> None:
        """float32 agrees with float64; half precision is computed in float32; autocast changes nothing."""
        x = family(directions(16, dtype=FLOAT), 2000.0).sample((1000,))
        found, exact = family.fit(x), family.fit(normalize(x.double(), dim=-1))
        torch.testing.assert_close(found.loc.double(), exact.loc, rtol=0, atol=1e-5)
        torch.testing.assert_close(found.concentration.double(), exact.concentration, rtol=1e-5, atol=0)
        with torch.autocast("cpu", dtype=BRAIN):
            again = family.fit(x)
        assert torch.equal(again.loc, found.loc)
        assert torch.equal(again.concentration, found.concentration)
        near = family(directions(8, dtype=FLOAT), 20.0).sample((500,))
        rounded = family.fit(near.to(BRAIN))
        assert rounded.loc.dtype == rounded.concentration.dtype == FLOAT
        torch.testing.assert_close(rounded.concentration, family.fit(near).concentration, rtol=0.02, atol=0)


def bands(dim: int, offset: float) -> Tensor:
    """Points that spread 40 times as far along one axis, where the first step is far from Newton's."""
    noise = torch.randn(100, 16, dim, dtype=DOUBLE, generator=torch.Generator().manual_seed(dim))
    noise[..., 0] += offset
    noise[..., 1] *= 40
    return normalize(noise, dim=-1)


class TestSafeguards:
    """Of the search for the direction of Power Spherical, and of the correction."""

    @pytest.mark.parametrize("dim", [2, 3, 10, 100])
    @pytest.mark.parametrize("offset", [0.0, 1.0])
    def test_bands_settle(self, dim: int, offset: float) -> None:
        """Without a warning, at a stationary point of the mean of log(1+t), above the start of the search."""
        x = bands(dim, offset)
        start = normalize(x.mean(0), dim=-1)
        loc = PowerSpherical.fit(x).loc.requires_grad_()
        found, first = (PowerSpherical(m, 1.0).log_prob(x).mean(0) for m in (loc, start))
        assert (found > first).all()
        (slope,) = torch.autograd.grad(found.sum(), loc)
        assert slope.norm(dim=-1).max() < 1e-8

    @pytest.mark.filterwarnings("ignore::powerspherical.ConvergenceWarning")
    def test_no_step_lowers_the_mean_statistic(self) -> None:
        """With which the concentration rises."""
        x = bands(30, 0.0)
        kappas = torch.stack([PowerSpherical.fit(x, max_iter=steps).concentration for steps in range(1, 25)])
        assert (kappas.diff(dim=0) > -1e-9).all()

    @exponential
    def test_no_signal_is_no_concentration(self, family: type) -> None:
        """Where the mean statistic is that of the uniform or less, as at a lesser maximum."""
        uniform = derived.mean_score(family.family, torch.zeros(3, dtype=DOUBLE), 4)
        mean = uniform - torch.tensor([0.0, 1e-9, 0.1], dtype=DOUBLE)
        assert (derived.from_mean_score(family.family, mean, 4) == 0).all()


def hard_data(dtype: torch.dtype) -> dict[str, Tensor]:
    e = torch.eye(5, dtype=dtype)
    point = directions(5, dtype=dtype)
    return {
        "one point": point.expand(1, 5),
        "duplicates": point.expand(7, 5),
        "two points": directions(2, 5, dtype=dtype),
        "fewer points than dimensions": directions(3, 5, dtype=dtype),
        "antipodal pair": torch.stack([point, -point]),
        "antipodal pairs": torch.cat([e, -e]),
        "one against many": torch.cat([point.expand(9, 5), -point.expand(1, 5)]),
        "uniform": directions(1000, 5, dtype=dtype),
        "a great circle": torch.nn.functional.pad(directions(200, 2, dtype=dtype), (0, 3)),
        "nearly one point": normalize(point + 1e-7 * directions(9, 5, dtype=dtype), dim=-1),
    }


@pytest.mark.filterwarnings("ignore::powerspherical.ConvergenceWarning")
class TestHardData:
    @families
    @dtypes
    @pytest.mark.parametrize("name", hard_data(DOUBLE))
    @pytest.mark.parametrize("bias_correction", [False, True])
    def test_finite(self, family: type, dtype: torch.dtype, name: str, bias_correction: bool) -> None:
        x = hard_data(dtype)[name]
        if family is SphericalCauchy and bias_correction:
            with pytest.raises(ValueError, match="bias_correction works for exponential families only"):
                family.fit(x, bias_correction=True)
            return
        found = family.fit(x, bias_correction=bias_correction)
        assert found.loc.dtype == found.concentration.dtype == dtype
        assert family.support.check(found.loc).all()
        limit = 2 * {DOUBLE: 1e9, FLOAT: 1e6}[dtype]  # (d-1)/2 = 2
        assert 0 <= found.concentration <= 1.01 * limit
        assert not torch.isnan(found.log_prob(x)).any()
        if name in ("one point", "duplicates", "nearly one point"):
            least = 0.4 * limit  # the correction for one point takes half
            if family is SphericalCauchy and name == "nearly one point":
                least = min(least, 1e7)  # angles of 1e-7 have their maximum near κ = 2e7, below the limit
            assert found.concentration > least
            torch.testing.assert_close(found.loc, x[0], rtol=0, atol=1e-6)

    @families
    def test_a_circle_of_uniform_points(self, family: type) -> None:
        assert family.fit(directions(999, 2)).concentration < 0.5

    @pytest.mark.filterwarnings("error::powerspherical.ConvergenceWarning")
    def test_the_search_settles(self) -> None:
        """Also where there is no direction for von Mises–Fisher. Power Spherical has one, far from all points."""
        data = hard_data(DOUBLE)
        PowerSpherical.fit(data["fewer points than dimensions"])
        for name in ("antipodal pair", "antipodal pairs"):
            assert VonMisesFisher.fit(data[name]).concentration < 1e-6
        found = PowerSpherical.fit(data["antipodal pairs"])
        assert found.concentration > 0.05
        torch.testing.assert_close(found.loc.abs(), torch.full((5,), 0.2**0.5, dtype=DOUBLE))

    @families
    @pytest.mark.parametrize("weights", [None, torch.ones(4, 0, dtype=DOUBLE)], ids=["plain", "weighted"])
    def test_an_empty_batch(self, family: type, weights: Tensor | None) -> None:
        assert family.fit(torch.ones(4, 0, 3, dtype=DOUBLE), weights).batch_shape == (0,)


class TestArguments:
    @families
    def test_a_subclass_gets_its_own_kind(self, family: type) -> None:
        class Derived(family):
            pass

        assert type(Derived.fit(directions(5, 3))) is Derived

    @families
    @pytest.mark.parametrize(
        ("x", "weights", "message"),
        [
            ([[1.0, 0.0]], None, r"x must be a torch\.Tensor"),
            (torch.ones(3), None, r"x must hold at least one point, of shape \(n, …, d\).*\(3,\)"),
            (torch.ones(0, 3), None, r"x must hold at least one point.*\(0, 3\)"),
            (2 * directions(4, 3), None, r"x of shape \(4, 3\).*worst norm is 2,.*normalize\(x, dim=-1\)"),
            (directions(4, 3) * math.nan, None, r"x of shape \(4, 3\) has NaN"),
            (directions(4, 3), torch.ones(3), r"weights must have the shape \(4,\).*got \(3,\)"),
            (directions(4, 3), [1.0] * 4, r"weights must be a torch\.Tensor"),
            (directions(2, 3), torch.tensor([1.0, -2.0]), r"weights of shape \(2,\).*≥ 0.*such as -2"),
            (directions(2, 3), torch.tensor([1.0, math.nan]), r"weights.*finite.*such as nan"),
            (directions(2, 3), torch.zeros(2), r"weights.*positive sum"),
        ],
        ids=[
            *["list", "vector", "no rows", "long", "NaN", "weights' shape", "list of weights", "negative"],
            *["NaN weight", "zero weights"],
        ],
    )
    def test_refused(self, family: type, x, weights, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            family.fit(x, weights)

    def test_a_short_search_is_reported(self) -> None:
        x = PowerSpherical(directions(30), 1.0).sample((50,))
        with pytest.warns(ConvergenceWarning, match=r"did not settle in 1 steps for 1 of 1.*max_iter"):
            PowerSpherical.fit(x, max_iter=1)
