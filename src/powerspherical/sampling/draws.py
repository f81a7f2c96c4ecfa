"""Differentiable draws, in every mode of torch.

- In plain eager mode, a draw is one autograd function around a kernel, or around ``composition``.
- In compiled code and under dispatch modes, it is the same function around two operators without derivatives, ``draw``
  and ``draw_backward``.
- Under transforms of ``torch.func`` and forward-mode AD, the first operator draws the values. ``_expression`` then
  writes x as a linear function of small changes of the parameters, and torch differentiates that.

We do not expand the parameters to the batch shape of the draws: a kernel reads a shared direction once, and returns the
sum of the gradients of its rows. ``scalars``, of shape (3, *shape), holds 1-t, 1+t and the family's noise of each row.
With ``with_slope`` a fourth one is d artanh(t)/dκ. ``seed`` is a random tensor under ``vmap``: through it ``vmap``
knows that the operator is random even if neither parameter is batched.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from powerspherical._torch.derivatives import Differentiable
from powerspherical._torch.modes import is_transformed
from powerspherical._torch.operators import composite, define_operator
from powerspherical._torch.private import is_batching, untraced
from powerspherical._torch.random import check_generator, from_generator
from powerspherical._torch.vectors import computing, unit_vectors_as
from powerspherical.families import SPHERICAL_CAUCHY, Family, family_named
from powerspherical.kernels.dispatch import by_kernel, find, is_plain
from powerspherical.kernels.registry import Gradients, Kernel, Table, Tensors
from powerspherical.quadrature import law
from powerspherical.sampling import composition
from powerspherical.special.curves import kernel_tables


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
    each example, "same" shares one draw and raises if a parameter is batched, "error" raises. A second derivative
    raises. Only where a transform runs inside ``torch.compile``, it is NaN or infinite instead.

    >>> from powerspherical.families import POWER_SPHERICAL
    >>> draw(POWER_SPHERICAL, torch.eye(3)[0], torch.tensor([1.0, 10.0]), (5, 2)).shape
    torch.Size([5, 2, 3])
    """
    if loc.dtype is torch.float64 and concentration.dtype is not torch.float64:
        raise ValueError(
            f"concentration must be float64, like loc, got {concentration.dtype}: use concentration.double()"
        )
    if generator is not None:
        check_generator(generator, loc.device)
    if shape is None:
        shape = torch.broadcast_shapes(loc.shape[:-1], concentration.shape)
    name, width = family.name, loc.shape[-1]
    dim = width if dim is None else dim
    kernel = find("draw", loc, concentration, dim=width, family=name)
    if kernel is None and is_plain(loc, concentration) and not loc.is_meta:
        kernel = _OPERATIONS
    transformed = kernel is None and is_transformed()
    if kernel is None and not transformed and generator is not None:
        kernel = _OPERATORS
    if kernel is not None:
        options = name, dim, torch.Size(shape), generator, _quadrature
        x = by_kernel(kernel, functools.partial(redrawn, family, dim), options, loc, concentration)
        return x
    if transformed:
        seed = None
        if is_batching():
            seed = torch.randint(2**63 - 1, (), device=loc.device, **from_generator(generator))
        values = loc.detach(), concentration.detach()
        x, scalars = _draw(*values, shape, True, next_number(), dim, name, seed, generator)
        return _expression(loc, concentration, x, scalars)
    return _points(loc, concentration, shape, dim, name)


def uniform(
    shape: tuple[int, ...],
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Draw uniform unit vectors.

    Args:
        shape: (…, d), d ≥ 2.
        dtype, device: of the result. Default: torch's.
        generator: source of the random numbers. Default: torch's generator for the device.

    >>> x = uniform((1000, 3))
    >>> x.shape, x.norm(dim=-1).allclose(torch.ones(1000))
    (torch.Size([1000, 3]), True)
    """
    *batch, dim = shape
    if dim < 2:
        raise ValueError(f"shape must be (…, d) with d ≥ 2 (2 is the circle), got {tuple(shape)}")
    # Made on the device: a copy from the host would be a synchronisation.
    pole = torch.eye(1, dim, dtype=dtype, device=device)[0]
    # The uniform is the member κ = 0 of every family. This one draws it fastest.
    kappa = torch.zeros((), dtype=computing(pole.dtype), device=pole.device)
    return draw(SPHERICAL_CAUCHY, pole, kappa, batch, generator=generator)


@composite("points", "Tensor loc, Tensor concentration, SymInt[] shape, int dim, str family", "Tensor")
def _points(loc: Tensor, concentration: Tensor, shape: Sequence[int], dim: int, family: str) -> Tensor:
    """Draw by the operators. ``torch.compile`` records this as one operator: its code would get many guards."""
    compose = functools.partial(redrawn, family_named(family), dim)
    x: Tensor = by_kernel(_OPERATORS, compose, (family, dim, shape, None), loc, concentration)
    return x


_ONCE = (
    "a draw is differentiable once, its second derivative is not implemented. Leave out the second "
    "differentiation (create_graph=True, nested torch.func transforms), or differentiate a closed form "
    "(log_prob, entropy, kl_divergence) at a detached sample."
)


@untraced
def next_number() -> int:
    """Return a new number. As an argument it makes two calls of a random operator differ.

    Otherwise the compiler would merge them: it has a fixed list of torch's random operators, and ignores our tag.
    """
    return next(_counter)


_counter = itertools.count()


def redrawn(family: Family, dim: int, loc: Tensor, kappa: Tensor, x: Tensor, scalars: Tensor) -> Tensor:
    """Return the points x of an earlier draw with these ``scalars``, as a function of the parameters."""
    scalars = _with_slopes(scalars.detach(), kappa.detach(), dim, family.name)
    return _expression(loc, kappa, x.detach(), scalars)


def _expression(loc: Tensor, concentration: Tensor, x: Tensor, scalars: Tensor) -> Tensor:
    """Return x as a function of the parameters with the right first derivatives: x + (∂x/∂μ) dμ + (∂x/∂κ) dκ.

    dμ = μ - μ̄ and dκ = κ - κ̄, with the detached μ̄ and κ̄, are zero. ``composition`` has the formulas. A second
    derivative would be wrong. ``Differentiable`` refuses it. The compiler ignores a custom derivative under a
    transform, so there the term (Σdμ + dκ)^1.5 makes the second derivative infinite and changes nothing else.
    """
    mean, kappa, dtype = loc.detach(), concentration.detach(), scalars.dtype
    unit, point = unit_vectors_as(mean, dtype), x.to(dtype)
    minus, plus, _, slope = scalars.unsqueeze(-1)
    t = 0.5 * (plus - minus)
    change = loc.to(dtype) - mean.to(dtype)
    if mean.dtype != dtype:
        # The change of the normalised vectors, up to a part along μ, which changes nothing.
        change = change / torch.linalg.vector_norm(mean.to(dtype), dim=-1, keepdim=True)
    rise = (concentration - kappa).unsqueeze(-1)
    # An error of x - tμ along μ would be a bias at large κ, where 1-t² ~ 1/κ.
    across = point - t * unit
    across = across - (across * unit).sum(-1, keepdim=True) * unit
    in_kappa = slope * (minus * plus * unit - t * across)
    result = point + t * change - (point * change).sum(-1, keepdim=True) * unit + in_kappa * rise
    if not torch.compiler.is_compiling():
        return Differentiable.apply(result.to(x.dtype), 1, _ONCE, loc, concentration)
    return (result + (change.sum(-1, keepdim=True) + rise) ** 1.5).to(x.dtype)


def _with_slopes(scalars: Tensor, kappa: Tensor, dim: int, family: str, *, allowed: bool = False) -> Tensor:
    """Append d artanh(t)/dκ of each row to the scalars."""
    kernel = find("slopes", scalars, kappa, dim=dim, family=family, allowed=allowed)
    if kernel is None or not scalars.numel():
        slope = composition.slopes(family, scalars, kappa, dim)
    else:
        slope = kernel.run(family, scalars, kappa, dim, _quadrature)
    return torch.cat((scalars, slope.unsqueeze(0)))


@functools.lru_cache(256)
def _quadrature(family: str, dim: int) -> tuple[Table, Tensor] | None:
    """Return what slopes in float64 need: the table of -E T, and the rule of a ray; None for closed forms."""
    if dim == 3 or family == SPHERICAL_CAUCHY.name:
        return None
    like = torch.empty((), dtype=torch.float64, device="cpu")
    return kernel_tables(family, "score_loss", dim, 0, like.dtype, like.device)[0], law.rule(like)


def _implementation(loc: Tensor, concentration: Tensor, family: str) -> Kernel:
    """Return the kernel that operators call, or torch operations."""
    return find("draw", concentration, dim=loc.shape[-1], family=family, allowed=True) or _OPERATIONS


def _operator_draw(
    loc: Tensor, concentration: Tensor, shape: Sequence[int], with_slope: bool, *rest: Any
) -> tuple[Tensor, Tensor]:
    """The implementation of ``draw``. The seed is for vmap and the number for the compiler."""
    _, dim, family, _, generator = rest
    options = family, dim, torch.Size(shape), generator, _quadrature
    kernel = _implementation(loc, concentration, family)
    x, (_, scalars) = kernel.run((loc, concentration), options, (True, True))
    return x, _with_slopes(scalars, concentration, dim, family, allowed=True) if with_slope else scalars


def _batched_draw(info: Any, dims: Sequence[int | None], *arguments: Any) -> tuple[Tensors, tuple[int, int]]:
    """The vmap rule of ``draw``."""
    loc, concentration, shape, *others, family, seed, generator = arguments
    if info.randomness != "different":
        # torch's Gamma and Poisson raise as well: with rejection, "the same noise" for two parameters is undefined.
        raise RuntimeError(
            f"a draw from {family} inside vmap with a batched parameter needs randomness='different', "
            f"got randomness='{info.randomness}'"
        )

    def with_batch_first(tensor: Tensor, axis: int | None, axes: int) -> Tensor:
        """Axes of size 1 after the batch axis, so that the other ``axes`` broadcast as before."""
        if axis is None:
            return tensor
        tensor = tensor.movedim(axis, 0)
        return tensor.reshape(tensor.shape[0], *[1] * (axes + 1 - tensor.dim()), *tensor.shape[1:])

    loc = with_batch_first(loc, dims[0], len(shape) + 1)
    concentration = with_batch_first(concentration, dims[1], len(shape))
    seed = seed if dims[-2] is None else seed.select(dims[-2], 0)
    return _draw(loc, concentration, (info.batch_size, *shape), *others, family, seed, generator), (0, 1)


_draw = define_operator(
    "draw(Tensor loc, Tensor concentration, SymInt[] shape, bool with_slope, int number, int dim, str family, "
    "Tensor? seed, Generator? generator) -> (Tensor, Tensor)",
    _operator_draw,
    fake=lambda loc, concentration, shape, with_slope, *_: (
        loc.new_empty((*shape, loc.shape[-1])),
        concentration.new_empty((3 + with_slope, *shape)),
    ),
    batch=_batched_draw,
    random=True,
)


def _operator_backward(grad: Tensor, x: Tensor, loc: Tensor, scalars: Tensor, *rest: Any) -> Tensors:
    """The implementation of ``draw_backward``. An operator cannot return None, but an empty tensor."""
    concentration, dim, family, *needed = rest
    options = family, dim, scalars.shape[1:], None, _quadrature
    kernel = _implementation(loc, concentration, family)
    assert kernel.gradients is not None
    found = kernel.gradients((grad,), needed, (loc, concentration), (x, scalars), options)
    pairs = zip(found, (loc, concentration), strict=True)
    return tuple(like.new_empty(0) if gradient is None else gradient for gradient, like in pairs)


def _fake_backward(grad: Tensor, x: Tensor, loc: Tensor, scalars: Tensor, *rest: Any) -> Tensors:
    kappa, *_, needs_loc, needs_kappa = rest
    return loc.new_empty(loc.shape if needs_loc else 0), kappa.new_empty(kappa.shape if needs_kappa else 0)


_draw_backward = define_operator(
    "draw_backward(Tensor grad, Tensor x, Tensor loc, Tensor scalars, Tensor concentration, int dim, str family, "
    "bool needs_loc, bool needs_concentration) -> (Tensor, Tensor)",
    _operator_backward,
    fake=_fake_backward,
)


def _draw_by_operator(tensors: Tensors, options: Any, needed: Sequence[bool]) -> tuple[Tensor, Tensors]:
    family, dim, shape, generator, *_ = options
    x, scalars = _draw(*tensors, shape, False, next_number(), dim, family, None, generator)
    return x, (x, scalars)


def _gradients_by_operator(
    grads: Gradients, needed: Sequence[bool], tensors: Tensors, kept: Tensors, options: Any
) -> Gradients:
    (grad,), (loc, concentration), (x, scalars), (family, dim, *_) = grads, tensors, kept, options
    found = _draw_backward(grad, x, loc, scalars, concentration, dim, family, *needed)
    return tuple(one if needs else None for one, needs in zip(found, needed, strict=True))


#: What computes draws where there is no kernel: torch operations, or in compiled code the operators.
_OPERATIONS = Kernel(composition.draw, composition.draw_gradients)
_OPERATORS = Kernel(_draw_by_operator, _gradients_by_operator, operators=True)
