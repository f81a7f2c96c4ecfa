"""When a fused Triton kernel may take the place of torch's own operators, which are then spared."""

from __future__ import annotations

import functools
import importlib.util
import warnings

import torch
from torch import Tensor
from torch.autograd import forward_ad

_PLAIN = frozenset((Tensor, torch.nn.Parameter))


def is_plain(*tensors: Tensor) -> bool:
    """Whether nothing but autograd may want to know of what is done with them: no transform, mode or tracer.

    Then the dispatcher has nothing to decide, and what goes around it takes less time.
    """
    return (
        _PLAIN.issuperset(map(type, tensors))
        and not torch.compiler.is_compiling()
        and not torch._C._are_functorch_transforms_active()
        and not torch._C._len_torch_dispatch_stack()
        and forward_ad._current_level < 0
    )


def triton_takes(tensor: Tensor) -> bool:
    """Whether a kernel in float32 can run where the tensor is."""
    return tensor.is_cuda and tensor.dtype == torch.float32 and _compiles(tensor.device.index)


@functools.cache
def _compiles(device: int) -> bool:
    """Whether Triton is there and works for the device: it needs a C compiler and Python's headers too."""
    if torch.version.hip or importlib.util.find_spec("triton") is None:
        return False
    from powerspherical.special import _triton_probe

    try:
        with torch.cuda.device(device):
            _triton_probe.write_one(torch.empty(1, device="cuda"))
    except Exception as error:  # whatever a compiler, a linker or a driver can come up with
        if torch.cuda.is_current_stream_capturing():
            raise  # that says nothing of other times
        warnings.warn(
            "Triton cannot compile for this GPU, so draws take several kernels instead of one: the same law, more "
            f"time and memory. To change that, install a C compiler and Python's headers. ({error})",
            stacklevel=2,
        )
        return False
    return True
