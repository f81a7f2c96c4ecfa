"""Compile the C sources into a shared library.

The installation runs it (``hatch_build.py``), and so does ``make native``. It uses the standard library only, because
torch is not there yet while the package is being installed. By hand:

    python -m powerspherical.kernels.build

``CC`` is the compiler, by default ``cc``; it may have arguments, such as a target.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

FOLDER = Path(__file__).parent
SOURCES = FOLDER / "c"

#: The library's file. No system's Python takes it for a module, as it would a name with .so or .pyd.
NAME = "sphere.native"
#: Where it is in a wheel and in site-packages. pip removes a folder only if it removes a file in it: for editable
#: installs, which have no other file there, a folder within this one would leave this one behind.
INSTALLED = f"powerspherical/{NAME}"

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

#: Further flags of the linker, by a macro that the compiler defines for the system.
LINKING = {
    "_WIN32": ("-static-libgcc", "-Wl,-Bstatic"),  # MinGW's threads come from a DLL otherwise
    "__APPLE__": (f"-Wl,-install_name,{NAME}",),  # the path of the build otherwise
}


def compiler() -> list[str]:
    """The compiler as the start of a command line."""
    return shlex.split((os.environ.get("CC") or "cc").replace(os.sep, "/"))  # shlex drops backslashes


def source_digest() -> str:
    """A digest of all sources: the library that was built from them returns the same one."""
    digest = hashlib.sha256()
    for path in sorted(SOURCES.glob("*.[ch]")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def location() -> Path:
    """Where the library of these sources is, once it is built.

    That is in the package's folder, but in site-packages if the installation is editable: pip removes nothing from a
    source tree.
    """
    installation = _installation()
    return Path(str(installation.locate_file(INSTALLED))) if installation else FOLDER.parent / NAME


def build(target: Path) -> Path:
    """Compile the library for the system that the compiler is for, and return its path.

    Args:
        target: where to write it. A library that is there already is replaced at once, never written to: a running
            process may have it open. Windows forbids that, so end such processes there.

    Raises ``FileNotFoundError`` if there is no compiler, and ``subprocess.CalledProcessError`` if it fails.
    """
    command = compiler()
    if shutil.which(command[0]) is None:
        raise FileNotFoundError(f"no C compiler: {command[0]} was not found; set CC to one")
    macros = {line.split()[1] for line in _run([*command, "-dM", "-E", "-x", "c", os.devnull]).splitlines()}
    variants: list[tuple[str, Sequence[str]]] = [("dispatch.c", [f'-DSOURCE_DIGEST="{source_digest()}"'])]
    for level, flags in (LEVELS if "__x86_64__" in macros else {"": ()}).items():
        for source, bits in (("kernel.c", 32), ("kernel.c", 64), ("row_densities.c", 64)):
            variants.append((source, [f"-DREAL_BITS={bits}", f"-DLEVEL={level}", *flags]))
    linking = [flag for system, flags in LINKING.items() if system in macros for flag in flags]
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".building-") as folder:
        objects = [f"{folder}/{number}.o" for number in range(len(variants))]
        linked = Path(folder) / target.name
        commands = [
            [*command, *FLAGS, *flags, "-c", str(SOURCES / source), "-o", output]
            for (source, flags), output in zip(variants, objects, strict=True)
        ]
        with ThreadPoolExecutor() as pool:  # each takes seconds
            list(pool.map(_run, commands))
        _run([*command, "-shared", "-s", "-pthread", *linking, *objects, "-o", str(linked), "-lm"])
        os.replace(linked, target)
    return target


def _run(command: Sequence[str]) -> str:
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def _installation() -> Distribution | None:
    """What pip installed from these sources, if it did: as copies, or editable."""
    try:
        found = distribution("powerspherical")
    except PackageNotFoundError:
        return None
    if Path(str(found.locate_file(INSTALLED))).parent.resolve() == FOLDER.parent.resolve():
        return found
    origin = json.loads(found.read_text("direct_url.json") or "{}")
    if not origin.get("dir_info", {}).get("editable"):
        return None
    from urllib.parse import urlsplit
    from urllib.request import url2pathname  # which takes a while, if torch has not imported it

    tree = Path(url2pathname(urlsplit(origin["url"]).path))
    return found if FOLDER.resolve().is_relative_to(tree.resolve()) else None


def _record() -> None:
    """Have ``pip uninstall`` remove the library, also if the installation had no compiler."""
    installation = _installation()
    files = (installation.files if installation else None) or []
    for record in (file for file in files if file.name == "RECORD"):
        if INSTALLED not in map(str, files):
            with Path(str(record.locate())).open("a", encoding="utf-8") as lines:
                lines.write(f"{INSTALLED},,\n")


def main() -> int:
    """Build the library; without a compiler say what that means, and succeed."""
    try:
        path = build(location())
    except FileNotFoundError as error:
        print(f"{error}. Without the library, draws and KL on the CPU take longer.", file=sys.stderr)
        return 0
    _record()
    print(f"built {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
