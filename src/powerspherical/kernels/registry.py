"""Which kernel computes what: the only place that asks whether one may run."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from powerspherical import engines
from powerspherical.kernels import library

#: The families that the kernels know. A family's place is its number in C and in Triton.
FAMILIES = ("power_spherical", "von_mises_fisher", "spherical_cauchy")
NUMBERS = {name: number for number, name in enumerate(FAMILIES)}

Tensors = tuple[Tensor, ...]
Gradients = tuple[Tensor | None, ...]

#: What a kernel reads of a function of κ, see ``special.curves.table``: the rows, and (first, gain, decay).
Table = tuple[Tensor, tuple[int, float, float]]

#: Options of the kernels of a head: d, the bounds of κ, and below which entries v counts as zero.
HeadOptions = tuple[int, float, float, float]


class Kernel(NamedTuple):
    """A function of an engine.

    Attributes:
        run: computes it. For ``autograd.differentiable`` it takes (tensors, options, needed), where ``needed`` says of
            which tensors the gradients will be needed, and returns the outputs and what the gradients need of them.
        gradients: computes the gradients. For ``autograd.differentiable`` it takes (gradients of the outputs, needed,
            tensors, what ``run`` kept, options), and returns the gradients in the tensors. A gradient of an output may
            be None, which means zero.
        serves: a further condition, on the family and the tensors, that ``find`` does not check.
        dtypes: of the tensor that is passed to ``find``.
        largest_dim: largest dimension d.
    """

    run: Callable[..., Any]
    gradients: Callable[..., Gradients] | None
    serves: Callable[..., bool] | None
    dtypes: Collection[torch.dtype]
    largest_dim: int


#: By what is computed, and the engine.
_TABLE: dict[tuple[str, str], Kernel] = {}


def register(
    what: str,
    engine: str,
    run: Callable[..., Any],
    gradients: Callable[..., Gradients] | None = None,
    *,
    serves: Callable[..., bool] | None = None,
    dtypes: Collection[torch.dtype],
    largest_dim: int = 1 << 62,
) -> None:
    """Register the kernel of an engine for ``what``. The other arguments are the attributes of ``Kernel``."""
    _TABLE[what, engine] = Kernel(run, gradients, serves, frozenset(dtypes), largest_dim)


@functools.cache
def _has_triton(device: torch.device, compiling: bool) -> bool:
    """Import the kernels of Triton and return whether they run on the device."""
    from powerspherical.kernels import launch

    if not launch.runs_on(device, compiling):
        return False
    importlib.import_module("powerspherical.kernels.triton")
    return True


def registered(what: str, engine: str) -> Kernel:
    """Return the kernel of an engine, whichever engine is chosen now: compiled code has chosen before."""
    return _TABLE[what, engine]


def find(
    what: str, tensor: Tensor, dim: int = 2, family: str | None = None, *, compiling: bool = False
) -> Kernel | None:
    """Return the kernel for ``what``, or None: torch operations compute it then.

    Args:
        what: a name under which kernels are registered.
        tensor: gives the device and the dtype. An empty tensor has no kernel.
        dim: the dimension d.
        family: the name of the family, if the kernel depends on it.
        compiling: whether compiled code is to call the kernel. Then we cannot try whether Triton compiles.

    Callers check for transforms and tracing themselves, once per call (``modes.is_plain``).
    """
    engine = engines.kernels[tensor.is_cpu]
    if engine == "c":
        if isinstance(library.loaded(), str):
            return None
    elif engine is None or not _has_triton(tensor.device, compiling):
        return None
    found = _TABLE.get((what, engine))
    if (
        found is None
        or tensor.dtype not in found.dtypes
        or dim > found.largest_dim
        or tensor.numel() == 0
        or (family is not None and family not in NUMBERS)
    ):
        return None
    if torch.jit.is_tracing():  # type: ignore[attr-defined]  # it would record memory that nobody writes
        raise NotImplementedError(
            "torch.jit.trace cannot record this package: use torch.compile or torch.export"
        )
    return found


def slope_times_gradient(
    grads: Gradients, needed: Sequence[bool], tensors: Tensors, slopes: Tensors, options: Any
) -> Gradients:
    """The gradients of an elementwise function that kept its slope."""
    (grad,), (slope,) = grads, slopes
    assert grad is not None
    return (grad * slope,)
