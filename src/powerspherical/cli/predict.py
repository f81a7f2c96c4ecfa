"""`powerspherical predict`: the clusters of new rows, by a mixture that `powerspherical cluster` fitted."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from typer import Argument, Option, Typer

from powerspherical.cli import _options as options
from powerspherical.cli import outputs
from powerspherical.cli.columns import Array, Wanted
from powerspherical.cli.common import plain, require, status, wrong
from powerspherical.cli.rows import check, read


def add_to(app: Typer) -> None:
    """Add the command to the application."""

    @app.command()
    def predict(
        model: Annotated[Path, Argument(metavar="MODEL", help="The model.safetensors that `cluster` wrote.")],
        data: options.DataFile,
        key: options.Key = None,
        columns: options.Columns = None,
        drop: options.Drop = None,
        header: options.Header = None,
        strict: options.Strict = False,
        out: Annotated[
            str, Option(metavar="FILE", help="FILE.npy or FILE.csv for the labels; - prints them.")
        ] = outputs.STDOUT,
        force: options.Force = False,
    ) -> None:
        """Assign the rows of a file to the clusters of a model.

        Writes one label per row, in the order of the rows.

        Example: powerspherical predict clusters/model.safetensors new.npy --out labels.npy
        """
        require("safetensors", "scipy", "sklearn", needed_for="predict")
        from powerspherical.mixture import CheckpointError, load

        path = outputs.destination(out, inputs=[model, data], force=force)
        try:
            mixture = load(model)
        except (CheckpointError, OSError) as error:
            raise wrong("MODEL", str(error)) from error
        rows = read(data, Wanted.parse(key, columns, drop, header, mixture.notes_.get("columns", ())))
        if rows.dim != mixture.n_features_in_:
            notice = f" ({rows.notice})" if rows.notice else ""
            raise wrong(
                "DATA",
                f"{data} has rows of {rows.dim} numbers{notice}, but {model} expects {mixture.n_features_in_}",
            )
        stdout = sys.stdout  # rich replaces sys.stdout while it shows a status
        with status(f"reading {data}") as show:
            check(rows, strict=strict, show=show)

            def labels() -> Iterator[Array]:
                for start, block in rows.blocks():
                    yield mixture.predict(block)
                    show(f"labelling: {start + len(block):,} of {rows.count:,} rows")

            outputs.write(path or stdout, labels(), (rows.count,))
        if path:
            print(f"{rows.count} labels: {plain(path)}")
