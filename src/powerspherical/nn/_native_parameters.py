"""``_parameters`` with the C library: one call for μ and κ, one for the gradient in the head's outputs, in float32."""

from __future__ import annotations

import struct

import torch
from torch import Tensor

from powerspherical._native import library
from powerspherical._torch.memory import address, empty, readable
from powerspherical.nn._parameters import SHORT
from powerspherical.sampling import native

#: ``head_call`` in c/call.h.
_CALL = struct.Struct("6P4q3d").pack


def _readable(tensor: Tensor) -> Tensor:
    """The tensor in float32, as the library reads it."""
    return readable(tensor.to(torch.float32))


def _run(
    name: str, tensors: list[Tensor | None], outputs: Tensor, dim: int, minimum: float, maximum: float
) -> None:
    pointers = map(address, tensors)
    entries, numbers = outputs.shape[-1], outputs.numel()
    sizes = numbers // entries, dim, entries, native.threads(numbers)
    library.function(name)(_CALL(*pointers, *sizes, minimum, maximum, SHORT))


def values(outputs: Tensor, dim: int, minimum: float, maximum: float) -> tuple[Tensor, Tensor | None]:
    """Return μ and κ, see ``_parameters.parameters``. The outputs are float32 or half precision."""
    outputs = _readable(outputs)
    *batch, entries = outputs.shape
    loc = empty(outputs, (*batch, dim), torch.float32)
    kappa = empty(outputs, tuple(batch), torch.float32) if entries > dim else None
    _run("head", [loc, kappa, outputs, None, None, None], outputs, dim, minimum, maximum)
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
    _run("head_gradient", [loc, None, exact, *grads, result], exact, loc.shape[-1], minimum, maximum)
    return result.to(outputs.dtype)
