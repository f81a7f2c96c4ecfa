"""Launching Triton kernels from small batches: what costs there is Triton looking at every argument, each time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

_compiled: dict[Any, Any] = {}


def launch(
    kernel: Any,
    grid: tuple[int, int],
    tensors: Sequence[Tensor],
    numbers: Sequence[float],
    constants: tuple[Any, ...],
    *,
    num_warps: int,
) -> None:
    """``kernel[grid](*tensors, *numbers, *constants)``, whose compiled form is kept for all that share the types.

    The kernel must declare the types of its numbers and not specialise on their values. Runs on the device of the
    tensors.
    """
    device = tensors[0].get_device()
    if device >= 0 and device != torch.cuda.current_device():
        with torch.cuda.device(device):
            return launch(kernel, grid, tensors, numbers, constants, num_warps=num_warps)
    addresses = [tensor.data_ptr() for tensor in tensors]
    # Triton compiles another variant for pointers that are multiples of 16 bytes.
    types = tuple(
        (tensor.dtype, address % 16 == 0) for tensor, address in zip(tensors, addresses, strict=True)
    )
    key = kernel, device, types, constants, num_warps
    compiled = _compiled.get(key)
    if compiled is None:
        # In the interpreter there is nothing to keep.
        _compiled[key] = kernel[grid](*tensors, *numbers, *constants, num_warps=num_warps)
    else:
        # Given a tensor, Triton would ask the driver whose memory that is.
        stream = torch.cuda.current_stream(device).cuda_stream
        compiled[(*grid, 1)](*addresses, *numbers, *constants, stream=stream)
    return None


def blocks(count: int, size: int) -> int:
    """How many blocks of this size hold so many; Triton's own ``cdiv`` takes longer to be called than to compute."""
    return -(-count // size)


def next_power_of_two(number: int) -> int:
    """The least power of two that is not less than the number ≥ 1."""
    return 1 << (number - 1).bit_length()
