"""How far it is from ``rsample`` to the arithmetic, for whoever reads the code or steps through it."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch

import powerspherical
from helpers.examples import directions, families
from powerspherical.sampling.native import library

PACKAGE = str(Path(powerspherical.__file__).parent)
TORCH_FUNCTIONS = type(
    torch.randn_like.__self__
)  # of the namespace torch, on tensors: randn_like, div, where, …


def calls_before_arithmetic(q: Any) -> list[tuple[str, str]]:
    """File and name of each Python function of the package that ``q.rsample()`` enters before torch computes.

    Helpers that have returned count as well as functions that are still running. Torch computes from the first function
    of its namespace on, such as ``torch.randn_like``; looking up a mode, a shape or a dtype is not a computation.
    """
    q.rsample()  # the first draw of a process loads the native library
    calls, computing = [], False

    def watch(frame: FrameType, event: str, function: Any) -> None:
        nonlocal computing
        computing |= event == "c_call" and isinstance(getattr(function, "__self__", None), TORCH_FUNCTIONS)
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
    # Without the native library there is one file more, in which that is found out.
    assert len({file for file, _ in calls}) <= 5 + isinstance(library.loaded(), str), calls
