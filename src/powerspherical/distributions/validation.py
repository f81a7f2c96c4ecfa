"""Checks of arguments: shapes always, values where they can be looked at.

Looking at a value takes a synchronisation on CUDA and is impossible while a graph is traced or captured or a
function batched, so all value checks of a call are gathered into one flag that is read once.
"""

from __future__ import annotations

import numbers
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution

from powerspherical.distributions.constraints import norm_error, norm_tolerance

#: A condition that must hold everywhere, and the message if it does not.
Check = tuple[Tensor, Callable[[], str]]


def wanted(validate_args: bool | None) -> bool:
    """The effect of ``validate_args``: ``None`` follows torch's global default."""
    return Distribution._validate_args if validate_args is None else validate_args


def can_look() -> bool:
    """Whether tensor values can be inspected here and now."""
    if torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack():
        return False  # traced, or under a mode such as FakeTensorMode
    if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
        return False
    vmap = torch._C._functorch.TransformType.Vmap
    stack = torch._C._functorch.get_interpreter_stack() or []
    return all(layer.key() != vmap for layer in stack)


def require(checks: Sequence[Check]) -> None:
    """Raise the message of the first check that fails, after one look at all of them together."""
    if not can_look() or any(condition.is_meta for condition, _ in checks):
        return
    flags = [condition.all() for condition, _ in checks]
    if torch.stack(flags).all():
        return
    for flag, (_, message) in zip(flags, checks, strict=True):
        if not flag:
            raise ValueError(message())


def floating_tensor(name: str, value: object, hint: str = "") -> Tensor:
    """``value`` if it is a floating-point tensor."""
    if not isinstance(value, Tensor):
        raise ValueError(f"{name} must be a torch.Tensor{hint}, got {type(value).__name__}: {value!r}")
    if not value.is_floating_point():
        raise ValueError(f"{name} must have a floating-point dtype, got {value.dtype}: use {name}.float()")
    return value


def vectors(name: str, value: object) -> int:
    """The last dimension d of a floating-point tensor of shape (…, d), d ≥ 2."""
    tensor = floating_tensor(name, value)
    if tensor.dim() < 1 or tensor.shape[-1] < 2:
        shape = f"the shape {tuple(tensor.shape)}" if tensor.dim() else "a scalar"
        raise ValueError(
            f"{name} must hold vectors, of shape (…, d) with d ≥ 2 (2 is the circle), got {shape}"
        )
    return dimension(tensor.shape[-1])


def number_or_tensor(
    name: str, value: object, dtype: torch.dtype | None = None, device: torch.device | None = None
) -> Tensor:
    """A floating-point tensor as it is; a number as a tensor of the given kind, or torch's default."""
    if not isinstance(value, Tensor) and isinstance(value, numbers.Real):
        # on CUDA a fill, not a copy that waits
        return torch.full((), float(value), dtype=dtype, device=device)
    return floating_tensor(name, value, " or a number")


def unit(name: str, value: Tensor, slack: float = 1.0) -> Check:
    """Every row of ``value`` has length one, to the rounding of the dtype it arrived in."""
    tolerance = slack * norm_tolerance(value.dtype, value.shape[-1])
    error = norm_error(value.detach())

    def message() -> str:
        if torch.isnan(error).any():
            return f"{name} of shape {tuple(value.shape)} has NaN entries in {int(torch.isnan(error).sum())} row(s)"
        exact = value.detach() if value.dtype == torch.float64 else value.detach().float()
        norms = torch.linalg.vector_norm(exact, dim=-1)
        worst = norms.flatten()[error.argmax()].item()
        cause = ""
        half = norm_tolerance(torch.bfloat16, value.shape[-1])
        if value.dtype == torch.float32 and 20 * tolerance < abs(worst - 1) <= half:
            cause = " (was it rounded to half precision on the way? Normalise after the conversion)"
        return (
            f"{name} of shape {tuple(value.shape)} must hold unit vectors along its last dimension: the worst norm is "
            f"{worst:.9g}, more than {tolerance:.1e} from 1{cause}; use torch.nn.functional.normalize({name}, dim=-1)"
        )

    return error <= tolerance, message


def non_negative(
    name: str,
    value: Tensor,
    way_out: str = "a network's output can be mapped there by torch.nn.functional.softplus",
) -> Check:
    """Every entry of ``value`` is a finite number ≥ 0; the ``way_out`` is for negative ones."""
    value = value.detach()

    def message() -> str:
        bad = value[~((value >= 0) & torch.isfinite(value))].flatten()
        told = (
            f"{name} of shape {tuple(value.shape)} must be finite and ≥ 0 (0 is the uniform distribution), but has "
            f"{bad.numel()} other value(s), such as {bad[0].item():.6g}"
        )
        return f"{told}; {way_out}" if (bad < 0).any() else told

    return (value >= 0) & torch.isfinite(value), message


def weights(name: str, value: Tensor) -> Check:
    """Every entry of ``value`` is a finite number ≥ 0, and along the first axis one at least is positive."""
    proper = (value >= 0) & torch.isfinite(value)

    def message() -> str:
        bad = value[~proper]
        if bad.numel():
            return (
                f"{name} of shape {tuple(value.shape)} must be finite and ≥ 0, but has {bad.numel()} other value(s), "
                f"such as {bad[0].item():.6g}"
            )
        return f"{name} of shape {tuple(value.shape)} must have a positive sum along the first axis: all are zero"

    return proper & (value > 0).any(0), message


def between(name: str, value: Tensor, low: float, high: float, *, below: bool = False) -> Check:
    """Every entry of ``value`` lies in [low, high], or in [low, high)."""
    value = value.detach()
    inside = (value >= low) & ((value < high) if below else (value <= high))

    def message() -> str:
        bad = value[~inside].flatten()
        example = f"{bad.numel()} other value(s), such as {bad[0].item():.6g}"
        return f"{name} must lie in [{low:g}, {high:g}{')' if below else ']'}, but has {example}"

    return inside, message


def reachable(name: str, value: Tensor, concentration: Tensor, dim: int) -> Check:
    """The concentration that was computed from ``value`` is a finite number."""

    def message() -> str:
        worst = value[~torch.isfinite(concentration)].max().item()
        dtype = concentration.dtype
        return f"{name} up to {worst:.6g} at d = {dim} needs a concentration beyond the range of {dtype}: give less"

    return torch.isfinite(concentration), message


def dimension(dim: Any) -> int:
    """``dim`` as an integer ≥ 2."""
    whole = isinstance(dim, (int, torch.SymInt)) or (
        hasattr(dim, "__index__") and not isinstance(dim, Tensor)
    )
    if isinstance(dim, bool) or not whole:
        raise ValueError(
            f"dim must be an integer ≥ 2, the ambient dimension d of the sphere in R^d, got {dim!r}"
        )
    # All formulas are built for one d: this makes the compiler specialise on it, where int() would not.
    integer = operator.index(dim)
    if integer < 2:
        raise ValueError(f"dim is the ambient dimension d and must be ≥ 2 (2 is the circle), got {integer}")
    return integer


def broadcast_shape(**shapes: torch.Size) -> torch.Size:
    """The common shape of named arguments."""
    first, *others = shapes.values()
    if all(shape == first for shape in others):
        return first  # what torch says too, but not at once
    try:
        return torch.broadcast_shapes(*shapes.values())
    except RuntimeError:
        listing = " and ".join(f"{name} {tuple(shape)}" for name, shape in shapes.items())
        raise ValueError(f"the batch shapes do not broadcast: {listing}") from None


def on_sphere(value: Tensor, dim: int, batch_shape: torch.Size, look: bool) -> None:
    """``value`` can be scored by a distribution on the unit sphere of R^dim."""
    floating_tensor("value", value)
    if value.dim() < 1 or value.shape[-1] != dim:
        raise ValueError(f"value must have the shape (…, {dim}), got {tuple(value.shape)}")
    broadcast_shape(**{"value.shape[:-1]": value.shape[:-1], "batch_shape": batch_shape})
    if look:
        # A draw adds its own rounding to that of ``loc``.
        require([unit("value", value, slack=2.0)])
