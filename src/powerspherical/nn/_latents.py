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
from powerspherical._torch.composites import composite, is_recorded
from powerspherical._torch.modes import is_compiled_backward, is_plain, is_plain_backward
from powerspherical._torch.operators import define_operator
from powerspherical.families import family_named
from powerspherical.kernels import find
from powerspherical.kernels.autograd import composed_gradients
from powerspherical.kernels.record import Bounds, Settings, unpack_record, value_shapes, z_is_x
from powerspherical.kernels.registry import Gradients, Kernel, registered
from powerspherical.nn import _parameters
from powerspherical.nn._layout import Layout
from powerspherical.sampling.draws import draw, next_number, redrawn
from powerspherical.special.curves import kernel_tables


def packed(settings: Settings, layout: Layout) -> str:
    """Return the settings of a head and the layout of its features as one string.

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

    z has the dtype and layout of the features. The rate of a product is the sum over its factors. It is float64 for
    float64 outputs, otherwise float32. It is differentiable twice, and z once.

    >>> features = torch.tensor([[3.0, 4.0, 20.0], [0.0, 1.0, 5.0]], dtype=torch.bfloat16)
    >>> settings = packed(Settings("power_spherical", 2, Bounds(0.0, 1e6)), Layout(-1, 0))
    >>> z, rate = latents(features, None, settings, 2.0)
    >>> z.shape, z.dtype, rate
    (torch.Size([2, 2]), torch.bfloat16, tensor([1.5827, 0.9275]))
    """
    settings, layout = _unpacked(packed_settings)
    family, dim, _ = settings
    if outputs is None:
        outputs = layout.outputs(features, dim)
    if outputs.shape[-1] != dim + 1:
        raise ValueError(f"the head has {outputs.shape[-1]} outputs per sphere, not {dim + 1}, for d = {dim}")
    plain, dtype = is_plain(outputs), features.dtype
    compiled = not plain and is_recorded() and engines.kernels[outputs.is_cpu] == "triton"
    kernel = find("latents", outputs, dim, family, compiling=compiled) if plain or compiled else None
    if kernel is None:
        z, rate = _composition(outputs, settings, radius, dtype)
    elif compiled or (torch.is_grad_enabled() and outputs.requires_grad):
        z, rate = _Latents.apply(kernel if plain else None, outputs, packed_settings, radius, dtype)
    else:
        z, rate, _ = _run(kernel, outputs, packed_settings, radius, dtype)
    return layout.merged(z, features), rate.sum(-1) if layout.product else rate


def _composition(
    outputs: Tensor,
    settings: Settings,
    radius: float,
    dtype: torch.dtype,
    drawn: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """Return z and the rate by torch operations, for a new draw, or for the x and the scalars of an earlier one."""
    loc, kappa = _parameters.parameters(outputs, settings.dim, settings.bounds)
    assert kappa is not None  # because outputs has d + 1 columns
    family = family_named(settings.family)
    x = draw(family, loc, kappa) if drawn is None else redrawn(family, loc, kappa, *drawn)
    return (x if radius == 1 else radius * x).to(dtype), family.relative_entropy(kappa, settings.dim)


class _Latents(torch.autograd.Function):
    """z and the rate by a kernel; in compiled code, where it is None, by the operators."""

    @staticmethod
    def forward(
        ctx: Any, kernel: Kernel | None, outputs: Tensor, settings: str, radius: float, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        if kernel is None:
            z, rate, record = _draw_latents(outputs, settings, radius, dtype, next_number())
        else:
            z, rate, record = _run(kernel, outputs, settings, radius, dtype)
        ctx.kernel, ctx.options = kernel, (settings, radius)
        ctx.dtype = dtype
        ctx.save_for_backward(outputs, record, z if z_is_x(radius, dtype) else None)
        ctx.set_materialize_grads(False)  # a gradient that is not needed is None
        return z, rate

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Gradients:
        outputs, record, z = saved = ctx.saved_tensors
        given = [one for one in grads if one is not None]
        gradient: Tensor | None = None
        if given and ctx.kernel is not None and is_plain_backward(*given):
            gradient = _run_gradient(ctx.kernel, *saved, *grads, *ctx.options)
        elif given and ctx.kernel is None and is_compiled_backward(*given):
            gradient = _pull_back_latents(*saved, *grads, *ctx.options)
        elif (
            given
        ):  # gradients that will be differentiated, or that belong to a transform, need torch operations
            packed_settings, radius = ctx.options
            settings, _ = _unpacked(packed_settings)
            x, scalars = unpack_record(outputs, record, z)
            drawn = x, scalars[:3]
            (gradient,) = composed_gradients(
                lambda outputs: _composition(outputs, settings, radius, ctx.dtype, drawn),
                grads,
                (True,),
                (outputs,),
            )
        return None, gradient, None, None, None


def _table(settings: Settings, outputs: Tensor) -> Any:
    """Return the table of the rate as a function of κ."""
    (table,) = kernel_tables(
        settings.family, "relative_entropy", settings.dim, 0, torch.float32, outputs.device
    )
    return table


def _run(
    kernel: Kernel, outputs: Tensor, packed_settings: str, radius: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """Return z, the rate, and a record of the draw."""
    settings, _ = _unpacked(packed_settings)
    values: tuple[Tensor, Tensor, Tensor] = kernel.run(
        outputs, _table(settings, outputs), settings, radius, dtype, None
    )
    return values


def _run_gradient(kernel: Kernel, outputs: Tensor, *rest: Any) -> Tensor | None:
    """Return the gradient in the outputs. The arguments are those of the operator ``pull_back_latents``."""
    *given, packed_settings, radius = rest
    settings, _ = _unpacked(packed_settings)
    assert kernel.gradients is not None
    (gradient,) = kernel.gradients(outputs, _table(settings, outputs), *given, settings, radius)
    return gradient


def _fake(
    outputs: Tensor, settings: str, radius: float, dtype: torch.dtype, number: int
) -> tuple[Tensor, ...]:
    shapes = value_shapes(outputs.shape, _unpacked(settings)[0].dim, radius, dtype)
    dtypes = dtype, torch.float32, torch.float32
    return tuple(outputs.new_empty(shape, dtype=kind) for shape, kind in zip(shapes, dtypes, strict=True))


_draw_latents = define_operator(
    "draw_latents(Tensor outputs, str settings, float radius, ScalarType dtype, int number) "
    "-> (Tensor, Tensor, Tensor)",
    lambda *arguments: _run(registered("latents", "triton"), *arguments[:-1]),
    fake=_fake,
    random=True,
)
_pull_back_latents = define_operator(
    "pull_back_latents(Tensor outputs, Tensor record, Tensor? z, Tensor? grad, Tensor? grad_rate, str settings, "
    "float radius) -> Tensor",
    lambda *arguments: _run_gradient(registered("latents", "triton"), *arguments),
    fake=lambda outputs, *_: outputs.new_empty(outputs.shape),
)
