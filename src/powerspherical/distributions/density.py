"""The log-density of a rotationally symmetric family at rows of unit vectors."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import Tensor

from powerspherical._torch.modes import is_plain_backward
from powerspherical.distributions._fused import Plan, fused_plan
from powerspherical.distributions.geometry import cosine_between
from powerspherical.families import POWER_SPHERICAL, SPHERICAL_CAUCHY, VON_MISES_FISHER, Family, derived
from powerspherical.families.exponential import ExponentialFamily
from powerspherical.sampling.precision import unit_vectors_as
from powerspherical.special.gamma import log_sphere_area

#: Families whose density has fused kernels.
FUSED = frozenset((POWER_SPHERICAL, SPHERICAL_CAUCHY, VON_MISES_FISHER))


def log_density(family: Family, x: Tensor, loc: Tensor, kappa: Tensor) -> Tensor:
    """Return the log-density at x with respect to the area of the sphere; differentiable twice.

    Args:
        family: the law of the cosine t = μᵀx.
        x: unit vectors, (…, d).
        loc: mean directions μ, (…, d).
        kappa: concentrations κ, float32 or float64. Its dtype is that of the result; vectors are converted to it.

    Batch shapes broadcast. In float32 and plain eager mode, our families take one fused kernel (see ``_fused``), and
    exponential families one more for their functions of κ alone. The backward pass takes one kernel, and a sum per
    argument that broadcasts.
    """
    plan = fused_plan(family.name, x, loc, kappa) if family in FUSED else None
    if plan is not None:
        return _FusedDensity.apply(x, loc, kappa, family, plan)
    return _log_density(family, x, loc, kappa)


def _log_density(family: Family, x: Tensor, loc: Tensor, kappa: Tensor) -> Tensor:
    """Compute ``log_density`` with torch operations."""
    t = cosine_between(unit_vectors_as(x, kappa.dtype), unit_vectors_as(loc, kappa.dtype))
    dim = operator.index(x.shape[-1])  # specialises compiled code on d
    return derived.log_density(family, t, kappa, dim) - log_sphere_area(dim)


class _FusedDensity(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, loc: Tensor, kappa: Tensor, family: Family, plan: Plan) -> Tensor:
        offset = mean = kappa  # not used by families that are no exponential families
        if isinstance(family, ExponentialFamily):
            offset, mean = derived.offset_and_mean_score(family, kappa, plan.dim)
        needs_ends = any(ctx.needs_input_grad)
        value, *ends = plan.forward(x, loc, kappa, offset, needs_ends=needs_ends)
        ctx.family, ctx.plan = family, plan
        ctx.save_for_backward(x, loc, kappa, mean, *ends)
        return value

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, loc, kappa, mean, *ends = ctx.saved_tensors
        needed = ctx.needs_input_grad[:3]
        if not is_plain_backward(grad):
            # The gradient itself may be differentiated or transformed.
            return *_gradients(ctx.family, (x, loc, kappa), needed, grad), None, None
        return *ctx.plan.backward(grad, x, loc, kappa, mean, tuple(ends), needed), None, None


def _gradients(
    family: Family, inputs: tuple[Tensor, Tensor, Tensor], needed: tuple[bool, ...], grad: Tensor
) -> list[Tensor | None]:
    """Return the gradients in x, loc and kappa by torch operations, None where not ``needed``."""
    create_graph = torch.is_grad_enabled()
    with torch.enable_grad():
        value = _log_density(family, *inputs)
        wanted = [tensor for tensor, needs in zip(inputs, needed, strict=True) if needs]
        found = iter(torch.autograd.grad(value, wanted, grad, create_graph=create_graph))
    return [next(found) if needs else None for needs in needed]
