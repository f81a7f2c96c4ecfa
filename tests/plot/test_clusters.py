"""`plot_clusters` on the circle, on the sphere and in a plane of principal directions."""

import numpy as np
import pytest
import torch
from matplotlib.collections import PathCollection
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from powerspherical import HypersphericalUniform, VonMisesFisher
from powerspherical.mixture import SphericalKMeans, VonMisesFisherMixture
from powerspherical.plot import plot_clusters


def axes_for(dim):
    return Figure().add_subplot(projection="3d" if dim == 3 else None)


def clustered(dim, count):
    """Points (40·count, dim) around `count` directions, and their labels."""
    loc = HypersphericalUniform(dim).sample((count,))
    return VonMisesFisher(loc, 200.0).sample((40,)).flatten(0, 1), torch.arange(count).repeat(40)


def shown_colours(axes, dim):
    """The colours of the bars on the circle, and else of the dots, without those at the mean directions."""
    if dim == 2:
        groups = axes.collections
    else:
        dots = [one for one in axes.collections if isinstance(one, PathCollection)]
        groups = [one for one in dots if len(one.get_offsets())]
    return {to_hex(one.get_facecolor()[0]) for one in groups} - {"#333333"}


@pytest.mark.parametrize("dim", [2, 3, 8])
@pytest.mark.parametrize("count", [1, 3, 9])
def test_each_cluster_has_a_colour_and_a_name(dim, count):
    X, labels = clustered(dim, count)
    axes = axes_for(dim)
    assert plot_clusters(X, labels, axes) is axes
    assert [text.get_text() for text in axes.texts] == [str(i) for i in range(count)]
    assert len(shown_colours(axes, dim)) == count


@pytest.mark.parametrize("dim", [2, 3, 8])
def test_rows_without_a_cluster_are_grey_and_nameless(dim):
    X, labels = clustered(dim, 3)
    labels[:20] = -1
    axes = plot_clusters(X, labels, axes_for(dim), names=["a", "b", "c"])
    assert [text.get_text() for text in axes.texts if text.get_text()] == ["a", "b", "c"]
    assert len(shown_colours(axes, dim)) == 4
    assert "#9a9a9a" in shown_colours(axes, dim)
    plot_clusters(X, np.full(len(X), -1), axes_for(dim))  # no cluster at all


def test_estimators_label_the_rows():
    X, _ = clustered(4, 3)
    X = X.double().numpy()
    for estimator in (SphericalKMeans(3, random_state=0), VonMisesFisherMixture(3, random_state=0)):
        by_estimator = plot_clusters(X, estimator.fit(X), axes_for(4))
        by_labels = plot_clusters(X, estimator.predict(X), axes_for(4))
        for one, other in zip(by_estimator.collections, by_labels.collections, strict=True):
            np.testing.assert_array_equal(one.get_offsets(), other.get_offsets())


def test_three_clusters_are_seen_in_the_plane_of_their_directions():
    """It keeps their distances. It is not the plane of the points, which vary most across it."""
    X = np.repeat(np.eye(50)[:3], 2, axis=0)
    X[:, 3] = [2, -2] * 3
    axes = plot_clusters(7 * X, np.repeat(["x", "y", "z"], 2), axes_for(50))
    offsets = np.array([one.get_offsets() for one in axes.collections[1:]])
    np.testing.assert_allclose(np.ptp(offsets, axis=1), 0, atol=1e-12)
    gaps = np.linalg.norm(offsets - np.roll(offsets, 1, axis=0), axis=-1)
    np.testing.assert_allclose(gaps, np.sqrt(2 / 5))


def test_the_principal_plane_of_few_clusters_is_that_of_the_points():
    """They vary most along the third axis, then along the first. A single point does not vary."""
    X = np.array([[0.3, 0, 0, 0], [-0.3, 0, 0, 0], [0, 0, 0.6, 0], [0, 0, -0.6, 0]])
    X[:, 3] = np.sqrt(1 - np.square(X).sum(1))
    for rows, expected in ((X, X[:, [2, 0]]), (X[:1], [[0, 0]])):
        _, shown = plot_clusters(rows, np.zeros(len(rows)), axes_for(4)).collections
        np.testing.assert_allclose(shown.get_offsets(), expected, atol=1e-12)


def test_the_sphere_is_seen_from_the_middle_of_the_clusters():
    X = VonMisesFisher(torch.eye(3), 1e6).sample((40,)).flatten(0, 1)
    axes = plot_clusters(X, torch.arange(3).repeat(40), axes_for(3))
    assert (axes.elev, axes.azim) == pytest.approx((35.26, 45), abs=0.1)
    assert (plot_clusters(X, torch.zeros(120), axes_for(3), view=(10, 20))).elev == 10


def test_a_new_figure(pyplot):
    axes = plot_clusters(*clustered(3, 2))
    assert pyplot.gcf().axes == [axes]


@pytest.mark.parametrize(
    ("rows", "labels", "options", "says"),
    [
        (slice(None), slice(3), {}, r"labels has the shape \(3,\), but X has 80 rows"),
        (slice(None), slice(None), {"names": ["one"]}, "names has 1 texts for 2 clusters"),
        (0, slice(None), {}, r"points must have the shape \(n, d\), n ≥ 1, got \(3,\)"),
    ],
)
def test_bad_arguments(rows, labels, options, says):
    X, found = clustered(3, 2)
    with pytest.raises(ValueError, match=says):
        plot_clusters(X[rows], found[labels], **options)
