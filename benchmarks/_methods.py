"""What is timed: draws by this package and by its peers, and the floors under them.

A call makes the distribution and draws from it, as a training step does, in float32 and without argument checks. With
the backward pass it also takes a gradient in the draw, which is there beforehand, back to μ and κ.
"""

import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import torch
from _timing import Call
from torch import Tensor

from powerspherical import PowerSpherical, SphericalCauchy, VonMisesFisher
from powerspherical.experiments.baselines.published import (
    REFERENCE,
    PublishedVonMisesFisher,
    has_reference,
)

FORWARD, BACKWARD = "forward", "forward and backward"
FLOOR = "randn"

#: SciPy rotates with a full matrix, in rows·d² steps: beyond this it takes seconds for what others do in a few ms.
SCIPY_STEPS = 1e9

#: Methods that wait for the device in every call: they cannot be queued or captured.
WAITING = ("reference_ps", "published_vmf")


@dataclass(frozen=True)
class Case:
    """One setting: so many rows of dimension `dim` at κ = `kappa`, with a μ for each row or one for all."""

    rows: int
    dim: int
    kappa: float = 100.0
    shared: bool = False

    @property
    def loc(self) -> str:
        """Whose the μ is, in words."""
        return "shared" if self.shared else "per row"

    def calls(self, device: torch.device) -> int:
        """The most calls in a turn: many where one takes microseconds, and on CUDA, where the first find it idle."""
        return 50 if device.type == "cuda" or self.rows * self.dim <= 100_000 else 1


def floors(case: Case, device: torch.device) -> dict[str, Call]:
    """What no sampler can go below: as many normals as the output has numbers, and a plain write of the output."""
    shape = (case.rows, case.dim)
    return {
        FLOOR: lambda: torch.randn(shape, device=device),
        "fill": lambda: torch.empty(shape, device=device).fill_(1),
    }


def families() -> Iterator[tuple[str, Callable[[Tensor, Tensor], Any]]]:
    """The distributions by name, each made from μ and κ; the authors' package where it is installed."""
    yield "our_ps", partial(PowerSpherical, validate_args=False)
    yield "our_vmf", partial(VonMisesFisher, validate_args=False)
    yield "our_cauchy", partial(SphericalCauchy, validate_args=False)
    yield "published_vmf", PublishedVonMisesFisher
    if has_reference():
        yield "reference_ps", partial(importlib.import_module(REFERENCE).PowerSpherical, validate_args=False)


@lru_cache(1)
def inputs(rows: int, dim: int, shared: bool, device: torch.device) -> tuple[Tensor, Tensor]:
    """μ and the gradient in x; cases that differ in κ alone share them, since where a tensor lies can cost time."""
    loc = torch.nn.functional.normalize(torch.randn(*(() if shared else (rows,)), dim), dim=-1)
    return loc.to(device), torch.randn(rows, dim).to(device)


def methods(case: Case, quantity: str, device: torch.device) -> dict[str, Call]:
    """The methods by name, each ready to be called."""
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
    """A call that draws once, or `count` times for one μ; with weights it differentiates too, in both."""
    shape = () if count is None else (count,)
    if weights is None:
        return lambda: family(loc, kappa).rsample(shape)
    leaves = loc.detach().requires_grad_(), kappa.requires_grad_()
    return lambda: torch.autograd.grad(family(*leaves).rsample(shape), leaves, weights)


def scipy_draw(loc: Tensor, case: Case) -> Call:
    """SciPy's sampler, which takes one μ and works in float64."""
    import numpy as np
    from scipy.stats import vonmises_fisher

    generator, mu = np.random.default_rng(0), loc.double()
    mu = (mu / mu.norm()).numpy()
    return lambda: vonmises_fisher(mu, case.kappa).rvs(case.rows, random_state=generator)
