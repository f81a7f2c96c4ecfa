"""Means over a family's law of the cosine t = μᵀx, by quadrature over the rapidity y = artanh t.

U is the uniform distribution on the sphere in R^d, and E_U the mean over its points. Its density of y is ∝ sech^{d-1}
y, so powers of 1±t at the ends of [-1, 1] become exponential tails. One rule works for all families: find where the
density of y has fallen by e^-50 on either side of its mode, and apply the trapezoidal rule in between. It converges
geometrically for densities that are analytic in a strip. Autograd treats the nodes as constants.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from powerspherical._torch.chunks import in_chunks
from powerspherical._torch.constants import Numbers, tensor_constant
from powerspherical._torch.derivatives import value_and_slope
from powerspherical.quadrature.cosine import Cosine, log_half_cosine, rapidity_of, value_of
from powerspherical.quadrature.law import Kernel, Law
from powerspherical.special.gamma import log_cosine_normalizer
from powerspherical.special.moments import rapidity_rule

_NODES = 512
_FALL = 50.0  # by how much the log-density falls from the mode to the ends of the window
_INNER_FALLS = (12.0, 2.0)  # the same for inner windows
_PANEL_NODES, _PANELS = 109, 9  # of the rule for functions of a second direction
_TINY = 1e-300  # replaces a distance of exactly zero, so that its logarithm is finite
#: Added to 1±c under the root of sin θ: changes it by at most 2e-12, keeps derivatives finite.
_SINE_OFFSET = 2e-24

#: How many intermediate values are held in memory at a time.
_VALUES = 1 << 22


@tensor_constant
def _directions_and_falls(*falls: float) -> Numbers:
    """Each fall, first towards low and then towards high rapidities."""
    return [[-1.0] * len(falls) + [1.0] * len(falls), [*falls, *falls]]


@torch.no_grad()
def _windows(family: Kernel, kappa: Tensor, dim: int, *falls: float) -> tuple[Tensor, Tensor]:
    """Return the mode (…, 1), and where the log-density of y has fallen (…, 2·falls): below the mode, then above."""
    law = Law(family, kappa.detach(), dim)
    direction, fall = _directions_and_falls(kappa, *falls).unbind()
    # Of (1-t)², which is largest far from the mode, a heavy tail has the largest share. It must not be cut.
    fall = torch.where(fall == _FALL, _FALL + 4 * law.mode.clamp(min=0.0), fall)
    starts = law.mode.expand(*kappa.shape, len(direction))
    return law.mode, starts + direction * law.lengths(starts, law.height(law.mode) - fall, direction)


class _Nodes(NamedTuple):
    """The law of t on nodes: t, the kernel and the probabilities (…, nodes), and the log-partition (…)."""

    t: Cosine
    log_kernel: Tensor
    log_partition: Tensor
    probabilities: Tensor


def _law_at(family: Kernel, y: Tensor, widths: Tensor, kappa: Tensor, dim: int) -> _Nodes:
    """Return the law of t at rapidities y (…, nodes) with the given widths; differentiable in κ."""
    t = Cosine.of_rapidity(y)
    return _normalised(t, family.log_kernel(t, kappa.unsqueeze(-1), dim), y, widths, dim)


def _normalised(t: Cosine, kernel: Tensor, y: Tensor, widths: Tensor, dim: int) -> _Nodes:
    log_cosh = y.abs() + torch.log1p(torch.exp(-2 * y.abs())) - math.log(2)
    total = kernel + (log_cosine_normalizer(dim) - (dim - 1) * log_cosh + torch.log(widths))
    # Softmax sums to one up to rounding. The exponential of (total - log_partition), two large numbers, does not.
    return _Nodes(t, kernel, torch.logsumexp(total, -1), torch.softmax(total, -1))


def _trapezoid(family: Kernel, kappa: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """Return nodes y (…, nodes) and their distance (…, 1), for κ in float64."""
    low, high = _windows(family, kappa, dim, _FALL)[1].unsqueeze(-1).unbind(-2)
    count = 2 * _NODES if dim <= 3 else _NODES  # tails are the longest in low dimensions
    places = torch.linspace(0, 1, count, dtype=low.dtype, device=low.device)
    return low + (high - low) * places, (high - low) / (count - 1)


def expectation(family: Kernel, kappa: Tensor, dim: int, function: Callable[[Cosine], Tensor]) -> Tensor:
    """Return E function(t) in the shape and dtype of κ, differentiable in κ."""

    def entries(kappa: Tensor) -> Tensor:
        law = _law_at(family, *_trapezoid(family, kappa, dim), kappa, dim)
        return (law.probabilities * function(law.t)).sum(-1)

    return in_chunks(entries, kappa.double(), chunk=_VALUES // _NODES).to(kappa.dtype)


@torch.no_grad()
def moments(family: Kernel, kappa: Tensor, dim: int) -> dict[str, Tensor]:
    """Return functions of κ by name, for κ in float64 with one axis, without derivatives.

    They are those of ``Family``; ``log_loss``, which is -E log((1+t)/2); and with s = ∂ log_kernel/∂κ also
    ``score_loss``, which is -E s, and ``information``, which is Var s.
    """
    y, width = _trapezoid(family, kappa, dim)
    t = Cosine.of_rapidity(y)
    kernel, score = value_and_slope(lambda k: family.log_kernel(t, k.unsqueeze(-1), dim), kappa)
    law = _normalised(t, kernel, y, width, dim)

    def mean(values: Tensor) -> Tensor:
        return (law.probabilities * values).sum(-1)

    loss = mean(law.t.minus)
    score_mean = mean(score)
    # KL = E ℓ. Near the uniform we use E(ℓ + e^-ℓ - 1), which is equal because E e^-ℓ = 1. An error of the
    # log-partition then has a second-order effect only.
    log_density = law.log_kernel - law.log_partition.unsqueeze(-1)
    near = log_density.abs().amax(-1, keepdim=True) < 1
    rest = torch.where(near, torch.expm1(-torch.where(near, log_density, 0.0)), 0.0)
    return {
        "offset": -law.log_partition,
        "relative_entropy": mean(log_density + rest),
        "mean": mean(value_of(law.t)),
        "loss": loss,
        "log_loss": -mean(log_half_cosine(law.t)),
        "variance": mean((law.t.minus - loss.unsqueeze(-1)).square()),
        "score_loss": -score_mean,
        "information": mean((score - score_mean.unsqueeze(-1)).square()),
    }


# Functions of a second direction ν, where c = μᵀν is the cosine of the angle θ to μ.


@tensor_constant
def _tanh_sinh() -> Numbers:
    """Nodes and weights on [0, 1] of the tanh-sinh rule (Takahasi & Mori 1974), for singularities at both ends."""
    step, reach = 0.06, _PANEL_NODES // 2
    places = [step * j for j in range(-reach, reach + 1)]
    nodes = [1 / (1 + math.exp(-math.pi * math.sinh(s))) for s in places]
    weights = [step * math.pi * math.cosh(s) * x * (1 - x) for s, x in zip(places, nodes, strict=True)]
    total = math.fsum(weights)
    return [nodes, [weight / total for weight in weights]]


def _law_on_panels(family: Kernel, kappa: Tensor, place: Cosine, dim: int) -> _Nodes:
    """Return the law of t on nodes for functions with singularities or peaks at t = ±``place``, where panels end.

    For d ≤ 3 they also end at y = 0: the means over a heavy tail have much of their weight there, far from the mode.
    """
    mode, ends = _windows(family, kappa, dim, _FALL, *_INNER_FALLS)
    singular = rapidity_of(Cosine(*(x.detach().clamp(min=1e-200) for x in place))).unsqueeze(-1)
    middle = (torch.zeros_like(mode),) if dim <= 3 else ()
    points = torch.cat((mode, ends, singular, -singular, *middle), -1)
    low, high = ends[..., :1], ends[..., len(_INNER_FALLS) + 1, None]
    points = torch.minimum(torch.maximum(points, low), high).sort(-1).values
    unit, weights = _tanh_sinh(low).unbind()
    starts, widths = points[..., :-1, None], points.diff(dim=-1).unsqueeze(-1)
    y = (starts + widths * unit).flatten(-2)
    return _law_at(family, y, (widths * weights).flatten(-2), kappa, dim)


def expectation_with_singularity(
    family: Kernel,
    kappa: Tensor,
    angle: Cosine,
    dim: int,
    function: Callable[..., Tensor],
    *others: Tensor,
    values: int = 1,
    width: Tensor | None = None,
) -> Tensor:
    """Return E function(t, angle, *others), for a function with a peak or singularity at t = ±cos θ.

    Args:
        kappa, angle, others: float64 tensors of one shape.
        function: takes tensors with an additional last axis of nodes.
        values: how many intermediate values the function holds per node.
        width: the width of the peak in (1-t)/2. At θ = 0 and π a panel ends at this distance from ν. Default: zero.
    """
    shift = 0.0 if width is None else 2 * width * value_of(angle)
    place = Cosine(angle.minus + shift, angle.plus - shift)

    def entries(kappa: Tensor, *rest: Tensor) -> Tensor:
        law = _law_on_panels(family, kappa, Cosine(*rest[:2]), dim)
        minus, plus, *more = (x.unsqueeze(-1) for x in rest[2:])
        return (law.probabilities * function(law.t, Cosine(minus, plus), *more)).sum(-1)

    chunk = max(1, _VALUES // (_PANELS * _PANEL_NODES * values))
    return in_chunks(entries, kappa, *place, *angle, *others, chunk=chunk)


def expectation_in_two_cosines(
    family: Kernel,
    kappa: Tensor,
    angle: Cosine,
    dim: int,
    function: Callable[..., Tensor],
    *others: Tensor,
) -> Tensor:
    """Return E function(μᵀX, νᵀX, *others), whose first two arguments are cosines.

    Tensors are float64 and of one shape. With s the cosine between the tangent directions of X and ν, which is uniform
    on S^{d-2}, νᵀX = tc + √(1-t²) s sin θ. We write 1 ± νᵀX as sums of squares, so that nothing cancels.
    """
    s, s_complement, weights = _azimuths(kappa, dim).unbind()

    def average(t: Cosine, angle: Cosine, *rest: Tensor) -> Tensor:
        t, angle, more = t.unsqueeze(-1), angle.unsqueeze(-1), [x.unsqueeze(-1) for x in rest]
        # The mean is even in sin θ, but autograd would meet the infinite derivative of the root at θ = 0.
        sine = torch.sqrt((angle.minus + _SINE_OFFSET) * (angle.plus + _SINE_OFFSET))
        near, radius = t.minus < t.plus, torch.sqrt(t.minus * t.plus)
        gap = torch.where(near, angle.minus - t.minus, t.plus - angle.plus)  # t - c
        total = torch.where(near, angle.plus - t.minus, t.plus - angle.minus)  # t + c
        across = t.minus * t.plus * s_complement
        minus = 0.5 * (gap.square() + (radius * s - sine).square() + across)
        plus = 0.5 * (total.square() + (radius * s + sine).square() + across)
        other = Cosine(minus.clamp(min=0.5 * _TINY), plus.clamp(min=0.5 * _TINY))
        return (weights * function(t, other, *more)).sum(-1)

    return expectation_with_singularity(family, kappa, angle, dim, average, *others, values=len(weights))


def excess(
    family: Kernel, kappa: Tensor, angle: Cosine, dim: int, loss: Callable[[Cosine], Tensor]
) -> Tensor:
    """Return E loss(νᵀX) - E loss(μᵀX) in float64, for a unit vector ν at ``angle`` from μ."""
    kappa, angle = kappa.double(), angle.to(torch.float64)
    return expectation_in_two_cosines(family, kappa, angle, dim, lambda own, other: loss(other) - loss(own))


@tensor_constant
def _azimuths(dim: int) -> Numbers:
    """s, 1-s² and weights for the cosine s of a uniform point of S^{d-2}; on the circle s = ±1."""
    if dim == 2:
        return [[1.0, -1.0], [0.0, 0.0], [0.5, 0.5]]
    # The error for functions that grow at most like a logarithm in artanh s is below e^-37.
    _, s, log_cosh, weights = rapidity_rule(dim - 1, 0.205, dim - 2)
    weights *= np.exp((2 - dim) * log_cosh)
    return [s.tolist(), np.exp(-2 * log_cosh).tolist(), (weights / weights.sum()).tolist()]
