"""What users of scikit-learn expect of an estimator: its own checks, and its conventions."""

from __future__ import annotations

import subprocess
import sys
import warnings
from typing import Any

import numpy as np
import pytest
import sklearn.exceptions
import torch
from sklearn.cluster import KMeans
from sklearn.utils.estimator_checks import parametrize_with_checks

import powerspherical
from helpers.clusters import clustered, estimators
from powerspherical.mixture import (
    PowerSphericalMixture,
    SphericalKMeans,
    SphericalMixture,
    VonMisesFisherMixture,
)

X, _ = clustered(200)

# scikit-learn 1.9 looks up the classifier's tags of whatever has predict_proba and takes sparse rows, and a mixture is
# no classifier. Sparse rows of mixtures are tested in test_rows.py.
_NO_CLASSIFIER = "the check takes an estimator with predict_proba for a classifier"
# Weights stand for repetitions in every sum over rows, but not in the draws of the start, which go by row: another
# start may lead to another optimum. scikit-learn excuses its KMeans for the same reason. Weights are tested in
# test_spherical_kmeans.py, from one start.
_STARTS = "a repeated row and a weighted one give different starts"


def expected(estimator: Any) -> dict[str, str]:
    if isinstance(estimator, SphericalMixture):
        names = ("check_estimator_sparse_array", "check_estimator_sparse_matrix")
        return dict.fromkeys(names, _NO_CLASSIFIER)
    names = (
        "check_sample_weight_equivalence_on_dense_data",
        "check_sample_weight_equivalence_on_sparse_data",
    )
    return dict.fromkeys(names, _STARTS)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@parametrize_with_checks(
    [PowerSphericalMixture(), VonMisesFisherMixture(), SphericalKMeans()], expected_failed_checks=expected
)
def test_checks(estimator, check) -> None:
    check(estimator)


@estimators
@pytest.mark.parametrize(
    ("init", "n_init", "starts"),
    [
        *(("k-means++", "auto", 1), ("random", "auto", 10), (X[:3], "auto", 1)),
        *(("random", 3, 3), (X[:3], 3, 1), (torch.from_numpy(X[:3]), 3, 1)),
    ],
    ids=["k-means++", "random", "given", "a number", "a number, given", "a tensor"],
)
def test_starts(estimator: type, init, n_init, starts: int) -> None:
    assert estimator().n_init == KMeans().n_init == "auto"
    lines: list[str] = []
    estimator(3, init=init, n_init=n_init, random_state=0, max_iter=500, verbose=lines.append).fit(X)
    runs = {line.split(": ")[1].partition(",")[0] for line in lines} - {"start"}
    assert runs == {f"run {run}" for run in range(starts)}


def test_only_scikit_learn_is_needed() -> None:
    """Without it, the import says what to install. Dask is not imported for arrays."""
    code = """
import sys
import numpy
sys.modules["sklearn"] = None
try:
    import powerspherical.mixture
except ImportError as error:
    print(error)
del sys.modules["sklearn"]
import powerspherical.mixture
powerspherical.mixture.SphericalKMeans(2).fit(numpy.eye(4))
print("dask" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    message, dask = done.stdout.splitlines()
    assert message.startswith(
        "powerspherical.mixture needs scikit-learn: pip install 'powerspherical[mixture]' ("
    )
    assert (dask, done.stderr) == ("False", "")


@estimators
def test_a_data_frame_is_transformed_to_one(estimator: type) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(X, index=range(100, 300), columns=list("abcdefgh"))
    plain = estimator(3, random_state=0)
    named = estimator(3, random_state=0).set_output(transform="pandas")
    with pytest.raises(sklearn.exceptions.NotFittedError):
        named.get_feature_names_out()
    expected, found = plain.fit_transform(X), named.fit_transform(frame)
    np.testing.assert_array_equal(found.to_numpy(), expected)
    names = [f"{estimator.__name__.lower()}{column}" for column in range(3)]
    assert list(found.columns) == list(named.get_feature_names_out()) == names
    assert list(found.index) == list(frame.index)
    assert list(named.feature_names_in_) == list("abcdefgh")
    pandas.testing.assert_frame_equal(named.transform(frame), found)


@estimators
@pytest.mark.parametrize(
    "category",
    [sklearn.exceptions.ConvergenceWarning, powerspherical.ConvergenceWarning],
    ids=["theirs", "ours"],
)
def test_one_filter_is_enough(estimator: type, category: type[Warning]) -> None:
    """The warning is scikit-learn's and this package's too."""
    short = estimator(5, max_iter=1, tol=0.0, random_state=0)
    with pytest.warns(category, match=r"still (rose|changed) after 1 steps: raise max_iter"):
        assert short.fit(X).n_iter_ == 1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", category)
        short.fit(X)
