"""scikit-learn's own checks of what an estimator must do."""

from __future__ import annotations

from typing import Any

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from powerspherical.mixture import (
    PowerSphericalMixture,
    SphericalKMeans,
    SphericalMixture,
    VonMisesFisherMixture,
)

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
