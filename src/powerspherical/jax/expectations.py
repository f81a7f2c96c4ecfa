"""Means over a family's law of the cosine t = μᵀx, by quadrature over the rapidity: see ``quadrature.expectations``.

All arrays are float64. Derivatives treat the nodes as constants.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from powerspherical.jax.cosine import Cosine, log_half_cosine
from powerspherical.jax.law import Law, log_cosine_normalizer
from powerspherical.special.moments import rapidity_rule

if TYPE_CHECKING:
    from powerspherical.jax.families import Family

_NODES = 512
_FALL = 50.0  # by how much the log-density falls from the mode to the ends of the window
_INNER_FALLS = (12.0, 2.0)  # the same for inner windows
_PANEL_NODES = 109  # of the rule for functions of a second direction
_SINE_OFFSET = 2e-24  # added to 1±c under the root of sin θ: keeps derivatives finite
_VALUES = 1 << 22  # how many intermediate values are held in memory at a time


class _Nodes(NamedTuple):
    """The law of t on nodes: t, the kernel and the probabilities (…, nodes), and the log-partition (…)."""

    t: Cosine
    log_kernel: Array
    log_partition: Array
    probabilities: Array


def _windows(family: Family, kappa: Array, dim: int, *falls: float) -> tuple[Array, Array]:
    """Return the mode (…, 1), and where the log-density of y has fallen (…, 2·falls): below the mode, then above."""
    law = Law(family, kappa, dim)
    direction, fall = np.repeat([-1.0, 1.0], len(falls)), np.array([*falls, *falls])
    # Of (1-t)², which is largest far from the mode, a heavy tail has the largest share. It must not be cut.
    depth = fall + 4 * jnp.maximum(law.mode, 0.0) * (fall == _FALL)
    starts = law.mode + 0 * direction
    return law.mode, starts + direction * law.lengths(starts, law.height(law.mode) - depth, direction)


def _law_at(family: Family, y: Array, widths: Array, kappa: Array, dim: int) -> _Nodes:
    """Return the law of t at rapidities y (…, nodes) with the given widths; differentiable in κ."""
    y, widths = lax.stop_gradient((y, widths))
    t = Cosine.of_rapidity(y)
    kernel = family.log_kernel(t, kappa[..., None], dim)
    log_cosh = jnp.abs(y) + jnp.log1p(jnp.exp(-2 * jnp.abs(y))) - math.log(2)
    total = kernel + (log_cosine_normalizer(dim) - (dim - 1) * log_cosh + jnp.log(widths))
    return _Nodes(t, kernel, jax.nn.logsumexp(total, -1), jax.nn.softmax(total, -1))


def _trapezoid(family: Family, kappa: Array, dim: int) -> tuple[Array, Array]:
    """Return nodes y (…, nodes) and their distance (…, 1)."""
    _, ends = _windows(family, kappa, dim, _FALL)
    low, high = ends[..., :1], ends[..., 1:]
    count = 2 * _NODES if dim <= 3 else _NODES  # tails are the longest in low dimensions
    return low + (high - low) * np.linspace(0, 1, count), (high - low) / (count - 1)


def expectation(family: Family, kappa: Array, dim: int, function: Callable[[Cosine], Array]) -> Array:
    """Return E function(t) in the shape of κ, differentiable in κ."""
    law = _law_at(family, *_trapezoid(family, lax.stop_gradient(kappa), dim), kappa, dim)
    return (law.probabilities * function(law.t)).sum(-1)


def moments(family: Family, kappa: Array, dim: int) -> dict[str, Array]:
    """Return functions of κ by name, for κ with one axis. With s = ∂ log_kernel/∂κ, ``score_loss`` is -E s."""
    law = _law_at(family, *_trapezoid(family, kappa, dim), kappa, dim)
    score = family.score(law.t, kappa[:, None], dim)

    def mean(values: Array) -> Array:
        return (law.probabilities * values).sum(-1)

    loss, score_mean = mean(law.t.minus), mean(score)
    # KL = E ℓ. Near the uniform we use E(ℓ + e^-ℓ - 1), which is equal because E e^-ℓ = 1. An error of the
    # log-partition then has a second-order effect only.
    log_density = law.log_kernel - law.log_partition[:, None]
    near = jnp.abs(log_density).max(-1, keepdims=True) < 1
    rest = jnp.where(near, jnp.expm1(-jnp.where(near, log_density, 0.0)), 0.0)
    return {
        "offset": -law.log_partition,
        "relative_entropy": mean(log_density + rest),
        "mean": mean(law.t.value),
        "loss": loss,
        "log_loss": -mean(log_half_cosine(law.t)),
        "variance": mean(jnp.square(law.t.minus - loss[:, None])),
        "score_loss": -score_mean,
        "information": mean(jnp.square(score - score_mean[:, None])),
    }


# Functions of a second direction ν, where c = μᵀν is the cosine of the angle θ to μ.


def _tanh_sinh() -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights on [0, 1] of the tanh-sinh rule (Takahasi & Mori 1974), for singularities at both ends."""
    s = 0.06 * (np.arange(_PANEL_NODES) - _PANEL_NODES // 2)
    nodes = 1 / (1 + np.exp(-math.pi * np.sinh(s)))
    weights = np.cosh(s) * nodes * (1 - nodes)
    return nodes, weights / weights.sum()


def _law_on_panels(family: Family, kappa: Array, place: Cosine, dim: int) -> _Nodes:
    """Return the law of t on nodes for functions with singularities or peaks at t = ±``place``, where panels end.

    For d ≤ 3 they also end at y = 0: the means over a heavy tail have much of their weight there, far from the mode.
    """
    fixed, place = lax.stop_gradient((kappa, place))
    mode, ends = _windows(family, fixed, dim, _FALL, *_INNER_FALLS)
    singular = place.map(lambda x: jnp.maximum(x, 1e-200)).rapidity[..., None]
    middle = (0 * mode,) if dim <= 3 else ()
    points = jnp.concatenate((mode, ends, singular, -singular, *middle), -1)
    low, high = ends[..., :1], ends[..., len(_INNER_FALLS) + 1, None]
    points = jnp.sort(jnp.clip(points, low, high), -1)
    unit, weights = _tanh_sinh()
    widths = jnp.diff(points, axis=-1)[..., None]
    y = points[..., :-1, None] + widths * unit
    flat = (*kappa.shape, -1)
    # A panel of no width has no weight. Its logarithm must not be -inf: a second derivative would be NaN.
    widths = jnp.maximum(widths * weights, 1e-300)
    return _law_at(family, y.reshape(flat), widths.reshape(flat), kappa, dim)


def with_singularity(
    family: Family,
    kappa: Array,
    angle: Cosine,
    dim: int,
    function: Callable[..., Array],
    *others: Array,
    values: int = 1,
    width: Array | None = None,
) -> Array:
    """Return E function(t, angle, *others), for a function with a peak or singularity at t = ±cos θ.

    Args:
        kappa, angle, others: arrays of one shape.
        function: takes arrays with an additional last axis of nodes.
        values: how many intermediate values the function holds per node.
        width: the width of the peak in (1-t)/2. At θ = 0 and π a panel ends at this distance from ν. Default: zero.
    """
    shift = 0.0 if width is None else 2 * width * angle.value
    place = Cosine(angle.minus + shift, angle.plus - shift)

    def entries(arrays: Any) -> Array:
        kappa, place, angle, others = arrays
        law = _law_on_panels(family, kappa, place, dim)
        more = (x[..., None] for x in others)
        found = function(law.t, angle.map(lambda x: x[..., None]), *more)
        return (law.probabilities * found).sum(-1)

    arrays = kappa, place, angle, others
    chunk = max(1, _VALUES // (10 * _PANEL_NODES * values))
    if kappa.size <= chunk:
        return entries(arrays)
    flat = jax.tree.map(lambda x: x.reshape(-1), arrays)
    return lax.map(entries, flat, batch_size=chunk).reshape(kappa.shape)


def in_two_cosines(
    family: Family, kappa: Array, angle: Cosine, dim: int, function: Callable[..., Array], *others: Array
) -> Array:
    """Return E function(μᵀX, νᵀX, *others), whose first two arguments are cosines.

    With s the cosine between the tangent directions of X and ν, which is uniform on S^{d-2}, νᵀX = tc + √(1-t²)s sin θ.
    We write 1 ± νᵀX as sums of squares, so that nothing cancels.
    """
    s, s_complement, weights = _azimuths(dim)

    def average(t: Cosine, angle: Cosine, *rest: Array) -> Array:
        t, angle = (c.map(lambda x: x[..., None]) for c in (t, angle))
        # The mean is even in sin θ, but the root has an infinite derivative at θ = 0.
        sine = jnp.sqrt((angle.minus + _SINE_OFFSET) * (angle.plus + _SINE_OFFSET))
        near, radius = t.minus < t.plus, jnp.sqrt(t.minus * t.plus)
        gap = jnp.where(near, angle.minus - t.minus, t.plus - angle.plus)  # t - c
        total = jnp.where(near, angle.plus - t.minus, t.plus - angle.minus)  # t + c
        across = t.minus * t.plus * s_complement
        minus = 0.5 * (jnp.square(gap) + jnp.square(radius * s - sine) + across)
        plus = 0.5 * (jnp.square(total) + jnp.square(radius * s + sine) + across)
        other = Cosine(minus, plus).map(lambda x: jnp.maximum(x, 5e-301))
        return (weights * function(t, other, *(x[..., None] for x in rest))).sum(-1)

    return with_singularity(family, kappa, angle, dim, average, *others, values=len(weights))


def excess(family: Family, kappa: Array, angle: Cosine, dim: int, loss: Callable[[Cosine], Array]) -> Array:
    """Return E loss(νᵀX) - E loss(μᵀX) for a unit vector ν at ``angle`` from μ."""
    return in_two_cosines(family, kappa, angle, dim, lambda own, other: loss(other) - loss(own))


def _azimuths(dim: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """s, 1-s² and weights for the cosine s of a uniform point of S^{d-2}; on the circle s = ±1."""
    if dim == 2:
        return np.array([1.0, -1.0]), np.zeros(2), np.array([0.5, 0.5])
    _, s, log_cosh, weights = rapidity_rule(dim - 1, 0.205, dim - 2)
    weights = weights * np.exp((2 - dim) * log_cosh)
    return s, np.exp(-2 * log_cosh), weights / weights.sum()
