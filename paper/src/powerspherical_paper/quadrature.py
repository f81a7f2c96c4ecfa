"""Integrals over the sphere by SciPy's adaptive quadrature, to check the library's formulas independently.

A function f of the angle a to a fixed direction integrates to area(S^{d-2}) ∫₀^π f(a) sin^{d-2}(a) da. We integrate
numerically and split at the peak of the integrand. No code is shared with the library.
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
    """The log of the area of the unit sphere in R^dim (for dim = 1, two points: log 2)."""
    return math.log(2) + dim / 2 * math.log(math.pi) - float(special.gammaln(dim / 2))


class Symmetric:
    """A density proportional to exp(log_kernel(a)) on the unit sphere in R^dim; a is the angle to its mean."""

    def __init__(self, dim: int, log_kernel: Function) -> None:
        self.dim = dim
        self.log_kernel = log_kernel
        grid = np.linspace(0, math.pi, 20_003)[1:-1]
        log_weight = self._log_weight(grid)
        self._peak = float(log_weight.max())
        # Integrate where the weight is not negligible, in two pieces that meet at the peak.
        seen = grid[log_weight > self._peak - 60]
        step = grid[1] - grid[0]
        self._breaks = (seen[0] - step, grid[log_weight.argmax()], seen[-1] + step)

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
        """The log of the integral of exp(log_kernel) over the sphere."""
        return log_sphere_area(self.dim - 1) + self._peak + math.log(self._integral(lambda a: 1.0))

    def log_density(self, angle: Any) -> Any:
        """The log-density at points with this angle to the mean direction."""
        return self.log_kernel(angle) - self.log_normalizer

    def mean(self, f: Function) -> float:
        """The expectation of a function of the angle."""
        return self._integral(f) / self._integral(lambda a: 1.0)

    def _log_weight(self, angle: Any) -> Any:
        return self.log_kernel(angle) + (self.dim - 2) * np.log(np.sin(angle))

    def _integral(self, f: Function) -> float:
        """∫ f(a) exp(log_weight(a) - peak) da."""

        def integrand(angle: float) -> float:
            return float(f(angle) * np.exp(self._log_weight(angle) - self._peak))

        low, peak, high = self._breaks
        pieces = ((low, peak), (peak, high))
        return math.fsum(
            integrate.quad(integrand, *piece, epsabs=0.0, epsrel=1e-12, limit=200)[0] for piece in pieces
        )


def stationary_point(loc: Array, concentration: float, seed: int = 0) -> Array:
    """A mode of (1 + locᵀx)^κ on the unit sphere: the root of its tangential gradient.

    The search starts at a random point or at its antipode, whichever has the higher density.
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
    if loc @ point < loc @ start:
        raise RuntimeError("the stationary point found is not a maximum of the density")
    return point
