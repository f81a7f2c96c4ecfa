"""Constant tensors, built once for each dtype and device.

Making a tensor of Python numbers costs more than the arithmetic on it, and on CUDA it is a copy from the host that
would synchronise and could not be captured in a graph.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

Numbers = Sequence[Any]
F = TypeVar("F", bound=Callable[..., Any])


def untraced(function: F) -> F:
    """Have the compiler call ``function`` and take the result for a constant, instead of tracing it.

    This is ``torch.compiler.assume_constant_result``, which would import the compiler, in seconds, just to set a mark.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


@functools.lru_cache(1024)
def scalar_constant(value: float, dtype: torch.dtype) -> Tensor:
    """A number as a CPU scalar, which goes with tensors of any device: for plain eager mode."""
    with torch.inference_mode(False):
        return torch.tensor(value, dtype=dtype, device="cpu")


def _unwrapped(tensor: Tensor) -> Tensor:
    """The tensor that outlives the ``torch.func`` transforms that are running: they wrap each one made under them."""
    while torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return tensor


def tensor_constant(build: Callable[..., Numbers]) -> Callable[..., Tensor]:
    """Turn ``build(*args)``, nested numbers that depend on Python numbers alone, into ``constant(like, *args)``."""
    cache: dict[Any, Tensor] = {}
    numbers = untraced(build)

    def constant(like: Tensor, *args: Any) -> Tensor:
        if torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack():
            # A tensor made while tracing, or under a mode such as FakeTensorMode, is not one to be kept.
            # Nor may an integer stay a symbol of the compiler's.
            return like.new_tensor(numbers(*(operator.index(x) if isinstance(x, int) else x for x in args)))
        key = (like.dtype, like.device, *args)
        if key not in cache:
            with torch.inference_mode(False):
                cache[key] = _unwrapped(torch.tensor(build(*args), dtype=like.dtype, device=like.device))
        return cache[key]

    return constant
