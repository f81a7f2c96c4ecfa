"""Reads text tables: cells separated by commas, semicolons or tabs, with or without a header. Needs PyArrow."""

import csv
import gzip
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np

from powerspherical.cli.columns import Array, Column, Wanted, choose, kind_of

_DELIMITERS = "\t;,"  # the comma comes last because it may be a decimal comma
_BLOCK = 2**25  # bytes parsed at a time; the longest line must fit
_NUMBER = r"^\s*[-+]?(\d+[.,]?\d*|[.,]\d+)([eE][-+]?\d+)?\s*$"  # also with a decimal comma


def opened(path: Path, mode: Literal["rb", "rt"] = "rb") -> IO[Any]:
    """Open a file as bytes or as UTF-8 text, and decompress it if its name ends in .gz."""
    open_file: Callable[..., IO[Any]] = gzip.open if path.suffix.lower() == ".gz" else open
    return open_file(path, mode, encoding="utf-8-sig" if mode == "rt" else None)


class CsvFile:
    """A text table.

    Args:
        path: the file.
        header: whether the first line holds column names. Default: true if no cell of it is a number; the first cell
            may be empty, as pandas writes it above an index. Raises ``ValueError`` if that does not decide.
    """

    def __init__(self, path: Path, header: bool | None = None) -> None:
        import pyarrow.csv

        self.path = path
        attempts = [(delimiter, *_first_rows(path, delimiter)) for delimiter in _DELIMITERS]
        # Best is a delimiter that gives the first two rows the same number of cells, more than one.
        delimiter, first, _, comments, lines = max(
            attempts, key=lambda found: (len(found[1]) == len(found[2]) > 1, len(found[1]) > 1)
        )
        self.has_names = _is_header(first) if header is None else header
        self.names = [
            name.strip() if self.has_names else str(position) for position, name in enumerate(first)
        ]
        self._options = (
            pyarrow.csv.ReadOptions(
                column_names=self.names, skip_rows=lines if self.has_names else comments, block_size=_BLOCK
            ),
            pyarrow.csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
        )

    def rows(self, wanted: Wanted) -> tuple[Array, list[Column], list[Column]]:
        """The coordinates (n, d) in float64, the columns that hold them, and the other columns."""
        import pyarrow
        import pyarrow.csv

        with opened(self.path) as file:
            table = pyarrow.csv.read_csv(file, *self._options)
        columns = [self._column(position, table.column(position)) for position in range(len(self.names))]
        numbers = {
            column.position: table.column(column.position).cast(pyarrow.float64(), safe=False)
            for column in columns
            if column.holds_numbers
        }
        chosen = choose(columns, lambda column: numbers[column.position][:1000].to_numpy(), wanted)
        rows = np.empty((table.num_rows, len(chosen)))
        for index, column in enumerate(chosen):
            rows[:, index] = numbers[column.position].to_numpy()
        used = set(chosen)
        return rows, chosen, [column for column in columns if column not in used]

    def texts(self, name: str) -> Iterator[str]:
        """The values of a column, as text."""
        import pyarrow
        import pyarrow.csv

        as_text = pyarrow.csv.ConvertOptions(include_columns=[name], column_types={name: pyarrow.string()})
        with opened(self.path) as file, pyarrow.csv.open_csv(file, *self._options, as_text) as batches:
            for batch in batches:
                yield from batch.column(0).to_pylist()

    def _column(self, position: int, values: Any) -> Column:
        import pyarrow.types as types

        name, kind, flaw = self.names[position], kind_of(values.type), ""
        if types.is_null(values.type) and name:  # a column of missing numbers
            kind = "float"
        elif types.is_string(values.type) or types.is_binary(values.type):
            flaw = _flaw(values)
        is_index = self.has_names and position == 0 and not name
        return Column(position, name, kind, is_index, flaw)


def _first_rows(path: Path, delimiter: str) -> tuple[list[str], list[str], int, int]:
    """The first two rows, the number of comment lines above, and the number of lines up to the end of the first row."""
    with opened(path, "rt") as lines:
        comments = 0
        line = lines.readline()
        while line.startswith("#"):
            comments += 1
            line = lines.readline()
        csv.field_size_limit(2**31 - 1)  # with the wrong delimiter, a field is a whole line
        reader = csv.reader((text for part in ([line], lines) for text in part), delimiter=delimiter)
        first = next(filter(None, reader), None)
        if first is None:
            raise ValueError("it has no rows")
        end = comments + reader.line_num
        return first, next(filter(None, reader), first), comments, end


def _is_header(cells: list[str]) -> bool:
    """Whether the cells of the first line are column names. Raises ``ValueError`` if they may also be values."""
    above_index = not cells[0].strip()
    names = cells[1:] if above_index else cells
    numbers = [_is_number(cell) for cell in names]
    counted = names == [
        str(index) for index in range(len(names))
    ]  # pandas' names for the columns of an array
    if not any(numbers) or (above_index and counted):
        return True
    if all(numbers) and not above_index and not counted:
        return False
    shown = ",".join(cells[:6]) + ",…" * (len(cells) > 6)
    raise ValueError(
        f"its first line, {shown}, may hold names or values: pass --header for names, --no-header for values"
    )


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _flaw(values: Any) -> str:
    """The first value that is not a number, with its row, if most of the texts are numbers. Otherwise empty."""
    import pyarrow.compute as compute

    share = compute.mean(compute.match_substring_regex(values, _NUMBER)).as_py() or 0
    if share <= 0.5:
        return ""
    row, text = next((row, text) for row, text in enumerate(values.to_pylist()) if not _is_number(text))
    return f"{text!r} in row {row} (counted from 0)"
