"""`powerspherical cluster`: a mixture for the rows of a file, and a folder with all there is to tell of it."""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

from powerspherical.cli._common import require, require_folder, status, wrong

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text
    from typer import Typer

    from powerspherical.cli.clusters import Clusters
    from powerspherical.mixture import SphericalMixture


def add_to(app: "Typer") -> None:
    """Add the command to the application."""
    from typer import Option

    from powerspherical.cli._options import (
        Columns,
        Concentration,
        DataFile,
        Drop,
        Header,
        Key,
        Model,
        Seed,
        Strict,
    )

    @app.command()
    def cluster(
        data: DataFile,
        clusters: Annotated[int, Option("--clusters", "-k", metavar="K", min=1, help="How many clusters.")],
        out: Annotated[Path, Option(metavar="DIR", help="The folder to write to.")],
        model: Annotated[
            Model, Option(metavar="NAME", help="power-spherical or von-mises-fisher.")
        ] = "power-spherical",
        concentration: Annotated[
            Concentration,
            Option(metavar="HOW", help="tied: one for all, finds groups better; free: fits the rows better."),
        ] = "tied",
        starts: Annotated[
            int, Option(metavar="N", min=1, help="How often to start; the likeliest fit is kept.")
        ] = 1,
        max_iter: Annotated[int, Option(metavar="N", min=1, help="The most steps of each.")] = 200,
        seed: Seed = 0,
        key: Key = None,
        columns: Columns = None,
        drop: Drop = None,
        header: Header = None,
        text: Annotated[
            str | None,
            Option(
                metavar="FILE|COLUMN",
                help="Show the texts of central rows: a file with a line for each row, or a column of DATA.",
            ),
        ] = None,
        strict: Strict = False,
    ) -> None:
        """Cluster the rows of a file by direction.

        The folder gets labels.npy (the cluster of each row), model.safetensors (for `powerspherical predict`),
        summary.json (sizes, concentrations, most central rows) and clusters.png, all of them or none. For example:
        powerspherical cluster embeddings.npy -k 20 --out clusters
        """
        require("matplotlib", "safetensors", "scipy", "sklearn", needed_for="cluster")
        from powerspherical.cli.clusters import assign, summary
        from powerspherical.cli.columns import Wanted
        from powerspherical.cli.models import MIXTURES, fitted
        from powerspherical.cli.rows import check, read
        from powerspherical.cli.texts import pick, texts

        rows = read(data, key, Wanted.of(columns, drop), header=header)
        described = texts(text, rows) if text else None
        if clusters > rows.count:
            raise wrong("-k", f"{data} has {rows.count} row(s), fewer than {clusters} clusters")
        with _folder(out), status(f"reading {data}") as tell:
            check(rows, strict=strict, progress=lambda done: tell(f"reading {data}: {done:,} rows"))
            mixture = fitted(
                MIXTURES[model](
                    clusters,
                    concentration=concentration,
                    n_init=starts,
                    max_iter=max_iter,
                    random_state=seed,
                    verbose=tell,
                ),
                rows.rows,
                way_out=f": --max-iter {5 * max_iter} goes on",
            )
            found = assign(mixture, rows, lambda done: tell(f"labelling: {done:,} of {rows.count:,} rows"))
            told = {"model": model, "concentration": concentration, "seed": seed} | summary(
                mixture, found, rows, pick(described, found.central_rows) if described else {}
            )
            tell("writing")
            files = _write(out, mixture, found, told)
        _show(told)
        for file in files:
            print(f"written: {file}")


@contextmanager
def _folder(out: Path) -> Iterator[None]:
    """The folder is there; one that was made here goes again if nothing comes of it."""
    new = not out.exists()
    require_folder(out)
    try:
        yield
    except BaseException:
        if new and not any(out.iterdir()):
            out.rmdir()
        raise


def _write(
    out: Path, mixture: "SphericalMixture", clusters: "Clusters", summary: dict[str, Any]
) -> list[Path]:
    """Write all files, and only then move them to their places."""
    from powerspherical.cli.clusters import picture
    from powerspherical.cli.models import save_model

    text = json.dumps(summary, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    files: dict[str, Callable[[Path], Any]] = {
        "labels.npy": lambda path: np.save(path, clusters.labels),
        "model.safetensors": lambda path: save_model(path, mixture, summary["columns"]),
        "summary.json": lambda path: path.write_text(text, encoding="utf-8"),
        "clusters.png": lambda path: picture(mixture, clusters).savefig(
            path, dpi=150, metadata={"Software": None}
        ),
    }
    with TemporaryDirectory(prefix=".", dir=out) as draft:
        for name, write in files.items():
            write(Path(draft) / name)
        for name in files:
            os.replace(Path(draft) / name, out / name)
    return [out / name for name in files]


def _show(summary: dict[str, Any]) -> None:
    from rich.console import Console

    console = Console()
    shape = f"{summary['rows']} rows in {summary['dim']} dimensions"
    console.print(
        f"{shape}, log-likelihood of a row {summary['log_likelihood']:.4f}: {summary['data']}", soft_wrap=True
    )
    console.print(_table(summary["clusters"]))


def _table(clusters: list[dict[str, Any]]) -> "Table":
    """A line for each cluster, the largest first."""
    from rich.table import Table
    from rich.text import Text

    shown = Table()
    for heading in ("cluster", "rows", "concentration"):
        shown.add_column(heading, justify="right")
    with_texts = any("text" in row for cluster in clusters for row in cluster["central_rows"])
    shown.add_column("most central rows", no_wrap=with_texts, overflow="ellipsis")
    for cluster in sorted(clusters, key=lambda cluster: -cluster["size"]):
        shown.add_row(
            str(cluster["cluster"]),
            str(cluster["size"]),
            f"{cluster['concentration']:.4g}",
            Text("\n" if with_texts else ", ").join(map(_central, cluster["central_rows"])),
        )
    return shown


def _central(row: dict[str, Any]) -> "Text":
    """The number of a row, and its text if it has one. The text is no markup of rich."""
    from rich.text import Text

    text = f": {' '.join(row['text'].split())}" if "text" in row else ""
    return Text(f"{row['row']}{text}")
