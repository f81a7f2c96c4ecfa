"""Kullback–Leibler divergences of all nine ordered pairs, registered with torch.

Write Ψ for the log-partition of a tilt with statistic T ≤ 0 (see ``special.tilt``). For any p and a tilt q with
mean direction ν

    KL(p‖q) = KL(p‖U) + Ψ_q(κ_q) - κ_q E_p T_q(νᵀX),      Ψ_q = κ_q E_q T_q - KL(q‖U),

and -E_p T_q(νᵀX) is the loss at equal directions plus a misalignment, both ≥ 0. Between members of one family the
part at equal directions is the Bregman divergence of Ψ. Divergences from the uniform are computed in the dtype of
the parameters; the others, whose terms cancel where p is near q, in float64.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributions import register_kl

from powerspherical.distributions import validation
from powerspherical.distributions.geometry import cosine_ends
from powerspherical.distributions.power_spherical import PowerSpherical
from powerspherical.distributions.rotational import RotationallySymmetric
from powerspherical.distributions.uniform import HypersphericalUniform
from powerspherical.distributions.von_mises_fisher import VonMisesFisher
from powerspherical.kernels.precision import computing, unit_vectors_as
from powerspherical.special import EXPONENTIAL_TILT, POWER_TILT
from powerspherical.special._chunks import in_chunks
from powerspherical.special._constants import gauss_legendre
from powerspherical.special.overlap import NODES, NODES_SINGLE, mean_log_cosine, misalignment
from powerspherical.special.tilt import Tilt

_BREGMAN_NODES = 12


def _same_sphere(p: Any, q: Any) -> None:
    if p.dim != q.dim:
        raise ValueError(f"kl_divergence needs spheres of one dimension, got dim {p.dim} and dim {q.dim}")
    if q.batch_shape and p.batch_shape != q.batch_shape:
        validation.broadcast_shape(**{"p.batch_shape": p.batch_shape, "q.batch_shape": q.batch_shape})


class _Bregman(torch.autograd.Function):
    """Ψ(κ_q) - Ψ(κ_p) - (κ_q-κ_p)Ψ'(κ_p), the divergence within a family at equal directions."""

    generate_vmap_rule = True

    @staticmethod
    def forward(kappa_p: Tensor, kappa_q: Tensor, tilt: Tilt, dim: int) -> Tensor:
        change = kappa_q - kappa_p
        # Close by, Δ²∫₀¹(1-s)Ψ''(κ_p+sΔ)ds; at a distance the difference itself has no cancellation to speak of.
        near = change.abs() < 0.7 * (torch.minimum(kappa_p, kappa_q) + (dim - 1) / 2)
        nodes, weights = gauss_legendre(_BREGMAN_NODES, kappa_p)
        path = kappa_p.unsqueeze(-1) + torch.where(near, change, 0.0).unsqueeze(-1) * nodes
        curvature = (weights * (1 - nodes) * tilt.variance_statistic(path, dim)).sum(-1)
        means = tilt.mean_statistic(kappa_q, dim) - tilt.mean_statistic(kappa_p, dim)
        entropies = tilt.relative_entropy(kappa_p, dim) - tilt.relative_entropy(kappa_q, dim)
        return torch.where(near, change * change * curvature, entropies + kappa_q * means)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tilt, int], output: Tensor) -> None:
        kappa_p, kappa_q, ctx.tilt, ctx.dim = inputs
        ctx.save_for_backward(kappa_p, kappa_q)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None, None]:
        kappa_p, kappa_q = ctx.saved_tensors
        tilt, dim = ctx.tilt, ctx.dim
        in_p = (kappa_p - kappa_q) * tilt.variance_statistic(kappa_p, dim)
        in_q = tilt.mean_statistic(kappa_q, dim) - tilt.mean_statistic(kappa_p, dim)
        return grad * in_p, grad * in_q, None, None


def _bregman(tilt: Tilt, kappa_p: Tensor, kappa_q: Tensor, dim: int) -> Tensor:
    return _Bregman.apply(kappa_p, kappa_q, tilt, dim)


def _log_partition(tilt: Tilt, kappa: Tensor, dim: int) -> Tensor:
    """Ψ ≤ 0, a sum of two terms of one sign."""
    return kappa * tilt.mean_statistic(kappa, dim) - tilt.relative_entropy(kappa, dim)


def _operands(
    p: RotationallySymmetric, q: RotationallySymmetric
) -> tuple[torch.dtype, Tensor, Tensor, Tensor]:
    """The dtype of the result, and in float64: κ_p, κ_q and (1-μᵀν)/2, of the common batch shape."""
    _same_sphere(p, q)
    dtype = torch.promote_types(computing(p.loc.dtype), computing(q.loc.dtype))
    one_minus_cosine, _ = cosine_ends(
        unit_vectors_as(p.loc, torch.float64), unit_vectors_as(q.loc, torch.float64)
    )
    half_chord = (0.5 * one_minus_cosine).clamp(max=1.0)
    kappas = p.concentration.double(), q.concentration.double()
    return dtype, *torch.broadcast_tensors(*kappas, half_chord)


@register_kl(PowerSpherical, HypersphericalUniform)
@register_kl(VonMisesFisher, HypersphericalUniform)
def _kl_from_uniform(p: RotationallySymmetric, q: HypersphericalUniform) -> Tensor:
    _same_sphere(p, q)
    divergence = p._tilt.relative_entropy(p._exact_concentration, p.dim)
    if q.batch_shape and q.batch_shape != p.batch_shape:
        divergence = divergence.expand(torch.broadcast_shapes(p.batch_shape, q.batch_shape))
    return divergence


@register_kl(HypersphericalUniform, HypersphericalUniform)
def _kl_uniform_uniform(p: HypersphericalUniform, q: HypersphericalUniform) -> Tensor:
    _same_sphere(p, q)
    return torch.zeros_like(p.entropy()).expand(torch.broadcast_shapes(p.batch_shape, q.batch_shape))


@register_kl(HypersphericalUniform, PowerSpherical)
@register_kl(HypersphericalUniform, VonMisesFisher)
def _kl_of_uniform(p: HypersphericalUniform, q: RotationallySymmetric) -> Tensor:
    _same_sphere(p, q)
    # The uniform is the member κ = 0 of q's family, whatever its direction.
    kappa = q.concentration.double()
    divergence = _bregman(q._tilt, torch.zeros_like(kappa), kappa, q.dim).to(computing(q.loc.dtype))
    return divergence.expand(torch.broadcast_shapes(p.batch_shape, q.batch_shape))


@register_kl(PowerSpherical, PowerSpherical)
def _kl_power_power(p: PowerSpherical, q: PowerSpherical) -> Tensor:
    dtype, kappa_p, kappa_q, half_chord = _operands(p, q)
    nodes = NODES if dtype == torch.float64 else NODES_SINGLE

    def divergence(kappa_p: Tensor, kappa_q: Tensor, half_chord: Tensor) -> Tensor:
        aligned = _bregman(POWER_TILT, kappa_p, kappa_q, p.dim)
        return aligned + kappa_q * misalignment(POWER_TILT, kappa_p, half_chord, p.dim, nodes)

    return in_chunks(divergence, kappa_p, kappa_q, half_chord).to(dtype)


@register_kl(VonMisesFisher, PowerSpherical)
def _kl_exponential_power(p: VonMisesFisher, q: PowerSpherical) -> Tensor:
    dtype, kappa_p, kappa_q, half_chord = _operands(p, q)
    nodes = NODES if dtype == torch.float64 else NODES_SINGLE

    def divergence(kappa_p: Tensor, kappa_q: Tensor, half_chord: Tensor) -> Tensor:
        loss = mean_log_cosine(EXPONENTIAL_TILT, kappa_p, p.dim, nodes)
        loss = loss + misalignment(EXPONENTIAL_TILT, kappa_p, half_chord, p.dim, nodes)
        entropy = EXPONENTIAL_TILT.relative_entropy(kappa_p, p.dim)
        return entropy + _log_partition(POWER_TILT, kappa_q, p.dim) + kappa_q * loss

    return in_chunks(divergence, kappa_p, kappa_q, half_chord).to(dtype)


@register_kl(VonMisesFisher, VonMisesFisher)
def _kl_exponential_exponential(p: VonMisesFisher, q: VonMisesFisher) -> Tensor:
    dtype, kappa_p, kappa_q, half_chord = _operands(p, q)
    aligned = _bregman(EXPONENTIAL_TILT, kappa_p, kappa_q, p.dim)
    misaligned = 2 * half_chord * EXPONENTIAL_TILT.mean_cosine(kappa_p, p.dim)
    return (aligned + kappa_q * misaligned).to(dtype)


@register_kl(PowerSpherical, VonMisesFisher)
def _kl_power_exponential(p: PowerSpherical, q: VonMisesFisher) -> Tensor:
    dtype, kappa_p, kappa_q, half_chord = _operands(p, q)
    loss = POWER_TILT.mean_cosine_complement(kappa_p, p.dim)
    loss = loss + 2 * half_chord * POWER_TILT.mean_cosine(kappa_p, p.dim)
    entropy = POWER_TILT.relative_entropy(kappa_p, p.dim)
    return (entropy + _log_partition(EXPONENTIAL_TILT, kappa_q, p.dim) + kappa_q * loss).to(dtype)
