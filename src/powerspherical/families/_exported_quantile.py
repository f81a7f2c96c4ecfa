"""Quantiles of the cosine in exported programs.

Eager mode repeats Newton's method until it has converged, see ``_precise``. In an exported graph each step is a copy of
all its operations, and onnxruntime lacks some of them in float64. So during an export we take another way. We tabulate
the density of the rapidity y = artanh t on cells around its mode. Cumulative sums give the mass below and above each
edge. A few steps of Newton's method then solve for y within one cell. The table is normalised by its own sum, so no
normaliser of the family is needed.

With Φ(z) for the probability, the absolute error of t and of √(1-t²) is below 1e-10 for |z| ≤ 5 and below 2e-7 for
|z| ≤ 8. Beyond |z| = 11.5 the quantile stays constant.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from powerspherical._torch.constants import Numbers, tensor_constant
from powerspherical.special.quadrature import gauss_legendre

_CELLS = 32
_NODES = 10  # per cell
_NEWTON_STEPS = 3
_CORE, _FARTHEST = 2.0, 60.0  # the edges are _CORE·sinh(v) with evenly spaced v, up to ±_FARTHEST
_SMALLEST = 1e-30  # smaller probabilities are replaced by this one
_TINY = 1e-36  # replaces a mass of zero; numbers in an ONNX graph must be normal in float32


@tensor_constant
def _edges() -> Numbers:
    """The edges of the cells, in standard deviations from the mode. Cells are narrow at the mode and wide far out."""
    last = math.asinh(_FARTHEST / _CORE)
    return [_CORE * math.sinh(last * (2 * j / _CELLS - 1)) for j in range(_CELLS + 1)]


def quantile(
    log_weight: Callable[[Tensor], Tensor], mode: Tensor, deviation: Tensor, u: Tensor, complement: Tensor
) -> Tensor:
    """Return y with P(Y ≤ y) = u.

    Args:
        log_weight: the unnormalised log-density of Y, for y of shape (…, n). The density must fall at least as fast as
            e^{-0.7|x|}, where x = (y - mode)/deviation.
        mode, deviation: the mode of Y and roughly its standard deviation, of shape (…).
        u, complement: P(Y ≤ y) and 1 - P(Y ≤ y), of shape (…).
    """
    mode, deviation = mode.unsqueeze(-1), deviation.unsqueeze(-1)
    lower = (u < complement).unsqueeze(-1)
    target = torch.where(u < complement, u, complement).clamp(min=_SMALLEST).unsqueeze(-1)
    unit, weights = gauss_legendre(_NODES, u)
    edges = _edges(u)
    widths = edges.diff()
    places = (edges[:-1, None] + widths[:, None] * unit).flatten()
    log_masses = log_weight(mode + deviation * places) + torch.log(widths[:, None] * weights).flatten()
    log_total = torch.logsumexp(log_masses, -1, keepdim=True)
    cells = torch.exp(log_masses - log_total).unflatten(-1, (_CELLS, _NODES)).sum(-1)

    # We work in the smaller tail. If it is the upper one, we reflect the table, whose edges are symmetric.
    side = torch.where(lower, 1.0, -1.0).to(u.dtype)
    cells = torch.where(lower, cells, cells.flip(-1))
    masses = torch.nn.functional.pad(cells.cumsum(-1), (1, 0))
    cell = ((masses <= target).sum(-1, keepdim=True) - 1).clamp(0, _CELLS - 1)
    start, width = edges.expand_as(masses).gather(-1, cell), widths.expand_as(cells).gather(-1, cell)
    mass, next_mass = masses.gather(-1, cell), masses.gather(-1, cell + 1)

    def density(x: Tensor) -> Tensor:
        return torch.exp(log_weight(mode + deviation * side * x) - log_total)

    # The log of the tail is nearly linear. We start from its interpolation between the edges.
    log_target, log_mass, log_next = (
        torch.log(value.clamp(min=_TINY)) for value in (target, mass, next_mass)
    )
    step = width * (log_target - log_mass) / (log_next - log_mass)
    for _ in range(_NEWTON_STEPS):
        reached = mass + step * (density(start + step * unit) * weights).sum(-1, keepdim=True)
        reached = reached.clamp(min=_TINY)
        change = (log_target - torch.log(reached)) * reached / density(start + step)
        step = torch.minimum((step + change).clamp(min=0.0), width)
    return (mode + deviation * side * (start + step)).squeeze(-1)
