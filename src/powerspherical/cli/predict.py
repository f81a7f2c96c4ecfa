"""`powerspherical predict`: the clusters of new rows, by a mixture that `powerspherical cluster` fitted."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from powerspherical.cli import _options as options
from powerspherical.cli import outputs
from powerspherical.cli.columns import Wanted
from powerspherical.cli.common import plain, require, status, wrong
from powerspherical.cli.rows import BLOCK, check, read


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
    rows = read(data, Wanted(key, columns, drop, header, mixture.notes_.get("columns", ())))
    if rows.dim != mixture.n_features_in_:
        found = f"{rows.dim} numbers" + (f" ({rows.notice})" if rows.notice else "")
        raise wrong("DATA", f"{data} has rows of {found}, but {model} expects {mixture.n_features_in_}")
    with status(f"reading {data}") as show:
        check(rows, strict=strict, show=show)
    labels = (mixture.predict(block) for _, block in rows.blocks(BLOCK))
    outputs.write(path, labels, (rows.count,), "labelling")
    if path:
        print(f"{rows.count} labels: {plain(path)}")
