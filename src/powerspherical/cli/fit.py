"""`powerspherical fit`: one distribution for the rows of a file."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from powerspherical.cli._common import hyphenated, require, require_folder, status, underscored, wrong
from powerspherical.cli._outputs import is_made_by, require_free

if TYPE_CHECKING:
    from rich.table import Table
    from typer import Typer

    from powerspherical.cli.rows import Data
    from powerspherical.mixture import SphericalMixture

MODEL_SUFFIX = ".safetensors"
_TOLERANCE = 1e-9  # nats a row: one distribution is soon found to the last digits that rows have
_STEPS = 1000


def add_to(app: "Typer") -> None:
    """Add the command to the application."""
    from typer import Option

    from powerspherical.cli._options import (
        Columns,
        DataFile,
        Drop,
        Force,
        Header,
        Key,
        Strict,
        family_choices,
        one_of,
    )

    choices = family_choices()

    @app.command()
    def fit(
        data: DataFile,
        model: Annotated[
            str | None,
            Option(metavar="NAME", parser=one_of(choices), help=f"{', '.join(choices)}.", show_default="all"),
        ] = None,
        key: Key = None,
        columns: Columns = None,
        drop: Drop = None,
        header: Header = None,
        strict: Strict = False,
        out: Annotated[
            str | None,
            Option(metavar="FILE", help="FILE.safetensors for the fit, of several the likeliest one."),
        ] = None,
        force: Force = False,
    ) -> None:
        """Fit one distribution to the rows of a file.

        Maximum likelihood, for every family unless one is named, beside the uniform distribution. For example:
        powerspherical fit embeddings.npy
        """
        require("scipy", "sklearn", *(["safetensors"] if out else []), needed_for="fit")
        path = None if out is None else _file(out, data, force)
        from powerspherical.cli.columns import Wanted
        from powerspherical.cli.models import fitted
        from powerspherical.cli.rows import check, read
        from powerspherical.mixture import mixture_named

        rows = read(data, key, Wanted.of(columns, drop), header=header)
        fits = []
        with status(f"reading {data}") as tell:
            check(rows, strict=strict, progress=lambda done: tell(f"reading {data}: {done:,} rows"))
            for name in [model] if model else choices:
                kind = mixture_named(underscored(name))
                mixture = kind(tol=_TOLERANCE, max_iter=_STEPS, random_state=0, verbose=tell)
                fits.append(fitted(mixture, rows.rows))
        _show(rows, fits)  # before the file, which may fail to be written
        if path:
            best = max(fits, key=lambda mixture: mixture.lower_bound_)
            best.save(path, notes={"made_by": "powerspherical fit", "columns": list(rows.columns)})
            print(f"written: {path}")


def _file(out: str, data: Path, force: bool) -> Path:
    """The file to write, once it is known that it may be written."""
    path = Path(out)
    if path.suffix != MODEL_SUFFIX or path.is_dir():
        raise wrong("--out", f"{out} must be a file that ends in {MODEL_SUFFIX}")
    require_free([path], inputs=[data], force=force, is_own=partial(is_made_by, "fit"))
    require_folder(path.parent)
    return path


def _show(data: "Data", fits: "list[SphericalMixture]") -> None:
    from rich.console import Console

    console = Console()
    console.print(f"{data.count} rows in {data.dim} dimensions: {data.name}", soft_wrap=True)
    console.print(_table(data, fits))


def _table(data: "Data", fits: "list[SphericalMixture]") -> "Table":
    """A line for each fit, and for the uniform distribution."""
    import torch
    from rich.table import Table

    from powerspherical.special import log_sphere_area

    shown = Table()
    shown.add_column("distribution", no_wrap=True)
    for heading in ("concentration", "‖mean‖", "half within", "log-likelihood"):
        shown.add_column(heading, justify="right")
    for mixture in fits:
        loc = torch.from_numpy(mixture.mean_directions_[0]).double()
        distribution = mixture.distribution(
            torch.nn.functional.normalize(loc, dim=0), float(mixture.concentrations_[0])
        )
        angle = torch.rad2deg(distribution.cap_angle(0.5))
        shown.add_row(
            hyphenated(mixture.distribution.family.name),
            f"{float(mixture.concentrations_[0]):.6g}",
            f"{float(torch.linalg.vector_norm(distribution.mean)):.4f}",
            f"{float(angle):.2f}°",
            f"{mixture.lower_bound_:.4f}",
        )
    shown.add_row("uniform", "0", "0", "90.00°", f"{-float(log_sphere_area(data.dim)):.4f}")
    return shown
