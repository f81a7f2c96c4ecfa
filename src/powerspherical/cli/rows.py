"""Rows from a file: .npy, .npz, .csv, or Parquet, which is read piece by piece, and what must hold of them."""

import csv
import sys
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from powerspherical.cli._common import require, wrong
from powerspherical.cli.columns import NO_CHOICE, Array, Wanted, listed
from powerspherical.cli.csv_files import CsvFile, opened
from powerspherical.cli.parquet_files import ParquetFiles

SUFFIXES = (".npy", ".npz", ".csv", ".tsv", ".parquet")
PACKED = (".npy.gz", ".csv.gz", ".tsv.gz")
BLOCK = 2**22  # numbers looked at at a time: some 16 MB
TOLERANCE = 1e-3  # of a unit vector's length: half precision, or a few decimals, are no news


@dataclass(frozen=True)
class Data:
    """Rows in a file.

    Attributes:
        name: the file's name.
        rows: (n, d), float32 or float64: a NumPy array, from the disk as it is read, or a Dask array.
        table: the file, if it has columns.
        columns: the names of the columns that hold the coordinates, if each has one.
        notice: what to tell the user about the columns.
    """

    name: str
    rows: Any
    table: CsvFile | ParquetFiles | None = None
    columns: Sequence[str] = ()
    notice: str = ""

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
            with reading(self.name):
                rows = piece if isinstance(piece, np.ndarray) else piece.compute()
            for first in range(0, len(rows), size):
                block = rows[first : first + size]
                yield start, block
                start += len(block)


def read(
    path: Path, key: str | None = None, wanted: Wanted = NO_CHOICE, *, header: bool | None = None
) -> Data:
    """The rows in a file, or in a folder of Parquet files.

    `key` names an array of an .npz file or a column of lists, `wanted` says which columns of a table are coordinates,
    and `header` whether the first line of a text file holds names.
    """
    form = _form(path)
    for option, given, takers in (
        ("--key", key is not None, (".npz", ".parquet")),
        ("--columns", bool(wanted.columns), (".csv", ".parquet")),
        ("--drop", bool(wanted.drop), (".csv", ".parquet")),
        ("--header", header is not None, (".csv",)),
    ):
        if given and form not in takers:
            raise wrong(option, f"{path} is no {' or '.join(takers)} file: leave {option} out")
    with reading(str(path)):
        if form == ".csv":
            require("pyarrow", needed_for=str(path))
            data = _table(path, CsvFile(path, header), wanted)
        elif form == ".parquet":
            require("dask", "pyarrow", needed_for=str(path))
            data = _table(path, ParquetFiles(path, key), wanted)
        else:
            data = Data(str(path), _npy(path) if form == ".npy" else _npz(path, key))
    if data.rows.ndim != 2 or data.rows.shape[0] < 1 or data.rows.shape[1] < 2:
        shape = tuple(data.rows.shape)
        told = f"; {data.notice}" if data.notice else ""
        if form == ".csv":
            told += "; numbers need a decimal point, and commas, semicolons or tabs between them"
        raise wrong("DATA", f"{path} must hold rows of at least two numbers, but its shape is {shape}{told}")
    return data


@contextmanager
def reading(name: str) -> Iterator[None]:
    """Turn whatever goes wrong with a file into wrong use that names it."""
    try:
        yield
    except UnicodeDecodeError as error:
        raise wrong("DATA", f"cannot read {name}: {error}; save it as UTF-8") from error
    except OSError as error:
        raise wrong("DATA", f"cannot read {name}: {error.strerror or error}") from error
    except (EOFError, ValueError, csv.Error, zipfile.BadZipFile, zlib.error) as error:
        raise wrong("DATA", f"cannot read {name}: {error}") from error


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
        _tell(data.notice)
        return
    told = f"{others} of {data.count} rows are not unit vectors"
    if strict:
        raise wrong("--strict", f"{told}, the first is row {first} of {data.name}: normalise them")
    _tell(data.notice)
    _tell(f"{told} (lengths from {shortest:.4g} to {longest:.4g}); normalised")


def _tell(notice: str) -> None:
    if notice:
        print("powerspherical:", " ".join(notice.split()), file=sys.stderr)


def _form(path: Path) -> str:
    """How to read a file, by the end of its name: .npy, .npz, .csv or .parquet."""
    if path.is_dir():
        return ".parquet"
    name = path.name.lower()
    if name.endswith((".npz.gz", ".parquet.gz")):
        raise wrong("DATA", f"{path} is compressed twice: unpack it with gunzip first")
    found = [suffix for suffix in (*SUFFIXES, *PACKED) if name.endswith(suffix)]
    if not found:
        forms = ", ".join((*SUFFIXES, *PACKED))
        raise wrong("DATA", f"{path} must end in {forms}, or be a folder of Parquet files")
    return found[0].removesuffix(".gz").replace(".tsv", ".csv")


def _floating(array: Array) -> Array:
    """The array in float32 or float64, as it is where it can be."""
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
        raise ValueError("it is an .npz archive, and should be called so")
    return _floating(array)


def _npz(path: Path, key: str | None) -> Array:
    with path.open("rb") as stream, zipfile.ZipFile(stream):
        pass  # an archive, and not something else that NumPy reads as well
    with np.load(path, allow_pickle=False) as file:
        matrices = [name for name in file.files if key is None and _is_matrix(file, name)]
        return _floating(file[_one(key, list(file.files), matrices)])


def _is_matrix(file: Any, name: str) -> bool:
    """Whether an array of an archive holds rows of numbers; texts and labels may lie beside them."""
    try:
        array = file[name]
    except ValueError:  # objects, which only pickle could read
        return False
    return array.ndim == 2 and array.dtype.kind in "fiu"


def _one(key: str | None, names: list[str], candidates: list[str]) -> str:
    """The name of the array that is meant."""
    if key is not None:
        if key not in names:
            raise ValueError(f"it has no {key!r}, only {', '.join(names) or 'nothing'}")
        return key
    if len(candidates) != 1:
        found = ", ".join(candidates) or "none"
        raise ValueError(
            f"it must have one array of rows, but has {len(candidates)} ({found}): choose with --key"
        )
    return candidates[0]


def _table(path: Path, table: CsvFile | ParquetFiles, wanted: Wanted) -> Data:
    """The rows in columns of a table, and which columns these are."""
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
