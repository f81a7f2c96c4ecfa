"""Checks of arguments: shapes always, values where they can be read.

Reading a value synchronises on CUDA, so all value checks of a call are read at once. Under tracing, graph capture and
``vmap`` they are skipped.
"""

from __future__ import annotations

import functools
import math
import numbers
import operator
import reprlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from powerspherical._torch.modes import booleans, can_look
from powerspherical._torch.precision import has_float64
from powerspherical._torch.private import validates_by_default
from powerspherical._torch.vectors import computing
from powerspherical.distributions.constraints import NORM_TOLERANCE, norm_error, norm_rounding
from powerspherical.kernels import find

#: A condition that must hold everywhere, and the message if it does not.
Check = tuple[Tensor, Callable[[], str]]


def is_enabled(validate_args: bool | None) -> bool:
    """Return whether to check values: ``None`` follows torch's global default."""
    return validates_by_default() if validate_args is None else validate_args


def require(checks: Sequence[Check]) -> None:
    """Raise the message of the first check that fails. All are read at once."""
    held = _read([condition for condition, _ in checks]) or ()
    for holds, (_, message) in zip(held, checks, strict=False):
        if not holds:
            raise ValueError(message())


def _read(conditions: Sequence[Tensor]) -> list[bool] | None:
    """Return whether each condition holds everywhere, read at once; None if values cannot be read here."""
    if not can_look() or any(condition.is_meta for condition in conditions):
        return None
    return booleans(torch.stack([condition.all() for condition in conditions]))


def floating_tensor(name: str, value: object, hint: str = "") -> Tensor:
    """Return ``value``; raise ``ValueError`` unless it is a floating-point tensor."""
    if not isinstance(value, Tensor):
        raise ValueError(f"{name} must be a torch.Tensor{hint}, got {_described(name, value)}")
    if not value.dtype.is_floating_point:
        way_out = "" if value.is_complex() else f": use {name}.float()"
        raise ValueError(f"{name} must have a floating-point dtype, got {value.dtype}{way_out}")
    return value


def _described(name: str, value: object) -> str:
    """What a value is that should have been a tensor, and how to make it one."""
    kind, shape = type(value).__name__, getattr(value, "shape", None)
    if isinstance(shape, tuple):
        return f"{kind} of shape {shape}: use torch.as_tensor({name})"
    way_out = f"; use torch.tensor({name})" if isinstance(value, list | tuple) else ""
    return f"{kind}: {reprlib.repr(value)}{way_out}"


def vectors(name: str, value: object) -> int:
    """Return the dimension d of a floating-point tensor of shape (…, d); raise ``ValueError`` unless d ≥ 2."""
    shape = floating_tensor(name, value).shape
    if not shape or shape[-1] < 2:
        found = f"the shape {tuple(shape)}" if shape else "a scalar"
        raise ValueError(
            f"{name} must hold vectors, of shape (…, d) with d ≥ 2 (2 is the circle), got {found}"
        )
    return operator.index(shape[-1])  # see ``dimension``


def number_or_tensor(
    name: str, value: object, dtype: torch.dtype | None = None, device: torch.device | None = None
) -> Tensor:
    """Return a floating-point tensor as it is, and a number as a tensor of this dtype. Default: torch's.

    ``device`` is that of ``loc``. Numbers and scalar tensors move there. Other tensors must be there.
    """
    if not isinstance(value, Tensor) and isinstance(value, numbers.Real):
        kept, number = torch.get_default_dtype() if dtype is None else dtype, float(value)
        if torch.finfo(kept).max < abs(number) < math.inf:
            way_out = "a float64 tensor" if dtype is None else "loc.double()"
            raise ValueError(_overflow(name, number, kept, way_out))
        # On CUDA this is a fill. ``torch.tensor`` would be a copy that waits.
        return torch.full((), number, dtype=dtype, device=device)
    tensor = floating_tensor(name, value, " or a number")
    if device is None or tensor.device == device:
        return tensor
    if tensor.dim():
        raise ValueError(f"loc is on {device} and {name} on {tensor.device}: move one of them")
    if not has_float64(device):
        tensor = tensor.float()
    return tensor.to(device, non_blocking=True)


def _overflow(name: str, value: float, dtype: torch.dtype, way_out: str) -> str:
    return f"{name} = {value:.6g} overflows {dtype}: use {way_out}"


def are_proper(vectors: Tensor, numbers: Tensor | None = None) -> bool:
    """Whether a kernel, if there is one, finds that all norms are one to rounding and all numbers finite and ≥ 0."""
    dtype, dim = vectors.dtype, vectors.shape[-1]
    if numbers is not None and numbers.dtype is not dtype:
        return False
    kernel = find("check", vectors, dim=dim) if numbers is None else find("check", numbers, vectors, dim=dim)
    return kernel is not None and kernel.run(vectors, numbers, *_limits(dtype, dim))


@functools.cache
def _limits(dtype: torch.dtype, dim: int) -> tuple[float, float]:
    """Return the rounding error of a norm, and the largest number."""
    return norm_rounding(dtype, dim), torch.finfo(dtype).max


def _others(values: Tensor, digits: int = 6) -> str:
    return f"{values.numel()} other value(s), such as {values[0].item():.{digits}g}"


def unit_vectors(name: str, value: Tensor, *checks: Check) -> Tensor:
    """Return ``value`` (…, d), normalised unless all norms are one to rounding.

    Raise ``ValueError`` if a norm is off by 1 % or another check fails.
    """
    if not checks and are_proper(value):
        return value
    error = norm_error(value.detach())

    def message() -> str:
        if torch.isnan(error).any():
            return f"{name} of shape {tuple(value.shape)} has NaN entries in {int(torch.isnan(error).sum())} row(s)"
        exact = value.detach().to(computing(value.dtype))
        worst = torch.linalg.vector_norm(exact, dim=-1).flatten()[error.argmax()].item()
        return (
            f"{name} of shape {tuple(value.shape)} must hold unit vectors along its last dimension: the worst norm is "
            f"{worst:.9g}, more than {NORM_TOLERANCE:.0%} from 1; use torch.nn.functional.normalize({name}, dim=-1)"
        )

    # The usual case takes one read: all norms are one to rounding.
    usual = error <= norm_rounding(value.dtype, value.shape[-1])
    held = _read([usual, *(condition for condition, _ in checks)])
    if held is None:
        # Half precision is normalised when it becomes float32.
        settled = value.dtype != computing(value.dtype)
    else:
        settled = held[0]
        if not all(held):
            require([(error <= NORM_TOLERANCE, message), *checks])
    if settled:
        return value
    # With a constant norm, the gradient is that of a unit vector divided by the norm.
    return value / torch.linalg.vector_norm(value.detach(), dim=-1, keepdim=True)


def non_negative(
    name: str,
    value: Tensor,
    dtype: torch.dtype | None = None,
    way_out: str = "a network's output can be mapped there by torch.nn.functional.softplus",
) -> Check:
    """Check that ``value`` is finite and ≥ 0, also in ``dtype`` if given. ``way_out`` is for negative entries."""
    value = value.detach()
    largest = torch.finfo(dtype or value.dtype).max
    proper = (value >= 0) & (value <= largest)

    def message() -> str:
        bad = value[~proper]
        if dtype is not None and largest < bad[0] < math.inf:
            return _overflow(name, bad[0].item(), dtype, "loc.double()")
        subject = f"{name} of shape {tuple(value.shape)}"
        told = f"{subject} must be finite and ≥ 0 (0 is the uniform distribution), but has {_others(bad)}"
        return f"{told}; {way_out}" if (bad < 0).any() else told

    return proper, message


def weights(name: str, value: Tensor) -> tuple[Check, Check]:
    """Check that every entry of ``value`` is finite and ≥ 0, and that one along the first axis is positive."""
    proper, subject = (value >= 0) & torch.isfinite(value), f"{name} of shape {tuple(value.shape)} must"
    return (
        (proper, lambda: f"{subject} be finite and ≥ 0, but has {_others(value[~proper])}"),
        ((value > 0).any(0), lambda: f"{subject} have a positive sum along the first axis: all are zero"),
    )


def between(name: str, value: Tensor, low: float, high: float, *, below: bool = False) -> Check:
    """Check that every entry of ``value`` lies in [low, high], or with ``below`` in [low, high)."""
    value = value.detach()
    inside = (value >= low) & ((value < high) if below else (value <= high))
    end = ")" if below else "]"
    return inside, lambda: f"{name} must lie in [{low:g}, {high:g}{end}, but has {_others(value[~inside], 9)}"


def reachable(name: str, value: Tensor, concentration: Tensor, dim: int, dtype: torch.dtype) -> Check:
    """Check that the concentration computed from ``value`` is finite in ``dtype``."""
    proper = concentration.detach() <= torch.finfo(dtype).max

    def message() -> str:
        worst = value[~proper].max().item()
        way_out = "fewer nats" if dtype == torch.float64 else "loc.double(), or fewer nats"
        return f"{name}={worst:.6g} is too large: no concentration in {dtype} reaches it at d={dim}; use {way_out}"

    return proper, message


def dimension(dim: Any) -> int:
    """Return ``dim`` as an int; raise ``ValueError`` unless it is an integer ≥ 2."""
    whole = isinstance(dim, (int, torch.SymInt)) or (
        hasattr(dim, "__index__") and not isinstance(dim, Tensor)
    )
    if isinstance(dim, bool) or not whole:
        raise ValueError(
            f"dim must be an integer ≥ 2, the ambient dimension d of the sphere in R^d, got {reprlib.repr(dim)}"
        )
    # The compiler must specialise on d, which has its own formulas: operator.index does that, int() does not.
    integer = operator.index(dim)
    if integer < 2:
        raise ValueError(f"dim is the ambient dimension d and must be ≥ 2 (2 is the circle), got {integer}")
    return integer


def broadcast_shape(**shapes: torch.Size) -> torch.Size:
    """Return the broadcast of the named shapes."""
    first, *others = shapes.values()
    if all(shape == first for shape in others):
        return first  # much faster than torch.broadcast_shapes
    try:
        return torch.broadcast_shapes(*shapes.values())
    except RuntimeError:
        listing = " and ".join(f"{name} {tuple(shape)}" for name, shape in shapes.items())
        raise ValueError(f"the batch shapes do not broadcast: {listing}") from None


def paired_shape(vectors_name: str, vectors: Tensor, name: str, value: Tensor) -> torch.Size:
    """Return the batch shape: the broadcast of ``vectors.shape[:-1]`` and ``value.shape``.

    A ``value`` of shape (B, 1) with vectors (B, d) is refused: hardly anybody wants the (B, B) pairs it stands for.
    """
    rows, shape = vectors.shape[:-1], value.shape
    if len(shape) > 1 and shape[-1] == 1 and shape[:-1] == rows and rows.numel() != 1:
        raise ValueError(
            f"{name} of shape {tuple(shape)} has one axis too many for {vectors_name} of shape "
            f"{tuple(vectors.shape)}: use {name}.squeeze(-1) for one value per vector, or {vectors_name}[None] for "
            "every pair"
        )
    return broadcast_shape(**{f"{vectors_name}.shape[:-1]": rows, f"{name}.shape": shape})


def ends_in(name: str, value: Tensor, event_shape: tuple[int, ...], way_out: str = "") -> torch.Size:
    """Return the shape of a floating-point tensor without ``event_shape``; raise unless its shape ends so."""
    shape = floating_tensor(name, value).shape
    axes = len(shape) - len(event_shape)
    if axes < 0 or shape[axes:] != event_shape:
        expected = ", ".join(map(str, ("…", *event_shape)))
        raise ValueError(f"{name} must have the shape ({expected}), got {tuple(shape)}{way_out}")
    return shape[:axes]


def on_sphere(
    name: str, value: Tensor, dim: int, check_values: bool, batch_shape: torch.Size | None = None
) -> Tensor:
    """Check points (…, d): shapes, which must broadcast against ``batch_shape``, and with ``check_values`` norms."""
    # For a small batch each call counts, so we call a check only if it may raise.
    if not isinstance(value, Tensor) or not value.is_floating_point() or value.shape[-1:] != (dim,):
        ends_in(name, value, (dim,))
    if batch_shape is not None and value.shape[:-1] != batch_shape:
        broadcast_shape(**{f"{name}.shape[:-1]": value.shape[:-1], "batch_shape": batch_shape})
    return unit_vectors(name, value) if check_values else value


def noise(
    value: Tensor, batch_shape: torch.Size, event_shape: torch.Size, device: torch.device, check_values: bool
) -> None:
    """Check the argument ``noise`` of ``rsample``: its shape and device and, with ``check_values``, its values."""
    shape = ends_in("noise", value, event_shape, "; use the distribution's noise()")
    rows = f"noise.shape[:{-len(event_shape)}]" if event_shape else "noise.shape"
    broadcast_shape(**{rows: shape, "batch_shape": batch_shape})
    if value.device != device:
        way_out = f"use noise.to({str(device)!r})"
        raise ValueError(f"noise is on {value.device}, but the draws are on {device}: {way_out}")
    if check_values:
        finite = value.detach().isfinite()
        require([(finite, lambda: f"noise must be finite, but has {int((~finite).sum())} other value(s)")])
