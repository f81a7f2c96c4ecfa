"""What follows from a head's outputs (v, r): the parameters μ and κ of its distribution q, or a bottleneck's latents.

Latents are z = radius·x, with x drawn from q, and their rate KL(q‖U), where U is the uniform. Where there are kernels
for it, they are one autograd function, because every node of the autograd graph costs host time. On CUDA one Triton
kernel computes all of it and another one the gradient. Compiled code calls them as operators, because our launch takes
less host time than the compiler's. On the CPU one call of the C library does the same in plain eager mode. Elsewhere it
is a composition of a head, a draw and a rate.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from powerspherical import engines
from powerspherical._torch.operators import composite, define_operator, is_recorded
from powerspherical._torch.vectors import computing, directions_of
from powerspherical.families import family_named
from powerspherical.formulas.maps import concentration
from powerspherical.kernels.dispatch import by_kernel, differentiable, find, is_plain
from powerspherical.kernels.registry import (
    KERNELS,
    SHORT,
    Bounds,
    Gradients,
    Kernel,
    LatentsOptions,
    Settings,
    Tensors,
    z_is_x,
)
from powerspherical.nn._layout import Layout, outputs_hint
from powerspherical.sampling.draws import draw, next_number, redrawn
from powerspherical.special.curves import kernel_tables


def parameters(outputs: Tensor, dim: int, bounds: Bounds) -> tuple[Tensor, Tensor | None]:
    """Return the directions μ = v/‖v‖ of shape (…, d) and the concentrations κ of shape (…).

    ``outputs`` are (v, r) of shape (…, d + 1) in any floating dtype, or v of shape (…, d); κ is then None. The results
    are float64 for float64 outputs, otherwise float32. Their relative error is a few times the rounding error of that
    dtype. A v whose coordinates are all at most ``SHORT`` gives the first unit vector, with a finite gradient.
    Differentiable to any order.
    """

    def compose(outputs: Tensor, *_: Tensor) -> Tensors:
        return tuple(_composed_parameters(outputs, dim, *bounds))

    loc, *kappa = differentiable("head", compose, lambda: (dim, *bounds, SHORT), outputs, dim=dim)
    return loc, kappa[0] if kappa else None


@composite("parameters", "Tensor outputs, int dim, float minimum, float maximum", "Tensor[]")
def _composed_parameters(outputs: Tensor, dim: int, minimum: float, maximum: float) -> list[Tensor]:
    """``parameters`` as torch operations: [μ] or [μ, κ]."""
    outputs = outputs.to(computing(outputs.dtype))
    if outputs.shape[-1] == dim:
        return [directions_of(outputs, SHORT)]
    vectors, raw = outputs.split((dim, 1), -1)
    kappa = concentration(raw.squeeze(-1), minimum, maximum, 1 / (maximum - minimum))
    return [directions_of(vectors, SHORT), kappa]


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
    """Return latents z of length ``radius``, in the dtype and layout of the features, and their rate.

    ``outputs`` are (v, r) of shape (…, d + 1), or (…, m, d + 1) for a product, or None if the features are (v, r)
    themselves. The rate of a product is the sum over its factors. It is float64 for float64 outputs, otherwise float32.
    It is differentiable twice, and z once.
    """
    settings, layout = _unpacked(packed_settings)
    family, dim, _ = settings
    if outputs is None:
        outputs = layout.per_sphere("features", features, dim + 1, outputs_hint(dim))
    if outputs.shape[-1] != dim + 1:
        raise ValueError(f"the head has {outputs.shape[-1]} outputs per sphere, not {dim + 1}, for d = {dim}")
    compose = functools.partial(_composition, settings, radius, features.dtype)
    kernel = find("latents", outputs, dim=dim, family=family)
    options: Any = None
    if kernel is not None:
        options = _options(packed_settings, outputs.device, radius, features.dtype)
    elif _compiles_kernel(outputs, dim, family):
        kernel, options = _OPERATORS, (packed_settings, radius, features.dtype)
    z, rate = compose(outputs) if kernel is None else by_kernel(kernel, compose, options, outputs)
    return layout.merged(z, features), rate.sum(-1) if layout.product else rate


def _composition(
    settings: Settings, radius: float, dtype: torch.dtype, outputs: Tensor, *kept: Tensor
) -> tuple[Tensor, Tensor]:
    """Return z and the rate by torch operations, for a new draw, or for the earlier one that a kernel ``kept``."""
    loc, kappa = parameters(outputs, settings.dim, settings.bounds)
    assert kappa is not None  # because outputs has d + 1 columns
    family = family_named(settings.family)
    if kept:
        x, scalars = kept
        x = redrawn(family, settings.dim, loc, kappa, x, scalars[:3])
    else:
        x = draw(family, loc, kappa)
    return (x if radius == 1 else radius * x).to(dtype), family.relative_entropy(kappa, settings.dim)


def _compiles_kernel(outputs: Tensor, dim: int, family: str) -> bool:
    """Whether compiled code is to call the kernels of Triton."""
    if is_plain(outputs) or not is_recorded() or engines.kernels[outputs.is_cpu] != "triton":
        return False
    return find("latents", outputs, dim=dim, family=family, compiling=True) is not None


@functools.lru_cache(256)
def _options(packed_settings: str, device: torch.device, radius: float, dtype: torch.dtype) -> LatentsOptions:
    """Return the options of the kernels, with the table of the rate as a function of κ."""
    settings, _ = _unpacked(packed_settings)
    (table,) = kernel_tables(settings.family, "relative_entropy", settings.dim, 0, torch.float32, device)
    return settings, table, radius, dtype


def _fake(outputs: Tensor, settings: str, radius: float, dtype: torch.dtype, number: int) -> Tensors:
    *batch, entries = outputs.shape
    z = outputs.new_empty((*batch, entries - 1), dtype=dtype)
    x = z.new_empty(0 if z_is_x(radius, dtype) else z.shape, dtype=torch.float32)
    return z, x.new_empty(batch), x, x.new_empty((4, *batch))


def _operator_latents(
    outputs: Tensor, settings: str, radius: float, dtype: torch.dtype, number: int
) -> Tensors:
    """The implementation of ``draw_latents``, whichever engine is chosen now: compiled code has chosen before."""
    options = _options(settings, outputs.device, radius, dtype)
    (z, rate), (x, scalars) = KERNELS["latents", "triton"].run((outputs,), options, (True,))
    return z, rate, x.new_empty(0) if x is z else x, scalars  # an operator cannot return one tensor twice


def _operator_gradient(outputs: Tensor, x: Tensor, scalars: Tensor, *rest: Any) -> Tensor:
    """The implementation of ``pull_back_latents``."""
    *grads, settings, radius = rest
    options = _options(settings, outputs.device, radius, torch.float32)
    gradients: Any = KERNELS["latents", "triton"].gradients
    gradient: Tensor = gradients(grads, (True,), (outputs,), (x, scalars), options)[0]
    return gradient


_draw_latents = define_operator(
    "draw_latents(Tensor outputs, str settings, float radius, ScalarType dtype, int number) "
    "-> (Tensor, Tensor, Tensor, Tensor)",
    _operator_latents,
    fake=_fake,
    random=True,
)
_pull_back_latents = define_operator(
    "pull_back_latents(Tensor outputs, Tensor x, Tensor scalars, Tensor? grad, Tensor? grad_rate, str settings, "
    "float radius) -> Tensor",
    _operator_gradient,
    fake=lambda outputs, *_: outputs.new_empty(outputs.shape),
)


def _latents_by_operator(tensors: Tensors, options: Any, needed: Any) -> tuple[Tensors, Tensors]:
    z, rate, x, scalars = _draw_latents(*tensors, *options, next_number())
    return (z, rate), (z if z_is_x(*options[1:]) else x, scalars)


def _gradient_by_operator(
    grads: Gradients, needed: Any, tensors: Tensors, kept: Tensors, options: Any
) -> Gradients:
    return (_pull_back_latents(*tensors, *kept, *grads, *options[:2]),)


#: What compiled code calls.
_OPERATORS = Kernel(_latents_by_operator, _gradient_by_operator, operators=True)
