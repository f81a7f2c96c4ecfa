"""Dask arrays: the same fit as in memory, lazy results, and a worker that dies on the way."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import dask
import dask.array as da
import numpy as np
import pytest
import scipy.sparse
import torch

from helpers.clusters import clustered, estimators, fitted_directions, mixtures
from powerspherical.mixture import PowerSphericalMixture, SphericalKMeans

X, _ = clustered(900)
WEIGHT = np.random.default_rng(5).random(len(X))


def fit(estimator: type, x, weight=None):
    return estimator(3, random_state=0, **({} if estimator is SphericalKMeans else {"n_init": 2})).fit(
        x, sample_weight=weight
    )


@estimators
@pytest.mark.parametrize(
    "weight",
    [None, WEIGHT, torch.from_numpy(WEIGHT), da.from_array(WEIGHT, chunks=77)],
    ids=["plain", "NumPy", "torch", "Dask"],
)
@pytest.mark.parametrize(
    "chunks", [(250, 8), (100, 3), ((0, 400, 500), 8)], ids=["rows", "columns too", "an empty one"]
)
def test_the_fit_is_that_in_memory(estimator: type, weight, chunks) -> None:
    in_memory = fit(estimator, X, None if weight is None else WEIGHT)
    found = fit(estimator, da.from_array(X, chunks=chunks), weight)
    np.testing.assert_allclose(fitted_directions(found), fitted_directions(in_memory), atol=1e-10)
    assert found.n_iter_ == in_memory.n_iter_
    if estimator is SphericalKMeans:
        np.testing.assert_array_equal(found.labels_.compute(), in_memory.labels_)
        assert found.inertia_ == pytest.approx(in_memory.inertia_, rel=1e-12)
    else:
        np.testing.assert_allclose(found.concentrations_, in_memory.concentrations_, rtol=1e-9)
        assert found.lower_bound_ == pytest.approx(in_memory.lower_bound_, rel=1e-12)


@estimators
def test_half_precision_is_computed_in_float32(estimator: type) -> None:
    half = da.from_array(X.astype(np.float16), chunks=(250, 8))
    found, expected = fit(estimator, half), fit(estimator, half.astype(np.float32))
    assert fitted_directions(found).dtype == np.float32
    np.testing.assert_array_equal(fitted_directions(found), fitted_directions(expected))
    np.testing.assert_array_equal(found.transform(half), expected.transform(half.astype(np.float32)))


@mixtures
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_results_for_each_row_are_lazy(mixture: type, dtype: type) -> None:
    lazy = da.from_array(X.astype(dtype), chunks=((0, 400, 500), 8))
    fitted = fit(mixture, lazy)
    assert isinstance(fitted.mean_directions_, np.ndarray)
    for member in ("predict", "predict_proba", "score_samples"):
        found = getattr(fitted, member)(lazy)
        expected = getattr(fitted, member)(X.astype(dtype))
        assert isinstance(found, da.Array)
        assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
        np.testing.assert_allclose(found.compute(), expected, rtol=1e-5, atol=1e-6)
    assert fitted.bic(lazy) == pytest.approx(fitted.bic(X), rel=1e-5)
    np.testing.assert_allclose(
        fit(SphericalKMeans, lazy).transform(lazy).compute(),
        fit(SphericalKMeans, lazy).transform(X),
        atol=1e-3,
    )


@estimators
def test_chunks_of_unknown_size(estimator: type) -> None:
    """As they come from a file of which only the start was read, or from a selection."""
    lazy = da.from_array(X, chunks=(250, 8))
    selected = lazy[lazy[:, 0] > 0]
    found = fit(estimator, selected)
    assert np.isnan(selected.shape[0]), "the user's array stays as it was"
    np.testing.assert_allclose(
        fitted_directions(found), fitted_directions(fit(estimator, X[X[:, 0] > 0])), atol=1e-9
    )


def test_weights_of_unknown_size() -> None:
    """As rows and weights come from one selection of a table."""
    lazy, weight = da.from_array(X, chunks=(250, 8)), da.from_array(WEIGHT, chunks=250)
    chosen = lazy[:, 0] > 0
    found = fit(PowerSphericalMixture, lazy[chosen], weight[chosen])
    kept = X[:, 0] > 0
    expected = fit(PowerSphericalMixture, X[kept], WEIGHT[kept])
    np.testing.assert_allclose(found.mean_directions_, expected.mean_directions_, atol=1e-9)


@estimators
@pytest.mark.parametrize(
    "container", [scipy.sparse.csr_matrix, scipy.sparse.csr_array, scipy.sparse.coo_matrix]
)
def test_sparse_blocks(estimator: type, container: type) -> None:
    dense = np.where(np.abs(X) > 0.3, X, 0.0)
    lazy = da.from_array(dense, chunks=((0, 400, 500), 8)).map_blocks(container)
    found, expected = fit(estimator, lazy, WEIGHT), fit(estimator, dense, WEIGHT)
    np.testing.assert_allclose(fitted_directions(found), fitted_directions(expected), atol=1e-10)
    np.testing.assert_array_equal(found.predict(lazy).compute(), expected.predict(dense))


def test_another_scheduler_than_threads() -> None:
    with dask.config.set(scheduler="synchronous"):
        found = fit(PowerSphericalMixture, da.from_array(X, chunks=(50, 8)))
    np.testing.assert_allclose(
        found.mean_directions_, fit(PowerSphericalMixture, X).mean_directions_, atol=1e-10
    )


def test_directions_are_chosen_among_few_rows_of_many() -> None:
    """Beyond 32,768 rows they come from a sample, the same one in memory and from blocks."""
    x, _ = clustered(40_000, 3)
    weight = np.random.default_rng(5).random(len(x))
    found = fit(PowerSphericalMixture, da.from_array(x, chunks=(7000, 3)), weight)
    np.testing.assert_allclose(
        found.mean_directions_, fit(PowerSphericalMixture, x, weight).mean_directions_, atol=1e-9
    )


def test_a_data_frame_is_refused() -> None:
    frames = pytest.importorskip("dask.dataframe")
    pandas = pytest.importorskip("pandas")
    frame = frames.from_pandas(pandas.DataFrame(X), npartitions=2)
    fitted = fit(PowerSphericalMixture, frame.to_dask_array(lengths=True))
    for call in (PowerSphericalMixture(2).fit, fitted.predict, SphericalKMeans(2).fit):
        with pytest.raises(
            ValueError, match=r"a Dask array, got a Dask DataFrame: use X\.to_dask_array\(lengths=True\)"
        ):
            call(frame)


@pytest.mark.parametrize(
    ("x", "weight", "message"),
    [
        (da.ones((20, 3), dtype=int), None, r"Dask array of float32 or float64, got int64.*astype"),
        (da.ones((20, 1)), None, r"X must have the shape \(n, d\)"),
        (da.full((20, 3), np.nan, chunks=(5, 3)), None, r"X has NaN or infinite values"),
        (da.ones((2, 3)), None, r"n_samples=2 should be >= n_clusters=3"),
    ],
    ids=["integers", "d = 1", "NaN", "few rows"],
)
def test_refused(x, weight, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fit(SphericalKMeans, x, weight)


@pytest.mark.parametrize("container", [np.asarray, scipy.sparse.csr_matrix])
def test_a_row_without_a_direction_is_named_by_its_place_in_the_whole(container) -> None:
    bad = X.copy()
    bad[555, 2] = np.nan
    lazy = da.from_array(bad, chunks=(100, 8)).map_blocks(container)
    with pytest.raises(ValueError, match="row 555 of X has NaN"):
        fit(PowerSphericalMixture, lazy)
    with pytest.raises(ValueError, match="row 555 of X has NaN"):
        fit(PowerSphericalMixture, X).predict(lazy).compute()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # what a cluster says of a worker that died is not ours
def test_a_worker_that_dies_changes_nothing(tmp_path: Path) -> None:
    distributed = pytest.importorskip("distributed")

    def deadly(
        block: np.ndarray, calls: Path
    ) -> np.ndarray:  # in here it travels whole: workers know no tests
        """A block of rows; whoever makes one for the twentieth time dies, once."""
        (calls / f"{os.getpid()}-{os.urandom(8).hex()}").touch()
        if len(list(calls.iterdir())) >= 20:
            try:
                (calls / "killed").touch(exist_ok=False)
            except FileExistsError:
                return block
            os.kill(os.getpid(), signal.SIGKILL)
        return block

    blocks = da.from_array(X, chunks=(150, 8)).map_blocks(deadly, tmp_path, dtype=X.dtype, meta=X[:0])
    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 10}),
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, silence_logs=50
        ) as cluster,
        distributed.Client(cluster),
    ):
        found = fit(PowerSphericalMixture, blocks)
    assert (tmp_path / "killed").exists(), "the fit was too short to lose a worker"
    expected = fit(PowerSphericalMixture, X)
    np.testing.assert_allclose(found.mean_directions_, expected.mean_directions_, atol=1e-10)
    assert found.lower_bound_ == pytest.approx(expected.lower_bound_, rel=1e-12)
