"""Integrals over the sphere of functions of the angle to a direction, with SciPy alone.

A function f of the angle a integrates to area(S^{d-2}) ∫₀^π f(a) sin^{d-2}(a) da. Adaptive quadrature of
that, split at the peak of the integrand, is the independent check of the library's formulas; it shares no
code with them.
"""

import math
from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
from scipy import integrate, optimize, special

Array = np.ndarray[Any, np.dtype[np.float64]]
Function = Callable[[Any], Any]


def log_sphere_area(dim: int) -> float:
    """The log of the area of the unit sphere of R^dim (of S^0, two points: log 2)."""
    return math.log(2) + dim / 2 * math.log(math.pi) - float(special.gammaln(dim / 2))


class Symmetric:
    """A density proportional to exp(log_g(a)) on the unit sphere of R^dim; a is the angle to its mean."""

    def __init__(self, dim: int, log_g: Function) -> None:
        self.dim = dim
        self.log_g = log_g

    @classmethod
    def power_spherical(cls, dim: int, concentration: float) -> "Symmetric":
        """(1 + cos a)^κ, with 1 + cos a = 2 cos²(a/2)."""
        return cls(dim, lambda a: concentration * (math.log(2) + 2 * np.log(np.cos(a / 2))))

    @classmethod
    def von_mises_fisher(cls, dim: int, concentration: float) -> "Symmetric":
        """exp(κ cos a)."""
        return cls(dim, lambda a: concentration * np.cos(a))

    @cached_property
    def log_normalizer(self) -> float:
        """The log of the integral of exp(log_g) over the sphere."""
        return log_sphere_area(self.dim - 1) + self._top + math.log(self._integral(lambda a: 1.0))

    def log_density(self, angle: Any) -> Any:
        """The log density at points with this angle to the mean direction."""
        return self.log_g(angle) - self.log_normalizer

    def mean(self, f: Function) -> float:
        """The expectation of a function of the angle."""
        return self._integral(f) / self._integral(lambda a: 1.0)

    def _log_weight(self, angle: Any) -> Any:
        return self.log_g(angle) + (self.dim - 2) * np.log(np.sin(angle))

    @cached_property
    def _breaks(self) -> list[float]:
        """Where the weight is not negligible, cut at its peak."""
        grid = np.linspace(0, math.pi, 20_003)[1:-1]
        log_weight = self._log_weight(grid)
        seen = grid[log_weight > log_weight.max() - 60]
        step = grid[1] - grid[0]
        peak = float(grid[log_weight.argmax()])
        low, high = float(seen[0] - step), float(seen[-1] + step)
        return [low, *([peak] if low < peak < high else []), high]

    @cached_property
    def _top(self) -> float:
        return float(self._log_weight(np.linspace(0, math.pi, 20_003)[1:-1]).max())

    def _integral(self, f: Function) -> float:
        """∫ f(a) exp(log weight - its top) da."""

        def integrand(angle: float) -> float:
            return float(f(angle) * np.exp(self._log_weight(angle) - self._top))

        pieces = zip(self._breaks[:-1], self._breaks[1:], strict=True)
        return math.fsum(
            integrate.quad(integrand, low, high, epsabs=0.0, epsrel=1e-12, limit=200)[0]
            for low, high in pieces
        )


def stationary_point(loc: Array, concentration: float, seed: int = 0) -> Array:
    """A mode of (1 + locᵀx)^κ on the unit sphere: the root of its tangential gradient, from a random start.

    The start is the likelier of a random point and its antipode.
    """
    start = np.random.default_rng(seed).standard_normal(len(loc))
    start /= np.linalg.norm(start) * np.sign(start @ loc)

    def equations(y: Array) -> Array:
        gradient = concentration * loc / (1 + loc @ y)
        return gradient - (gradient @ y) * y / (y @ y) + (1 - y @ y) * y

    solution = optimize.root(equations, start, tol=1e-13)
    if not solution.success:
        raise RuntimeError(f"no mode found: {solution.message}")
    point = np.asarray(solution.x, dtype=np.float64)
    if concentration * np.log1p(loc @ point) < concentration * np.log1p(loc @ start):
        raise RuntimeError("the stationary point found is no maximum of the density")
    return point
