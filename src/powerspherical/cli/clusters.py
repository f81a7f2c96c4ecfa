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


def picture(clusters: Clusters) -> "Figure":
    """A plot of a sample of rows, coloured and numbered by cluster: see `powerspherical.plot.plot_clusters`."""
    from matplotlib.figure import Figure

    from powerspherical.plot import plot_clusters

    figure = Figure(figsize=(7, 7), layout="constrained")
    axes = figure.add_subplot(projection="3d" if clusters.shown.shape[1] == 3 else None)
    plot_clusters(clusters.shown, clusters.shown_labels, axes)
    return figure
