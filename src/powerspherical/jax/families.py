"""Families of rotationally symmetric distributions as laws of the cosine t = μᵀx, for JAX arrays.

The methods are those of ``powerspherical.families``, and so are their formulas: straight-line ones come from
``powerspherical.formulas``, functions of κ from the tables of ``powerspherical.special``.
"""

from __future__ import annotations

import functools
import itertools
import math
from abc import ABC, abstractmethod
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from powerspherical.formulas import maps, slopes
from powerspherical.formulas.densities import cauchy_log_density, cauchy_slopes, sinh_rapidity
from powerspherical.formulas.ops import horner
from powerspherical.jax import curves, expectations, misalignment
from powerspherical.jax.cosine import Cosine, log_half_cosine, log_of_share
from powerspherical.jax.law import Law, legendre
from powerspherical.jax.precision import as_float64, in_float64
from powerspherical.jax.random import bits, normal, uniform
from powerspherical.special import tables

_numbers = itertools.count()
_BREGMAN_NODES = 12
_LAST = np.uint32(2**32 - 1)  # a stream that no loop reaches


class Family(ABC):
    """A rotationally symmetric family on the unit sphere of R^d, as functions of κ (``kappa``) and d (``dim``).

    A subclass must define ``name``, ``title`` and ``log_kernel``. If that is written with the operations of
    ``powerspherical.formulas.ops`` (or only with arithmetic), one mixin class can serve this class and
    ``powerspherical.families.Family`` for torch. Everything else has defaults by quadrature. The von Mises–Fisher
    family from its log-density alone:

    >>> class Exponential(Family):
    ...     name = title = "exponential"
    ...
    ...     def log_kernel(self, t, kappa, dim):
    ...         return -kappa * t.minus
    >>> family, kappa = Exponential(), jnp.array([0.0, 1.0])
    >>> family.mean_cosine(kappa, 3), family.mean_loss(kappa, 3)  # coth κ - 1/κ, and 1 minus it
    (Array([0.        , 0.31303528], dtype=float32), Array([1.       , 0.6869647], dtype=float32))
    >>> family.relative_entropy(kappa, 3), family.variance_cosine(kappa, 3)
    (Array([0.        , 0.15159592], dtype=float32), Array([0.33333334, 0.27593833], dtype=float32))
    >>> family.offset(kappa[1:], 3), family.log_partition(kappa[1:], 3), family.mode_rapidity(kappa, 3)
    (Array([0.8385606], dtype=float32), Array([-0.8385606], dtype=float32), None)
    >>> family.mean_score(kappa, 3), family.information(kappa, 3)
    (Array([-1.       , -0.6869647], dtype=float32), Array([0.33333334, 0.27593833], dtype=float32))
    >>> family.from_mean_cosine(jnp.array(0.5), jnp.array(0.5), 3)
    Array(1.796756, dtype=float32)

    Probabilities, draws and divergences take arrays of one shape:

    >>> t = Cosine(jnp.array(0.5), jnp.array(1.5))
    >>> family.log_kernel(t, kappa[1], 3), family.score(t, kappa[1], 3)
    (Array(-0.5, dtype=float32), Array(-0.5, dtype=float32))
    >>> with jax.enable_x64(True):
    ...     one = jnp.ones(1, jnp.float64)
    ...     angle = Cosine(0.5 * one, 1.5 * one)
    ...     found = family.log_tail(angle, one, 3)[0], family.quantile(0.5 * one, 0.5 * one, one, 3).value
    ...     apart = family.misalignment(one, angle, 3), family.divergence(family, one, one, angle, 3)
    >>> [round(float(x[0]), 6) for x in (*found, *apart)]
    [-0.787339, 0.433781, 0.184351, 0.156518]
    >>> drawn, noise = family.draw_cosine(jax.random.key(0), kappa + 1, kappa, 3)
    >>> drawn.minus.shape, family.slope(drawn, noise, kappa, 3).shape
    ((2,), (2,))
    """

    #: Identifier and name in text.
    name: ClassVar[str]
    title: ClassVar[str]

    #: The c for which exp(log_kernel + cκ) is the customary unnormalised density, such as (1+t)^κ.
    peak: ClassVar[float] = 0.0

    #: Where ``curves`` finds the family's functions of κ.
    key: ClassVar[str]

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        # A new law has tables of its own. A subclass that only overrides other methods shares those of its parent.
        if "key" not in vars(cls) and not any(
            hasattr(base, "key") and _same_law(cls, base) for base in cls.__bases__
        ):
            cls.key = f"{cls.__qualname__} in JAX {next(_numbers)}"
            tables.register(cls.key, lambda dim: _tables(cls(), int(dim)))

    # A family has no state. So all objects of a class are one for ``jit``.
    def __eq__(self, other: object) -> bool:
        return type(self) is type(other)

    def __hash__(self) -> int:
        return hash(type(self))

    def __repr__(self) -> str:
        return f"<{self.title} family>"

    @abstractmethod
    def log_kernel(self, t: Cosine, kappa: Array, dim: int) -> Array:
        """Return the log of the unnormalised density at t; 0 for κ = 0, and preferably 0 at the mode.

        The result has the shape to which the arguments broadcast.
        """

    def score(self, t: Cosine, kappa: Array, dim: int) -> Array:
        """Return the derivative of ``log_kernel`` in κ, in the shape to which the arguments broadcast."""
        kappa = jnp.broadcast_to(kappa, jnp.broadcast_shapes(kappa.shape, t.minus.shape))
        return jax.jvp(lambda k: self.log_kernel(t, k, dim), (kappa,), (jnp.ones_like(kappa),))[1]

    def mode_rapidity(self, kappa: Array, dim: int) -> Array | None:
        """Return the mode of the density of artanh t, in the shape of ``kappa``; None to have it searched for."""
        return None

    # Functions of κ, in its shape

    def offset(self, kappa: Array, dim: int) -> Array:
        """Return -log E_U exp(log_kernel), where E_U is the mean over uniform points, in the shape of ``kappa``."""
        return curves.value(kappa, self.key, "offset", dim)

    def relative_entropy(self, kappa: Array, dim: int) -> Array:
        """Return KL(p‖U), the divergence from the uniform distribution in nats, in the shape of ``kappa``."""
        return curves.value(kappa, self.key, "relative_entropy", dim)

    def mean_cosine(self, kappa: Array, dim: int) -> Array:
        """Return E t, the length of E x, in the shape of ``kappa``."""
        return curves.value(kappa, self.key, "mean", dim)

    def mean_loss(self, kappa: Array, dim: int) -> Array:
        """Return 1 - E t, accurate where it is small, in the shape of ``kappa``."""
        return curves.value(kappa, self.key, "loss", dim)

    def variance_cosine(self, kappa: Array, dim: int) -> Array:
        """Return Var t, in the shape of ``kappa``."""
        return curves.value(kappa, self.key, "variance", dim)

    def mean_score(self, kappa: Array, dim: int) -> Array:
        """Return E ∂log_kernel/∂κ, in the shape of ``kappa``."""
        return -curves.value(kappa, self.key, "score_loss", dim)

    def information(self, kappa: Array, dim: int) -> Array:
        """Return the Fisher information about κ, the variance of ∂log_kernel/∂κ, in the shape of ``kappa``."""
        return curves.value(kappa, self.key, "information", dim)

    def log_partition(self, kappa: Array, dim: int) -> Array:
        """Return log E_U of the customary density, such as (1+t)^κ or e^{κt}, in the shape of ``kappa``."""
        if "log_partition" in tables.curves(self.key, dim):
            return curves.value(kappa, self.key, "log_partition", dim)
        return kappa * self.peak - self.offset(kappa, dim)

    def from_mean_cosine(self, length: Array, loss: Array, dim: int) -> Array:
        """Return the κ with E t = ``length`` = 1 - ``loss``, in their shape; differentiable in ``length``."""
        return curves.inverse_mean(length, loss, self.key, dim)

    # Probabilities of t, in float64 and without derivatives

    def log_tail(self, t: Cosine, kappa: Array, dim: int) -> tuple[Array, Array]:
        """Return the log of the probability of one tail at t, and whether that is T ≤ t. Arguments have one shape."""
        return Law(self, kappa, dim).log_near_tail(t)

    def quantile(self, u: Array, complement: Array, kappa: Array, dim: int) -> Cosine:
        """Return the t with P(T ≤ t) = u, for 0 < u < 1 and ``complement`` = 1-u, arrays of one shape."""
        return Law(self, kappa, dim).quantile(u, complement)

    # Draws

    def draw_cosine(self, key: Array, square: Array, kappa: Array, dim: int) -> tuple[Cosine, Array]:
        """Draw one cosine per entry of ``kappa``. Return it and the noise that ``slope`` needs.

        ``square`` holds χ²_{d-1} variables of the same shape, which may be used as noise. They are the squared lengths
        of the tangent Gaussian vectors. The streams of ``key`` from 1 on are for this.
        """
        # From 52 bits. JAX's own float64 numbers would have 32, because they are lowered outside of the block.
        high, low = (bits(key, kappa.shape, stream) for stream in (np.uint32(1), np.uint32(2)))
        with jax.enable_x64(True):
            u = (high.astype(jnp.float64) * 2.0**20 + (low >> 12).astype(jnp.float64) + 0.5) * 2.0**-52
            t = self.quantile(u, 1 - u, kappa.astype(jnp.float64), dim)
            return t.map(lambda end: end.astype(kappa.dtype)), kappa

    def slope(self, t: Cosine, noise: Array, kappa: Array, dim: int) -> Array:
        """Return d artanh(t)/dκ of a draw: at a fixed probability of t, or another derivative with the same mean.

        Arguments and result have one shape.
        """
        return as_float64(lambda minus, plus, k: Law(self, k, dim).slope(Cosine(minus, plus)), *t, kappa)

    # Divergences, in float64

    def misalignment(self, kappa: Array, angle: Cosine, dim: int) -> Array:
        """Return E log(1+μᵀX) - E log(1+νᵀX) ≥ 0 for a unit vector ν at ``angle`` from μ. Arguments have one shape."""
        return expectations.excess(self, kappa, angle, dim, lambda t: -log_half_cosine(t))

    def divergence(self, p: Family, kappa_p: Array, kappa: Array, angle: Cosine, dim: int) -> Array:
        """Return KL(p‖self) between the member κ_p of the family ``p`` and the member κ of this one.

        ``angle`` is that of the two mean directions. The arrays have one shape.
        """

        def kernel(_: Cosine, other: Cosine, k: Array) -> Array:
            return self.log_kernel(other, k, dim)

        cross = expectations.in_two_cosines(p, kappa_p, angle, dim, kernel, kappa)
        return p.relative_entropy(kappa_p, dim) - self.offset(kappa, dim) - cross


def _tables(family: Family, dim: int) -> dict[str, tables.Curve]:
    """Return the functions of κ at a fixed d, by a quadrature at some 3,500 κ."""

    def formula(kappa: np.ndarray, _: float) -> dict[str, np.ndarray]:
        with jax.enable_x64(True):
            found = moments(jnp.asarray(kappa))
            # A normalised kernel has the offset 0 up to rounding, which no polynomial fits. So we fit 1 + offset.
            return {name: np.asarray(x) + (name == "offset") for name, x in found.items()}

    with jax.enable_x64(True):
        moments = jax.jit(lambda kappa: expectations.moments(family, kappa, dim))
    with ThreadPoolExecutor(1) as untraced:  # transforms and traces of this thread do not reach another one
        found = untraced.submit(tables.sampled_curves, formula, dim).result()
    wanted = {"offset", "relative_entropy", "mean", "loss", "log_loss", "variance", "information"}
    if missing := sorted(wanted - found.keys()):
        raise ValueError(
            f"functions of κ of the {family.title} family cannot be tabulated at d = {dim}: {', '.join(missing)}. "
            "log_kernel must be a smooth function of κ, without kinks or rounding errors above 1e-9"
        )
    found["offset"] = found["offset"].minus(1.0)
    found.setdefault("score_loss", found["offset"].slope)  # it may be zero up to rounding, too
    return found


def _same_law(first: type, second: type) -> bool:
    return all(getattr(first, x, None) is getattr(second, x, None) for x in ("log_kernel", "statistic"))


class ExponentialFamily(Family):
    """A family with the unnormalised density exp(κT). Its ``statistic`` T is ≤ 0, and 0 at the mode t = 1.

    >>> family, t = VonMisesFisherFamily(), Cosine(jnp.array(0.5), jnp.array(1.5))
    >>> family.statistic(t)
    Array(-0.5, dtype=float32, weak_type=True)
    >>> family.losses(family, jnp.array(1.0), t, 3)  # 1 - E t, and E t (1 - cos of the angle)
    (Array(0.6869647, dtype=float32), Array(0.15651764, dtype=float32))
    """

    @abstractmethod
    def statistic(self, t: Cosine) -> Array:
        """Return T at t, in its shape."""

    def log_kernel(self, t: Cosine, kappa: Array, dim: int) -> Array:
        return _product(*jnp.broadcast_arrays(kappa, self.statistic(t)))

    def score(self, t: Cosine, kappa: Array, dim: int) -> Array:
        return self.statistic(t)

    def divergence(self, p: Family, kappa_p: Array, kappa: Array, angle: Cosine, dim: int) -> Array:
        # KL(p‖U) + Ψ - κ E_p T(νᵀX). Within the family, the Bregman divergence of Ψ and what the angle adds to it.
        loss, misaligned = self.losses(p, kappa_p, angle, dim)
        if p == self:
            return self._bregman(kappa_p, kappa, dim) + kappa * misaligned
        return p.relative_entropy(kappa_p, dim) - self.offset(kappa, dim) + kappa * (loss + misaligned)

    def losses(self, p: Family, kappa_p: Array, angle: Cosine, dim: int) -> tuple[Array, Array]:
        """Return -E T(μᵀX) ≥ 0 and E T(μᵀX) - E T(νᵀX) ≥ 0 for the member κ_p of the family ``p``.

        X has the mean direction μ, and ν is at ``angle`` from it. Arguments have one shape.
        """

        def loss(t: Cosine) -> Array:
            return -self.statistic(t)

        own = expectations.expectation(p, kappa_p, dim, loss)
        return own, expectations.excess(p, kappa_p, angle, dim, loss)

    def _bregman(self, kappa_p: Array, kappa: Array, dim: int) -> Array:
        """Return Ψ(κ) - Ψ(κ_p) - (κ-κ_p)Ψ'(κ_p), the divergence between two members with equal directions."""
        change = kappa - kappa_p
        # If κ and κ_p are close, the difference cancels, and we use Δ²∫₀¹(1-s)Ψ''(κ_p+sΔ)ds instead.
        near = jnp.abs(change) < 0.7 * (jnp.minimum(kappa_p, kappa) + (dim - 1) / 2)
        nodes, weights = legendre(_BREGMAN_NODES)
        path = kappa_p[..., None] + jnp.where(near, change, 0.0)[..., None] * nodes
        curvature = (weights * (1 - nodes) * self.information(path, dim)).sum(-1)
        means = self.mean_score(kappa, dim) - self.mean_score(kappa_p, dim)
        entropies = self.relative_entropy(kappa_p, dim) - self.relative_entropy(kappa, dim)
        return jnp.where(near, change * change * curvature, entropies + kappa * means)


@jax.custom_jvp
def _product(kappa: Array, statistic: Array) -> Array:
    """Return κT, and 0 for κ = 0 also where T = -inf, as at the antipode."""
    return kappa * jnp.where(kappa == 0, jnp.maximum(statistic, -1e30), statistic)


@_product.defjvp
def _(primals: Any, tangents: Any) -> tuple[Array, Array]:
    (kappa, statistic), (dkappa, dstatistic) = primals, tangents
    finite = jnp.maximum(
        statistic, jnp.finfo(statistic.dtype).min
    )  # where T = -inf a change of zero stays zero
    return _product(kappa, statistic), finite * dkappa + kappa * dstatistic


class PowerSphericalFamily(ExponentialFamily):
    """The statistic T = log((1+t)/2). (1+t)/2 ~ Beta(β+κ, β) with β = (d-1)/2."""

    name = key = "power_spherical"
    title = "Power Spherical"
    peak = math.log(2)

    def statistic(self, t: Cosine) -> Array:
        return log_half_cosine(t)

    def mode_rapidity(self, kappa: Array, dim: int) -> Array:
        return 0.5 * jnp.log1p(2 * kappa / (dim - 1))

    def mean_cosine(self, kappa: Array, dim: int) -> Array:
        return _power_spherical_mean(kappa, dim)

    def mean_loss(self, kappa: Array, dim: int) -> Array:
        return (dim - 1) / (kappa + (dim - 1))

    def variance_cosine(self, kappa: Array, dim: int) -> Array:
        def formula(kappa: Array) -> Array:
            total = kappa + (dim - 1)
            return (2 * kappa + (dim - 1)) / total * ((dim - 1) / total) / (total + 1)

        return in_float64(formula)(kappa)

    def from_mean_cosine(self, length: Array, loss: Array, dim: int) -> Array:
        return (dim - 1) * length / loss

    def draw_cosine(self, key: Array, square: Array, kappa: Array, dim: int) -> tuple[Cosine, Array]:
        """Draw (1+t)/2 = G/(G+H) with G ~ Gamma(β+κ) and H = ``square``/2 ~ Gamma(β). The noise is G.

        G is drawn by Marsaglia & Tsang (2000).
        """
        if dim == 3:
            return Cosine(*maps.power_spherical_ends_3(square, kappa)), square
        shape = kappa + (dim - 1) / 2
        least = (shape + 1 if dim == 2 else shape) - 1 / 3
        scale = 1 / jnp.sqrt(9 * least)

        def candidate(turn: Array, least: Array, scale: Array) -> tuple[Any, Array]:
            w = scale * normal(key, least.shape, least.dtype, 2 * turn + 1)
            # With v = (1+w)³ the log-probability n²/2 + d(1 - v + log v) is 3d(log(1+w) - w + w²/2 - w³/3).
            series = -(w * w) * (w * w) * horner(w, *((-1) ** k / (k + 4) for k in range(10)))
            direct = jnp.log1p(jnp.maximum(w, -0.99)) - w * (1 - w * (0.5 - w / 3))
            log_acceptance = 3 * least * jnp.where(jnp.abs(w) < _SERIES_ENDS, series, direct)
            u = uniform(key, least.shape, least.dtype, 2 * turn + 2)
            return (least * (1 + w) * (1 + w) * (1 + w),), (log_acceptance < jnp.log(u)) | (w <= -0.99)

        (noise,) = _until_accepted(candidate, np.uint32(0), least > 0, (least,), (least, scale))
        if dim == 2:
            noise = noise * uniform(key, kappa.shape, kappa.dtype, _LAST) ** (1 / shape)
        total = noise + 0.5 * square
        return Cosine(square / total, 2 * (noise / total)), noise

    def slope(self, t: Cosine, noise: Array, kappa: Array, dim: int) -> Array:
        """d artanh(t)/dκ: at a fixed probability at d = 3 and in float64, otherwise ½ dlog G/dα at a fixed H."""
        if dim == 3:
            return slopes.power_spherical_slope_3(*t, kappa)
        if kappa.dtype == jnp.float64:
            return super().slope(t, noise, kappa, dim)
        shape = kappa + (dim - 1) / 2
        slope = slopes.gamma_slope_by_expansion(shape, noise)
        if (dim - 1) / 2 < slopes.LARGE_SHAPE:
            small = slopes.gamma_slope_by_quadrature(jnp.minimum(shape, slopes.LARGE_SHAPE), noise)
            slope = jnp.where(shape < slopes.LARGE_SHAPE, small, slope)
        return 0.5 * slope

    def misalignment(self, kappa: Array, angle: Cosine, dim: int) -> Array:
        return misalignment.of_power_spherical(kappa, angle, dim)

    def losses(self, p: Family, kappa_p: Array, angle: Cosine, dim: int) -> tuple[Array, Array]:
        return curves.value(kappa_p, p.key, "log_loss", dim), p.misalignment(kappa_p, angle, dim)


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def _power_spherical_mean(kappa: Array, dim: int) -> Array:
    return kappa / (kappa + (dim - 1))


@_power_spherical_mean.defjvp
def _(dim: int, primals: Any, tangents: Any) -> tuple[Array, Array]:
    (kappa,), (change,) = primals, tangents  # the derivative of the quotient would cancel
    return _power_spherical_mean(kappa, dim), (dim - 1) / jnp.square(kappa + (dim - 1)) * change


_SERIES_ENDS = 0.25  # the |w| from which on the logarithm loses no digits that matter


def _until_accepted(
    candidate: Any, turn: Any, rejected: Array, found: tuple[Array, ...], parameters: tuple[Array, ...]
) -> tuple[Array, ...]:
    """Repeat ``candidate(turn, *parameters)``, which returns arrays and which entries are rejected, until none is."""

    def again(state: Any) -> Any:
        turn, rejected, old = state
        new, still = candidate(turn, *parameters)
        return (
            turn + 1,
            rejected & still,
            tuple(jnp.where(rejected, n, o) for n, o in zip(new, old, strict=True)),
        )

    return lax.while_loop(lambda state: state[1].any(), again, (turn, rejected, found))[2]


def _uniform_ends(key: Array, turn: Any, shape: tuple[int, ...], dtype: Any, dim: int) -> tuple[Array, Array]:
    """1-t and 1+t of a coordinate t = R cos θ of a uniform point: 1-R² = u^{2/(d-2)}, and θ is uniform."""
    u = uniform(key, shape, dtype, 3 * turn + 1)
    near = u < 0.5
    x = (0.5 * math.pi) * jnp.where(near, u, 1 - u)  # θ/2 or its complement, at most π/4
    terms = [(-1) ** k / math.factorial(2 * k + 1) for k in range(6 if dtype == jnp.float32 else 10)]
    sine = x * horner(x * x, *terms)
    small, large = 2 * sine * sine, 2 - 2 * sine * sine
    minus, plus = jnp.where(near, small, large), jnp.where(near, large, small)
    if dim == 2:
        return minus, plus
    exponent = (2 / (dim - 2)) * jnp.log(uniform(key, shape, dtype, 3 * turn + 2))
    radius = jnp.sqrt(-jnp.expm1(exponent))
    rest = jnp.exp(exponent) / (1 + radius)  # 1 - R
    return rest + radius * minus, rest + radius * plus


class VonMisesFisherFamily(ExponentialFamily):
    """The statistic T = t-1."""

    name = key = "von_mises_fisher"
    title = "von Mises–Fisher"
    peak = 1.0

    def statistic(self, t: Cosine) -> Array:
        return -t.minus

    def mode_rapidity(self, kappa: Array, dim: int) -> Array:
        twice, delta = 2 * kappa, float(dim - 1)
        root = jnp.hypot(twice, delta)
        return 0.5 * jnp.log1p(2 * twice / (delta + delta * delta / (root + twice)))

    def draw_cosine(self, key: Array, square: Array, kappa: Array, dim: int) -> tuple[Cosine, Array]:
        """Draw t by inversion at d = 3, and otherwise by Wood's rejection (1994) of boosted uniform cosines.

        With y = x₀t₀ and r = y/(1+y) the log of the acceptance probability is (d-1)(r + log(1-r)), without κ.
        """
        if dim == 3:
            return Cosine(*maps.von_mises_fisher_ends_3(square, kappa)), square
        delta = dim - 1
        root = jnp.hypot(2 * kappa, float(delta))
        odds = (2 * kappa + root) / delta
        x0, rest = 2 * kappa / (root + delta), 2 / (1 + odds)  # rest = 1 - x₀

        def candidate(turn: Any, x0: Array, rest: Array) -> tuple[tuple[Array, Array], Array]:
            minus, plus = _uniform_ends(key, turn, x0.shape, x0.dtype, dim)
            r = 0.5 * x0 * (plus - minus) / (rest + x0 * plus)
            log_acceptance = delta * (r + jnp.log1p(-r))
            # NaN is not rejected. Otherwise the loop would not end.
            return (minus, plus), log_acceptance < jnp.log(uniform(key, x0.shape, x0.dtype, 3 * turn + 3))

        first, rejected = candidate(np.uint32(0), x0, rest)
        start = tuple(
            jnp.where(x0 >= 0, x, x0) for x in first
        )  # depends on κ, as ``shard_map`` asks of a loop's state
        minus, plus = _until_accepted(candidate, np.uint32(1), rejected, start, (x0, rest))
        minus = minus / odds
        mean = 0.5 * (minus + plus)
        return Cosine(minus / mean, plus / mean), square

    def slope(self, t: Cosine, noise: Array, kappa: Array, dim: int) -> Array:
        """The implicit derivative, by a closed form, a series, a recurrence, or in float64 a quadrature."""
        if dim == 3:
            return slopes.von_mises_fisher_slope_3(*t, kappa)
        if kappa.dtype == jnp.float64:
            return super().slope(t, noise, kappa, dim)
        series = slopes.von_mises_fisher_slope(t.plus, kappa, float(dim - 1))
        if dim >= slopes.SERIES_DIM:
            return series
        small = jnp.minimum(kappa, slopes.SERIES_KAPPA)
        near = as_float64(functools.partial(_slope_by_recurrence, dim=dim), *t, small)
        return jnp.where(kappa < slopes.SERIES_KAPPA, near, series)

    def misalignment(self, kappa: Array, angle: Cosine, dim: int) -> Array:
        return misalignment.of_von_mises_fisher(kappa, angle, dim)

    def losses(self, p: Family, kappa_p: Array, angle: Cosine, dim: int) -> tuple[Array, Array]:
        return p.mean_loss(kappa_p, dim), angle.minus * p.mean_cosine(kappa_p, dim)


def _slope_by_recurrence(minus: Array, plus: Array, kappa: Array, *, dim: int) -> Array:
    """Return d artanh(t)/dκ for κ ≤ 40 by a recurrence in the dimension, as the C library does (``slopes.h``).

    w_d = X_d/((d-1) N_d) with N_j = N_{j+2} + κ² N_{j+4}/(j(j+2)) and
    X_j = N_j - κt N_{j+2}/j - κ²(1-t²) X_{j+2}/(j(j+1)). It starts with N = X = 1 at a high dimension.
    """
    most = slopes.SERIES_KAPPA
    top = dim + 2 * (int(max(2 * most + 12 - dim, most + 8)) // 2)
    product, square = kappa * (0.5 * (plus - minus)), kappa * kappa
    spread = square * (minus * plus)
    n, after, x = (1 + 0 * kappa for _ in range(3))
    for j in range(top, dim - 1, -2):
        below = n + square * (1 / (j * (j + 2))) * after
        x = below - product * (1 / j) * n - spread * (1 / (j * (j + 1))) * x
        n, after = below, n
    return x / ((dim - 1) * n)


class SphericalCauchyFamily(Family):
    """Density (cosh τ - t sinh τ)^{-(d-1)} relative to the uniform, with e^τ = 1+κ. It is already normalised."""

    name = key = "spherical_cauchy"
    title = "spherical Cauchy"

    def log_kernel(self, t: Cosine, kappa: Array, dim: int) -> Array:
        return _cauchy_log_density(*jnp.broadcast_arrays(t.minus, kappa), float(dim - 1))

    def offset(self, kappa: Array, dim: int) -> Array:
        return 0 * kappa

    def score(self, t: Cosine, kappa: Array, dim: int) -> Array:
        return cauchy_slopes(t.minus, kappa, float(dim - 1))[1]

    def mode_rapidity(self, kappa: Array, dim: int) -> Array:
        return jnp.log1p(kappa)

    # Probabilities and draws are those of the uniform, shifted in rapidity.

    def log_tail(self, t: Cosine, kappa: Array, dim: int) -> tuple[Array, Array]:
        plus, minus = maps.boosted(t.plus, t.minus, 1 + kappa)  # swapped ends: the shift back, towards -μ
        return VON_MISES_FISHER.log_tail(Cosine(minus, plus), 0 * kappa, dim)

    def quantile(self, u: Array, complement: Array, kappa: Array, dim: int) -> Cosine:
        uniform = VON_MISES_FISHER.quantile(u, complement, 0 * kappa, dim)
        return Cosine(*maps.boosted(*uniform, 1 + kappa))

    def draw_cosine(self, key: Array, square: Array, kappa: Array, dim: int) -> tuple[Cosine, Array]:
        ends = _uniform_ends(key, np.uint32(0), kappa.shape, kappa.dtype, dim)
        return Cosine(*maps.boosted(*ends, 1 + kappa)), square

    def slope(self, t: Cosine, noise: Array, kappa: Array, dim: int) -> Array:
        return 1 / (1 + kappa)

    def misalignment(self, kappa: Array, angle: Cosine, dim: int) -> Array:
        # 2(1 ± νᵀX) is a squared distance, and a Möbius map multiplies it by the conformal factors at its end points.
        # So the angle adds -log(1 - h(1 - e^{-2τ})) with its haversine h. A small argument is a sum of terms ≥ 0.
        h, rest = 0.5 * angle.minus, 0.5 * angle.plus
        loss = h * (kappa / (1 + kappa)) * ((kappa + 2) / (1 + kappa))
        return -log_of_share(rest + h / jnp.square(1 + kappa), loss)

    def divergence(self, p: Family, kappa_p: Array, kappa: Array, angle: Cosine, dim: int) -> Array:
        """Within the family, (d-1) times a function of the hyperbolic distance between ρ_pμ and ρν in the ball.

        From another family, a quadrature over the cosine of X. The average over its azimuth has a closed form.
        """
        if p == self:
            # sinh²(τ/2) for the distance τ, by the hyperbolic law of cosines, as a sum of two terms ≥ 0
            radial = 0.25 * jnp.square(kappa - kappa_p) / (1 + kappa) / (1 + kappa_p)
            sines = sinh_rapidity(kappa) * sinh_rapidity(kappa_p)
            return (dim - 1) * curves.value(radial + sines * (0.5 * angle.minus), "log_boost", "mean", dim)

        def loss(t: Cosine, angle: Cosine, kappa: Array) -> Array:
            return _mean_log_distortion(t, angle, kappa, dim)

        width = 1 / jnp.square(1 + kappa)
        cross = expectations.with_singularity(p, kappa_p, angle, dim, loss, kappa, values=16, width=width)
        return p.relative_entropy(kappa_p, dim) + (dim - 1) * cross


@jax.custom_jvp
def _cauchy_log_density(minus: Array, kappa: Array, degrees: float) -> Array:
    return cauchy_log_density(minus, kappa, degrees)


@_cauchy_log_density.defjvp
def _(primals: Any, tangents: Any) -> tuple[Array, Array]:
    # The operations of the formula have derivatives such as 1/(1+κ)², which underflow in float32.
    in_t, in_kappa = cauchy_slopes(*primals)
    most = 1e-6 * jnp.finfo(in_t.dtype).max  # finite where it overflows: at the mode zero multiplies it
    return _cauchy_log_density(*primals), in_kappa * tangents[1] - jnp.minimum(in_t, most) * tangents[0]


def _mean_log_distortion(t: Cosine, angle: Cosine, kappa: Array, dim: int) -> Array:
    """Return the mean of log(cosh τ - νᵀX sinh τ) given the cosine t = μᵀX, where c = μᵀν is the cosine of ``angle``.

    Let S = sinh τ and s the cosine of the azimuth. The argument of the log is A - Bs with A = cosh τ - tcS and
    B² = (1-t²)(1-c²)S². The mean over s is log r plus the mean log-boost on S^{d-2}, where
    r² = A² - B² = 1 - tc(1 - e^{-2τ}) + (t-c)²S² and the boost has sinh² of half its rapidity B²/(2r(A+r)).
    """
    near, c = t.minus < t.plus, angle.value
    apart = jnp.where(near, t.minus * c + angle.minus, angle.plus - t.plus * c)  # 1 - tc
    gap = jnp.where(near, angle.minus - t.minus, t.plus - angle.plus)  # t - c
    sinh, shrink = sinh_rapidity(kappa), 1 / (1 + kappa)
    square = apart + t.value * c * jnp.square(shrink) + jnp.square(gap * sinh)
    if dim == 2:  # s = ±1
        return 0.5 * jnp.log(square)
    r = jnp.sqrt(square)
    total = shrink + sinh * apart + r
    crossed = 0.25 * t.minus * t.plus * angle.minus * angle.plus * jnp.square(sinh)
    return 0.5 * jnp.log(square) + curves.value(2 * crossed / (r * total), "log_boost", "mean", dim - 1)


POWER_SPHERICAL = PowerSphericalFamily()
VON_MISES_FISHER = VonMisesFisherFamily()
SPHERICAL_CAUCHY = SphericalCauchyFamily()
