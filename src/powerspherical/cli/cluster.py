"""`powerspherical cluster`: fit a mixture to the rows of a file, and write labels, model, summary and picture."""

import hashlib
import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text
from typer import Option, Typer

from powerspherical._files.drafts import atomic_write
from powerspherical.cli import _options as options
from powerspherical.cli import clusters as results
from powerspherical.cli.columns import Wanted
from powerspherical.cli.common import require, require_folder, status, wrong
from powerspherical.cli.fit import fit_mixture
from powerspherical.cli.outputs import is_made_by, require_free
from powerspherical.cli.rows import check, read
from powerspherical.cli.texts import find_texts

if TYPE_CHECKING:
    from powerspherical.mixture import SphericalMixture

COMMAND = "powerspherical cluster"
FILES = LABELS, MODEL, SUMMARY, PICTURE = "labels.npy", "model.safetensors", "summary.json", "clusters.png"


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

        Writes labels.npy (the cluster of each row), model.safetensors (for `powerspherical predict`), summary.json
        (sizes, concentrations, most central rows) and clusters.png. If the command fails, it writes none of them.

        Example: powerspherical cluster embeddings.npy -k 20 --out clusters
        """
        require("matplotlib", "safetensors", "scipy", "sklearn", needed_for="cluster")
        from powerspherical.mixture import mixture_named

        require_free([out / name for name in FILES], inputs=[data], force=force, is_own=_is_own)
        rows = read(data, key, Wanted.parse(columns, drop), header=header)
        texts = find_texts(text, rows) if text else None
        if clusters > rows.count:
            raise wrong("-k", f"{data} has {rows.count} row(s), fewer than {clusters} clusters")
        with _new_folder(out), status(f"reading {data}") as show:
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
            found = results.assign(
                mixture, rows, lambda done: show(f"labelling: {done:,} of {rows.count:,} rows")
            )
            central = {row for members in found.central for row, _ in members}
            shown_texts = {row: line for row, line in enumerate(texts()) if row in central} if texts else {}
            summary: dict[str, Any] = {
                "command": COMMAND,
                "model": model,
                "concentration": concentration,
                "seed": seed,
            } | results.summary(mixture, found, rows, shown_texts)
            show("writing")
            _write(out, mixture, found, summary)
        console = Console()
        console.print(
            f"{rows.count} rows in {rows.dim} dimensions, log-likelihood per row {mixture.lower_bound_:.4f}:"
            f" {rows.name}",
            soft_wrap=True,
        )
        console.print(_table(summary["clusters"]))
        for name in FILES:
            print(f"written: {out / name}")


@contextmanager
def _new_folder(out: Path) -> Iterator[None]:
    """Create the folder. After an error, remove it again if it is new and still empty."""
    new = not out.exists()
    require_folder(out)
    try:
        yield
    except BaseException:
        if new and not any(out.iterdir()):
            out.rmdir()
        raise


def _write(
    out: Path, mixture: "SphericalMixture", clusters: results.Clusters, summary: dict[str, Any]
) -> None:
    """Write all files. None is moved into place before all are complete."""
    with ExitStack() as drafts:
        labels, summary_file, picture = (
            drafts.enter_context(atomic_write(out / name)) for name in (LABELS, SUMMARY, PICTURE)
        )
        with labels.open("wb") as file:
            np.save(file, clusters.labels)
        # The digest tells the next run that it may overwrite the labels.
        text = json.dumps(
            summary | {"labels_digest": _digest(labels)}, indent=2, ensure_ascii=False, allow_nan=False
        )
        summary_file.write_text(text + "\n", encoding="utf-8")
        figure = results.picture(clusters)
        figure.savefig(picture, format="png", dpi=150, metadata={"Software": COMMAND})
        mixture.save(out / MODEL, notes={"made_by": COMMAND, "columns": summary["columns"]})


def _is_own(path: Path) -> bool:
    """Whether an earlier run of this command wrote the file."""
    if path.name != LABELS:
        return is_made_by("cluster", path)
    summary = path.with_name(SUMMARY)
    if not is_made_by("cluster", summary):
        return False
    return json.loads(summary.read_text(encoding="utf-8")).get("labels_digest") == _digest(path)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "blake2b").hexdigest()


def _table(clusters: list[dict[str, Any]]) -> Table:
    """One line per cluster, the largest first."""
    shown = Table()
    for heading in ("cluster", "rows", "concentration"):
        shown.add_column(heading, justify="right")
    with_texts = any("text" in row for cluster in clusters for row in cluster["central_rows"])
    shown.add_column("most central rows", no_wrap=with_texts, overflow="ellipsis")
    for cluster in sorted(clusters, key=lambda cluster: -cluster["size"]):
        central = [
            f"{row['row']}: {' '.join(row['text'].split())}" if with_texts else str(row["row"])
            for row in cluster["central_rows"]
        ]
        shown.add_row(
            str(cluster["cluster"]),
            str(cluster["size"]),
            f"{cluster['concentration']:.4g}",
            Text(("\n" if with_texts else ", ").join(central)),  # a Text, so that rich sees no markup in it
        )
    return shown
