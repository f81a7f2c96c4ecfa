"""Maximum likelihood: the search of ``powerspherical.distributions.fit``, as a loop that ``jit`` can compile.

In an exponential family, with shares p_i that sum to one, the log-likelihood per point is κ T̄(μ) - Ψ(κ) with
T̄(μ) = Σ p_i T(μᵀx_i). The best direction maximises T̄ for every κ, and κ then solves Ψ'(κ) = T̄. Outside of
exponential families both are searched together.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from powerspherical.jax import curves
from powerspherical.jax.cosine import Cosine, direction
from powerspherical.jax.families import ExponentialFamily, Family
from powerspherical.jax.precision import as_float64, computing

#: Points whose mean |T| is below this count as identical. It limits κ to about (d-1)/2 divided by it.
CLOSEST = {"float64": 1e-9, "float32": 1e-6}


class _Point(NamedTuple):
    """A point (μ, log(1+κ)) of the search, the step from there, both (…, d + 1), and the objective, (…, 1).

    In an exponential family the objective is T̄ and κ stays 1. Otherwise it is the mean log density relative to the
    uniform. ``rounding`` bounds its rounding error. The step in μ is the Newton step for data that are symmetric around
    μ. That in log(1+κ) is a step of Fisher scoring.
    """

    place: Array
    step: Array
    objective: Array
    rounding: Array


def maximum_likelihood(
    family: Family, x: Any, weights: Any, max_iter: int, bias_correction: bool
) -> tuple[Array, Array]:
    """Return the fitted direction (…, d) and concentration (…,); see ``RotationallySymmetric.fit``."""
    x = jnp.asarray(x)
    if bias_correction and not isinstance(family, ExponentialFamily):
        raise ValueError(
            f"bias_correction works for exponential families only, not for the {family.title} family"
        )
    if x.ndim < 2 or not x.shape[0] or x.shape[-1] < 2:
        raise ValueError(
            f"x must hold at least one point, of shape (n, …, d) with n ≥ 1 and d ≥ 2, got {x.shape}"
        )
    weights = jnp.ones(x.shape[:-1], computing(x)) if weights is None else jnp.asarray(weights)
    if weights.shape != x.shape[:-1]:
        raise ValueError(
            f"weights must have the shape {x.shape[:-1]} of x without its last axis, got {weights.shape}"
        )
    return _fitted(family, max_iter, bias_correction, *lax.stop_gradient((x, weights)))


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _fitted(
    family: Family, max_iter: int, bias_correction: bool, x: Array, weights: Array
) -> tuple[Array, Array]:
    closest, epsilon = CLOSEST[computing(x).name], float(jnp.finfo(x.dtype).eps)

    def search(x: Array, weights: Array) -> tuple[Array, Array]:
        dim, x = x.shape[-1], direction(x)
        shares = weights / weights.max(0)  # the sum of large weights could overflow
        shares = shares / shares.sum(0)
        best = _search(family, x, shares, max_iter, epsilon, closest)
        kappa = jnp.expm1(best.place[..., -1])
        if isinstance(family, ExponentialFamily):
            loss = jnp.maximum(-best.objective[..., 0], closest)
            kappa = curves.inverse(loss, family.key, "score_loss", dim)
            if bias_correction:
                kappa = _without_bias(family, kappa, 1 / jnp.square(shares).sum(0), dim)
        return best.place[..., :-1], kappa

    return as_float64(search, x, weights)


def _search(family: Family, x: Array, shares: Array, max_iter: int, epsilon: float, closest: float) -> _Point:
    """Return the best point. Steps have the length of Barzilai & Borwein (1988), and must not lower the objective."""
    start = (shares[..., None] * x).sum(0)
    kappa = scale = jnp.ones_like(start[..., :1])
    if not isinstance(family, ExponentialFamily):
        length = jnp.clip(jnp.sqrt(jnp.square(start).sum(-1, keepdims=True)), 1e-6, 1 - closest)
        kappa = family.from_mean_cosine(length, 1 - length, x.shape[-1])
    # If the mean vanishes, a small fixed vector decides.
    index = jnp.arange(1.0, x.shape[-1] + 1)
    start = start + epsilon**0.5 * direction(jnp.cos(index * index + jnp.sqrt(index)))
    evaluated = functools.partial(_evaluated, family, x=x, shares=shares, epsilon=epsilon, closest=closest)

    def unsettled(state: Any) -> Array:
        # A step is negligible, or rounding hides what it would gain.
        turn, scale, here = state
        settled = (jnp.square(here.step).sum(-1) <= 4 * epsilon**1.5) | (scale[..., 0] < 1e-6)
        return (turn < max_iter) & ~settled.all()

    def advanced(state: Any) -> Any:
        turn, scale, here = state
        there = evaluated(here.place + scale * here.step)
        better = there.objective >= here.objective - here.rounding
        moved = there.place - here.place
        slackened = (moved * (here.step - there.step)).sum(-1, keepdims=True)
        secant = jnp.square(moved).sum(-1, keepdims=True) / jnp.where(slackened > 0, slackened, 1.0)
        scale = jnp.where(better, jnp.where(slackened > 0, secant, 2 * scale), scale / 4)
        return turn + 1, scale, jax.tree.map(lambda new, old: jnp.where(better, new, old), there, here)

    first = evaluated(jnp.concatenate((start, jnp.log1p(kappa)), -1))
    return lax.while_loop(unsettled, advanced, (0, scale, first))[2]


def _evaluated(
    family: Family, place: Array, *, x: Array, shares: Array, epsilon: float, closest: float
) -> _Point:
    """Return the objective and the step at μ and log(1+κ), after μ is normalised and κ clamped."""
    dim, loc = x.shape[-1], direction(place[..., :-1])
    kappa = jnp.clip(jnp.expm1(place[..., -1]), 0.0, 1 / closest)
    ends = (jnp.maximum(jnp.square(x - end).sum(-1) / 2, epsilon**2) for end in (loc, -loc))
    t, all_kappa = Cosine(*ends), jnp.broadcast_to(kappa, shares.shape)

    def first(change: Array) -> Array:
        def kernel(c: Array) -> Array:
            return family.log_kernel(Cosine(t.minus - c, t.plus + c), all_kappa, dim)

        return jax.jvp(kernel, (change,), (jnp.ones_like(change),))[1]

    none = jnp.zeros_like(t.minus)
    in_t, in_t_twice = jax.jvp(first, (none,), (none + 1,))
    each = 1 / jnp.maximum(kappa, jnp.finfo(kappa.dtype).tiny)
    total = (shares * in_t * each)[..., None] * x
    along = (total * loc).sum(-1).sum(0)[..., None]
    across = total.sum(0) - along * loc
    # On the tangent space the Hessian of T̄ is -(Σ p T' t) I + Σ p T'' yyᵀ with y = x - tμ. If the y are isotropic, the
    # second term is -Σ p bend/(d-1) I.
    bend = jnp.maximum(-t.minus * t.plus * in_t_twice * each, 0.0)
    curvature = jnp.maximum(along, 0.0) + (shares * bend).sum(0)[..., None] / (dim - 1)
    step = across / jnp.maximum(curvature, epsilon**0.5)
    if isinstance(family, ExponentialFamily):
        terms, wanted = family.statistic(t), kappa
    else:
        terms = family.log_kernel(t, kappa, dim) + family.offset(kappa, dim)
        score = (shares * family.score(t, kappa, dim)).sum(0) - family.mean_score(kappa, dim)
        scored = jnp.clip(score / family.information(kappa, dim) / (1 + kappa), -2.0, 2.0)  # in log(1+κ)
        wanted = jnp.clip(jnp.expm1(jnp.log1p(kappa) + scored), 0.0, 1 / closest)
    log_kappa, log_wanted = jnp.log1p(kappa)[..., None], jnp.log1p(wanted)[..., None]
    return _Point(
        jnp.concatenate((loc, log_kappa), -1),
        jnp.concatenate((step, log_wanted - log_kappa), -1),
        (shares * terms).sum(0)[..., None],
        8 * epsilon * (shares * jnp.abs(terms)).sum(0)[..., None],
    )


def _without_bias(family: ExponentialFamily, concentration: Array, rows: Array, dim: int) -> Array:
    """Return κ without the bias that fitting μ causes, given the maximum-likelihood κ of ``rows`` points.

    The function of the same name in ``powerspherical.distributions.fit`` derives the formula.
    """
    kappa = jnp.maximum(concentration, jnp.finfo(concentration.dtype).tiny)
    length, slope = jax.jvp(lambda k: family.mean_cosine(k, dim), (kappa,), (jnp.ones_like(kappa),))
    across = (dim - 1) * (length / kappa) * (slope / family.information(kappa, dim))
    complement = family.mean_loss(kappa, dim)
    rest = jnp.minimum(complement * (2 - complement) + across / jnp.maximum(rows - 1, 1.0), 1.0)
    corrected = jnp.sqrt(1 - rest)
    return family.from_mean_cosine(corrected, rest / (1 + corrected), dim)
