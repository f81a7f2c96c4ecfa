"""Default implementations of a family's functions, by quadrature over the cosine t = μᵀx.

U is the uniform distribution on the sphere in R^d, and E_U the mean over its points.

We integrate over the rapidity y = artanh t. Uniform points have a density ∝ sech^{d-1} y, and powers of 1±t at the ends
of [-1, 1] become exponential tails. So one rule works for all families: find the mode of the density of y, find where
the density has fallen by e^-50 on either side, and apply the trapezoidal rule in between. It converges geometrically
for densities that are analytic in a strip. Autograd treats the nodes as constants.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from powerspherical._torch.chunks import in_chunks
from powerspherical._torch.constants import Numbers, tensor_constant
from powerspherical._torch.elementary import log1p, sigmoid
from powerspherical._torch.modes import is_plain
from powerspherical.special.gamma import log_cosine_normalizer
from powerspherical.special.mobius import uniform_cosine_rule

if TYPE_CHECKING:
    from powerspherical.families.base import Family

_NODES = 512
FALL = 50.0  # by how much the log-density falls from the mode to the ends of the window
_INNER_FALLS = (12.0, 2.0)  # the same for inner windows
FARTHEST = 60.0  # larger |y| are ignored
_GRID, _MODE_ROUNDS, _END_ROUNDS = 65, 5, 4  # grid points and refinements in the search for the window
_PANEL_NODES, _PANELS = 109, 9  # of the rule for functions of a second direction
_TINY = 1e-300  # replaces a distance of exactly zero, so that its logarithm is finite
_SINE_OFFSET = (
    1e-24  # added to h and 1-h under the root of sin θ: changes it by at most 2e-12, keeps derivatives finite
)

#: How many intermediate values are held in memory at a time.
_VALUES = 1 << 22


class Window(NamedTuple):
    """Rapidities of the mode of the density, and of the points on either side where the density is negligible."""

    low: Tensor
    mode: Tensor
    high: Tensor


@tensor_constant
def equidistant(count: int) -> Numbers:
    """Return points from 0 to 1, both included."""
    return [j / (count - 1) for j in range(count)]


def cosine_ends_of(y: Tensor) -> tuple[Tensor, Tensor]:
    """Return 1-t and 1+t for t = tanh y."""
    return 2 * sigmoid(-2 * y), 2 * sigmoid(2 * y)


def log_half_cosine(one_minus_t: Tensor, one_plus_t: Tensor) -> Tensor:
    """Return log((1+t)/2), accurate where it is small.

    At the antipode the value is log 0 = -inf, and we define the derivative as 0 instead of NaN.
    """
    near, antipode = one_minus_t < 1, one_plus_t <= 0
    close = log1p(torch.where(near, one_minus_t, 0.0) / -2)
    far = torch.log(torch.where(near | antipode, 1.0, one_plus_t) / 2)
    return torch.where(near, close, torch.where(antipode, -math.inf, far))


def _log_uniform(y: Tensor, dim: int) -> Tensor:
    """Return the log-density of y for uniform points, whose density is c·sech^{d-1} y."""
    log_cosh = y.abs() + torch.log1p(torch.exp(-2 * y.abs())) - math.log(2)
    return log_cosine_normalizer(dim) - (dim - 1) * log_cosh


def log_weight(family: Family, y: Tensor, kappa: Tensor, dim: int) -> Tensor:
    """Return the unnormalised log-density of y."""
    return family.log_kernel_from_peak(*cosine_ends_of(y), kappa, dim) + _log_uniform(y, dim)


def on_distinct(function: Callable[[Tensor], tuple[Tensor, ...]], kappa: Tensor) -> tuple[Tensor, ...]:
    """Apply ``function`` to each distinct κ once and copy the results to equal ones. Not differentiable.

    On CUDA finding the distinct values would take a host sync, so all are computed.
    """
    if kappa.numel() < 2 or not kappa.is_cpu or not is_plain(kappa):
        return function(kappa)
    distinct, place = torch.unique(kappa, return_inverse=True)
    return tuple(values[place] for values in function(distinct))


@torch.no_grad()
def windows(family: Family, kappa: Tensor, dim: int, *falls: float) -> list[Window]:
    """Return one window per entry of ``falls``: from its mode to its ends the log-density of y falls by that much."""
    mode, *ends = on_distinct(lambda k: _mode_and_ends(family, k, dim, falls), kappa.detach())
    pairs = zip(ends[: len(falls)], ends[len(falls) :], strict=True)
    return [Window(low, mode, high) for low, high in pairs]


@tensor_constant
def _directions_and_falls(*falls: float) -> Numbers:
    """Each fall, first towards low and then towards high rapidities."""
    return [[-1.0] * len(falls) + [1.0] * len(falls), [*falls, *falls]]


def _mode_and_ends(family: Family, kappa: Tensor, dim: int, falls: Sequence[float]) -> tuple[Tensor, ...]:
    """Return the mode, then the lower end for each fall, then the upper end for each fall.

    The density has one mode, so successively finer grids find it.
    """
    grid = equidistant(kappa, _GRID)

    def height(y: Tensor) -> Tensor:
        concentration = kappa.reshape(kappa.shape + (1,) * (y.dim() - kappa.dim()))
        return torch.nan_to_num(log_weight(family, y, concentration, dim), nan=-math.inf)

    low = torch.full_like(kappa, -FARTHEST)
    width = 2 * FARTHEST
    for _ in range(_MODE_ROUNDS):
        best = height(low.unsqueeze(-1) + width * grid).argmax(-1)
        step = width / (_GRID - 1)
        low, width = low + step * (best - 1), 2 * step
    mode = (low + width / 2).unsqueeze(-1)
    direction, fall = _directions_and_falls(kappa, *falls).unbind()
    target = height(mode) - fall
    return mode.squeeze(-1), *(mode + direction * falling_reach(height, mode, target, direction)).unbind(-1)


def falling_reach(
    height: Callable[[Tensor], Tensor], start: Tensor, target: Tensor, direction: Tensor
) -> Tensor:
    """Return how far from ``start`` the falling function ``height`` stays above ``target``. Arguments broadcast."""
    grid = equidistant(start, _GRID)
    near, width = torch.zeros_like(direction * start), 2 * FARTHEST
    for _ in range(_END_ROUNDS):
        y = start.unsqueeze(-1) + direction.unsqueeze(-1) * (near.unsqueeze(-1) + width * grid)
        inside = (height(y) > target.unsqueeze(-1)).sum(-1).clamp(min=1)
        width = width / (_GRID - 1)
        near = near + width * (inside - 1)
    return near + width


class Nodes(NamedTuple):
    """A quadrature rule for E_U on the window of a family: 1-t, 1+t and the logs of the weights, each (…, nodes)."""

    one_minus_t: Tensor
    one_plus_t: Tensor
    log_weights: Tensor


class Law(NamedTuple):
    """The law of t on nodes: the kernel and the probabilities (…, nodes), and the log-partition (…)."""

    nodes: Nodes
    log_kernel: Tensor
    log_partition: Tensor
    probabilities: Tensor


def _law(family: Family, kappa: Tensor, dim: int) -> Law:
    """Return the law of t on trapezoidal nodes, in float64; differentiable in κ."""
    kappa = kappa.double()
    (window,) = windows(family, kappa, dim, FALL)
    low, _, high = (x.unsqueeze(-1) for x in window)
    y = low + (high - low) * equidistant(low, _NODES)
    log_weights = _log_uniform(y, dim) + torch.log((high - low) / (_NODES - 1))
    return _law_on(family, Nodes(*cosine_ends_of(y), log_weights), kappa, dim)


def _law_on(family: Family, nodes: Nodes, kappa: Tensor, dim: int) -> Law:
    kernel = family.log_kernel_from_peak(nodes.one_minus_t, nodes.one_plus_t, kappa.unsqueeze(-1), dim)
    total = kernel + nodes.log_weights
    # Softmax sums to one up to rounding. The exponential of (total - log_partition), two large numbers, does not.
    return Law(nodes, kernel, torch.logsumexp(total, -1), torch.softmax(total, -1))


def _expected(function: Callable[[Law], Tensor], family: Family, kappa: Tensor, dim: int) -> Tensor:
    """Return the mean of ``function(law)`` (…, nodes) under the law, in the dtype of κ."""

    def entries(kappa: Tensor) -> Tensor:
        law = _law(family, kappa, dim)
        return (law.probabilities * function(law)).sum(-1)

    def values(kappa: Tensor) -> tuple[Tensor]:
        return (in_chunks(entries, kappa, chunk=_VALUES // _NODES),)

    differentiated = torch.is_grad_enabled() and kappa.requires_grad
    (mean,) = values(kappa) if differentiated else on_distinct(values, kappa)
    return mean.to(kappa.dtype)


def expectation(
    family: Family, kappa: Tensor, dim: int, function: Callable[[Tensor, Tensor], Tensor]
) -> Tensor:
    """Return E function(1-t, 1+t)."""
    return _expected(lambda law: function(law.nodes.one_minus_t, law.nodes.one_plus_t), family, kappa, dim)


def log_partition(family: Family, kappa: Tensor, dim: int) -> Tensor:
    """Return log E_U exp(log_kernel_from_peak)."""
    return _expected(lambda law: law.log_partition.unsqueeze(-1), family, kappa, dim)


def relative_entropy(family: Family, kappa: Tensor, dim: int) -> Tensor:
    """Return KL(p‖U) = E ℓ for ℓ = log_kernel_from_peak - log_partition.

    Near the uniform we use E(ℓ + e^-ℓ - 1), which is equal because E e^-ℓ = 1. An error of log_partition then has a
    second-order effect only. The relative error is about ε/max|ℓ|.
    """

    def losses(law: Law) -> Tensor:
        log_density = law.log_kernel - law.log_partition.unsqueeze(-1)
        near = log_density.abs().amax(-1, keepdim=True) < 1
        return log_density + torch.where(near, torch.expm1(-torch.where(near, log_density, 0.0)), 0.0)

    return _expected(losses, family, kappa, dim)


def variance_cosine(family: Family, kappa: Tensor, dim: int) -> Tensor:
    """Return Var t."""

    def squares(law: Law) -> Tensor:
        minus = law.nodes.one_minus_t
        return (minus - (law.probabilities * minus).sum(-1, keepdim=True)).square()

    return _expected(squares, family, kappa, dim)


def score_moments(family: Family, kappa: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """Return the mean and the variance of ∂ log_kernel/∂κ, without derivatives."""

    def moments(kappa: Tensor) -> tuple[Tensor, Tensor]:
        law = _law(family, kappa, dim)
        column = kappa.unsqueeze(-1).expand_as(law.log_kernel)
        score = family.score(law.nodes.one_minus_t, law.nodes.one_plus_t, column, dim)
        mean = (law.probabilities * score).sum(-1)
        return mean, (law.probabilities * (score - mean.unsqueeze(-1)).square()).sum(-1)

    mean, variance = on_distinct(moments, kappa.double().detach())
    return mean.to(kappa.dtype), variance.to(kappa.dtype)


def uniform_expectation(function: Callable[[Tensor, Tensor], Tensor], like: Tensor, dim: int) -> Tensor:
    """Return E_U function(1-t, 1+t). The last axis of its values is that of the nodes."""
    squared_sine, squared_cosine, weights = uniform_cosine_rule(like, dim)
    far = 1 + torch.sqrt(squared_cosine)
    near = squared_sine / far
    return (0.5 * weights * (function(near, far) + function(far, near))).sum(-1)


# Functions of a second direction ν at the angle θ to μ. The haversine of θ is (1-cos θ)/2 = ‖μ-ν‖²/4.


@tensor_constant
def _tanh_sinh() -> Numbers:
    """Nodes and weights on [0, 1] of the tanh-sinh rule (Takahasi & Mori 1974), for singularities at both ends."""
    step, reach = 0.06, _PANEL_NODES // 2
    places = [step * j for j in range(-reach, reach + 1)]
    nodes = [1 / (1 + math.exp(-math.pi * math.sinh(s))) for s in places]
    weights = [step * math.pi * math.cosh(s) * x * (1 - x) for s, x in zip(places, nodes, strict=True)]
    total = math.fsum(weights)
    return [nodes, [weight / total for weight in weights]]


def _panel_nodes(family: Family, kappa: Tensor, haversine: Tensor, dim: int) -> Nodes:
    """Return a rule for functions of νᵀX with singularities or peaks at ±ν.

    These appear at t = ±cos θ = ±(1 - 2·haversine), so panels end there. For d ≤ 3 they also end at y = 0: the means
    over a heavy tail have much of their weight there, far from the mode.
    """
    around = windows(family, kappa, dim, FALL, *_INNER_FALLS)
    low, mode, high = around[0]
    h = haversine.detach().clamp(1e-200, 1.0)
    singular = 0.5 * (torch.log(h) - torch.log((1 - h).clamp(min=1e-200)))
    ends = [end for each in around for end in (each.low, each.high)]
    middle = (torch.zeros_like(mode),) if dim <= 3 else ()
    points = torch.stack((mode, *ends, singular, -singular, *middle), -1)
    points = torch.minimum(torch.maximum(points, low.unsqueeze(-1)), high.unsqueeze(-1)).sort(-1).values
    unit, weights = _tanh_sinh(low).unbind()
    starts, widths = points[..., :-1, None], points.diff(dim=-1).unsqueeze(-1)
    y = (starts + widths * unit).flatten(-2)
    return Nodes(*cosine_ends_of(y), torch.log(widths * weights).flatten(-2) + _log_uniform(y, dim))


def expectation_with_singularity(
    family: Family,
    kappa: Tensor,
    haversine: Tensor,
    dim: int,
    function: Callable[..., Tensor],
    *others: Tensor,
    values: int = 1,
    width: Tensor | None = None,
) -> Tensor:
    """Return E function(1-t, 1+t, haversine, *others), for a function with a peak or singularity at t = ±cos θ.

    Args:
        kappa, haversine, others: float64 tensors of one shape, where cos θ = 1 - 2·haversine.
        function: takes tensors with an additional last axis of nodes.
        values: how many intermediate values the function holds per node.
        width: the width of the peak in (1-t)/2. At θ = 0 and π a panel ends at this distance from ν. Default: zero.
    """
    place = haversine if width is None else haversine + (1 - 2 * haversine) * width

    def entries(place: Tensor, kappa: Tensor, haversine: Tensor, *others: Tensor) -> Tensor:
        law = _law_on(family, _panel_nodes(family, kappa, place, dim), kappa, dim)
        at_nodes = function(*law.nodes[:2], *(x.unsqueeze(-1) for x in (haversine, *others)))
        return (law.probabilities * at_nodes).sum(-1)

    chunk = max(1, _VALUES // (_PANELS * _PANEL_NODES * values))
    return in_chunks(entries, place, kappa, haversine, *others, chunk=chunk)


def expectation_in_two_cosines(
    family: Family,
    kappa: Tensor,
    haversine: Tensor,
    dim: int,
    function: Callable[..., Tensor],
    *others: Tensor,
) -> Tensor:
    """Return E function(1-μᵀX, 1+μᵀX, 1-νᵀX, 1+νᵀX, *others), where (1-μᵀν)/2 = ``haversine``.

    Tensors are float64 and of one shape. With θ the angle between μ and ν, and s the cosine between the tangent
    directions of X and ν, which is uniform on S^{d-2}, νᵀX = t cos θ + √(1-t²) s sin θ. We write 1 ± νᵀX as sums of
    squares, so that nothing cancels.
    """
    s, s_complement, weights = _azimuths(kappa, dim)

    def average(minus: Tensor, plus: Tensor, h: Tensor, *rest: Tensor) -> Tensor:
        minus, plus, h, *more = (x.unsqueeze(-1) for x in (minus, plus, h, *rest))
        # The mean is even in sin θ, but autograd would meet the infinite derivative of the root at θ = 0.
        sine = 2 * torch.sqrt((h + _SINE_OFFSET) * (1 - h + _SINE_OFFSET))
        radius = torch.sqrt(minus * plus)
        across = minus * plus * s_complement
        other_minus = 0.5 * ((2 * h - minus).square() + (radius * s - sine).square() + across)
        other_plus = 0.5 * ((plus - 2 * h).square() + (radius * s + sine).square() + across)
        others = other_minus.clamp(min=0.5 * _TINY), other_plus.clamp(min=0.5 * _TINY)
        return (weights * function(minus, plus, *others, *more)).sum(-1)

    return expectation_with_singularity(family, kappa, haversine, dim, average, *others, values=len(weights))


@tensor_constant
def _circle_azimuths() -> Numbers:
    return [[1.0, -1.0], [0.0, 0.0], [0.5, 0.5]]


def _azimuths(like: Tensor, dim: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return s, 1-s² and weights for the cosine s of a uniform point of S^{d-2}; on the circle s = ±1."""
    if dim == 2:
        s, complements, weights = _circle_azimuths(like).unbind()
        return s, complements, weights
    complements, squares, weights = uniform_cosine_rule(like, dim - 1)
    s = torch.sqrt(squares)
    return torch.cat((s, -s)), complements.repeat(2), 0.5 * weights.repeat(2)
