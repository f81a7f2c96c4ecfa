"""Reads Parquet files one row group at a time. Needs Dask and PyArrow."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from powerspherical.cli.columns import Array, Column, Wanted, choose, kind_of, listed
from powerspherical.cli.common import wrong


class ParquetFiles:
    """A Parquet file, or a folder of Parquet files with the same columns, in the order of their names.

    Args:
        path: the file or the folder.
        key: the list column whose lists are the rows. Default: the only list column, if there is one.
    """

    has_names = True

    def __init__(self, path: Path, key: str | None = None) -> None:
        from pyarrow.parquet import ParquetFile

        self._key = key
        self._files = sorted(path.glob("*.parquet")) if path.is_dir() else [path]
        if not self._files:
            raise ValueError("the folder has no .parquet files")
        opened = (ParquetFile(file) for file in self._files)
        first = next((file for file in opened if file.metadata.num_rows), None)
        if first is None:
            raise ValueError("it has no rows")
        self._first = first
        schema = first.schema_arrow
        self._types = {field.name: field.type for field in schema}
        self.names = list(schema.names)
        index = (schema.pandas_metadata or {}).get("index_columns", [])
        self._columns = [
            Column(position, field.name, kind_of(field.type), is_index=field.name in index)
            for position, field in enumerate(schema)
        ]

    def rows(self, wanted: Wanted) -> tuple[Any, list[Column], list[Column]]:
        """The rows as a Dask array with one block per row group, the columns that hold them, and the others."""
        chosen = self._list_column(wanted)
        if chosen:
            [column] = chosen
            kinds = [self._types[column.name].value_type]
            dim = len(next(self._first.iter_batches(1, columns=[column.name])).column(0)[0].as_py() or ())
            if not dim:
                raise ValueError(f"the first row of its column {column.name!r} holds no numbers")
        else:
            chosen = choose(self._columns, self._head, wanted)
            kinds = [self._types[column.name] for column in chosen]
            dim = len(chosen)
        dtype = np.result_type(np.float32, *(kind.to_pandas_dtype() for kind in kinds))
        used = set(chosen)
        others = [column for column in self._columns if column not in used]
        return self._array([column.name for column in chosen], dim, dtype), chosen, others

    def texts(self, name: str) -> Iterator[str]:
        """The values of a column, as text. A missing value gives an empty text."""
        from pyarrow.parquet import ParquetFile

        for file in self._files:
            for batch in ParquetFile(file).iter_batches(columns=[name]):
                yield from ("" if value is None else str(value) for value in batch.column(0).to_pylist())

    def _list_column(self, wanted: Wanted) -> list[Column]:
        """The list column that holds the rows, or an empty list if the rows are in numeric columns."""
        lists = [column for column in self._columns if column.kind.startswith("lists of")]
        if self._key is not None:
            if wanted.columns:
                raise wrong("--columns", "--key already names the column: leave one of them out")
            named = [column for column in self._columns if column.name == self._key]
            if not named:
                raise ValueError(f"it has no column {self._key!r}, only {listed(self.names)}")
            if named[0] not in lists:
                raise ValueError(f"its column {self._key!r} holds {named[0].kind}, not lists of numbers")
            return named
        if wanted.columns:
            return [column for column in lists if list(wanted.columns) == [column.name]]
        if wanted.fitted and set(wanted.fitted) <= set(self.names):
            return []
        lists = [column for column in lists if column.name not in wanted.drop]
        found = [column for column in lists if column.kind == "lists of float"]
        if not any(column.holds_numbers and not column.is_index for column in self._columns):
            found = found or lists  # lists of integers may be something else, such as tokens
        if len(found) > 1:
            names = listed([column.name for column in found])
            raise ValueError(
                f"{len(found)} of its columns hold lists of numbers ({names}): choose with --key"
            )
        return found

    def _head(self, column: Column) -> Array:
        """The first values of a numeric column."""
        return next(self._first.iter_batches(1000, columns=[column.name])).column(0).to_numpy(False)

    def _array(self, columns: list[str], dim: int, dtype: Any) -> Any:
        import dask.array
        import pyarrow.parquet
        from dask.delayed import delayed

        blocks, start = [], 0
        for file in self._files:
            groups = pyarrow.parquet.read_metadata(file)
            for group in range(groups.num_row_groups):
                shape = (groups.row_group(group).num_rows, dim)
                if shape[0]:
                    rows = delayed(_row_group)(str(file), group, columns, start, shape, dtype)
                    blocks.append(dask.array.from_delayed(rows, shape, dtype))
                    start += shape[0]
        return dask.array.concatenate(blocks)


def _row_group(
    file: str, group: int, columns: list[str], start: int, shape: tuple[int, int], dtype: Any
) -> Array:
    """The rows of one row group. `start` is the index of its first row in the whole data set, for error messages."""
    import pyarrow.parquet

    table = pyarrow.parquet.ParquetFile(file).read_row_group(group, columns=columns)
    missing = [name for name in columns if name not in table.column_names]
    if missing:
        raise ValueError(f"{file} has no column {listed(missing)}, which the first file has")
    if kind_of(table.column(columns[0]).type).startswith("lists"):
        return _lists(table.column(0), start, shape[1]).astype(dtype, copy=False)
    return np.stack([table.column(name).to_numpy() for name in columns], axis=1).astype(dtype, copy=False)


def _lists(column: Any, start: int, dim: int) -> Array:
    """The lists of a column as rows. Raises ``ValueError`` unless each has `dim` numbers."""
    import pyarrow.compute as compute

    lengths = compute.list_value_length(column).fill_null(-1).to_numpy()
    others = lengths != dim
    if others.any():
        row = int(np.argmax(others))
        found = "no list" if lengths[row] < 0 else f"a list of length {lengths[row]}"
        raise ValueError(
            f"row {start + row} has {found}, but the first row has {dim} numbers (counted from 0)"
        )
    numbers = column.combine_chunks().flatten().to_numpy(zero_copy_only=False)
    return np.ascontiguousarray(numbers.reshape(-1, dim))
