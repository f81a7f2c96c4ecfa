"""A family's draw as torch operators: how they run, trace and batch; ``_autograd`` differentiates them.

``register`` defines two operators in the namespace ``powerspherical``, opaque to ``torch.compile``:

    <name>(loc, concentration, shape, seed, dim) -> (x, 1-t, 1+t, noise)
    <name>_backward(grad, x, loc, 1-t, 1+t, noise, concentration, dim, needs_loc, needs_concentration)
        -> (gradient in loc, gradient in concentration)

``loc`` (…, d) and ``concentration`` (…) come as they are and broadcast to ``shape``, that of the rows: a kernel can
then read a direction once that many rows share, and hand back their gradients summed.

The three scalars a row beside x are what the backward pass needs beside it; dt/dκ is computed there, and only
if it is asked for. The noise is what t was drawn with: ‖v‖² of the tangent Gaussian v, unless ``dim`` asks for
the law of t in another dimension than that of ``loc``.

``seed`` is one random integer, drawn by torch itself. It tells ``vmap`` of the randomness inside, which it
would otherwise miss when neither parameter is batched, and keeps equal calls in a compiled graph apart. A
fused kernel can take its random numbers from it; the composition below draws from torch's generator.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from powerspherical.kernels import _geometry
from powerspherical.kernels._autograd import Draws, is_plain, register_derivative

_LIBRARY = torch.library.Library("powerspherical", "FRAGMENT")


class DrawCosine(Protocol):
    """How a family draws t = μᵀx."""

    def __call__(self, squared_length: Tensor, concentration: Tensor, dim: int) -> tuple[Tensor, Tensor]:
        """1-t and 1+t, each to its own relative accuracy, as new tensors of the shape of ``concentration``.

        ``squared_length`` ~ χ²_{d-1} is free to be used as noise, once: it is independent of the direction.
        """


class CosineDerivative(Protocol):
    """How a family's t moves with the concentration."""

    def __call__(
        self, one_minus_t: Tensor, one_plus_t: Tensor, squared_length: Tensor, concentration: Tensor, dim: int
    ) -> Tensor:
        """dt/dκ, given what ``DrawCosine`` was given and gave."""


class Sample(Protocol):
    """What draws from a family."""

    def __call__(
        self,
        loc: Tensor,
        concentration: Tensor,
        shape: Sequence[int] | None = None,
        dim: int | None = None,
    ) -> Tensor:
        """Points x at the cosine t to ``loc``; see ``register``."""


def register(name: str, draw: DrawCosine, derivative: CosineDerivative) -> Sample:
    """Define the operators of a family and return the function that draws from it.

    That function takes ``loc`` (…, d), unit vectors, and ``concentration`` (…), both float32 or both float64, which
    broadcast to ``shape``, by default to each other, and returns x, of that shape and d, differentiable in both.
    ``dim`` is the dimension whose law t has, if that is not d: to see t alone, the circle is enough.

    Under ``torch.func.vmap`` it follows torch's own random functions: randomness="different" draws anew for
    each example, "same" shares one draw and is refused where a parameter is batched, "error" raises.
    """
    forward = _define(
        f"{name}(Tensor loc, Tensor concentration, SymInt[] shape, Tensor seed, int dim) "
        "-> (Tensor, Tensor, Tensor, Tensor)",
        tags=(torch.Tag.pt2_compliant_tag, torch.Tag.nondeterministic_seeded),
    )
    backward = _define(
        f"{name}_backward(Tensor grad, Tensor x, Tensor loc, Tensor one_minus_t, Tensor one_plus_t, "
        "Tensor squared_length, Tensor concentration, int dim, bool needs_loc, bool needs_concentration) "
        "-> (Tensor, Tensor)",
        tags=(torch.Tag.pt2_compliant_tag,),
    )

    def run(loc: Tensor, concentration: Tensor, shape: Sequence[int], seed: Tensor, dim: int) -> Draws:
        loc, concentration = loc.expand(*shape, -1), concentration.expand(shape)
        x, squared_length = _geometry.tangent_gaussian(loc)
        noise = squared_length
        if dim != loc.shape[-1]:
            noise = torch._standard_gamma(torch.full_like(squared_length, (dim - 1) / 2)).mul_(2)
        one_minus_t, one_plus_t = draw(noise, concentration, dim)
        _geometry.place_(x, squared_length, loc, one_minus_t, one_plus_t)
        return x, one_minus_t.contiguous(), one_plus_t.contiguous(), noise

    def run_backward(
        grad: Tensor,
        x: Tensor,
        loc: Tensor,
        one_minus_t: Tensor,
        one_plus_t: Tensor,
        squared_length: Tensor,
        concentration: Tensor,
        dim: int,
        needs_loc: bool,
        needs_concentration: bool,
    ) -> tuple[Tensor, Tensor]:
        # An operator cannot return None: a gradient nobody needs is an empty tensor.
        grad_loc, grad_concentration = x.new_empty(0), x.new_empty(0)
        sizes = loc.shape, concentration.shape
        loc, concentration = loc.expand(x.shape), concentration.expand(x.shape[:-1])
        along = _geometry.row_dot(grad, loc)
        if needs_loc:
            grad_loc = _geometry.pull_back_loc(grad, along, x, _geometry.cosine(one_minus_t, one_plus_t))
            grad_loc = grad_loc.sum_to_size(sizes[0])
        if needs_concentration:
            grad_t = _geometry.pull_back_cosine(grad, along, x, loc, one_minus_t, one_plus_t)
            slope = derivative(one_minus_t, one_plus_t, squared_length, concentration, dim)
            grad_concentration = grad_t.mul_(slope).contiguous().sum_to_size(sizes[1])
        return grad_loc, grad_concentration

    _LIBRARY.impl(name, run, "CompositeExplicitAutograd")
    _LIBRARY.impl(f"{name}_backward", run_backward, "CompositeExplicitAutograd")
    _register_transforms(forward, _fake_forward, _batch_forward)
    _register_transforms(backward, _fake_backward, _batch_backward)
    differentiable = register_derivative(_LIBRARY, forward, backward, run, run_backward)

    def sample(
        loc: Tensor, concentration: Tensor, shape: Sequence[int] | None = None, dim: int | None = None
    ) -> Tensor:
        if shape is None:
            shape = torch.broadcast_shapes(loc.shape[:-1], concentration.shape)
        seed = torch.randint(2**63 - 1, (), device=loc.device)
        arguments = loc, concentration, shape, seed, loc.shape[-1] if dim is None else dim
        if not is_plain(loc, concentration):
            return forward(*arguments)[0]
        if torch.is_grad_enabled() and (loc.requires_grad or concentration.requires_grad):
            return differentiable.apply(*arguments)[0]
        return run(*arguments)[0]

    return sample


def _define(schema: str, tags: tuple[torch.Tag, ...]) -> torch._ops.OpOverload:
    _LIBRARY.define(schema, tags=tags)
    return getattr(torch.ops.powerspherical, schema.partition("(")[0]).default


def _register_transforms(
    operator: torch._ops.OpOverload, fake: Callable[..., Any], batch: Callable[..., Any]
) -> None:
    """Tell torch the shapes of the results, for tracing, and how to run a batch of calls as one call."""
    torch.library.register_fake(operator.name(), fake, lib=_LIBRARY)
    torch.library.register_vmap(operator.name(), functools.partial(batch, operator), lib=_LIBRARY)


def _fake_forward(loc: Tensor, concentration: Tensor, shape: Sequence[int], seed: Tensor, dim: int) -> Draws:
    rows = (loc.new_empty(shape) for _ in range(3))
    return loc.new_empty((*shape, loc.shape[-1])), *rows  # type: ignore[return-value]


def _fake_backward(grad: Tensor, x: Tensor, loc: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    *_, concentration, _, needs_loc, needs_concentration = rest
    return (
        x.new_empty(loc.shape if needs_loc else 0),
        x.new_empty(concentration.shape if needs_concentration else 0),
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
    return operator(loc, concentration, (info.batch_size, *shape), one_seed, dim), (0, 0, 0, 0)


def _batch_backward(
    operator: torch._ops.OpOverload, info: Any, dims: tuple[int | None, ...], *args: Any
) -> tuple[tuple[Tensor, Tensor], tuple[int | None, int | None]]:
    *tensors, dim, needs_loc, needs_concentration = args
    batched = [
        _leading(tensor, axis, info.batch_size) for tensor, axis in zip(tensors, dims[:-3], strict=True)
    ]
    # Each example has a gradient of its own, also in what they share: each gets its own copy, a view.
    grad, x, loc, *rows, concentration = batched
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
