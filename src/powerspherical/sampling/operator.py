"""A draw as two torch operators: how they run, trace and batch.

    draw(loc, concentration, shape, seed, dim, family, generator) -> (x, 1-t, 1+t, noise)
    draw_backward(grad, x, loc, 1-t, 1+t, noise, concentration, dim, family, needs_loc, needs_concentration)
        -> (gradient in loc, gradient in concentration)

``loc`` (…, d) and ``concentration`` (…) broadcast to ``shape``, the shape of the rows. They are not expanded first: a
kernel can then read a direction that many rows share once, and return their gradients summed. ``loc`` and x may have
half precision; everything between them is float32. The three scalars per row beside x are what the backward pass
needs; d artanh(t)/dκ is computed there, if it is asked for. ``family`` is a registered name.

``seed`` is one integer. Drawn by torch itself it tells ``vmap`` of the randomness inside, which it would otherwise miss
when neither parameter is batched, and it keeps equal calls in a compiled graph apart. The fused kernels for CUDA take
their random numbers from it; the native library for the CPU and the composition below draw from ``generator``, by
default torch's for the device.
In plain eager mode we bypass the dispatcher and call the implementation directly, without a seed.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from powerspherical._torch.constants import untraced
from powerspherical._torch.modes import (
    is_batch_of_gradients,
    is_batching,
    is_plain,
    is_recording,
    unrecorded,
)
from powerspherical._torch.operators import Operator, define_operator, pulled_back, register_derivative
from powerspherical._torch.random import check_generator, from_generator, standard_gamma
from powerspherical.families import Family, family_named
from powerspherical.sampling import geometry
from powerspherical.sampling.native import kernel as native
from powerspherical.sampling.precision import unit_vectors_as
from powerspherical.sampling.triton import fused

Draws = tuple[Tensor, Tensor, Tensor, Tensor]


def draw(
    family: Family,
    loc: Tensor,
    concentration: Tensor,
    shape: Sequence[int] | None = None,
    dim: int | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Points x of a family on the unit sphere, of shape ``shape + (d,)``, differentiable once in both parameters.

    Args:
        family: a registered family.
        loc: mean directions μ, unit vectors of shape (…, d), of any floating dtype, which is that of x too.
        concentration: κ ≥ 0 of shape (…), float64 where ``loc`` is, else float32. NaN gives NaN.
        shape: batch shape of the draws. Default: the broadcast of ``loc.shape[:-1]`` and ``concentration``.
        dim: dimension used for the law of t. Default: d. To see t alone, the circle is enough.
        generator: source of the random numbers. Default: torch's for the device.

    Under ``torch.func.vmap`` it follows torch's own random functions: randomness="different" draws anew for
    each example, "same" shares one draw and is refused where a parameter is batched, "error" raises.
    """
    if generator is not None:
        check_generator(generator, loc.device)
    if shape is None:
        shape = torch.broadcast_shapes(loc.shape[:-1], concentration.shape)
    if dim is None:
        dim = loc.shape[-1]
    if not is_plain(loc, concentration):
        if is_recording():
            rows = concentration.expand(shape)
            return _RecordedDraw.apply(loc, rows, None, None, operator.index(dim), family.name, generator)
        seed = _seed(loc.device, generator)
        return _draw(loc, concentration, shape, seed, dim, family.name, generator)[0]
    if torch.is_grad_enabled() and (loc.requires_grad or concentration.requires_grad):
        return _plain_draw(loc, concentration, shape, None, dim, family.name, generator)
    return _run(loc, concentration, shape, None, dim, family.name, generator)[0]


class _PlainDraw(torch.autograd.Function):
    """A draw in plain eager mode: the implementations of both operators, without the dispatcher.

    It returns x alone, because for a small batch further results take most of the time.
    """

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        loc, concentration, _, _, ctx.dim, ctx.family, _ = inputs
        x, *rows = _run(*inputs)
        ctx.save_for_backward(x, loc, *rows, concentration)
        return x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        # The saved tensors are plain: only the gradient may be transformed.
        plain = not torch.is_grad_enabled() and is_plain(grad) and not is_batch_of_gradients(grad)
        return pulled_back(ctx, grad, _run_backward if plain else _draw_backward)


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


#: ``apply`` without its search for transforms and its inspection of the signature, which take longer than the call.
_plain_draw = super(torch.autograd.Function, _PlainDraw).apply


def _run(
    loc: Tensor,
    concentration: Tensor,
    shape: Sequence[int],
    seed: Tensor | None,
    dim: int,
    family: str,
    generator: torch.Generator | None = None,
) -> Draws:
    if loc.device.type in fused.DEVICES and fused.covers(family, loc, concentration, shape):
        return fused.draw(family, loc, concentration, shape, seed, dim, generator)
    if native.covers(family, loc, concentration):
        return native.draw(family, loc, concentration, shape, dim, generator)
    if loc.is_meta:
        return _fake_forward(loc, concentration, shape)
    # In training dtypes and shapes agree, and even a view would take its time.
    unit = loc if loc.dtype == concentration.dtype else unit_vectors_as(loc, concentration.dtype)
    if unit.shape[:-1] != shape:
        unit = unit.expand(*shape, -1)
    if concentration.shape != shape:
        concentration = concentration.expand(shape)
    x, along, squared_length = geometry.tangent_gaussian(unit, generator)
    free = squared_length
    if dim != loc.shape[-1]:
        free = standard_gamma(torch.full_like(squared_length, (dim - 1) / 2), generator).mul_(2)
    one_minus_t, one_plus_t, noise = family_named(family).draw_cosine(free, concentration, dim, generator)
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
    if loc.is_meta:
        return _fake_backward(grad, x, loc, concentration, dim, family, needs_loc, needs_concentration)
    rows = one_minus_t, one_plus_t, noise
    if loc.device.type in fused.DEVICES and fused.covers(family, loc, concentration, one_minus_t.shape):
        grad_loc, grad_concentration = fused.pull_back(
            family, grad, x, loc, *rows, concentration, dim, needs_loc, needs_concentration
        )
    elif native.covers(family, loc, concentration):
        grad_loc, grad_concentration = native.pull_back(
            family, grad, x, loc, *rows, concentration, dim, needs_loc, needs_concentration
        )
    else:
        slope = None
        if needs_concentration:
            kappa = concentration if concentration.shape == noise.shape else concentration.expand(noise.shape)
            slope = family_named(family).rapidity_slope(*rows, kappa, dim)
        grad_loc, grad_concentration = geometry.pull_back(
            grad, x, loc, one_minus_t, one_plus_t, slope, needs_loc=needs_loc
        )
    # An operator cannot return None: a gradient nobody needs is an empty tensor.
    if grad_loc is None:
        grad_loc = x.new_empty(0)
    if grad_concentration is None:
        grad_concentration = concentration.new_empty(0)
    elif grad_concentration.shape != concentration.shape:
        grad_concentration = grad_concentration.sum_to_size(concentration.shape)
    return grad_loc, grad_concentration


def _seed(device: torch.device, generator: torch.Generator | None) -> Tensor:
    """A random number under vmap and on CUDA, where the kernels use it; otherwise a number that no other call has.

    On the CPU the draw then has the numbers of one in plain eager mode.
    """
    if device.type == "cpu" and not is_batching():
        return torch.full((), _another(), dtype=torch.int64)
    return torch.randint(2**63 - 1, (), device=device, **from_generator(generator))


@untraced
def _another() -> int:
    """A number that no other call has: the compiler makes one of equal calls."""
    return next(_numbers)


_numbers = itertools.count()


def _fake_forward(loc: Tensor, concentration: Tensor, shape: Sequence[int], *_: Any) -> Draws:
    rows = (concentration.new_empty(shape) for _ in range(3))
    return loc.new_empty((*shape, loc.shape[-1])), *rows  # type: ignore[return-value]


def _fake_backward(grad: Tensor, x: Tensor, loc: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    *_, concentration, _, _, needs_loc, needs_concentration = rest
    return (
        loc.new_empty(loc.shape if needs_loc else 0),
        concentration.new_empty(concentration.shape if needs_concentration else 0),
    )


def _leading(tensor: Tensor, dim: int | None, size: int) -> Tensor:
    """With the batch axis in front; a view."""
    return tensor.expand(size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)


def _aligned(tensor: Tensor, dims: int) -> Tensor:
    """With axes of size one after the first one, so that the others keep their places in a shape of ``dims`` axes."""
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
        # What torch's own Gamma and Poisson do: with rejection inside, "the same noise" has no meaning.
        raise RuntimeError(
            f"a draw from {family} inside vmap with a batched parameter needs randomness='different', "
            f"got randomness='{info.randomness}'"
        )
    if dims[0] is not None:
        loc = _aligned(loc.movedim(dims[0], 0), len(shape) + 2)
    if dims[1] is not None:
        concentration = _aligned(concentration.movedim(dims[1], 0), len(shape) + 1)
    one_seed = seed if dims[3] is None else seed.select(dims[3], 0)
    draws = operator(loc, concentration, (info.batch_size, *shape), one_seed, dim, family, generator)
    return draws, (0, 0, 0, 0)


def _batch_backward(
    operator: Operator, info: Any, dims: tuple[int | None, ...], *args: Any
) -> tuple[tuple[Tensor, Tensor], tuple[int | None, int | None]]:
    *tensors, dim, family, needs_loc, needs_concentration = args
    batched = [
        _leading(tensor, axis, info.batch_size) for tensor, axis in zip(tensors, dims[:-4], strict=True)
    ]
    # Each example has a gradient of its own, also in what they share: each gets its own copy, a view.
    grad, x, loc, *rows, concentration = batched
    x, *rows = (tensor.contiguous() for tensor in (x, *rows))
    sizes = loc.shape, concentration.shape
    loc, concentration = _aligned(loc, x.dim()), _aligned(concentration, x.dim() - 1)
    grad_loc, grad_concentration = operator(
        grad, x, loc, *rows, concentration, dim, family, needs_loc, needs_concentration
    )
    if needs_loc:
        grad_loc = grad_loc.view(sizes[0])
    if needs_concentration:
        grad_concentration = grad_concentration.view(sizes[1])
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
