"""The methods that are timed: draws by this package and by its peers, and lower bounds ("floors").

A call makes the distribution and draws from it, as a training step does, in float32 and without argument checks. With
the backward pass it also takes a gradient in the draw, which is there beforehand, back to μ and κ.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor

from powerspherical import PowerSpherical, SphericalCauchy, VonMisesFisher
from powerspherical_paper.baselines.published import (
    PublishedVonMisesFisher,
    has_reference,
    reference_package,
)
from powerspherical_paper.timing import Call

QUANTITIES = FORWARD, BACKWARD = "forward", "forward and backward"
FLOOR = "randn"

#: Largest rows·d² for SciPy, which rotates with a full matrix. Beyond it takes seconds where others take milliseconds.
SCIPY_STEPS = 1e9

#: Methods that synchronise with the device in every call. They cannot be queued or captured.
WAITING = ("reference_ps", "published_vmf")


@dataclass(frozen=True)
class Case:
    """One setting: `rows` draws in dimension `dim` at κ = `kappa`, with one μ per row or a shared μ."""

    rows: int
    dim: int
    kappa: float = 100.0
    shared: bool = False

    def as_row(self) -> dict[str, Any]:
        """Return the setting as entries of a result."""
        loc = "shared" if self.shared else "per row"
        return {"rows": self.rows, "dim": self.dim, "kappa": self.kappa, "loc": loc}

    def calls(self, device: torch.device) -> int:
        """Return the largest number of calls per turn: many for fast calls, and on CUDA to keep the device busy."""
        return 50 if device.type == "cuda" or self.rows * self.dim <= 100_000 else 1


def floors(case: Case, device: torch.device) -> dict[str, Call]:
    """Return lower bounds for any sampler: draw as many normals as the output has numbers, and write the output."""
    shape = (case.rows, case.dim)
    return {
        FLOOR: lambda: torch.randn(shape, device=device),
        "fill": lambda: torch.empty(shape, device=device).fill_(1),
    }


def families() -> Iterator[tuple[str, Callable[[Tensor, Tensor], Any]]]:
    """Yield names and constructors of the distributions. The authors' package is included if it is installed."""
    yield "our_ps", partial(PowerSpherical, validate_args=False)
    yield "our_vmf", partial(VonMisesFisher, validate_args=False)
    yield "our_cauchy", partial(SphericalCauchy, validate_args=False)
    yield "published_vmf", PublishedVonMisesFisher
    if has_reference():
        yield "reference_ps", partial(reference_package().PowerSpherical, validate_args=False)


@lru_cache(1)
def inputs(rows: int, dim: int, shared: bool, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return μ and the gradient in x. Cases that differ only in κ share them, because memory addresses affect times."""
    loc = torch.nn.functional.normalize(torch.randn(*(() if shared else (rows,)), dim), dim=-1)
    return loc.to(device), torch.randn(rows, dim).to(device)


def methods(case: Case, quantity: str, device: torch.device) -> dict[str, Call]:
    """Return the methods by name, as functions without arguments."""
    loc, weights = inputs(case.rows, case.dim, case.shared, device)
    kappa = torch.full(loc.shape[:-1], case.kappa, device=device)
    count = case.rows if case.shared else None
    found: dict[str, Call] = {
        name: draw(family, loc, kappa, count, weights if quantity == BACKWARD else None)
        for name, family in families()
    }
    steps = case.rows * case.dim**2
    if quantity == FORWARD and case.shared and device.type == "cpu" and steps <= SCIPY_STEPS:
        found["scipy_vmf"] = scipy_draw(loc, case)
    return found


def draw(
    family: Callable[[Tensor, Tensor], Any],
    loc: Tensor,
    kappa: Tensor,
    count: int | None = None,
    weights: Tensor | None = None,
) -> Call:
    """Return a call that draws once per μ, or `count` times. With `weights` it also computes both gradients."""
    shape = () if count is None else (count,)
    if weights is None:
        return lambda: family(loc, kappa).rsample(shape)
    leaves = loc.detach().requires_grad_(), kappa.requires_grad_()
    return lambda: torch.autograd.grad(family(*leaves).rsample(shape), leaves, weights)


def scipy_draw(loc: Tensor, case: Case) -> Call:
    """Return a call of SciPy's sampler, which supports a single μ and works in float64."""
    import numpy as np
    from scipy.stats import vonmises_fisher

    generator, mu = np.random.default_rng(0), loc.double()
    mu = (mu / mu.norm()).numpy()
    return lambda: vonmises_fisher(mu, case.kappa).rvs(case.rows, random_state=generator)
