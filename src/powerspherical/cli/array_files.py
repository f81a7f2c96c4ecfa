"""Arrays written block by block: to a .npy or .csv file, or as CSV to the standard output."""

from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any

import numpy as np

from powerspherical._files.drafts import atomic_write
from powerspherical.cli.columns import Array
from powerspherical.cli.common import wrong

SUFFIXES = (".npy", ".csv")
STDOUT = "-"
#: Formats with enough digits to read back exactly the same number.
_FORMATS = {"float32": "%.9g", "float64": "%.17g", "int64": "%d"}


def destination(out: str) -> Path | None:
    """The file that the option --out names, or `None` for the standard output."""
    if out == STDOUT:
        return None
    path = Path(out)
    if path.suffix not in SUFFIXES:
        raise wrong("--out", f"{out} must end in {' or '.join(SUFFIXES)}, or be {STDOUT}")
    if path.is_dir():
        raise wrong("--out", f"{out} is a folder")
    return path


def write(target: Path | IO[str], blocks: Iterable[Array], shape: tuple[int, ...]) -> None:
    """Write blocks of rows, of the given total shape, to a file or as CSV to a stream.

    The suffix of a file decides its format. The file appears when it is complete, or not at all.
    """
    if not isinstance(target, Path):
        _write_csv(target, blocks)
        return
    with atomic_write(target) as draft, draft.open("wb") as file:
        if target.suffix == ".csv":
            _write_csv(file, blocks)
        else:
            _write_npy(file, blocks, shape)


def _write_csv(file: IO[Any], blocks: Iterable[Array]) -> None:
    for block in blocks:
        np.savetxt(file, block, fmt=_FORMATS[block.dtype.name], delimiter=",")
    file.flush()


def _write_npy(file: IO[bytes], blocks: Iterable[Array], shape: tuple[int, ...]) -> None:
    # Appends blocks instead of using a memory map, where a full disk kills the process with a signal.
    for index, block in enumerate(blocks):
        if index == 0:
            descr = np.lib.format.dtype_to_descr(block.dtype)
            header = {"descr": descr, "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(file, header)
        file.write(np.ascontiguousarray(block).data)
