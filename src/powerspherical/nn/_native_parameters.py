"""``_parameters`` with the C library: one call for μ and κ, one for the gradient in the head's outputs, in float32."""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable

import torch
from torch import Tensor

from powerspherical._native.library import loaded
from powerspherical._torch.memory import address, empty, readable
from powerspherical.nn._parameters import SHORT
from powerspherical.sampling import native

#: ``head_call`` in c/call.h.
_CALL = struct.Struct("6P4q3d").pack


@functools.cache
def functions() -> tuple[Callable[[bytes], int], Callable[[bytes], int]] | None:
    """Return the two functions of the library, or None if there is no library."""
    library = loaded()
    return None if isinstance(library, str) else (library.sphere_head, library.sphere_head_gradient)


def _readable(tensor: Tensor) -> Tensor:
    """The tensor in float32, as the library reads it."""
    return readable(tensor.to(torch.float32))


def _run(
    which: int, tensors: list[Tensor | None], outputs: Tensor, dim: int, minimum: float, maximum: float
) -> None:
    found = functions()
    assert found is not None  # or ``_parameters`` does not call this module
    pointers = map(address, tensors)
    entries, numbers = outputs.shape[-1], outputs.numel()
    sizes = numbers // entries, dim, entries, native.threads(numbers)
    found[which](_CALL(*pointers, *sizes, minimum, maximum, SHORT))


def values(outputs: Tensor, dim: int, minimum: float, maximum: float) -> tuple[Tensor, Tensor | None]:
    """Return μ and κ, see ``_parameters.parameters``. The outputs are float32 or half precision."""
    outputs = _readable(outputs)
    *batch, entries = outputs.shape
    loc = empty(outputs, (*batch, dim), torch.float32)
    kappa = empty(outputs, tuple(batch), torch.float32) if entries > dim else None
    _run(0, [loc, kappa, outputs, None, None, None], outputs, dim, minimum, maximum)
    return loc, kappa


def gradient(
    outputs: Tensor,
    loc: Tensor,
    grad_loc: Tensor | None,
    grad_kappa: Tensor | None,
    minimum: float,
    maximum: float,
) -> Tensor:
    """Return the gradient in the outputs, given μ and the gradients in μ and κ. None means zero."""
    exact, loc = _readable(outputs), _readable(loc)
    result = empty(exact, tuple(exact.shape), torch.float32)
    grads = [None if grad is None else _readable(grad) for grad in (grad_loc, grad_kappa)]
    _run(1, [loc, None, exact, *grads, result], exact, loc.shape[-1], minimum, maximum)
    return result.to(outputs.dtype)
