"""Reads rows from .npy, .npz, .csv and Parquet files, and checks that every row has a direction."""

import csv
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from powerspherical.cli.columns import NO_CHOICE, Array, Wanted, listed
from powerspherical.cli.common import require, tell, wrong
from powerspherical.cli.csv_files import CsvFile, opened
from powerspherical.cli.parquet_files import ParquetFiles

SUFFIXES = (".npy", ".npz", ".csv", ".tsv", ".parquet", ".npy.gz", ".csv.gz", ".tsv.gz")
BLOCK = 2**22  # numbers per block: 16 MB in float32
TOLERANCE = 1e-3  # on the length of a unit vector: accepts half precision, or a few decimals


@dataclass(frozen=True)
class Data:
    """The rows of a file.

    Attributes:
        name: the name of the file.
        rows: (n, d), float32 or float64: a NumPy array, memory-mapped where possible, or a Dask array.
        table: the file, if it has columns.
        columns: the names of the coordinate columns, if each coordinate has a named column.
        notice: a message for the user about the columns that are used.
    """

    name: str
    rows: Any
    table: CsvFile | ParquetFiles | None = None
    columns: Sequence[str] = ()
    notice: str = ""

    @property
    def count(self) -> int:
        """The number of rows, n."""
        return int(self.rows.shape[0])

    @property
    def dim(self) -> int:
        """The length of a row, d."""
        return int(self.rows.shape[1])

    def blocks(self) -> Iterator[tuple[int, Array]]:
        """Consecutive blocks of rows in memory, each with the index of its first row."""
        size, start = max(1, BLOCK // self.dim), 0
        pieces = [self.rows] if isinstance(self.rows, np.ndarray) else self.rows.blocks
        for piece in pieces:
            with reading(self.name):
                rows = piece if isinstance(piece, np.ndarray) else piece.compute()
            for first in range(0, len(rows), size):
                block = rows[first : first + size]
                yield start, block
                start += len(block)


def read(
    path: Path, key: str | None = None, wanted: Wanted = NO_CHOICE, *, header: bool | None = None
) -> Data:
    """Read the rows of a file, or of a folder of Parquet files.

    Args:
        path: the file or folder.
        key: the array of an .npz file, or the list column of a Parquet file.
        wanted: the columns of a table that are coordinates.
        header: whether the first line of a text file holds column names. Default: detected.
    """
    form = _format(path)
    for option, given, formats in (
        ("--key", key is not None, (".npz", ".parquet")),
        ("--columns", bool(wanted.columns), (".csv", ".parquet")),
        ("--drop", bool(wanted.drop), (".csv", ".parquet")),
        ("--header", header is not None, (".csv",)),
    ):
        if given and form not in formats:
            applies = " and ".join(formats)
            raise wrong(option, f"{option} applies only to {applies} files, not to {path}: leave it out")
    with reading(str(path)):
        if form == ".csv":
            require("pyarrow", needed_for=str(path))
            data = _from_table(path, CsvFile(path, header), wanted)
        elif form == ".parquet":
            require("dask", "pyarrow", needed_for=str(path))
            data = _from_table(path, ParquetFiles(path, key), wanted)
        else:
            data = Data(str(path), _npy(path) if form == ".npy" else _npz(path, key))
    if data.rows.ndim != 2 or data.rows.shape[0] < 1 or data.rows.shape[1] < 2:
        shape = tuple(data.rows.shape)
        hint = f"; {data.notice}" if data.notice else ""
        if form == ".csv":
            hint += "; numbers need a decimal point, and commas, semicolons or tabs between them"
        raise wrong("DATA", f"{path} must hold rows of at least two numbers, but its shape is {shape}{hint}")
    return data


@contextmanager
def reading(name: str) -> Iterator[None]:
    """Turn every error of reading a file into wrong usage, with the file's name."""
    try:
        yield
    except UnicodeDecodeError as error:
        raise wrong("DATA", f"cannot read {name}: {error}; save it as UTF-8") from error
    except OSError as error:
        raise wrong("DATA", f"cannot read {name}: {error.strerror or error}") from error
    except (EOFError, ValueError, csv.Error, zipfile.BadZipFile, zlib.error) as error:
        raise wrong("DATA", f"cannot read {name}: {error}") from error


def check(data: Data, *, strict: bool, show: Callable[[str], None]) -> None:
    """Raise unless every row has a direction.

    Rows that are not unit vectors raise if `strict`, and otherwise print a notice. `show` displays the progress.
    """
    others, first, shortest, longest = 0, -1, np.inf, 0.0
    for start, block in data.blocks():
        with np.errstate(over="ignore", invalid="ignore"):  # reported below
            norms = np.linalg.norm(block.astype(np.float64, copy=False), axis=1)
        vanishing = norms <= np.finfo(block.dtype).tiny
        for bad, what in ((~np.isfinite(norms), "NaN or infinite values"), (vanishing, "only zeros")):
            if bad.any():
                row = start + int(np.argmax(bad))
                raise wrong(
                    "DATA", f"{data.name} has {what} in row {row} (counted from 0): remove or repair it"
                )
        off = np.abs(norms - 1) > TOLERANCE
        if off.any():
            first = first if others else start + int(np.argmax(off))
            others += int(off.sum())
            shortest, longest = min(shortest, float(norms.min())), max(longest, float(norms.max()))
        show(f"reading {data.name}: {start + len(block):,} rows")
    found = f"{others} of {data.count} rows are not unit vectors"
    if others and strict:
        raise wrong("--strict", f"{found}, the first is row {first} of {data.name}: normalise them")
    if data.notice:
        tell(data.notice)
    if others:
        tell(f"{found} (lengths from {shortest:.4g} to {longest:.4g}); normalised")


def _format(path: Path) -> str:
    """The format of a file by its suffix: .npy, .npz, .csv or .parquet."""
    if path.is_dir():
        return ".parquet"
    name = path.name.lower()
    if name.endswith((".npz.gz", ".parquet.gz")):
        raise wrong("DATA", f"{path} is compressed twice: unpack it with gunzip first")
    found = [suffix for suffix in SUFFIXES if name.endswith(suffix)]
    if not found:
        raise wrong("DATA", f"{path} must end in {', '.join(SUFFIXES)}, or be a folder of Parquet files")
    return found[0].removesuffix(".gz").replace(".tsv", ".csv")


def _floating(array: Array) -> Array:
    """The array in float32 or float64, without a copy if it already is."""
    if array.dtype.kind not in "fiu":
        raise ValueError(f"it holds {array.dtype}, not real numbers")
    single = array.dtype.kind == "f" and array.dtype.itemsize <= 4
    return array.astype(np.float32 if single else np.float64, copy=False)


def _npy(path: Path) -> Array:
    if path.suffix.lower() == ".gz":
        with opened(path) as file:
            array = np.load(file, allow_pickle=False)
    else:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    if not isinstance(array, np.ndarray):
        raise ValueError("it is an .npz archive: rename it to .npz")
    return _floating(array)


def _npz(path: Path, key: str | None) -> Array:
    """The array of an archive that `key` names, by default the only matrix of numbers."""
    with path.open("rb") as stream, zipfile.ZipFile(stream):
        pass  # np.load would also accept a .npy file under this name
    with np.load(path, allow_pickle=False) as file:
        if key is None:
            matrices = [name for name in file.files if _is_matrix(file, name)]
            if len(matrices) != 1:
                raise ValueError(
                    f"it must have one array of rows, but has {len(matrices)} ({listed(matrices)}): choose with --key"
                )
            key = matrices[0]
        if key not in file.files:
            raise ValueError(f"it has no array {key!r}, only {listed(file.files)}")
        return _floating(file[key])


def _is_matrix(file: Any, name: str) -> bool:
    """Whether an array of an archive is a matrix of numbers. Archives may also hold texts or labels."""
    try:
        array = file[name]
    except ValueError:  # an array of objects, which is not loaded because that needs pickle
        return False
    return array.ndim == 2 and array.dtype.kind in "fiu"


def _from_table(path: Path, table: CsvFile | ParquetFiles, wanted: Wanted) -> Data:
    """The rows in the coordinate columns of a table, with a notice about the choice of columns."""
    rows, used, others = table.rows(wanted if table.has_names else replace(wanted, fitted=()))
    names = [column.name for column in used]
    named = table.has_names and all(column.holds_numbers for column in used)
    notice = ""
    if others or (named and len(used) > 1):
        notice = f"columns used as coordinates: {listed(names)} ({len(used)} of {len(table.names)})"
    if others:
        left_out = ["the index" if column.is_index else column.name or "an unnamed one" for column in others]
        notice += f"; left out: {listed(left_out)}"
    return Data(str(path), rows, table, names if named else (), notice)
