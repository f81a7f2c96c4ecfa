"""Whether Triton can run here, and launching its kernels cheaply.

For small batches the cost of a launch is Triton's inspection of every argument: ``Launch`` does it once.
"""

from __future__ import annotations

import functools
import importlib.util
import operator
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def triton_takes(tensor: Tensor) -> bool:
    """Whether a float32 kernel can run on the tensor's device."""
    return tensor.is_cuda and tensor.dtype == torch.float32 and _compiles(tensor.device.index)


@functools.cache
def _compiles(device: int) -> bool:
    """Whether Triton is installed and works for the device: it also needs a C compiler and Python's headers."""
    if torch.version.hip or importlib.util.find_spec("triton") is None:
        return False
    from powerspherical._torch import triton_probe

    try:
        with torch.cuda.device(device):
            triton_probe.write_one(torch.empty(1, device="cuda"))
    except Exception as error:  # a compiler, a linker or a driver may raise anything
        if torch.cuda.is_current_stream_capturing():
            raise  # a failure during capture says nothing about other calls
        warnings.warn(
            "Triton cannot compile for this GPU, so draws take several kernels instead of one: the same law, more "
            f"time and memory. To change that, install a C compiler and Python's headers. ({error})",
            stacklevel=2,
        )
        return False
    return True


class Launch:
    """A kernel bound to everything that does not change between calls; calling it launches the kernel.

    Keep one in a cache for each combination of device, dtypes and constants. The kernel takes tensors, numbers and
    constants, in this order. It must declare the types of its numbers and not specialise on their values.

    Args:
        kernel: what ``triton.jit`` made.
        grid: how many programs there are, along two axes.
        numbers: the last of the kernel's numbers.
        constants: the values of its constexpr parameters.
        num_warps: of a program.
    """

    def __init__(
        self,
        kernel: Any,
        grid: tuple[int, int],
        numbers: Sequence[float],
        constants: Sequence[Any],
        *,
        num_warps: int,
    ) -> None:
        self._kernel, self._grid, self._num_warps = kernel, grid, num_warps
        self._rest = (*numbers, *constants)
        self._compiled: Any = None

    def __call__(self, tensors: Sequence[Tensor], *numbers: int) -> None:
        """Launch on the device of the tensors; ``numbers`` are the first of the kernel's."""
        device = tensors[0].get_device()
        if device >= 0 and device != torch._C._cuda_getDevice():
            with torch.cuda.device(device):
                return self(tensors, *numbers)
        addresses = [tensor.data_ptr() for tensor in tensors]
        # Triton compiles other variants for pointers that are no multiples of 16 bytes: those few are left to it.
        every_bit = functools.reduce(operator.or_, addresses)
        compiled = self._compiled
        if compiled is None or every_bit & 15:
            compiled = self._kernel[self._grid](*tensors, *numbers, *self._rest, num_warps=self._num_warps)
            if not every_bit & 15:  # in the interpreter there is nothing to keep
                self._compiled = compiled
            return None
        # What Triton itself does, once it has looked at everything. Given a tensor in place of an address, it would ask
        # the driver whose memory that is.
        stream = torch._C._cuda_getCurrentRawStream(device)
        function, metadata = compiled.function, compiled.packed_metadata
        hooks = None, None, None
        compiled.run(*self._grid, 1, stream, function, metadata, *hooks, *addresses, *numbers, *self._rest)
        return None


def blocks(count: int, size: int) -> int:
    """How many blocks of this size hold so many."""
    return -(-count // size)


def next_power_of_two(number: int) -> int:
    """The least power of two that is not less than the number ≥ 1."""
    return 1 << (number - 1).bit_length()
