"""Which tensors have a fused kernel for densities and cosines: Triton's on CUDA, the C library's on the CPU."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from powerspherical._native import library
from powerspherical._torch.modes import is_plain
from powerspherical._torch.triton import triton_takes
from powerspherical.distributions import _native_density

_DTYPES = frozenset((torch.float32, torch.float16, torch.bfloat16))


class Plan(Protocol):
    """How to compute a log-density, or the cosine alone, for arguments of given shapes: one kernel per pass."""

    @property
    def dim(self) -> int:
        """The dimension d."""

    def forward(
        self, x: Tensor, loc: Tensor, kappa: Tensor, offset: Tensor, *, needs_ends: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The log-density with respect to the area, 1-t and 1+t. Those that are not needed are empty.

        Args:
            x, loc: unit vectors of float32 or half precision.
            kappa, offset: float32, of the shape of ``kappa``. The offset is -Ψ of an exponential family. The
                form "ends" ignores both.
            needs_ends: whether 1-t and 1+t are needed.
        """

    def backward(
        self,
        grad: Tensor,
        x: Tensor,
        loc: Tensor,
        kappa: Tensor,
        mean: Tensor,
        ends: tuple[Tensor, Tensor],
        needed: tuple[bool, bool, bool],
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """The gradients in x, loc and kappa, None where not ``needed``; ``ends`` are those of ``forward``.

        ``grad`` is the gradient of the log-density, or for the form "ends" that of t.
        """


def fused_plan(form: str, x: Tensor, loc: Tensor, kappa: Tensor | None = None) -> Plan | None:
    """Return the plan of a fused kernel, or None if torch operations have to do it.

    There is a plan in plain eager mode, if the kernels of the device serve the dtypes and shapes: x and loc in float32
    or half precision and kappa in float32. For "ends", x and loc must be float32.

    Args:
        form: the name of a family, or "ends" for 1-t and 1+t.
        x, loc: unit vectors (…, d).
        kappa: concentrations. None for "ends".
    """
    if kappa is None:
        reference, shape, served = loc, torch.Size(), x.dtype is loc.dtype is torch.float32
    else:
        reference, shape = kappa, kappa.shape
        served = kappa.dtype is torch.float32 and x.dtype in _DTYPES and loc.dtype in _DTYPES
    if not served or not x.device == loc.device == reference.device or not is_plain(x, loc, reference):
        return None
    kernels = _kernels(reference)
    return None if kernels is None else kernels.plan(form, x.shape, loc.shape, shape)


def _kernels(tensor: Tensor) -> Any:
    """The module with the kernels for the tensor's device, or None."""
    if triton_takes(tensor):
        from powerspherical.distributions import _triton_density

        return _triton_density
    return _native_density if tensor.is_cpu and library.usable() else None
