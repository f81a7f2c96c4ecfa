"""Text files of rows: commas, semicolons or tabs between the cells, with or without a header. Needs PyArrow."""

import csv
import gzip
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np

from powerspherical.cli.columns import Array, Column, Wanted, choose

_DELIMITERS = "\t;,"  # in this order: a comma may also be a decimal point
_BLOCK = 2**25  # bytes parsed at a time; a line must fit
_NUMBER = r"^\s*[-+]?(\d+[.,]?\d*|[.,]\d+)([eE][-+]?\d+)?\s*$"  # also with a decimal comma


def opened(path: Path, mode: Literal["rb", "rt"] = "rb") -> IO[Any]:
    """The file, as bytes or as UTF-8 text, unpacked while it is read if its name ends in .gz."""
    open_file: Callable[..., IO[Any]] = gzip.open if path.suffix.lower() == ".gz" else open
    return open_file(path, mode, encoding="utf-8-sig" if mode == "rt" else None)


class CsvFile:
    """A text file of rows.

    Args:
        path: the file.
        header: whether its first line holds names. Default: it does if no cell of it is a number, and the first cell
            may be empty, as over a pandas index. Raises ``ValueError`` where that does not tell.
    """

    def __init__(self, path: Path, header: bool | None = None) -> None:
        self.path = path
        delimiters = [(delimiter, *_first_rows(path, delimiter)) for delimiter in _DELIMITERS]
        self._delimiter, first, _, comments, lines = max(
            delimiters, key=lambda found: (len(found[1]) == len(found[2]) > 1, len(found[1]) > 1)
        )
        self.has_names = _is_header(first) if header is None else header
        self._skipped = lines if self.has_names else comments
        self.names = (
            [name.strip() for name in first] if self.has_names else [str(i) for i in range(len(first))]
        )

    def rows(self, wanted: Wanted) -> tuple[Array, list[Column], list[Column]]:
        """The coordinates (n, d) in float64, the columns that hold them, and the other columns."""
        import pyarrow
        import pyarrow.csv

        with opened(self.path) as file:
            table = pyarrow.csv.read_csv(file, self._read_options(), self._parse_options())
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
        """The values of a column, as they are written."""
        import pyarrow
        import pyarrow.csv

        as_text = pyarrow.csv.ConvertOptions(include_columns=[name], column_types={name: pyarrow.string()})
        with (
            opened(self.path) as file,
            pyarrow.csv.open_csv(file, self._read_options(), self._parse_options(), as_text) as batches,
        ):
            for batch in batches:
                yield from batch.column(0).to_pylist()

    def _read_options(self) -> Any:
        import pyarrow.csv

        return pyarrow.csv.ReadOptions(column_names=self.names, skip_rows=self._skipped, block_size=_BLOCK)

    def _parse_options(self) -> Any:
        import pyarrow.csv

        return pyarrow.csv.ParseOptions(delimiter=self._delimiter, newlines_in_values=True)

    def _column(self, position: int, values: Any) -> Column:
        import pyarrow.types as types

        name = self.names[position]
        is_index = self.has_names and position == 0 and not name
        kind, flaw = str(values.type), ""
        if types.is_floating(values.type) or (types.is_null(values.type) and name):  # missing numbers
            kind = "float"
        elif types.is_integer(values.type):
            kind = "integer"
        elif types.is_string(values.type) or types.is_binary(values.type):
            kind, flaw = "text", _flaw(values)
        return Column(position, name, kind, is_index, flaw)


def _first_rows(path: Path, delimiter: str) -> tuple[list[str], list[str], int, int]:
    """The first two rows, the number of comment lines above them, and that of all lines up to the first row's end."""
    with opened(path, "rt") as lines:
        comments = 0
        line = lines.readline()
        while line.startswith("#"):
            comments += 1
            line = lines.readline()
        csv.field_size_limit(2**31 - 1)  # between wrong delimiters, a field is a whole line
        reader = csv.reader((text for part in ([line], lines) for text in part), delimiter=delimiter)
        first = next(filter(None, reader), None)
        if first is None:
            raise ValueError("it has no rows")
        end = comments + reader.line_num
        return first, next(filter(None, reader), first), comments, end


def _is_header(cells: list[str]) -> bool:
    """Whether the cells of a file's first line are names; raises ``ValueError`` if they may also be values."""
    over_index = not cells[0].strip()
    names = cells[1:] if over_index else cells
    numbers = [_is_number(cell) for cell in names]
    counted = names == [str(index) for index in range(len(names))]  # as pandas names the columns of an array
    if not any(numbers) or (over_index and counted):
        return True
    if all(numbers) and not over_index and not counted:
        return False
    shown = ",".join(cells[:6]) + ",…" * (len(cells) > 6)
    raise ValueError(
        f"its first line, {shown}, may hold names or values: say --header if they are names, else --no-header"
    )


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _flaw(values: Any) -> str:
    """Of texts that mostly are numbers, the first that is none, and its row; else nothing."""
    import pyarrow.compute as compute

    share = compute.mean(compute.match_substring_regex(values, _NUMBER)).as_py() or 0
    if share <= 0.5:
        return ""
    row, text = next((row, text) for row, text in enumerate(values.to_pylist()) if not _is_number(text))
    return f"{text!r} in row {row} (rows count from 0)"
