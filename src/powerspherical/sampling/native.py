"""Which draws the native library takes, and how they are passed to it.

It takes CPU tensors in float32, and in half precision by way of float32. float64 takes the composition in
``sampling.operator``, for which the library draws the normals.

A call passes pointers and sizes as one packed struct, because ctypes takes 0.1 µs per argument.
The interpreter lock is released while the kernel runs.
"""

from __future__ import annotations

import functools
import struct
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from powerspherical._native.library import loaded
from powerspherical.sampling import layout
from powerspherical.sampling.precision import unit_vectors_as

if TYPE_CHECKING:
    from powerspherical.sampling.operator import Draws

#: The families that the library knows, as c/call.h numbers them.
FAMILIES = {"power_spherical": 0, "von_mises_fisher": 1, "spherical_cauchy": 2}

#: The fewest coordinates per thread, about 200 µs of work. With fewer, a thread would cost more time than it saves.
_PER_THREAD = 1 << 18

#: ``sphere_call`` and ``normals_call`` in c/call.h.
_CALL = struct.Struct("10P7q").pack
_NORMALS_CALL = struct.Struct("2P2q").pack


def covers(name: str, loc: Tensor, concentration: Tensor) -> bool:
    """Whether the library draws from the family of this name with these parameters."""
    return (
        concentration.dtype is torch.float32
        and concentration.is_cpu
        and loc.is_cpu
        and name in FAMILIES
        and _functions() is not None
    )


class _Functions(NamedTuple):
    """The functions of the library, which take a packed struct. ``pull_back`` returns 0 if memory does not suffice."""

    draw: Callable[[bytes], int]
    pull_back: Callable[[bytes], int]
    normals: Callable[[bytes], int]


@functools.cache
def _functions() -> _Functions | None:
    library = loaded()
    if isinstance(library, str):
        return None
    return _Functions(library.sphere_draw, library.sphere_pull_back, library.sphere_normals)


class _Seeds(threading.local):
    """A one-element tensor per thread, which is filled again for each draw: a new one would take twice as long."""

    def __init__(self) -> None:
        with torch.inference_mode(False):  # a tensor made in inference mode could not be filled outside of it
            self.tensor = torch.empty((), dtype=torch.int64, device="cpu")


_seeds = _Seeds()


def _seed(generator: torch.Generator | None) -> Tensor:
    """One number from ``generator``, by default torch's: the key of the library's own generator, Philox.

    The tensor is valid until the thread's next call.
    """
    seed = _seeds.tensor
    return seed.random_() if generator is None else seed.random_(generator=generator)


def threads(numbers: int) -> int:
    """The largest number of threads for a call that processes so many coordinates."""
    return 1 if numbers < 2 * _PER_THREAD else min(torch.get_num_threads(), numbers // _PER_THREAD)


def _parameters(loc: Tensor, concentration: Tensor, shape: torch.Size) -> tuple[Tensor, Tensor]:
    """The directions, unit vectors in float32, and κ, in the order of rows that ``layout`` describes."""
    if loc.dtype is not torch.float32:
        loc = unit_vectors_as(loc, torch.float32)
    if loc.shape[:-1] != shape or not loc.is_contiguous():
        loc = layout.directions(loc, shape)
    if concentration.shape != shape or not concentration.is_contiguous():
        concentration = layout.concentrations(concentration, shape)
    if loc.is_neg() or concentration.is_neg():  # a negative view has another sign than its memory
        loc, concentration = loc.resolve_neg(), concentration.resolve_neg()
    return loc, concentration


def draw(
    name: str,
    loc: Tensor,
    concentration: Tensor,
    shape: torch.Size,
    dim: int,
    generator: torch.Generator | None,
    needs_scalars: bool,
) -> Draws:
    """Run the operator ``draw`` of ``sampling.operator``. Scalars that are not needed are None."""
    directions, kappa = _parameters(loc, concentration, shape)
    rows, width = shape.numel(), loc.shape[-1]
    # ``empty_like`` takes half the time of ``new_empty``.
    agree = directions.shape[:-1] == shape
    x = torch.empty_like(directions) if agree else directions.new_empty((*shape, width))
    # The library only looks whether the first pointer is null.
    scalars, start, step = None, 0, 4 * rows
    if needs_scalars:
        scalars = kappa.new_empty((3, *shape))
        start = scalars.data_ptr()
    call = _CALL(
        x.data_ptr(), start, start + step, start + 2 * step,
        directions.data_ptr(), kappa.data_ptr(), _seed(generator).data_ptr(), 0, 0, 0,
        rows, width, directions.numel() // width, 0 if kappa.numel() == 1 else 1, dim,
        FAMILIES[name], threads(rows * width),
    )  # fmt: skip
    _functions().draw(call)  # type: ignore[union-attr]  # ``covers`` has checked that the library is there
    return x if loc.dtype is torch.float32 else x.to(loc.dtype), scalars


def pull_back(
    name: str,
    grad: Tensor,
    x: Tensor,
    loc: Tensor,
    scalars: Tensor,
    concentration: Tensor,
    dim: int,
    needs_loc: bool,
    needs_concentration: bool,
) -> tuple[Tensor | None, Tensor | None]:
    """The gradients in ``loc``, in its shape, and in κ, of each row, where they are needed.

    x and the scalars are contiguous, as ``draw`` made them.
    """
    shape = scalars.shape[1:]
    directions, kappa = _parameters(loc, concentration, shape)
    if x.dtype is not torch.float32:
        grad, x = grad.to(torch.float32), x.to(torch.float32)
    grad = grad.contiguous().resolve_neg()
    rows, width = shape.numel(), loc.shape[-1]
    grad_loc = torch.empty_like(directions) if needs_loc else None
    grad_kappa = None
    if needs_concentration:
        grad_kappa = torch.empty_like(kappa) if kappa.shape == shape else kappa.new_empty(shape)
    start, step = scalars.data_ptr(), 4 * rows
    call = _CALL(
        x.data_ptr(), start, start + step, start + 2 * step,
        directions.data_ptr(), kappa.data_ptr(), 0, grad.data_ptr(),
        0 if grad_loc is None else grad_loc.data_ptr(), 0 if grad_kappa is None else grad_kappa.data_ptr(),
        rows, width, directions.numel() // width, 0 if kappa.numel() == 1 else 1, dim,
        FAMILIES[name], threads(rows * width),
    )  # fmt: skip
    if not _functions().pull_back(call):  # type: ignore[union-attr]
        raise MemoryError("not enough memory for the gradients of shared directions")
    if grad_loc is not None:
        if grad_loc.shape != loc.shape:
            grad_loc = grad_loc.sum_to_size(loc.shape)
        if loc.dtype is not torch.float32:  # the gradient is tangential: normalising loc only scales it
            length = torch.linalg.vector_norm(loc.to(torch.float32), dim=-1, keepdim=True)
            grad_loc = grad_loc.div_(length).to(loc.dtype)
    return grad_loc, grad_kappa


def standard_normals(shape: Sequence[int], like: Tensor, generator: torch.Generator | None) -> Tensor:
    """Draw standard normals of the given shape, contiguous, with the dtype and device of ``like``.

    float64 on the CPU takes the library, if there is one, and anything else ``torch.randn``. The tensors are real ones:
    call it from the implementation of an operator, not under a transform or a tracer.
    """
    functions = _functions()
    if like.dtype is not torch.float64 or not like.is_cpu or functions is None:
        return torch.randn(shape, dtype=like.dtype, device=like.device, generator=generator)
    out = like.new_empty(shape)
    count = out.numel()
    # A normal takes about twice as long in float64.
    functions.normals(_NORMALS_CALL(out.data_ptr(), _seed(generator).data_ptr(), count, threads(2 * count)))
    return out
