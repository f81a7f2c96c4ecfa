"""The law of the cosine t = μᵀx of any family: tails, quantiles and implicit slopes, by one integrator.

The rapidity y = artanh t has the log-density h(y) = log_kernel - (d-1) log cosh y, up to a constant. Powers of 1±t at
the ends of [-1, 1] become exponential tails, so nothing is singular. We assume that h has one mode. All integrals are
over *rays*: a ray starts at y and leads away from the mode, in the direction σ = ±1, until h has fallen by ``_FALL``.

    R[g] = ∫ g(y') exp(h(y') - h(y)) dy'    along a ray from y,

    P(tail) = exp(h(y)) R[1] / ∫ exp(h),      dy/dκ = σ R[s - E s],      s = ∂ log_kernel/∂κ.

The integral over all y and E s are functions of κ, which have tables. The last formula is implicit differentiation at a
fixed probability (Figurnov et al. 2018).

For d ≤ 1,000 the error of the log of a probability is below 7e-12, and the relative error of a slope below 2e-10. In
higher dimensions rounding errors of h add about d·1e-16, and more for families with heavy tails. Where the host cannot
see errors (vmap, compiled and exported programs, CUDA graphs), the number of steps of a quantile is fixed. Its accuracy
is the same for probabilities of at least 1e-15 in either tail, and for our families for at least 1e-30.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import ClassVar, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from powerspherical._torch.chunks import in_chunks
from powerspherical._torch.constants import Numbers, tensor_constant
from powerspherical._torch.modes import can_look
from powerspherical._torch.private import is_exporting
from powerspherical.kernels.dispatch import is_plain
from powerspherical.quadrature import gauss_legendre, legendre
from powerspherical.quadrature.cosine import Cosine, rapidity_of
from powerspherical.special import curves
from powerspherical.special.gamma import log_cosine_normalizer
from powerspherical.special.tables import POINTS, TO_CHEBYSHEV, TO_POWERS

_FALL = 32.0  # a ray ends where the integrand has fallen by e^-32
_NODES, _STRETCH = 56, 3.6  # of a ray, at sinh(_STRETCH·x)/sinh(_STRETCH) with Gauss–Legendre nodes x
_COARSE = 14  # nodes of a ray that only leads to a first guess
_FARTHEST = 340.0  # log_kernel stays constant beyond this |y|, where 1-|t| would underflow
# In the search for the end of a ray: its least length, and the ladders.
_SHORTEST, _LADDERS, _RUNGS = 1e-37, 3, 7
_RATIO = (2 * _FARTHEST / _SHORTEST) ** (1 / (_RUNGS + 1))  # of rungs of the first ladder
_GRID, _GRID_END = 17, 64.0  # in the search for the mode
_SEARCH_STEPS, _NEAR = 12, 1.0  # of quantiles: at most so many rays, until the log of the tail is so near
_ARC_STEPS, _ARC_NODES = 3, 8  # after that at most so many integrals between two points
_CLOSE = 1e-6  # an error of the log of the tail after which one step of Halley's method is the last one
_BLIND_STEPS = 3, 2  # numbers of rays and integrals where the host cannot see the error


class Kernel(Protocol):
    """What the integrator knows of a family."""

    #: Where ``special.curves`` has its functions of κ.
    key: ClassVar[str]

    def __hash__(self) -> int: ...

    def log_kernel(self, t: Cosine, kappa: Tensor, dim: int) -> Tensor:
        """The unnormalised log-density, small near its mode. Arguments broadcast."""

    def score(self, t: Cosine, kappa: Tensor, dim: int) -> Tensor:
        """The derivative of ``log_kernel`` in κ. Arguments broadcast."""

    def mode_rapidity(self, kappa: Tensor, dim: int) -> Tensor | None:
        """The mode of h, if it has a closed form."""

    def offset(self, kappa: Tensor, dim: int) -> Tensor:
        """-log E_U exp(log_kernel)."""


@tensor_constant
def _rule(count: int, stretch: float) -> Numbers:
    """Nodes and weights on [0, 1], dense near 0: a ray may fall fast at first and slowly far out."""
    nodes, weights = legendre(count)
    scale = math.sinh(stretch)
    widths = [
        weight * stretch * math.cosh(stretch * x) / scale for x, weight in zip(nodes, weights, strict=True)
    ]
    return [[math.sinh(stretch * x) / scale for x in nodes], widths]


def rule(like: Tensor) -> Tensor:
    """Return the nodes and weights of a ray, of shape (2, n), for kernels.

    The relative errors of the slopes of our exponential families are below 3e-12. Other families need more nodes.
    """
    return _rule(like, 48, 3.0)


@tensor_constant
def _rungs(ladder: int) -> Numbers:
    """The rungs of a ladder, as multiples of its start. Each ladder divides one interval of the ladder before."""
    return [_RATIO ** (rung / (_RUNGS + 1) ** ladder) for rung in range(1, _RUNGS + 1)]


class Rays(NamedTuple):
    """Rays: h at their starts and its slope there (…, rays), nodes and masses (…, rays, nodes): R[g] = Σ g·masses."""

    height: Tensor
    slope: Tensor
    nodes: Tensor
    masses: Tensor


class Law:
    """The law of y for concentrations κ of any shape. Arguments have this shape or broadcast against it; all float64.

    Inside, tensors have one more axis, for rays or nodes. Nothing is differentiable.
    """

    def __init__(self, family: Kernel, kappa: Tensor, dim: int) -> None:
        self.family, self.kappa, self.dim = family, kappa.unsqueeze(-1), dim
        self.mode = self._find_mode()

    def height(self, y: Tensor) -> Tensor:
        """Return h at points (…, n)."""
        t = _cosine(y)
        # -log cosh y, with an error of about ε max(1, |y|); linear far out
        log_sech = torch.log(t.minus * t.plus).mul_(0.5).sub_((y.abs() - _FARTHEST).clamp(min=0))
        return torch.add(self.family.log_kernel(t, self.kappa, self.dim), log_sech, alpha=self.dim - 1)

    def score(self, y: Tensor) -> Tensor:
        """Return s at points (…, n)."""
        return self.family.score(_cosine(y), self.kappa, self.dim)

    def _find_mode(self) -> Tensor:
        """Return the mode (…, 1), at least to a twentieth of a standard deviation. Ever finer grids find it."""
        if (given := self.family.mode_rapidity(self.kappa, self.dim)) is not None:
            return given
        low, width = torch.full_like(self.kappa, -_GRID_END), 2 * _GRID_END
        grid = torch.arange(_GRID, dtype=low.dtype, device=low.device)
        while width > 0.05 / math.sqrt(self.dim - 1):
            step = width / (_GRID - 1)
            best = self.height(low + step * grid).argmax(-1, keepdim=True)
            low, width = low + step * (best - 1), 2 * step
        return low + width / 2

    def both(self, count: int = _NODES) -> Rays:
        """Return the rays from the mode, first down and then up."""
        down_and_up = torch.linspace(-1, 1, 2, dtype=self.mode.dtype, device=self.mode.device)
        return self.rays(self.mode.expand(*self.mode.shape[:-1], 2), down_and_up, count)

    def log_total(self) -> Tensor:
        """Return log ∫ exp(h), (…, 1)."""
        return -(self.family.offset(self.kappa, self.dim) + log_cosine_normalizer(self.dim))

    def rays(self, y: Tensor, direction: Tensor, count: int = _NODES) -> Rays:
        """Return rays from points (…, rays)."""
        height = self.height(y)
        length = self.lengths(y, height - _FALL, direction).unsqueeze(-1)
        places, weights = _rule(y, count, _STRETCH).unbind()
        nodes = y.unsqueeze(-1) + direction.unsqueeze(-1) * length * places
        change = self.height(nodes.flatten(-2)).unflatten(-1, (-1, count)) - height.unsqueeze(-1)
        slope = change[..., 0] / (length[..., 0] * places[0])
        return Rays(height, slope, nodes, torch.exp(change) * (weights * length))

    def lengths(self, y: Tensor, target: Tensor, direction: Tensor) -> Tensor:
        """Return how far from y h stays above ``target``, or up to 16% more. Ever finer geometric ladders find it."""
        length = torch.full_like(target, _SHORTEST)
        for ladder in range(_LADDERS):
            ends = y.unsqueeze(-1) + (direction * length).unsqueeze(-1) * _rungs(y, ladder)
            heights = self.height(ends.flatten(-2)).unflatten(-1, (-1, _RUNGS))
            above = (heights > target.unsqueeze(-1)).sum(-1)
            length = length * torch.exp(math.log(_RATIO) / (_RUNGS + 1) ** ladder * above)
        return length * _RATIO ** (1 / (_RUNGS + 1) ** (_LADDERS - 1))

    def _tail(self, t: Cosine) -> tuple[Tensor, Rays]:
        """Return σ and the ray from t."""
        y = rapidity_of(t).clamp(-_FARTHEST, _FARTHEST).unsqueeze(-1)
        direction = _sign(y >= self.mode, y)
        return direction, self.rays(y, direction)

    def log_near_tail(self, t: Cosine) -> tuple[Tensor, Tensor]:
        """Return the log-probability of the tail at t that does not contain the mode, and whether it is below t."""
        direction, ray = self._tail(t)
        log_tail = ray.height - self.log_total() + torch.log(ray.masses.sum(-1))
        return log_tail.clamp(max=0.0).squeeze(-1), direction.squeeze(-1) < 0

    def slope(self, t: Cosine) -> Tensor:
        """Return d artanh(t)/dκ at a fixed probability."""
        direction, ray = self._tail(t)
        score_loss = curves.value(self.kappa, self.family.key, "score_loss", self.dim)
        deviations = self.score(ray.nodes.flatten(-2)) + score_loss
        return direction.squeeze(-1) * (ray.masses.flatten(-2) * deviations).sum(-1)

    def quantile(self, u: Tensor, complement: Tensor) -> Cosine:
        """Return t with P(T ≤ t) = u, by Halley's method on the log of the tail that does not contain the mode.

        We integrate whole rays until a point is near the solution, and after that arcs from that point to better ones.
        """
        rays, arcs = (_SEARCH_STEPS, _ARC_STEPS) if can_look() else _BLIND_STEPS
        log_total = self.log_total()
        # The mode and the median are close, so most solutions lie on this side of the mode, and the others near it.
        u, complement = u.unsqueeze(-1), complement.unsqueeze(-1)
        below = u < complement
        direction = _sign(~below, u)
        side = self.rays(self.mode.expand_as(u), direction, _COARSE)
        masses = (side.masses * torch.exp(side.height - log_total).unsqueeze(-1)).squeeze(-2)
        inside = torch.minimum(u, complement) < masses.sum(-1, keepdim=True)
        direction = torch.where(inside, direction, -direction)
        target = torch.log(torch.where(below == inside, u, complement))
        distances = (side.nodes.squeeze(-2) - self.mode).abs()
        distance = torch.where(inside, _start(distances, masses, target), 0.0)  # of y from the mode
        inner, outer = torch.zeros_like(distance), torch.full_like(distance, torch.inf)
        for _ in range(rays):
            y = self.mode + direction * distance
            ray = self.rays(y, direction)
            mass, wanted = ray.masses.sum(-1), target - ray.height + log_total
            excess = torch.log(mass) - wanted
            change = _halley(excess, 1 / mass, ray.slope)
            if can_look() and not bool((excess.abs() > _NEAR).any()):
                break
            inner, outer = torch.where(excess > 0, distance, inner), torch.where(excess > 0, outer, distance)
            distance = distance + change
            distance = torch.where((distance < inner) | (distance > outer), 0.5 * (inner + outer), distance)
        unit, weights = gauss_legendre(y, _ARC_NODES).unbind()
        places = torch.cat((unit, unit.new_ones(1)))
        for _ in range(arcs):
            density = torch.exp(self.height(y + direction * change * places) - ray.height)
            left = mass - change * (density[..., :-1] * weights).sum(-1, keepdim=True)
            excess = torch.log(left) - wanted
            change = change + _halley(excess, density[..., -1:] / left, ray.slope)
            if can_look() and not bool((excess.abs() > _CLOSE).any()):
                break
        return Cosine.of_rapidity((y + direction * change).squeeze(-1))


def _cosine(y: Tensor) -> Cosine:
    """Return tanh y, or tanh(±_FARTHEST) beyond. This takes fewer operations than ``Cosine.of_rapidity``."""
    odds = torch.exp(y.clamp(-_FARTHEST, _FARTHEST).mul_(-2))
    plus = 2 / (odds + 1)
    return Cosine(odds * plus, plus)


def _start(distances: Tensor, masses: Tensor, target: Tensor) -> Tensor:
    """Return roughly where the log of the tail is ``target``, by interpolation between the nodes of a ray."""
    tails = torch.log(masses.flip(-1).cumsum(-1).flip(-1) - 0.5 * masses)
    place = (tails > target).sum(-1, keepdim=True).clamp(1, masses.shape[-1] - 1)
    near, far = distances.gather(-1, place - 1), distances.gather(-1, place)
    high, low = tails.gather(-1, place - 1), tails.gather(-1, place)
    return (near + (far - near) * ((high - target) / (high - low)).clamp(max=1.0)).clamp(min=0.0)


def _halley(excess: Tensor, hazard: Tensor, slope: Tensor) -> Tensor:
    """Return how far outwards to go so that the log of a tail falls by ``excess``.

    Its derivatives are -r and -r(s + r), with r = ``hazard``, the density over the tail, and s = ``slope`` of h.
    """
    return excess / hazard / (1 + (0.5 * excess * (1 + slope / hazard)).clamp(-0.5, 1.0))


def _sign(positive: Tensor, like: Tensor) -> Tensor:
    return torch.where(positive, 1.0, -1.0).to(like.dtype)


def _values_only() -> AbstractContextManager[object]:
    """Return ``torch.no_grad``, except during an export.

    ``torch.export`` traces the ``forward`` of an ``autograd.Function`` and ignores its ``backward``. There the program
    needs the derivatives of the steps, and leaving ``torch.no_grad`` would not switch gradients on again.
    """
    return nullcontext() if is_exporting() else torch.no_grad()


def log_near_tail(family: Kernel, t: Cosine, kappa: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """Return the log-probability of the tail at t that does not contain the mode, and whether it is below t.

    Tensors are float64 and of one shape, as for the functions below.
    """
    with _values_only():
        return in_chunks(lambda a, b, kappa: Law(family, kappa, dim).log_near_tail(Cosine(a, b)), *t, kappa)


def slope(family: Kernel, t: Cosine, kappa: Tensor, dim: int) -> Tensor:
    """Return d artanh(t)/dκ at a fixed probability.

    In plain eager mode on the CPU, large batches with a single κ interpolate the slope in artanh t. This changes it by
    less than 1e-9 of its value. On CUDA it would take a host sync.
    """
    with _values_only():
        if kappa.device.type != "cuda" and _all_equal(kappa):
            law = Law(family, kappa.reshape(-1)[:1], dim)
            # Densities are analytic within a distance π/2 of the real line. We measure artanh t in units of 1/2, or of
            # the standard deviation if that is smaller.
            both = law.both()
            masses, nodes = both.masses.flatten(-2), both.nodes.flatten(-2)
            masses = masses / masses.sum()
            unit = (masses * (nodes - (masses * nodes).sum()).square()).sum().sqrt().clamp(max=0.5)
            place = rapidity_of(t) / unit
            if cells := _cells_around(place):
                table = _table(lambda x: law.slope(Cosine.of_rapidity(x * unit)), cells, place)
                return _interpolated(table, cells, place)
        return in_chunks(lambda a, b, kappa: Law(family, kappa, dim).slope(Cosine(a, b)), *t, kappa)


def quantile(family: Kernel, u: Tensor, complement: Tensor, kappa: Tensor, dim: int) -> Cosine:
    """Return t with P(T ≤ t) = u, for 0 < u < 1 and ``complement`` = 1-u.

    In plain eager mode, large batches with a single κ interpolate artanh t in the logit of u. This changes 1-t and 1+t
    by less than 1e-10 of their values.
    """
    with _values_only():
        if _all_equal(kappa):
            logit = torch.log(u) - torch.log(complement)
            if cells := _cells_around(logit):
                table = _rapidities(family, float(kappa.reshape(-1)[0]), dim, cells, kappa.device)
                return Cosine.of_rapidity(_interpolated(table, cells, logit))
        return Cosine(
            *in_chunks(lambda a, b, kappa: Law(family, kappa, dim).quantile(a, b), u, complement, kappa)
        )


def _all_equal(kappa: Tensor) -> bool:
    """Whether the host can see that there are several entries, and that all are equal."""
    # Plain first: the compiler of torch 2.6 refuses ``is_meta`` in a backward pass.
    if kappa.numel() < 2 or not is_plain(kappa) or kappa.is_meta or not can_look():
        return False
    return not any(kappa.stride()) or bool((kappa == kappa.reshape(-1)[0]).all())


@functools.lru_cache(64)
def _rapidities(family: Kernel, kappa: float, dim: int, cells: range, device: torch.device) -> Tensor:
    """Return the table of artanh t as a function of the logit of u. A fixed κ needs it again and again."""
    with torch.inference_mode(False), torch.no_grad():
        law = Law(family, torch.tensor([kappa], dtype=torch.float64, device=device), dim)

        def at(logit: Tensor) -> Tensor:
            return rapidity_of(law.quantile(torch.sigmoid(logit), torch.sigmoid(-logit)))

        return _table(at, cells, law.kappa)


# Interpolation of functions that are expensive to evaluate, by a polynomial in each of many cells of length 1. If they
# are analytic within a distance of about π of the real line, the error is below 1e-12 of their values.

_BLOCK = 8  # cells
_LEAST_GAIN = 2  # how many times fewer nodes than arguments make an interpolation worthwhile


@tensor_constant
def _transform() -> Numbers:
    """Nodes on [0, 1], and the matrices from values there to coefficients of Chebyshev polynomials and on to powers."""
    return np.r_[POINTS[None], TO_CHEBYSHEV, TO_POWERS].tolist()


def _cells_around(x: Tensor) -> range | None:
    """Return cells that cover x, or None if their nodes are not far fewer than the entries of x. The host reads x.

    Cell j covers the interval from j to j + 1. The ends are multiples of ``_BLOCK``, so that similar arguments have the
    same cells.
    """
    if x.numel() < _BLOCK * len(POINTS) * _LEAST_GAIN:
        return None
    low, high = (float(end) / _BLOCK for end in x.aminmax())
    if not math.isfinite(high - low):
        return None
    cells = range(_BLOCK * math.floor(low), _BLOCK * (math.floor(high) + 1))
    return cells if len(cells) * len(POINTS) * _LEAST_GAIN <= x.numel() else None


def _table(function: Callable[[Tensor], Tensor], cells: range, like: Tensor) -> Tensor:
    """Return the coefficients of an elementwise function, of shape (cells, degree + 1)."""
    nodes, to_chebyshev, to_powers = _transform(like).split((1, len(POINTS), len(POINTS)))
    x = torch.arange(cells.start, cells.stop, dtype=like.dtype, device=like.device).unsqueeze(-1) + nodes
    return function(x.flatten()).view_as(x) @ to_chebyshev @ to_powers


def _interpolated(table: Tensor, cells: range, x: Tensor) -> Tensor:
    """Return the function with this table at x, which lies in the cells."""
    cell = torch.floor(x)
    *coefficients, value = torch.embedding(table, cell.long() - cells.start).unbind(-1)
    for coefficient in reversed(coefficients):
        value = torch.addcmul(coefficient, value, x - cell)
    return value
