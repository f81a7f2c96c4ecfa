"""Which implementation computes, and how large its blocks of work are: for debugging, tests and measurements.

The functions of this package exist as torch operations, and some of them also in C (for the CPU) and in Triton (for
CUDA). Both settings hold for the whole process, because a backward pass may run in another thread.

>>> import torch
>>> from powerspherical import PowerSpherical
>>> q = PowerSpherical(torch.eye(3), 10.0)
>>> with engine("torch"):
...     x = q.sample()
>>> with block_limit(2):
...     matrix = q.log_prob_matrix(x)
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

__all__ = ["block_limit", "engine"]

#: By engine, whose kernels may compute on other devices and on the CPU; None for torch operations.
ENGINES = {
    "auto": ("triton", "c"),
    "torch": (None, None),
    "c": (None, "c"),
    "triton": ("triton", "triton"),
}

#: The entry of the chosen engine.
kernels: tuple[str | None, str | None] = ENGINES["auto"]

#: The limit that ``block_limit`` sets.
largest_block = sys.maxsize


@contextmanager
def _setting(name: str, value: Any) -> Iterator[None]:
    before = globals()[name]
    globals()[name] = value
    try:
        yield
    finally:
        globals()[name] = before


def engine(name: str) -> AbstractContextManager[None]:
    """Return a context in which one engine computes.

    Args:
        name: "auto" (the default: the fastest engine that supports the arguments), "torch" (torch operations only), "c"
            (no Triton kernels) or "triton" (no C functions). Arguments that the engine does not support are computed
            with torch operations. Without a GPU, "triton" runs its kernels on CPU tensors in Triton's interpreter, if
            the environment variable ``TRITON_INTERPRET`` was 1 when Triton was imported.

    A backward pass that runs after the context has ended may use another engine. Its results are correct either way.
    """
    if name not in ENGINES:
        raise ValueError(f"unknown engine {name!r}: choose one of {', '.join(ENGINES)}")
    return _setting("kernels", ENGINES[name])


def block_limit(entries: int) -> AbstractContextManager[None]:
    """Return a context in which blocks of work have at most ``entries`` numbers.

    Only the last digits of results depend on it. With a small limit a small example passes through several blocks, or
    several threads of the C library.
    """
    if entries < 1:
        raise ValueError(f"entries={entries} must be at least 1")
    return _setting("largest_block", entries)


def block_size(default: int) -> int:
    """Return the number of entries to compute at a time: ``default``, or the limit if that is smaller."""
    return min(default, largest_block)
