"""Latents z = radius·x with x drawn from a head's distribution q, and their rate KL(q‖U), where U is the uniform.

In plain eager mode this is one autograd function, because every node of the autograd graph costs host time. On CUDA,
eager or compiled, one Triton kernel computes all of it and another one the gradient. In compiled code each of them is
an operator that the compiler does not look into, because our launch takes less host time than the compiler's. Elsewhere
(``torch.func``, tracing, compiled code for other devices) it is a composition of torch operations.
"""

from __future__ import annotations

import functools
import math
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from powerspherical._torch.composites import composite
from powerspherical._torch.memory import readable
from powerspherical._torch.modes import is_in_aot_autograd, is_plain, is_plain_backward, plain_apply
from powerspherical._torch.operators import define_operator
from powerspherical._torch.triton import triton_takes
from powerspherical.families import family_named
from powerspherical.families.derived import relative_entropy_and_slope
from powerspherical.nn import _parameters
from powerspherical.nn._layout import Layout
from powerspherical.nn._parameters import FUSED_DTYPES, Bounds
from powerspherical.sampling.operator import draw, draw_gradients, next_number, run_draw
from powerspherical.sampling.triton import fused

#: Largest dimension of the kernels. A program holds whole rows in registers.
LARGEST_DIM = 1024


class Settings(NamedTuple):
    """The settings of a head that determine the distribution for its outputs.

    Attributes:
        family: name of the family, one of this package's.
        dim: d ≥ 2.
        bounds: bounds of κ.
    """

    family: str
    dim: int
    bounds: Bounds


#: The layout of outputs: the entries of each position along the last axis.
_OUTPUTS = Layout(-1, 0)


def packed(settings: Settings, layout: Layout = _OUTPUTS) -> str:
    """Return settings and layout as one string.

    Operators cannot take named tuples, and ``torch.compile`` then guards one attribute instead of many.
    """
    return ",".join(map(str, (settings.family, settings.dim, *settings.bounds, *layout)))


@functools.cache
def _unpacked(text: str) -> tuple[Settings, Layout]:
    family, dim, minimum, maximum, axis, product = text.split(",")
    bounds = Bounds(float(minimum), float(maximum))
    return Settings(family, int(dim), bounds), Layout(int(axis), int(product))


@composite(
    "latents", "Tensor features, Tensor? outputs, str packed_settings, float radius", "(Tensor, Tensor)"
)
def latents(
    features: Tensor, outputs: Tensor | None, packed_settings: str, radius: float
) -> tuple[Tensor, Tensor]:
    """Return latents z and their rate for a bottleneck.

    Args:
        features: the bottleneck's features.
        outputs: (v, r) of shape (…, d + 1), or (…, m, d + 1) for a product. None if the features are (v, r) themselves.
        packed_settings: ``packed`` settings and layout of the features.
        radius: the length of z.

    z has the dtype and layout of the features. The rate of a product is the sum over its factors.

    >>> features = torch.tensor([[3.0, 4.0, 20.0], [0.0, 1.0, 5.0]], dtype=torch.bfloat16)
    >>> settings = packed(Settings("power_spherical", 2, Bounds(0.0, 1e6)), Layout(-1, 0))
    >>> z, rate = latents(features, None, settings, 2.0)
    >>> z.shape, z.dtype, rate
    (torch.Size([2, 2]), torch.bfloat16, tensor([1.5827, 0.9275]))
    """
    settings, layout = _unpacked(packed_settings)
    if outputs is None:
        outputs = layout.outputs(features, settings.dim)
    z, rate = drawn(outputs, settings, radius, features.dtype)
    return layout.merged(z, features), rate.sum(-1) if layout.product else rate


def drawn(outputs: Tensor, settings: Settings, radius: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return radius·x of shape (…, d) in ``dtype``, with x drawn from q, and KL(q‖U) of shape (…).

    The outputs (v, r) of shape (…, d + 1) give μ and κ as in ``_parameters.parameters``. The divergence is float64 for
    float64 outputs, otherwise float32. It is differentiable twice, and the draw once. Their accuracy is that of
    ``sampling.draw`` and of ``Family.relative_entropy``.
    """
    if outputs.shape[-1] != settings.dim + 1:
        raise ValueError(
            f"the head has {outputs.shape[-1]} outputs per sphere, not {settings.dim + 1}, for d = {settings.dim}"
        )
    fuses = _runs_fused(outputs, settings)
    if is_plain(outputs):
        if torch.is_grad_enabled() and outputs.requires_grad:
            if fuses:
                return _fused_latents(readable(outputs), settings, radius, dtype)
            return _plain_latents(outputs, settings, radius, dtype)
        if fuses:
            return _fused_values(readable(outputs), settings, radius, dtype)[:2]
    elif fuses and is_in_aot_autograd():
        return _FusedLatents.apply(outputs.contiguous(), settings, radius, dtype)
    loc, kappa = _parameters.parameters(outputs, settings.dim, settings.bounds)
    assert kappa is not None  # because outputs has d + 1 columns
    family = family_named(settings.family)
    return _scaled(draw(family, loc, kappa), radius, dtype), family.relative_entropy(kappa, settings.dim)


def z_is_x(radius: float, dtype: torch.dtype) -> bool:
    """Whether z equals x in float32, so that the backward pass can use z and x need not be kept."""
    return radius == 1 and dtype == torch.float32


def unpack_record(outputs: Tensor, record: Tensor, z: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return x in float32, and (1-t, 1+t, noise, dKL/dκ) of shape (4, …), from the record of a draw.

    The record is a single vector, because each tensor that is kept for the backward pass costs host time. It holds x,
    unless z is x and given here, and then the four numbers of all rows.
    """
    *batch, entries = outputs.shape
    numbers = 4 * (outputs.numel() // entries)
    x = record[:-numbers].view(*batch, entries - 1) if z is None else z
    return x, record[-numbers:].view(4, *batch)


def _runs_fused(outputs: Tensor, settings: Settings) -> bool:
    """Whether the Triton kernels serve these outputs."""
    return (
        triton_takes(outputs, FUSED_DTYPES)
        and settings.dim <= LARGEST_DIM
        and outputs.numel() > 0
        and settings.family in fused.FAMILIES
    )


def _scaled(x: Tensor, radius: float, dtype: torch.dtype) -> Tensor:
    """Return radius·x in ``dtype``, rounded once."""
    return (x if radius == 1 else radius * x).to(dtype)


class _PlainLatents(torch.autograd.Function):
    """``drawn`` in plain eager mode."""

    @staticmethod
    def forward(
        ctx: Any, outputs: Tensor, settings: Settings, radius: float, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        ctx.settings = settings
        name, dim, bounds = settings
        ctx.radius = radius
        loc, kappa = _parameters.values(outputs, dim, bounds)
        assert kappa is not None
        x, scalars = run_draw(loc, kappa, kappa.shape, dim, name)
        rate, slope = relative_entropy_and_slope(family_named(name), kappa, dim)
        ctx.save_for_backward(outputs, x, loc, scalars, kappa, slope)
        ctx.set_materialize_grads(False)  # a gradient that is not needed is None
        return _scaled(x, radius, dtype), rate

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, grad_rate: Tensor | None) -> tuple[Tensor | None, ...]:
        outputs, x, loc, scalars, kappa, slope = ctx.saved_tensors
        if torch.is_grad_enabled():  # the gradient itself will be differentiated
            gradient = _differentiable_gradient(ctx, grad, grad_rate, outputs, x, scalars)
        else:
            gradient = _gradient(ctx, grad, grad_rate, outputs, loc, kappa, slope, x, scalars)
        return gradient, None, None, None


class _FusedLatents(torch.autograd.Function):
    """``drawn`` with Triton, for contiguous outputs, in eager mode and in compiled code."""

    @staticmethod
    def forward(
        ctx: Any, outputs: Tensor, settings: Settings, radius: float, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        if is_plain(outputs):  # packing the settings would cost host time
            z, rate, record = _fused_values(outputs, settings, radius, dtype)
        else:
            z, rate, record = _draw_latents(outputs, packed(settings), radius, dtype, next_number())
        ctx.settings, ctx.radius = settings, radius
        ctx.save_for_backward(outputs, record, z if z_is_x(radius, dtype) else None)
        ctx.set_materialize_grads(False)  # a gradient that is not needed is None
        return z, rate

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, grad_rate: Tensor | None) -> tuple[Tensor | None, ...]:
        outputs, record, z = ctx.saved_tensors
        grads = [one for one in (grad, grad_rate) if one is not None]
        given = outputs, record, z, grad, grad_rate
        if not grads:
            gradient = None
        elif is_plain_backward(*grads):
            gradient = _kernels().pull_back_latents(*given, ctx.settings, ctx.radius)
        elif not torch.is_grad_enabled() and is_in_aot_autograd():
            gradient = _pull_back_latents(*given, packed(ctx.settings), ctx.radius)
        else:  # gradients that will be differentiated, or that belong to a transform, need torch operations
            x, scalars = unpack_record(outputs, record, z)
            gradient = _differentiable_gradient(ctx, grad, grad_rate, outputs, x, scalars[:3])
        return gradient, None, None, None


@functools.cache
def _kernels() -> ModuleType:
    """The module that needs Triton."""
    from powerspherical.nn import _triton_latents

    return _triton_latents


def _fused_values(
    outputs: Tensor, settings: Settings, radius: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """Return z, the rate, and a record of the draw, from contiguous outputs, by one kernel."""
    seed = fused.random_seed(outputs.device)
    values: tuple[Tensor, Tensor, Tensor] = _kernels().draw_latents(outputs, settings, radius, dtype, seed)
    return values


def value_shapes(
    outputs: torch.Size, dim: int, radius: float, dtype: torch.dtype
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Return the shapes of z, of the rate and of the record, given the shape of the outputs."""
    *batch, _ = outputs
    return (*batch, dim), tuple(batch), (math.prod(batch) * (4 if z_is_x(radius, dtype) else dim + 4),)


def _fake_values(
    outputs: Tensor, settings: str, radius: float, dtype: torch.dtype, number: int
) -> tuple[Tensor, Tensor, Tensor]:
    z, rate, record = value_shapes(outputs.shape, _unpacked(settings)[0].dim, radius, dtype)
    single = torch.float32
    return (
        outputs.new_empty(z, dtype=dtype),
        outputs.new_empty(rate, dtype=single),
        outputs.new_empty(record, dtype=single),
    )


_draw_latents = define_operator(
    "draw_latents(Tensor outputs, str settings, float radius, ScalarType dtype, int number) "
    "-> (Tensor, Tensor, Tensor)",
    lambda outputs, settings, radius, dtype, number: _fused_values(
        outputs, _unpacked(settings)[0], radius, dtype
    ),
    fake=_fake_values,
    random=True,
)
_pull_back_latents = define_operator(
    "pull_back_latents(Tensor outputs, Tensor record, Tensor? z, Tensor? grad, Tensor? grad_rate, str settings, "
    "float radius) -> Tensor",
    lambda outputs, record, z, grad, grad_rate, settings, radius: _kernels().pull_back_latents(
        outputs, record, z, grad, grad_rate, _unpacked(settings)[0], radius
    ),
    fake=lambda outputs, *_: torch.empty_like(outputs),
)


def _differentiable_gradient(
    ctx: Any, grad: Tensor | None, grad_rate: Tensor | None, outputs: Tensor, x: Tensor, scalars: Tensor
) -> Tensor | None:
    """``_gradient`` with μ, κ and the derivative of the rate as differentiable functions of the outputs."""
    name, dim, bounds = ctx.settings
    loc, kappa = _parameters.composition(outputs, dim, bounds)
    assert kappa is not None
    _, slope = relative_entropy_and_slope(family_named(name), kappa, dim)
    return _gradient(ctx, grad, grad_rate, outputs, loc, kappa, slope, x, scalars)


def _gradient(
    ctx: Any,
    grad: Tensor | None,
    grad_rate: Tensor | None,
    outputs: Tensor,
    loc: Tensor,
    kappa: Tensor,
    slope: Tensor,
    x: Tensor,
    scalars: Tensor,
) -> Tensor | None:
    """Return the gradient in the outputs, given those in z and the rate, μ, κ, dKL/dκ, and the results of the draw."""
    in_loc = in_kappa = None
    if grad is not None:
        grad = _scaled(grad.to(x.dtype), ctx.radius, x.dtype)
        law = ctx.settings.dim, ctx.settings.family
        in_loc, in_kappa = draw_gradients(grad, x, loc, scalars, kappa, *law, True, True)
    if grad_rate is not None:
        in_kappa = grad_rate * slope if in_kappa is None else torch.addcmul(in_kappa, grad_rate, slope)
    return _parameters.gradient(outputs, loc, in_loc, in_kappa, ctx.settings.bounds)


_plain_latents = plain_apply(_PlainLatents)
_fused_latents = plain_apply(_FusedLatents)
