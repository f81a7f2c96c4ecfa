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


def _allocator(device: str) -> Callable[..., Tensor]:
    """Return a function of shape, strides and dtype that allocates: that of torch's compiled code, if there is one.

    It has no dispatcher and no parser of arguments, so it takes half the time of ``new_empty``. It rejects
    ``torch.Size``.
    """

    def usual(shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return torch.empty_strided(shape, strides, dtype=dtype, device=device)

    allocate: Callable[..., Tensor] = getattr(torch._C._dynamo.guards, f"_empty_strided_{device}", usual)
    return allocate


empty_strided_cpu, _empty_strided_cuda = _allocator("cpu"), _allocator("cuda")


def empty(like: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Return an uninitialised contiguous tensor on the device of ``like``. ``shape`` must be a plain tuple."""
    if type(like) in PLAIN_TYPES:
        if like.is_cpu:
            return empty_strided_cpu(*contiguous(shape), dtype)
        # The allocator for CUDA always takes the current device.
        if like.is_cuda and like.get_device() == torch._C._cuda_getDevice():
            return _empty_strided_cuda(*contiguous(shape), dtype)
    return like.new_empty(shape, dtype=dtype)


@functools.lru_cache(1024)
def contiguous(shape: tuple[int, ...]) -> Dense:
    """Return the shape of a contiguous tensor, and its strides.

    >>> contiguous((2, 3, 4)), contiguous((3, 0))
    (((2, 3, 4), (12, 4, 1)), ((3, 0), (1, 1)))
    """
    sizes = [max(size, 1) for size in shape]  # torch counts an empty axis as one
    return shape, tuple(math.prod(sizes[axis + 1 :]) for axis in range(len(sizes)))


def address(tensor: Tensor | None) -> int:
    """Return the address of the tensor's memory, or 0, which is C's null pointer."""
    return 0 if tensor is None else tensor.data_ptr()


def readable(tensor: Tensor) -> Tensor:
    """Return a contiguous tensor whose memory holds its values. (The memory of a negative view has the other sign.)"""
    # Asking takes less time than two operations that change nothing.
    return tensor if tensor.is_contiguous() and not tensor.is_neg() else tensor.contiguous().resolve_neg()
