"""Latents z = radius·x with x drawn from a head's distribution q, and their rate KL(q‖U), where U is the uniform.

Where there are kernels for it, this is one autograd function, because every node of the autograd graph costs host time.
On CUDA one Triton kernel computes all of it and another one the gradient, in eager mode and in compiled code. There
each is an operator that the compiler does not look into, because our launch takes less host time than the compiler's.
On the CPU one call of the C library does the same in plain eager mode. Elsewhere (float64, ``torch.func``, tracing) it
is a composition of a head, a draw and a rate.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from powerspherical import engines
from powerspherical._torch.composites import composite
from powerspherical._torch.modes import is_compiling, is_in_aot_autograd, is_plain, is_plain_backward
from powerspherical._torch.operators import define_operator
from powerspherical.families import family_named
from powerspherical.families.derived import relative_entropy_and_slope
from powerspherical.kernels import find
from powerspherical.kernels.record import Bounds, Settings, unpack_record, value_shapes, z_is_x
from powerspherical.kernels.registry import Kernel, registered
from powerspherical.nn import _parameters
from powerspherical.nn._layout import Layout
from powerspherical.sampling.draws import draw, draw_gradients, next_number
from powerspherical.special.curves import kernel_tables

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
    plain = is_plain(outputs)
    compiled = is_in_aot_autograd() and engines.kernels_on(cpu=outputs.is_cpu) == "triton"
    kernel = None
    if plain or compiled:
        kernel = find("latents", outputs, settings.dim, settings.family, compiling=is_compiling())
    if kernel is not None:
        if compiled or (torch.is_grad_enabled() and outputs.requires_grad):
            return _Latents.apply(kernel, outputs, settings, radius, dtype)
        return _values(kernel, outputs, settings, radius, dtype)[:2]
    loc, kappa = _parameters.parameters(outputs, settings.dim, settings.bounds)
    assert kappa is not None  # because outputs has d + 1 columns
    family = family_named(settings.family)
    return _scaled(draw(family, loc, kappa), radius, dtype), family.relative_entropy(kappa, settings.dim)


def _scaled(x: Tensor, radius: float, dtype: torch.dtype) -> Tensor:
    """Return radius·x in ``dtype``, rounded once."""
    return (x if radius == 1 else radius * x).to(dtype)


class _Latents(torch.autograd.Function):
    """``drawn`` by kernels."""

    @staticmethod
    def forward(
        ctx: Any, kernel: Kernel, outputs: Tensor, settings: Settings, radius: float, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        if is_plain(outputs):  # packing the settings would cost host time
            z, rate, record = _values(kernel, outputs, settings, radius, dtype)
        else:
            z, rate, record = _draw_latents(outputs, packed(settings), radius, dtype, next_number())
        ctx.kernel, ctx.settings, ctx.radius = kernel, settings, radius
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
            gradient = _gradient(ctx.kernel, *given, ctx.settings, ctx.radius)
        elif not torch.is_grad_enabled() and is_in_aot_autograd():
            gradient = _pull_back_latents(*given, packed(ctx.settings), ctx.radius)
        else:  # gradients that will be differentiated, or that belong to a transform, need torch operations
            x, scalars = unpack_record(outputs, record, z)
            gradient = _differentiable_gradient(ctx, grad, grad_rate, outputs, x, scalars[:3])
        return None, gradient, None, None, None


def _table(settings: Settings, outputs: Tensor) -> Any:
    """Return the table of the rate as a function of κ."""
    family, dim, _ = settings
    (table,) = kernel_tables(family, "relative_entropy", dim, 0, torch.float32, outputs.device)
    return table


def _values(
    kernel: Kernel, outputs: Tensor, settings: Settings, radius: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """Return z, the rate, and a record of the draw."""
    values: tuple[Tensor, Tensor, Tensor] = kernel.run(
        outputs, _table(settings, outputs), settings, radius, dtype, None
    )
    return values


def _gradient(kernel: Kernel, outputs: Tensor, *rest: Any) -> Tensor:
    """Return the gradient in the outputs."""
    *_, settings, _ = rest
    assert kernel.gradients is not None
    (gradient,) = kernel.gradients(outputs, _table(settings, outputs), *rest)
    assert gradient is not None
    return gradient


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
    lambda outputs, settings, radius, dtype, number: _values(
        registered("latents", "triton"), outputs, _unpacked(settings)[0], radius, dtype
    ),
    fake=_fake_values,
    random=True,
)
_pull_back_latents = define_operator(
    "pull_back_latents(Tensor outputs, Tensor record, Tensor? z, Tensor? grad, Tensor? grad_rate, str settings, "
    "float radius) -> Tensor",
    lambda outputs, record, z, grad, grad_rate, settings, radius: _gradient(
        registered("latents", "triton"), outputs, record, z, grad, grad_rate, _unpacked(settings)[0], radius
    ),
    fake=lambda outputs, *_: outputs.new_empty(outputs.shape),
)


def _differentiable_gradient(
    ctx: Any, grad: Tensor | None, grad_rate: Tensor | None, outputs: Tensor, x: Tensor, scalars: Tensor
) -> Tensor:
    """The gradient in the outputs as a differentiable function of them, given those in z and the rate."""
    name, dim, bounds = ctx.settings
    create_graph = torch.is_grad_enabled()
    with torch.enable_grad():
        loc, kappa = _parameters.composition(outputs, dim, bounds)
        _, slope = relative_entropy_and_slope(family_named(name), kappa, dim)
        grads = _in_parameters(ctx, grad, grad_rate, x, loc, scalars, kappa, slope)
        pairs = [(value, one) for value, one in zip((loc, kappa), grads, strict=True) if one is not None]
        values, given = zip(*pairs, strict=True)
        (found,) = torch.autograd.grad(values, outputs, given, create_graph=create_graph)
    return found


def _in_parameters(
    ctx: Any,
    grad: Tensor | None,
    grad_rate: Tensor | None,
    x: Tensor,
    loc: Tensor,
    scalars: Tensor,
    kappa: Tensor,
    slope: Tensor,
) -> tuple[Tensor | None, Tensor | None]:
    """Return the gradients in μ and κ, given those in z and the rate, dKL/dκ, and the results of the draw."""
    in_loc = in_kappa = None
    if grad is not None:
        grad = _scaled(grad.to(x.dtype), ctx.radius, x.dtype)
        law = ctx.settings.dim, ctx.settings.family
        in_loc, in_kappa = draw_gradients(grad, x, loc, scalars, kappa, *law, True, True)
    if grad_rate is not None:
        in_kappa = grad_rate * slope if in_kappa is None else torch.addcmul(in_kappa, grad_rate, slope)
    return in_loc, in_kappa
