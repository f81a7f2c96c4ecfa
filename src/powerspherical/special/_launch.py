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
    # Triton compiles other variants for pointers that are no multiples of 16 bytes: those few it may look at itself.
    key = None
    if not any(address % 16 for address in addresses):
        key = kernel, device, tuple([tensor.dtype for tensor in tensors]), constants, num_warps
    compiled = _compiled.get(key)
    if compiled is None:
        compiled = kernel[grid](*tensors, *numbers, *constants, num_warps=num_warps)
        if key is not None and compiled is not None:  # in the interpreter there is nothing to keep
            _compiled[key] = compiled
    else:
        # What Triton itself does, once it has looked at everything. Given a tensor in place of an address, it would
        # ask the driver whose memory that is.
        stream = torch._C._cuda_getCurrentRawStream(device)
        compiled.run(
            *grid,
            1,
            stream,
            compiled.function,
            compiled.packed_metadata,
            None,
            None,
            None,
            *addresses,
            *numbers,
            *constants,
        )
    return None


def blocks(count: int, size: int) -> int:
    """How many blocks of this size hold so many; Triton's own ``cdiv`` takes longer to be called than to compute."""
    return -(-count // size)


def next_power_of_two(number: int) -> int:
    """The least power of two that is not less than the number ≥ 1."""
    return 1 << (number - 1).bit_length()
