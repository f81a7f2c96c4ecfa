"""Mixtures by the name of their family, of families that users write too, and what heavy tails are good for."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.metrics import adjusted_rand_score

from helpers.clusters import MIXTURES, clustered
from helpers.own_family import registered
from powerspherical import HypersphericalUniform, RotationallySymmetric, VonMisesFisher
from powerspherical.distributions import distribution_named
from powerspherical.families import family_names
from powerspherical.mixture import (
    PowerSphericalMixture,
    SphericalCauchyMixture,
    SphericalMixture,
    VonMisesFisherMixture,
    compare,
    load,
    mixture_named,
)

X, LABELS = clustered()


def test_every_family_has_its_mixture() -> None:
    names = family_names()[: len(MIXTURES)]  # ours come first; other tests may have registered more
    assert [mixture_named(name) for name in names] == list(MIXTURES.values())
    for name in names:
        assert mixture_named(name).distribution is distribution_named(name)
    with pytest.raises(ValueError, match=r"unknown family 'cauchy': choose one of .*spherical_cauchy"):
        mixture_named("cauchy")


def test_another_mixture_of_the_family_takes_no_ones_place() -> None:
    class OtherMixture(SphericalMixture):
        distribution = PowerSphericalMixture.distribution

    assert mixture_named("power_spherical") is PowerSphericalMixture


def test_a_family_of_ones_own(monkeypatch, tmp_path) -> None:
    """With its density alone: mixtures, comparisons and files."""
    family = registered(monkeypatch)
    mixture = mixture_named(family.name)
    assert mixture is mixture_named(family.name)
    assert mixture.__name__ == "SquaredChordMixture"
    assert issubclass(mixture.distribution, RotationallySymmetric)
    fitted = mixture(3, random_state=0).fit(X)
    assert adjusted_rand_score(LABELS, fitted.predict(X)) > 0.95
    again = load(fitted.save(tmp_path / "model.safetensors"))
    assert type(again) is mixture
    np.testing.assert_array_equal(again.predict(X), fitted.predict(X))
    assert "squared chord, tied" in [choice.model for choice in compare(X, [1], random_state=0)]


def test_a_mixture_that_is_written_is_the_familys(monkeypatch) -> None:
    family = registered(monkeypatch)

    class OwnMixture(SphericalMixture):
        distribution = distribution_named(family.name)

    assert mixture_named(family.name) is OwnMixture


def with_outliers(seed: int, dim: int = 8, clusters: int = 6) -> tuple[torch.Tensor, torch.Tensor]:
    """Points of clusters, the cluster of each, and after them uniform points, a fifth of all."""
    generator = torch.Generator().manual_seed(seed)
    uniform = HypersphericalUniform(dim)
    centres = uniform.sample((clusters,), generator=generator)
    points = VonMisesFisher(centres, 30.0).sample((300,), generator=generator).reshape(-1, dim)
    outliers = uniform.sample((len(points) // 4,), generator=generator)
    return torch.cat([points, outliers]), torch.arange(clusters).repeat(300)


@pytest.mark.parametrize(("concentration_type", "margin"), [("tied", 0.03), ("free", 0.1)])
def test_heavy_tails_find_clusters_among_outliers(concentration_type: str, margin: float) -> None:
    """As `benchmarks/robust_clustering.py` measures it, over more seeds."""
    index = {SphericalCauchyMixture: 0.0, VonMisesFisherMixture: 0.0}
    for seed in range(5):
        x, labels = with_outliers(seed)
        for mixture in index:
            fitted = mixture(6, concentration_type=concentration_type, n_init=5, random_state=seed).fit(x)
            index[mixture] += adjusted_rand_score(labels, fitted.predict(x[: len(labels)])) / 5
    assert index[SphericalCauchyMixture] > 0.95
    assert index[SphericalCauchyMixture] > index[VonMisesFisherMixture] + margin


def test_the_base_class_has_no_distribution() -> None:
    with pytest.raises(
        TypeError, match="SphericalMixture does not name a distribution: use PowerSphericalMixture"
    ):
        SphericalMixture(2).fit(np.eye(4))
