"""The defaults of a family, by quadrature over the cosine.

In the rapidity y = artanh t a uniform point has a density ∝ sech^{d-1} y, and powers of 1±t at the ends of [-1, 1]
become exponential tails. So one rule serves all families: find the mode of the density in y, follow it to both sides
until it has fallen by e^-50, and take the trapezoidal rule there, which converges geometrically for densities that are
analytic in a strip. Nodes are constants to autograd.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from powerspherical._torch.chunks import in_chunks
from powerspherical._torch.constants import Numbers, tensor_constant
from powerspherical._torch.modes import is_plain
from powerspherical.special.gamma import log_cosine_normalizer
from powerspherical.special.mobius import uniform_cosine_rule

if TYPE_CHECKING:
    from powerspherical.families.base import Family

_NODES = 512
FALL = 50.0  # of the logarithm of the density, at the ends of the window
_NEAR_FALL, _MIDDLE_FALL = 2.0, 12.0  # the same, for panels of their own around the mode
FARTHEST = 60.0  # rapidities beyond this are left out
_GRID, _MODE_ROUNDS, _END_ROUNDS = 65, 5, 4  # of the search for the window
_BROKEN_NODES = 8 * 93  # of the rule for functions of another direction
_TINY = 1e-300  # in place of a distance of exactly zero, whose logarithm may be asked for
_CLEAR = 1e-24  # small enough for values, whose error is its root, and large enough for slopes

#: Intermediate values held in memory at a time.
_VALUES = 1 << 22


class Window(NamedTuple):
    """Rapidities: the mode of the density and where it has fallen off on both sides."""

    low: Tensor
    mode: Tensor
    high: Tensor


@tensor_constant
def _equidistant(count: int) -> Numbers:
    return [j / (count - 1) for j in range(count)]


def cosine_ends_of(y: Tensor) -> tuple[Tensor, Tensor]:
    """1-t and 1+t for t = tanh y."""
    return 2 * torch.sigmoid(-2 * y), 2 * torch.sigmoid(2 * y)


def _log_uniform(y: Tensor, dim: int) -> Tensor:
    """log of the density of y for uniform points, c·sech^{d-1} y."""
    log_cosh = y.abs() + torch.log1p(torch.exp(-2 * y.abs())) - math.log(2)
    return log_cosine_normalizer(dim) - (dim - 1) * log_cosh


def log_weight(family: Family, y: Tensor, kappa: Tensor, dim: int) -> Tensor:
    """log of the unnormalised density of y."""
    return family.log_kernel(*cosine_ends_of(y), kappa, dim) + _log_uniform(y, dim)


def once_for_each(function: Callable[[Tensor], tuple[Tensor, ...]], kappa: Tensor) -> tuple[Tensor, ...]:
    """``function`` of each κ, computed once for equal ones; values only.

    Finding the distinct ones takes a host sync on CUDA, so there each is computed.
    """
    if kappa.numel() < 2 or not kappa.is_cpu or not is_plain(kappa):
        return function(kappa)
    distinct, place = torch.unique(kappa, return_inverse=True)
    return tuple(values[place] for values in function(distinct))


def window(family: Family, kappa: Tensor, dim: int, fall: float = FALL) -> Window:
    """Where the density of y is not negligible, for each κ."""
    return windows(family, kappa, dim, fall)[0]


@torch.no_grad()
def windows(family: Family, kappa: Tensor, dim: int, *falls: float) -> list[Window]:
    """For each κ and each of ``falls``, where the logarithm of the density of y has fallen by that from its mode."""
    mode, *ends = once_for_each(lambda k: _mode_and_ends(family, k, dim, falls), kappa.detach())
    pairs = zip(ends[: len(falls)], ends[len(falls) :], strict=True)
    return [Window(low, mode, high) for low, high in pairs]


@tensor_constant
def _directions_and_falls(*falls: float) -> Numbers:
    """Each fall, first towards low and then towards high rapidities."""
    return [[-1.0] * len(falls) + [1.0] * len(falls), [*falls, *falls]]


def _mode_and_ends(family: Family, kappa: Tensor, dim: int, falls: Sequence[float]) -> tuple[Tensor, ...]:
    """The mode, the lower ends for each fall and the upper ends.

    The density has one mode, so that a few ever finer grids find it, and then the ends.
    """
    grid = _equidistant(kappa, _GRID)

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
    """How far from ``start`` a falling ``height`` stays above ``target``; all of one shape, when broadcast."""
    grid = _equidistant(start, _GRID)
    near, width = torch.zeros_like(direction * start), 2 * FARTHEST
    for _ in range(_END_ROUNDS):
        y = start.unsqueeze(-1) + direction.unsqueeze(-1) * (near.unsqueeze(-1) + width * grid)
        inside = (height(y) > target.unsqueeze(-1)).sum(-1).clamp(min=1)
        width = width / (_GRID - 1)
        near = near + width * (inside - 1)
    return near + width


class Nodes(NamedTuple):
    """1-t, 1+t and the logarithms of the weights of a rule for E_U over the family's window; last axis: the nodes."""

    one_minus_t: Tensor
    one_plus_t: Tensor
    log_weights: Tensor


def nodes(family: Family, kappa: Tensor, dim: int) -> Nodes:
    """A rule for averages under the member κ of a family, float64, of shape (…, nodes)."""
    low, _, high = (x.unsqueeze(-1) for x in window(family, kappa, dim))
    y = low + (high - low) * _equidistant(low, _NODES)
    return Nodes(*cosine_ends_of(y), _log_uniform(y, dim) + torch.log((high - low) / (_NODES - 1)))


class Law(NamedTuple):
    """A member of a family on its nodes: the log-partition and the probabilities (…, nodes)."""

    nodes: Nodes
    log_kernel: Tensor
    log_partition: Tensor
    probabilities: Tensor


def law(family: Family, kappa: Tensor, dim: int) -> Law:
    """The law of t for each κ, in float64; differentiable in κ."""
    kappa = kappa.double()
    return law_on(family, nodes(family, kappa, dim), kappa, dim)


def law_on(family: Family, rule: Nodes, kappa: Tensor, dim: int) -> Law:
    """The law of t on the nodes of a given rule."""
    kernel = family.log_kernel(rule.one_minus_t, rule.one_plus_t, kappa.unsqueeze(-1), dim)
    total = kernel + rule.log_weights
    log_partition = torch.logsumexp(total, -1)
    # Normalised to rounding, which the exponential of a difference of large numbers would not be.
    return Law(rule, kernel, log_partition, torch.softmax(total, -1))


def _expected(function: Callable[[Law], Tensor], family: Family, kappa: Tensor, dim: int) -> Tensor:
    """``function`` of the law, (…, nodes), averaged under it; in the dtype of κ."""

    def rows(kappa: Tensor) -> Tensor:
        found = law(family, kappa, dim)
        return (found.probabilities * function(found)).sum(-1)

    def values(kappa: Tensor) -> tuple[Tensor]:
        return (in_chunks(rows, kappa, chunk=_VALUES // _NODES),)

    if torch.is_grad_enabled() and kappa.requires_grad:
        return values(kappa)[0].to(kappa.dtype)
    return once_for_each(values, kappa)[0].to(kappa.dtype)


def expectation(
    family: Family, kappa: Tensor, dim: int, function: Callable[[Tensor, Tensor], Tensor]
) -> Tensor:
    """E function(1-t, 1+t)."""
    return _expected(lambda x: function(x.nodes.one_minus_t, x.nodes.one_plus_t), family, kappa, dim)


def log_partition(family: Family, kappa: Tensor, dim: int) -> Tensor:
    """log E_U exp(log_kernel)."""
    return _expected(lambda x: x.log_partition.unsqueeze(-1), family, kappa, dim)


def relative_entropy(family: Family, kappa: Tensor, dim: int) -> Tensor:
    """E ℓ for ℓ = log_kernel - log_partition.

    Near the uniform it is E(ℓ + e^-ℓ - 1), because E e^-ℓ = 1: terms ≥ 0 of second order, so that nothing cancels.
    """

    def losses(x: Law) -> Tensor:
        log_density = x.log_kernel - x.log_partition.unsqueeze(-1)
        near = log_density.abs().amax(-1, keepdim=True) < 1
        return log_density + torch.where(near, torch.expm1(-torch.where(near, log_density, 0.0)), 0.0)

    return _expected(losses, family, kappa, dim)


def mean_cosine_complement(family: Family, kappa: Tensor, dim: int) -> Tensor:
    """E (1-t)."""
    return expectation(family, kappa, dim, lambda minus, plus: minus)


def variance_cosine(family: Family, kappa: Tensor, dim: int) -> Tensor:
    """Var t."""

    def squares(x: Law) -> Tensor:
        minus = x.nodes.one_minus_t
        return (minus - (x.probabilities * minus).sum(-1, keepdim=True)).square()

    return _expected(squares, family, kappa, dim)


def score_moments(family: Family, kappa: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """Mean and variance of ∂ log_kernel/∂κ, without derivatives."""

    def moments(kappa: Tensor) -> tuple[Tensor, Tensor]:
        found = law(family, kappa, dim)
        score = family.score(
            found.nodes.one_minus_t,
            found.nodes.one_plus_t,
            kappa.unsqueeze(-1).expand_as(found.log_kernel),
            dim,
        )
        mean = (found.probabilities * score).sum(-1)
        return mean, (found.probabilities * (score - mean.unsqueeze(-1)).square()).sum(-1)

    mean, variance = once_for_each(moments, kappa.double().detach())
    return mean.to(kappa.dtype), variance.to(kappa.dtype)


def uniform_expectation(function: Callable[[Tensor, Tensor], Tensor], like: Tensor, dim: int) -> Tensor:
    """E_U function(1-t, 1+t), where ``function`` returns values along a last axis of nodes."""
    squared_sine, squared_cosine, weights = uniform_cosine_rule(like, dim)
    far = 1 + torch.sqrt(squared_cosine)
    near = squared_sine / far
    return (0.5 * weights * (function(near, far) + function(far, near))).sum(-1)


# Seen from another direction


@tensor_constant
def _double_exponential() -> Numbers:
    """Nodes and weights on [0, 1] of the tanh-sinh rule (Takahasi & Mori 1974), for singularities at both ends."""
    step = 0.07
    places = [step * j for j in range(-46, 47)]
    nodes = [1 / (1 + math.exp(-math.pi * math.sinh(s))) for s in places]
    weights = [step * math.pi * math.cosh(s) * x * (1 - x) for s, x in zip(places, nodes, strict=True)]
    total = math.fsum(weights)
    return [nodes, [weight / total for weight in weights]]


def _broken_rule(family: Family, kappa: Tensor, half_chord: Tensor, dim: int) -> Nodes:
    """A rule for functions of νᵀX that may be singular or peaked at ±ν, seen at t = ±cos θ = ±(1 - 2·half_chord)."""
    around = windows(family, kappa, dim, FALL, _MIDDLE_FALL, _NEAR_FALL)
    low, mode, high = around[0]
    h = half_chord.detach().clamp(1e-200, 1.0)
    there = 0.5 * (torch.log(h) - torch.log((1 - h).clamp(min=1e-200)))
    ends = [end for each in around for end in (each.low, each.high)]
    points = torch.stack((mode, *ends, there, -there), -1)
    points = torch.minimum(torch.maximum(points, low.unsqueeze(-1)), high.unsqueeze(-1)).sort(-1).values
    unit, weights = _double_exponential(low).unbind()
    starts, widths = points[..., :-1, None], points.diff(dim=-1).unsqueeze(-1)
    y = (starts + widths * unit).flatten(-2)
    return Nodes(*cosine_ends_of(y), torch.log(widths * weights).flatten(-2) + _log_uniform(y, dim))


def expectation_beside(
    family: Family,
    kappa: Tensor,
    half_chord: Tensor,
    dim: int,
    function: Callable[..., Tensor],
    *others: Tensor,
    values: int = 1,
) -> Tensor:
    """E function(1-t, 1+t, half_chord, *others), which may be singular or peaked near ±cos θ = ±(1 - 2·half_chord).

    Arguments are float64 and of one shape, to which a last axis of nodes is added. ``values`` is how many intermediate
    values the function computes for each node.
    """

    def rows(kappa: Tensor, half_chord: Tensor, *others: Tensor) -> Tensor:
        found = law_on(family, _broken_rule(family, kappa, half_chord, dim), kappa, dim)
        at_nodes = function(*found.nodes[:2], *(x.unsqueeze(-1) for x in (half_chord, *others)))
        return (found.probabilities * at_nodes).sum(-1)

    return in_chunks(rows, kappa, half_chord, *others, chunk=max(1, _VALUES // (_BROKEN_NODES * values)))


def expectation_elsewhere(
    family: Family,
    kappa: Tensor,
    half_chord: Tensor,
    dim: int,
    function: Callable[..., Tensor],
    *others: Tensor,
) -> Tensor:
    """E function(1-μᵀX, 1+μᵀX, 1-νᵀX, 1+νᵀX, *others) where (1-μᵀν)/2 = ``half_chord``; float64, of one shape.

    With s the cosine between the tangent directions of X and ν, uniform on S^{d-2}, and the angle θ between μ and ν,
    νᵀX = t cos θ + √(1-t²) s sin θ. Its distances from ±1 are written as sums of squares, so that nothing cancels.
    """
    s, s_complement, weights = _azimuths(kappa, dim)

    def average(minus: Tensor, plus: Tensor, h: Tensor, *rest: Tensor) -> Tensor:
        minus, plus, h, *more = (x.unsqueeze(-1) for x in (minus, plus, h, *rest))
        # Even in sin θ, but autograd sees its infinite slope at θ = 0: a little is added to stay clear of it.
        sine = 2 * torch.sqrt((h + _CLEAR) * (1 - h + _CLEAR))
        radius = torch.sqrt(minus * plus)
        across = minus * plus * s_complement
        minus_there = 0.5 * ((2 * h - minus).square() + (radius * s - sine).square() + across).clamp(
            min=_TINY
        )
        plus_there = 0.5 * ((plus - 2 * h).square() + (radius * s + sine).square() + across).clamp(min=_TINY)
        return (weights * function(minus, plus, minus_there, plus_there, *more)).sum(-1)

    return expectation_beside(family, kappa, half_chord, dim, average, *others, values=len(weights))


def _azimuths(like: Tensor, dim: int) -> tuple[Tensor, Tensor, Tensor]:
    """s, 1-s² and weights for the cosine s of a uniform point of S^{d-2}; on the circle s = ±1."""
    if dim == 2:
        return _circle(like)
    squares, complements, weights = uniform_cosine_rule(like, dim - 1)
    s = torch.sqrt(complements)
    halves = 0.5 * weights
    return torch.cat((s, -s)), torch.cat((squares, squares)), torch.cat((halves, halves))


@tensor_constant
def _both_ends() -> Numbers:
    return [[1.0, -1.0], [0.0, 0.0], [0.5, 0.5]]


def _circle(like: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    s, complement, weights = _both_ends(like).unbind()
    return s, complement, weights
