"""What all commands do with their outputs: nothing is overwritten without --force, and files appear complete."""

import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import numpy as np

from powerspherical._files.drafts import atomic_write
from powerspherical.cli.columns import Array
from powerspherical.cli.common import require_folder, status, wrong

STDOUT = "-"
#: Formats with enough digits to read back exactly the same number.
_FORMATS = {"float32": "%.9g", "float64": "%.17g", "int64": "%d"}


def require_free(outputs: Iterable[Path], *, force: bool, inputs: Iterable[Path] = ()) -> None:
    """Raise if an output is an input, under any name, or if it exists and `force` is false."""
    sources = [file for path in inputs for file in (path.iterdir() if path.is_dir() else [path])]
    for path in outputs:
        if not os.path.lexists(path):
            continue
        if path.is_dir():
            raise wrong("--out", f"{path} is a folder")
        for source in sources:
            if path.exists() and source.exists() and path.samefile(source):
                raise wrong("--out", f"{path} is the input {source}: choose another name")
        if not force:
            raise wrong("--out", f"{path} exists; pass --force to replace it")


def destination(
    out: str, *, force: bool, inputs: Iterable[Path], suffixes: Sequence[str] = (".npy", ".csv")
) -> Path | None:
    """The file that --out names, whose folder now exists, or `None` for the standard output, which takes CSV."""
    printable = ".csv" in suffixes
    if printable and out == STDOUT:
        if sys.stdout is None:
            raise wrong("--out", "the standard output is closed: name a file")
        return None
    path = Path(out)
    if path.suffix not in suffixes:
        others = f", or be {STDOUT}" if printable else ""
        raise wrong("--out", f"{out} must end in {' or '.join(suffixes)}{others}")
    require_free([path], force=force, inputs=inputs)
    require_folder(path.parent)
    return path


def write(path: Path | None, blocks: Iterable[Array], shape: tuple[int, ...], doing: str) -> None:
    """Write blocks of rows, of the given total shape, to a .npy or .csv file, or as CSV to the standard output.

    A file appears when it is complete, or not at all. A status line counts the rows, unless a terminal shows them.
    """
    stdout = sys.stdout  # rich replaces sys.stdout while it shows a status
    with status(doing, hidden=path is None and stdout.isatty()) as show:

        def counted() -> Iterator[Array]:
            done = 0
            for block in blocks:
                yield block
                done += len(block)
                show(f"{doing}: {done:,} of {shape[0]:,} rows")

        if path is None:
            _write_csv(stdout, counted())
            return
        with atomic_write(path) as draft, draft.open("wb") as file:
            if path.suffix == ".csv":
                _write_csv(file, counted())
            else:
                _write_npy(file, counted(), shape)


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


@contextmanager
def all_or_nothing(folder: Path, names: Sequence[str]) -> Iterator[Path]:
    """Yield a draft folder for files with these names. They move to `folder` if the block ends without an error.

    A killed process leaves the old files, the new files, or a part of one of the two sets without the file that is
    named last. It never leaves old files beside new ones. Other files in the folder stay.
    """
    is_new = not folder.exists()
    require_folder(folder)
    draft = folder / ".powerspherical.draft"
    shutil.rmtree(draft, ignore_errors=True)  # of a killed process
    draft.mkdir(0o700)
    try:
        yield draft
        for name in names:
            with (draft / name).open("r+b") as file:
                os.fsync(file.fileno())  # the content must reach the disk before the new name does
        for name in reversed(names):
            if (folder / name).exists():
                shutil.copymode(folder / name, draft / name)
            (folder / name).unlink(missing_ok=True)
        for name in names:
            os.rename(draft / name, folder / name)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
        if is_new:
            with suppress(OSError):  # it has files
                folder.rmdir()
