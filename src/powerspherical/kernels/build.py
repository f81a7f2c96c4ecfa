"""Compile the C sources into a shared library in this folder.

The installation runs it (``hatch_build.py``), and so does ``make native``. It uses the standard library only, because
torch is not there yet while the package is being installed. By hand:

    python -m powerspherical.kernels.build

``CC`` is the compiler, by default ``cc``; it may have arguments, such as a target.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

FOLDER = Path(__file__).parent
SOURCES = FOLDER / "c"

#: One name on every system: ctypes loads a library by its path.
LIBRARY = FOLDER / "_sphere.so"

FLAGS = (
    "-std=gnu11",
    "-O3",  # -O2 is as fast from five dimensions on
    "-fPIC",
    "-pthread",
    "-fvisibility=hidden",
    "-fno-math-errno",  # so that square roots are one instruction
    "-fno-trapping-math",
    "-ffp-contract=fast",  # a*b + c in one instruction; the default of gcc, but not of clang
    "-Wall",
    "-Wextra",
    "-Wno-unknown-pragmas",
)

#: By level of x86-64. kernel.c is compiled for each of these and each size of numbers, and dispatch.c chooses.
LEVELS = {
    "_v4": ("-mavx512f", "-mavx512dq", "-mavx512bw", "-mavx512vl", "-mavx2", "-mfma"),
    "_v3": ("-mavx2", "-mfma"),
    "_v1": (),
}


def compiler() -> list[str]:
    """The compiler as the start of a command line."""
    return shlex.split(os.environ.get("CC") or "cc")


def source_digest() -> str:
    """A digest of all sources: the library that was built from them returns the same one."""
    digest = hashlib.sha256()
    for path in sorted(SOURCES.glob("*.[ch]")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def build(target: Path = LIBRARY, machine: str | None = None) -> Path:
    """Compile the library and return its path.

    Args:
        target: where to write it. A library that is there already is replaced at once, never written to: a running
            process may have it open.
        machine: the processor to compile for, as ``platform.machine`` spells it. Default: this one.

    Raises ``FileNotFoundError`` if there is no compiler, and ``subprocess.CalledProcessError`` if it fails.
    """
    command = compiler()
    if shutil.which(command[0]) is None:
        raise FileNotFoundError(f"no C compiler: {command[0]} was not found; set CC to one")
    x86 = (machine or platform.machine()).lower() in ("x86_64", "amd64")
    variants: list[tuple[str, Sequence[str]]] = [("dispatch.c", [f'-DSOURCE_DIGEST="{source_digest()}"'])]
    for level, flags in (LEVELS if x86 else {"": ()}).items():
        for source, bits in (("kernel.c", 32), ("kernel.c", 64), ("row_densities.c", 64)):
            variants.append((source, [f"-DREAL_BITS={bits}", f"-DLEVEL={level}", *flags]))
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".building-") as folder:
        objects = [f"{folder}/{number}.o" for number in range(len(variants))]
        linked = Path(folder) / target.name
        commands = [
            [*command, *FLAGS, *flags, "-c", str(SOURCES / source), "-o", output]
            for (source, flags), output in zip(variants, objects, strict=True)
        ]
        with ThreadPoolExecutor() as pool:  # each takes seconds
            list(pool.map(_run, commands))
        _run([*command, "-shared", "-s", "-pthread", *objects, "-o", str(linked), "-lm"])
        os.replace(linked, target)
    return target


def _run(command: Sequence[str]) -> None:
    subprocess.run(command, check=True)


def main() -> int:
    """Build the library; without a compiler say what that means, and succeed."""
    try:
        path = build()
    except FileNotFoundError as error:
        print(f"{error}. Without the library, draws and KL on the CPU take longer.", file=sys.stderr)
        return 0
    print(f"built {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
