"""E log(1 + νᵀX) for X with mean direction μ and any unit vector ν, as the KL to a Power Spherical needs it.

Let y = (1 + μᵀν)/2 and β = (d-1)/2. For two powers

    E_U (1+μᵀX)^a (1+νᵀX)^b = 2^{a+b} B(a+β, b+β)/B(β, β) · ₂F₁(-a, -b; β; y).

(At y = 1 this is Gauss' summation, at y = 0 a Beta integral.) We differentiate in b at 0 and write (-a)_k/(β)_k as a
Beta integral. For a Power Spherical X this gives

    -E log((1+νᵀX)/2) = λ + Δ(y),
    λ    = ∫₀¹ (1-v)^{β-1} (1-(1-v)^β) e(1-v)/e(1) dv/v,
    Δ(y) = ∫₀¹ (1-v)^{β-1} (e(1-yv) - e(1-v))/e(1) dv/v,      e(b) = b^κ.

A family whose density has a power series in 1+t is a mixture of such powers. The formulas hold with e the generating
function of its weights: von Mises–Fisher has e(b) = E_U e^{κb(1+t)} = exp(G(κb) + κb). All integrands are positive, so
nothing cancels. We substitute v = 1-e^{-x} and x = a sinh(s), which is linear up to the finest scale a = 1/(β+κ) and
logarithmic beyond, and use Gauss–Legendre nodes in s.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from powerspherical.special.gamma import mean_log1p
from powerspherical.special.quadrature import gauss_legendre

if TYPE_CHECKING:
    from powerspherical.families._precise import PreciseFamily

NODES = 64
NODES_SINGLE = 28  # enough for float32 accuracy; the computation is in float64 all the same
_EXPONENT = 42.0  # integrands are followed until they have fallen by e^-42


class _Rule(NamedTuple):
    """Nodes x > 0, v = 1-e^{-x}, 1-v, and weights for integrals against (1-v)^{β-1} dv/v; all (…, nodes)."""

    x: Tensor
    v: Tensor
    one_minus_v: Tensor
    weights: Tensor


def _rule(kappa: Tensor, y: Tensor, beta: float, turn: Tensor | None = None, count: int = NODES) -> _Rule:
    """Return a rule for integrands that fall like e(1-yv). Autograd treats it as constant.

    ``turn`` is an x near which the integrand changes its behaviour: two panels of ``count`` nodes meet there.
    """
    kappa, y = kappa.detach(), y.detach()
    scale = 1 / (beta + kappa)
    # e(1-yv)/e(1) ≤ e^{-κyv} for both families.
    bound = _EXPONENT / (kappa * y)
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
    x = scale * torch.sinh(s)
    v = -torch.expm1(-x)
    weights = scale * torch.cosh(s) * weights * torch.exp(-beta * x) / v
    return _Rule(x, v, torch.exp(-x), weights)


def mean_log_cosine(family: PreciseFamily, kappa: Tensor, dim: int, nodes: int = NODES) -> Tensor:
    """Return λ = -E log((1+t)/2) ≥ 0; differentiable twice."""
    beta = (dim - 1) / 2
    x, v, one_minus_v, weights = _rule(kappa, torch.ones_like(kappa), beta, count=nodes)
    shrink = torch.exp(family.log_shrink(kappa.unsqueeze(-1), one_minus_v, v, dim))
    return (weights * -torch.expm1(-beta * x) * shrink).sum(-1)


def mean_log1p_cosine(family: PreciseFamily, kappa: Tensor, dim: int) -> Tensor:
    """Return E log(1+t), accurate also where it nearly vanishes (large d, small κ)."""
    beta = (dim - 1) / 2
    x, v, one_minus_v, weights = _rule(kappa, torch.zeros_like(kappa), beta)
    fall = -torch.expm1(family.log_shrink(kappa.unsqueeze(-1), one_minus_v, v, dim))
    gain = (weights * -torch.expm1(-beta * x) * fall).sum(-1)
    uniform = mean_log1p(torch.zeros_like(kappa), dim)
    return torch.where(kappa < beta, uniform + gain, math.log(2) - mean_log_cosine(family, kappa, dim))


def mean_log1m_cosine(family: PreciseFamily, kappa: Tensor, dim: int) -> Tensor:
    """Return E log(1-t), which is E log(1+νᵀX) for ν = -μ (y = 0)."""
    beta = (dim - 1) / 2
    # Two panels meet between the scale 1/(β+κ) of e and the scale 1/β of the other factor, at their geometric mean.
    turn = torch.rsqrt(beta * (beta + kappa))
    x, v, one_minus_v, weights = _rule(kappa, torch.zeros_like(kappa), beta, turn)
    fall = -torch.expm1(family.log_shrink(kappa.unsqueeze(-1), one_minus_v, v, dim))
    loss = (weights * torch.exp(-beta * x) * fall).sum(-1)
    return mean_log1p(torch.zeros_like(kappa), dim) - loss


def misalignment(
    family: PreciseFamily, kappa: Tensor, haversine: Tensor, dim: int, nodes: int = NODES
) -> Tensor:
    """Return Δ = E log(1+μᵀX) - E log(1+νᵀX) ≥ 0, where haversine = (1-μᵀν)/2 = ‖μ-ν‖²/4; differentiable twice."""
    beta = (dim - 1) / 2
    kappa, haversine = torch.broadcast_tensors(kappa, haversine)
    # If e is a power, e(1-yv) turns from e^{-κx} into a constant as 1-v = e^{-x} falls below 1-y.
    turn = -torch.log(haversine) if family.antipode_power(kappa) is not None else None
    _, v, one_minus_v, weights = _rule(kappa, 1 - haversine, beta, turn, nodes)
    k, gap = kappa.unsqueeze(-1), haversine.unsqueeze(-1) * v
    reach = (1 - haversine).unsqueeze(-1) * v  # yv, so that 1-yv = one_minus_v + gap
    start = family.log_shrink(k, one_minus_v + gap, reach, dim)
    drop = family.log_shrink(k, one_minus_v, gap, dim)
    return (weights * torch.exp(start) * -torch.expm1(drop)).sum(-1)
