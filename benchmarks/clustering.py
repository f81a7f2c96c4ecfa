"""Quality of clusterings, in three benchmarks: `labelled`, `components` and `outliers`.

`labelled` compares our estimators with scikit-learn's KMeans on labelled unit vectors. The data are scikit-learn's
digits and the named files: .npz with `embeddings` and `labels`, or a pair of MNIST's files, as IMAGES:LABELS. Every
method has its default settings, one start per seed, and the true number of clusters. For the mixtures the
log-likelihood of a held-out row is shown too, from a fifth of the rows.

`components` compares tied and free concentrations by the number of components, on one labelled file.
`powerspherical.mixture.compare` fits both families, tied and free, to four fifths of the rows. The figure shows the
likelihood of the others, BIC, and the agreement of all rows with the labels, which no fit has seen.

`outliers` recovers planted clusters: von Mises–Fisher around random directions, with a fifth of all points uniform.
Each mixture has one component per cluster and none for the outliers. Its agreement is that of the points in clusters.

Agreement is the adjusted Rand index (ARI). All results are means over seeds.

    python benchmarks/clustering.py labelled [FILE ...] [--device cpu|cuda] [--threads N] [--quick] [--out DIR]
    python benchmarks/clustering.py components FILE [--threads N] [--quick] [--out DIR]
    python benchmarks/clustering.py outliers [--threads N] [--quick] [--out DIR]
"""

import gzip
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from _command import Command, Row, grouped, table
from sklearn.cluster import KMeans
from sklearn.datasets import load_digits
from sklearn.metrics import adjusted_rand_score
from threadpoolctl import threadpool_limits
from torch import Tensor

from powerspherical import HypersphericalUniform, VonMisesFisher
from powerspherical.families import family_named, family_names
from powerspherical.mixture import (
    PowerSphericalMixture,
    SphericalKMeans,
    VonMisesFisherMixture,
    compare,
    mixture_named,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PEER = "scikit-learn KMeans"
FAMILIES = {"Power Spherical": PowerSphericalMixture, "von Mises–Fisher": VonMisesFisherMixture}
MIXTURES: dict[str, Callable[..., Any]] = {
    f"{name}, {kind}": partial(family, concentration_type=kind)
    for kind in ("tied", "free")
    for name, family in FAMILIES.items()
}
METHODS = {PEER: partial(KMeans, n_init=1), "spherical k-means": SphericalKMeans, **MIXTURES}
COMPONENTS, QUICK_COMPONENTS = (10, 20, 40, 77, 110, 150, 300, 600), (2, 10)
PANELS = {
    "held_out": "Log-likelihood of a held-out row",
    "bic": "BIC (lower is better)",
    "ari": "Adjusted Rand index",
}
CLUSTERS, POINTS, QUICK_POINTS, OUTLIERS, STARTS = 6, 300, 60, 0.2, 5
SETTINGS = ((8, 30.0), (16, 40.0), (32, 60.0))  # d and κ of planted clusters

Labelled = tuple[str, np.ndarray, np.ndarray]


def read(name: str) -> Labelled:
    """Return the name of a data set, its rows as float32 unit vectors, and their labels."""
    if ":" in name:
        images, labels = (gzip.decompress(Path(part).read_bytes()) for part in name.split(":"))
        y = np.frombuffer(labels, np.uint8, offset=8)
        x = np.frombuffer(images, np.uint8, offset=16).reshape(len(y), -1)
        return Path(name.split(":")[0]).name.partition("-")[0] + "-mnist", unit(x), y
    with np.load(name) as file:
        return Path(name).stem, unit(file["embeddings"]), file["labels"]


def unit(x: np.ndarray) -> np.ndarray:
    """Normalise the rows."""
    x = x.astype(np.float32)
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def scored(make: Callable[..., Any], x: Any, y: np.ndarray, seeds: int) -> Row:
    """Return the quality of one method on one data set."""
    clusters = len(np.unique(y))
    indices, held_out = [], []
    started = time.perf_counter()
    fold = np.random.default_rng(0).permutation(len(x)) % 5 == 0
    for seed in range(seeds):
        model = make(clusters, random_state=seed).fit(x)
        labels = model.predict(x)
        indices.append(adjusted_rand_score(y, labels.cpu() if isinstance(labels, Tensor) else labels))
        if hasattr(model, "score_samples"):
            held_out.append(make(clusters, random_state=seed).fit(x[~fold]).score(x[fold]))
    return {
        "ari": statistics.fmean(indices),
        "each": indices,
        "held_out": statistics.fmean(held_out) if held_out else None,
        "seconds": round(time.perf_counter() - started, 3),
    }


def labelled(command: Command, sets: list[Labelled]) -> None:
    """Fit every method to every data set, print the table, and write `clustering.json`."""
    seeds, threads = 1 if command.quick else 5, torch.get_num_threads()
    rows = []
    with threadpool_limits(threads):
        for (name, x, y), (method, make) in product(sets, METHODS.items()):
            on_cpu = method == PEER or command.device.type == "cpu"
            common = {"data": name, "rows": len(x), "dim": x.shape[1], "clusters": len(np.unique(y))}
            here = x if on_cpu else torch.from_numpy(x).to(command.device)
            rows.append(common | {"method": method} | scored(make, here, y, seeds))

    def cell(row: Row) -> str:
        return f"{row['ari']:.3f}" + ("" if row["held_out"] is None else f" ({row['held_out']:.2f})")

    configuration = {"seeds": seeds, "n_init": 1, "threads": threads}
    shown = table(
        "Adjusted Rand index (log-likelihood of a held-out row)",
        ("method", *(name for name, _, _ in sets)),
        grouped(rows, ("method",), cell),
    )
    command.finish({"configuration": configuration, "results": rows}, [shown])


def by_components(command: Command, data: Labelled) -> None:
    """Fit by the number of components, and write `clustering_choice.json` and `.png`."""
    name, x, y = data
    components, seeds = (QUICK_COMPONENTS, 1) if command.quick else (COMPONENTS, 3)
    models = {model: make() for model, make in MIXTURES.items()}
    criteria = ("model", "n_components", "held_out", "training", "bic")
    rows = [
        {"seed": seed}
        | {key: getattr(choice, key) for key in criteria}
        | {"ari": adjusted_rand_score(y, choice.mixture.predict(x))}
        for seed in range(seeds)  # each has its own split
        for choice in compare(x, components, models=models, random_state=seed)
    ]
    classes = len(np.unique(y))
    configuration = {"data": name, "rows": len(x), "dim": x.shape[1], "classes": classes, "seeds": seeds}
    command.finish({"configuration": configuration, "results": rows}, figure=drawn(rows, classes))


def drawn(rows: list[Row], classes: int) -> "Figure":
    """Return three panels by the number of components, means over seeds. Solid lines are tied, dashed lines free."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 3.4), layout="constrained")
    panels = figure.subplots(1, 3)
    counts = sorted({row["n_components"] for row in rows})
    for axes, (member, title) in zip(panels, PANELS.items(), strict=True):
        for model in MIXTURES:
            values = {count: [] for count in counts}
            for row in rows:
                if row["model"] == model:
                    values[row["n_components"]].append(row[member])
            means = list(map(statistics.fmean, values.values()))
            colour = "C0" if model.startswith("Power") else "C1"
            line = "--" if model.endswith("free") else "-"
            axes.plot(counts, means, line, color=colour, marker="o", markersize=3.5, label=model)
        axes.axvline(classes, color="0.8", zorder=0)
        axes.set_title(title, fontsize=10)
        axes.set_xscale("log")
        axes.set_xticks(counts, map(str, counts), fontsize=6.5)
        axes.minorticks_off()
        axes.set_xlabel("components (grey: the number of classes)")
        axes.grid(alpha=0.25)
    panels[0].legend(fontsize=8, frameon=False)
    return figure


def planted(dim: int, kappa: float, points: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return unit vectors, first those in clusters and then the outliers, and the cluster labels of the former."""
    generator = torch.Generator().manual_seed(seed)
    centres = HypersphericalUniform(dim).sample((CLUSTERS,), generator=generator)
    near = VonMisesFisher(centres, kappa).sample((points,), generator=generator).reshape(-1, dim)
    outliers = round(len(near) * OUTLIERS / (1 - OUTLIERS))
    far = HypersphericalUniform(dim).sample((outliers,), generator=generator)
    return torch.cat([near, far]), torch.arange(CLUSTERS).repeat(points)


def recovered(settings: tuple[tuple[int, float], ...], points: int, seeds: int) -> Iterator[Row]:
    """Yield the agreement of the mixtures of every family, tied and free, in every setting."""
    for (dim, kappa), kind, name in product(settings, ("tied", "free"), family_names()):
        each = []
        for seed in range(seeds):
            x, labels = planted(dim, kappa, points, seed)
            options = {"concentration_type": kind, "n_init": STARTS, "random_state": seed}
            mixture = mixture_named(name)(CLUSTERS, **options).fit(x)
            each.append(float(adjusted_rand_score(labels, mixture.predict(x[: len(labels)]))))
        setting = {"dim": dim, "concentration": kappa, "method": f"{family_named(name).title}, {kind}"}
        yield setting | {"ari": statistics.fmean(each), "each": each}


def outliers(command: Command) -> None:
    """Fit to planted clusters, print the table, and write `robust_clustering.json`."""
    settings, points, seeds = (SETTINGS[:1], QUICK_POINTS, 1) if command.quick else (SETTINGS, POINTS, 10)
    rows = list(recovered(settings, points, seeds))
    sizes = {"clusters": CLUSTERS, "points_per_cluster": points, "outliers": OUTLIERS}
    shown = table(
        f"Adjusted Rand index, {OUTLIERS:.0%} outliers",
        ("method", *(f"d = {dim}, κ = {kappa:g}" for dim, kappa in settings)),
        grouped(rows, ("method",), lambda row: f"{row['ari']:.3f}"),
    )
    command.finish({"configuration": sizes | {"n_init": STARTS, "seeds": seeds}, "results": rows}, [shown])


NAMES = {"labelled": "clustering", "components": "clustering_choice", "outliers": "robust_clustering"}


def main(argv: list[str] | None = None) -> None:
    """Run one of the three benchmarks."""
    files = {"nargs": "*", "metavar": "FILE", "help": "data.npz, or IMAGES:LABELS of MNIST"}
    command = Command("clustering", __doc__, argv, {"what": {"choices": list(NAMES)}, "files": files})
    what, names = command.arguments.what, command.arguments.files
    command.name = NAMES[what]
    wanted = {"labelled": len(names), "components": 1, "outliers": 0}[what]
    if len(names) != wanted:
        command.error(f"{what} takes {wanted} data files, not {len(names)}")
    if command.device.type == "cuda" and what != "labelled":
        command.error(f"{what} runs on the CPU")
    try:
        sets = [read(name) for name in names]
    except (OSError, KeyError, ValueError) as error:
        command.error(f"cannot read the data: {error}")
    if what == "labelled":
        digits, labels = load_digits(return_X_y=True)
        labelled(command, [("digits", unit(digits), labels), *sets])
    elif what == "components":
        by_components(command, sets[0])
    else:
        outliers(command)


if __name__ == "__main__":
    main()
