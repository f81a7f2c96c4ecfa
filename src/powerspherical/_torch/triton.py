"""Whether Triton can run here, and cheap launches of its kernels.

For small batches most of the launch time is Triton's inspection of every argument. ``Launch`` inspects them once.
Compiled code launches through operators (``_torch.operators``), which the compiler does not look into.
"""

from __future__ import annotations

import functools
import importlib.util
import operator
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from powerspherical import engines
from powerspherical._torch.modes import is_compiling


def triton_takes(tensor: Tensor, dtypes: Sequence[torch.dtype] = (torch.float32,)) -> bool:
    """Whether a kernel that reads these ``dtypes`` can run on the tensor."""
    if tensor.is_cpu:
        return engines.requested("triton") and tensor.dtype in dtypes and _interprets()
    if not tensor.is_cuda or tensor.dtype not in dtypes or not engines.allowed("triton"):
        return False
    # While compiling, tensors are fake and nothing can be tried.
    return _has_triton() if is_compiling() else _compiles(tensor.device.index)


@functools.cache
def _has_triton() -> bool:
    """Whether Triton is installed, and this is not a ROCm build of torch."""
    return not torch.version.hip and importlib.util.find_spec("triton") is not None


@functools.cache
def _interprets() -> bool:
    """Whether kernels run in Triton's interpreter, which takes CPU tensors. Triton decides this when it is imported."""
    if not _has_triton():
        return False
    from powerspherical._torch import triton_probe

    return triton_probe.is_interpreted()


@functools.cache
def _compiles(device: int) -> bool:
    """Whether Triton can compile for the device, which takes a C compiler and Python's headers."""
    if not _has_triton():
        return False
    from powerspherical._torch import triton_probe

    try:
        with torch.cuda.device(device):
            triton_probe.write_one(torch.empty(1, device="cuda"))
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


class Launch:
    """A kernel with all arguments bound that do not change between calls. Calling it launches the kernel.

    Cache one per combination of device, dtypes and constants. The kernel takes tensors, numbers and constants, in this
    order. It must declare the types of its numbers and not specialise on their values.

    Args:
        kernel: a function decorated with ``triton.jit``.
        grid: number of programs along two axes.
        numbers: the last number arguments of the kernel, which are the same in every launch.
        constants: values of its constexpr parameters.
        num_warps: warps per program.
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
        self._run: _Run | None = None  # made by the first launch
        self._compiled: Any = None

    def __call__(self, tensors: Sequence[Tensor], *numbers: int) -> None:
        """Launch on the device of ``tensors``. ``numbers`` are the kernel's number arguments that are not bound."""
        device = tensors[0].get_device()
        if device >= 0 and device != torch._C._cuda_getDevice():
            with torch.cuda.device(device):
                return self(tensors, *numbers)
        addresses = [tensor.data_ptr() for tensor in tensors]
        # For pointers that are not multiples of 16 bytes Triton needs another variant, so it launches those itself.
        every_bit = functools.reduce(operator.or_, addresses)
        if self._run is None or every_bit & 15:
            compiled = self._kernel[self._grid](*tensors, *numbers, *self._rest, num_warps=self._num_warps)
            if compiled is not None and not every_bit & 15:  # it is None in Triton's interpreter
                self._compiled = compiled  # keeps the kernel loaded
                self._run = _static_run(compiled, self._grid, self._rest) or _triton_run(
                    compiled, self._grid, self._rest
                )
            return None
        run, rest = self._run
        run((*addresses, *numbers, *rest), torch._C._cuda_getCurrentRawStream(device))
        return None


#: A pair: a function of (arguments, stream) that launches a compiled kernel, and the last arguments of every launch.
_Run = tuple[Callable[[tuple[Any, ...], int], object], tuple[Any, ...]]


def _static_run(compiled: Any, grid: tuple[int, int], rest: tuple[Any, ...]) -> _Run | None:
    """Return a launch by the function that torch's compiled code uses, or None if it cannot launch this kernel.

    It takes two thirds of the time of Triton's launcher, because it does not convert constants.
    """
    launcher = getattr(torch._C, "_StaticCudaLauncher", None)
    metadata, types = compiled.metadata, list(compiled.src.signature.values())
    scratch = [getattr(metadata, f"{name}_scratch_size", None) for name in ("global", "profile")]
    if launcher is None or any(scratch) or getattr(metadata, "num_ctas", 1) != 1:
        return None
    if len(types) != len(compiled.src.fn.arg_names):
        return None
    codes = "".join("O" if kind[0] == "*" else _CODES.get(kind, "?") for kind in types)
    if "?" in codes:
        return None
    rest = tuple(
        value
        for value, code in zip(rest, types[len(types) - len(rest) :], strict=True)
        if code != "constexpr"
    )
    # A kernel has a parameter for each kind of scratch memory that its version of Triton knows. Ours use none.
    unused = (None,) * (2 - scratch.count(None))
    arguments = compiled.function, *grid, 1, metadata.num_warps, metadata.shared, codes + "O" * len(unused)
    return functools.partial(launcher._launch_kernel, *arguments), (*rest, *unused)


#: How torch's launcher denotes the types of arguments.
_CODES = {"i64": "l", "fp32": "f", "constexpr": ""}


def _triton_run(compiled: Any, grid: tuple[int, int], rest: tuple[Any, ...]) -> _Run:
    """Return the launch that Triton makes after inspecting the arguments."""
    hooks = None, None, None
    run, common = compiled.run, (compiled.function, compiled.packed_metadata, *hooks)
    return lambda arguments, stream: run(*grid, 1, stream, *common, *arguments), rest


def blocks(count: int, size: int) -> int:
    """Return how many blocks of ``size`` items hold ``count`` items."""
    return -(-count // size)


def next_power_of_two(number: int) -> int:
    """Return the smallest power of two that is at least ``number`` ≥ 1."""
    return 1 << (number - 1).bit_length()
