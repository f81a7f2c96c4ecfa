"""Functions of κ at a fixed dimension as tables of short polynomials: how they are built, in NumPy.

The axis of κ is cut into *cells*. Cell 0 is [0, 2^low), where the polynomial starts with the exact power of κ, so that
κ = 0 and κ → 0 need no rule. Above it, every octave up to 2^64 has eight cells: the exponent of κ and the first three
bits of its mantissa are their number. Beyond 2^64 a function continues as its value there plus gain·log κ, or as a
power of κ. Evaluating a function, in torch, C or Triton, is the same few lines everywhere:

    cell = clamp((bits of κ >> shift) - first, 0, last);  x = κ·scale[cell] - offset[cell];  value = Σ c_j[cell] x^j

Only the functions of ``moments`` are fitted, by Chebyshev interpolation. The others are integrals of the fits,
whose sums over cells have positive terms. So all functions of a family fit together, and the derivative of a table
is as accurate as a table of its own.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from powerspherical.special import moments
from powerspherical.special.moments import Array

TOP = 64  # the cells end at 2^TOP
_PER_OCTAVE = 8
_NODES = 12  # per cell
#: Degree of the polynomials of a fitted function, by the bytes of a number. An integral has one more.
_DEGREE = {4: 5, 8: 11}

_ANGLES = np.pi * (np.arange(_NODES) + 0.5) / _NODES
_POINTS = np.cos(_ANGLES / 2) ** 2  # Chebyshev's nodes in [0, 1]
#: Takes values at the nodes to coefficients of Chebyshev polynomials.
_TO_CHEBYSHEV = np.cos(np.outer(_ANGLES, np.arange(_NODES))) * ([1] + [2] * (_NODES - 1)) / _NODES


def _powers_of_chebyshev() -> Array:
    """Return a matrix whose row j has the coefficients of T_j(2x-1) in powers of x, which are integers."""
    rows = np.zeros((_NODES, _NODES))
    for j in range(_NODES):
        coefficients = np.polynomial.Chebyshev.basis(j)(np.polynomial.Polynomial([-1, 2])).coef
        rows[j, : len(coefficients)] = np.rint(coefficients)
    return rows


_TO_POWERS = _powers_of_chebyshev()

#: Coefficients (cells, degree + 1) by the bytes of a number.
Fits = dict[int, Array]


def _running_sums(start: float, steps: Iterable[float]) -> Iterator[float]:
    """Yield the start and the sums with the steps up to each, with the rounding errors carried along (Neumaier)."""
    total, rest = start, 0.0
    yield total
    for step in steps:
        new = total + step
        rest += (total - new) + step if abs(total) >= abs(step) else (step - new) + total
        total = new
        yield total + rest


class Cells:
    """The cells [0, 2^low) and eight per octave from 2^low to 2^TOP. In a cell, x = κ·scale - offset is in [0, 1)."""

    def __init__(self, low: int) -> None:
        octave, part = np.divmod(np.arange(_PER_OCTAVE * (TOP - low)), _PER_OCTAVE)
        self.low = low
        self.offset = np.r_[0.0, _PER_OCTAVE + part]
        self.scale = np.r_[2.0**-low, np.ldexp(float(_PER_OCTAVE), -(octave + low))]
        self.kappa = (_POINTS + self.offset[:, None]) / self.scale[:, None]

    def sampled(self, formula: Callable[[Array, float], tuple[Array, ...]], dim: float) -> list[Array]:
        """Return the results of ``formula`` at the nodes, each of shape (cells, nodes)."""
        parts = [
            formula(part, dim) for part in np.array_split(self.kappa.ravel(), 16)
        ]  # each fits into the cache
        return [np.concatenate(columns).reshape(self.kappa.shape) for columns in zip(*parts, strict=True)]

    def values(self, fits: Fits) -> Array:
        """Return a fitted function at the nodes."""
        return fits[8] @ _POINTS ** np.arange(fits[8].shape[1])[:, None]

    def fit(self, values: Array, power: int = 0) -> Fits:
        """Fit polynomials to values at the nodes of a function that is κ^power times an analytic one near κ = 0."""
        values = np.r_[values[:1] / _POINTS**power, values[1:]]
        middle = values[:, _NODES // 2]
        chebyshev = (values - middle[:, None]) @ _TO_CHEBYSHEV
        chebyshev[:, 0] += middle
        fits = {}
        for size, degree in _DEGREE.items():
            fits[size] = chebyshev[:, : degree + 1] @ _TO_POWERS[: degree + 1, : degree + 1]
            kept = degree + 1 - power
            fits[size][0] = np.r_[np.zeros(power), chebyshev[0, :kept] @ _TO_POWERS[:kept, :kept]]
        return fits

    def integral(self, fits: Fits, start: float = 0.0) -> Fits:
        """Return start + ∫₀^κ of a fit."""
        terms = self._integrated_terms(fits)
        sums = list(itertools.islice(_running_sums(start, terms[8].sum(1).tolist()), len(self.scale)))
        return {size: np.c_[sums, c] for size, c in terms.items()}

    def integral_to_infinity(self, fits: Fits) -> Fits:
        """Return ∫_κ^∞ of a fit, which beyond 2^TOP is taken as a power of κ."""
        terms = self._integrated_terms(fits)
        end, power = float(fits[8][-1].sum()), _decay(fits)
        sums = list(_running_sums(end * 2.0**TOP / (power - 1), terms[8].sum(1)[::-1].tolist()))[:0:-1]
        return {size: np.c_[sums, -c] for size, c in terms.items()}

    def _integrated_terms(self, fits: Fits) -> Fits:
        return {size: c / self.scale[:, None] / np.arange(1, c.shape[1] + 1) for size, c in fits.items()}


def _rise(fits: Fits) -> float:
    """Return κ f'(κ) at 2^TOP, the end of the last cell."""
    last = fits[8][-1]
    return float(2 * _PER_OCTAVE * (np.arange(len(last)) @ last))


def _decay(fits: Fits) -> float:
    """Return the exponent p with f ∝ κ^-p at 2^TOP. Rounding is removed from integers."""
    power = -_rise(fits) / float(fits[8][-1].sum())
    return float(round(power)) if abs(power - round(power)) < 1e-6 else power


@dataclass(frozen=True)
class Curve:
    """A function of κ as a table.

    Attributes:
        cells, fits: the polynomials.
        gain: beyond 2^TOP the function is its value there plus gain·log(κ/2^TOP), if that is not zero.
        decay: otherwise it is its value there times (κ/2^TOP)^-decay.
        own_slope: the table of the derivative, if there is a better one than the derivative of the polynomials.
    """

    cells: Cells
    fits: Fits
    gain: float
    decay: float
    own_slope: Curve | None = None

    @classmethod
    def of(cls, cells: Cells, fits: Fits, *, logarithmic: bool = False, slope: Curve | None = None) -> Curve:
        """Make a curve that beyond its cells grows like log κ (``logarithmic``) or is a power of κ."""
        return (
            cls(cells, fits, _rise(fits), 0.0, slope)
            if logarithmic
            else cls(cells, fits, 0.0, _decay(fits), slope)
        )

    @functools.cached_property
    def slope(self) -> Curve:
        """The derivative in κ."""
        return self.own_slope or Curve.of(
            self.cells,
            {
                size: c[:, 1:] * np.arange(1, c.shape[1]) * self.cells.scale[:, None]
                for size, c in self.fits.items()
            },
        )

    def rows(self, size: int) -> Array:
        """Return rows (-offset, scale, c_0, …, c_n) for numbers of ``size`` bytes. n is the same for all curves."""
        c = self.fits[size]
        padding = np.zeros((len(c), max(0, _DEGREE[size] + 2 - c.shape[1])))
        return np.c_[-self.cells.offset, self.cells.scale, c, padding]

    @property
    def ends(self) -> Array:
        """The values at the ends of the cells, from κ = 0 to 2^TOP."""
        return np.r_[self.fits[8][:, 0], self.fits[8][-1].sum()]


def _octave(number: float) -> int:
    """Return floor(log₂ number) for a number > 0."""
    return math.frexp(number)[1] - 1


def _power_spherical(dim: float) -> dict[str, Curve]:
    cells = Cells(_octave((dim - 1) / 2) - 7)
    variance, third = cells.sampled(moments.power_spherical, dim)
    fit = cells.fit(variance)
    third_curve = Curve.of(cells, cells.fit(third))
    loss = cells.integral_to_infinity(fit)
    return {
        "variance": Curve.of(cells, fit, slope=third_curve),
        "loss": Curve.of(cells, loss),
        "offset": Curve.of(cells, cells.integral(cells.fit(cells.values(loss))), logarithmic=True),
        "mean_log1p": Curve.of(cells, cells.integral(fit, moments.mean_log1p_of_uniform(dim))),
        "entropy": Curve.of(
            cells, cells.integral(cells.fit(cells.kappa * variance, power=1)), logarithmic=True
        ),
    }


def _von_mises_fisher(dim: float) -> dict[str, Curve]:
    cells = Cells(_octave((dim - 1) / 2) - 7)
    (variance,) = cells.sampled(lambda kappa, dim: (moments.von_mises_fisher(kappa, dim),), dim)
    fit = cells.fit(variance)
    loss = cells.integral_to_infinity(fit)
    return {
        "variance": Curve.of(cells, fit),
        "mean": Curve.of(cells, cells.integral(fit)),
        "loss": Curve.of(cells, loss),
        "offset": Curve.of(cells, cells.integral(cells.fit(cells.values(loss))), logarithmic=True),
        "entropy": Curve.of(
            cells, cells.integral(cells.fit(cells.kappa * variance, power=1)), logarithmic=True
        ),
    }


def _spherical_cauchy(dim: float) -> dict[str, Curve]:
    cells = Cells(-7)
    mean, sines, variance = cells.sampled(moments.spherical_cauchy, dim)  # type: ignore[arg-type]
    growth = 1 + cells.kappa
    fit = cells.fit(sines / growth)  # a shift by dτ = dκ/(1+κ) moves t by (1-t²)dτ
    loss = cells.integral_to_infinity(fit)
    return {
        "variance": Curve.of(cells, cells.fit(variance)),
        "mean": Curve.of(cells, cells.integral(fit)),
        "loss": Curve.of(cells, loss),
        "entropy": Curve.of(
            cells, cells.integral(cells.fit((dim - 1) * mean / growth, power=1)), logarithmic=True
        ),
        "log_loss": Curve.of(cells, cells.integral_to_infinity(cells.fit(cells.values(loss) / growth))),
    }


_FAMILIES = {
    "power_spherical": _power_spherical,
    "von_mises_fisher": _von_mises_fisher,
    "spherical_cauchy": _spherical_cauchy,
}


@functools.lru_cache(64)
def curves(family: str, dim: float) -> dict[str, Curve]:
    """Return the curves of a family at a dimension. The last 64 are kept, about half a megabyte each."""
    return _FAMILIES[family](dim)
