"""Reads tables, text or Parquet: chooses the columns that are coordinates, and decodes them once. Needs PyArrow."""

import csv
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.csv
from pyarrow.parquet import ParquetFile

from powerspherical.cli.columns import Array, Column, Wanted, choose, listed
from powerspherical.cli.common import wrong
from powerspherical.cli.rows import floating, gathered, open_text, rows_per_block

_DELIMITERS = "\t;,"  # the comma comes last because it may be a decimal comma
#: Lines of text parsed at a time, within limits in bytes. Arrow reads 32 such chunks ahead.
_LINES, _SMALLEST_CHUNK, _LARGEST_CHUNK = 128, 2**18, 2**21
_DOUBLE = 2**24  # bytes of text up to which its numbers are kept in float64, beyond in float32
_HEAD = 1000  # rows that decide which columns are coordinates
_BUFFER = 2**16  # bytes of a Parquet column read at a time; by default Arrow reads all columns of a row group
_BAD_CELL = re.compile(r"In CSV column #(\d+): Row #(\d+): .* invalid value '(.*)'", re.DOTALL)


class TextFile:
    """A text table: cells separated by commas, semicolons or tabs, with or without a header."""

    def __init__(self, path: Path, header: bool | None) -> None:
        self._path = path
        attempts = [(delimiter, *_first_rows(path, delimiter)) for delimiter in _DELIMITERS]
        # Best is a delimiter that gives the first two rows the same number of cells, more than one.
        self._delimiter, first, second, comments, lines = max(
            attempts, key=lambda found: (len(found[1]) == len(found[2]) > 1, len(found[1]) > 1)
        )
        longest = max(sum(len(cell) + 1 for cell in row) for row in (first, second))
        self._chunk = max(_SMALLEST_CHUNK, min(_LINES * longest, _LARGEST_CHUNK), longest)
        self.has_names = _is_header(first) if header is None else header
        self._skipped = lines if self.has_names else comments
        self._names = [name.strip() if self.has_names else str(index) for index, name in enumerate(first)]
        with self._reader({}) as reader:
            self.head = pa.Table.from_batches(islice(reader, 1), reader.schema).slice(0, _HEAD)
        pa.default_memory_pool().release_unused()
        self.columns = [self._column(index, name) for index, name in enumerate(self._names)]

    def batches(self, columns: Sequence[Column], dim: int, as_text: bool = False) -> Iterator[Any]:
        """Yield record batches. Raises ``ValueError`` for a cell that is not a number, unless they are read as text."""
        kind = pa.binary() if as_text else pa.float64()
        try:
            with self._reader({column.key: kind for column in columns}) as reader:
                yield from reader
        except pa.ArrowInvalid as error:
            found = _BAD_CELL.search(str(error))
            if not found:
                raise
            row, name, text = int(found[2]) - self._skipped - 1, self._names[int(found[1])], found[3]
            raise ValueError(
                f"its column {name!r} has {text!r} in row {row} (counted from 0), which is not a number with a decimal"
                " point: repair it, or leave the column out with --drop"
            ) from error

    def _reader(self, types: dict[str, Any]) -> Any:
        """A reader of the columns with these types. Without types, of all columns, whose types it guesses."""
        names = [str(index) for index in range(len(self._names))]  # unique, unlike the names in the file
        return pyarrow.csv.open_csv(
            self._path,  # a Python file would be used by a thread of Arrow when Python may already have ended
            pyarrow.csv.ReadOptions(
                use_threads=False, block_size=self._chunk, column_names=names, skip_rows=self._skipped
            ),
            pyarrow.csv.ParseOptions(delimiter=self._delimiter, newlines_in_values=True),
            pyarrow.csv.ConvertOptions(include_columns=list(types), column_types=types),
        )

    def _column(self, index: int, name: str) -> Column:
        values = self.head.column(index)
        kind = _kind(values.type)
        if pa.types.is_null(values.type) and name:  # a column of missing numbers
            kind = "float"
        elif kind == "string" and np.mean([_is_number(text) for text in values.to_pylist()]) > 0.5:
            kind = "float"  # reading it will report the cell that is not a number
        return Column(str(index), name, kind, is_index=self.has_names and index == 0 and not name)


class ParquetPart:
    """A Parquet file."""

    has_names = True

    def __init__(self, path: Path) -> None:
        self._file = ParquetFile(path, buffer_size=_BUFFER, pre_buffer=False)
        schema = self._file.schema_arrow
        index = (schema.pandas_metadata or {}).get("index_columns", [])
        self.columns = [
            Column(field.name, field.name, _kind(field.type), is_index=field.name in index)
            for field in schema
        ]

    @cached_property
    def head(self) -> Any:
        return pa.Table.from_batches(
            islice(self._file.iter_batches(_HEAD, use_threads=False), 1), self._file.schema_arrow
        )

    def batches(self, columns: Sequence[Column], dim: int, as_text: bool = False) -> Iterator[Any]:
        """Yield record batches of columns that hold `dim` numbers per row."""
        keys, size = [column.key for column in columns], rows_per_block(dim)
        for group in range(self._file.num_row_groups):  # Arrow would decode all groups at once
            for batch in self._file.iter_batches(size, [group], keys, use_threads=False):
                yield batch.select(keys)  # in their order


class Table:
    """Files of text or Parquet files one below the other, with the same columns. `header` is that of `Wanted`."""

    def __init__(self, files: Sequence[Path], header: bool | None) -> None:
        self._files, self._header = files, header
        first = next((table for table in map(self._opened, files) if table.head.num_rows), None)
        if first is None:
            raise ValueError("it has no rows")
        self._first, self.columns = first, first.columns
        self.names = [column.name for column in self.columns]
        self.hint = ""
        if isinstance(first, TextFile):
            self.hint = "numbers need a decimal point, and commas, semicolons or tabs between them"

    def rows(self, wanted: Wanted) -> tuple[Array, list[str], str]:
        """The coordinates (n, d), the names of their columns if each has one, and a notice about the choice."""
        if not self._first.has_names:
            wanted = replace(wanted, fitted=())
        chosen = self._list_column(wanted) or choose(self.columns, self._head, wanted)
        dim, dtype = self._layout(chosen)
        names = [column.name for column in chosen]
        named = self._first.has_names and all(column.holds_numbers for column in chosen)
        used = set(chosen)
        others = (column for column in self.columns if column not in used)
        left_out = ["the index" if column.is_index else column.name or "an unnamed one" for column in others]
        notice = ""
        if left_out or (named and dim > 1):
            notice = f"columns used as coordinates: {listed(names)} ({len(names)} of {len(self.columns)})"
        if left_out:
            notice += f"; left out: {listed(left_out)}"
        rows = gathered(self._blocks(chosen, dim, dtype), dim, dtype) if dim else np.empty((0, 0))
        pa.default_memory_pool().release_unused()  # tens of megabytes that Arrow read ahead
        return rows, names if named else [], notice

    def texts(self, name: str, rows: Collection[int]) -> dict[int, str]:
        """The values of a column in these rows, as text. A missing value gives an empty text."""
        column = self.columns[self.names.index(name)]
        found, start, wanted = {}, 0, set(rows)
        parts = (self._opened(path).batches([column], 1, True) for path in self._files)
        for batch in chain.from_iterable(parts):
            for row in wanted.intersection(range(start, start + len(batch))):
                value = batch.column(0)[row - start].as_py()
                text = value.decode(errors="replace") if isinstance(value, bytes) else value
                found[row] = "" if text is None else str(text)
            start += len(batch)
        return found

    def _opened(self, path: Path) -> TextFile | ParquetPart:
        return ParquetPart(path) if path.suffix.lower() == ".parquet" else TextFile(path, self._header)

    def _head(self, column: Column) -> Array:
        """The first values of a column of numbers."""
        values = self._first.head.column(column.key)
        return values.to_numpy() if _kind(values.type) in ("float", "integer") else np.empty(0)

    def _list_column(self, wanted: Wanted) -> list[Column]:
        """The list column that holds the rows, or an empty list if the rows are in numeric columns."""
        lists = [column for column in self.columns if column.holds_lists]
        if wanted.key is not None:
            if wanted.columns:
                raise wrong("--columns", "--key already names the column: leave one of them out")
            named = [column for column in lists if column.name == wanted.key]
            if not named:
                problem = f"it has no column {wanted.key!r} of lists of numbers"
                raise ValueError(f"{problem}; those with lists are: {listed([c.name for c in lists])}")
            return named
        if wanted.columns:
            return [column for column in lists if list(wanted.columns) == [column.name]]
        if wanted.fitted and set(wanted.fitted) <= set(self.names):
            return []
        lists = [column for column in lists if column.name not in (wanted.drop or ())]
        found = [column for column in lists if column.kind == "lists of float"]
        if not any(column.holds_numbers and not column.is_index for column in self.columns):
            found = found or lists  # lists of integers may be something else, such as tokens
        if len(found) > 1:
            count, names = len(found), listed([column.name for column in found])
            raise ValueError(f"{count} of its columns hold lists of numbers ({names}): choose with --key")
        return found

    def _layout(self, chosen: Sequence[Column]) -> tuple[int, np.dtype[Any]]:
        """The length of a row, and the dtype to hold it."""
        if isinstance(self._first, TextFile):
            # Text has no dtype. Small files may hold precise measurements; large ones hold embeddings.
            small = sum(path.stat().st_size for path in self._files) <= _DOUBLE
            return len(chosen), np.dtype(np.float64 if small else np.float32)
        kinds, dim = [self._first.head.schema.field(column.key).type for column in chosen], len(chosen)
        if chosen and chosen[0].holds_lists:
            kinds, dim = [kinds[0].value_type], len(self._first.head.column(chosen[0].key)[0].as_py() or ())
            if not dim:
                raise ValueError(f"the first row of its column {chosen[0].name!r} holds no numbers")
        dtypes = (floating(np.dtype(kind.to_pandas_dtype())) for kind in kinds)
        return dim, np.result_type(np.float32, *dtypes)

    def _blocks(self, chosen: Sequence[Column], dim: int, dtype: np.dtype[Any]) -> Iterator[Array]:
        start = 0
        for path in self._files:
            try:
                table = self._opened(path)
                here = {(column.key, column.name): column for column in table.columns}
                for column in chosen:
                    same = here.get((column.key, column.name))
                    if same is None:
                        raise ValueError(f"it has no column {column.name!r} where the first file has it")
                    if (same.holds_numbers, same.holds_lists) != (column.holds_numbers, column.holds_lists):
                        kinds = f"{same.kind}, but {column.kind} in the first file"
                        raise ValueError(f"its column {column.name!r} holds {kinds}")
                for batch in table.batches(chosen, dim):
                    yield _as_rows(batch.columns, dim, dtype, start)
                    start += len(batch)
            except ValueError as error:
                raise ValueError(f"{path.name}: {error}" if len(self._files) > 1 else str(error)) from error


def _as_rows(columns: Sequence[Any], dim: int, dtype: np.dtype[Any], start: int) -> Array:
    """Columns of numbers, or one of lists, as rows (b, dim). Raises ``ValueError`` for a list of another length."""
    if _kind(columns[0].type).startswith("lists"):
        lengths = pyarrow.compute.list_value_length(columns[0]).fill_null(-1).to_numpy()
        if (lengths != dim).any():
            row = int(np.argmax(lengths != dim))
            found = "no list" if lengths[row] < 0 else f"a list of length {lengths[row]}"
            raise ValueError(
                f"row {start + row} has {found}, but the first row has {dim} numbers (counted from 0)"
            )
        return columns[0].flatten().to_numpy(zero_copy_only=False).reshape(-1, dim)
    return np.array([column.to_numpy(zero_copy_only=False) for column in columns], dtype).T


def _first_rows(path: Path, delimiter: str) -> tuple[list[str], list[str], int, int]:
    """The first two rows, the number of comment lines above, and the number of lines up to the end of the first row."""
    with open_text(path) as lines:
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
    """Whether the cells of the first line are column names: no cell is a number.

    The first cell may be empty, as pandas writes it above an index. Raises ``ValueError`` if that does not decide.
    """
    above_index = not cells[0].strip()
    names = cells[1:] if above_index else cells
    numbers = [_is_number(cell) for cell in names]
    counted = names == list(map(str, range(len(names))))  # pandas' names for the columns of an array
    if not any(numbers) or (above_index and counted):
        return True
    if all(numbers) and not above_index and not counted:
        return False
    shown = ",".join(cells[:6]) + ",…" * (len(cells) > 6)
    raise ValueError(
        f"its first line, {shown}, may hold names or values: pass --header for names, --no-header for values"
    )


def _is_number(text: str) -> bool:
    """Whether Python reads a text as a number, with a decimal point or comma."""
    try:
        float(text.replace(",", "."))
    except ValueError:
        return False
    return True


def _kind(kind: Any) -> str:
    """The `Column.kind` of a PyArrow type."""
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        value = _kind(kind.value_type)
        return f"lists of {value}" if value in ("float", "integer") else str(kind)
    if pa.types.is_floating(kind):
        return "float"
    return "integer" if pa.types.is_integer(kind) else str(kind)
