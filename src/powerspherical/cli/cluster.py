"""`powerspherical cluster`: fit a mixture to the rows of a file, and write labels, model, summary and picture."""

import json
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text
from typer import Option, Typer

from powerspherical._torch.rows import row_lengths
from powerspherical.cli import _options as options
from powerspherical.cli.columns import Array, Wanted, listed
from powerspherical.cli.common import plain, require, status, wrong
from powerspherical.cli.fit import fit_mixture
from powerspherical.cli.outputs import all_or_nothing, require_free
from powerspherical.cli.rows import Data, check, open_text, read

if TYPE_CHECKING:
    from powerspherical.mixture import SphericalMixture

#: The last one is there only if the others are complete.
FILES = LABELS, MODEL, PICTURE, SUMMARY = "labels.npy", "model.safetensors", "clusters.png", "summary.json"
CENTRAL = 5  # central rows per cluster
SHOWN = 5000  # maximum number of points in the picture


def add_to(app: Typer) -> None:
    """Add the command to the application."""
    choices = options.family_choices()

    @app.command()
    def cluster(
        data: options.DataFile,
        clusters: Annotated[int, Option("--clusters", "-k", metavar="K", min=1, help="Number of clusters.")],
        out: Annotated[Path, Option(metavar="DIR", help="Folder to write to.")],
        model: Annotated[
            str, Option(metavar="NAME", parser=options.one_of(choices), help=f"Family: {', '.join(choices)}.")
        ] = options.DEFAULT_FAMILY,
        concentration: Annotated[
            Literal["tied", "free"],
            Option(
                metavar="HOW",
                help="tied: all clusters share one, finds groups better; free: one per cluster, fits the data better.",
            ),
        ] = "tied",
        starts: Annotated[
            int,
            Option(
                metavar="N", min=1, help="Number of random starts; keeps the fit with the highest likelihood."
            ),
        ] = 1,
        max_iter: Annotated[
            int, Option(metavar="N", min=1, help="Maximum number of EM iterations per start.")
        ] = 200,
        seed: options.Seed = 0,
        key: options.Key = None,
        columns: options.Columns = None,
        drop: options.Drop = None,
        header: options.Header = None,
        text: Annotated[
            str | None,
            Option(
                metavar="FILE|COLUMN",
                help="Texts to show for the central rows: a file with one line per row, or a column of DATA.",
            ),
        ] = None,
        strict: options.Strict = False,
        force: options.Force = False,
    ) -> None:
        """Cluster the rows of a file by direction.

        Writes labels.npy (the cluster of each row), model.safetensors (for `powerspherical predict`), clusters.png and
        summary.json (sizes, concentrations, most central rows). If the command fails, it writes none of them.

        Example: powerspherical cluster embeddings.npy -k 20 --out clusters
        """
        require("matplotlib", "safetensors", "scipy", "sklearn", needed_for="cluster")
        from powerspherical.mixture import mixture_named

        require_free([out / name for name in FILES], inputs=[data], force=force)
        rows = read(data, Wanted.parse(key, columns, drop, header))
        texts = find_texts(text, rows) if text else None
        if clusters > rows.count:
            raise wrong("-k", f"{data} has {rows.count} row(s), fewer than {clusters} clusters")
        with all_or_nothing(out, FILES) as draft, status(f"reading {data}") as show:
            check(rows, strict=strict, show=show)
            mixture = mixture_named(model.replace("-", "_"))(
                clusters,
                concentration_type=concentration,
                n_init=starts,
                max_iter=max_iter,
                random_state=seed,
                verbose=show,
            )
            fit_mixture(mixture, rows.rows, advice=f": try --max-iter {5 * max_iter}")
            found = assign(mixture, rows, show)
            summary = {
                "command": "powerspherical cluster",
                "model": model,
                "concentration": concentration,
                "seed": seed,
                **facts(mixture, rows),
                "clusters": found.summary(mixture, texts),
            }
            show("writing")
            np.save(draft / LABELS, found.labels)
            mixture.save(draft / MODEL, notes={"columns": list(rows.columns)})
            found.save_picture(draft / PICTURE)
            content = json.dumps(summary, indent=2, ensure_ascii=False, allow_nan=False)
            (draft / SUMMARY).write_text(content + "\n", encoding="utf-8")
        likelihood = f"log-likelihood per row {mixture.lower_bound_:.4f}"
        print(f"{rows.count} rows in {rows.dim} dimensions, {likelihood}: {plain(rows.name)}")
        Console().print(_table(summary["clusters"]))
        for name in FILES:
            print(f"written: {plain(out / name)}")


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

    def summary(self, mixture: "SphericalMixture", texts: "Texts | None") -> list[dict[str, Any]]:
        """Everything about each cluster but its rows, as JSON values."""
        sizes = np.bincount(self.labels, minlength=len(self.central)).tolist()
        shown = texts({row for rows in self.central for row, _ in rows}) if texts else {}
        return [
            {
                "cluster": cluster,
                "size": sizes[cluster],
                "weight": float(mixture.weights_[cluster]),
                "concentration": float(mixture.concentrations_[cluster]),
                "central_rows": [
                    {"row": row, "cosine": cosine} | ({"text": shown[row]} if texts else {})
                    for row, cosine in central
                ],
            }
            for cluster, central in enumerate(self.central)
        ]

    def save_picture(self, path: Path) -> None:
        """Save a plot of the subset of rows, coloured and numbered by cluster."""
        from matplotlib.figure import Figure

        from powerspherical.plot import plot_clusters

        figure = Figure(figsize=(7, 7), layout="constrained")
        axes = figure.add_subplot(projection="3d" if self.shown.shape[1] == 3 else None)
        plot_clusters(self.shown, self.shown_labels, axes)
        figure.savefig(path, format="png", dpi=150)


def assign(mixture: "SphericalMixture", data: Data, show: Callable[[str], None]) -> Clusters:
    """Assign each row to its most likely cluster, in one pass over the rows. `show` displays the progress."""
    directions = np.asarray(mixture.mean_directions_, dtype=np.float64)
    random = np.random.default_rng(0)
    picked = np.sort(random.choice(data.count, min(SHOWN, data.count), replace=False, shuffle=False))
    labels = np.empty(data.count, np.int64)
    best = (np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0))  # clusters, rows, cosines
    shown = np.empty((len(picked), data.dim))
    for start, block in data.blocks():
        stop = start + len(block)
        labels[start:stop] = found = mixture.predict(block)
        unit = block / row_lengths(block).numpy()[:, None]
        cosines = np.einsum("nd,nd->n", unit, directions[found])
        here = (found, np.arange(start, stop), cosines)
        best = _most_central(*(np.concatenate(pair) for pair in zip(best, here, strict=True)))
        first, last = np.searchsorted(picked, (start, stop))
        shown[first:last] = unit[picked[first:last] - start]
        show(f"labelling: {stop:,} of {data.count:,} rows")
    central: list[list[tuple[int, float]]] = [[] for _ in directions]
    for cluster, row, cosine in zip(*(part.tolist() for part in best), strict=True):
        central[cluster].append((row, cosine))
    return Clusters(labels, central, shown, labels[picked])


def _most_central(clusters: Array, rows: Array, cosines: Array) -> tuple[Array, Array, Array]:
    """The `CENTRAL` rows with the largest cosines in each cluster, in order."""
    order = np.lexsort((rows, -cosines, clusters))
    clusters, rows, cosines = clusters[order], rows[order], cosines[order]
    rank = np.arange(len(clusters)) - np.searchsorted(clusters, clusters)
    return clusters[rank < CENTRAL], rows[rank < CENTRAL], cosines[rank < CENTRAL]


def facts(mixture: "SphericalMixture", data: Data) -> dict[str, Any]:
    """What the summary says about the rows and the fit."""
    return {
        "data": data.name,
        "rows": data.count,
        "dim": data.dim,
        "columns": list(data.columns),
        "converged": bool(mixture.converged_),
        "steps": int(mixture.n_iter_),
        "log_likelihood": float(mixture.lower_bound_),  # per row
    }


#: Maps rows to the texts they stand for.
Texts = Callable[[Collection[int]], dict[int, str]]


def find_texts(name: str, data: Data) -> Texts:
    """The texts that the rows of `data` stand for: the lines of a file, or a column of the table.

    Raises if there is neither, if there are both, or if the file has another number of lines than `data` has rows.
    """
    path = Path(name)
    columns = data.table.names if data.table else []
    if columns.count(name) + path.is_file() > 1:
        raise wrong(
            "--text",
            f"{name} is ambiguous: {data.name} has {columns.count(name)} column(s) of that name, and there is"
            f" {'a' if path.is_file() else 'no'} file {name}; write ./{name} for the file",
        )
    if data.table and name in columns:
        table = data.table
        return lambda rows: table.texts(name, rows)
    if not path.is_file():
        found = f"its columns are {listed(columns)}" if columns else "it has no named columns"
        raise wrong("--text", f"there is no file {name}, and no column {name!r} in {data.name}: {found}")
    try:
        with open_text(path) as lines:
            count = sum(1 for _ in lines)
    except (OSError, ValueError) as error:
        raise wrong("--text", f"cannot read {name}: {error}; it must be UTF-8 text") from error
    if count != data.count:
        raise wrong(
            "--text",
            f"{name} has {count} line(s), but {data.name} has {data.count} row(s): write one line per row",
        )

    def lines_of(rows: Collection[int]) -> dict[int, str]:
        with open_text(path) as lines:
            return {row: line.rstrip("\n") for row, line in enumerate(lines) if row in rows}

    return lines_of


def _table(clusters: list[dict[str, Any]]) -> Table:
    """One line per cluster, the largest first."""
    shown = Table()
    for heading in ("cluster", "rows", "concentration"):
        shown.add_column(heading, justify="right")
    with_texts = any("text" in row for cluster in clusters for row in cluster["central_rows"])
    shown.add_column("most central rows", no_wrap=with_texts, overflow="ellipsis")
    for cluster in sorted(clusters, key=lambda cluster: -cluster["size"]):
        central = [
            f"{row['row']}: {plain(row['text'])}" if with_texts else str(row["row"])
            for row in cluster["central_rows"]
        ]
        numbers = (str(cluster["cluster"]), str(cluster["size"]), f"{cluster['concentration']:.4g}")
        # A Text, so that rich sees no markup in it.
        shown.add_row(*numbers, Text(("\n" if with_texts else ", ").join(central)))
    return shown
