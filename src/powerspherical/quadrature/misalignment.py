"""What the mean of log(1 + νᵀX) loses if ν is not the mean direction μ of X, as the KL to a Power Spherical needs it.

Let y = (1 + μᵀν)/2 and β = (d-1)/2. For two powers

    E_U (1+μᵀX)^a (1+νᵀX)^b = 2^{a+b} B(a+β, b+β)/B(β, β) · ₂F₁(-a, -b; β; y).

(At y = 1 this is Gauss' summation, at y = 0 a Beta integral.) We differentiate in b at 0 and write (-a)_k/(β)_k as a
Beta integral. For a Power Spherical X this gives

    E log(1+μᵀX) - E log(1+νᵀX) = ∫₀¹ (1-v)^{β-1} (e(1-yv) - e(1-v))/e(1) dv/v,      e(b) = b^κ.

A family whose density has a power series in 1+t is a mixture of such powers. The formula holds with e the generating
function of its weights: von Mises–Fisher has e(b) = E_U e^{κb(1+t)}. The integrand is positive, so nothing cancels. We
substitute v = 1-e^{-x} and x = a sinh(s), which is linear up to the finest scale a = 1/(β+κ) and logarithmic beyond,
and use Gauss–Legendre nodes in s.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from powerspherical._torch.elementary import log_of_share
from powerspherical.quadrature import gauss_legendre
from powerspherical.quadrature.cosine import Cosine
from powerspherical.special import curves

#: Nodes by the dtype of κ, which says what accuracy is wanted. The computation is in float64 all the same.
_NODES = {torch.float64: 64, torch.float32: 28}
_EXPONENT = 42.0  # the integrand is followed until it has fallen by e^-42

#: log e(lower)/e(lower + gap), as a function of κ, lower, gap and d.
LogShrink = Callable[[Tensor, Tensor, Tensor, int], Tensor]


def _rule(kappa: Tensor, y: Tensor, beta: float, turn: Tensor | None, count: int) -> tuple[Tensor, Tensor]:
    """Return nodes x > 0 and weights for integrals over v = 1-e^{-x} against (1-v)^{β-1} dv/v, both (…, nodes).

    ``turn`` is an x near which the integrand changes its behaviour: two panels of ``count`` nodes meet there. Autograd
    treats the rule as constant.
    """
    kappa, y = kappa.detach(), y.detach()
    scale = 1 / (beta + kappa)
    # e(1-yv)/e(1) ≤ e^{-κyv} for both families.
    bound = _EXPONENT / (kappa * y)
    end = torch.where(bound < 0.5, -torch.log1p(-bound), torch.inf).clamp(max=_EXPONENT / beta)
    span = torch.asinh(end / scale).unsqueeze(-1)
    nodes, weights = gauss_legendre(kappa, count).unbind()
    if turn is None:
        s, weights = span * nodes, span * weights
    else:
        middle = torch.asinh(turn.detach() / scale).unsqueeze(-1).clamp(0.1 * span, 0.9 * span)
        rest = span - middle
        s = torch.cat((middle * nodes, middle + rest * nodes), -1)
        weights = torch.cat((middle * weights, rest * weights), -1)
    scale = scale.unsqueeze(-1)
    x = scale * torch.sinh(s)
    return x, scale * torch.cosh(s) * weights * torch.exp(-beta * x) / -torch.expm1(-x)


def of_power_spherical(kappa: Tensor, angle: Cosine, dim: int) -> Tensor:
    """Return ``Family.misalignment`` of Power Spherical."""
    return _misalignment(_power_shrink, kappa, angle, dim, is_power=True)


def of_von_mises_fisher(kappa: Tensor, angle: Cosine, dim: int) -> Tensor:
    """Return ``Family.misalignment`` of von Mises–Fisher."""
    return _misalignment(_von_mises_fisher_shrink, kappa, angle, dim)


def _misalignment(
    log_shrink: LogShrink, kappa: Tensor, angle: Cosine, dim: int, *, is_power: bool = False
) -> Tensor:
    """Return E log(1+μᵀX) - E log(1+νᵀX) ≥ 0 in float64, for ν at ``angle`` from μ; differentiable twice.

    ``kappa`` and the angle have one shape. ``is_power`` says that e is a power.
    """
    beta, count = (dim - 1) / 2, _NODES[kappa.dtype]
    kappa, y = kappa.double(), 0.5 * angle.plus.double()
    haversine = 0.5 * angle.minus.double()  # 1-y
    # If e is a power, e(1-yv) turns from e^{-κx} into a constant as 1-v = e^{-x} falls below 1-y.
    x, weights = _rule(kappa, y, beta, -torch.log(haversine) if is_power else None, count)
    v, one_minus_v = -torch.expm1(-x), torch.exp(-x)
    # One call for the shrinkage from 1 to 1-yv = 1-v + gap, and from there to 1-v
    gap = haversine.unsqueeze(-1) * v
    lower = torch.cat((one_minus_v + gap, one_minus_v), -1)
    gaps = torch.cat((y.unsqueeze(-1) * v, gap), -1)
    start, drop = log_shrink(kappa.unsqueeze(-1), lower, gaps, dim).chunk(2, -1)
    return (weights * torch.exp(start) * -torch.expm1(drop)).sum(-1)


def _power_shrink(kappa: Tensor, lower: Tensor, gap: Tensor, dim: int) -> Tensor:
    """Return log e(lower)/e(lower+gap) with e(b) = b^κ."""
    upper = lower + gap
    return kappa * log_of_share(lower / upper, gap / upper)


#: Nodes of the integral below. Its integrand is analytic in a large region around a short interval.
_SHRINK_NODES = 8


def _von_mises_fisher_shrink(kappa: Tensor, lower: Tensor, gap: Tensor, dim: int) -> Tensor:
    """Return log e(lower)/e(lower+gap) with e(b) = E_U e^{κb(1+t)}.

    log e(b) is 2κb - offset(κb). Differences of the offset are integrals of 1 - E t where they would cancel.
    """
    near = 2 * gap <= lower
    step = torch.where(near, gap, 0.0).unsqueeze(-1)
    nodes, weights = gauss_legendre(kappa, _SHRINK_NODES).unbind()
    path = kappa.unsqueeze(-1) * (lower.unsqueeze(-1) + step * nodes)
    close = kappa * gap * (curves.value(path, "von_mises_fisher", "loss", dim) * weights).sum(-1)
    upper, low = curves.value(kappa * torch.stack((lower + gap, lower)), "von_mises_fisher", "offset", dim)
    return torch.where(near, close, upper - low) - 2 * kappa * gap
