"""Table 1 of the paper and its two Kullback-Leibler divergences, each computed in three independent ways.

1. *Formula*: what the library returns.
2. *Quadrature*: numerical integration of the unnormalised densities (`_quadrature.py`), without any closed form of the
   paper. The mode is found as a stationary point of the density on the sphere.
3. *Monte Carlo*: the mean over the library's draws, with its standard error.

A row fails if formula and quadrature differ by more than `TOLERANCE` (relative for values above 1, absolute below). It
also fails if the Monte Carlo estimate is more than `LIMIT` standard errors from the formula. For E[X], var(X) and the
mode, all components are compared and the worst one counts. Correct code fails for about one in 3,000 seeds.
"""

import math
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributions import kl_divergence

from powerspherical import HypersphericalUniform, PowerSpherical, VonMisesFisher
from powerspherical_paper._quadrature import Symmetric, log_sphere_area, stationary_point
from powerspherical_paper.results import Outcome, Progress, silent, write_json

FILES = ("properties.json",)
DIMS = (2, 3, 10, 64)
CONCENTRATIONS = (0.5, 5.0, 50.0, 500.0)
SAMPLES = 100_000
COSINE = 0.5  # between the mean directions in KL(PS‖vMF); the concentrations are equal
TOLERANCE = 1e-8
LIMIT = 5.5


@dataclass(frozen=True)
class Row:
    """One property at one (d, κ): its three values, and the differences between them.

    The values are scalars: for E[X] the component along the mean direction, for var(X) the trace, for the mode its
    angle to the mean direction. `error` (quadrature) and `z` (Monte Carlo) are the worst over all components.
    """

    name: str
    dim: int
    concentration: float
    formula: float
    quadrature: float
    monte_carlo: float
    standard_error: float
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


def run(
    out: Path,
    *,
    seed: int = 0,
    quick: bool = False,
    device: torch.device | str = "cpu",
    dims: Iterable[int] = DIMS,
    concentrations: Iterable[float] = CONCENTRATIONS,
    samples: int = SAMPLES,
    progress: Progress = silent,
) -> Outcome:
    """Compare all properties, and write `properties.json` under `out`. `quick` uses a tenth of the draws."""
    started = time.perf_counter()
    torch.manual_seed(seed)
    dims, concentrations = list(dims), list(concentrations)
    samples = samples // 10 if quick else samples
    grid = [(dim, kappa) for dim in dims for kappa in concentrations]
    rows: list[Row] = []
    for done, (dim, kappa) in enumerate(grid, start=1):
        rows.extend(compare(dim, kappa, samples, device))
        progress(done / len(grid))

    passed = all(row.passed for row in rows)
    path = write_json(
        out / "properties.json",
        experiment="properties",
        seed=seed,
        quick=quick,
        device=device,
        configuration={
            "dims": dims,
            "concentrations": concentrations,
            "samples": samples,
            "cosine": COSINE,
            "tolerance": TOLERANCE,
            "limit": LIMIT,
        },
        results={"passed": passed, "rows": [{**_finite(asdict(row)), "passed": row.passed} for row in rows]},
        seconds=time.perf_counter() - started,
    )
    return Outcome([path], passed)


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

    def row(
        name: str,
        formula: Tensor,
        quadrature: Tensor | float,
        sampled: Estimate,
        shown: tuple[Tensor | float, Tensor | float, Estimate] | None = None,
    ) -> Row:
        """Compare all components; for a vector or a matrix, `shown` has the scalars to report."""
        quadrature = torch.as_tensor(quadrature, dtype=torch.float64, device=device)
        error = (formula - quadrature).abs() / quadrature.abs().clamp(min=1)
        z = (sampled.mean - formula) / sampled.standard_error
        by_formula, by_quadrature, by_sampling = shown or (formula, quadrature, sampled)
        return Row(
            name,
            dim,
            kappa,
            formula=float(by_formula),
            quadrature=float(by_quadrature),
            monte_carlo=float(by_sampling.mean),
            standard_error=float(by_sampling.standard_error),
            error=float(error.max()),
            z=float(z.abs().max()),
        )

    yield row("E[X]", p.mean, mean_t * loc, Estimate.of(x), (p.mean @ loc, mean_t, Estimate.of(x @ loc)))

    along, identity = torch.outer(loc, loc), torch.eye(dim, dtype=torch.float64, device=device)
    covariance = var_t * along + var_v * (identity - along)
    centred = x - p.mean
    traces = (p.covariance_matrix.trace(), covariance.trace(), Estimate.of(centred.square().sum(-1)))
    yield row("var(X)", p.covariance_matrix, covariance, Estimate.of_products(centred), traces)

    # By symmetry the mode is the direction of the mean: the components of the draws orthogonal to it average to zero.
    across = Estimate.of(x - (x @ p.mode)[:, None] * p.mode)
    stationary = torch.from_numpy(stationary_point(loc.cpu().numpy(), kappa)).to(device)
    direction = Estimate(p.mode + across.mean, across.standard_error)
    angles = (
        angle(p.mode, loc),
        angle(stationary, loc),
        Estimate(angle(x.mean(0), loc), across.standard_error.norm() / mean_t),
    )
    yield row("mode", p.mode, stationary, direction, angles)

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


def angle(a: Tensor, b: Tensor) -> Tensor:
    """The angle between two vectors, accurate when it is small."""
    a, b = a / a.norm(), b / b.norm()
    return 2 * torch.atan2((a - b).norm(), (a + b).norm())


def _finite(values: dict[str, Any]) -> dict[str, Any]:
    """The values with NaN and infinity as text, because JSON has no such numbers."""
    return {k: v if not isinstance(v, float) or math.isfinite(v) else repr(v) for k, v in values.items()}
