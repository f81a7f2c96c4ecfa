"""`powerspherical cluster`: fit a mixture to the rows of a file, and write labels, model, summary and picture."""

from __future__ import annotations  # options.family() is evaluated when the application is built

import json
from collections.abc import Callable, Collection
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text
from typer import Option

from powerspherical._torch.rows import row_lengths
from powerspherical.cli import _options as options
from powerspherical.cli.columns import Array, Wanted, listed
from powerspherical.cli.common import plain, require, status, wrong
from powerspherical.cli.fit import fit_mixture
from powerspherical.cli.outputs import all_or_nothing, require_free
from powerspherical.cli.rows import Data, check, open_text, read, reading

if TYPE_CHECKING:
    from powerspherical.mixture import SphericalMixture

#: The last one is there only if the others are complete.
FILES = LABELS, MODEL, PICTURE, SUMMARY = "labels.npy", "model.safetensors", "clusters.png", "summary.json"
CENTRAL = 5  # central rows per cluster
SHOWN, SHOWN_NUMBERS = 5000, 2**20  # maximum of points, and of their coordinates, in the picture


def cluster(
    data: options.DataFile,
    clusters: Annotated[int, Option("--clusters", "-k", metavar="K", min=1, help="Number of clusters.")],
    out: Annotated[Path, Option(metavar="DIR", help="Folder to write to.")],
    model: Annotated[str, options.family()] = options.DEFAULT_FAMILY,
    concentration: Annotated[
        Literal["tied", "free"],
        Option(
            metavar="HOW",
            help="tied: all clusters share one, finds groups better; free: one per cluster, fits the data better.",
        ),
    ] = "tied",
    starts: Annotated[int, Option(metavar="N", min=1, help="Random starts; keeps the likeliest fit.")] = 1,
    max_iter: Annotated[int, Option(metavar="N", min=1, help="Maximum of EM steps per start.")] = 200,
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
    rows = read(data, Wanted(key, columns, drop, header))
    texts = find_texts(text, rows) if text else None
    if clusters > rows.count:
        raise wrong("-k", f"{data} has {rows.count} row(s), fewer than {clusters} clusters")
    mixture = mixture_named(model.replace("-", "_"))(
        clusters, concentration_type=concentration, n_init=starts, max_iter=max_iter, random_state=seed
    )
    with all_or_nothing(out, FILES) as draft, status(f"reading {data}") as show:
        check(rows, strict=strict, show=show)
        fit_mixture(mixture, rows.rows, show, advice=f": try --max-iter {5 * max_iter}")
        show("labelling")
        labels, cosines = assign(mixture, rows)
        summary: dict[str, Any] = {
            "command": "powerspherical cluster",
            "model": model,
            "concentration": concentration,
            "seed": seed,
            "data": rows.name,
            "rows": rows.count,
            "dim": rows.dim,
            "columns": list(rows.columns),
            "converged": bool(mixture.converged_),
            "steps": int(mixture.n_iter_),
            "log_likelihood": float(mixture.lower_bound_),  # per row
            "clusters": described(mixture, labels, cosines, texts),
        }
        show("writing")
        np.save(draft / LABELS, labels)
        mixture.save(draft / MODEL, notes={"columns": list(rows.columns)})
        save_picture(draft / PICTURE, rows.rows, labels)
        content = json.dumps(summary, indent=2, ensure_ascii=False, allow_nan=False)
        (draft / SUMMARY).write_text(content + "\n", encoding="utf-8")
    likelihood = f"log-likelihood per row {mixture.lower_bound_:.4f}"
    print(f"{rows.count} rows in {rows.dim} dimensions, {likelihood}: {plain(rows.name)}")
    Console().print(_table(summary["clusters"]))
    for name in FILES:
        print(f"written: {plain(out / name)}")


def assign(mixture: SphericalMixture, data: Data) -> tuple[Array, Array]:
    """The most likely cluster of each row, (n,), and the cosine with its mean direction, (n,)."""
    labels, cosines = mixture.predict(data.rows), np.empty(data.count)
    for start, block in data.blocks():
        here = slice(start, start + len(block))
        products = np.einsum("nd,nd->n", block, mixture.mean_directions_[labels[here]], dtype=np.float64)
        cosines[here] = products / row_lengths(block).numpy()
    return labels, cosines


def described(
    mixture: SphericalMixture, labels: Array, cosines: Array, texts: Texts | None
) -> list[dict[str, Any]]:
    """What the summary says about each cluster. Its central rows are those of the largest cosines, in this order."""
    members = [np.flatnonzero(labels == cluster) for cluster in range(mixture.n_components)]
    central = [rows[np.argsort(-cosines[rows], kind="stable")[:CENTRAL]].tolist() for rows in members]
    shown = {row: {"row": row, "cosine": float(cosines[row])} for row in chain.from_iterable(central)}
    for row, text in (texts(shown) if texts else {}).items():
        shown[row]["text"] = text
    return [
        {
            "cluster": cluster,
            "size": len(members[cluster]),
            "weight": float(mixture.weights_[cluster]),
            "concentration": float(mixture.concentrations_[cluster]),
            "central_rows": [shown[row] for row in rows],
        }
        for cluster, rows in enumerate(central)
    ]


def save_picture(path: Path, rows: Array, labels: Array) -> None:
    """Save a plot of a random subset of rows, coloured and numbered by cluster."""
    from matplotlib.figure import Figure

    from powerspherical.plot import plot_clusters

    count = min(SHOWN, max(SHOWN_NUMBERS // rows.shape[1], 100), len(rows))
    shown = np.random.default_rng(0).choice(len(rows), count, replace=False, shuffle=False)
    shown.sort()
    figure = Figure(figsize=(7, 7), layout="constrained")
    axes = figure.add_subplot(projection="3d" if rows.shape[1] == 3 else None)
    plot_clusters(rows[shown], labels[shown], axes)
    figure.savefig(path, format="png", dpi=150)


#: Maps rows to the texts they stand for.
Texts = Callable[[Collection[int]], dict[int, str]]


def find_texts(name: str, data: Data) -> Texts:
    """The texts that the rows of `data` stand for: the lines of a file, or a column of the table."""
    path, columns = Path(name), data.table.names if data.table else []
    if columns.count(name) + path.is_file() > 1:
        named = f"{data.name} has {columns.count(name)} column(s) of that name"
        file = f"there is {'a' if path.is_file() else 'no'} file {name}; write ./{name} for the file"
        raise wrong("--text", f"{name} is ambiguous: {named}, and {file}")
    if data.table and name in columns:
        return partial(data.table.texts, name)
    if not path.is_file():
        found = f"its columns are {listed(columns)}" if columns else "it has no named columns"
        raise wrong("--text", f"there is no file {name}, and no column {name!r} in {data.name}: {found}")
    with reading(path, "--text"), open_text(path) as lines:
        count = sum(1 for _ in lines)
    if count != data.count:
        counts = f"{name} has {count} line(s), but {data.name} has {data.count} row(s)"
        raise wrong("--text", f"{counts}: write one line per row")

    def lines_of(rows: Collection[int]) -> dict[int, str]:
        with open_text(path) as lines:
            return {row: line.rstrip("\n") for row, line in enumerate(lines) if row in rows}

    return lines_of


def _table(clusters: list[dict[str, Any]]) -> Table:
    """One line per cluster, the largest first."""
    with_texts = any("text" in row for cluster in clusters for row in cluster["central_rows"])
    shown = Table(
        *(Column(heading, justify="right") for heading in ("cluster", "rows", "concentration")),
        Column("most central rows", no_wrap=with_texts, overflow="ellipsis"),
    )
    line, between = ("{row}: {text}", "\n") if with_texts else ("{row}", ", ")
    for cluster in sorted(clusters, key=lambda cluster: -cluster["size"]):
        numbers = (str(cluster["cluster"]), str(cluster["size"]), f"{cluster['concentration']:.4g}")
        central = between.join(plain(line.format(**row)) for row in cluster["central_rows"])
        shown.add_row(*numbers, Text(central))  # a Text, so that rich sees no markup in it
    return shown
