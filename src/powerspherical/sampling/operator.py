"""Draws as a pair of torch operators, with their implementations, fake (meta) kernels and vmap rules.

    draw(loc, concentration, shape, seed, dim, family, generator) -> (x, 1-t, 1+t, noise)
    draw_backward(grad, x, loc, 1-t, 1+t, noise, concentration, dim, family, needs_loc, needs_concentration)
        -> (gradient in loc, gradient in concentration)

- ``loc`` (…, d) and ``concentration`` (…) broadcast to ``shape``, the batch shape of the draws. We do not expand them
  first. A kernel can then read a shared direction once, and return the sum of the gradients of its rows.
- ``loc`` and x may have half precision. All arithmetic is then in float32.
- 1-t, 1+t and ``noise`` are the three scalars per row that the backward pass needs. It computes d artanh(t)/dκ from
  them, if the gradient in κ is needed.
- ``family`` is the registered name of a family.
- ``seed`` is a random integer tensor, made by a torch operation. Through it ``vmap`` knows that the operator is random
  even if neither parameter is batched, and the compiler does not merge equal calls.
- The fused CUDA kernels take their random numbers from ``seed``. The native library and the composition of torch
  operations (``_run``) take them from ``generator``. Default: torch's generator for the device.

In plain eager mode we bypass the dispatcher and call the implementation directly, without a seed.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from powerspherical._torch.composites import composite
from powerspherical._torch.constants import untraced
from powerspherical._torch.modes import (
    is_batch_of_gradients,
    is_batching,
    is_in_aot_autograd,
    is_plain,
    is_recording,
    plain_apply,
    unrecorded,
)
from powerspherical._torch.operators import Operator, define_operator, pulled_back, register_derivative
from powerspherical._torch.random import check_generator, compiled_seed, from_generator, standard_gamma
from powerspherical.families import Family, family_named
from powerspherical.sampling import geometry, native
from powerspherical.sampling.precision import unit_vectors_as
from powerspherical.sampling.triton import fused

#: x, 1-t, 1+t and noise.
Draws = tuple[Tensor, Tensor, Tensor, Tensor]


def draw(
    family: Family,
    loc: Tensor,
    concentration: Tensor,
    shape: Sequence[int] | None = None,
    dim: int | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Draw points x of shape ``shape + (d,)`` on the unit sphere. Differentiable once in both parameters.

    Args:
        family: a registered family.
        loc: mean directions μ, unit vectors of shape (…, d). Any floating dtype; x has the same one.
        concentration: κ ≥ 0 of shape (…), float64 if ``loc`` is float64, otherwise float32. NaN gives NaN.
        shape: batch shape of the draws. Default: the broadcast of ``loc.shape[:-1]`` and ``concentration.shape``.
        dim: dimension used for the law of t. Default: d. A caller that needs only t can draw on the circle (d = 2)
            with the law of a higher dimension.
        generator: source of the random numbers. Default: torch's generator for the device.

    Under ``torch.func.vmap`` it behaves like torch's random functions: randomness="different" draws independently for
    each example, "same" shares one draw and raises if a parameter is batched, "error" raises.

    >>> from powerspherical.families import POWER_SPHERICAL
    >>> kappa = torch.tensor([1.0, 10.0])
    >>> draw(POWER_SPHERICAL, torch.eye(3)[0], kappa).shape
    torch.Size([2, 3])
    >>> draw(POWER_SPHERICAL, torch.eye(3)[0], kappa, (5, 2)).shape
    torch.Size([5, 2, 3])
    """
    if generator is not None:
        check_generator(generator, loc.device)
    if shape is None:
        shape = torch.broadcast_shapes(loc.shape[:-1], concentration.shape)
    if dim is None:
        dim = loc.shape[-1]
    if not is_plain(loc, concentration):
        if generator is None:
            return _points(loc, concentration, shape, dim, family.name)
        return _dispatched(loc, concentration, shape, dim, family.name, generator)
    if torch.is_grad_enabled() and (loc.requires_grad or concentration.requires_grad):
        return _plain_draw(loc, concentration, shape, None, dim, family.name, generator)
    return _run(loc, concentration, shape, None, dim, family.name, generator)[0]


def _dispatched(
    loc: Tensor,
    concentration: Tensor,
    shape: Sequence[int],
    dim: int,
    family: str,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Draw x by a call that transforms and tracers see: of the operator, or under ``torch.jit.trace`` of a function."""
    if is_recording():
        rows = concentration.expand(shape)
        return _RecordedDraw.apply(loc, rows, None, None, operator.index(dim), family, generator)
    seed = _seed(loc.device, generator)
    return _draw(loc, concentration, shape, seed, dim, family, generator)[0]


@composite("points", "Tensor loc, Tensor concentration, SymInt[] shape, int dim, str family", "Tensor")
def _points(loc: Tensor, concentration: Tensor, shape: Sequence[int], dim: int, family: str) -> Tensor:
    """``_dispatched``, but ``torch.compile`` on CUDA sees the kernels instead of the operators."""
    if _records_kernels(family, loc, concentration, shape):
        return _PlainDraw.apply(loc, concentration, shape, compiled_seed(loc.device), dim, family, None)
    return _dispatched(loc, concentration, shape, dim, family)


def _records_kernels(family: str, loc: Tensor, concentration: Tensor, shape: Sequence[int]) -> bool:
    """Whether ``torch.compile`` is recording operations, and can launch the fused kernels from its own code."""
    return (
        is_in_aot_autograd()
        and loc.device.type in fused.DEVICES
        and fused.covers(family, loc, concentration, shape)
    )


class _PlainDraw(torch.autograd.Function):
    """A draw in plain eager mode, or by the kernels in compiled code: the implementations of both operators, without
    the dispatcher.

    It returns only x, because for a small batch each further output of an autograd function is expensive.
    """

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        loc, concentration, _, _, ctx.dim, ctx.family, _ = inputs
        x, *scalars = _run(*inputs)
        ctx.save_for_backward(x, loc, *scalars, concentration)
        return x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return pulled_back(ctx, grad, draw_gradients)


class _RecordedDraw(_PlainDraw):
    """A draw under ``torch.jit.trace``, which records one call of this function.

    The operator cannot be recorded with a variable ``shape``. Here the shape is that of the concentration instead.
    """

    @staticmethod
    @unrecorded
    def forward(ctx: Any, loc: Tensor, concentration: Tensor, _: None, *rest: Any) -> Tensor:
        return _PlainDraw.forward(ctx, loc, concentration, concentration.shape, *rest)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        if is_recording():
            raise NotImplementedError(
                "a draw cannot be differentiated inside torch.jit.trace: trace the loss, and differentiate what the "
                "traced function returns"
            )
        return _PlainDraw.backward(ctx, grad)


_plain_draw = plain_apply(_PlainDraw)


def _run(
    loc: Tensor,
    concentration: Tensor,
    shape: Sequence[int],
    seed: Tensor | None,
    dim: int,
    family: str,
    generator: torch.Generator | None = None,
) -> Draws:
    """The implementation of ``draw``: a fused CUDA kernel, the native library, or a composition of torch operations."""
    if not isinstance(shape, torch.Size):
        shape = torch.Size(shape)  # a list, if an operator was called
    if loc.device.type in fused.DEVICES and fused.covers(family, loc, concentration, shape):
        return fused.draw(family, loc, concentration, shape, seed, dim, generator)
    if native.covers(family, loc, concentration):
        return native.draw(family, loc, concentration, shape, dim, generator)
    if loc.is_meta:
        return _fake_forward(loc, concentration, shape)
    # In training, dtypes and shapes usually agree already. For small batches even a view would cost noticeable time.
    unit = loc if loc.dtype == concentration.dtype else unit_vectors_as(loc, concentration.dtype)
    if unit.shape[:-1] != shape:
        unit = unit.expand(*shape, -1)
    if concentration.shape != shape:
        concentration = concentration.expand(shape)
    x, along, squared_length = geometry.tangent_gaussian(unit, generator)
    chi_squared = squared_length
    if dim != loc.shape[-1]:
        chi_squared = standard_gamma(torch.full_like(squared_length, (dim - 1) / 2), generator).mul_(2)
    one_minus_t, one_plus_t, noise = family_named(family).draw_cosine(
        chi_squared, concentration, dim, generator
    )
    geometry.place_(x, along, squared_length, unit, one_minus_t, one_plus_t)
    if x.dtype != loc.dtype:
        x = x.to(loc.dtype)
    return x, one_minus_t.contiguous(), one_plus_t.contiguous(), noise.contiguous()


def _run_backward(
    grad: Tensor,
    x: Tensor,
    loc: Tensor,
    one_minus_t: Tensor,
    one_plus_t: Tensor,
    noise: Tensor,
    concentration: Tensor,
    dim: int,
    family: str,
    needs_loc: bool,
    needs_concentration: bool,
) -> tuple[Tensor, Tensor]:
    """The implementation of ``draw_backward``, with the same choice of code as ``_run``."""
    if loc.is_meta:
        return _fake_backward(grad, x, loc, concentration, dim, family, needs_loc, needs_concentration)
    scalars = one_minus_t, one_plus_t, noise
    if loc.device.type in fused.DEVICES and fused.covers(family, loc, concentration, one_minus_t.shape):
        grad_loc, grad_concentration = fused.pull_back(
            family, grad, x, loc, *scalars, concentration, dim, needs_loc, needs_concentration
        )
    elif native.covers(family, loc, concentration):
        grad_loc, grad_concentration = native.pull_back(
            family, grad, x, loc, *scalars, concentration, dim, needs_loc, needs_concentration
        )
    else:
        slope = None
        if needs_concentration:
            kappa = concentration if concentration.shape == noise.shape else concentration.expand(noise.shape)
            slope = family_named(family).rapidity_slope(*scalars, kappa, dim)
        grad_loc, grad_concentration = geometry.pull_back(
            grad, x, loc, one_minus_t, one_plus_t, slope, needs_loc=needs_loc
        )
    # An operator cannot return None. A gradient that is not needed is an empty tensor.
    if grad_loc is None:
        grad_loc = x.new_empty(0)
    if grad_concentration is None:
        grad_concentration = concentration.new_empty(0)
    elif grad_concentration.shape != concentration.shape:
        grad_concentration = grad_concentration.sum_to_size(concentration.shape)
    return grad_loc, grad_concentration


def draw_gradients(grad: Tensor, *saved: Any) -> tuple[Tensor, Tensor]:
    """Return the gradients of a plain draw in ``loc`` and κ, with the arguments of the operator ``draw_backward``."""
    # The saved tensors are plain. Only the gradient may belong to a transform.
    direct = is_plain(grad) and not is_batch_of_gradients(grad)
    if not direct:
        _, loc, one_minus_t, *_, concentration, _, family, _, _ = saved
        direct = _records_kernels(family, loc, concentration, one_minus_t.shape)
    return (_run_backward if direct and not torch.is_grad_enabled() else _draw_backward)(grad, *saved)


#: The operator ``draw`` without the dispatcher, for autograd functions that contain a draw.
plain_draw = _run


def _seed(device: torch.device, generator: torch.Generator | None) -> Tensor:
    """Return the ``seed`` of a call: random on CUDA, where the kernels use it, and under vmap, which must see it.

    Otherwise it is a counter. The draw then uses the same random numbers as in plain eager mode.
    """
    if device.type == "cpu" and not is_batching():
        return torch.full((), _next_number(), dtype=torch.int64)
    return torch.randint(2**63 - 1, (), device=device, **from_generator(generator))


@untraced
def _next_number() -> int:
    """Return a number that no other call gets. Without it the compiler would merge equal calls."""
    return next(_counter)


_counter = itertools.count()


def _fake_forward(loc: Tensor, concentration: Tensor, shape: Sequence[int], *_: Any) -> Draws:
    scalars = (concentration.new_empty(shape) for _ in range(3))
    return loc.new_empty((*shape, loc.shape[-1])), *scalars  # type: ignore[return-value]


def _fake_backward(grad: Tensor, x: Tensor, loc: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    *_, concentration, _, _, needs_loc, needs_concentration = rest
    return (
        loc.new_empty(loc.shape if needs_loc else 0),
        concentration.new_empty(concentration.shape if needs_concentration else 0),
    )


def _batch_axis_first(tensor: Tensor, axis: int | None, size: int) -> Tensor:
    """Return a view whose first axis is the batch axis. If ``axis`` is None, the examples share the tensor."""
    return tensor.expand(size, *tensor.shape) if axis is None else tensor.movedim(axis, 0)


def _with_axes(tensor: Tensor, dims: int) -> Tensor:
    """Insert axes of size 1 after the batch axis, up to ``dims`` axes, so that the other axes broadcast as before."""
    return tensor.reshape(tensor.shape[0], *[1] * (dims - tensor.dim()), *tensor.shape[1:])


def _batch_forward(
    operator: Operator,
    info: Any,
    dims: tuple[int | None, ...],
    loc: Tensor,
    concentration: Tensor,
    shape: Sequence[int],
    seed: Tensor,
    dim: int,
    family: str,
    generator: torch.Generator | None = None,
) -> tuple[Draws, tuple[int, ...]]:
    if info.randomness != "different":
        # torch's Gamma and Poisson raise as well: with rejection, "the same noise" for two parameters is undefined.
        raise RuntimeError(
            f"a draw from {family} inside vmap with a batched parameter needs randomness='different', "
            f"got randomness='{info.randomness}'"
        )
    if dims[0] is not None:
        loc = _with_axes(loc.movedim(dims[0], 0), len(shape) + 2)
    if dims[1] is not None:
        concentration = _with_axes(concentration.movedim(dims[1], 0), len(shape) + 1)
    one_seed = seed if dims[3] is None else seed.select(dims[3], 0)
    draws = operator(loc, concentration, (info.batch_size, *shape), one_seed, dim, family, generator)
    return draws, (0, 0, 0, 0)


def _batch_backward(
    operator: Operator, info: Any, dims: tuple[int | None, ...], *args: Any
) -> tuple[tuple[Tensor, Tensor], tuple[int | None, int | None]]:
    *tensors, dim, family, needs_loc, needs_concentration = args
    # Every example needs its own gradient, even in a tensor that the examples share. So shared tensors are expanded.
    grad, x, loc, *scalars, concentration = (
        _batch_axis_first(tensor, axis, info.batch_size)
        for tensor, axis in zip(tensors, dims[:-4], strict=True)
    )
    x, *scalars = (tensor.contiguous() for tensor in (x, *scalars))
    loc_shape, concentration_shape = loc.shape, concentration.shape
    loc, concentration = _with_axes(loc, x.dim()), _with_axes(concentration, x.dim() - 1)
    grad_loc, grad_concentration = operator(
        grad, x, loc, *scalars, concentration, dim, family, needs_loc, needs_concentration
    )
    if needs_loc:
        grad_loc = grad_loc.view(loc_shape)
    if needs_concentration:
        grad_concentration = grad_concentration.view(concentration_shape)
    return (grad_loc, grad_concentration), (0 if needs_loc else None, 0 if needs_concentration else None)


_draw = define_operator(
    "draw(Tensor loc, Tensor concentration, SymInt[] shape, Tensor seed, int dim, str family, "
    "Generator? generator=None) -> (Tensor, Tensor, Tensor, Tensor)",
    _run,
    fake=_fake_forward,
    batch=_batch_forward,
    random=True,
)
_draw_backward = define_operator(
    "draw_backward(Tensor grad, Tensor x, Tensor loc, Tensor one_minus_t, Tensor one_plus_t, Tensor noise, "
    "Tensor concentration, int dim, str family, bool needs_loc, bool needs_concentration) -> (Tensor, Tensor)",
    _run_backward,
    fake=_fake_backward,
    batch=_batch_backward,
)
register_derivative(_draw, _draw_backward)
