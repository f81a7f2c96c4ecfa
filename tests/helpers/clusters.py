"""Data and parametrisations that tests of mixtures share."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from helpers.examples import directions
from powerspherical import VonMisesFisher
from powerspherical.mixture import (
    PowerSphericalMixture,
    SphericalCauchyMixture,
    SphericalKMeans,
    VonMisesFisherMixture,
)

MIXTURES = {"PS": PowerSphericalMixture, "vMF": VonMisesFisherMixture, "Cauchy": SphericalCauchyMixture}
ESTIMATORS = MIXTURES | {"k-means": SphericalKMeans}

mixtures = pytest.mark.parametrize("mixture", MIXTURES.values(), ids=MIXTURES)
estimators = pytest.mark.parametrize("estimator", ESTIMATORS.values(), ids=ESTIMATORS)
tying = pytest.mark.parametrize("concentration_type", ["tied", "free"])


def clustered(
    rows: int = 600, dim: int = 8, kappas: tuple[float, ...] = (60.0, 60.0, 60.0), seed: int = 3
) -> tuple[np.ndarray, np.ndarray]:
    """Return float64 rows of different lengths around random directions, in random order, and their labels."""
    torch.manual_seed(seed)
    labels = torch.randint(len(kappas), (rows,))
    draws = VonMisesFisher(
        directions(len(kappas), dim, seed=seed)[labels], torch.tensor(kappas)[labels].double()
    )
    lengths = 0.5 + 2 * torch.rand(rows, 1, dtype=torch.float64)
    return (lengths * draws.sample()).numpy(), labels.numpy()


def given(mixture: type, weights, directions, kappas, **options):
    """Return an estimator with these parameters, as if it were fitted."""
    estimator = mixture(len(weights), random_state=0, **options)
    estimator.weights_, estimator.mean_directions_ = np.asarray(weights, float), np.asarray(directions)
    estimator.concentrations_ = np.asarray(kappas, float)
    estimator.n_features_in_ = estimator.mean_directions_.shape[1]
    return estimator


def unguarded_step(estimator, x, weight=None):
    """Return a mixture after one step of EM from the parameters of another one, and the likelihood before it."""
    names = ("weights_", "mean_directions_", "concentrations_")
    options = {"concentration_type": estimator.concentration_type}
    after = given(type(estimator), *(getattr(estimator, name) for name in names), **options)
    after.partial_fit(x, sample_weight=weight)
    return after, after.lower_bound_


def fitted_directions(estimator) -> np.ndarray:
    return np.asarray(
        estimator.cluster_centers_ if isinstance(estimator, SphericalKMeans) else estimator.mean_directions_
    )
