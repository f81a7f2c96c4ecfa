"""Differentiable draws, in every mode of torch.

- In plain eager mode, a draw is one autograd function around kernels: ``_Draw``.
- In compiled code and under dispatch modes, the same function calls two operators without derivatives:

      draw(loc, concentration, shape, number, dim, family, generator) -> (x, scalars)
      draw_backward(grad, x, loc, scalars, concentration, dim, family, needs_loc, needs_concentration)
          -> (gradient in loc, gradient in concentration)

- Transforms of ``torch.func`` and forward-mode AD find the derivatives of ``_expression``, which is linear in small
  changes of the parameters. Its values come from a third operator:

      draw_with_slope(loc, concentration, shape, seed, number, dim, family, generator) -> (x, scalars, slope)

``loc`` (…, d) and ``concentration`` (…) broadcast to ``shape``, the batch shape of the draws. We do not expand them
first: a kernel reads a shared direction once, and returns the sum of the gradients of its rows. ``scalars``, of shape
(3, *shape), holds 1-t, 1+t and the family's noise of each row; ``slope`` is d artanh(t)/dκ. ``number`` differs from
call to call, so that the compiler does not merge equal calls. ``seed`` is a random tensor under ``vmap``: through it
``vmap`` knows that the operator is random even if neither parameter is batched.
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
    PLAIN_TYPES,
    is_batching,
    is_plain,
    is_plain_backward,
    is_transformed,
)
from powerspherical._torch.operators import define_operator
from powerspherical._torch.random import check_generator, from_generator, standard_gamma
from powerspherical._torch.vectors import unit_vectors_as
from powerspherical.families import SPHERICAL_CAUCHY, Family, derived, family_named
from powerspherical.kernels import find
from powerspherical.quadrature import law
from powerspherical.quadrature.cosine import Cosine
from powerspherical.sampling import composition


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
    >>> kappa = torch.tensor([1.0, 10.0])
    >>> draw(POWER_SPHERICAL, torch.eye(3)[0], kappa).shape
    torch.Size([2, 3])
    >>> draw(POWER_SPHERICAL, torch.eye(3)[0], kappa, (5, 2)).shape
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
    of_t = loc.shape[-1] if dim is None else dim, family.name
    if is_plain(loc, concentration):
        if torch.is_grad_enabled() and (loc.requires_grad or concentration.requires_grad):
            return _Draw.apply(loc, concentration, shape, *of_t, generator)
        return run_draw(loc, concentration, shape, *of_t, generator, needs_scalars=False)[0]
    if is_transformed():
        return _transformed_draw(loc, concentration, shape, *of_t, generator)
    if generator is None:
        return _points(loc, concentration, shape, *of_t)
    return _Draw.apply(loc, concentration, shape, *of_t, generator)


@composite("points", "Tensor loc, Tensor concentration, SymInt[] shape, int dim, str family", "Tensor")
def _points(loc: Tensor, concentration: Tensor, shape: Sequence[int], dim: int, family: str) -> Tensor:
    """Draw x, recorded by ``torch.compile`` as one operator: its Python code would get many guards."""
    return _Draw.apply(loc, concentration, shape, dim, family, None)


@untraced
def next_number() -> int:
    """Return a new number. As an argument it makes two calls of a random operator differ.

    Otherwise the compiler would merge them: it has a fixed list of torch's random operators, and ignores our tag.
    """
    return next(_counter)


_counter = itertools.count()


class _Draw(torch.autograd.Function):
    """A draw without transforms: by the implementations in plain eager mode, otherwise by the operators.

    It returns only x, because for a small batch each further output of an autograd function is expensive.
    """

    @staticmethod
    def forward(
        ctx: Any,
        loc: Tensor,
        concentration: Tensor,
        shape: Sequence[int],
        dim: int,
        family: str,
        generator: torch.Generator | None,
    ) -> Tensor:
        if is_plain(loc, concentration):
            x, scalars = run_draw(loc, concentration, shape, dim, family, generator)
        else:
            x, scalars = _draw(loc, concentration, shape, next_number(), dim, family, generator)
        ctx.dim, ctx.family = dim, family
        ctx.save_for_backward(x, loc, scalars, concentration)
        return x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        needs_loc, needs_concentration = needs = ctx.needs_input_grad[:2]
        grad_loc, grad_concentration = draw_gradients(grad, *ctx.saved_tensors, ctx.dim, ctx.family, *needs)
        in_parameters = grad_loc if needs_loc else None, grad_concentration if needs_concentration else None
        return *in_parameters, None, None, None, None


def draw_gradients(
    grad: Tensor, x: Tensor, loc: Tensor, scalars: Tensor, concentration: Tensor, *law: Any
) -> tuple[Tensor, Tensor]:
    """Return the gradients of a draw in ``loc`` and κ. The arguments are those of the operator ``draw_backward``."""
    if is_plain_backward(grad):
        return _run_backward(grad, x, loc, scalars, concentration, *law)
    if not torch.is_grad_enabled() and not is_transformed() and not PLAIN_TYPES.issuperset((type(grad),)):
        return _draw_backward(grad, x, loc, scalars, concentration, *law)
    return _composed_gradients(grad, x, loc, scalars, concentration, *law)


def _composed_gradients(
    grad: Tensor,
    x: Tensor,
    loc: Tensor,
    scalars: Tensor,
    concentration: Tensor,
    dim: int,
    family: str,
    *needs: bool,
) -> tuple[Tensor, Tensor]:
    """``draw_gradients`` by torch operations, for a gradient that is batched or that will be differentiated."""
    create_graph = torch.is_grad_enabled()
    mean, kappa = loc.detach(), concentration.detach()
    slope = _slopes(scalars, kappa, dim, family)
    wanted = [p.requires_grad_() for p, needed in zip((mean, kappa), needs, strict=True) if needed]
    with torch.enable_grad():
        point = _expression(mean, kappa, x.detach(), scalars, slope)
        found = iter(torch.autograd.grad(point, wanted, grad, create_graph=create_graph))
        if create_graph:  # they depend on the parameters themselves, so that a second derivative raises
            found = (_Derivative.apply(one, loc, concentration) for one in found)
    unused = grad.new_empty(0)
    return next(found) if needs[0] else unused, next(found) if needs[1] else unused


def _transformed_draw(
    loc: Tensor,
    concentration: Tensor,
    shape: Sequence[int],
    dim: int,
    family: str,
    generator: torch.Generator | None,
) -> Tensor:
    """Draw x as a function that any transform differentiates."""
    seed = None
    if is_batching():
        seed = torch.randint(2**63 - 1, (), device=loc.device, **from_generator(generator))
    values = loc.detach(), concentration.detach()
    x, scalars, slope = _draw_with_slope(*values, shape, seed, next_number(), dim, family, generator)
    return _expression(loc, concentration, x, scalars, slope)


def _expression(loc: Tensor, concentration: Tensor, x: Tensor, scalars: Tensor, slope: Tensor) -> Tensor:
    """Return x as a function of the parameters with the right first derivatives: x + (∂x/∂μ) dμ + (∂x/∂κ) dκ.

    dμ = μ - μ̄ and dκ = κ - κ̄, with the detached μ̄ and κ̄, are zero. ``composition.pull_back`` has the formulas. A second
    derivative would be wrong. ``_Output`` refuses it. The compiler ignores a custom derivative under a transform, so
    there the term (Σdμ + dκ)^1.5 makes the second derivative infinite and changes nothing else.
    """
    mean, kappa, dtype = loc.detach(), concentration.detach(), slope.dtype
    unit, point = unit_vectors_as(mean, dtype), x.to(dtype)
    minus, plus, _ = scalars.unsqueeze(-1).unbind(0)
    t = 0.5 * (plus - minus)
    change = loc.to(dtype) - mean.to(dtype)
    if mean.dtype != dtype:
        # The change of the normalised vectors, up to a part along μ, which changes nothing.
        change = change / torch.linalg.vector_norm(mean.to(dtype), dim=-1, keepdim=True)
    rise = (concentration - kappa).unsqueeze(-1)
    # An error of x - tμ along μ would be a bias at large κ, where 1-t² ~ 1/κ.
    across = point - t * unit
    across = across - (across * unit).sum(-1, keepdim=True) * unit
    in_kappa = slope.unsqueeze(-1) * (minus * plus * unit - t * across)
    result = point + t * change - (point * change).sum(-1, keepdim=True) * unit + in_kappa * rise
    if not torch.compiler.is_compiling():
        return _Output.apply(result.to(x.dtype), loc, concentration)
    return (result + (change.sum(-1, keepdim=True) + rise) ** 1.5).to(x.dtype)


_ONCE = (
    "a draw is differentiable once, its second derivative is not implemented. Leave out the second "
    "differentiation (create_graph=True, nested torch.func transforms), or differentiate a closed form "
    "(log_prob, entropy, kl_divergence) at a detached sample."
)


class _Derivative(torch.autograd.Function):
    """The identity for a first derivative, which depends on the parameters in a way that we do not know."""

    generate_vmap_rule = True

    @staticmethod
    def forward(derivative: Tensor, loc: Tensor, concentration: Tensor) -> Tensor:
        return derivative.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> None:
        raise NotImplementedError(_ONCE)

    jvp = backward


class _Output(torch.autograd.Function):
    """The identity for a draw. Its derivative cannot be differentiated."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, loc: Tensor, concentration: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[1:])
        ctx.save_for_forward(*inputs[1:])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return _Derivative.apply(grad, *ctx.saved_tensors), None, None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *_: Any) -> Tensor:
        result: Tensor = _Derivative.apply(tangent, *ctx.saved_tensors)
        return result


def run_draw(
    loc: Tensor,
    concentration: Tensor,
    shape: Sequence[int],
    dim: int,
    family: str,
    generator: torch.Generator | None = None,
    *,
    needs_scalars: bool = True,
) -> tuple[Tensor, Tensor | None]:
    """The implementation of ``draw``: by a kernel, or a composition of torch operations.

    It returns x, and the scalars 1-t, 1+t and noise of each row, or None if they are not needed.
    """
    if not isinstance(shape, torch.Size):
        shape = torch.Size(shape)  # a list, if an operator was called
    kernel = find("draw", concentration, loc.shape[-1], family) if 0 not in shape else None
    if kernel is not None:
        draws: tuple[Tensor, Tensor | None] = kernel.run(
            family, loc, concentration, shape, dim, generator, needs_scalars=needs_scalars
        )
        return draws
    if loc.is_meta:
        return _fake_draw(loc, concentration, shape)
    unit = unit_vectors_as(loc, concentration.dtype)
    if unit.shape[:-1] != shape:
        unit = unit.expand(*shape, -1)
    if concentration.shape != shape:
        concentration = concentration.expand(shape)
    v, squared_length = composition.tangent_gaussian(unit, generator)
    chi_squared = squared_length
    if dim != loc.shape[-1]:
        chi_squared = standard_gamma(torch.full_like(squared_length, (dim - 1) / 2), generator).mul_(2)
    t, noise = family_named(family).draw_cosine(chi_squared, concentration, dim, generator)
    x = composition.placed(v, squared_length, unit, t)
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
    """The implementation of ``draw_backward``: by a kernel, or a composition of torch operations."""
    kernel = find("draw_gradient", concentration, loc.shape[-1], family) if scalars.numel() else None
    grad_loc: Tensor | None
    grad_concentration: Tensor | None
    if kernel is not None:
        grad_loc, grad_concentration = kernel.run(
            family, grad, x, loc, scalars, concentration, *_quadrature(family, concentration, dim), dim,
            needs_loc=needs_loc, needs_kappa=needs_concentration,
        )  # fmt: skip
    elif loc.is_meta:
        return _fake_backward(grad, x, loc, concentration, dim, family, needs_loc, needs_concentration)
    else:
        minus, plus, _ = scalars
        slope = _slopes(scalars, concentration, dim, family) if needs_concentration else None
        grad_loc, grad_concentration = composition.pull_back(grad, x, loc, Cosine(minus, plus), slope)
    # An operator cannot return None. A gradient that is not needed is an empty tensor.
    if grad_loc is None:
        grad_loc = x.new_empty(0)
    if grad_concentration is None:
        grad_concentration = concentration.new_empty(0)
    elif grad_concentration.shape != concentration.shape:
        grad_concentration = grad_concentration.sum_to_size(concentration.shape)
    return grad_loc, grad_concentration


def _slopes(scalars: Tensor, kappa: Tensor, dim: int, family: str) -> Tensor:
    """Return d artanh(t)/dκ of each row."""
    kernel = find("slopes", kappa, dim, family) if scalars.numel() else None
    if kernel is not None and PLAIN_TYPES.issuperset((type(scalars), type(kappa))):
        slopes: Tensor = kernel.run(family, scalars, kappa, *_quadrature(family, kappa, dim), dim)
        return slopes
    minus, plus, noise = scalars
    return family_named(family).slope(Cosine(minus, plus), noise, kappa.expand(noise.shape), dim)


def _quadrature(family: str, kappa: Tensor, dim: int) -> tuple[Tensor | None, Tensor | None]:
    """Return what a kernel needs for slopes in double precision: E T, and the rule of a ray."""
    if kappa.dtype is not torch.float64 or dim == 3 or family == SPHERICAL_CAUCHY.name:
        return None, None
    return derived.mean_score(family_named(family), kappa.detach(), dim), law.rule(kappa)


def _run_with_slope(
    loc: Tensor,
    concentration: Tensor,
    shape: Sequence[int],
    _seed: Any,
    _number: int,
    dim: int,
    family: str,
    generator: torch.Generator | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The implementation of ``draw_with_slope``. The seed is for vmap and the number for the compiler."""
    x, scalars = run_draw(loc, concentration, shape, dim, family, generator)
    assert scalars is not None
    if loc.is_meta:
        return x, scalars, scalars[0]
    return x, scalars, _slopes(scalars, concentration, dim, family)


def _fake_draw(loc: Tensor, concentration: Tensor, shape: Sequence[int], *_: Any) -> tuple[Tensor, Tensor]:
    return loc.new_empty((*shape, loc.shape[-1])), concentration.new_empty((3, *shape))


def _fake_backward(grad: Tensor, x: Tensor, loc: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    *_, concentration, _, _, needs_loc, needs_concentration = rest
    return (
        loc.new_empty(loc.shape if needs_loc else 0),
        concentration.new_empty(concentration.shape if needs_concentration else 0),
    )


def _with_axes(tensor: Tensor, dims: int) -> Tensor:
    """Insert axes of size 1 after the batch axis, up to ``dims`` axes, so that the other axes broadcast as before."""
    return tensor.reshape(tensor.shape[0], *[1] * (dims - tensor.dim()), *tensor.shape[1:])


def _batch(
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
) -> tuple[tuple[Tensor, Tensor, Tensor], tuple[int, int, int]]:
    """The vmap rule of ``draw_with_slope``."""
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
    batched = info.batch_size, *shape
    return _draw_with_slope(loc, concentration, batched, one_seed, number, dim, family, generator), (0, 1, 0)


_draw = define_operator(
    "draw(Tensor loc, Tensor concentration, SymInt[] shape, int number, int dim, str family, "
    "Generator? generator=None) -> (Tensor, Tensor)",
    lambda loc, concentration, shape, number, *rest, **options: run_draw(
        loc, concentration, shape, *rest, **options
    ),
    fake=_fake_draw,
    random=True,
)
_draw_backward = define_operator(
    "draw_backward(Tensor grad, Tensor x, Tensor loc, Tensor scalars, Tensor concentration, int dim, str family, "
    "bool needs_loc, bool needs_concentration) -> (Tensor, Tensor)",
    _run_backward,
    fake=_fake_backward,
)
_draw_with_slope = define_operator(
    "draw_with_slope(Tensor loc, Tensor concentration, SymInt[] shape, Tensor? seed, int number, int dim, str family, "
    "Generator? generator=None) -> (Tensor, Tensor, Tensor)",
    _run_with_slope,
    fake=lambda loc, concentration, shape, *_: (
        *_fake_draw(loc, concentration, shape),
        concentration.new_empty(shape),
    ),
    batch=_batch,
    random=True,
)
