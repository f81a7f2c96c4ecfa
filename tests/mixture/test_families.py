"""Mixtures by the name of their family, of families that users write too, and what heavy tails are good for."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch
from sklearn.metrics import adjusted_rand_score

from helpers import own_family
from helpers.clusters import MIXTURES, clustered
from helpers.own_family import registered
from powerspherical import HypersphericalUniform, RotationallySymmetric, VonMisesFisher
from powerspherical.distributions import distribution_named
from powerspherical.families import POWER_SPHERICAL, SPHERICAL_CAUCHY, VON_MISES_FISHER, family_names
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
    message = "SphericalMixture does not name a distribution: use PowerSphericalMixture"
    with pytest.raises(TypeError, match=message):
        SphericalMixture(2).fit(np.eye(4))


def test_a_family_of_ones_own(monkeypatch, tmp_path) -> None:
    """With its density alone: mixtures, comparisons and files."""

    class OwnFamily(own_family.SquaredChordFamily):  # classes of other tests may live on, so its name is new
        name = "own_chord"

    family = registered(monkeypatch, OwnFamily())
    mixture = mixture_named(family.name)
    assert mixture is mixture_named(family.name)
    assert mixture.__name__ == "OwnChordMixture"
    assert issubclass(mixture.distribution, RotationallySymmetric)
    fitted = mixture(3, random_state=0).fit(X)
    assert adjusted_rand_score(LABELS, fitted.predict(X)) > 0.95
    again = load(fitted.save(tmp_path / "model.safetensors"))
    assert type(again) is mixture
    np.testing.assert_array_equal(again.predict(X), fitted.predict(X))
    assert "squared chord, tied" in [choice.model for choice in compare(X, [1], random_state=0)]


def test_the_first_mixture_that_is_written_is_the_familys(monkeypatch) -> None:
    family = registered(monkeypatch)

    class OwnMixture(SphericalMixture):
        distribution = distribution_named(family.name)

    assert mixture_named(family.name) is OwnMixture

    class LaterMixture(SphericalMixture):
        distribution = OwnMixture.distribution

    assert mixture_named(family.name) is OwnMixture


COPIES = {"pickle": lambda one: pickle.loads(pickle.dumps(one)), "deepcopy": copy.deepcopy}


@pytest.mark.parametrize("copied", COPIES.values(), ids=COPIES)
def test_copies_of_a_family_of_ones_own(copied, monkeypatch) -> None:
    family = registered(monkeypatch)
    assert copied(family) is family
    q = distribution_named(family.name)(torch.eye(3), torch.tensor([1.0, 2.0, 3.0]))
    twin = copied(q)
    assert type(twin) is type(q)
    torch.testing.assert_close(twin.log_prob(torch.eye(3)), q.log_prob(torch.eye(3)), rtol=0, atol=0)
    fitted = mixture_named(family.name)(3, random_state=0).fit(X)
    np.testing.assert_array_equal(copied(fitted).predict_proba(X), fitted.predict_proba(X))
    derived = copied(Derived(2).fit(X))  # which can be imported, so it is copied as usual
    assert type(derived) is Derived


class Derived(PowerSphericalMixture):
    """A subclass of an estimator."""


@pytest.mark.parametrize("copied", COPIES.values(), ids=COPIES)
@pytest.mark.parametrize("family", [POWER_SPHERICAL, VON_MISES_FISHER, SPHERICAL_CAUCHY], ids=str)
def test_a_copy_of_a_family_is_the_family(family, copied) -> None:
    """So a divergence within it keeps a formula of its own, with all digits of close parameters."""
    assert copied(family) is family


def test_a_pickle_brings_its_family(monkeypatch) -> None:
    """As to the processes of ``GridSearchCV(n_jobs=2)``, which have not registered it."""
    with monkeypatch.context() as elsewhere:
        family = registered(elsewhere)
        fitted = mixture_named(family.name)(3, random_state=0).fit(X)
        q = fitted.distribution(torch.eye(3), 2.0)
        content, expected = pickle.dumps((fitted, q)), (fitted.predict(X), q.log_prob(torch.eye(3)))
    own_family.use(monkeypatch, own_family.entries())
    assert family.name not in family_names()
    fitted, q = pickle.loads(content)
    assert type(fitted) is mixture_named(family.name)
    np.testing.assert_array_equal(fitted.predict(X), expected[0])
    torch.testing.assert_close(q.log_prob(torch.eye(3)), expected[1], rtol=0, atol=0)


def with_outliers(seed: int, dim: int = 8, clusters: int = 6) -> tuple[torch.Tensor, torch.Tensor]:
    """Points of clusters, the cluster of each, and after them uniform points, a fifth of all."""
    generator = torch.Generator().manual_seed(seed)
    uniform = HypersphericalUniform(dim)
    centres = uniform.sample((clusters,), generator=generator)
    points = VonMisesFisher(centres, 30.0).sample((300,), generator=generator).reshape(-1, dim)
    outliers = uniform.sample((len(points) // 4,), generator=generator)
    return torch.cat([points, outliers]), torch.arange(clusters).repeat(300)


@pytest.mark.parametrize(("concentration_type", "margin"), [("tied", 0.01), ("free", 0.05)])
def test_heavy_tails_find_clusters_among_outliers(concentration_type: str, margin: float) -> None:
    """As `benchmarks/clustering.py outliers` measures it, over more seeds."""
    index = {SphericalCauchyMixture: 0.0, VonMisesFisherMixture: 0.0}
    for seed in range(10):
        x, labels = with_outliers(seed)
        for mixture in index:
            fitted = mixture(6, concentration_type=concentration_type, n_init=5, random_state=seed).fit(x)
            index[mixture] += adjusted_rand_score(labels, fitted.predict(x[: len(labels)])) / 10
    assert index[SphericalCauchyMixture] > 0.95
    assert index[SphericalCauchyMixture] > index[VonMisesFisherMixture] + margin
