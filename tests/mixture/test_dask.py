"""Dask arrays: lazy weights, unknown sizes, other schedulers, and a worker that dies on the way.

That fits and results are those in memory is tested in test_rows.py.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import dask
import dask.array as da
import numpy as np
import pytest
import scipy.sparse
import torch

from helpers.clusters import clustered, estimators, fitted_directions
from powerspherical.mixture import PowerSphericalMixture, SphericalKMeans

X, _ = clustered(900)
WEIGHT = np.random.default_rng(5).random(len(X))
LAZY = da.from_array(X, chunks=(250, 8))
LAZY_WEIGHT = da.from_array(WEIGHT, chunks=250)
CHOSEN = X[:, 0] > 0


def fit(estimator: type, x, weight=None):
    runs = 1 if estimator is SphericalKMeans else 2
    return estimator(3, random_state=0, n_init=runs).fit(x, sample_weight=weight)


@estimators
@pytest.mark.parametrize(
    ("x", "weight", "same_x", "same_weight"),
    [
        (LAZY, torch.from_numpy(WEIGHT), X, WEIGHT),
        (LAZY, LAZY_WEIGHT.rechunk(77), X, WEIGHT),
        (LAZY[LAZY[:, 0] > 0], None, X[CHOSEN], None),
        (LAZY[LAZY[:, 0] > 0], LAZY_WEIGHT[LAZY[:, 0] > 0], X[CHOSEN], WEIGHT[CHOSEN]),
    ],
    ids=["weights in a tensor", "lazy weights", "rows of unknown size", "weights of unknown size"],
)
def test_lazy_weights_and_unknown_sizes(estimator: type, x, weight, same_x, same_weight) -> None:
    """Sizes are unknown in a selection, or of a file of which only the start was read."""
    unknown = np.isnan(x.shape[0])
    found, expected = fit(estimator, x, weight), fit(estimator, same_x, same_weight)
    np.testing.assert_allclose(fitted_directions(found), fitted_directions(expected), atol=1e-9)
    assert np.isnan(x.shape[0]) == unknown, "the user's array stays as it was"


def test_another_scheduler_than_threads() -> None:
    with dask.config.set(scheduler="synchronous"):
        found = fit(PowerSphericalMixture, da.from_array(X, chunks=(50, 8)))
    expected = fit(PowerSphericalMixture, X)
    np.testing.assert_allclose(found.mean_directions_, expected.mean_directions_, atol=1e-10)
    assert expected.bic(LAZY) == pytest.approx(expected.bic(X), rel=1e-12)


@pytest.mark.parametrize(("count", "dim"), [(40_000, 3), pytest.param(300, 60_000, marks=pytest.mark.slow)])
def test_directions_are_chosen_among_few_rows_of_many(count: int, dim: int) -> None:
    """Beyond 32,768 rows or 2²³ numbers they come from a sample, the same one in memory and from blocks."""
    x, _ = clustered(count, dim)
    weight = np.random.default_rng(5).random(len(x))
    found, expected = (
        fit(PowerSphericalMixture, rows, weight) for rows in (da.from_array(x, chunks=(count // 6, dim)), x)
    )
    np.testing.assert_allclose(found.mean_directions_, expected.mean_directions_, atol=1e-9)


def test_a_data_frame_is_refused() -> None:
    frames = pytest.importorskip("dask.dataframe")
    pandas = pytest.importorskip("pandas")
    frame = frames.from_pandas(pandas.DataFrame(X), npartitions=2)
    fitted = fit(PowerSphericalMixture, frame.to_dask_array(lengths=True))
    message = r"a Dask array, got a Dask DataFrame: use X\.to_dask_array\(lengths=True\)"
    for call in (PowerSphericalMixture(2).fit, fitted.predict, SphericalKMeans(2).fit):
        with pytest.raises(ValueError, match=message):
            call(frame)


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
def test_a_worker_that_dies_changes_nothing(tmp_path: Path) -> None:
    pytest.importorskip("distributed")
    rows, calls, result = tmp_path / "rows.npy", tmp_path / "calls", tmp_path / "result.npz"
    np.save(rows, X)
    calls.mkdir()
    run = subprocess.run(
        [sys.executable, Path(__file__).with_name("dying_worker.py"), rows, calls, result],
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    assert (calls / "killed").exists(), "the fit was too short to lose a worker"
    expected = fit(PowerSphericalMixture, X)
    with np.load(result) as found:
        np.testing.assert_allclose(found["directions"], expected.mean_directions_, atol=1e-10)
        assert found["lower_bound"] == pytest.approx(expected.lower_bound_, rel=1e-12)
