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
from typing import TYPE_CHECKING

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


@functools.cache
def _functions() -> tuple[Callable[[bytes], int], ...] | None:
    library = loaded()
    if isinstance(library, str):
        return None
    return library.sphere_draw, library.sphere_pull_back, library.sphere_normals


def _run(which: int, call: bytes) -> None:
    functions = _functions()
    assert functions is not None  # or ``covers`` is False
    if not functions[which](call):
        raise MemoryError("not enough memory for the gradients of shared directions")


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


def _parameters(
    loc: Tensor, concentration: Tensor, shape: Sequence[int], whole: tuple[int, ...]
) -> tuple[Tensor, Tensor]:
    """The directions, unit vectors in float32, and κ, in the order of rows that ``layout`` describes.

    ``whole`` is the shape of x, ``shape + (d,)``.
    """
    if loc.dtype is not torch.float32:
        loc = unit_vectors_as(loc, torch.float32)
    if loc.shape != whole or not loc.is_contiguous():
        loc = layout.directions(loc, shape)
    if concentration.shape != shape or not concentration.is_contiguous():
        concentration = layout.concentrations(concentration, shape)
    # A negative view has another sign than its memory.
    return loc.resolve_neg(), concentration.resolve_neg()


def draw(
    name: str,
    loc: Tensor,
    concentration: Tensor,
    shape: Sequence[int],
    dim: int,
    generator: torch.Generator | None,
) -> Draws:
    """What the operator of the family returns."""
    width = loc.shape[-1]
    whole = (*shape, width)
    directions, kappa = _parameters(loc, concentration, shape, whole)
    # empty_like takes half the time.
    x = torch.empty_like(directions) if directions.shape == whole else directions.new_empty(whole)
    one_minus_t = torch.empty_like(kappa) if kappa.shape == shape else kappa.new_empty(shape)
    one_plus_t, noise = torch.empty_like(one_minus_t), torch.empty_like(one_minus_t)
    call = _CALL(
        x.data_ptr(), one_minus_t.data_ptr(), one_plus_t.data_ptr(), noise.data_ptr(),
        directions.data_ptr(), kappa.data_ptr(), _seed(generator).data_ptr(), 0, 0, 0,
        one_minus_t.numel(), width, directions.numel() // width, 0 if kappa.numel() == 1 else 1, dim,
        FAMILIES[name], threads(x.numel()),
    )  # fmt: skip
    _run(0, call)
    return x if loc.dtype is torch.float32 else x.to(loc.dtype), one_minus_t, one_plus_t, noise


def pull_back(
    name: str,
    grad: Tensor,
    x: Tensor,
    loc: Tensor,
    one_minus_t: Tensor,
    one_plus_t: Tensor,
    noise: Tensor,
    concentration: Tensor,
    dim: int,
    needs_loc: bool,
    needs_concentration: bool,
) -> tuple[Tensor | None, Tensor | None]:
    """The gradients in ``loc``, in its shape, and in κ, of each row, where they are needed.

    x and the three scalars a row are contiguous, as ``draw`` made them.
    """
    directions, kappa = _parameters(loc, concentration, one_minus_t.shape, x.shape)
    if x.dtype is not torch.float32:
        grad, x = grad.to(torch.float32), x.to(torch.float32)
    grad = grad.contiguous().resolve_neg()
    width = directions.shape[-1]
    grad_loc = torch.empty_like(directions) if needs_loc else None
    grad_kappa = torch.empty_like(one_minus_t) if needs_concentration else None
    call = _CALL(
        x.data_ptr(), one_minus_t.data_ptr(), one_plus_t.data_ptr(), noise.data_ptr(),
        directions.data_ptr(), kappa.data_ptr(), 0, grad.data_ptr(),
        0 if grad_loc is None else grad_loc.data_ptr(), 0 if grad_kappa is None else grad_kappa.data_ptr(),
        one_minus_t.numel(), width, directions.numel() // width, 0 if kappa.numel() == 1 else 1, dim,
        FAMILIES[name], threads(x.numel()),
    )  # fmt: skip
    _run(1, call)
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
    if like.dtype is not torch.float64 or not like.is_cpu or _functions() is None:
        return torch.randn(shape, dtype=like.dtype, device=like.device, generator=generator)
    out = like.new_empty(shape)
    count = out.numel()
    # A normal takes about twice as long in float64.
    _run(2, _NORMALS_CALL(out.data_ptr(), _seed(generator).data_ptr(), count, threads(2 * count)))
    return out
