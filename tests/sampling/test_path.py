"""The number of calls and files between ``rsample`` and the arithmetic, for those who read or debug the code."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch

import powerspherical
from helpers.examples import directions, families
from powerspherical._native import library

PACKAGE = str(Path(powerspherical.__file__).parent)
#: The class that owns torch's functions on tensors: randn_like, div, where, …
TORCH_FUNCTIONS = type(torch.randn_like.__self__)


def calls_before_arithmetic(q: Any) -> list[tuple[str, str]]:
    """Return file and name of each function of the package that ``q.rsample()`` calls before torch computes.

    Functions that have returned already count, too. The computation starts with the first function on tensors, such as
    ``torch.randn_like``, or with the first random number. Reading a mode, a shape or a dtype is not a computation.
    """
    q.rsample()  # the first draw of a process loads the native library
    calls, computing = [], False

    def watch(frame: FrameType, event: str, function: Any) -> None:
        nonlocal computing
        if event == "c_call":
            owner = getattr(function, "__self__", None)
            computing |= isinstance(owner, TORCH_FUNCTIONS) or function.__name__ == "random_"
        file = frame.f_code.co_filename
        if event == "call" and not computing and file.startswith(PACKAGE):
            calls.append((file, frame.f_code.co_name))

    sys.setprofile(watch)
    try:
        q.rsample()
    finally:
        sys.setprofile(None)
    assert computing
    return calls


@families
@pytest.mark.parametrize("gradient", [False, True], ids=["values", "with gradients"])
def test_rsample_reaches_the_arithmetic_soon(family: type, gradient: bool) -> None:
    loc = directions(100, 64, dtype=torch.float32).requires_grad_(gradient)
    q = family(loc, torch.full((100,), 10.0, requires_grad=gradient))
    calls = calls_before_arithmetic(q)
    assert calls[0][1] == "rsample"
    assert len(calls) <= 12, calls
    # Without the native library the path has one more file, the one that tries to load it.
    assert len({file for file, _ in calls}) <= 5 + isinstance(library.loaded(), str), calls
