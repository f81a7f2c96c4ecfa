"""The compiled library: loaded on first use, or the reason why there is none."""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Callable

#: Set to 0, it switches the library off for the whole process.
SWITCH = "POWERSPHERICAL_NATIVE"

_LEVELS = {0: "compiled for this processor", 1: "SSE2", 3: "AVX2", 4: "AVX-512"}

#: The fields of the structs of c/call.h, as in the module ``struct``.
_CURVE, _SPHERE, _HEAD = "2q4P3q2d", "2q10P6q", "2q6P3q3d"
_DENSITY, _LATENTS = f"2q9P11qd{_CURVE}", f"2qP{_HEAD}{_SPHERE}{_CURVE}"

#: The functions of c/dispatch.c, with the fields of the struct that each takes. It is passed as bytes, because ctypes
#: takes 0.1 µs per argument.
FUNCTIONS = {
    "check": "2q2P3q2d",
    "curve": _CURVE,
    "draw": _SPHERE,
    "pull_back": _SPHERE,
    "density": _DENSITY,
    "density_gradient": _DENSITY,
    "matrix": "2q8P4qd",
    "project": "2q3P2q",
    "head": _HEAD,
    "head_gradient": _HEAD,
    "latents": _LATENTS,
    "latents_gradient": _LATENTS,
}

_REBUILD = "run: python -m powerspherical.kernels.build"


@functools.cache
def loaded() -> ctypes.CDLL | str:
    """The library, or why it is not used."""
    # Imported here, so that ``python -m`` can run the module.
    from powerspherical.kernels import build

    if os.environ.get(SWITCH) == "0":
        return f"switched off by {SWITCH}=0"
    path = build.location()
    if not path.exists():
        return f"it was not built, which takes a C compiler; {_REBUILD}"
    try:
        library = ctypes.CDLL(str(path))
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


def description() -> str:
    """Which vector instructions the native kernel uses here, or why it is not used; for people."""
    library = loaded()
    return f"not used: {library}" if isinstance(library, str) else _LEVELS[library.sphere_level()]
