"""The published methods that the experiments compare with, implemented from their formulas.

They are kept as published, with their weaknesses: nothing is clamped or rescaled, and nothing is computed in a wider
dtype than that of the arguments unless requested. For other purposes use the library's own functions.

- `power_spherical`: Algorithm 1 of De Cao & Aziz (2020), "The Power Spherical distribution".
- `von_mises_fisher`: Algorithms 1 and 3 of Davidson et al. (2018), "Hyperspherical variational auto-encoders",
  with the rejection sampler of Ulrich (1984) and Wood (1994).
- The closed forms of both papers, by log-gamma, digamma and exponentially scaled Bessel functions.
"""

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.distributions import Beta

ROUNDS = 1000
"""Proposals per draw before it counts as failed; a working sampler accepts two of three."""
TAYLOR_FROM = 10.0  # concentration above which `taylor` approximates b


def power_spherical(loc: Tensor, concentration: Tensor) -> Tensor:
    """Draws (…, d), one per concentration (…), around unit vectors `loc` that broadcast to (…, d).

    z ~ Beta((d-1)/2 + κ, (d-1)/2) with torch's implicit derivative, t = 2z-1, a uniform tangent direction, and
    the Householder reflection that maps e₁ to `loc`.
    """
    half = (loc.shape[-1] - 1) / 2
    z = Beta(half + concentration, torch.full_like(concentration, half), validate_args=False).rsample()
    return _assemble(2 * z - 1, loc)


def von_mises_fisher(
    loc: Tensor, concentration: Tensor, *, taylor: bool = False, wide: bool = False
) -> Tensor:
    """Draws (…, d), one per concentration (…), around unit vectors `loc` that broadcast to (…, d).

    The derivative in κ is that of the accepted proposal t = h(ε, κ) with ε fixed. The score-function term, which would
    correct for the rejections, is left out. A draw that is never accepted is NaN.

    Args:
        loc: unit vectors.
        concentration: κ.
        taylor: for κ > 10, replace the published b = (-2κ + √(4κ²+(d-1)²))/(d-1) by its expansion for large κ,
            (d-1)/(4κ), with a linear transition from 10 to 11. It avoids cancellation, but is wrong unless κ ≫ d.
        wide: draw t in float64 and round it to the dtype of the arguments.
    """
    exact = concentration.double() if wide else concentration
    t = von_mises_fisher_cosine(exact, loc.shape[-1], taylor=taylor)
    return _assemble(t.to(concentration.dtype), loc)


def von_mises_fisher_cosine(concentration: Tensor, dim: int, *, taylor: bool = False) -> Tensor:
    """The cosines t = μᵀx of one draw per concentration; NaN if no proposal is accepted."""
    m = dim - 1
    root = torch.sqrt(4 * concentration.square() + m**2)
    b = (root - 2 * concentration) / m
    if taylor:
        share = torch.clamp(concentration - TAYLOR_FROM, 0, 1)
        b = share * (m / (4 * concentration)) + (1 - share) * b
    with torch.no_grad():
        a = (m + 2 * concentration + root) / 4
        threshold = 4 * a * b / (1 + b) - m * math.log(m)
        half = torch.full_like(concentration, m / 2)
        proposal = Beta(half, half, validate_args=False)
        accepted = torch.full_like(concentration, math.nan)
        pending = torch.ones_like(concentration, dtype=torch.bool)
        for _ in range(ROUNDS):
            if not pending.any():
                break
            epsilon = proposal.sample()
            ratio = 2 * a * b / (1 - (1 - b) * epsilon)
            accept = m * ratio.log() - ratio + threshold >= torch.rand_like(concentration).log()
            accepted = torch.where(pending & accept, epsilon, accepted)
            pending &= ~accept
    return (1 - (1 + b) * accepted) / (1 - (1 - b) * accepted)


def _assemble(t: Tensor, loc: Tensor) -> Tensor:
    """x from t, a random direction v orthogonal to e₁, and the reflection that maps e₁ to `loc`."""
    dim = loc.shape[-1]
    t = t.unsqueeze(-1)
    v = torch.randn(*t.shape[:-1], dim - 1, dtype=t.dtype, device=t.device)
    v = v / v.norm(dim=-1, keepdim=True)
    y = torch.cat([t, torch.sqrt(1 - t.square()) * v], dim=-1)
    u = -loc
    u = torch.cat([1 + u[..., :1], u[..., 1:]], dim=-1)
    u = u / u.norm(dim=-1, keepdim=True)
    return y - 2 * (y * u).sum(-1, keepdim=True) * u


# The closed forms. `dim` and `concentration` are tensors of one dtype; all steps use it.


def log_sphere_area(dim: Tensor) -> Tensor:
    """The log of the area of the unit sphere in R^d."""
    return math.log(2) + dim / 2 * math.log(math.pi) - torch.lgamma(dim / 2)


def power_spherical_log_normalizer(dim: Tensor, concentration: Tensor) -> Tensor:
    """log N = (α+β) log 2 + β log π + log Γ(α) - log Γ(α+β)."""
    beta = (dim - 1) / 2
    alpha = beta + concentration
    total = alpha + beta
    return total * math.log(2) + beta * math.log(math.pi) + torch.lgamma(alpha) - torch.lgamma(total)


def power_spherical_log_density(dim: Tensor, concentration: Tensor, t: Tensor) -> Tensor:
    """κ log(1+t) - log N."""
    return concentration * torch.log1p(t) - power_spherical_log_normalizer(dim, concentration)


def power_spherical_entropy(dim: Tensor, concentration: Tensor) -> Tensor:
    """log N - κ(log 2 + ψ(α) - ψ(α+β))."""
    beta = (dim - 1) / 2
    alpha = beta + concentration
    mean_log = math.log(2) + torch.digamma(alpha) - torch.digamma(alpha + beta)
    return power_spherical_log_normalizer(dim, concentration) - concentration * mean_log


def power_spherical_kl_uniform(dim: Tensor, concentration: Tensor) -> Tensor:
    """The entropy of the uniform minus that of the Power Spherical distribution."""
    return log_sphere_area(dim) - power_spherical_entropy(dim, concentration)


def von_mises_fisher_log_normalizer(dim: Tensor, concentration: Tensor) -> Tensor:
    """log C = d/2 log 2π - ν log κ + log(e^{-κ} I_ν(κ)) + κ with ν = d/2 - 1; the density is e^{κt}/C."""
    order = dim / 2 - 1
    log_bessel = torch.log(_ScaledBessel.apply(order, concentration)) + concentration
    return dim / 2 * math.log(2 * math.pi) - order * torch.log(concentration) + log_bessel


def von_mises_fisher_log_density(dim: Tensor, concentration: Tensor, t: Tensor) -> Tensor:
    """κt - log C."""
    return concentration * t - von_mises_fisher_log_normalizer(dim, concentration)


def von_mises_fisher_kl_uniform(dim: Tensor, concentration: Tensor) -> Tensor:
    """κ I_{d/2}(κ)/I_{d/2-1}(κ) - log C + log(area)."""
    order = dim / 2 - 1
    ratio = _ScaledBessel.apply(order + 1, concentration) / _ScaledBessel.apply(order, concentration)
    return concentration * ratio - von_mises_fisher_log_normalizer(dim, concentration) + log_sphere_area(dim)


class _ScaledBessel(torch.autograd.Function):
    """e^{-z} I_ν(z) in the dtype of the arguments; differentiable once, in z.

    Calls SciPy on the CPU, whatever the device of the arguments, as Davidson et al. (2018) do.
    """

    @staticmethod
    def forward(ctx: Any, order: Tensor, argument: Tensor) -> Tensor:
        value = _ive(order, argument)
        ctx.save_for_backward(order, argument, value)
        return value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor]:
        """From I_ν' = I_{ν-1} - (ν/z) I_ν (DLMF 10.29.2) and the derivative of e^{-z}."""
        order, argument, value = ctx.saved_tensors
        slope = _ive(order - 1, argument) - value * (order + argument) / argument
        return None, (grad * slope).sum_to_size(argument.shape)


def _ive(order: Tensor, argument: Tensor) -> Tensor:
    from scipy.special import ive

    return torch.as_tensor(ive(order.cpu().numpy(), argument.cpu().numpy())).to(argument.device)
