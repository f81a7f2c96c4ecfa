"""The texts that rows stand for: the lines of a file, or a column of the table that holds the rows."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from powerspherical.cli.columns import listed
from powerspherical.cli.common import wrong
from powerspherical.cli.csv_files import opened
from powerspherical.cli.rows import Data


def find_texts(name: str, data: Data) -> Callable[[], Iterator[str]]:
    """A function that returns one text per row of `data`, in order.

    `name` is a text file with one line per row, or a column of the table. Raises if there is neither, if there are
    both, or if the file has another number of lines than `data` has rows.
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
        texts = partial(data.table.texts, name)
    elif path.is_file():
        texts = partial(_lines, path)
    else:
        found = f"its columns are {listed(columns)}" if columns else "it has no named columns"
        raise wrong("--text", f"there is no file {name}, and no column {name!r} in {data.name}: {found}")
    try:
        count = sum(1 for _ in texts())
    except (OSError, ValueError) as error:
        raise wrong("--text", f"cannot read {name}: {error}; it must be UTF-8 text") from error
    if count != data.count:
        raise wrong(
            "--text",
            f"{name} has {count} line(s), but {data.name} has {data.count} row(s): write one line per row",
        )
    return texts


def _lines(path: Path) -> Iterator[str]:
    with opened(path, "rt") as lines:
        for line in lines:
            yield line.rstrip("\n")
