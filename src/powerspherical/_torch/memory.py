"""Memory of tensors: fast allocation, which matters for small batches, and what a kernel can read by pointer."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import torch
from torch import Tensor

from powerspherical._torch.modes import PLAIN_TYPES

#: The shape and the strides of a contiguous tensor, as plain tuples.
Dense = tuple[tuple[int, ...], tuple[int, ...]]

# The allocators of torch's compiled code take shape, strides and dtype. They have no dispatcher and no parser of
# arguments, so they take half the time of ``new_empty``. They reject a ``torch.Size``.
empty_strided_cpu: Callable[..., Tensor] = torch._C._dynamo.guards._empty_strided_cpu  # type: ignore[attr-defined]
_empty_strided_cuda: Callable[..., Tensor] = torch._C._dynamo.guards._empty_strided_cuda  # type: ignore[attr-defined]


def empty(like: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Return an uninitialised contiguous tensor on the device of ``like``. ``shape`` must be a plain tuple."""
    if type(like) in PLAIN_TYPES:
        if like.is_cpu:
            return empty_strided_cpu(*contiguous(shape), dtype)
        # The other allocator takes the current device.
        if like.is_cuda and like.get_device() == torch._C._cuda_getDevice():
            return _empty_strided_cuda(*contiguous(shape), dtype)
    return like.new_empty(shape, dtype=dtype)


@functools.lru_cache(1024)
def contiguous(shape: tuple[int, ...]) -> Dense:
    """Return the shape of a contiguous tensor, and its strides.

    >>> contiguous((2, 3, 4))
    ((2, 3, 4), (12, 4, 1))
    """
    return shape, tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


def readable(tensor: Tensor) -> Tensor:
    """Return the tensor with its numbers in order, and not as a negative view, whose memory has the other sign."""
    # The two questions take less time than the two operations.
    return tensor if tensor.is_contiguous() and not tensor.is_neg() else tensor.contiguous().resolve_neg()
