"""The mixtures as estimators: right numbers, right attributes, every option."""

from __future__ import annotations

import math
import re
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import adjusted_rand_score
from torch.distributions import Categorical, MixtureSameFamily

from helpers.clusters import clustered, mixtures, tying
from helpers.own_family import registered
from powerspherical import VonMisesFisher
from powerspherical.families import VON_MISES_FISHER
from powerspherical.families.power_spherical import PowerSphericalFamily
from powerspherical.mixture import (
    PowerSphericalMixture,
    SphericalKMeans,
    VonMisesFisherMixture,
    mixture_named,
)
from powerspherical.special import log_sphere_area

X, LABELS = clustered()
UNIT = torch.nn.functional.normalize(torch.from_numpy(X), dim=1)


def as_distribution(mixture) -> MixtureSameFamily:
    components = mixture.distribution(
        torch.as_tensor(mixture.mean_directions_),
        torch.as_tensor(mixture.concentrations_),
        validate_args=False,
    )
    return MixtureSameFamily(Categorical(torch.as_tensor(mixture.weights_)), components, validate_args=False)


class TestNumbers:
    @mixtures
    @tying
    def test_numbers_are_those_of_the_distributions(self, mixture: type, concentration_type: str) -> None:
        unfitted = mixture(3, concentration_type=concentration_type, random_state=0)
        labels, fitted = clone(unfitted).fit_predict(X), unfitted.fit(X)
        family = as_distribution(fitted)
        expected = family.log_prob(UNIT).numpy()
        np.testing.assert_allclose(fitted.score_samples(X), expected, rtol=1e-11, atol=1e-13)
        assert fitted.score(X) == pytest.approx(expected.mean(), rel=1e-11)
        assert fitted.lower_bound_ == fitted.lower_bounds_[-1] == pytest.approx(fitted.score(X), rel=1e-13)

        joint = family.component_distribution.log_prob(UNIT.unsqueeze(1)) + family.mixture_distribution.logits
        np.testing.assert_allclose(fitted.predict_proba(X), joint.softmax(1).numpy(), atol=1e-12)
        np.testing.assert_array_equal(fitted.transform(X), fitted.predict_proba(X))
        np.testing.assert_array_equal(fitted.predict(X), joint.argmax(1).numpy())
        np.testing.assert_array_equal(labels, fitted.predict(X))

        assert fitted.converged_
        assert adjusted_rand_score(LABELS, labels) > 0.95
        np.testing.assert_allclose(np.linalg.norm(fitted.mean_directions_, axis=1), 1, rtol=1e-12)
        assert fitted.weights_.sum() == pytest.approx(1)
        assert (len(set(fitted.concentrations_)) == 1) == (concentration_type == "tied")

        free = 2 + 3 * 7 + (1 if concentration_type == "tied" else 3)
        log_likelihood = expected.sum()
        assert fitted.aic(X) == pytest.approx(2 * free - 2 * log_likelihood)
        assert fitted.bic(X) == pytest.approx(free * math.log(len(X)) - 2 * log_likelihood)

    @mixtures
    def test_one_component_is_the_fit_of_the_distribution(self, mixture: type) -> None:
        weight = np.random.default_rng(0).random(len(X))
        fitted = mixture(tol=0.0, max_iter=500).fit(X, sample_weight=weight)
        alone = mixture.distribution.fit(UNIT, torch.from_numpy(weight))
        np.testing.assert_allclose(fitted.mean_directions_[0], alone.loc.numpy(), atol=1e-6)
        assert fitted.concentrations_[0] == pytest.approx(float(alone.concentration), rel=1e-6)

    def test_free_concentrations_are_recovered(self) -> None:
        truth = (20.0, 100.0, 500.0)
        x, labels = clustered(20_000, kappas=truth)
        fitted = VonMisesFisherMixture(3, concentration_type="free", random_state=0, tol=1e-9).fit(x)
        found = fitted.concentrations_[
            [np.bincount(fitted.predict(x)[labels == i]).argmax() for i in range(3)]
        ]
        for kappa, estimate in zip(truth, found, strict=True):
            # A bound on the standard error: the components overlap a little.
            error = (len(x) / 3 * VON_MISES_FISHER.variance_cosine(torch.tensor(kappa).double(), 8)) ** -0.5
            assert abs(estimate - kappa) < 6 * error

    @mixtures
    def test_draws_follow_the_mixture(self, mixture: type) -> None:
        fitted = mixture(3, random_state=0).fit(X)
        draws, labels = fitted.sample(20_000)
        again, _ = fitted.sample(20_000)
        np.testing.assert_array_equal(draws, again)
        score = fitted.score_samples(draws)
        expected = -as_distribution(fitted).log_prob(as_distribution(fitted).sample((20_000,))).numpy()
        error = math.hypot(score.std(), expected.std()) / 20_000**0.5
        assert abs(score.mean() + expected.mean()) < 5 * error
        shares = np.bincount(labels) / len(labels)
        np.testing.assert_allclose(shares, fitted.weights_, atol=5 * 0.5 / 20_000**0.5)

    def test_weights_may_add_up_to_a_rounding_more_than_one(self) -> None:
        fitted = PowerSphericalMixture(3, random_state=0).fit(X.astype(np.float32))
        fitted.weights_ = np.array([0.7, 0.3000002, 0.0], np.float32)
        assert set(fitted.sample(100)[1]) == {0, 1}

    @mixtures
    def test_threads_sample_what_one_samples(self, mixture: type) -> None:
        fitted = mixture(2, random_state=0).fit(X)
        before = torch.get_rng_state()
        expected, _ = fitted.sample(500)
        with ThreadPoolExecutor(4) as threads:
            found = list(threads.map(lambda _: fitted.sample(500)[0], range(200)))
        assert torch.equal(torch.get_rng_state(), before)
        np.testing.assert_array_equal(found, np.broadcast_to(expected, (200, *expected.shape)))


class TestOptions:
    @mixtures
    def test_weights_stand_for_repetitions(self, mixture: type) -> None:
        times = np.random.default_rng(1).integers(0, 3, len(X))
        options = {"init": X[:3], "tol": 1e-10, "max_iter": 1000}
        weighted = mixture(3, **options).fit(X, sample_weight=times)
        repeated = mixture(3, **options).fit(X.repeat(times, 0))
        np.testing.assert_allclose(weighted.mean_directions_, repeated.mean_directions_, atol=1e-4)
        assert weighted.lower_bound_ == pytest.approx(repeated.lower_bound_, rel=1e-9)
        assert weighted.score(X, sample_weight=times) == pytest.approx(repeated.score(X.repeat(times, 0)))

    @pytest.mark.parametrize(
        ("estimator", "tol", "sign"), [(VonMisesFisherMixture, 0.02, 1), (SphericalKMeans, 0.02, -1)]
    )
    def test_a_later_run_must_be_better_by_the_tolerance(
        self, estimator: type, tol: float, sign: int
    ) -> None:
        x, _ = clustered(400, 4, kappas=(30.0,) * 12, seed=11)
        not_the_best = 0
        for seed in range(10):
            lines: list[str] = []
            options = {"init": "random", "n_init": 5, "tol": tol, "random_state": seed}
            fitted = estimator(12, **options, verbose=lines.append).fit(x)
            runs: dict[str, float] = {}
            for run, value in re.findall(r": (run .).* (\S+)$", "\n".join(lines), re.MULTILINE):
                runs[run] = max(runs.get(run, -math.inf), sign * float(value))
            first, *later = runs.values()
            kept = first
            for value in later:
                if value > kept + (tol if sign > 0 else tol * abs(kept)):
                    kept = value
            found = fitted.lower_bound_ if sign > 0 else -fitted.inertia_ / (2 * len(x))
            assert found == pytest.approx(kept, rel=1e-7)
            not_the_best += kept < max(runs.values())
        assert 0 < not_the_best < 10

    @pytest.mark.parametrize(("rise", "kept"), [(2.0**-10, 0), (2.0**-9, 1)])
    def test_rounding_does_not_choose_the_run(self, rise: float, kept: int, monkeypatch) -> None:
        """Of runs that are as likely as float32 can tell, the first is kept."""

        class RisingFamily(PowerSphericalFamily):
            """Every row has the same density, which rises with each run. A run of one step has two passes."""

            name, key, passes = "rising", PowerSphericalFamily.key, 0

            def log_kernel(self, t, kappa, dim):
                level = 8192 + rise * (self.passes // 2)  # where numbers of float32 are 2^-10 apart
                self.passes += 1
                return torch.full_like(t.minus, level)

            def offset(self, kappa, dim):
                return torch.full_like(kappa, log_sphere_area(dim))

        family = registered(monkeypatch, RisingFamily())
        found = []
        for runs in (1, 2):
            family.passes = 0
            fitted = mixture_named(family.name)(3, n_init=runs, tol=1e-9, random_state=0)
            found.append(fitted.fit(X.astype(np.float32)).lower_bound_)
        assert found[1] - found[0] == pytest.approx(kept * rise, abs=1e-9)

    def test_the_seed_decides(self) -> None:
        first, second, other = (
            PowerSphericalMixture(6, random_state=seed, max_iter=1000).fit(X) for seed in (0, 0, 1)
        )
        np.testing.assert_array_equal(first.mean_directions_, second.mean_directions_)
        assert (first.mean_directions_ != other.mean_directions_).any()

    def test_a_warm_start_goes_on(self) -> None:
        mixture = PowerSphericalMixture(5, random_state=0, warm_start=True, max_iter=2, tol=0.0)
        with pytest.warns(ConvergenceWarning, match="still rose after 2 steps: raise max_iter"):
            mixture.fit(X)
        reached = mixture.lower_bound_
        assert not mixture.converged_
        assert mixture.n_iter_ == 2
        with pytest.warns(ConvergenceWarning):
            mixture.fit(X)
        assert mixture.lower_bounds_[0] == pytest.approx(reached, rel=1e-12)
        assert mixture.lower_bound_ > reached
        mixture.n_components = 4
        with pytest.raises(ValueError, match=r"5 components in 8 dimensions, not 4 in 8.*warm_start=False"):
            mixture.fit(X)

    @mixtures
    def test_the_last_step_counts(self, mixture: type) -> None:
        """There is one also where it gains nothing, as from a fit that has settled, or for a point."""
        settled = mixture(3, random_state=0, warm_start=True, tol=0.0, max_iter=500).fit(X)
        assert settled.fit(X).n_iter_ >= 1
        assert settled.converged_
        assert mixture(1).fit(X[:1]).n_iter_ >= 1

    def test_a_batch_counts_by_its_share_of_the_rows_so_far(self) -> None:
        """With one von Mises–Fisher component, the averages that move are the mean directions."""
        first, second = X[:400], X[400:550]
        fitted = VonMisesFisherMixture().partial_fit(first).partial_fit(second)
        step = (1 + 400 / 150) ** -0.7
        mean = (1 - step) * UNIT[:400].mean(0) + step * UNIT[400:550].mean(0)
        np.testing.assert_allclose(fitted.mean_directions_[0], mean / mean.norm(), rtol=1e-9)
        expected = VonMisesFisher.from_mean_length(mean / mean.norm(), mean.norm())
        assert fitted.concentrations_[0] == pytest.approx(float(expected.concentration), rel=1e-9)

    @mixtures
    def test_batches(self, mixture: type) -> None:
        """One pass in batches comes close to the fit of all rows."""
        x, labels = clustered(6000)
        online = mixture(3, random_state=0)
        for batch in np.split(x, 12):
            online.partial_fit(batch)
        assert online.n_iter_ == 12
        assert adjusted_rand_score(labels, online.predict(x)) > 0.95
        full = mixture(3, random_state=0).fit(x)
        assert online.score(x) > full.score(x) - 0.02
        before = full.score(x)
        assert full.partial_fit(x[:100]).score(x) > before - 0.02  # little is forgotten for a small batch

    @pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
    @mixtures
    def test_batches_may_come_from_another_device(self, mixture: type) -> None:
        online = mixture(3, random_state=0).fit(torch.from_numpy(X).cuda())
        expected = mixture(3, random_state=0).fit(X).partial_fit(X[:100])
        online.partial_fit(X[:100])
        assert isinstance(online.weights_, np.ndarray)
        np.testing.assert_allclose(online.mean_directions_, expected.mean_directions_, atol=1e-9)

    def test_progress_is_printed(self, capsys) -> None:
        PowerSphericalMixture(3, random_state=0, verbose=1).fit(X)
        lines = capsys.readouterr().out.splitlines()
        assert lines[0].startswith("PowerSphericalMixture: start, step 1: mean distance 1 - t 0.")
        assert lines[-1].startswith("PowerSphericalMixture: run 0, step ")
        assert "log-likelihood per row " in lines[-1]
        given: list[str] = []
        PowerSphericalMixture(3, random_state=0, verbose=given.append).fit(X)
        assert given == lines
        PowerSphericalMixture(3, random_state=0).fit(X)
        assert capsys.readouterr().out == ""


@pytest.mark.parametrize("estimator", [PowerSphericalMixture, SphericalKMeans])
@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("n", 0), ("n", 2.0), ("n_init", 0), ("n_init", "many"), ("tol", -1.0), ("max_iter", 0)),
        *(("init", "kmeans"), ("verbose", "yes"), ("random_state", "zero")),
        *(("concentration_type", "spherical"), ("warm_start", "yes")),
    ],
)
def test_a_parameter_out_of_range_is_refused(estimator: type, name: str, value) -> None:
    name = estimator._count_parameter if name == "n" else name
    if name not in estimator().get_params():
        pytest.skip("k-means has no such parameter")
    unfitted = estimator(**{name: value})
    for learn in (unfitted.fit, getattr(unfitted, "partial_fit", unfitted.fit_predict)):
        message = rf"The '{name}' parameter of {estimator.__name__} must be .*\. Got {value!r} instead"
        with pytest.raises(ValueError, match=message):
            learn(X)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"init": np.ones((3, 8))},
            r"init must have the shape \(2, 8\), one direction per row, got \(3, 8\)",
        ),
        ({"init": np.zeros((2, 8))}, "row 0 of init has only zeros"),
        ({"n_components": 601}, "n_samples=600 should be >= n_components=601"),
    ],
    ids=["shape of init", "zeros in init", "few rows"],
)
def test_what_does_not_fit_the_rows_is_refused(options: dict, message: str) -> None:
    mixture = PowerSphericalMixture(**({"n_components": 2} | options))
    for learn in (mixture.fit, mixture.partial_fit):
        with pytest.raises(ValueError, match=message):
            learn(X)
