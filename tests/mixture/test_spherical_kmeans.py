"""Spherical k-means: as scikit-learn's KMeans, on the sphere."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse
from sklearn.base import clone
from sklearn.cluster import KMeans
from sklearn.datasets import load_digits
from sklearn.metrics import adjusted_rand_score

from helpers.clusters import clustered
from powerspherical.mixture import PowerSphericalMixture, SphericalKMeans, VonMisesFisherMixture

X, LABELS = clustered()
UNIT = X / np.linalg.norm(X, axis=1, keepdims=True)


def test_attributes() -> None:
    fitted = SphericalKMeans(3, random_state=0).fit(X)
    cosines = UNIT @ fitted.cluster_centers_.T
    np.testing.assert_array_equal(fitted.labels_, cosines.argmax(1))
    np.testing.assert_array_equal(fitted.predict(X), fitted.labels_)
    np.testing.assert_allclose(fitted.transform(X), np.sqrt(2 - 2 * cosines), atol=1e-7)
    assert fitted.inertia_ == pytest.approx((2 - 2 * cosines.max(1)).sum())
    assert fitted.score(X) == pytest.approx(-fitted.inertia_)
    assert adjusted_rand_score(LABELS, fitted.labels_) > 0.95
    for label, centre in enumerate(fitted.cluster_centers_):
        mean = UNIT[fitted.labels_ == label].mean(0)
        np.testing.assert_allclose(centre, mean / np.linalg.norm(mean), atol=1e-3)


def test_the_optimum_is_that_of_k_means_where_lengths_agree() -> None:
    """From one start, on tight clusters of unit vectors, both end in the same partition."""
    x, _ = clustered(kappas=(300.0,) * 4)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    ours = SphericalKMeans(4, init=x[:4]).fit(x)
    theirs = KMeans(4, init=x[:4], n_init=1).fit(x)
    np.testing.assert_array_equal(ours.labels_, theirs.labels_)


@pytest.mark.parametrize("container", [np.asarray, scipy.sparse.csr_array], ids=["dense", "sparse"])
@pytest.mark.parametrize("count", [3000, 1_000_000])
def test_centres_of_many_rows_have_all_digits(container, count: int) -> None:
    """Tight clusters, where a sum over as many rows in float32 would be off in the fourth."""
    x = np.array([0.6, 0.64, 0.48]) + 1e-3 * np.random.default_rng(0).normal(size=(count, 3))
    x = (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)
    fitted = SphericalKMeans(1, init=np.array([[0.7, 0.6, 0.4]])).fit(container(x))
    mean = x.mean(0, dtype=np.float64)
    np.testing.assert_allclose(fitted.cluster_centers_[0], mean / np.linalg.norm(mean), rtol=2e-6)


def test_weights_stand_for_repetitions() -> None:
    times = np.random.default_rng(1).integers(0, 3, len(X))
    unfitted = SphericalKMeans(5, init=X[:5], tol=0.0)
    weighted, repeated = clone(unfitted).fit(X, sample_weight=times), unfitted.fit(X.repeat(times, 0))
    np.testing.assert_allclose(weighted.cluster_centers_, repeated.cluster_centers_, atol=1e-12)
    assert weighted.inertia_ == pytest.approx(repeated.inertia_)


def test_empty_clusters_start_again() -> None:
    x, labels = clustered(kappas=(400.0, 400.0, 400.0))
    centres = np.stack([x[labels == i].mean(0) for i in range(3)])
    centres[2] = -centres.sum(0)
    fitted = SphericalKMeans(3, init=centres, random_state=0).fit(x)
    assert adjusted_rand_score(labels, fitted.labels_) == 1


@pytest.mark.parametrize("x", [np.ones((9, 3)), np.zeros((9, 3)), np.repeat(np.eye(3)[:2], 5, 0)])
def test_more_clusters_than_different_rows(x: np.ndarray) -> None:
    fitted = SphericalKMeans(4, random_state=0).fit(x)
    assert np.isfinite(fitted.cluster_centers_).all()
    assert fitted.inertia_ == pytest.approx(2.0 * len(x) if not x.any() else 0.0, abs=1e-9)
    assert fitted.inertia_ >= 0


def test_runs_and_progress(capsys) -> None:
    x, _ = clustered(400, 4, kappas=(30.0,) * 12, seed=11)
    one = [SphericalKMeans(12, random_state=seed).fit(x).inertia_ for seed in range(6)]
    many = SphericalKMeans(12, random_state=1, n_init=8, verbose=1).fit(x)
    assert many.inertia_ <= one[1]
    assert many.inertia_ < max(one)
    assert "SphericalKMeans: run 7, step 1: mean distance 1 - t " in capsys.readouterr().out


def test_digits() -> None:
    """On real data, as good as scikit-learn's KMeans on unit vectors, each from five starts."""
    x, y = load_digits(return_X_y=True)
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)

    def quality(make) -> float:
        return np.mean([adjusted_rand_score(y, make(seed).fit(unit).predict(unit)) for seed in range(5)])

    theirs = quality(lambda seed: KMeans(10, n_init=1, random_state=seed))
    for estimator in (SphericalKMeans, PowerSphericalMixture, VonMisesFisherMixture):
        assert quality(lambda seed, e=estimator: e(10, random_state=seed)) > theirs - 0.02


class TestSeeds:
    """Where the search starts: seen after one step, or from rows that are their own centres."""

    def test_spread_directions_are_far_apart(self) -> None:
        x, labels = clustered(kappas=(1000.0,) * 10, dim=16)
        for seed in range(5):
            fitted = SphericalKMeans(10, max_iter=1, tol=1e9, random_state=seed).fit(x)
            assert adjusted_rand_score(labels, fitted.labels_) == 1

    @pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
    @pytest.mark.parametrize("init", ["k-means++", "random"])
    def test_rows_without_weight_are_not_chosen(self, init: str) -> None:
        weight = np.zeros(len(X))
        chosen = np.flatnonzero(LABELS == 0)[:3]  # near each other, with other rows between them
        weight[chosen] = 1
        for seed in range(10):
            unfitted = SphericalKMeans(3, init=init, n_init=1, max_iter=1, random_state=seed)
            fitted = unfitted.fit(X, sample_weight=weight)
            found = sorted(fitted.cluster_centers_.tolist())
            np.testing.assert_allclose(found, sorted(UNIT[chosen].tolist()), rtol=1e-12)

    def test_repeated_rows_leave_the_others_to_be_chosen(self) -> None:
        """Rows a rounding longer than one are at a distance less than zero from themselves."""
        different = np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.9999, 0.0141418, 0.0]], np.float32)
        rows = np.float32(1 + 5e-7) * different[[0] * 15_000 + [1] * 15_000 + [2]]
        for seed in range(5):
            fitted = SphericalKMeans(3, random_state=seed, max_iter=1, tol=1e9).fit(rows)
            assert len(np.unique(fitted.labels_)) == 3

    def test_random_directions_differ(self) -> None:
        fitted = SphericalKMeans(100, init="random", n_init=1, random_state=0).fit(X[:100])
        assert len(np.unique(fitted.labels_)) == 100
