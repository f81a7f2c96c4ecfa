"""The results of `powerspherical cluster`: labels, central rows, summary and picture."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from powerspherical.cli.columns import Array
from powerspherical.cli.rows import Data

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from powerspherical.mixture import SphericalMixture

CENTRAL = 5  # central rows per cluster
SHOWN = 5000  # maximum number of points in the picture
_AXES_FROM = 1000  # number of points that determine the axes of the picture, with fewer than three clusters
_NUMBERED = 150  # maximum number of clusters with a number in the picture


@dataclass(frozen=True)
class Clusters:
    """The rows of a file, assigned to clusters.

    Attributes:
        labels: the cluster of each row, (n,).
        central: for each cluster, the rows closest to its mean direction and their cosines with it, closest first.
        shown: unit vectors of a random subset of rows, for the picture.
        shown_labels: the clusters of these rows.
    """

    labels: Array
    central: list[list[tuple[int, float]]]
    shown: Array
    shown_labels: Array


def assign(mixture: "SphericalMixture", data: Data, progress: Callable[[int], None]) -> Clusters:
    """Assign each row to its most likely cluster, in one pass over the rows.

    Calls `progress` with the number of rows done.
    """
    directions = np.asarray(mixture.mean_directions_, dtype=np.float64)
    random = np.random.default_rng(0)
    picked = np.sort(random.choice(data.count, min(SHOWN, data.count), replace=False, shuffle=False))
    labels = np.empty(data.count, np.int64)
    best = (np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0))  # clusters, rows, cosines
    shown = []
    for start, block in data.blocks():
        stop = start + len(block)
        labels[start:stop] = found = mixture.predict(block)
        unit = block.astype(np.float64)
        unit /= np.linalg.norm(unit, axis=1, keepdims=True)
        cosines = np.einsum("nd,nd->n", unit, directions[found])
        here = (found, np.arange(start, stop), cosines)
        best = _most_central(*(np.concatenate(pair) for pair in zip(best, here, strict=True)))
        shown.append(unit[picked[(picked >= start) & (picked < stop)] - start])
        progress(stop)
    central: list[list[tuple[int, float]]] = [[] for _ in directions]
    for cluster, row, cosine in zip(*(part.tolist() for part in best), strict=True):
        central[cluster].append((row, cosine))
    return Clusters(labels, central, np.concatenate(shown), labels[picked])


def _most_central(clusters: Array, rows: Array, cosines: Array) -> tuple[Array, Array, Array]:
    """The `CENTRAL` rows with the largest cosines in each cluster, in order."""
    order = np.lexsort((rows, -cosines, clusters))
    clusters, rows, cosines = clusters[order], rows[order], cosines[order]
    rank = np.arange(len(clusters)) - np.searchsorted(clusters, clusters)
    return clusters[rank < CENTRAL], rows[rank < CENTRAL], cosines[rank < CENTRAL]


def summary(
    mixture: "SphericalMixture", clusters: Clusters, data: Data, texts: Mapping[int, str]
) -> dict[str, Any]:
    """Everything but the labels, as JSON values. `texts` maps central rows to their texts, or is empty."""
    sizes = np.bincount(clusters.labels, minlength=len(clusters.central)).tolist()
    return {
        "data": data.name,
        "rows": data.count,
        "dim": data.dim,
        "columns": list(data.columns),
        "converged": bool(mixture.converged_),
        "steps": int(mixture.n_iter_),
        "log_likelihood": float(mixture.lower_bound_),  # per row
        "clusters": [
            {
                "cluster": cluster,
                "size": sizes[cluster],
                "weight": float(mixture.weights_[cluster]),
                "concentration": float(mixture.concentrations_[cluster]),
                "central_rows": [
                    {"row": row, "cosine": cosine} | ({"text": texts[row]} if texts else {})
                    for row, cosine in central
                ],
            }
            for cluster, central in enumerate(clusters.central)
        ],
    }


def picture(mixture: "SphericalMixture", clusters: Clusters) -> "Figure":
    """A scatter plot of rows, coloured and numbered by cluster.

    The plane is spanned by the two principal directions of the mean directions, or of the rows if there are fewer than
    three clusters.
    """
    import matplotlib
    from matplotlib.figure import Figure

    directions = np.asarray(mixture.mean_directions_, dtype=np.float64)
    axes = plane(directions if len(directions) > 2 else clusters.shown[:_AXES_FROM])
    points = clusters.shown @ axes.T
    colours = matplotlib.colormaps["turbo"](np.linspace(0.03, 0.97, len(directions)))
    figure = Figure(figsize=(7, 7), layout="constrained")
    panel = figure.subplots()
    panel.scatter(points[:, 0], points[:, 1], s=6, linewidths=0, alpha=0.6, c=colours[clusters.shown_labels])
    for cluster in np.unique(clusters.shown_labels)[:_NUMBERED]:
        x, y = points[clusters.shown_labels == cluster].mean(0)
        box = {"boxstyle": "circle,pad=0.15", "fc": "white", "ec": colours[cluster], "lw": 0.8, "alpha": 0.85}
        panel.text(x, y, str(cluster), fontsize=6, ha="center", va="center", bbox=box)
    panel.set_aspect("equal", "datalim")
    panel.set(xticks=[], yticks=[], xlabel="first principal direction", ylabel="second")
    return figure


def plane(points: Array) -> Array:
    """The two principal directions of points (n, d), as rows (2, d). Zero where the points do not vary."""
    _, lengths, rows = np.linalg.svd(points - points.mean(0), full_matrices=False)
    axes = np.zeros((2, points.shape[1]))
    kept = rows[:2][lengths[:2] > 1e-12]
    # The sign of a singular vector is arbitrary: make its largest coordinate positive.
    signs = np.sign(np.take_along_axis(kept, np.abs(kept).argmax(1, keepdims=True), 1))
    axes[: len(kept)] = kept * signs
    return axes
