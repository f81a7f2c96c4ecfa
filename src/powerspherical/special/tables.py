"""Functions of κ at a fixed dimension as tables of short polynomials: how they are built, in NumPy.

The axis of κ is cut into *cells*. Cell 0 is [0, 2^low), where the polynomial starts with the exact power of κ, so that
κ = 0 and κ → 0 need no rule. Above it, every octave up to 2^64 has eight cells: the exponent of κ and the first three
bits of its mantissa are their number. Beyond 2^64 a function continues as its value there plus gain·log(κ/2^64), or
as a power of κ. Torch, C and Triton evaluate a function in the same few lines:

    cell = clamp((bits of κ >> shift) - first, 0, last);  x = κ·scale[cell] - offset[cell];  value = Σ c_j[cell] x^j

Of the package's families, only the functions of ``moments`` are fitted, by Chebyshev interpolation. They are evaluated
at some points of each octave, and interpolated from there to the nodes of its cells. The others are integrals of the
fits, whose sums over cells have positive terms. So all functions of a family fit together, and the derivative of a
table is as accurate as a table of its own. ``sampled_curves`` makes tables of any other formula.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from powerspherical.special import moments
from powerspherical.special.moments import Array

TOP = 64  # the cells end at 2^TOP
_PER_OCTAVE = 8
_NODES = 12  # per cell
#: Degree of the polynomials by the bytes of a number.
_DEGREE = {4: 6, 8: 12}

_ANGLES = np.pi * (np.arange(_NODES) + 0.5) / _NODES
POINTS = np.cos(_ANGLES / 2) ** 2  # Chebyshev's nodes in [0, 1]
#: Takes values at the nodes to coefficients of Chebyshev polynomials.
TO_CHEBYSHEV = np.cos(np.outer(_ANGLES, np.arange(_NODES))) * ([1] + [2] * (_NODES - 1)) / _NODES
#: Rows of T_j(2x-1) = T_2j(√x) in powers of x, and of T_j(2x-1) in powers of x - ½, with Chebyshev's polynomials T_j.
TO_POWERS, _TO_CENTRED_POWERS = np.zeros((2, _NODES, _NODES))
for _j in range(_NODES):
    TO_POWERS[_j, : _j + 1] = np.polynomial.chebyshev.cheb2poly([0] * 2 * _j + [1])[::2]
    _TO_CENTRED_POWERS[_j, : _j + 1] = np.polynomial.chebyshev.cheb2poly([0] * _j + [1])
_TO_CENTRED_POWERS *= 2.0 ** np.arange(_NODES)
_FROM_POWERS = np.linalg.inv(TO_POWERS)

_BETWEEN = np.cos(np.pi * np.arange(_NODES) / (2 * _NODES)) ** 2  # where interpolation errs most
_TRIED = np.r_[:_NODES, _NODES + 2, _NODES + _NODES // 2]  # of these, the ones that every cell has
_CHECKS = np.r_[POINTS, _BETWEEN][_TRIED[_NODES:]]
#: An octave, here [1, 2), is sampled at Chebyshev's nodes, and interpolated from there to the points of its cells.
_SAMPLED = 1 + np.cos(np.pi * (np.arange(22) + 0.5) / 44) ** 2
_IN_CELLS = 1 + ((np.r_[POINTS, _CHECKS] + np.arange(_PER_OCTAVE)[:, None]) / _PER_OCTAVE).ravel()
_TO_CELLS = np.polynomial.chebyshev.chebvander(2 * _IN_CELLS - 3, 21) @ np.linalg.inv(
    np.polynomial.chebyshev.chebvander(2 * _SAMPLED - 3, 21)
)

#: Takes a number d and κ, an array with one axis, to functions of κ.
Formula = Callable[[Array, float], Mapping[str, Array]]


def _running_sums(start: float, steps: Array) -> Array:
    """Return the start and the sums with the steps up to each. Rounding errors are carried along (Neumaier)."""
    sums = np.cumsum(np.r_[start, steps])
    old, new = sums[:-1], sums[1:]
    part = new - old
    return sums + np.r_[0.0, np.cumsum((old - (new - part)) + (steps - part))]


def _called(formula: Formula, kappa: Array, dim: float) -> dict[str, Array]:
    """Return the functions of a formula at ``kappa``, which may have any shape."""
    # The parts fit into the cache, and a formula can use that each is a short range of κ.
    parts = [formula(part, dim) for part in np.array_split(kappa.ravel(), 16)]
    return {name: np.concatenate([part[name] for part in parts]).reshape(kappa.shape) for name in parts[0]}


def _octaves(formula: Formula, low: int, dim: float) -> dict[str, Array]:
    """Return the functions of a formula at POINTS and _CHECKS of the cells from 2^low on, (cells, points)."""
    found = _called(formula, np.ldexp(_SAMPLED, np.arange(low, TOP)[:, None]), dim)
    return {name: _interpolated(values) for name, values in found.items()}


def _interpolated(values: Array) -> Array:
    """Return values at the points of the cells, given those at the nodes of the octaves, (octaves, nodes)."""
    # Divided by a power of κ, values have the same size everywhere, and so have rounding errors.
    power = np.log(np.abs(values[:, :1] / values[:, -1:])) / np.log(_SAMPLED[0] / _SAMPLED[-1])
    power = np.nan_to_num(np.rint(power), posinf=0, neginf=0)
    flat = values / _SAMPLED**power
    middle = flat[:, :1]
    return (((flat - middle) @ _TO_CELLS.T + middle) * _IN_CELLS**power).reshape(-1, len(_TRIED))


class Cells:
    """The cells [0, 2^low) and eight per octave from 2^low to 2^TOP. In a cell, x = κ·scale - offset is in [0, 1).

    Polynomials in x are arrays of coefficients (cells, degree + 1).
    """

    def __init__(self, low: int) -> None:
        octave, part = np.divmod(np.arange(_PER_OCTAVE * (TOP - low)), _PER_OCTAVE)
        self.low = low
        self.offset = np.r_[0.0, _PER_OCTAVE + part]
        self.scale = np.r_[2.0**-low, np.ldexp(float(_PER_OCTAVE), -(octave + low))]
        self.kappa = (POINTS + self.offset[:, None]) / self.scale[:, None]

    def sampled(self, formula: Formula, dim: float) -> dict[str, Array]:
        """Return the functions of a formula at the nodes."""
        first, rest = formula(self.kappa[0], dim), _octaves(formula, self.low, dim)
        return {name: np.r_[first[name][None], rest[name][:, :_NODES]] for name in first}

    def fit(self, values: Array, power: int = 0) -> Array:
        """Fit polynomials to values at the nodes of a function that is κ^power times an analytic one near κ = 0."""
        values = np.r_[values[:1] / POINTS**power, values[1:]]
        middle = values[:, _NODES // 2]
        chebyshev = (values - middle[:, None]) @ TO_CHEBYSHEV
        chebyshev[:, 0] += middle
        fit = chebyshev @ TO_POWERS
        kept = _NODES - power
        fit[0] = np.r_[np.zeros(power), chebyshev[0, :kept] @ TO_POWERS[:kept, :kept]]
        return fit

    def integral(self, fit: Array, start: float = 0.0) -> Array:
        """Return start + ∫₀^κ of a fit."""
        terms = self._integrated_terms(fit)
        return np.c_[_running_sums(start, terms.sum(1))[:-1], terms]

    def integral_to_infinity(self, fit: Array) -> Array:
        """Return ∫_κ^∞ of a fit, which beyond 2^TOP is taken as a power of κ."""
        terms = self._integrated_terms(fit)
        rest = float(fit[-1].sum()) * 2.0**TOP / (_decay(fit) - 1)
        return np.c_[_running_sums(rest, terms.sum(1)[::-1])[:0:-1], -terms]

    def _integrated_terms(self, fit: Array) -> Array:
        return fit / self.scale[:, None] / np.arange(1, fit.shape[1] + 1)


def _values(fit: Array, x: Array) -> Array:
    """Return polynomials at points x of each cell, which have the shape (points,) or (cells, points)."""
    return np.asarray(np.polynomial.polynomial.polyval(x, fit.T[:, :, None], tensor=False))


def _shortened(fit: Array, degree: int) -> Array:
    """Return polynomials of a lower degree, in powers of x in cell 0 and of x - ½ elsewhere, which round less.

    Truncated as sums of Chebyshev polynomials, slopes keep their accuracy, and their integrals gain some.
    """
    slopes = fit[:, 1:] * np.arange(1, fit.shape[1])
    count = slopes.shape[1]
    short = slopes @ _FROM_POWERS[:count, :degree] @ _TO_CENTRED_POWERS[:degree, :degree]
    power = max(0, int((fit[0] != 0).argmax()) - 1)  # near κ = 0 slopes are ∝ κ^power
    kept = degree - power
    first = slopes[0, power:] @ _FROM_POWERS[: count - power, :kept] @ TO_POWERS[:kept, :kept]
    short[0] = np.r_[np.zeros(power), first]
    constants = np.r_[fit[0, 0], _values(fit[1:], np.array([0.5]))[:, 0]]
    return np.c_[constants, short / np.arange(1, degree + 1)]


def _rise(fit: Array) -> float:
    """Return κ f'(κ) at 2^TOP, the end of the last cell."""
    return float(2 * _PER_OCTAVE * (np.arange(fit.shape[1]) @ fit[-1]))


def _decay(fit: Array) -> float:
    """Return the exponent p with f ∝ κ^-p at 2^TOP, or 0 if f is 0 or NaN there. Rounding is removed from integers."""
    end = float(fit[-1].sum())
    power = -_rise(fit) / end if abs(end) > 0 else 0.0
    return float(round(power)) if abs(power - round(power)) < 1e-6 else power


@dataclass(frozen=True)
class Curve:
    """A function of κ as a table.

    Attributes:
        cells, fit: the polynomials.
        gain: beyond 2^TOP the function is its value there plus gain·log(κ/2^TOP), if that is not zero.
        decay: otherwise it is its value there times (κ/2^TOP)^-decay.
        own_slope: the table of the derivative, if there is a better one than the derivative of the polynomials.
    """

    cells: Cells
    fit: Array
    gain: float
    decay: float
    own_slope: Curve | None = None

    @classmethod
    def of(cls, cells: Cells, fit: Array, *, logarithmic: bool = False, slope: Curve | None = None) -> Curve:
        """Make a curve that beyond its cells grows like log κ (``logarithmic``) or is a power of κ."""
        gain, decay = (_rise(fit), 0.0) if logarithmic else (0.0, _decay(fit))
        return cls(cells, fit, gain, decay, slope)

    @functools.cached_property
    def slope(self) -> Curve:
        """The derivative in κ."""
        if self.own_slope is not None:
            return self.own_slope
        fit = self.fit[:, 1:] * np.arange(1, self.fit.shape[1]) * self.cells.scale[:, None]
        # The slope of a function with a limit may be no more than rounding at the end of the table. It does not grow.
        decay = self.decay + 1 if self.gain or self.decay else max(0.0, _decay(fit))
        return Curve(self.cells, fit, 0.0, decay)

    def minus(self, number: float) -> Curve:
        """Return the curve of the function minus a number. It must not be a power beyond the table."""
        return replace(self, fit=np.c_[self.fit[:, :1] - number, self.fit[:, 1:]])

    def rows(self, size: int) -> Array:
        """Return rows (-offset, scale, c_0, …, c_n) for numbers of ``size`` bytes. n is the same for all curves."""
        offset, degree = self.cells.offset, _DEGREE[size]
        if size == 4:
            return np.c_[-offset - 0.5 * (offset > 0), self.cells.scale, _shortened(self.fit, degree)]
        return np.c_[
            -offset, self.cells.scale, np.pad(self.fit, [(0, 0), (0, degree + 1 - self.fit.shape[1])])
        ]


def _up_to(limit: float, mean: Array, loss: Array) -> Array:
    """Return the fit of a mean that is limit - loss where the loss is small: sums from 0 on may exceed the limit."""
    return np.where(loss[:, :1] < limit / 2, np.c_[limit - loss[:, :1], -loss[:, 1:]], mean)


def _octave(number: float) -> int:
    """Return floor(log₂ number) for a number > 0."""
    return math.frexp(number)[1] - 1


def _exponential(cells: Cells, variance: Array, start: float, limit: float) -> dict[str, Curve]:
    """Return what follows from the variance of T ≤ 0 at the nodes.

    The slope of the log-partition rises from ``start`` at κ = 0 to ``limit``.
    """
    fit, entropy_slope = cells.fit(variance), cells.fit(cells.kappa * variance, power=1)
    loss = cells.integral_to_infinity(fit)
    slope = Curve.of(cells, _up_to(limit, cells.integral(fit, start), loss))
    log_partition = cells.integral(cells.fit(_values(cells.integral(fit), POINTS), power=1))
    log_partition[:, :2] += start * np.c_[cells.offset, np.ones_like(cells.offset)] / cells.scale[:, None]
    return {
        "information": Curve.of(cells, fit),
        "score_loss": Curve.of(cells, loss),
        "offset": Curve.of(cells, cells.integral(cells.fit(_values(loss, POINTS))), logarithmic=True),
        "log_partition_slope": slope,
        "log_partition": Curve.of(cells, log_partition, slope=slope),
        "relative_entropy": Curve.of(cells, cells.integral(entropy_slope), logarithmic=True),
    }


def _power_spherical(dim: float) -> dict[str, Curve]:
    cells = Cells(_octave((dim - 1) / 2) - 7)
    sampled = cells.sampled(moments.power_spherical, dim)
    found = _exponential(cells, sampled["variance"], moments.mean_log1p_of_uniform(dim), math.log(2))
    third = Curve.of(cells, cells.fit(sampled["third"]))
    return found | {
        "information": replace(found["information"], own_slope=third),
        "log_loss": found["score_loss"],
    }


def _von_mises_fisher(dim: float) -> dict[str, Curve]:
    cells = Cells(_octave((dim - 1) / 2) - 7)
    sampled = cells.sampled(moments.von_mises_fisher, dim)
    found = _exponential(cells, sampled["variance"], 0.0, 1.0)
    return found | {
        "variance": found["information"],
        "mean": found["log_partition_slope"],
        "loss": found["score_loss"],
        "log_loss": Curve.of(cells, cells.integral_to_infinity(cells.fit(sampled["covariance"]))),
    }


def _spherical_cauchy(dim: float) -> dict[str, Curve]:
    cells = Cells(-7)
    sampled = cells.sampled(moments.spherical_cauchy, dim)
    growth = 1 + cells.kappa
    fit = cells.fit(sampled["sines"] / growth)  # a shift by dτ = dκ/(1+κ) moves t by (1-t²)dτ
    loss = cells.integral_to_infinity(fit)
    return {
        "variance": Curve.of(cells, cells.fit(sampled["variance"])),
        "information": Curve.of(cells, cells.fit((dim - 1) ** 2 / dim / growth**2)),
        "score_loss": Curve.of(cells, np.zeros_like(fit)),  # the kernel is a density
        "mean": Curve.of(cells, _up_to(1.0, cells.integral(fit), loss)),
        "loss": Curve.of(cells, loss),
        "relative_entropy": Curve.of(
            cells, cells.integral(cells.fit((dim - 1) * sampled["mean"] / growth, power=1)), logarithmic=True
        ),
        "log_loss": Curve.of(cells, cells.integral_to_infinity(cells.fit(_values(loss, POINTS) / growth))),
    }


def _log_boost(dim: float) -> dict[str, Curve]:
    """Return the table of E log(cosh τ - t sinh τ) over uniform points, as a function of q = sinh²(τ/2)."""

    def formula(q: Array, dim: float) -> dict[str, Array]:
        half_sinh = np.sqrt(q * (1 + q))  # sinh(τ)/2
        return {"slope": moments.spherical_cauchy(2 * (q + half_sinh), dim)["mean"] / half_sinh}

    cells = Cells(-7)
    slope = cells.fit(cells.sampled(formula, dim)["slope"])
    return {"mean": Curve.of(cells, cells.integral(slope), logarithmic=True)}


_BUILDERS: dict[str, Callable[[float], Mapping[str, Curve]]] = {
    "power_spherical": _power_spherical,
    "von_mises_fisher": _von_mises_fisher,
    "spherical_cauchy": _spherical_cauchy,
    "log_boost": _log_boost,
}


def register(key: str, build: Callable[[float], Mapping[str, Curve]]) -> None:
    """Make ``build(dim)`` the curves of a family. A key cannot be given to another function: tables are cached."""
    if _BUILDERS.setdefault(key, build) is not build:
        raise ValueError(f"the curves of {key!r} are registered already: choose another key")


@functools.lru_cache(64)
def curves(family: str, dim: float) -> Mapping[str, Curve]:
    """Return the curves of a family at a dimension. The last 64 are kept, about half a megabyte each."""
    return _BUILDERS[family](dim)


# Tables of other formulas

_LOWS = np.arange(-30, 31)  # cell 0 of a sampled curve may be [0, 2^low)
_CHEBYSHEV_BETWEEN = np.polynomial.chebyshev.chebvander(2 * _BETWEEN - 1, _NODES - 1).T
#: The largest relative error of a table that is kept, by the bytes of a number.
_TOLERANCE = {4: 2e-7, 8: 1e-9}


def sampled_curves(formula: Formula, dim: float) -> dict[str, Curve]:
    """Return tables of functions that are given by any NumPy formula.

    Every function is fitted directly. Near κ = 0 it must be κ^n times an analytic function, n = 0, 1, 2, …; beyond
    2^TOP it continues as a logarithm or as a power of κ. In cells where it is not finite, its table is NaN.

    A function is left out, so that the others keep their tables, if no polynomials represent it: in some cell the
    relative error between the nodes is above 1e-9. That is relative to the largest value in the cell, as functions may
    have zeros.

    The derivative of a table has about 1000 times the noise of the formula, relative to |f|/κ. That of ``mean``, which
    tends to 1, comes from its complement ``loss`` if there is one.

    Args:
        formula: ``formula(kappa, dim)`` returns arrays by name. It is called with about 3,500 values of κ, in 32 calls.
        dim: the ambient dimension d.
    """
    with np.errstate(all="ignore"):
        trials = _called(formula, np.ldexp(np.r_[POINTS, _BETWEEN], _LOWS[:, None]), dim)
        starts = {name: start for name, values in trials.items() if (start := _start(values))}
        lowest = min((low for low, _ in starts.values()), default=TOP - 1)
        cells = _octaves(formula, lowest, dim)
        result = {}
        for name, (low, power) in starts.items():
            zeroth = trials[name][low - _LOWS[0]][_TRIED]
            rest = cells[name][_PER_OCTAVE * (low - lowest) :]
            if curve := _checked(Cells(low), np.r_[zeroth[None], rest], power):
                result[name] = curve
    if {"mean", "loss"} <= result.keys():
        slope = result["loss"].slope
        result["mean"] = replace(result["mean"], own_slope=replace(slope, fit=-slope.fit))
    return result


def _start(values: Array) -> tuple[int, int] | None:
    """Return low of the largest good cell 0 and the leading power of a function there, or None if there is none.

    A lower cell 0 has a smaller error of interpolation, but a formula may be less accurate near κ = 0.

    Args:
        values: of the function at POINTS and _BETWEEN in [0, 2^low), per low in _LOWS.
    """
    x = np.r_[POINTS, _BETWEEN]
    steepness = np.log(np.abs(values[:, _NODES - 2] / values[:, _NODES - 1]))
    steepness /= np.log(POINTS[-2] / POINTS[-1])
    powers = np.clip(np.nan_to_num(np.rint(steepness)), 0, 4)
    at_first, sizes = values[0, 0], np.abs(values).max(1)
    values = values / x ** powers[:, None]
    middle, exact = values[:, :1], values[:, _NODES:]
    chebyshev = (values[:, :_NODES] - middle) @ TO_CHEBYSHEV
    errors = {}
    for size, degree in _DEGREE.items():
        kept = np.arange(_NODES) < np.minimum(degree + 1, _NODES) - powers[:, None]
        misses = middle + (chebyshev * kept) @ _CHEBYSHEV_BETWEEN - exact
        errors[size] = np.abs(misses / np.where(misses == 0, 1, exact)).max(1)
    # Far out, where a function no longer changes, a constant seems good again, but has the wrong value at κ = 0.
    at_zero = np.where(powers > 0, 0.0, middle[:, 0] + chebyshev @ (-1.0) ** np.arange(_NODES))
    right = np.abs(at_zero - at_first) <= 1e-6 * sizes
    double = np.where(right & (errors[4] < _TOLERANCE[4] / 4), errors[8], math.inf)
    least = np.nanmin(double, initial=math.inf)
    if not least < _TOLERANCE[8]:
        return None
    best = np.nonzero(double <= max(4 * least, 1e-14))[0][-1]
    for _ in range(2):  # with two octaves less, short polynomials and slopes are more accurate
        if best > 0 and double[best - 1] <= max(4 * least, 1e-12):
            best -= 1
    return int(_LOWS[best]), int(powers[best])


def _checked(cells: Cells, values: Array, power: int) -> Curve | None:
    """Return the curve of a function with ``values`` at the nodes and _CHECKS of the cells, if it is accurate."""
    values = np.where(np.isfinite(values), values, np.nan)
    nodes, exact = np.split(values, [_NODES], axis=1)
    curve = Curve.of(cells, cells.fit(nodes, power))
    sizes = np.abs(nodes).max(1, keepdims=True) * np.ones_like(exact)
    sizes[0] = np.abs(exact[0])
    for size, tolerance in _TOLERANCE.items():
        rows = curve.rows(size)
        errors = np.abs(_values(rows[:, 2:], _CHECKS + (cells.offset + rows[:, 0])[:, None]) - exact)
        if (errors > tolerance * np.maximum(sizes, 1e-280)).any():
            return None
    end = curve.fit[-1].sum()
    earlier, later = np.diff([*curve.fit[[-16 * _PER_OCTAVE, -8 * _PER_OCTAVE], 0], end])  # by 8 octaves each
    if abs(later - earlier) < 0.01 * abs(later) and abs(later) > 1e-6 * abs(end):
        return replace(curve, gain=float(later) / (8 * math.log(2)), decay=0.0)
    return curve
