"""Rows from a file: .npy, .npz, .csv, or Parquet, which is read piece by piece, and what must hold of them."""

import sys
import warnings
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from powerspherical.cli._common import Failure, wrong

Array = np.ndarray[Any, np.dtype[Any]]

SUFFIXES = (".npy", ".npz", ".csv", ".parquet")
BLOCK = 2**22  # numbers looked at at a time: some 16 MB
TOLERANCE = 1e-3  # of a unit vector's length: half precision, or a few decimals, are no news


@dataclass(frozen=True)
class Data:
    """Rows (n, d) in float32 or float64: a NumPy array, from the disk as it is read, or a Dask array."""

    name: str
    rows: Any

    @property
    def count(self) -> int:
        """The number of rows."""
        return int(self.rows.shape[0])

    @property
    def dim(self) -> int:
        """Their length."""
        return int(self.rows.shape[1])

    def blocks(self) -> Iterator[tuple[int, Array]]:
        """The index of a first row and some rows from there on, in order."""
        size, start = max(1, BLOCK // self.dim), 0
        pieces = [self.rows] if isinstance(self.rows, np.ndarray) else self.rows.blocks
        for piece in pieces:
            try:
                rows = piece if isinstance(piece, np.ndarray) else piece.compute()
            except (OSError, ValueError) as error:
                raise wrong("DATA", f"cannot read {self.name}: {error}") from error
            for first in range(0, len(rows), size):
                block = rows[first : first + size]
                yield start, block
                start += len(block)


def read(path: Path, key: str | None) -> Data:
    """The rows in a file, or in a folder of Parquet files; `key` names an array of an .npz or a column."""
    suffix = ".parquet" if path.is_dir() else path.suffix
    readers: dict[str, Callable[[Path, str | None], Any]] = {
        ".npy": _npy,
        ".npz": _npz,
        ".csv": _csv,
        ".parquet": _parquet,
    }
    if suffix not in readers:
        raise wrong("DATA", f"{path} must end in {', '.join(SUFFIXES)}, or be a folder of Parquet files")
    if key is not None and suffix not in (".npz", ".parquet"):
        raise wrong("--key", f"{path} holds nothing with a name")
    try:
        rows = readers[suffix](path, key)
    except OSError as error:
        raise wrong("DATA", f"cannot read {path}: {error.strerror or error}") from error
    except (EOFError, ValueError, UserWarning, zipfile.BadZipFile) as error:
        raise wrong("DATA", f"cannot read {path}: {error}") from error
    if rows.ndim != 2 or rows.shape[0] < 1 or rows.shape[1] < 2:
        shape = tuple(rows.shape)
        raise wrong("DATA", f"{path} must hold rows of at least two numbers, but its shape is {shape}")
    return Data(str(path), rows)


def check(data: Data, *, strict: bool, progress: Callable[[int], None]) -> None:
    """Every row has a direction; with a notice if not all are unit vectors, or, if `strict`, an error."""
    others, first, shortest, longest = 0, -1, np.inf, 0.0
    for start, block in data.blocks():
        with np.errstate(over="ignore", invalid="ignore"):  # it is told below
            norms = np.linalg.norm(block.astype(np.float64, copy=False), axis=1)
        vanishing = norms <= np.finfo(block.dtype).tiny
        for bad, what in ((~np.isfinite(norms), "NaN or infinite values"), (vanishing, "only zeros")):
            if bad.any():
                row = start + int(np.argmax(bad))
                raise wrong(
                    "DATA", f"{data.name} has {what} in row {row} (rows count from 0): drop or repair it"
                )
        off = np.abs(norms - 1) > TOLERANCE
        if off.any():
            first = first if others else start + int(np.argmax(off))
            others += int(off.sum())
            shortest, longest = min(shortest, float(norms.min())), max(longest, float(norms.max()))
        progress(start + len(block))
    if not others:
        return
    told = f"{others} of {data.count} rows are not unit vectors"
    if strict:
        raise wrong("--strict", f"{told}, the first is row {first} of {data.name}: normalise them")
    print(
        f"powerspherical: {told} (lengths from {shortest:.4g} to {longest:.4g}); normalised", file=sys.stderr
    )


def _floating(array: Array) -> Array:
    """The array in float32 or float64, as it is where it can be."""
    if array.dtype.kind not in "fiu":
        raise ValueError(f"it holds {array.dtype}, not real numbers")
    single = array.dtype.kind == "f" and array.dtype.itemsize <= 4
    return array.astype(np.float32 if single else np.float64, copy=False)


def _npy(path: Path, key: str | None) -> Array:
    array = np.load(path, mmap_mode="r", allow_pickle=False)
    if not isinstance(array, np.ndarray):
        raise ValueError("it is an .npz archive, and should be called so")
    return _floating(array)


def _npz(path: Path, key: str | None) -> Array:
    with path.open("rb") as stream, zipfile.ZipFile(stream):
        pass  # an archive, and not something else that NumPy reads as well
    with np.load(path, allow_pickle=False) as file:
        matrices = [name for name in file.files if key is None and _is_matrix(file, name)]
        return _floating(file[_one(key, list(file.files), matrices, "arrays of rows")])


def _is_matrix(file: Any, name: str) -> bool:
    """Whether an array of an archive holds rows of numbers; texts and labels may lie beside them."""
    try:
        array = file[name]
    except ValueError:  # objects, which only pickle could read
        return False
    return array.ndim == 2 and array.dtype.kind in "fiu"


def _csv(path: Path, key: str | None) -> Array:
    with path.open(encoding="utf-8-sig") as file:
        header = file.readline()
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)  # what NumPy says of a file without numbers
        return np.loadtxt(
            path, delimiter=",", ndmin=2, encoding="utf-8-sig", skiprows=int(_is_header(header))
        )


def _is_header(line: str) -> bool:
    """Whether no part of a line is a number, or they are 0,1,2,…, as pandas calls the columns of an array."""

    def number(text: str) -> bool:
        try:
            float(text)
        except ValueError:
            return False
        return True

    parts = line.strip().split(",")
    counted = len(parts) > 2 and parts == [str(index) for index in range(len(parts))]  # 0,1 is a unit vector
    return counted or not any(map(number, parts))


def _one(key: str | None, names: list[str], candidates: list[str], kind: str) -> str:
    """The name that is meant."""
    if key is not None:
        if key not in names:
            raise ValueError(f"it has no {key!r}, only {', '.join(names) or 'nothing'}")
        return key
    if len(candidates) != 1:
        found = ", ".join(candidates) or "none"
        raise ValueError(
            f"it must have one of {kind}, but has {len(candidates)} ({found}): choose with --key"
        )
    return candidates[0]


def _parquet(path: Path, key: str | None) -> Any:
    """A Dask array with a block for each row group, read when it is needed."""
    try:
        import dask.array
        import pyarrow.parquet
        from dask.delayed import delayed
    except ImportError as error:
        raise Failure(f"{path} needs Dask and PyArrow; run: pip install 'powerspherical[dask]'", 2) from error

    files = sorted(path.glob("*.parquet")) if path.is_dir() else [path]
    if not files:
        raise ValueError("the folder has no .parquet files")
    blocks: list[Any] = []
    columns, dim, dtype = _layout(pyarrow.parquet.ParquetFile(files[0]), key)
    for file in files:
        groups = pyarrow.parquet.read_metadata(file)
        for group in range(groups.num_row_groups):
            length = groups.row_group(group).num_rows
            if length:
                rows = delayed(_row_group)(str(file), group, columns, (length, dim), dtype)
                blocks.append(dask.array.from_delayed(rows, (length, dim), dtype))
    if not blocks:
        raise ValueError("it has no rows")
    return dask.array.concatenate(blocks)


def _layout(file: Any, key: str | None) -> tuple[list[str], int, Any]:
    """The columns to read (one of lists, or all that are floating-point), the length of a row, and its dtype."""
    import pyarrow.types as types

    fields = {field.name: field.type for field in file.schema_arrow}
    lists = [name for name, kind in fields.items() if _is_list(kind) and types.is_floating(kind.value_type)]
    if key is None and not lists:
        numbers = [name for name, kind in fields.items() if types.is_floating(kind)]
        return (
            numbers,
            len(numbers),
            np.result_type(np.float32, *(fields[name].to_pandas_dtype() for name in numbers)),
        )
    name = _one(key, list(fields), lists, "columns of lists")
    if name not in lists:
        raise ValueError(f"its column {name!r} holds {fields[name]}, not lists of floating-point numbers")
    first = next(file.iter_batches(batch_size=1, columns=[name]), None)
    dim = 0 if first is None or not first.num_rows else len(first.column(0)[0].as_py() or ())
    return [name], dim, np.result_type(np.float32, fields[name].value_type.to_pandas_dtype())


def _is_list(kind: Any) -> bool:
    import pyarrow.types as types

    return types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)


def _row_group(file: str, group: int, columns: list[str], shape: tuple[int, int], dtype: Any) -> Array:
    import pyarrow.parquet

    table = pyarrow.parquet.ParquetFile(file).read_row_group(group, columns=columns)
    if set(table.column_names) != set(columns):
        raise ValueError(f"{file} has not the columns of the first file, {', '.join(columns)}")
    if _is_list(table.schema.field(0).type):
        numbers = table.column(0).combine_chunks().flatten().to_numpy(zero_copy_only=False)
        if len(numbers) != shape[0] * shape[1]:
            raise ValueError(f"the lists in row group {group} of {file} are not all of length {shape[1]}")
        return np.ascontiguousarray(numbers.reshape(shape), dtype=dtype)
    return np.stack([table.column(name).to_numpy() for name in columns], axis=1).astype(dtype, copy=False)
