"""Quality of clusterings of labelled data, compared with scikit-learn's KMeans on unit vectors.

The data are scikit-learn's digits and the files that are named: .npz with `embeddings` and `labels`, or a pair of
MNIST's files, as IMAGES:LABELS. Every method has its default settings, one start a seed, and the true number of
clusters; the adjusted Rand index (ARI) is averaged over the seeds. For the mixtures the log-likelihood of a held-out
row is shown too, from a fifth of the rows. `--device cuda` is for our methods alone.

    python benchmarks/clustering.py [FILE ...] [--device cpu|cuda] [--threads N] [--quick] [--out DIR]
"""

import gzip
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _command import Command, Row, grouped, table
from sklearn.cluster import KMeans
from sklearn.datasets import load_digits
from sklearn.metrics import adjusted_rand_score
from threadpoolctl import threadpool_limits

from powerspherical.mixture import PowerSphericalMixture, SphericalKMeans, VonMisesFisherMixture

SEEDS, QUICK_SEEDS = 5, 2
PEER = "scikit-learn KMeans"
METHODS: dict[str, Callable[..., Any]] = {
    PEER: partial(KMeans, n_init=1),
    "spherical k-means": SphericalKMeans,
    "Power Spherical, tied": PowerSphericalMixture,
    "von Mises–Fisher, tied": VonMisesFisherMixture,
    "Power Spherical, free": partial(PowerSphericalMixture, concentration_type="free"),
    "von Mises–Fisher, free": partial(VonMisesFisherMixture, concentration_type="free"),
}

Labelled = tuple[str, np.ndarray, np.ndarray]


def read(name: str) -> Labelled:
    """Return the name of a data set, its rows as float32 unit vectors, and their labels."""
    if ":" in name:
        images, labels = (gzip.decompress(Path(part).read_bytes()) for part in name.split(":"))
        y = np.frombuffer(labels, np.uint8, offset=8)
        x = np.frombuffer(images, np.uint8, offset=16).reshape(len(y), -1)
        title = Path(name.split(":")[0]).name.partition("-")[0] + "-mnist"
    else:
        with np.load(name) as file:
            x, y = file["embeddings"], file["labels"]
        title = Path(name).stem
    return title, unit(x), y


def read_all(command: Command, names: list[str]) -> list[Labelled]:
    """Read the named data sets. Ends the command if one cannot be read."""
    try:
        return [read(name) for name in names]
    except (OSError, KeyError, ValueError) as error:
        command.error(f"cannot read the data: {error}")


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
        indices.append(adjusted_rand_score(y, labels.cpu() if isinstance(labels, torch.Tensor) else labels))
        if hasattr(model, "score_samples"):
            held_out.append(make(clusters, random_state=seed).fit(x[~fold]).score(x[fold]))
    return {
        "ari": statistics.fmean(indices),
        "each": indices,
        "held_out": statistics.fmean(held_out) if held_out else None,
        "seconds": round(time.perf_counter() - started, 3),
    }


def results(sets: list[Labelled], seeds: int, device: torch.device) -> Iterator[Row]:
    """Yield the results of every method on every data set."""
    for name, x, y in sets:
        common = {"data": name, "rows": len(x), "dim": x.shape[1], "clusters": len(np.unique(y))}
        for method, make in METHODS.items():
            here = x if method == PEER or device.type == "cpu" else torch.from_numpy(x).to(device)
            yield common | {"method": method} | scored(make, here, y, seeds)


def cell(row: Row) -> str:
    """Return the index of a result and, for a mixture, its likelihood as text."""
    return f"{row['ari']:.3f}" + ("" if row["held_out"] is None else f" ({row['held_out']:.2f})")


def main(argv: list[str] | None = None) -> None:
    """Fit, print the table, and write `clustering.json`."""
    files = {"nargs": "*", "metavar": "FILE", "help": "data.npz, or IMAGES:LABELS of MNIST"}
    command = Command("clustering", __doc__, argv, {"files": files})
    named = read_all(command, command.arguments.files)
    digits, labels = load_digits(return_X_y=True)
    sets = [("digits", unit(digits), labels), *named]
    seeds = QUICK_SEEDS if command.quick else SEEDS
    threads = torch.get_num_threads()
    with threadpool_limits(threads):
        rows = list(results(sets, seeds, command.device))
    configuration = {"seeds": seeds, "n_init": 1, "threads": threads}
    shown = table(
        "Adjusted Rand index (log-likelihood of a held-out row)",
        ("method", *(name for name, _, _ in sets)),
        grouped(rows, ("method",), cell),
    )
    command.finish({"configuration": configuration, "results": rows}, [shown])


if __name__ == "__main__":
    main()
