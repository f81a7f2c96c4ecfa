"""Kullback–Leibler divergences of all ordered pairs of families, at any angle, registered with torch.

Divergences to the uniform are computed in the dtype of the parameters. All others are computed in float64, because
their terms cancel if p is near q. ``Family.divergence`` has the closed forms of pairs of families.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributions import register_kl

from powerspherical.distributions import validation
from powerspherical.distributions.geometry import cosine_between
from powerspherical.distributions.rate import rate
from powerspherical.distributions.rotational import RotationallySymmetric
from powerspherical.distributions.uniform import HypersphericalUniform
from powerspherical.families import derived
from powerspherical.quadrature.cosine import Cosine
from powerspherical.sampling.precision import computing, unit_vectors_as


def _common_batch_shape(p: Any, q: Any) -> torch.Size:
    """Return the broadcast batch shape; raise ``ValueError`` unless both are on the same sphere."""
    if p.dim != q.dim:
        raise ValueError(
            f"kl_divergence needs two distributions of one dimension, got dim {p.dim} and dim {q.dim}"
        )
    if not q.batch_shape:
        return p.batch_shape
    return validation.broadcast_shape(**{"p.batch_shape": p.batch_shape, "q.batch_shape": q.batch_shape})


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
    kappa = q.concentration.to(dtype)
    # The uniform is the member κ = 0, with any direction.
    same = Cosine(torch.zeros_like(kappa), torch.full_like(kappa, 2.0))
    return (
        derived.divergence(q.family, torch.zeros_like(kappa), q.family, kappa, same, q.dim)
        .to(dtype)
        .expand(shape)
    )


@register_kl(RotationallySymmetric, RotationallySymmetric)
def _kl(p: RotationallySymmetric, q: RotationallySymmetric) -> Tensor:
    _common_batch_shape(p, q)
    dtype = torch.promote_types(computing(p.loc.dtype), computing(q.loc.dtype))
    angle = cosine_between(unit_vectors_as(p.loc, torch.float64), unit_vectors_as(q.loc, torch.float64))
    kappas = p.concentration.to(dtype), q.concentration.to(dtype)
    kappa_p, kappa_q, minus, plus = torch.broadcast_tensors(*kappas, *angle)
    angle = Cosine(minus.clamp(max=2.0), plus.clamp(max=2.0))
    return derived.divergence(p.family, kappa_p, q.family, kappa_q, angle, p.dim).to(dtype)
