"""A device without float64, such as Apple's GPUs, acted by the CPU.

A tensor "on the device" is an ``OnDevice``: a CPU tensor that says its device is ``mps``. Its operations are those of
the CPU, but float64, operations outside of ``OPERATIONS`` and tensors of two devices raise, as they would there.
``acting`` lets torch's functions make and move such tensors, and the library take them for plain ones.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.utils._python_dispatch import return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map

from powerspherical.kernels import dispatch

DEVICE = torch.device("mps", 0)

#: The operations that the library and its tests run on the device: those that were seen when there was no list. Each
#: has a kernel for ``mps``, see ``has_kernel``.
_NAMES = """
__rshift__.Scalar _local_scalar_dense _log_softmax _log_softmax_backward_data _to_copy _unsafe_view abs
add.Scalar add.Tensor add.out add_.Tensor addcmul addcmul_ addmm.out all amax amin argmin bitwise_and.Tensor
bitwise_not bitwise_or.Tensor cat clamp clamp_ clamp_min clone constant_pad_nd copy_ detach diag_embed
div.Scalar div.Tensor div_.Tensor embedding empty_like eq.Scalar eq.Tensor exp expand expm1 full_like gather
ge.Scalar ge.Tensor gt.Scalar hypot index.Tensor index_add index_put_ index_select isnan le.Scalar
linalg_vector_norm log log1p log1p.out log_ lt.Scalar lt.Tensor masked_fill.Scalar masked_fill_.Scalar maximum
mean mm mm.out mul.Scalar mul.Tensor mul.out mul_.Tensor ne.Scalar ne.Tensor neg new_empty new_full new_ones
new_zeros nll_loss_backward nll_loss_forward nonzero norm.ScalarOpt_dim normal_ ones_like permute
pow.Tensor_Scalar pow.Tensor_Tensor pow_.Scalar reciprocal reciprocal_
roll rsub.Scalar select.int select_backward sign slice.Tensor slice_backward sort split_with_sizes sqrt sqrt_
squeeze squeeze.dim stack sub.Tensor sub.out sub_.Tensor sum sum.dim_IntList transpose.int unbind.int uniform_
unsqueeze view view.dtype where.self xlogy.Scalar_Self zeros_like
"""
OPERATIONS = frozenset(_NAMES.split())

#: Copies that were made from the device to the CPU.
downloads: list[torch.Size] = []


class OnDevice(Tensor):
    """A CPU tensor that acts as one on the device."""

    held: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, held: Tensor) -> OnDevice:
        if held.dtype in (torch.float64, torch.complex128):
            raise TypeError(f"{DEVICE.type} has no {held.dtype}")
        return torch.Tensor._make_wrapper_subclass(
            cls, held.shape, held.stride(), held.storage_offset(), dtype=held.dtype, device=held.device
        )

    def __init__(self, held: Tensor) -> None:
        self.held = held

    device = property(lambda self: DEVICE)
    is_cpu = property(lambda self: False)

    def data_ptr(self) -> int:
        return self.held.data_ptr()

    def tolist(self) -> Any:
        return self.held.tolist()

    def __repr__(self, **options: Any) -> str:
        return f"OnDevice({self.held!r})"

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = str(function).removeprefix("aten.").removesuffix(".default")
        if name not in OPERATIONS:
            raise NotImplementedError(f"{name} is no operation of the device")
        for x in tree_leaves((args, kwargs)):
            # Numbers may come from the CPU, as tensors without axes.
            if isinstance(x, Tensor) and not isinstance(x, OnDevice) and x.dim():
                raise RuntimeError(f"{name} got a tensor on the CPU and one on the device")
        found = function(*_held(args), **_held(kwargs))
        wrapped = tree_map(lambda x: OnDevice(x) if isinstance(x, Tensor) else x, found)
        return return_and_correct_aliasing(function, args, kwargs, wrapped)


def _held(values: Any) -> Any:
    return tree_map(lambda x: x.held if isinstance(x, OnDevice) else x, values)


class _Download(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: OnDevice) -> Tensor:
        downloads.append(x.shape)
        return x.held.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return _Upload.apply(grad)


class _Upload(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return OnDevice(x.detach().clone())

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return _Download.apply(grad)


def upload(x: Tensor) -> Tensor:
    """Return a copy of a CPU tensor on the device."""
    return _Upload.apply(x)


def download(x: Tensor) -> Tensor:
    """Return a copy of a tensor on the device as a CPU tensor; others as they are."""
    return _Download.apply(x) if isinstance(x, OnDevice) else x


#: Functions that make tensors where ``device=`` says.
_FACTORIES = (
    "arange",
    "empty",
    "eye",
    "full",
    "linspace",
    "ones",
    "rand",
    "randint",
    "randn",
    "tensor",
    "zeros",
)


def _names_device(value: Any) -> bool:
    return isinstance(value, torch.device | str) and torch.device(value).type == DEVICE.type


def _made(factory: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return a factory of torch that also makes tensors on the device."""

    @functools.wraps(factory)
    def make(*args: Any, device: Any = None, **kwargs: Any) -> Tensor:
        if not _names_device(device):
            return factory(*args, device=device, **kwargs)
        return upload(factory(*args, **kwargs))

    return make


_to = Tensor.to


def _moved(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """``Tensor.to``, also to the device and from it."""
    if args and isinstance(args[0], Tensor):
        return _moved(x, args[0].device, args[0].dtype)
    places = [place for place in (*args, kwargs.get("device")) if isinstance(place, torch.device | str)]
    if not places:
        return _to(x, *args, **kwargs)
    rest = [a for a in args if not isinstance(a, torch.device | str)]
    there = _names_device(places[0])
    x = _to(x if there else download(x), *rest, **{name: a for name, a in kwargs.items() if name != "device"})
    return upload(x) if there and not isinstance(x, OnDevice) else x


@contextmanager
def acting() -> Iterator[None]:
    """Let a device without float64 exist inside."""
    # torch then compiles some of its own Python code, which must not see what we replace.
    torch.func.jvp(torch.sin, (torch.ones(1),), (torch.ones(1),))
    factories = {name: _made(getattr(torch, name)) for name in _FACTORIES}
    with (
        mock.patch.object(dispatch, "_PLAIN_TYPES", dispatch._PLAIN_TYPES | {OnDevice}),
        mock.patch.object(Tensor, "to", _moved),
        mock.patch.object(Tensor, "cpu", download),
        mock.patch.multiple(torch, **factories),
    ):
        yield


@functools.cache
def _kernels() -> dict[str, str]:
    """For each operation of torch, what has a kernel for it. A structured one has those of its out variant."""
    path = Path(torch.__file__).parents[1] / "torchgen/packaged/ATen/native/native_functions.yaml"
    kernels: dict[str, str] = {}
    delegates: dict[str, str] = {}
    name = ""
    for line in path.read_text().splitlines():
        if line.startswith("- func: "):
            name = line.removeprefix("- func: ").partition("(")[0]
            kernels[name] = ""
        elif line.startswith("  structured_delegate: "):
            delegates[name] = line.partition(": ")[2].strip()
        elif line.startswith("    ") and ":" in line:
            kernels[name] += f"{line.partition(':')[0]}, "
    return kernels | {name: kernels[other] for name, other in delegates.items()}


def has_kernel(name: str) -> bool:
    """Whether this torch can run an operation on ``mps``, by a kernel or as a composition of other operations.

    The file from which torch's dispatch tables are made is part of its wheel. It names no kernel for compositions. An
    operation that this torch does not know cannot run.
    """
    found = _kernels().get(name, "")
    return not found or "MPS" in found or "Composite" in found
