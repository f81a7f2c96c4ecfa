"""What `powerspherical sample` does: a distribution from its options, draws in blocks, and files of rows."""

import math
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
import torch
from torch.distributions import Distribution

from powerspherical import HypersphericalUniform
from powerspherical._files.drafts import whole
from powerspherical.cli._common import underscored, wrong
from powerspherical.distributions import distribution_named

Array = np.ndarray[Any, np.dtype[Any]]
DType = Literal["float32", "float64"]

SUFFIXES = (".npy", ".csv")
UNIFORM = "uniform"
BLOCK = 2**20  # coordinates drawn at a time: a few megabytes
STDOUT = "-"
#: How a number is written so that the very same is read back.
FORMATS = {"float32": "%.9g", "float64": "%.17g", "int64": "%d"}


def direction(text: str, dim: int | None = None) -> Array:
    """The unit vector along the coordinates in a text or a .npy file, with a notice if their length was not one."""
    if text.endswith(".npy"):
        vector = np.load(text)
        if vector.ndim != 1 or vector.dtype.kind not in "fiu":
            kind = f"{vector.dtype} of shape {vector.shape}"
            raise ValueError(f"{text} must hold one vector of real numbers, but holds {kind}")
        vector = vector.astype(np.float64)
    else:
        try:
            vector = np.array([float(part) for part in text.split(",")])
        except ValueError:
            raise ValueError(
                f"{text!r} is neither numbers with commas between them, such as 0,0.6,0.8, nor a .npy file"
            ) from None
    if dim is not None and len(vector) != dim:
        raise ValueError(f"{text} has {len(vector)} coordinate(s), but --dim is {dim}")
    if len(vector) < 2:
        raise ValueError(f"{text} has {len(vector)} coordinate(s); two (the circle) are the fewest")
    largest = np.abs(vector).max()
    if not 0 < largest < math.inf:  # a NaN is caught, too
        raise ValueError(f"{text} gives no direction: it must be finite and not zero")
    vector /= largest  # so that no square overflows or vanishes
    length = np.linalg.norm(vector)
    if abs(largest * length - 1) > 1e-3:  # that a unit vector was typed with a few decimals is no news
        print(f"powerspherical: --loc has length {largest * length:.6g}; normalised", file=sys.stderr)
    return vector / length


def distribution(
    family: str, dim: int, loc: Array | None, concentration: float | None, dtype: DType, device: str
) -> Distribution:
    """The distribution of a family, or the uniform, about the first axis where there is no `loc`."""
    kind: torch.dtype = getattr(torch, dtype)
    if family == UNIFORM or concentration is None:
        return HypersphericalUniform(dim, dtype=kind, device=device)
    mean = torch.eye(1, dim, dtype=kind)[0] if loc is None else torch.tensor(loc, dtype=kind)
    return distribution_named(underscored(family))(mean.to(device), concentration)


def blocks(distribution: Distribution, number: int) -> Iterator[Array]:
    """So many draws, in arrays of as many rows as `BLOCK` allows."""
    rows = max(1, BLOCK // distribution.event_shape[0])
    for start in range(0, number, rows):
        yield distribution.sample((min(rows, number - start),)).cpu().numpy()


def destination(out: str) -> Path | None:
    """The file to write, or `None` for the standard output."""
    if out == STDOUT:
        return None
    path = Path(out)
    if path.suffix not in SUFFIXES:
        raise wrong("--out", f"{out} must end in {' or '.join(SUFFIXES)}, or be {STDOUT}")
    if path.is_dir():
        raise wrong("--out", f"{out} is a folder")
    return path


def save(path: Path, draws: Iterable[Array], shape: tuple[int, ...]) -> None:
    """Write the draws, of this shape together, as the file's suffix says; the file appears whole or not at all."""
    with whole(path) as draft, draft.open("wb") as file:
        if path.suffix == ".csv":
            write_csv(file, draws)
        else:
            write_npy(file, draws, shape)


def write_csv(file: IO[Any], draws: Iterable[Array]) -> None:
    """One row a line, with commas between its numbers and no header."""
    for block in draws:
        np.savetxt(file, block, fmt=FORMATS[block.dtype.name], delimiter=",")
    file.flush()


def write_npy(file: IO[bytes], draws: Iterable[Array], shape: tuple[int, ...]) -> None:
    """NumPy's own format.

    The blocks are appended rather than put into a memory map: a full disk then is an error, not the end of the process
    by a signal.
    """
    for index, block in enumerate(draws):
        if index == 0:
            descr = np.lib.format.dtype_to_descr(block.dtype)
            header = {"descr": descr, "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(file, header)
        file.write(np.ascontiguousarray(block).data)
