"""The law of the cosine t = μᵀx of any family: tails, quantiles and implicit slopes, as in ``quadrature.law``.

The rapidity y = artanh t has the log-density h(y) = log_kernel - (d-1) log cosh y, up to a constant. All integrals are
over *rays*: a ray starts at y and leads away from the mode, in the direction σ = ±1, until h has fallen by ``_FALL``.

    R[g] = ∫ g(y') exp(h(y') - h(y)) dy'    along a ray from y,

    P(tail) = exp(h(y)) R[1] / ∫ exp(h),      dy/dκ = σ R[s - E s],      s = ∂ log_kernel/∂κ.

All arrays are float64, and nothing is differentiated.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from powerspherical.jax import curves
from powerspherical.jax.cosine import Cosine

if TYPE_CHECKING:
    from powerspherical.jax.families import Family

_FALL = 32.0  # a ray ends where the integrand has fallen by e^-32
_NODES, _STRETCH = 56, 3.6  # of a ray, at sinh(_STRETCH·x)/sinh(_STRETCH) with Gauss–Legendre nodes x
_COARSE = 14  # nodes of a ray that only leads to a first guess
_FARTHEST = 340.0  # log_kernel stays constant beyond this |y|, where 1-|t| would underflow
_LOG_LENGTHS, _HALVINGS = (-85.0, 6.6), 10  # of rays; the search for an end leaves 9 % of the length
_GRID, _GRID_END = 17, 64.0  # in the search for the mode
_RAY_STEPS, _ARC_STEPS, _ARC_NODES = 3, 2, 8  # of quantiles


def legendre(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the nodes and weights of the Gauss–Legendre rule on [0, 1]."""
    nodes, weights = np.polynomial.legendre.leggauss(count)
    return (nodes + 1) / 2, weights / 2


def log_cosine_normalizer(dim: int) -> float:
    """log of the constant c of the density c·(sin φ)^{d-2} of the angle from a pole, for uniform points."""
    x = (dim - 1) / 2
    if dim < 60:
        return math.lgamma(x + 0.5) - math.lgamma(x) - 0.5 * math.log(math.pi)
    terms = (-1 / 8, 1 / 128, 5 / 1024, -21 / 32768, -399 / 262144, 869 / 4194304, 39325 / 33554432)
    series = sum(term / x**k for k, term in enumerate(terms, start=1))
    return 0.5 * math.log(x / math.pi) + math.log1p(series)


class Rays(NamedTuple):
    """Rays: h at their starts and its slope there (…, rays), nodes and masses (…, rays, nodes): R[g] = Σ g·masses."""

    height: Array
    slope: Array
    nodes: Array
    masses: Array


class Law:
    """The law of y for concentrations κ of any shape. Arguments have this shape or broadcast against it.

    Inside, arrays have one more axis, for rays or nodes.
    """

    def __init__(self, family: Family, kappa: Array, dim: int) -> None:
        self.family, self.kappa, self.dim = family, kappa[..., None], dim
        self.mode = self._find_mode()

    def _at(self, y: Array) -> Cosine:
        return Cosine.of_rapidity(jnp.clip(y, -_FARTHEST, _FARTHEST))

    def height(self, y: Array) -> Array:
        """Return h at points (…, n)."""
        t = self._at(y)
        log_sech = 0.5 * jnp.log(t.minus * t.plus) - jnp.maximum(jnp.abs(y) - _FARTHEST, 0.0)
        return self.family.log_kernel(t, self.kappa, self.dim) + (self.dim - 1) * log_sech

    def _find_mode(self) -> Array:
        """Return the mode (…, 1), at least to a twentieth of a standard deviation. Ever finer grids find it."""
        if (given := self.family.mode_rapidity(self.kappa, self.dim)) is not None:
            return given
        low, width = 0 * self.kappa - _GRID_END, 2 * _GRID_END
        while width > 0.05 / math.sqrt(self.dim - 1):
            step = width / (_GRID - 1)
            heights = self.height(low + step * np.arange(_GRID))
            # Not argmax, which JAX cannot lower in float64 outside of the float64 block.
            highest = heights == heights.max(-1, keepdims=True)
            best = jnp.where(highest, np.arange(float(_GRID)), 0.0).max(-1, keepdims=True)
            low, width = low + step * jnp.maximum(best - 1, 0), 2 * step
        return low + 0.5 * width

    def log_total(self) -> Array:
        """Return log ∫ exp(h), (…, 1)."""
        return -(self.family.offset(self.kappa, self.dim) + log_cosine_normalizer(self.dim))

    def lengths(self, y: Array, target: Array, direction: Array | np.ndarray) -> Array:
        """Return how far from y h stays above ``target``, or up to 10% more, by bisection of the logarithm."""
        low, high = _LOG_LENGTHS

        def halved(step: int, lengths: Array) -> Array:
            further = lengths + (high - low) * 0.5 ** (step + 1.0)
            return jnp.where(self.height(y + direction * jnp.exp(further)) > target, further, lengths)

        start = jnp.where(
            target == target, low, target
        )  # depends on κ, as ``shard_map`` asks of a loop's state
        found = lax.fori_loop(0, _HALVINGS, halved, start)
        return jnp.exp(found + (high - low) * 0.5**_HALVINGS)

    def rays(self, y: Array, direction: Array, count: int = _NODES) -> Rays:
        """Return rays from points (…, rays)."""
        height = self.height(y)
        length = self.lengths(y, height - _FALL, direction)[..., None]
        x, weights = legendre(count)
        places = np.sinh(_STRETCH * x) / math.sinh(_STRETCH)
        weights = weights * _STRETCH * np.cosh(_STRETCH * x) / math.sinh(_STRETCH)
        nodes = y[..., None] + direction[..., None] * length * places
        change = self.height(nodes.reshape(*y.shape[:-1], -1)).reshape(nodes.shape) - height[..., None]
        return Rays(
            height, change[..., 0] / (length[..., 0] * places[0]), nodes, jnp.exp(change) * weights * length
        )

    def _tail(self, t: Cosine) -> tuple[Array, Rays]:
        """Return σ and the ray from t."""
        y = jnp.clip(t.rapidity, -_FARTHEST, _FARTHEST)[..., None]
        direction = jnp.where(y >= self.mode, 1.0, -1.0)
        return direction, self.rays(y, direction)

    def log_near_tail(self, t: Cosine) -> tuple[Array, Array]:
        """Return the log-probability of the tail at t that does not contain the mode, and whether it is below t."""
        direction, ray = self._tail(t)
        log_tail = ray.height - self.log_total() + jnp.log(ray.masses.sum(-1))
        return jnp.minimum(log_tail, 0.0)[..., 0], direction[..., 0] < 0

    def slope(self, t: Cosine) -> Array:
        """Return d artanh(t)/dκ at a fixed probability."""
        direction, ray = self._tail(t)
        score_loss = curves.value(self.kappa, self.family.key, "score_loss", self.dim)
        deviations = self.family.score(self._at(ray.nodes[..., 0, :]), self.kappa, self.dim) + score_loss
        return direction[..., 0] * (ray.masses[..., 0, :] * deviations).sum(-1)

    def quantile(self, u: Array, complement: Array) -> Cosine:
        """Return t with P(T ≤ t) = u, by Halley's method on the log of the tail that does not contain the mode.

        We integrate whole rays, and after that arcs from the last point to better ones.
        """
        log_total = self.log_total()
        # The mode and the median are close, so most solutions lie on this side of the mode, and the others near it.
        u, complement = u[..., None], complement[..., None]
        below = u < complement
        direction = jnp.where(below, -1.0, 1.0)
        side = self.rays(jnp.broadcast_to(self.mode, u.shape), direction, _COARSE)
        masses = (side.masses * jnp.exp(side.height - log_total)[..., None])[..., 0, :]
        inside = jnp.minimum(u, complement) < masses.sum(-1, keepdims=True)
        direction = jnp.where(inside, direction, -direction)
        target = jnp.log(jnp.where(below == inside, u, complement))
        distances = jnp.abs(side.nodes[..., 0, :] - self.mode)
        distance = jnp.where(inside, _start(distances, masses, target), 0.0)  # of y from the mode
        inner, outer = 0 * distance, 0 * distance + jnp.inf
        for _ in range(_RAY_STEPS):
            y = self.mode + direction * distance
            ray = self.rays(y, direction)
            mass, wanted = ray.masses.sum(-1), target - ray.height + log_total
            excess = jnp.log(mass) - wanted
            change = _halley(excess, 1 / mass, ray.slope)
            inner, outer = jnp.where(excess > 0, distance, inner), jnp.where(excess > 0, outer, distance)
            distance = distance + change
            distance = jnp.where((distance < inner) | (distance > outer), 0.5 * (inner + outer), distance)
        unit, weights = legendre(_ARC_NODES)
        for _ in range(_ARC_STEPS):
            density = jnp.exp(self.height(y + direction * change * np.append(unit, 1.0)) - ray.height)
            left = mass - change * (density[..., :-1] * weights).sum(-1, keepdims=True)
            change = change + _halley(jnp.log(left) - wanted, density[..., -1:] / left, ray.slope)
        return Cosine.of_rapidity((y + direction * change)[..., 0])


def _start(distances: Array, masses: Array, target: Array) -> Array:
    """Return roughly where the log of the tail is ``target``, by interpolation between the nodes of a ray."""
    tails = jnp.log(jnp.cumsum(masses[..., ::-1], -1)[..., ::-1] - 0.5 * masses)
    place = jnp.clip((tails > target).sum(-1, keepdims=True), 1, masses.shape[-1] - 1)
    near, far = (jnp.take_along_axis(distances, place - step, -1) for step in (1, 0))
    high, low = (jnp.take_along_axis(tails, place - step, -1) for step in (1, 0))
    return jnp.maximum(near + (far - near) * jnp.minimum((high - target) / (high - low), 1.0), 0.0)


def _halley(excess: Array, hazard: Array, slope: Array) -> Array:
    """Return how far outwards to go so that the log of a tail falls by ``excess``.

    Its derivatives are -r and -r(s + r), with r = ``hazard``, the density over the tail, and s = ``slope`` of h.
    """
    return excess / hazard / (1 + jnp.clip(0.5 * excess * (1 + slope / hazard), -0.5, 1.0))
