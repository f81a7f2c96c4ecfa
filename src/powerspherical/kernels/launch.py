"""Whether Triton can run here, and launches of its kernels.

Compiled code launches through operators (``_torch.operators``), which the compiler does not look into.
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

from powerspherical._torch.random import KeyedGenerator
from powerspherical.kernels.layout import readable

#: Older versions cannot compile all of our kernels.
OLDEST = (3, 4)


@functools.cache
def missing() -> str | None:
    """Return what the installation lacks for our Triton kernels, or None."""
    if torch.version.hip:  # Triton also exists for ROCm
        return "they have instructions of CUDA, and this torch is built for ROCm"
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed, which a CUDA build of torch brings"
    import triton

    if tuple(map(int, triton.__version__.split(".")[:2])) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        return f"they need Triton {oldest} or newer, found {triton.__version__}: install torch 2.8 or newer"
    return None


def description() -> str:
    """Which Triton compiles the fused kernels for CUDA, or why none does; for people."""
    lacks = missing() or (None if torch.cuda.is_available() else "there is no CUDA device")
    if lacks:
        return f"not used: {lacks}"
    if not _compiles(torch.device("cuda", torch.cuda.current_device())):
        return "not used: Triton cannot compile for this GPU"
    return f"Triton {importlib.import_module('triton').__version__}"


def runs_on(device: torch.device, compiling: bool) -> bool:
    """Whether our Triton kernels run on a device.

    On the CPU this asks for Triton's interpreter.

    Args:
        device: with its index, if it is a CUDA device.
        compiling: whether compiled code is to call the kernels. Then we cannot try whether Triton compiles.
    """
    if missing():
        return False
    if device.type == "cpu":
        from powerspherical.kernels.triton.random import COMPILED

        return not COMPILED.value
    return device.type == "cuda" and (compiling or _compiles(device))


def _compiles(device: torch.device) -> bool:
    """Whether Triton can compile for the device, which takes a C compiler and Python's headers."""
    try:
        from powerspherical.kernels.triton import draw

        # A trivial kernel might compile where inline assembly or Philox does not.
        loc, kappa = torch.ones((1, 2), device=device), torch.ones(1, device=device)
        options = "spherical_cauchy", 2, kappa.shape, KeyedGenerator(0), lambda *_: None
        draw.draw((loc, kappa), options, (False, False))
    except Exception as error:  # compilers, linkers and drivers raise all kinds of errors
        if torch.cuda.is_current_stream_capturing():
            raise  # a failure during capture does not mean that later calls fail
        warnings.warn(
            "Triton cannot compile for this GPU, so draws use several kernels instead of one. They have the same law "
            f"but take more time and memory. To fix this, install a C compiler and Python's headers. ({error})",
            stacklevel=2,
        )
        return False
    return True


#: Compiled kernels, by everything that they depend on if all pointers are multiples of 16 bytes.
_COMPILED: dict[tuple[Any, ...], Any] = {}


def launch(
    kernel: Any,
    grid: tuple[int, int],
    tensors: Sequence[Tensor | None],
    numbers: Sequence[float],
    constants: tuple[Any, ...],
    num_warps: int = 4,
) -> None:
    """Launch a kernel on the device of its tensors.

    For small batches most of the time of a launch is Triton's inspection of every argument. We have Triton do that once
    per device, dtypes and constants. For pointers that are not multiples of 16 bytes it needs another variant, and
    inspects each launch.

    Args:
        kernel: a function decorated with ``triton.jit``, of tensors, numbers and constants, in this order. It must
            declare the types of its numbers and not specialise on their values.
        grid: number of programs along two axes. A launch of no programs does nothing.
        tensors: those that the kernel writes must be contiguous. Others are copied if a pointer cannot read them. The
            kernel gets the first one in place of None, and must not use it there.
        numbers: integers and floats.
        constants: values of its constexpr parameters.
        num_warps: warps per program.
    """
    first = tensors[0]
    assert first is not None
    device = first.get_device()
    if device >= 0 and device != torch.cuda.current_device():
        with torch.cuda.device(device):
            return launch(kernel, grid, tensors, numbers, constants, num_warps)
    if 0 in grid:
        return None
    pointers = [first if tensor is None else readable(tensor) for tensor in tensors]
    addresses = [tensor.data_ptr() for tensor in pointers]
    key = kernel.fn, device, constants, num_warps, *[tensor.dtype for tensor in pointers]
    compiled = _COMPILED.get(key)
    aligned = not functools.reduce(operator.or_, addresses) & 15
    if compiled is not None and aligned:
        compiled[(*grid, 1)](*addresses, *numbers, *constants)
        return None
    # Triton 3.10 no longer fuses multiplications and additions by default.
    options = {"num_warps": num_warps, "enable_fp_fusion": True}
    compiled = kernel[grid](*pointers, *numbers, *constants, **options)
    if compiled is not None and aligned:  # it is None in Triton's interpreter
        _COMPILED[key] = compiled
    return None


def blocks(count: int, size: int) -> int:
    """Return how many blocks of ``size`` items hold ``count`` items."""
    return -(-count // size)
