"""The defaults of a family, by quadrature over the cosine.

In the rapidity y = artanh t a uniform point has a density ∝ sech^{d-1} y, and powers of 1±t at the ends of [-1, 1]
become exponential tails. So one rule serves all families: find the mode of the density in y, follow it to both sides
until it has fallen by e^-40, and take the trapezoidal rule there, which converges geometrically for densities that are
analytic in a strip. Integrals that begin at a point take panels instead. Nodes are constants to autograd.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from powerspherical._torch.chunks import in_chunks
from powerspherical._torch.constants import Numbers, tensor_constant
from powerspherical._torch.modes import is_capturing, is_plain
from powerspherical.special._quadrature import gauss_legendre
from powerspherical.special.mobius import uniform_cosine_rule
from powerspherical.special.sphere import log_cosine_normalizer

if TYPE_CHECKING:
    from powerspherical.families.base import Family

_NODES = 512
_PANEL_NODES = 32
_PANELS = (0.0, 1 / 64, 1 / 16, 1 / 4, 1.0)  # of a tail, from where it begins
_FALL = 40.0  # of the logarithm of the density, at the ends of the window
FAR_FALL = 90.0  # the same where small tails are integrated
_NEAR_FALL = 2.0  # the same, for a panel of its own around the mode
_FARTHEST = 60.0  # rapidities beyond this are left out
_BROKEN_NODES = 6 * 107  # of the rule for functions of another direction
_TINY = 1e-300  # in place of a distance of exactly zero, whose logarithm may be asked for
_ROUND = 33  # points compared at a time in a search

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


@tensor_constant
def _distances() -> Numbers:
    """From the mode to where the window may end, in constant ratio."""
    return [2 * _FARTHEST * 1.5 ** (j - 50) for j in range(51)]


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
    """``function`` of each κ, computed once for equal ones where they can be compared; values only."""
    if kappa.numel() < 2 or not is_plain(kappa) or is_capturing(kappa):
        return function(kappa)
    distinct, place = torch.unique(kappa, return_inverse=True)
    return tuple(values[place] for values in function(distinct))


@torch.no_grad()
def window(family: Family, kappa: Tensor, dim: int, fall: float = _FALL) -> Window:
    """Where the density of y is not negligible, for each κ."""
    return Window(*once_for_each(lambda k: _window(family, k, dim, fall), kappa.detach()))


def _window(family: Family, kappa: Tensor, dim: int, fall: float) -> Window:
    def heights(y: Tensor) -> Tensor:
        found = log_weight(family, y, kappa.unsqueeze(-1), dim)
        return torch.nan_to_num(found, nan=-math.inf)

    def highest(y: Tensor) -> Tensor:
        return y.expand(*kappa.shape, -1).gather(-1, heights(y).argmax(-1, keepdim=True))

    unit = _equidistant(kappa, _ROUND)
    mode, reach = highest(_FARTHEST * (2 * _equidistant(kappa, 241) - 1)), 0.5
    for _ in range(5):  # each round narrows the bracket sixteenfold
        mode, reach = highest(mode + reach * (2 * unit - 1)), reach * 2 / (_ROUND - 1)
    mode, targets = mode.squeeze(-1), heights(mode) - fall
    below, above = (_reach(heights, mode, targets, direction) for direction in (-1.0, 1.0))
    return Window(mode - below, mode, mode + above)


def _reach(
    heights: Callable[[Tensor], Tensor], start: Tensor, targets: Tensor, direction: float | Tensor
) -> Tensor:
    """How far from ``start`` falling ``heights`` (…, points) stay above ``targets`` (…, 1): up to 5% more than that."""

    def next_outside(distances: Tensor) -> tuple[Tensor, Tensor]:
        """The last of the growing distances that is inside, and the next one."""
        inside = (heights(start.unsqueeze(-1) + direction * distances) > targets).sum(-1, keepdim=True)
        distances = distances.expand(*start.shape, -1)
        last = distances.shape[-1] - 1
        return distances.gather(-1, (inside - 1).clamp(min=0)), distances.gather(-1, inside.clamp(max=last))

    near, far = next_outside(_distances(start))
    return next_outside(near + (far - near) * _equidistant(start, _ROUND))[1].squeeze(-1)


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
    return Law(rule, kernel, log_partition, torch.exp(total - log_partition.unsqueeze(-1)))


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
    """E log_kernel - log_partition."""
    return _expected(lambda x: x.log_kernel - x.log_partition.unsqueeze(-1), family, kappa, dim)


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
    step = 0.06
    places = [step * j for j in range(-53, 54)]
    nodes = [1 / (1 + math.exp(-math.pi * math.sinh(s))) for s in places]
    weights = [step * math.pi * math.cosh(s) * x * (1 - x) for s, x in zip(places, nodes, strict=True)]
    total = math.fsum(weights)
    return [nodes, [weight / total for weight in weights]]


def _broken_rule(family: Family, kappa: Tensor, half_chord: Tensor, dim: int) -> Nodes:
    """A rule for functions of νᵀX that may be singular or peaked at ±ν, seen at t = ±cos θ = ±(1 - 2·half_chord)."""
    low, mode, high = window(family, kappa, dim)
    near_low, _, near_high = window(family, kappa, dim, _NEAR_FALL)
    h = half_chord.detach().clamp(1e-200, 1.0)
    there = 0.5 * (torch.log(h) - torch.log((1 - h).clamp(min=1e-200)))
    points = torch.stack((low, near_low, mode, near_high, high, there, -there), -1)
    points = torch.minimum(torch.maximum(points, low.unsqueeze(-1)), high.unsqueeze(-1)).sort(-1).values
    unit, weights = _double_exponential(low).unbind()
    starts, widths = points[..., :-1, None], points.diff(dim=-1).unsqueeze(-1)
    y = (starts + widths * unit).flatten(-2)
    return Nodes(*cosine_ends_of(y), torch.log(widths * weights).flatten(-2) + _log_uniform(y, dim))


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

    def rows(kappa: Tensor, half_chord: Tensor, *others: Tensor) -> Tensor:
        found = law_on(family, _broken_rule(family, kappa, half_chord, dim), kappa, dim)
        minus, plus = (x.unsqueeze(-1) for x in found.nodes[:2])
        h, *rest = (x.unsqueeze(-1).unsqueeze(-1) for x in (half_chord, *others))
        sine = 2 * torch.sqrt(h * (1 - h))
        radius = torch.sqrt(minus * plus)
        across = minus * plus * s_complement
        minus_there = 0.5 * ((2 * h - minus).square() + (radius * s - sine).square() + across).clamp(
            min=_TINY
        )
        plus_there = 0.5 * ((plus - 2 * h).square() + (radius * s + sine).square() + across).clamp(min=_TINY)
        values = (weights * function(minus, plus, minus_there, plus_there, *rest)).sum(-1)
        return (found.probabilities * values).sum(-1)

    return in_chunks(
        rows, kappa, half_chord, *others, chunk=max(1, _VALUES // (_BROKEN_NODES * len(weights)))
    )


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


# Tails


class Tail(NamedTuple):
    """The tail that begins at y and leads away from the mode.

    Attributes:
        below: whether it lies below y.
        log_density: log of the density of y at its beginning, unnormalised.
        nodes, weights: a rule for integrals of the density over the tail, relative to its beginning.
    """

    below: Tensor
    log_density: Tensor
    nodes: Tensor
    weights: Tensor


@torch.no_grad()
def tail(family: Family, y: Tensor, kappa: Tensor, dim: int) -> Tail:
    """The tail at each y, however far out."""
    below = y < window(family, kappa, dim).mode
    direction = torch.where(below, -1.0, 1.0).to(y.dtype).unsqueeze(-1)

    def heights(y: Tensor) -> Tensor:
        return log_weight(family, y, kappa.unsqueeze(-1), dim)

    here = log_weight(family, y, kappa, dim)
    length = _reach(heights, y, here.unsqueeze(-1) - _FALL, direction).unsqueeze(-1)
    unit, weights = gauss_legendre(_PANEL_NODES, y)
    places = torch.cat([a + (b - a) * unit for a, b in itertools.pairwise(_PANELS)])
    widths = torch.cat([(b - a) * weights for a, b in itertools.pairwise(_PANELS)])
    nodes = y.unsqueeze(-1) + direction * length * places
    return Tail(below, here, nodes, torch.exp(heights(nodes) - here.unsqueeze(-1)) * length * widths)


def log_near_tail(
    family: Family, one_minus_t: Tensor, one_plus_t: Tensor, kappa: Tensor, dim: int
) -> tuple[Tensor, Tensor]:
    """log of the probability of the tail beyond t that does not contain the mode, and whether it lies below t."""
    found = tail(family, rapidity(one_minus_t, one_plus_t), kappa, dim)
    mass = found.log_density + torch.log(found.weights.sum(-1))
    return (mass - log_partition(family, kappa, dim)).clamp(max=0.0), found.below


def rapidity(one_minus_t: Tensor, one_plus_t: Tensor) -> Tensor:
    """artanh t."""
    ratio = torch.log(one_plus_t) - torch.log(one_minus_t)
    return (0.5 * ratio).clamp(-2 * _FARTHEST, 2 * _FARTHEST)
