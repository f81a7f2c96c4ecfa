"""Draws as a pair of torch operators, with their implementations, fake (meta) kernels and vmap rules.

    draw(loc, concentration, shape, seed, number, dim, family, generator) -> (x, scalars)
    draw_backward(grad, x, loc, scalars, concentration, dim, family, needs_loc, needs_concentration)
        -> (gradient in loc, gradient in concentration)

- ``loc`` (…, d) and ``concentration`` (…) broadcast to ``shape``, the batch shape of the draws. We do not expand them
  first. A kernel can then read a shared direction once, and return the sum of the gradients of its rows.
- ``loc`` and x may have half precision. All arithmetic is then in float32.
- ``scalars``, of shape (3, *shape), holds 1-t, 1+t and the family's noise of each row, for the backward pass. It is one
  tensor because each tensor costs host time. The operator always returns it. In plain eager mode it is computed only if
  gradients are needed.
- ``family`` is the registered name of a family.
- ``generator`` is the source of random numbers. Default: torch's generator for the device.
- ``seed`` is a random integer tensor under ``vmap``, otherwise None. Through it ``vmap`` knows that the operator is
  random even if neither parameter is batched.
- ``number`` differs from call to call. So the compiler does not merge equal calls.

In plain eager mode we bypass the dispatcher and call the implementation directly.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from powerspherical._torch.composites import composite
from powerspherical._torch.constants import untraced
from powerspherical._torch.modes import (
    is_batching,
    is_plain,
    is_plain_backward,
    plain_apply,
)
from powerspherical._torch.operators import Operator, define_operator, register_derivative
from powerspherical._torch.random import check_generator, from_generator, standard_gamma
from powerspherical.families import Family, family_named
from powerspherical.quadrature.cosine import Cosine
from powerspherical.sampling import geometry, native
from powerspherical.sampling.precision import unit_vectors_as
from powerspherical.sampling.triton import fused

#: x, and the scalars 1-t, 1+t and noise of each row, or None if they are not needed.
Draws = tuple[Tensor, Tensor | None]


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
        return _plain_draw(loc, concentration, (shape, dim, family.name, generator))
    return run_draw(loc, concentration, shape, dim, family.name, generator, needs_scalars=False)[0]


def _dispatched(
    loc: Tensor,
    concentration: Tensor,
    shape: Sequence[int],
    dim: int,
    family: str,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Draw x by a call of the operator, which transforms and tracers see."""
    if torch.jit.is_tracing():  # type: ignore[attr-defined]
        raise NotImplementedError("torch.jit.trace cannot record a draw: use torch.compile or torch.export")
    seed = None
    if is_batching():
        seed = torch.randint(2**63 - 1, (), device=loc.device, **from_generator(generator))
    return _draw(loc, concentration, shape, seed, next_number(), dim, family, generator)[0]


#: ``_dispatched``, which ``torch.compile`` records as one operator instead of tracing its Python code.
_points = composite(
    "points", "Tensor loc, Tensor concentration, SymInt[] shape, int dim, str family", "Tensor"
)(_dispatched)


@untraced
def next_number() -> int:
    """Return a new number. As an argument it makes two calls of a random operator differ.

    Otherwise the compiler would merge them: it has a fixed list of torch's random operators, and ignores our tag.
    """
    return next(_counter)


_counter = itertools.count()


class _PlainDraw(torch.autograd.Function):
    """A draw in plain eager mode: the implementations of both operators, without the dispatcher.

    It returns only x, because for a small batch each further output of an autograd function is expensive.
    """

    @staticmethod
    def forward(ctx: Any, loc: Tensor, concentration: Tensor, options: tuple[Any, ...]) -> Tensor:
        x, scalars = run_draw(loc, concentration, *options)
        _, ctx.dim, ctx.family, _ = options
        ctx.save_for_backward(x, loc, scalars, concentration)
        return x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        needs_loc, needs_concentration, _ = ctx.needs_input_grad
        grad_loc, grad_concentration = draw_gradients(
            grad, *ctx.saved_tensors, ctx.dim, ctx.family, needs_loc, needs_concentration
        )
        return grad_loc if needs_loc else None, grad_concentration if needs_concentration else None, None


_plain_draw = plain_apply(_PlainDraw)


def run_draw(
    loc: Tensor,
    concentration: Tensor,
    shape: Sequence[int],
    dim: int,
    family: str,
    generator: torch.Generator | None = None,
    *,
    needs_scalars: bool = True,
) -> Draws:
    """The implementation of ``draw``: a fused CUDA kernel, the native library, or a composition of torch operations."""
    if not isinstance(shape, torch.Size):
        shape = torch.Size(shape)  # a list, if an operator was called
    if native.covers(family, loc, concentration):
        return native.draw(family, loc, concentration, shape, dim, generator, needs_scalars)
    if fused.covers(family, loc, concentration, shape):
        return fused.draw(family, loc, concentration, shape, dim, generator, needs_scalars)
    if loc.is_meta:
        return _fake_forward(loc, concentration, shape)
    unit = unit_vectors_as(loc, concentration.dtype)
    if unit.shape[:-1] != shape:
        unit = unit.expand(*shape, -1)
    if concentration.shape != shape:
        concentration = concentration.expand(shape)
    x, along, squared_length = geometry.tangent_gaussian(unit, generator)
    chi_squared = squared_length
    if dim != loc.shape[-1]:
        chi_squared = standard_gamma(torch.full_like(squared_length, (dim - 1) / 2), generator).mul_(2)
    t, noise = family_named(family).draw_cosine(chi_squared, concentration, dim, generator)
    geometry.place_(x, along, squared_length, unit, *t)
    return x.to(loc.dtype), torch.stack((*t, noise)) if needs_scalars else None


def _run_backward(
    grad: Tensor,
    x: Tensor,
    loc: Tensor,
    scalars: Tensor,
    concentration: Tensor,
    dim: int,
    family: str,
    needs_loc: bool,
    needs_concentration: bool,
) -> tuple[Tensor, Tensor]:
    """The implementation of ``draw_backward``, with the same choice of code as ``run_draw``."""
    needs = needs_loc, needs_concentration
    if native.covers(family, loc, concentration):
        gradients = native.pull_back(family, grad, x, loc, scalars, concentration, dim, *needs)
    elif fused.covers(family, loc, concentration, x.shape):
        gradients = fused.pull_back(family, grad, x, loc, scalars, concentration, dim, *needs)
    elif loc.is_meta:
        return _fake_backward(grad, x, loc, concentration, dim, family, *needs)
    else:
        minus, plus, noise = scalars
        slope = None
        if needs_concentration:
            kappa = concentration.expand(noise.shape)
            slope = family_named(family).slope(Cosine(minus, plus), noise, kappa, dim)
        gradients = geometry.pull_back(grad, x, loc, minus, plus, slope, needs_loc=needs_loc)
    # An operator cannot return None. A gradient that is not needed is an empty tensor.
    grad_loc, grad_concentration = gradients
    if grad_loc is None:
        grad_loc = x.new_empty(0)
    if grad_concentration is None:
        grad_concentration = concentration.new_empty(0)
    elif grad_concentration.shape != concentration.shape:
        grad_concentration = grad_concentration.sum_to_size(concentration.shape)
    return grad_loc, grad_concentration


def draw_gradients(grad: Tensor, *saved: Any) -> tuple[Tensor, Tensor]:
    """Return the gradients of a plain draw in ``loc`` and κ, with the arguments of the operator ``draw_backward``."""
    # The saved tensors are plain. Only the gradient may belong to a transform, or be differentiated itself.
    if is_plain_backward(grad):
        return _run_backward(grad, *saved)
    return _draw_backward(grad, *saved)


def _fake_forward(loc: Tensor, concentration: Tensor, shape: Sequence[int], *_: Any) -> Draws:
    return loc.new_empty((*shape, loc.shape[-1])), concentration.new_empty((3, *shape))


def _fake_backward(grad: Tensor, x: Tensor, loc: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    *_, concentration, _, _, needs_loc, needs_concentration = rest
    return (
        loc.new_empty(loc.shape if needs_loc else 0),
        concentration.new_empty(concentration.shape if needs_concentration else 0),
    )


def _with_batch_axis(tensor: Tensor, axis: int | None, size: int, place: int = 0) -> Tensor:
    """Return a view with the batch axis at ``place``. If ``axis`` is None, the examples share the tensor."""
    if axis is not None:
        return tensor.movedim(axis, place)
    return tensor.unsqueeze(place).expand(*tensor.shape[:place], size, *tensor.shape[place:])


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
    seed: Tensor | None,
    number: int,
    dim: int,
    family: str,
    generator: torch.Generator | None = None,
) -> tuple[Draws, tuple[int, int]]:
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
    one_seed = seed if seed is None or dims[3] is None else seed.select(dims[3], 0)
    draws = operator(loc, concentration, (info.batch_size, *shape), one_seed, number, dim, family, generator)
    return draws, (0, 1)


def _batch_backward(
    operator: Operator, info: Any, dims: tuple[int | None, ...], *args: Any
) -> tuple[tuple[Tensor, Tensor], tuple[int | None, int | None]]:
    *tensors, dim, family, needs_loc, needs_concentration = args
    # Every example needs its own gradient, even in a tensor that the examples share. So shared tensors are expanded.
    grad, x, loc, scalars, concentration = (
        _with_batch_axis(tensor, axis, info.batch_size, place)
        for tensor, axis, place in zip(tensors, dims[:5], (0, 0, 0, 1, 0), strict=True)
    )
    x, scalars = x.contiguous(), scalars.contiguous()
    loc_shape, concentration_shape = loc.shape, concentration.shape
    loc, concentration = _with_axes(loc, x.dim()), _with_axes(concentration, x.dim() - 1)
    grad_loc, grad_concentration = operator(
        grad, x, loc, scalars, concentration, dim, family, needs_loc, needs_concentration
    )
    if needs_loc:
        grad_loc = grad_loc.view(loc_shape)
    if needs_concentration:
        grad_concentration = grad_concentration.view(concentration_shape)
    return (grad_loc, grad_concentration), (0 if needs_loc else None, 0 if needs_concentration else None)


def _run_operator(
    loc: Tensor,
    concentration: Tensor,
    shape: Sequence[int],
    _seed: Any,
    _number: int,
    *law: Any,
    **options: Any,
) -> Draws:
    """The implementation of the operator. The seed is for vmap and the number for the compiler, so it ignores them."""
    return run_draw(loc, concentration, shape, *law, **options)


_draw = define_operator(
    "draw(Tensor loc, Tensor concentration, SymInt[] shape, Tensor? seed, int number, int dim, str family, "
    "Generator? generator=None) -> (Tensor, Tensor)",
    _run_operator,
    fake=_fake_forward,
    batch=_batch_forward,
    random=True,
)
_draw_backward = define_operator(
    "draw_backward(Tensor grad, Tensor x, Tensor loc, Tensor scalars, Tensor concentration, int dim, str family, "
    "bool needs_loc, bool needs_concentration) -> (Tensor, Tensor)",
    _run_backward,
    fake=_fake_backward,
    batch=_batch_backward,
)
register_derivative(_draw, _draw_backward)
