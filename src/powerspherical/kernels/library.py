"""The compiled library: loaded on first use, or the reason why there is none."""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Callable

import torch

from powerspherical import engines

#: Set to 0, it switches the library off for the whole process.
SWITCH = "POWERSPHERICAL_NATIVE"

_LEVELS = {0: "compiled for this processor", 1: "SSE2", 3: "AVX2", 4: "AVX-512"}

#: The functions of c/dispatch.c. Each takes one struct of c/call.h, as bytes.
FUNCTIONS = (
    *("check", "curve", "draw", "pull_back", "density", "density_gradient", "head", "head_gradient"),
    *("latents", "latents_gradient"),
)

_REBUILD = "run: python -m powerspherical.kernels.build"


@functools.cache
def loaded() -> ctypes.CDLL | str:
    """The library, or why it is not used."""
    # Imported here, so that ``python -m`` can run the module.
    from powerspherical.kernels import build

    if os.environ.get(SWITCH) == "0":
        return f"switched off by {SWITCH}=0"
    if not build.LIBRARY.exists():
        return f"it was not built, which takes a C compiler; {_REBUILD}"
    try:
        library = ctypes.CDLL(str(build.LIBRARY))
    except OSError as error:  # built for another system
        return f"{error}; {_REBUILD}"
    library.sphere_source.restype = ctypes.c_char_p
    if library.sphere_source().decode() != build.source_digest():
        return f"it was built from other sources; {_REBUILD}"
    for name in FUNCTIONS:
        function = getattr(library, f"sphere_{name}")
        function.argtypes, function.restype = [ctypes.c_char_p], ctypes.c_int
    return library


@functools.cache
def function(name: str) -> Callable[[bytes], int]:
    """Return one of ``FUNCTIONS``, whatever the engine is: a backward pass may use the kernel of its forward pass."""
    found: Callable[[bytes], int] = getattr(loaded(), f"sphere_{name}")
    return found


def threads(numbers: int, per_thread: int) -> int:
    """Return the number of threads for so many ``numbers``, each of which has at least ``per_thread``."""
    least = engines.block_size(per_thread)
    return 1 if numbers < 2 * least else min(torch.get_num_threads(), numbers // least)


def description() -> str:
    """Which vector instructions the native kernel uses here, or why it is not used; for people."""
    library = loaded()
    return f"not used: {library}" if isinstance(library, str) else _LEVELS[library.sphere_level()]
