"""Train embeddings with an uncertainty: ambiguous queries get a smaller concentration κ.

The input is an .npz file with arrays "embeddings" (n, d) and "labels" (n,). A small network maps an embedding to a
Power Spherical distribution, the query. Each class has a learned direction, its target. ``ProbabilisticEmbeddingLoss``
trains both. A quarter of the training queries are ambiguous: the mean of two random embeddings, with the label of one
of them. A table then compares κ of clear and ambiguous held-out queries. The means of two embeddings of one class are
the control: averaging alone must not lower κ.

Run it with ``python examples/ambiguous_queries.py data.npz --figure kappa.png`` (the figure needs matplotlib).
"""

from __future__ import annotations

import argparse
import importlib.util
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from powerspherical import PowerSpherical
from powerspherical.nn import ProbabilisticEmbeddingLoss, SphericalHead

DIM, HIDDEN = 16, 512
BATCH, LEARNING_RATE, AMBIGUOUS = 256, 1e-2, 0.25


class Embedder(nn.Module):
    """Maps embeddings (B, d) to distributions on a sphere, which also has a direction for each class."""

    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(features, HIDDEN), nn.GELU())
        self.head = SphericalHead(HIDDEN, DIM, initial=float(DIM))
        self.classes = nn.Parameter(torch.randn(classes, DIM))

    def forward(self, embeddings: Tensor) -> PowerSpherical:
        """Return the queries, of batch shape (B,)."""
        return self.head(self.body(embeddings * embeddings.shape[1] ** 0.5))  # entries of about 1

    def targets(self) -> Tensor:
        """Return the directions of the classes, (classes, DIM)."""
        return normalize(self.classes, dim=-1)


def load(path: Path) -> tuple[Tensor, Tensor]:
    """Return unit vectors (n, d) in float32 and labels 0, 1, … (n,)."""
    if not path.exists():
        raise SystemExit(f"there is no file {path}")
    with np.load(path) as arrays:
        missing = {"embeddings", "labels"} - set(arrays)
        if missing:
            raise SystemExit(
                f"{path} has no array named {' or '.join(sorted(missing))}: it has {', '.join(arrays)}"
            )
        embeddings, labels = arrays["embeddings"], arrays["labels"]
    if embeddings.ndim != 2 or labels.shape != embeddings.shape[:1] or not np.isfinite(embeddings).all():
        raise SystemExit(
            f"{path} must hold finite embeddings (n, d) and labels (n,), "
            f"got the shapes {embeddings.shape} and {labels.shape}"
        )
    _, labels = np.unique(labels, return_inverse=True)
    return normalize(torch.from_numpy(embeddings.astype(np.float32)), dim=-1), torch.from_numpy(labels)


def train(embeddings: Tensor, labels: Tensor, steps: int) -> Embedder:
    """Return the trained network."""
    model = Embedder(embeddings.shape[1], int(labels.max()) + 1)
    loss = ProbabilisticEmbeddingLoss()
    optimiser = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    decay = torch.optim.lr_scheduler.LinearLR(optimiser, 1.0, 0.05, total_iters=steps)
    for step in range(steps):
        chosen, partners = torch.randint(len(labels), (2, BATCH))
        queries, mixed = embeddings[chosen], int(AMBIGUOUS * BATCH)
        queries[:mixed] = normalize(queries[:mixed] + embeddings[partners[:mixed]], dim=-1)
        optimiser.zero_grad()
        value = loss(model(queries), model.targets(), labels[chosen])
        value.backward()
        if step % 100 == 0:
            print(f"step {step} of {steps}: loss {value:.3f}", flush=True)
        optimiser.step()
        decay.step()
    return model


def pair_means(embeddings: Tensor, labels: Tensor, *, same_class: bool) -> Tensor:
    """Return the normalised means of pairs of embeddings, each with a random partner."""
    # Sorting by label, in random order within a class, makes neighbours of one class.
    order = torch.argsort(labels + torch.rand(len(labels))) if same_class else torch.randperm(len(labels))
    first, second = order[:-1], order[1:]
    kept = (labels[first] == labels[second]) == same_class
    return normalize(embeddings[first[kept]] + embeddings[second[kept]], dim=-1)


def smaller(values: Tensor, reference: Tensor) -> float:
    """Return the probability that a random entry of ``values`` is smaller than one of ``reference``."""
    return 1 - torch.searchsorted(reference.sort().values, values).double().mean().item() / len(reference)


def measure(model: Embedder, embeddings: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """Return κ of four kinds of queries."""
    with torch.no_grad():
        queries = model(embeddings)
        right = queries.log_prob_matrix(model.targets()).argmax(-1) == labels
        means = (
            model(pair_means(embeddings, labels, same_class=same)).concentration for same in (True, False)
        )
        kinds = (queries.concentration[right], queries.concentration[~right], *means)
    names = (
        "one class, recognised",
        "one class, misclassified",
        "mean of two, same class",
        "mean of two classes",
    )
    return dict(zip(names, kinds, strict=True))


def draw_figure(found: dict[str, Tensor], path: Path) -> None:
    """Write histograms of κ."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 3.5), layout="constrained")
    axes = figure.subplots()
    everything = torch.cat([*found.values()])
    bins = np.linspace(0.0, everything.quantile(0.999).item(), 50)
    for name, kappa in found.items():
        if len(kappa):
            axes.hist(kappa.numpy(), bins, density=True, histtype="step", linewidth=1.5, label=name)
    axes.set(xlabel="concentration κ", ylabel="density")
    figure.legend(loc="outside upper center", ncols=2, frameon=False)
    figure.savefig(path, dpi=150)


def main(arguments: list[str] | None = None) -> dict[str, Tensor]:
    """Train on four fifths of the data, print a table of κ for the rest, and return κ of each kind of queries."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path, help='.npz file with arrays "embeddings" (n, d) and "labels" (n,)')
    parser.add_argument("--figure", type=Path, help="write histograms of κ to this file")
    parser.add_argument("--steps", type=int, default=600, help="training steps (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="random seed (default: %(default)s)")
    options = parser.parse_args(arguments)
    if options.figure and importlib.util.find_spec("matplotlib") is None:
        raise SystemExit("--figure needs matplotlib: pip install matplotlib")
    torch.manual_seed(options.seed)
    embeddings, labels = load(options.data)
    held_out, training = torch.randperm(len(labels)).tensor_split([len(labels) // 5])
    model = train(embeddings[training], labels[training], options.steps)
    found = measure(model, embeddings[held_out], labels[held_out])
    reference, wrong, *_ = found.values()
    print(f"accuracy of held-out queries: {len(reference) / (len(reference) + len(wrong)):.3f}")
    print(f"{'queries':<26}{'number':>8}{'median κ':>10}{'P(κ < κ of recognised)':>25}")
    for name, kappa in found.items():
        number, median = len(kappa), kappa.median() if len(kappa) else torch.nan
        print(f"{name:<26}{number:>8}{median:>10.1f}{smaller(kappa, reference):>25.3f}")
    if options.figure:
        draw_figure(found, options.figure)
        print(f"wrote {options.figure}")
    return found


if __name__ == "__main__":
    main()
