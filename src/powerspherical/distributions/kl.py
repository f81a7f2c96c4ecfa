"""Kullback–Leibler divergences of all ordered pairs of families, at any angle, registered with torch.

Divergences to the uniform are computed in the dtype of the parameters, and all others in float64, because their terms
cancel if p is near q.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributions import kl_divergence, register_kl

from powerspherical._torch.chunks import CHUNK, in_chunks
from powerspherical._torch.operators import composite, is_ours
from powerspherical._torch.precision import WITHOUT_FLOAT64, back, needs_float64, with_float64
from powerspherical._torch.vectors import computing, cosine_between, unit_vectors_as
from powerspherical.distributions import validation
from powerspherical.distributions.matrix import cosines_between, unit_rows
from powerspherical.distributions.rotational import RotationallySymmetric
from powerspherical.distributions.uniform import HypersphericalUniform
from powerspherical.engines import block_size
from powerspherical.families import Cosine, Family, family_named
from powerspherical.kernels.dispatch import by_kernel, composed_gradients, is_plain
from powerspherical.kernels.registry import Gradients, Kernel, Tensors


def _common_batch_shape(p: Any, q: Any) -> torch.Size:
    """Return the broadcast batch shape; raise ``ValueError`` unless both are on the same sphere."""
    if p.event_shape != q.event_shape:
        raise ValueError(f"p and q must be of one dimension, got dim {p.dim} and dim {q.dim}")
    if q.batch_shape in (torch.Size(), p.batch_shape):
        return p.batch_shape
    return validation.broadcast_shape(**{"p.batch_shape": p.batch_shape, "q.batch_shape": q.batch_shape})


def rate(family: Family, concentration: Tensor, dim: int) -> Tensor:
    """Return the divergence from the uniform, ``family.relative_entropy(concentration, dim)``.

    ``torch.compile`` records it as one operator for the families of this package, and traces the code of other ones.
    """
    if is_ours(type(family)):
        return _relative_entropy(concentration, dim, family.name)
    return family.relative_entropy(concentration, dim)


@composite("relative_entropy", "Tensor concentration, int dim, str family", "Tensor")
def _relative_entropy(concentration: Tensor, dim: int, family: str) -> Tensor:
    return family_named(family).relative_entropy(concentration, dim)


@register_kl(HypersphericalUniform, HypersphericalUniform)
def _kl_uniform_uniform(p: HypersphericalUniform, q: HypersphericalUniform) -> Tensor:
    return torch.zeros_like(p.entropy()).expand(_common_batch_shape(p, q))


@register_kl(RotationallySymmetric, HypersphericalUniform)
def _kl_to_uniform(p: RotationallySymmetric, q: HypersphericalUniform) -> Tensor:
    shape = _common_batch_shape(p, q)
    divergence = rate(p.family, p._exact_concentration, p.dim)
    return divergence if shape == p.batch_shape else divergence.expand(shape)


@register_kl(HypersphericalUniform, RotationallySymmetric)
def _kl_from_uniform(p: HypersphericalUniform, q: RotationallySymmetric) -> Tensor:
    shape = _common_batch_shape(p, q)
    dtype = computing(q.loc.dtype)
    kappa = with_float64(q.concentration.to(dtype))
    # The uniform is the member κ = 0, with any direction.
    same = Cosine(torch.zeros_like(kappa), torch.full_like(kappa, 2.0))
    found = _divergence(q.family, q.family, torch.zeros_like(kappa), kappa, same, q.dim, dtype)
    return back(found.expand(shape), q.concentration)


@register_kl(RotationallySymmetric, RotationallySymmetric)
def _kl(p: RotationallySymmetric, q: RotationallySymmetric) -> Tensor:
    _common_batch_shape(p, q)
    dtype = computing(torch.promote_types(p.loc.dtype, q.loc.dtype))
    kappas = p.concentration.to(dtype), q.concentration.to(dtype)
    # The compiler must specialise on d, which has its own formulas: operator.index does that.
    dim = operator.index(p.event_shape[0])

    def between(loc_p: Tensor, loc_q: Tensor, kappa_p: Tensor, kappa_q: Tensor) -> Tensor:
        locs = unit_vectors_as(loc_p, torch.float64), unit_vectors_as(loc_q, torch.float64)
        minus, plus = cosine_between(*locs)
        angle = Cosine(minus.clamp(max=2.0), plus.clamp(max=2.0))
        return _divergence(p.family, q.family, kappa_p, kappa_q, angle, dim, dtype)

    compute = needs_float64(between) if p.loc.device.type == WITHOUT_FLOAT64 else between
    return compute(p.loc, q.loc, *kappas)


def _divergence(
    p: Family, q: Family, kappa_p: Tensor, kappa_q: Tensor, angle: Cosine, dim: int, dtype: torch.dtype
) -> Tensor:
    """Return the divergences ≥ 0 in ``dtype``. Arguments broadcast. Each pair has its quadrature nodes."""

    def entries(kappa_p: Tensor, kappa_q: Tensor, minus: Tensor, plus: Tensor) -> Tensor:
        return q.divergence(p, kappa_p, kappa_q, Cosine(minus, plus), dim).clamp(min=0.0)

    return in_chunks(entries, *torch.broadcast_tensors(kappa_p, kappa_q, *angle)).to(dtype)


def pairwise_kl(
    p: RotationallySymmetric | HypersphericalUniform, q: RotationallySymmetric | HypersphericalUniform
) -> Tensor:
    """Return KL(p_i‖q_j) for all pairs of two batches of distributions, of shape p.batch_shape + q.batch_shape.

    Args:
        p, q: distributions of this package on the same sphere, of any two families.

    It is differentiable twice. The first derivative needs, beyond the result, the memory of a block of about 4096 pairs
    (at least one row). The dtype is the larger of the two, and at least float32.

    Accuracy: that of ``kl_divergence``, plus about 2e-16·|dKL/dt| where t is the cosine of two mean directions: 2e-16·κ
    between von Mises–Fisher distributions. The error matters only if two directions nearly agree in float64.

    >>> from powerspherical import PowerSpherical, pairwise_kl
    >>> p = PowerSpherical(torch.eye(3), torch.tensor([1.0, 10.0, 100.0]))
    >>> pairwise_kl(p, p).shape
    torch.Size([3, 3])
    >>> bool((pairwise_kl(p, p).diagonal().abs() < 1e-6).all())
    True
    """
    for name, one in (("p", p), ("q", q)):
        if not isinstance(one, (HypersphericalUniform, RotationallySymmetric)):
            raise TypeError(f"{name} must be a distribution of this package, got {type(one).__name__}")
    if p.dim != q.dim:
        raise ValueError(f"p and q must have the same dimension, got dim {p.dim} and dim {q.dim}")
    shape = p.batch_shape + q.batch_shape
    if isinstance(q, HypersphericalUniform):
        found = kl_divergence(p, HypersphericalUniform(q.dim, validate_args=False))
        return found.reshape(p.batch_shape + (1,) * len(q.batch_shape)).expand(shape)
    if isinstance(p, HypersphericalUniform):
        return kl_divergence(HypersphericalUniform(p.dim, validate_args=False), q).expand(shape)
    dtype = torch.promote_types(computing(p.loc.dtype), computing(q.loc.dtype))
    tensors: Tensors = ()
    for one in (p, q):
        rows = unit_rows(with_float64(one.loc).double().reshape(-1, one.dim))
        tensors = *tensors, rows, with_float64(one.concentration).to(dtype).reshape(-1)

    def pairs(loc_p: Tensor, kappa_p: Tensor, loc_q: Tensor, kappa_q: Tensor) -> Tensor:
        cosines = cosines_between(loc_p, loc_q).clamp(-1.0, 1.0)
        angle = Cosine(1 - cosines, 1 + cosines)
        return _divergence(p.family, q.family, kappa_p.unsqueeze(-1), kappa_q, angle, p.dim, dtype)

    if is_plain(*tensors):
        size = max(block_size(CHUNK) // max(len(tensors[2]), 1), 1)
        blocks = [slice(start, start + size) for start in range(0, len(tensors[0]), size)]
        found = by_kernel(_IN_BLOCKS, pairs, (pairs, dtype, blocks), *tensors)
    else:
        found = pairs(*tensors)
    return back(found.reshape(shape), p.loc)


def _evaluated(tensors: Tensors, options: Any, needed: Sequence[bool]) -> tuple[Tensor, Tensors]:
    """Return a matrix of divergences, computed a block of rows at a time."""
    (loc, kappa, *columns), (pairs, dtype, blocks) = tensors, options
    out = loc.new_empty((len(loc), len(columns[0])), dtype=dtype)
    for rows in blocks:
        out[rows] = pairs(loc[rows], kappa[rows], *columns)
    return out, ()


def _gradients(
    grads: Gradients, needed: Sequence[bool], tensors: Tensors, kept: Tensors, options: Any
) -> Gradients:
    """Return the gradients of ``_evaluated``, for which each block is computed again."""
    (grad,), (pairs, _, blocks) = grads, options
    assert grad is not None
    totals = [torch.zeros_like(x) if needs else None for x, needs in zip(tensors, needed, strict=True)]
    for rows in blocks:
        parts = [x[rows] if place < 2 else x for place, x in enumerate(tensors)]
        leaves = [x.detach().requires_grad_(needs) for x, needs in zip(parts, needed, strict=True)]
        found = composed_gradients(pairs, (grad[rows],), needed, tuple(leaves))
        for place, (total, one) in enumerate(zip(totals, found, strict=True)):
            if total is not None and one is not None:
                (total[rows] if place < 2 else total).add_(one)
    return tuple(totals)


_IN_BLOCKS = Kernel(_evaluated, _gradients)
