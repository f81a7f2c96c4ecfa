"""Tied and free concentrations compared, by the number of components, on labelled embeddings.

The data are an .npz file with `embeddings` and `labels`. `powerspherical.mixture.compare` fits both families, tied and
free, to four fifths of the rows; the figure shows the likelihood of the others, BIC, and the adjusted Rand index of
all rows with the labels, which no fit has seen; means over three seeds.

    python benchmarks/clustering_choice.py FILE.npz [--threads N] [--quick] [--out DIR]
"""

import statistics
from typing import TYPE_CHECKING

import numpy as np
from _command import Command, Row
from clustering import read_all
from sklearn.metrics import adjusted_rand_score

from powerspherical._files.drafts import atomic_write
from powerspherical.mixture import PowerSphericalMixture, VonMisesFisherMixture, compare

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COMPONENTS, QUICK_COMPONENTS = (10, 20, 40, 77, 110, 150, 300, 600), (2, 10)
SEEDS, QUICK_SEEDS = 3, 1
FAMILIES = {"Power Spherical": PowerSphericalMixture, "von Mises–Fisher": VonMisesFisherMixture}
MODELS = {
    f"{name}, {concentration_type}": family(concentration_type=concentration_type)
    for concentration_type in ("tied", "free")
    for name, family in FAMILIES.items()
}
PANELS = {
    "held_out": "Log-likelihood of a held-out row",
    "bic": "BIC / 10⁶ (lower is better)",
    "ari": "Adjusted Rand index",
}


def results(x: np.ndarray, y: np.ndarray, components: tuple[int, ...], seeds: int) -> list[Row]:
    """Return the selection criteria of each mixture and its agreement with the labels. Each seed has its own split."""
    return [
        {
            "seed": seed,
            "model": choice.model,
            "n_components": choice.n_components,
            "held_out": choice.held_out,
            "training": choice.training,
            "bic": choice.bic,
            "ari": adjusted_rand_score(y, choice.mixture.predict(x)),
        }
        for seed in range(seeds)
        for choice in compare(x, components, models=MODELS, random_state=seed)
    ]


def drawn(rows: list[Row], classes: int) -> "Figure":
    """Return three panels by the number of components, means over seeds. Solid lines are tied, dashed lines free."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 3.4), layout="constrained")
    panels = figure.subplots(1, 3)
    for axes, (member, title) in zip(panels, PANELS.items(), strict=True):
        for model in MODELS:
            line: dict[int, list[float]] = {}
            for row in rows:
                if row["model"] == model:
                    line.setdefault(row["n_components"], []).append(
                        row[member] / (1e6 if member == "bic" else 1)
                    )
            axes.plot(
                list(line),
                [statistics.fmean(values) for values in line.values()],
                linestyle="--" if model.endswith("free") else "-",
                color="C0" if model.startswith("Power") else "C1",
                marker="o",
                markersize=3.5,
                label=model,
            )
        axes.axvline(classes, color="0.8", zorder=0)
        axes.set_title(title, fontsize=10)
        axes.set_xscale("log")
        axes.set_xticks(list(line), [str(count) for count in line], fontsize=6.5)
        axes.minorticks_off()
        axes.set_xlabel("components (grey: the number of classes)")
        axes.grid(alpha=0.25)
    panels[0].legend(fontsize=8, frameon=False)
    return figure


def main(argv: list[str] | None = None) -> None:
    """Fit, and write `clustering_choice.json` and `.png`."""
    file = {"metavar": "FILE.npz", "help": "embeddings and labels"}
    command = Command("clustering_choice", __doc__, argv, {"file": file}, cpu_only=True)
    [(name, x, y)] = read_all(command, [command.arguments.file])
    classes = len(np.unique(y))
    components, seeds = (QUICK_COMPONENTS, QUICK_SEEDS) if command.quick else (COMPONENTS, SEEDS)
    rows = results(x, y, components, seeds)
    configuration = {"data": name, "rows": len(x), "dim": x.shape[1], "classes": classes, "seeds": seeds}
    picture = command.out / "clustering_choice.png"
    with atomic_write(picture) as draft:
        drawn(rows, classes).savefig(draft, format="png", dpi=110, metadata={"Software": None})
    command.finish({"configuration": configuration, "results": rows}, files=[picture])


if __name__ == "__main__":
    main()
