"""Constant tensors, built once per dtype and device.

Building a tensor from Python numbers costs more than the arithmetic on it. On CUDA it also copies from the host, which
synchronises and cannot be captured in a graph.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import torch
from torch import Tensor

from powerspherical._torch.private import dispatch_modes, untraced

Numbers = Sequence[Any]
Result = TypeVar("Result")


def called_plainly(function: Callable[..., Result], *args: Any) -> Result:
    """Call a function outside of the transforms and modes of this thread, which do not reach other threads."""
    with ThreadPoolExecutor(1) as other_thread:
        return other_thread.submit(function, *args).result()


@functools.lru_cache(1024)
def scalar_constant(value: float, dtype: torch.dtype) -> Tensor:
    """Return a number as a zero-dimensional CPU tensor, which torch combines with tensors on any device."""
    with torch.inference_mode(False):
        return torch.tensor(value, dtype=dtype, device="cpu")


def tensor_constant(build: Callable[..., Numbers]) -> Callable[..., Tensor]:
    """Turn ``build(*args)``, which returns nested Python numbers, into a tensor function ``constant(like, *args)``.

    The tensor has the dtype and device of ``like``. The last 256 are cached. The arguments must be hashable.
    """
    numbers = untraced(build)

    @functools.lru_cache(256)
    def cached(dtype: torch.dtype, device: torch.device, *args: Any) -> Tensor:
        # Transforms wrap the tensors that are made under them.
        return called_plainly(lambda: torch.tensor(build(*args), dtype=dtype, device=device))

    def constant(like: Tensor, *args: Any) -> Tensor:
        if torch.compiler.is_compiling() or dispatch_modes():
            # A tensor made while tracing or under FakeTensorMode must not be cached. ``operator.index`` replaces the
            # compiler's symbolic integers by plain ones.
            return like.new_tensor(numbers(*(operator.index(x) if isinstance(x, int) else x for x in args)))
        return cached(like.dtype, like.device, *args)

    return constant
