"""A family's draw as torch operators: how they run, trace and batch; ``_autograd`` differentiates them.

``register`` defines two operators in the namespace ``powerspherical``, opaque to ``torch.compile``:

    <name>(loc, concentration, shape, seed, dim, generator) -> (x, 1-t, 1+t, noise)
    <name>_backward(grad, x, loc, 1-t, 1+t, noise, concentration, dim, needs_loc, needs_concentration)
        -> (gradient in loc, gradient in concentration)

``loc`` (…, d) and ``concentration`` (…) come as they are and broadcast to ``shape``, that of the rows: a kernel can
then read a direction once that many rows share, and hand back their gradients summed. Half precision is that of ``loc``
and x alone, everything between them is float32.

The three scalars a row beside x are what the backward pass needs beside it; (dt/dκ)/(1-t²) is computed there, and only
if it is asked for. The noise is the family's own, for that.

``seed`` is one integer. Drawn by torch itself it tells ``vmap`` of the randomness inside, which it would otherwise miss
when neither parameter is batched, and it keeps equal calls in a compiled graph apart. The fused kernels for CUDA take
their random numbers from it; the composition below draws from ``generator``, by default torch's for the device.
In plain eager mode we bypass the dispatcher and call the implementation directly, without a seed.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from powerspherical.kernels import _fused, _geometry
from powerspherical.kernels._autograd import Draws, register_derivative
from powerspherical.kernels._generator import check_generator, from_generator
from powerspherical.kernels.precision import unit_vectors_as
from powerspherical._torch.constants import untraced
from powerspherical._torch.modes import is_plain
from powerspherical.special.tail import implicit_gradient
from powerspherical.special.tilt import Tilt

_LIBRARY = torch.library.Library("powerspherical", "FRAGMENT")


class DrawCosine(Protocol):
    """How a family draws t = μᵀx."""

    def __call__(
        self, squared_length: Tensor, concentration: Tensor, dim: int, generator: torch.Generator | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """1-t and 1+t, each to its own relative accuracy, and what dt/dκ needs of the noise behind them.

        All are of the shape of ``concentration``. ``squared_length`` ~ χ²_{d-1} is free to be used as noise, once: it
        is independent of the direction. It is written over afterwards: what is returned must not be it.
        """


class CosineDerivative(Protocol):
    """How a family's t moves with the concentration."""

    def __call__(
        self, one_minus_t: Tensor, one_plus_t: Tensor, noise: Tensor, concentration: Tensor, dim: int
    ) -> Tensor:
        """(dt/dκ)/(1-t²), which stays of one size as t approaches an end; given what ``DrawCosine`` gave.

        A new tensor: it is written over.
        """


class Sample(Protocol):
    """What draws from a family."""

    def __call__(
        self,
        loc: Tensor,
        concentration: Tensor,
        shape: Sequence[int] | None = None,
        dim: int | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Points x at the cosine t to ``loc``; see ``register``."""


def register(name: str, draw: DrawCosine, derivative: CosineDerivative) -> Sample:
    """Define the operators of a family and return the function that draws from it.

    That function takes ``loc`` (…, d), unit vectors, and ``concentration`` (…), float64 where ``loc`` is and float32
    otherwise, which broadcast to ``shape``, by default to each other, and returns x, of that shape and d and in the
    dtype of ``loc``, differentiable in both. In half precision ``loc`` is normalised to float32's digits.
    ``dim`` is the dimension used for the law of t, by default d: to see t alone, the circle is enough.
    ``generator`` is the source of the random numbers, by default torch's for the device.

    Under ``torch.func.vmap`` it follows torch's own random functions: randomness="different" draws anew for
    each example, "same" shares one draw and is refused where a parameter is batched, "error" raises.
    """
    forward = _define(
        f"{name}(Tensor loc, Tensor concentration, SymInt[] shape, Tensor seed, int dim, "
        "Generator? generator=None) -> (Tensor, Tensor, Tensor, Tensor)",
        tags=(torch.Tag.pt2_compliant_tag, torch.Tag.nondeterministic_seeded),
    )
    backward = _define(
        f"{name}_backward(Tensor grad, Tensor x, Tensor loc, Tensor one_minus_t, Tensor one_plus_t, "
        "Tensor noise, Tensor concentration, int dim, bool needs_loc, bool needs_concentration) "
        "-> (Tensor, Tensor)",
        tags=(torch.Tag.pt2_compliant_tag,),
    )

    def run(
        loc: Tensor,
        concentration: Tensor,
        shape: Sequence[int],
        seed: Tensor | None,
        dim: int,
        generator: torch.Generator | None = None,
    ) -> Draws:
        if _fused.covers(name, loc, concentration, shape):
            return _fused.draw(name, loc, concentration, shape, seed, dim, generator)
        unit = unit_vectors_as(loc, concentration.dtype)
        if unit.shape[:-1] != shape:  # where they agree, as in training, even a view would take its time
            unit = unit.expand(*shape, -1)
        if concentration.shape != shape:
            concentration = concentration.expand(shape)
        x, along, squared_length = _geometry.tangent_gaussian(unit, generator)
        free = squared_length
        if dim != loc.shape[-1]:
            free = torch._standard_gamma(torch.full_like(squared_length, (dim - 1) / 2), generator).mul_(2)
        one_minus_t, one_plus_t, noise = draw(free, concentration, dim, generator)
        _geometry.place_(x, along, squared_length, unit, one_minus_t, one_plus_t)
        if x.dtype != loc.dtype:
            x = x.to(loc.dtype)
        return x, one_minus_t.contiguous(), one_plus_t.contiguous(), noise.contiguous()

    def run_backward(
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
    ) -> tuple[Tensor, Tensor]:
        rows = one_minus_t, one_plus_t, noise
        if _fused.covers(name, loc, concentration, one_minus_t.shape):
            grad_loc, grad_concentration = _fused.pull_back(
                name, grad, x, loc, *rows, concentration, dim, needs_loc, needs_concentration
            )
        else:
            slope = None
            if needs_concentration:
                same = concentration.shape == noise.shape
                slope = derivative(*rows, concentration if same else concentration.expand(noise.shape), dim)
            grad_loc, grad_concentration = _geometry.pull_back(
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

    _LIBRARY.impl(name, run, "CompositeExplicitAutograd")
    _LIBRARY.impl(f"{name}_backward", run_backward, "CompositeExplicitAutograd")
    _register_transforms(forward, _fake_forward, _batch_forward)
    _register_transforms(backward, _fake_backward, _batch_backward)
    differentiable = register_derivative(_LIBRARY, forward, backward, run, run_backward)

    def sample(
        loc: Tensor,
        concentration: Tensor,
        shape: Sequence[int] | None = None,
        dim: int | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        if generator is not None:
            check_generator(generator, loc.device)
        if shape is None:
            shape = torch.broadcast_shapes(loc.shape[:-1], concentration.shape)
        if dim is None:
            dim = loc.shape[-1]
        if not is_plain(loc, concentration):
            return forward(loc, concentration, shape, _seed(loc.device, generator), dim, generator)[0]
        if torch.is_grad_enabled() and (loc.requires_grad or concentration.requires_grad):
            return differentiable.apply(loc, concentration, shape, None, dim, generator)
        return run(loc, concentration, shape, None, dim, generator)[0]

    return sample


def _seed(device: torch.device, generator: torch.Generator | None) -> Tensor:
    """What tells of the randomness: a random number under vmap, and on CUDA, where it is that of the kernels.

    On the CPU any will do otherwise, and then the draw has the numbers of a plain one.
    """
    if device.type == "cpu" and not _is_batching():
        return torch.full((), _another(), dtype=torch.int64)
    return torch.randint(2**63 - 1, (), device=device, **from_generator(generator))


@untraced
def _is_batching() -> bool:
    layers = torch._C._functorch.get_interpreter_stack() or []
    return any(layer.key() == torch._C._functorch.TransformType.Vmap for layer in layers)


@untraced
def _another() -> int:
    """A number that no other call has: the compiler makes one of equal calls."""
    return next(_numbers)


_numbers = itertools.count()


def relative_slope(
    tilt: Tilt, one_minus_t: Tensor, one_plus_t: Tensor, concentration: Tensor, dim: int
) -> Tensor:
    """(dt/dκ)/(1-t²) at a fixed probability: the exact derivative of any family's draw, by a quadrature."""
    slope = implicit_gradient(tilt, one_minus_t, one_plus_t, concentration, dim)
    return slope.div_((one_minus_t * one_plus_t).clamp_(min=torch.finfo(slope.dtype).tiny))


def _define(schema: str, tags: tuple[torch.Tag, ...]) -> torch._ops.OpOverload:
    _LIBRARY.define(schema, tags=tags)
    return getattr(torch.ops.powerspherical, schema.partition("(")[0]).default


def _register_transforms(
    operator: torch._ops.OpOverload, fake: Callable[..., Any], batch: Callable[..., Any]
) -> None:
    """Tell torch the shapes of the results, for tracing, and how to run a batch of calls as one call."""
    torch.library.register_fake(operator.name(), fake, lib=_LIBRARY)
    torch.library.register_vmap(operator.name(), functools.partial(batch, operator), lib=_LIBRARY)


def _fake_forward(loc: Tensor, concentration: Tensor, shape: Sequence[int], *_: Any) -> Draws:
    rows = (concentration.new_empty(shape) for _ in range(3))
    return loc.new_empty((*shape, loc.shape[-1])), *rows  # type: ignore[return-value]


def _fake_backward(grad: Tensor, x: Tensor, loc: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    *_, concentration, _, needs_loc, needs_concentration = rest
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
    operator: torch._ops.OpOverload,
    info: Any,
    dims: tuple[int | None, ...],
    loc: Tensor,
    concentration: Tensor,
    shape: Sequence[int],
    seed: Tensor,
    dim: int,
    generator: torch.Generator | None = None,
) -> tuple[Draws, tuple[int, ...]]:
    if info.randomness != "different":
        # What torch's own Gamma and Poisson do: with rejection inside, "the same noise" has no meaning.
        raise RuntimeError(
            f"{operator.name()} inside vmap with a batched parameter needs randomness='different', "
            f"got randomness='{info.randomness}'"
        )
    if dims[0] is not None:
        loc = _aligned(loc.movedim(dims[0], 0), len(shape) + 2)
    if dims[1] is not None:
        concentration = _aligned(concentration.movedim(dims[1], 0), len(shape) + 1)
    one_seed = seed if dims[3] is None else seed.select(dims[3], 0)
    draws = operator(loc, concentration, (info.batch_size, *shape), one_seed, dim, generator)
    return draws, (0, 0, 0, 0)


def _batch_backward(
    operator: torch._ops.OpOverload, info: Any, dims: tuple[int | None, ...], *args: Any
) -> tuple[tuple[Tensor, Tensor], tuple[int | None, int | None]]:
    *tensors, dim, needs_loc, needs_concentration = args
    batched = [
        _leading(tensor, axis, info.batch_size) for tensor, axis in zip(tensors, dims[:-3], strict=True)
    ]
    # Each example has a gradient of its own, also in what they share: each gets its own copy, a view.
    grad, x, loc, *rows, concentration = batched
    x, *rows = (tensor.contiguous() for tensor in (x, *rows))
    sizes = loc.shape, concentration.shape
    loc, concentration = _aligned(loc, x.dim()), _aligned(concentration, x.dim() - 1)
    grad_loc, grad_concentration = operator(
        grad, x, loc, *rows, concentration, dim, needs_loc, needs_concentration
    )
    if needs_loc:
        grad_loc = grad_loc.view(sizes[0])
    if needs_concentration:
        grad_concentration = grad_concentration.view(sizes[1])
    return (grad_loc, grad_concentration), (0 if needs_loc else None, 0 if needs_concentration else None)
