"""Tools to stop a run at a given point and to compare states."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

#: The call of `progress` after the first step of the third epoch. An epoch of less than 100 steps has two calls.
WITHIN_THIRD = 5


class Stopped(Exception):
    """Raised to stop a run."""


def at_call(number: int, act: Callable[[], None]) -> Callable[..., None]:
    """Return a function whose call of that number runs ``act``. Its other calls do nothing."""
    calls: list[int] = []

    def count(*_: Any) -> None:
        calls.append(number)
        if len(calls) == number:
            act()

    return count


def stop() -> None:
    raise Stopped


def wait() -> None:
    """Print "waiting" and wait to be killed."""
    print("waiting", flush=True)
    time.sleep(300)


def same(first: Any, second: Any) -> bool:
    """Whether two nested states have equal types and bitwise equal values. Subclasses of dict count as dict."""
    if isinstance(first, torch.Tensor):
        equal = isinstance(second, torch.Tensor) and torch.equal(first, second)
        return equal and (first.dtype, first.shape) == (second.dtype, second.shape)
    if isinstance(first, dict) and isinstance(second, dict):
        keys = list(first) == list(second) and [type(key) for key in first] == [type(key) for key in second]
        return keys and all(same(first[key], second[key]) for key in first)
    if type(first) is not type(second):
        return False
    if isinstance(first, list | tuple):
        return len(first) == len(second) and all(same(a, b) for a, b in zip(first, second, strict=True))
    return first == second
