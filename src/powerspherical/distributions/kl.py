"""Kullback–Leibler divergences of all ordered pairs of families, at any angle, registered with torch.

Divergences to the uniform are computed in the dtype of the parameters. All others are computed in float64, because
their terms cancel if p is near q. ``Family.divergence_from`` has the closed forms of pairs of families.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributions import register_kl

from powerspherical.distributions import validation
from powerspherical.distributions.geometry import cosine_ends
from powerspherical.distributions.rate import rate
from powerspherical.distributions.rotational import RotationallySymmetric
from powerspherical.distributions.uniform import HypersphericalUniform
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
    divergence = q.family.divergence_from_uniform(q.concentration.double(), q.dim)
    return divergence.to(computing(q.loc.dtype)).expand(shape)


@register_kl(RotationallySymmetric, RotationallySymmetric)
def _kl(p: RotationallySymmetric, q: RotationallySymmetric) -> Tensor:
    _common_batch_shape(p, q)
    dtype = torch.promote_types(computing(p.loc.dtype), computing(q.loc.dtype))
    one_minus_cosine, _ = cosine_ends(
        unit_vectors_as(p.loc, torch.float64), unit_vectors_as(q.loc, torch.float64)
    )
    haversine = (0.5 * one_minus_cosine).clamp(max=1.0)
    kappas = p.concentration.double(), q.concentration.double()
    kappa_p, kappa_q, haversine = torch.broadcast_tensors(*kappas, haversine)
    single = dtype != torch.float64
    return q.family.divergence_from(p.family, kappa_p, kappa_q, haversine, p.dim, single=single).to(dtype)
