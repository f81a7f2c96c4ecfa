"""The C library: whether there is one here, and its sources compiled for a test."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from powerspherical.kernels import build, library

needs_library = pytest.mark.skipif(isinstance(library.loaded(), str), reason="no native library")
needs_compiler = pytest.mark.skipif(shutil.which(build.compiler()[0]) is None, reason="no C compiler")

#: The levels of x86-64 that this processor can run, the highest first; [None] on other processors.
LEVELS: list[str | None] = {
    "AVX-512": ["_v4", "_v3", "_v1"],
    "AVX2": ["_v3", "_v1"],
    "SSE2": ["_v1"],
}.get(library.description(), [None])


#: Bits of the numbers that kernel.c is compiled for.
BITS = (32, 64)


def compiled(
    source: Path, target: Path, bits: int, level: str | None, *flags: str, common: Sequence[str] = build.FLAGS
) -> Path:
    """Compile a C file with the sources of the library for one size and level, with further flags."""
    command = [*build.compiler(), *common, *flags, f"-DREAL_BITS={bits}", "-DLEVEL="]
    command += build.LEVELS[level] if level else ()
    command += [
        f"-I{build.SOURCES}",
        str(source),
        str(build.SOURCES / "row_densities.c"),
        "-o",
        str(target),
        "-lm",
    ]
    subprocess.run(command, check=True, capture_output=True)
    return target
