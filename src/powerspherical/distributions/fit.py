"""Maximum likelihood: the mean direction and the concentration of weighted unit vectors.

In an exponential family, with shares p_i that sum to one, the log-likelihood per point is κ T̄(μ) - Ψ(κ) with
T̄(μ) = Σ p_i T(μᵀx_i). Its maximum over κ increases with T̄, so the best direction maximises T̄ for every κ, and κ then
solves Ψ'(κ) = T̄. For the von Mises–Fisher distribution T̄ is linear and largest at the direction of the mean. In other
families a Newton search starts from there; in two or three dimensions it may end in a lower one of several maxima.
Outside of exponential families the best direction depends on κ, so both are searched together.
"""

from __future__ import annotations

import warnings
from typing import NamedTuple

import torch
from torch import Tensor

from powerspherical._torch.derivatives import value_and_slope
from powerspherical._torch.modes import without_autocast
from powerspherical._torch.precision import needs_float64
from powerspherical._torch.vectors import computing, directions_of, unit_vectors_as
from powerspherical.distributions import validation
from powerspherical.families import ExponentialFamily, Family, derived
from powerspherical.quadrature.cosine import Cosine

#: Points whose mean |T| is below this count as identical. It limits κ to about (d-1)/2 divided by it.
CLOSEST = {torch.float64: 1e-9, torch.float32: 1e-6}


class ConvergenceWarning(UserWarning):
    """A fit stopped before it converged."""


class _Point(NamedTuple):
    """A point of the search. In an exponential family the objective is T̄ and κ stays 1."""

    place: Tensor  # (μ, log(1+κ)), of shape (*batch, d + 1)
    step: Tensor  # Newton's in μ, for data that are symmetric around μ, and Fisher scoring in log(1+κ)
    objective: Tensor  # T̄, or the mean log density relative to the uniform, (*batch, 1)
    rounding: Tensor  # a bound on its rounding error


@needs_float64
@torch.no_grad()
def maximum_likelihood(
    family: Family, x: Tensor, weights: Tensor | None, max_iter: int, bias_correction: bool
) -> tuple[Tensor, Tensor]:
    """Return the fitted direction (*batch, d) and concentration (*batch,); see ``RotationallySymmetric.fit``."""
    if bias_correction and not isinstance(family, ExponentialFamily):
        found = f"not for the {family.title} distribution: leave it out"
        raise ValueError(f"bias_correction works for exponential families only, {found}")
    x, shares = _unit_vectors_and_shares(x, weights)
    dim = x.shape[-1]
    x = unit_vectors_as(x, computing(x.dtype))
    with without_autocast(x):  # einsum would run in half precision
        best, converged = _search(family, x, shares, max_iter)
    loc, concentration = best.place[..., :-1], torch.expm1(best.place[..., -1])
    if isinstance(family, ExponentialFamily):
        mean = best.objective[..., 0].clamp(max=-CLOSEST[x.dtype])
        concentration = derived.from_mean_score(family, mean, dim)
        if bias_correction:
            rows = 1 / shares.square().sum(0)
            concentration = _without_bias(family, concentration, rows, dim)
    if not converged.all():
        warnings.warn(
            f"the mean direction did not settle in {max_iter} steps for {int((~converged).sum())} of "
            f"{converged.numel()} fit(s): raise max_iter, or look for points opposite to each other",
            ConvergenceWarning,
            stacklevel=5,  # past this function, its two decorators and the class method
        )
    return loc.to(x.dtype), concentration.to(x.dtype)


def _unit_vectors_and_shares(x: Tensor, weights: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the checked ``x`` and the weights divided by their sum over the first axis, in float64."""
    validation.vectors("x", x)
    x = x.detach()
    if x.dim() < 2 or not x.shape[0]:
        raise ValueError(
            f"x must hold at least one point, of shape (n, …, d) with n ≥ 1, got {tuple(x.shape)}"
        )
    if weights is None:
        shares = x.new_full(x.shape[:-1], 1 / x.shape[0], dtype=torch.float64)
        return validation.unit_vectors("x", x), shares
    weights = validation.floating_tensor("weights", weights).detach()
    if weights.shape != x.shape[:-1]:
        raise ValueError(
            f"weights must have the shape {tuple(x.shape[:-1])} of x without its last axis, got {tuple(weights.shape)}"
        )
    if weights.device != x.device:
        raise ValueError(f"x is on {x.device} and weights on {weights.device}: move one of them")
    x = validation.unit_vectors("x", x, *validation.weights("weights", weights))
    # Divide by the largest weight first, because the sum of large weights could overflow.
    scaled = weights.double() / weights.amax(0).double()
    return x, scaled / scaled.sum(0)


def _search(family: Family, x: Tensor, shares: Tensor, max_iter: int) -> tuple[_Point, Tensor]:
    """Return the best point, and whether the search converged.

    Steps have the length of Barzilai & Borwein (1988), and are taken only if the objective does not fall.
    """
    epsilon = torch.finfo(x.dtype).eps
    start = _weighted_sum(shares, x)
    kappa = scale = torch.ones_like(start[..., :1])
    if not isinstance(family, ExponentialFamily):
        length = torch.linalg.vector_norm(start, dim=-1, keepdim=True).clamp(1e-6, 1 - CLOSEST[x.dtype])
        kappa = family.from_mean_cosine(length, 1 - length, x.shape[-1])
    if not family.linear:  # if the mean vanishes, a small fixed vector decides
        index = torch.arange(1, x.shape[-1] + 1, dtype=torch.float64, device=x.device)
        start = start + epsilon**0.5 * directions_of(torch.cos(index.square() + index.sqrt()))
    here = _evaluated(family, torch.cat((start, torch.log1p(kappa)), -1), x, shares)
    steps = 0
    while True:
        # The step is negligible, or rounding hides what it would gain.
        settled = (here.step.square().sum(-1) <= 4 * epsilon**1.5) | (scale[..., 0] < 1e-6)
        if steps == max_iter or settled.all():
            return here, settled
        steps += 1
        there = _evaluated(family, here.place + scale * here.step, x, shares)
        better = there.objective >= here.objective - here.rounding
        moved = there.place - here.place
        slackened = (moved * (here.step - there.step)).sum(-1, keepdim=True)
        secant = torch.where(slackened > 0, moved.square().sum(-1, keepdim=True) / slackened, 2 * scale)
        scale = torch.where(better, secant, scale / 4)
        here = _Point(*(torch.where(better, new, old) for new, old in zip(there, here, strict=True)))


def _evaluated(family: Family, place: Tensor, x: Tensor, shares: Tensor) -> _Point:
    """Return the objective and the step at μ and log(1+κ), after μ is normalised and κ clamped."""
    epsilon, dim = torch.finfo(x.dtype).eps, x.shape[-1]
    loc = directions_of(place[..., :-1])
    kappa = torch.expm1(place[..., -1]).clamp(min=0.0, max=1 / CLOSEST[x.dtype])
    # The ends of ``cosine_between``, without its derivatives.
    ends = ((x - end.to(x.dtype)).square().sum(-1).double() / 2 for end in (loc, -loc))
    t = Cosine(*(end.clamp(min=epsilon**2) for end in ends))
    pull, bend = derived.forces(family, t, kappa.expand_as(t.minus), dim)
    total = _weighted_sum(shares * pull, x)
    along = torch.linalg.vecdot(total, loc).unsqueeze(-1)
    across = total - along * loc
    # On the tangent space the Hessian of T̄ is -(Σ p T' t) I + Σ p T'' yyᵀ with y = x - tμ. If the y are isotropic, the
    # second term is -Σ p bend/(d-1) I.
    curvature = along.clamp(min=0) + (shares * bend).sum(0).unsqueeze(-1) / (dim - 1)
    step = across / curvature.clamp(min=epsilon**0.5)
    if isinstance(family, ExponentialFamily):
        terms, wanted = family.statistic(t), kappa
    else:
        terms = derived.log_density(family, t, kappa, dim)
        score = (shares * family.score(t, kappa, dim)).sum(0)
        wanted = derived.fisher_step(family, score, kappa, dim).clamp(max=1 / CLOSEST[x.dtype])
    log_kappa, log_wanted = (torch.log1p(one).unsqueeze(-1) for one in (kappa, wanted))
    objective, size = ((shares * one).sum(0).unsqueeze(-1) for one in (terms, terms.abs()))
    place, step = torch.cat((loc, log_kappa), -1), torch.cat((step, log_wanted - log_kappa), -1)
    return _Point(place, step, objective, 8 * epsilon * size)


def _weighted_sum(weights: Tensor, x: Tensor) -> Tensor:
    """Return Σ w_i x_i over the first axis, in float64."""
    return torch.einsum("n...,n...d->...d", weights.to(x.dtype), x).double()


def _without_bias(family: ExponentialFamily, concentration: Tensor, rows: Tensor, dim: int) -> Tensor:
    """Return κ without the bias that fitting μ causes, given the maximum-likelihood κ of ``rows`` points.

    At the fitted direction T̄ exceeds its value at the true one by about δ = (d-1)/(2nκ): half a χ² variable with d-1
    degrees of freedom, divided by nκ. Let ρ(κ) = E t, the mean resultant length. A change of T̄ by δ changes ρ by
    δρ'/Ψ'', and ρ² by about s/n with s = (d-1)ρρ'/(κΨ''). We subtract s/(n-1) from ρ², because the fitted κ makes s too
    small by the factor 1 - 1/n. If d is large, s = 1 - ρ², and (nρ² - 1)/(n-1) is the mean inner product of two
    different points, whose expectation is ‖E x‖² for every n. One point counts as two.
    """
    kappa = concentration.clamp(min=torch.finfo(torch.float64).tiny)
    length, slope = value_and_slope(lambda k: family.mean_cosine(k, dim), kappa)
    across = (dim - 1) * (length / kappa) * (slope / derived.information(family, kappa, dim))
    complement = family.mean_loss(kappa, dim)
    # 1 - ρ² instead of ρ², because ρ may be near one.
    rest = (complement * (2 - complement) + across / (rows - 1).clamp(min=1)).clamp(max=1)
    corrected = (1 - rest).sqrt()
    return family.from_mean_cosine(corrected, rest / (1 + corrected), dim)
