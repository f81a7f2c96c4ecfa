"""Table 1 of the paper and its two Kullback-Leibler divergences, each computed in three independent ways.

1. *Formula*: what the library returns.
2. *Quadrature*: numerical integration of the unnormalised densities (`quadrature.py`), without any closed form of the
   paper. The mode is found as a stationary point of the density on the sphere.
3. *Monte Carlo*: the mean over the library's draws, with its standard error.

A row fails if formula and quadrature differ by more than `TOLERANCE` (relative for values above 1, absolute below). It
also fails if the Monte Carlo estimate is more than `LIMIT` standard errors from the formula. For E[X], var(X) and the
mode, all components are compared and the worst one counts. Correct code fails for about one in 3,000 seeds.
"""

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributions import kl_divergence

from powerspherical import HypersphericalUniform, PowerSpherical, VonMisesFisher
from powerspherical_paper.quadrature import Symmetric, log_sphere_area, stationary_point
from powerspherical_paper.results import Outcome, Task

FILES = ("properties.json",)
DIMS = (2, 3, 10, 64)
CONCENTRATIONS = (0.5, 5.0, 50.0, 500.0)
SAMPLES = 100_000
COSINE = 0.5  # between the mean directions in KL(PS‖vMF); the concentrations are equal
TOLERANCE = 1e-8
LIMIT = 5.5


@dataclass(frozen=True)
class Row:
    """One property at one (d, κ): `error` (against quadrature) and `z` (Monte Carlo), the worst over components."""

    name: str
    dim: int
    concentration: float
    error: float
    z: float

    @property
    def passed(self) -> bool:
        """Whether the three values agree; NaN never does."""
        return self.error <= TOLERANCE and self.z <= LIMIT


@dataclass(frozen=True)
class Estimate:
    """Monte Carlo means and their standard errors, per component."""

    mean: Tensor
    standard_error: Tensor

    @classmethod
    def of(cls, terms: Tensor) -> "Estimate":
        """The mean of `terms` over the first dimension."""
        return cls(terms.mean(0), terms.std(0) / math.sqrt(len(terms)))

    @classmethod
    def of_products(cls, terms: Tensor) -> "Estimate":
        """The mean of the rows' outer products with themselves, without storing one matrix per row."""
        n = len(terms)
        mean = terms.T @ terms / n
        variance = terms.square().T @ terms.square() / n - mean.square()
        return cls(mean, (variance / n).sqrt())


def run(task: Task) -> Outcome:
    """Compare all properties, and write `properties.json`. A quick run has a tenth of the draws."""
    torch.manual_seed(task.seed)
    samples = SAMPLES // 10 if task.quick else SAMPLES
    grid = list(product(DIMS, CONCENTRATIONS))
    rows: list[Row] = []
    for done, (dim, kappa) in enumerate(grid, start=1):
        rows.extend(compare(dim, kappa, samples, task.device))
        task.progress(done / len(grid))
    passed = all(row.passed for row in rows)
    configuration = {
        "dims": DIMS,
        "concentrations": CONCENTRATIONS,
        "samples": samples,
        "cosine": COSINE,
        "tolerance": TOLERANCE,
        "limit": LIMIT,
    }
    found = [{**_finite(asdict(row)), "passed": row.passed} for row in rows]
    return Outcome([task.write("properties", configuration, {"passed": passed, "rows": found})], passed)


def compare(dim: int, kappa: float, samples: int, device: torch.device | str = "cpu") -> Iterator[Row]:
    """Yield the rows for one Power Spherical distribution with a random mean direction."""
    axes = torch.linalg.qr(torch.randn(dim, 2, dtype=torch.float64)).Q.to(device)
    loc = axes[:, 0]
    p = PowerSpherical(loc, kappa)
    q = VonMisesFisher(COSINE * loc + math.sqrt(1 - COSINE**2) * axes[:, 1], kappa)
    uniform = HypersphericalUniform(dim, dtype=torch.float64, device=device)
    x = p.sample((samples,))

    exact = Symmetric.power_spherical(dim, kappa)
    mean_t = exact.mean(lambda a: np.cos(a))
    var_t = exact.mean(lambda a: (np.cos(a) - mean_t) ** 2)
    var_v = exact.mean(lambda a: np.sin(a) ** 2) / (dim - 1)
    entropy = -exact.mean(exact.log_density)
    cross = Symmetric.von_mises_fisher(dim, kappa).log_normalizer - kappa * COSINE * mean_t

    def row(name: str, formula: Tensor, quadrature: Tensor | float, sampled: Estimate) -> Row:
        """Compare all components."""
        quadrature = torch.as_tensor(quadrature, dtype=torch.float64, device=device)
        error = (formula - quadrature).abs() / quadrature.abs().clamp(min=1)
        z = (sampled.mean - formula) / sampled.standard_error
        return Row(name, dim, kappa, error=float(error.max()), z=float(z.abs().max()))

    yield row("E[X]", p.mean, mean_t * loc, Estimate.of(x))

    along, identity = torch.outer(loc, loc), torch.eye(dim, dtype=torch.float64, device=device)
    covariance = var_t * along + var_v * (identity - along)
    yield row("var(X)", p.covariance_matrix, covariance, Estimate.of_products(x - p.mean))

    # By symmetry the mode is the direction of the mean: the components of the draws orthogonal to it average to zero.
    across = Estimate.of(x - (x @ p.mode)[:, None] * p.mode)
    stationary = torch.from_numpy(stationary_point(loc.cpu().numpy(), kappa)).to(device)
    yield row("mode", p.mode, stationary, Estimate(p.mode + across.mean, across.standard_error))

    # The density of t is that of x, times the area of S^{d-2}, times (1 - t²)^((d-3)/2).
    log_p = p.log_prob(x)
    log_sine = ((x - loc).norm(dim=-1) * (x + loc).norm(dim=-1) / 2).log()
    shift = log_sphere_area(dim - 1)
    entropy_t = -exact.mean(lambda a: exact.log_density(a) + shift + (dim - 3) * np.log(np.sin(a)))
    log_p_t = log_p + shift + (dim - 3) * log_sine
    yield row("H(T)", p.marginal.entropy(), entropy_t, Estimate.of(-log_p_t))

    yield row("H(X)", p.entropy(), entropy, Estimate.of(-log_p))
    to_uniform = Estimate.of(log_p - uniform.log_prob(x))
    yield row("KL(PS‖U)", kl_divergence(p, uniform), log_sphere_area(dim) - entropy, to_uniform)
    yield row("KL(PS‖vMF)", kl_divergence(p, q), cross - entropy, Estimate.of(log_p - q.log_prob(x)))


def _finite(values: dict[str, Any]) -> dict[str, Any]:
    """The values with NaN and infinity as text, because JSON has no such numbers."""
    return {k: v if not isinstance(v, float) or math.isfinite(v) else repr(v) for k, v in values.items()}
