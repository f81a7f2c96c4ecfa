"""`powerspherical cluster`: a mixture for the rows of a file, and a folder with all there is to tell of it."""

import hashlib
import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

from powerspherical._files.drafts import whole
from powerspherical.cli._common import require, require_folder, status, underscored, wrong
from powerspherical.cli._outputs import is_made_by, require_free

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text
    from typer import Typer

    from powerspherical.cli.clusters import Clusters
    from powerspherical.mixture import SphericalMixture


COMMAND = "powerspherical cluster"
FILES = LABELS, MODEL, SUMMARY, PICTURE = "labels.npy", "model.safetensors", "summary.json", "clusters.png"


def add_to(app: "Typer") -> None:
    """Add the command to the application."""
    from typer import Option

    from powerspherical.cli._options import (
        DEFAULT_FAMILY,
        Columns,
        Concentration,
        DataFile,
        Drop,
        Force,
        Header,
        Key,
        Seed,
        Strict,
        family_choices,
        one_of,
    )

    choices = family_choices()

    @app.command()
    def cluster(
        data: DataFile,
        clusters: Annotated[int, Option("--clusters", "-k", metavar="K", min=1, help="How many clusters.")],
        out: Annotated[Path, Option(metavar="DIR", help="The folder to write to.")],
        model: Annotated[
            str, Option(metavar="NAME", parser=one_of(choices), help=f"{', '.join(choices)}.")
        ] = DEFAULT_FAMILY,
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
        force: Force = False,
    ) -> None:
        """Cluster the rows of a file by direction.

        The folder gets labels.npy (the cluster of each row), model.safetensors (for `powerspherical predict`),
        summary.json (sizes, concentrations, most central rows) and clusters.png, all of them or none. For example:
        powerspherical cluster embeddings.npy -k 20 --out clusters
        """
        require("matplotlib", "safetensors", "scipy", "sklearn", needed_for="cluster")
        from powerspherical.cli.clusters import assign, summary
        from powerspherical.cli.columns import Wanted
        from powerspherical.cli.models import fitted
        from powerspherical.cli.rows import check, read
        from powerspherical.cli.texts import pick, texts
        from powerspherical.mixture import mixture_named

        require_free([out / name for name in FILES], inputs=[data], force=force, is_own=_is_own)
        rows = read(data, key, Wanted.of(columns, drop), header=header)
        described = texts(text, rows) if text else None
        if clusters > rows.count:
            raise wrong("-k", f"{data} has {rows.count} row(s), fewer than {clusters} clusters")
        with _folder(out), status(f"reading {data}") as tell:
            check(rows, strict=strict, progress=lambda done: tell(f"reading {data}: {done:,} rows"))
            mixture = fitted(
                mixture_named(underscored(model))(
                    clusters,
                    concentration_type=concentration,
                    n_init=starts,
                    max_iter=max_iter,
                    random_state=seed,
                    verbose=tell,
                ),
                rows.rows,
                way_out=f": --max-iter {5 * max_iter} goes on",
            )
            found = assign(mixture, rows, lambda done: tell(f"labelling: {done:,} of {rows.count:,} rows"))
            told = {
                "command": COMMAND,
                "model": model,
                "concentration": concentration,
                "seed": seed,
            } | summary(mixture, found, rows, pick(described, found.central_rows) if described else {})
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
    """Write all files; none is moved into place before all are complete."""
    from powerspherical.cli.clusters import picture

    with ExitStack() as drafts:
        labels, summarised, shown = (
            drafts.enter_context(whole(out / name)) for name in (LABELS, SUMMARY, PICTURE)
        )
        with labels.open("wb") as file:
            np.save(file, clusters.labels)
        # With the digest, the next run knows that the labels are its own.
        text = json.dumps(
            summary | {"labels_digest": _digest(labels)}, indent=2, ensure_ascii=False, allow_nan=False
        )
        summarised.write_text(text + "\n", encoding="utf-8")
        picture(mixture, clusters).savefig(shown, format="png", dpi=150, metadata={"Software": COMMAND})
        mixture.save(out / MODEL, notes={"made_by": COMMAND, "columns": summary["columns"]})
    return [out / name for name in FILES]


def _is_own(path: Path) -> bool:
    """Whether an earlier run made this one of the files."""
    if path.name != LABELS:
        return is_made_by("cluster", path)
    summary = path.with_name(SUMMARY)
    if not is_made_by("cluster", summary):
        return False
    return json.loads(summary.read_text(encoding="utf-8")).get("labels_digest") == _digest(path)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "blake2b").hexdigest()


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
