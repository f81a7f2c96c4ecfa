"""Maximum likelihood: the mean direction and the concentration of weighted unit vectors.

In an exponential family, with shares p_i that sum to one, the log-likelihood per point is κ T̄(μ) - Ψ(κ) with
T̄(μ) = Σ p_i T(μᵀx_i). Its maximum over κ increases with T̄, so the best direction maximises T̄ for every κ, and κ then
solves Ψ'(κ) = T̄. For the von Mises–Fisher distribution T̄ is linear and largest at the direction of the mean. In other
families a Newton search starts from there. In two or three dimensions, points without a common direction may have
several maxima of about the same height; the one found is then not always the highest.

Outside of exponential families the best direction depends on κ: steps in direction and κ alternate until both settle.
"""

from __future__ import annotations

import warnings
from typing import NamedTuple

import torch
from torch import Tensor

from powerspherical._torch.derivatives import value_and_slope
from powerspherical._torch.modes import without_autocast
from powerspherical._torch.vectors import computing, directions_of, unit_vectors_as
from powerspherical.distributions import validation
from powerspherical.distributions.geometry import cosine_between
from powerspherical.families import ExponentialFamily, Family, derived
from powerspherical.quadrature.cosine import Cosine

#: Points whose mean |T| is below this count as identical. It limits κ to about (d-1)/2 divided by it.
CLOSEST = {torch.float64: 1e-9, torch.float32: 1e-6}


class ConvergenceWarning(UserWarning):
    """A fit stopped before it converged."""


class Fit(NamedTuple):
    """The estimates of shapes (*batch, d) and (*batch,), and whether each converged, (*batch,)."""

    loc: Tensor
    concentration: Tensor
    converged: Tensor


class _Point(NamedTuple):
    """A direction, T̄ there, the step towards the maximum, and the gain in T̄ that the step predicts."""

    loc: Tensor
    mean: Tensor
    step: Tensor
    gain: Tensor


@torch.no_grad()
def maximum_likelihood(
    family: Family, x: Tensor, weights: Tensor | None, max_iter: int, bias_correction: bool
) -> Fit:
    """Check ``x`` (n, *batch, d) and ``weights`` (n, *batch), and fit them; see ``RotationallySymmetric.fit``."""
    if bias_correction and not isinstance(family, ExponentialFamily):
        raise ValueError(
            f"bias_correction works for exponential families only, not for the {family.title} distribution: "
            "leave it out"
        )
    x, shares = _unit_vectors_and_shares(x, weights)
    dim = x.shape[-1]
    x = unit_vectors_as(x, computing(x.dtype))
    with without_autocast(x):  # einsum would run in half precision
        if isinstance(family, ExponentialFamily):
            loc, mean, converged = _climb(family, x, shares, max_iter)
            mean = mean.clamp(max=-CLOSEST[x.dtype])
            concentration = derived.from_mean_score(family, mean, dim)
            if bias_correction:
                rows = 1 / shares.square().sum(0)
                concentration = _without_bias(family, concentration, rows, dim)
        else:
            loc, concentration, converged = _alternate(family, x, shares, max_iter)
    if not converged.all():
        warnings.warn(
            f"the mean direction did not settle in {max_iter} steps for {int((~converged).sum())} of "
            f"{converged.numel()} fit(s): raise max_iter, or look for points opposite to each other",
            ConvergenceWarning,
            stacklevel=4,  # past this function, torch's decorator and the class method
        )
    return Fit(loc, concentration.to(x.dtype), converged)


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
    x = validation.unit_vectors("x", x, validation.weights("weights", weights))
    # Divide by the largest weight first, because the sum of large weights could overflow.
    scaled = weights.double() / weights.amax(0).double()
    return x, scaled / scaled.sum(0)


def _climb(
    family: ExponentialFamily, x: Tensor, shares: Tensor, max_iter: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the direction that maximises T̄, T̄ there, and whether the search converged.

    If T is linear in t, that is the direction of the mean. Otherwise each step is the Newton step for data that are
    symmetric around μ, with the step length of Barzilai & Borwein (1988). It is taken only if T̄ does not fall.
    """
    if family.linear:
        loc = _directions(_weighted_sum(shares, x))
        mean = (shares * family.statistic(_cosine(x, loc))).sum(0)
        return loc, mean, torch.ones_like(mean, dtype=torch.bool)
    epsilon = torch.finfo(x.dtype).eps
    _, loc = _mean_and_direction(x, shares)
    here = _evaluated(family, loc, x, shares)
    scale = torch.ones_like(here.mean)
    for _ in range(max_iter):
        if (here.gain <= epsilon**1.5).all():
            break
        there = _evaluated(family, _directions(here.loc + _column(scale, x) * here.step), x, shares)
        better = there.mean >= here.mean + 4 * epsilon * here.mean  # T̄ < 0, so this allows for rounding
        moved = (there.loc - here.loc).double()
        slackened = (moved * (here.step - there.step)).sum(-1)
        secant = torch.where(slackened > 0, moved.square().sum(-1) / slackened, 2 * scale)
        scale = torch.where(better, secant, scale / 4)
        here = _Point(
            *(
                torch.where(better.reshape(better.shape + (1,) * (new.dim() - better.dim())), new, old)
                for new, old in zip(there, here, strict=True)
            )
        )
    return here.loc, here.mean, here.gain <= epsilon**1.5


def _alternate(family: Family, x: Tensor, shares: Tensor, max_iter: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return direction, κ, and whether both converged, by the steps of a ``mixture`` with one component.

    A step that would lower the likelihood is rejected and halved.
    """
    epsilon, dim = torch.finfo(x.dtype).eps, x.shape[-1]
    mean, loc = _mean_and_direction(x, shares)
    length = torch.linalg.vector_norm(mean, dim=-1).double()
    length = length.clamp(min=1e-6, max=1 - CLOSEST[x.dtype])
    kappa = family.from_mean_cosine(length, 1 - length, dim)
    largest = 1 / CLOSEST[x.dtype]
    fraction, settled = torch.ones_like(kappa), torch.zeros_like(kappa, dtype=torch.bool)
    score = _log_likelihood(family, loc, kappa, x, shares)
    for _ in range(max_iter):
        t = _cosine(x, loc)
        pull, bend = derived.forces(family, t, kappa.expand_as(t.minus), dim)
        target = _weighted_sum(shares * pull, x)
        slack = (shares * bend).sum(0).clamp(min=0) / (dim - 1)
        target = _directions(target + _column(slack, x) * loc)
        there = _directions(torch.lerp(loc, target, _column(fraction, x)))
        score_there = family.score(_cosine(x, there), kappa, dim)
        wanted = derived.fisher_step(family, (shares * score_there).sum(0), kappa, dim).clamp(max=largest)
        new_kappa = torch.lerp(kappa, wanted, fraction)
        new_score = _log_likelihood(family, there, new_kappa, x, shares)
        better = new_score >= score - 8 * epsilon * score.abs().clamp(min=1.0)
        moved = (there - loc).square().sum(-1).double() + ((new_kappa - kappa) / (1 + kappa)).square()
        settled = settled | (better & (moved <= epsilon**1.5)) | (fraction < 1e-6)
        loc = torch.where(better.unsqueeze(-1), there, loc)
        kappa, score = torch.where(better, new_kappa, kappa), torch.where(better, new_score, score)
        fraction = torch.where(better, (2 * fraction).clamp(max=1.0), fraction / 2)
        if settled.all():
            break
    return loc, kappa, settled


def _log_likelihood(family: Family, loc: Tensor, kappa: Tensor, x: Tensor, shares: Tensor) -> Tensor:
    """Return the mean log density relative to the uniform."""
    return (shares * derived.log_density(family, _cosine(x, loc), kappa, x.shape[-1])).sum(0)


def _cosine(x: Tensor, loc: Tensor) -> Cosine:
    """Return the cosine in float64, with 1-t and 1+t clamped away from zero."""
    tiny = torch.finfo(x.dtype).eps ** 2
    return Cosine(*(end.double().clamp(min=tiny) for end in cosine_between(x, loc)))


def _evaluated(family: ExponentialFamily, loc: Tensor, x: Tensor, shares: Tensor) -> _Point:
    """Return T̄ and the Newton step at the direction ``loc``."""
    t = _cosine(x, loc)
    pull, bend = derived.forces(family, t, torch.ones_like(t.minus), x.shape[-1])
    statistic = family.statistic(t)
    total = _weighted_sum(shares * pull, x)
    along = (total * loc).sum(-1, keepdim=True)
    across = total - along * loc
    # On the tangent space the Hessian of T̄ is -(Σ p T' t) I + Σ p T'' yyᵀ with y = x - tμ. If the y are isotropic, the
    # second term is -Σ p bend/(d-1) I.
    curvature = along[..., 0].double().clamp(min=0) + (shares * bend).sum(0) / (x.shape[-1] - 1)
    step = across / _column(curvature.clamp(min=torch.finfo(x.dtype).eps ** 0.5), x)
    return _Point(loc, (shares * statistic).sum(0), step, 0.5 * (step * across).sum(-1).double())


def _column(numbers: Tensor, like: Tensor) -> Tensor:
    return numbers.to(like.dtype).unsqueeze(-1)


def _weighted_sum(weights: Tensor, x: Tensor) -> Tensor:
    """Return Σ w_i x_i over the first axis."""
    return torch.einsum("n...,n...d->...d", weights.to(x.dtype), x)


def _directions(vectors: Tensor) -> Tensor:
    """Return v/‖v‖. In float64, because in 10⁶ dimensions torch's norm is off by 1e-5 in float32."""
    return directions_of(vectors.double()).to(vectors.dtype)


def _mean_and_direction(x: Tensor, shares: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean of the points, and its direction. If it vanishes, a small fixed vector decides."""
    mean = _weighted_sum(shares, x)
    index = torch.arange(1, x.shape[-1] + 1, dtype=x.dtype, device=x.device)
    anywhere = torch.nn.functional.normalize(torch.cos(index.square() + index.sqrt()), dim=-1)
    return mean, _directions(mean + torch.finfo(x.dtype).eps ** 0.5 * anywhere)


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
