"""Points coloured by cluster."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.typing import ColorType
from mpl_toolkits.mplot3d import Axes3D
from torch import Tensor

from powerspherical.plot import _circle, _globe
from powerspherical.plot._shared import FAINT, Array, distinct_colours, plane_axes, space_axes, unit_rows

NAMED = 150  # maximum number of clusters with a name in the plot
_PLANE_FROM = 1000  # number of points that determine the plane, with fewer than three clusters

Cluster = tuple[str, ColorType, Any]  # name, colour, and a mask of the rows (n,) or the points (m, d)


def plot_clusters(
    X: Any,
    labels: Any,
    ax: Axes | None = None,
    *,
    names: Sequence[str] | None = None,
    view: tuple[float, float] | None = None,
) -> Axes:
    """Plot points on the sphere, coloured and named by cluster, and return the axes.

    On the circle (d = 2) each cluster is a histogram that rises outwards. On the sphere (d = 3) points are dots, which
    are faint on the far side. For d > 3 the points are projected onto the plane of the two principal directions of the
    clusters' mean directions, or of the points if there are fewer than three clusters.

    Args:
        X: vectors of shape (n, d), which are normalised. An array, or a tensor on any device.
        labels: the cluster of each row, of shape (n,), or a fitted estimator with a method ``predict``. Rows with the
            label -1 belong to no cluster: they are grey.
        ax: the axes to draw on: ``projection="3d"`` for d = 3, else flat. Default: those of a new pyplot figure.
        names: one text per cluster, in the order of the sorted labels. Default: the labels.
        view: for d = 3, elevation and azimuth in degrees from which to look. Default: from the middle of the clusters.

    All rows are drawn: of very many, pass a random subset. Up to six clusters have colours that are safe for every
    colour vision. The first 150 clusters have their names in the plot.

    >>> import torch
    >>> from powerspherical import VonMisesFisher
    >>> X = VonMisesFisher(torch.eye(10)[:4], 50.0).sample((100,)).flatten(0, 1)
    >>> ax = plot_clusters(X, torch.arange(4).repeat(100), names=["north", "east", "south", "west"])
    >>> [text.get_text() for text in ax.texts]
    ['north', 'east', 'south', 'west']
    """
    rows = unit_rows(X)
    labels = labels.predict(X) if hasattr(labels, "predict") else labels
    labels = labels.cpu().numpy() if isinstance(labels, Tensor) else np.asarray(labels)
    if labels.shape != rows.shape[:1]:
        raise ValueError(
            f"labels has the shape {labels.shape}, but X has {len(rows)} rows: pass one label per row"
        )
    outside = labels == -1
    found = np.unique(labels[~outside])
    names = [str(label) for label in found] if names is None else names
    if len(names) != len(found):
        raise ValueError(f"names has {len(names)} texts for {len(found)} clusters: pass one name per cluster")
    shown = [name if place < NAMED else "" for place, name in enumerate(names)]
    masks = [labels == label for label in found]
    clusters: list[Cluster] = list(zip(shown, distinct_colours(len(found)), masks, strict=True))
    if rows.shape[1] > 3:
        return _on_plane(plane_axes(ax, (6, 6)), rows, clusters, outside)
    clusters, others = [(name, colour, rows[mask]) for name, colour, mask in clusters], rows[outside]
    if rows.shape[1] == 2:
        return _on_circle(plane_axes(ax), clusters, others)
    return _on_sphere(space_axes(ax), clusters, others, view)


def _mean_direction(points: Array) -> Array:
    """Return the direction of the mean (d,), or that of the first point if the mean is zero."""
    mean = points.mean(0)
    length = np.linalg.norm(mean)
    return mean / length if length > 1e-12 else points[0]


def _on_circle(axes: Axes, clusters: list[Cluster], others: Array) -> Axes:
    groups = [*clusters, ("", FAINT, others)] if len(others) else clusters
    count = sum(len(points) for _, _, points in groups)
    bars = [len(points) / count * _circle.bar_heights(points) for _, _, points in groups]
    scale = 0.75 / max(heights.max() for heights in bars)
    _circle.draw_rim(axes)
    for (name, colour, points), heights in zip(groups, bars, strict=True):
        _circle.draw_bars(axes, scale * heights, colour)
        _circle.draw_name(axes, _mean_direction(points), 1.08 + scale * heights.max(), name, colour)
    return axes


def _on_sphere(
    axes: Axes3D, clusters: list[Cluster], others: Array, view: tuple[float, float] | None
) -> Axes:
    directions = [_mean_direction(points) for _, _, points in clusters]
    middle = np.mean(directions, axis=0) if directions else others.mean(0)
    _globe.set_view(axes, view or _globe.view_of(middle))
    _globe.draw_ball(axes, _globe.mesh(np.array([0.0, 0.0, 1.0]), np.linspace(0, np.pi, 91)), np.ones(3))
    _globe.draw_points(axes, others, FAINT)
    for _, colour, points in clusters:
        _globe.draw_points(axes, points, colour)
    for direction, (name, colour, _) in zip(directions, clusters, strict=True):
        if name:
            _globe.draw_name(axes, direction, name, colour)
    return axes


def _on_plane(axes: Axes, rows: Array, clusters: list[Cluster], outside: Any) -> Axes:
    spread = np.array([_mean_direction(rows[mask]) for _, _, mask in clusters])
    if len(spread) < 3:
        everything = np.concatenate([rows[mask] for *_, mask in clusters] + [rows[outside]])
        spread = everything[:: -(-len(everything) // _PLANE_FROM)]
    flat = rows @ principal_plane(spread).T  # (n, 2)
    for name, colour, mask in (("", FAINT, outside), *clusters):
        x, y = flat[mask].T
        axes.scatter(x, y, s=6, linewidths=0, alpha=0.6, color=colour)
        if name:
            box = {"boxstyle": "round,pad=0.2", "fc": "white", "ec": colour, "lw": 0.8, "alpha": 0.85}
            axes.text(x.mean(), y.mean(), name, fontsize=7, ha="center", va="center", bbox=box)
    axes.set_aspect("equal", "datalim")
    axes.set(xticks=[], yticks=[], xlabel="first principal direction", ylabel="second principal direction")
    axes.spines[:].set_color(FAINT)
    return axes


def principal_plane(points: Array) -> Array:
    """Return the two principal directions of points (n, d), as rows (2, d). Zero where the points do not vary."""
    _, lengths, rows = np.linalg.svd(points - points.mean(0), full_matrices=False)
    plane = np.zeros((2, points.shape[1]))
    kept = rows[:2][lengths[:2] > 1e-12]
    # The sign of a singular vector is arbitrary: make its largest coordinate positive.
    signs = np.sign(np.take_along_axis(kept, np.abs(kept).argmax(1, keepdims=True), 1))
    plane[: len(kept)] = kept * signs
    return plane
