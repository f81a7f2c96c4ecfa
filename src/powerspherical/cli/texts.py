"""The texts that rows stand for: the lines of a file, or a column of the table that holds the rows."""

from collections.abc import Callable, Collection, Iterator
from functools import partial
from pathlib import Path

from powerspherical.cli._common import wrong
from powerspherical.cli.columns import listed
from powerspherical.cli.csv_files import opened
from powerspherical.cli.rows import Data

Texts = Callable[[], Iterator[str]]
"""Returns the text of each row, in order."""


def texts(name: str, data: Data) -> Texts:
    """The texts of the rows, from a text file with a line for each row or from a column of their table.

    Raises for wrong use if there is neither, if there are both, or if the file has another number of lines.
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
        found = partial(data.table.texts, name)
    elif path.is_file():
        found = partial(_lines, path)
    else:
        held = f"its columns are {listed(columns)}" if columns else "it has no named columns"
        raise wrong("--text", f"there is no file {name}, and no column {name!r} in {data.name}: {held}")
    try:
        count = sum(1 for _ in found())
    except (OSError, ValueError) as error:
        raise wrong("--text", f"cannot read {name}: {error}; it must be UTF-8 text") from error
    if count != data.count:
        raise wrong(
            "--text",
            f"{name} has {count} line(s), but {data.name} has {data.count} row(s): give one line for each row",
        )
    return found


def pick(texts: Texts, rows: Collection[int]) -> dict[int, str]:
    """The texts of some rows."""
    return {row: text for row, text in enumerate(texts()) if row in rows}


def _lines(path: Path) -> Iterator[str]:
    with opened(path, "rt") as lines:
        for line in lines:
            yield line.rstrip("\n")
