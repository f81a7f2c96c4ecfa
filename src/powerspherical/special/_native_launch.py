"""Calls of the C library that compute a function of κ with its derivative or a second function, in float32."""

from __future__ import annotations

import struct

import torch
from torch import Tensor

from powerspherical._native import library
from powerspherical._torch.memory import empty, readable
from powerspherical.special._debye import FORMS as BESSEL_FORMS

#: The functions of κ that the library knows, as c/call.h numbers them.
FORMS = (*BESSEL_FORMS, "power_entropy", "power_entropy_and_mean", "cauchy_entropy")

#: The fewest values per thread, about 200 µs of work. With fewer, a thread would cost more time than it saves.
_PER_THREAD = 1 << 15

#: ``functions_call`` in c/call.h.
_CALL = struct.Struct("4P5q4d").pack


def native_takes(kappa: Tensor) -> bool:
    """Whether the library can compute functions of the tensor."""
    return kappa.is_cpu and kappa.dtype is torch.float32 and library.usable()


def value_and_slope(
    form: str,
    kappa: Tensor,
    *,
    table: Tensor,
    steps: int,
    terms: int = 0,
    numbers: tuple[float, float, float, float],
    needs_slope: bool,
) -> tuple[Tensor, Tensor]:
    """Return a function of κ, and its derivative in κ, at every element of ``kappa``.

    The forms that end in ``_and_mean`` return E T in place of the derivative.

    Args:
        form: one of ``FORMS``.
        kappa: any shape and strides; ``native_takes`` it.
        table: float32, contiguous.
        steps, terms, numbers: see ``functions_call`` in c/call.h.
        needs_slope: whether the second result is needed. If not, it is an empty tensor.
    """
    kappa, shape = readable(kappa), tuple(kappa.shape)
    value = empty(kappa, shape, torch.float32)
    slope = empty(kappa, shape if needs_slope else (0,), torch.float32)
    count = kappa.numel()
    threads = library.threads(count, _PER_THREAD)
    call = _CALL(
        value.data_ptr(), slope.data_ptr() if needs_slope else 0, kappa.data_ptr(), table.data_ptr(),
        count, FORMS.index(form), steps, terms, threads, *numbers,
    )  # fmt: skip
    library.function("functions")(call)
    return value, slope
