"""`powerspherical predict`: the clusters of new rows, by a mixture from a file."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from powerspherical.cli import draws
from powerspherical.cli._common import require, require_folder, status, wrong
from powerspherical.cli._outputs import require_free

if TYPE_CHECKING:
    from typer import Typer


def add_to(app: "Typer") -> None:
    """Add the command to the application."""
    from typer import Argument, Option

    from powerspherical.cli._options import Columns, DataFile, Drop, Force, Header, Key, Strict

    @app.command()
    def predict(
        model: Annotated[
            Path,
            Argument(
                metavar="MODEL", help="model.safetensors, from `powerspherical cluster`.", show_default=False
            ),
        ],
        data: DataFile,
        key: Key = None,
        columns: Columns = None,
        drop: Drop = None,
        header: Header = None,
        strict: Strict = False,
        out: Annotated[
            str,
            Option(metavar="FILE", help="FILE.npy or FILE.csv for the labels; - is the standard output."),
        ] = draws.STDOUT,
        force: Force = False,
    ) -> None:
        """Tell to which cluster each row of a file belongs.

        One label a row, in the order of the rows. For example:
        powerspherical predict clusters/model.safetensors new.npy --out labels.npy
        """
        require("safetensors", "scipy", "sklearn", needed_for="predict")
        from powerspherical.cli.columns import Array, Wanted
        from powerspherical.cli.models import fitted_columns
        from powerspherical.cli.rows import check, read
        from powerspherical.mixture import CheckpointError, load

        path = draws.destination(out)
        if path:
            require_free([path], inputs=[model, data], force=force)
        try:
            mixture = load(model)
        except (CheckpointError, OSError) as error:
            raise wrong("MODEL", str(error)) from error
        fitted = fitted_columns(model)
        rows = read(data, key, Wanted.of(columns, drop, fitted), header=header)
        if rows.dim != mixture.n_features_in_:
            told = f" ({rows.notice})" if rows.notice else ""
            raise wrong(
                "DATA",
                f"{data} has rows of {rows.dim} numbers{told}, but {model} is for {mixture.n_features_in_}",
            )
        if path:
            require_folder(path.parent)
        stdout = sys.stdout  # while a status is shown, sys.stdout is a stand-in
        with status(f"reading {data}") as tell:
            check(rows, strict=strict, progress=lambda done: tell(f"reading {data}: {done:,} rows"))

            def labels() -> Iterator[Array]:
                for start, block in rows.blocks():
                    yield mixture.predict(block)
                    tell(f"labelling: {start + len(block):,} of {rows.count:,} rows")

            if path is None:
                draws.write_csv(stdout, labels())
            else:
                draws.save(path, labels(), (rows.count,))
        if path:
            print(f"{rows.count} labels: {path}")
