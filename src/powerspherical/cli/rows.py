"""Reads the rows of a file once, into memory or a scratch file, and checks that every row has a direction.

Arrays are read here, with NumPy alone. Tables are read by `powerspherical.cli.tables`, which needs PyArrow.
"""

import csv
import gzip
import io
import os
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

import numpy as np

from powerspherical._torch.rows import row_lengths
from powerspherical.cli.columns import Array, Wanted, listed
from powerspherical.cli.common import Failure, require, tell, wrong
from powerspherical.engines import block_size

if TYPE_CHECKING:
    from powerspherical.cli.tables import Table

SUFFIXES = (".npy", ".npz", ".csv", ".tsv", ".parquet", ".npy.gz", ".csv.gz", ".tsv.gz")
BLOCK = 2**20  # numbers per block: 4 MB in float32
_CHECKED = 2**18  # the same where float64 copies of a block are made
IN_MEMORY = 2**31  # bytes of rows to decode into memory; more go to a scratch file
ARCHIVE = "it is an .npz archive, not an array: rename it to .npz, or save its array with np.save"
TOLERANCE = 1e-3  # on the length of a unit vector: accepts half precision, or a few decimals


@dataclass(frozen=True)
class Data:
    """The rows of a file."""

    name: str  # of the file
    rows: Array  # (n, d), float32 or float64, in memory or mapped from a file
    table: "Table | None" = None  # the file, if it has columns
    columns: Sequence[str] = ()  # of the coordinates, if each one has a named column
    notice: str = ""  # about the columns that are used

    @property
    def count(self) -> int:
        return int(self.rows.shape[0])

    @property
    def dim(self) -> int:
        return int(self.rows.shape[1])

    def blocks(self, numbers: int = _CHECKED) -> Iterator[tuple[int, Array]]:
        """Consecutive blocks of rows with so many numbers, each with the index of its first row."""
        size = rows_per_block(self.dim, numbers)
        return ((start, self.rows[start : start + size]) for start in range(0, self.count, size))


def read(path: Path, wanted: Wanted) -> Data:
    """Read the rows of a file, or of a folder of tables."""
    with reading(path):
        files, form = files_in(path)
        for option, given, formats in (
            ("--key", wanted.key is not None, (".npz", ".parquet")),
            ("--columns", bool(wanted.columns), (".csv", ".parquet")),
            ("--drop", bool(wanted.drop), (".csv", ".parquet")),
            ("--header", wanted.header is not None, (".csv",)),
        ):
            if given and form not in formats:
                applies = " and ".join(formats)
                raise wrong(option, f"{option} applies only to {applies} files, not to {path}: leave it out")
        if form in (".npy", ".npz"):
            return Data(str(path), _npy(path) if form == ".npy" else _npz(path, wanted.key))
        require("pyarrow", needed_for=str(path))
        from powerspherical.cli.tables import Table

        table = Table(files, wanted.header)
        rows, columns, notice = table.rows(wanted)
        require_rows(rows.shape, notice + table.hint)
        return Data(str(path), rows, table, columns, notice)


@contextmanager
def reading(path: Path, option: str = "DATA") -> Iterator[None]:
    """Turn every error of reading a file into wrong usage of an option, with the file's name."""
    try:
        yield
    except UnicodeDecodeError as error:
        raise wrong(option, f"cannot read {path}: {error}; save it as UTF-8") from error
    except OSError as error:
        problem = os.strerror(error.errno) if error.errno else error  # Arrow's own texts are longer
        raise wrong(option, f"cannot read {path}: {problem}") from error
    except (EOFError, NotImplementedError, ValueError, csv.Error, zipfile.BadZipFile, zlib.error) as error:
        raise wrong(option, f"cannot read {path}: {error}") from error


def check(data: Data, *, strict: bool, show: Callable[[str], None]) -> None:
    """Raise unless every row has a direction, and if `strict` is a unit vector. `show` displays the progress."""
    others, first, shortest, longest = 0, -1, inf, 0.0
    for start, block in data.blocks():
        try:
            norms = row_lengths(block, data.name, start=start).numpy()
        except ValueError as error:
            raise wrong("DATA", f"{error} (rows are counted from 0)") from error
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


def files_in(path: Path) -> tuple[list[Path], str]:
    """The files to read, in order, and their format: .npy, .npz, .csv or .parquet."""
    if not path.is_dir():
        return [path], _format(path)
    tables: dict[str, list[Path]] = {".csv": [], ".parquet": []}
    for file in sorted(path.iterdir()):
        if file.name.endswith(SUFFIXES) and not file.name.startswith(".") and _format(file) in tables:
            tables[_format(file)].append(file)
    found = [(files, form) for form, files in tables.items() if files]
    if len(found) != 1:
        what = "both .csv and .parquet files: name one of them" if found else "no .csv or .parquet files"
        raise ValueError(f"the folder has {what}")
    return found[0]


def _format(path: Path) -> str:
    name = path.name.lower()
    if name.endswith((".npz.gz", ".parquet.gz")):
        raise ValueError("it is compressed twice: unpack it with gunzip first")
    if not name.endswith(SUFFIXES):
        raise ValueError(f"its name must end in {', '.join(SUFFIXES)}, or it must be a folder of such tables")
    return Path(name.removesuffix(".gz")).suffix.replace(".tsv", ".csv")


def open_text(path: Path) -> IO[str]:
    """Open a file of UTF-8 text, and decompress it if its name ends in .gz."""
    opener: Any = gzip.open if path.suffix.lower() == ".gz" else open
    return opener(path, "rt", encoding="utf-8-sig")


def require_rows(shape: tuple[int, ...], hint: str = "") -> None:
    """Raise `ValueError` unless an array of this shape holds rows that can have a direction."""
    if len(shape) != 2 or shape[0] < 1 or shape[1] < 2:
        hint = f" ({hint})" if hint else ""
        raise ValueError(f"it must hold rows of at least two numbers, but its shape is {shape}{hint}")


def floating(kind: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype to compute in: float32 if it represents all numbers of this kind, else float64."""
    if kind.kind not in "fiu":
        raise ValueError(f"it holds {kind}, not real numbers")
    return np.dtype(np.float32 if np.can_cast(kind, np.float32) else np.float64)


def rows_per_block(dim: int, numbers: int = BLOCK) -> int:
    """The number of rows of length `dim` to hold in memory at a time: a few megabytes."""
    return max(1, block_size(numbers) // dim)


def gathered(blocks: Iterable[Array], dim: int, dtype: np.dtype[Any]) -> Array:
    """Blocks (b, dim) as one array (n, dim): in memory, or mapped from a scratch file beyond `IN_MEMORY` bytes."""
    memory, size = io.BytesIO(), 0  # grows by an eighth at a time, without a second copy
    with ExitStack() as opened:
        file: IO[bytes] = memory
        for block in blocks:
            content = np.ascontiguousarray(block, dtype).data
            size += content.nbytes
            try:
                if file is memory and size > IN_MEMORY:
                    file = opened.enter_context(tempfile.TemporaryFile())
                    file.write(memory.getvalue())
                    memory.close()
                file.write(content)
                file.flush()
            except OSError as error:
                problem = f"cannot write a scratch file in {tempfile.gettempdir()}: {error.strerror}"
                raise Failure(f"{problem}; set TMPDIR to a folder on a larger disk", 1) from error
        shape = (size // (dim * dtype.itemsize), dim)
        if file is memory:
            return np.ndarray(shape, dtype, memory.getbuffer())
        return np.memmap(file, dtype, "r", shape=shape)


def load_array(path: Path) -> Array:
    """The array of a .npy file, mapped from the disk."""
    array = np.load(path, mmap_mode="r", allow_pickle=False)
    if not isinstance(array, np.ndarray):
        raise ValueError(ARCHIVE)
    return array


def _npy(path: Path) -> Array:
    if path.suffix.lower() == ".gz":
        with gzip.open(path) as stream:
            if stream.peek(2).startswith(b"PK"):
                raise ValueError(ARCHIVE)
            return _streamed(cast(IO[bytes], stream))
    array = load_array(path)
    require_rows(array.shape)
    dtype = floating(array.dtype)
    if array.dtype == dtype and array.flags.c_contiguous:
        return array
    return gathered((block for _, block in Data("", array).blocks()), array.shape[1], dtype)


def _npz(path: Path, key: str | None) -> Array:
    """The array of an archive that `key` names, by default the only matrix of numbers."""
    with zipfile.ZipFile(path) as archive:
        names = [name.removesuffix(".npy") for name in archive.namelist()]
        if key is None:
            matrices = [name for name in names if _is_matrix(archive, name)]
            if len(matrices) != 1:
                raise ValueError(
                    f"it must have one array of rows, but has {len(matrices)} ({listed(matrices)}): choose with --key"
                )
            key = matrices[0]
        if key not in names:
            raise ValueError(f"it has no array {key!r}, only {listed(names)}")
        with archive.open(f"{key}.npy") as stream:
            return _streamed(stream)


def _is_matrix(archive: zipfile.ZipFile, name: str) -> bool:
    """Whether an array of an archive is a matrix of numbers. Archives may also hold texts or labels."""
    with archive.open(f"{name}.npy") as stream:
        shape, _, kind = _header(stream)
    return len(shape) == 2 and kind.kind in "fiu"


def _header(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """The shape of the array in a .npy stream, whether its columns are contiguous, and its dtype."""
    form = np.lib.format
    is_first = form.read_magic(stream) == (1, 0)
    return form.read_array_header_1_0(stream) if is_first else form.read_array_header_2_0(stream)


def _streamed(stream: IO[bytes]) -> Array:
    """The rows of a .npy stream, decoded block by block."""
    shape, by_columns, kind = _header(stream)
    require_rows(shape)
    dtype = floating(kind)
    count, dim = reversed(shape) if by_columns else shape
    size = rows_per_block(dim)

    def blocks() -> Iterator[Array]:
        for start in range(0, count, size):
            wanted = min(size, count - start) * dim * kind.itemsize
            content = stream.read(wanted)
            if len(content) < wanted:
                raise EOFError("it ended before its last row")
            yield np.frombuffer(content, kind).reshape(-1, dim)

    rows = gathered(blocks(), dim, dtype)
    return rows.T if by_columns else rows
