"""E log(1 + νᵀX) for X of a family with mean direction μ and any unit vector ν: what the KL from a Power Spherical
distribution needs.

Let y = (1 + μᵀν)/2 and β = (d-1)/2. For two powers

    E_U (1+μᵀX)^a (1+νᵀX)^b = 2^{a+b} B(a+β, b+β)/B(β, β) · ₂F₁(-a, -b; β; y),

(it is Gauss' summation at y = 1 and a Beta integral at y = 0). Its derivative in b at 0, with
(-a)_k/(β)_k summed under a Beta integral, gives for a Power Spherical X

    -E log((1+νᵀX)/2) = λ + Δ(y),
    λ    = ∫₀¹ (1-v)^{β-1} (1-(1-v)^β) e(1-v)/e(1) dv/v,
    Δ(y) = ∫₀¹ (1-v)^{β-1} (e(1-yv) - e(1-v))/e(1) dv/v,      e(b) = b^κ.

Any other family whose density has a power series in 1+t is a mixture of such powers, and the same formulas hold
with e(b) the generating function of its weights: von Mises–Fisher has e(b) = E_U e^{κb(1+t)} = exp(G(κb) + κb).
All integrands are positive, so nothing cancels. Substituting v = 1-e^{-x} and x = a sinh(s), which is linear on
the finest scale a = 1/(β+κ) and logarithmic beyond it, leaves integrands for Gauss–Legendre nodes.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from powerspherical.special._quadrature import gauss_legendre
from powerspherical.special.gamma import mean_log1p

if TYPE_CHECKING:
    from powerspherical.families._precise import PreciseFamily

NODES = 64
NODES_SINGLE = 28  # for a result in float32, although computed in float64
_EXPONENT = 42.0


def _nodes(
    kappa: Tensor, reach: Tensor, beta: float, turn: Tensor | None = None, count: int = NODES
) -> tuple[Tensor, Tensor]:
    """x and the weights of dx on (…, nodes), up to where e^{-βx} e(1-yv) has vanished; constants to autograd.

    ``reach`` is y, and ``turn`` a point near which the integrand changes: two panels meet there.
    """
    kappa, reach = kappa.detach(), reach.detach()
    scale = 1 / (beta + kappa)
    # e(1-yv)/e(1) ≤ e^{-κyv} for both families.
    bound = _EXPONENT / (kappa * reach)
    end = torch.where(bound < 0.5, -torch.log1p(-bound), torch.inf).clamp(max=_EXPONENT / beta)
    span = torch.asinh(end / scale).unsqueeze(-1)
    nodes, weights = gauss_legendre(count, kappa)
    if turn is None:
        s, weights = span * nodes, span * weights
    else:
        middle = torch.asinh(turn.detach() / scale).unsqueeze(-1).clamp(0.1 * span, 0.9 * span)
        rest = span - middle
        s = torch.cat((middle * nodes, middle + rest * nodes), -1)
        weights = torch.cat((middle * weights, rest * weights), -1)
    scale = scale.unsqueeze(-1)
    return scale * torch.sinh(s), scale * torch.cosh(s) * weights


def mean_log_cosine(family: PreciseFamily, kappa: Tensor, dim: int, nodes: int = NODES) -> Tensor:
    """λ = -E log((1+t)/2) ≥ 0; differentiable twice."""
    beta = (dim - 1) / 2
    x, weights = _nodes(kappa, torch.ones_like(kappa), beta, count=nodes)
    v, lower = -torch.expm1(-x), torch.exp(-x)
    shrink = torch.exp(family.log_shrink(kappa.unsqueeze(-1), lower, v, dim))
    return (weights * torch.exp(-beta * x) * -torch.expm1(-beta * x) / v * shrink).sum(-1)


def mean_log1p_cosine(family: PreciseFamily, kappa: Tensor, dim: int) -> Tensor:
    """E log(1+t) for any family, in float64; accurate also where it nearly vanishes (large d, small κ)."""
    beta = (dim - 1) / 2
    x, weights = _nodes(kappa, torch.zeros_like(kappa), beta)
    v, lower = -torch.expm1(-x), torch.exp(-x)
    fall = -torch.expm1(family.log_shrink(kappa.unsqueeze(-1), lower, v, dim))
    gain = (weights * torch.exp(-beta * x) * -torch.expm1(-beta * x) / v * fall).sum(-1)
    uniform = mean_log1p(torch.zeros_like(kappa), dim)
    return torch.where(kappa < beta, uniform + gain, math.log(2) - mean_log_cosine(family, kappa, dim))


def mean_log1m_cosine(family: PreciseFamily, kappa: Tensor, dim: int) -> Tensor:
    """E log(1-t), which is ``mean_log1p_cosine`` seen from ν = -μ (y = 0)."""
    beta = (dim - 1) / 2
    # From the scale 1/(β+κ) of e to the scale 1/β of the other factor: two panels meet half-way, on a log scale.
    x, weights = _nodes(kappa, torch.zeros_like(kappa), beta, torch.rsqrt(beta * (beta + kappa)))
    v, lower = -torch.expm1(-x), torch.exp(-x)
    fall = -torch.expm1(family.log_shrink(kappa.unsqueeze(-1), lower, v, dim))
    loss = (weights * torch.exp(-2 * beta * x) / v * fall).sum(-1)
    return mean_log1p(torch.zeros_like(kappa), dim) - loss


def misalignment(
    family: PreciseFamily, kappa: Tensor, half_chord: Tensor, dim: int, nodes: int = NODES
) -> Tensor:
    """Δ = E log(1+μᵀX) - E log(1+νᵀX) ≥ 0, where half_chord = (1-μᵀν)/2 = ‖μ-ν‖²/4; differentiable twice."""
    beta = (dim - 1) / 2
    kappa, half_chord = torch.broadcast_tensors(kappa, half_chord)
    # Where e is a power, e(1-yv) turns from e^{-κx} to a constant as 1-v = e^{-x} falls below the half chord.
    turn = -torch.log(half_chord) if family.antipode_power(kappa) is not None else None
    x, weights = _nodes(kappa, 1 - half_chord, beta, turn, nodes)
    v, lower = -torch.expm1(-x), torch.exp(-x)
    k, gap = kappa.unsqueeze(-1), half_chord.unsqueeze(-1) * v
    reach = (1 - half_chord).unsqueeze(-1) * v  # yv, so that 1-yv = lower + gap
    start = family.log_shrink(k, lower + gap, reach, dim)
    drop = family.log_shrink(k, lower, gap, dim)
    return (weights * torch.exp(start - beta * x) * -torch.expm1(drop) / v).sum(-1)
