"""dt/dκ of von Mises–Fisher draws at a fixed probability with Triton: a quadrature of both tails for each row.

The formulas are those of ``families._precise``, in float64 as there. With the integrals a of exp(L'-L) and b of
(t'-t) exp(L'-L) over the angles on either side of φ = acos t,

    dt/dκ = sin φ (a₋b₊ - a₊b₋)/(a₊ + a₋):

the mean that is there is a quotient of the same integrals, so that no Bessel function is needed; and as b is
positive on the side of the mode, +, and negative on that of the antipode, nothing cancels. Exact to the rounding of
float32.
"""

# mypy: ignore-errors

import functools
import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from powerspherical._torch.triton import Launch, blocks
from powerspherical.special._triton_gamma import log1p
from powerspherical.special.quadrature import gauss_legendre

_ROWS, _NODES = 8, 32
_EXPONENT = tl.constexpr(40.0)  # the integrand is followed until it has fallen by e^-40
_PI = tl.constexpr(math.pi)
_TINY = tl.constexpr(1e-140)


@triton.jit
def _angle(versine, coversine):
    """φ from 1 - cos φ and 1 + cos φ, to 1e-12: twice the arctangent of the root of their ratio."""
    small, large = tl.minimum(versine, coversine), tl.maximum(versine, coversine)
    u = tl.sqrt(small) / tl.sqrt(large)
    guess = u * (0.25 * _PI + 0.273 * (1.0 - u))
    tangent = tl.sin(guess) / tl.cos(guess)
    miss = (u - tangent) / (1.0 + u * tangent)
    near = 2.0 * (guess + miss * (1.0 - miss * miss / 3.0))
    return tl.where(versine < coversine, near, _PI - near)


@triton.jit
def _mode(kappa, degrees):
    """The angle at which L = κ cos φ + (d-2) log sin φ is largest."""
    kappa = tl.maximum(kappa, 1e-30)
    root = tl.sqrt(degrees * degrees + 4.0 * kappa * kappa)
    total = degrees + root
    versine = (degrees + degrees * degrees / (root + 2.0 * kappa)) / total
    return _angle(versine, (total + 2.0 * kappa) / total)


@triton.jit
def _changes(SIDE: tl.constexpr, step, t, sine, kappa, degrees, CIRCLE: tl.constexpr):
    """t' - t and L' - L at the angle φ + SIDE·step, from increments alone."""
    half = tl.sin(0.5 * step)
    sin_step = 2.0 * SIDE * half * tl.sqrt(1.0 - half * half)
    versine = 2.0 * half * half
    change = -(versine * t + sin_step * sine)
    exponent = kappa * change
    if not CIRCLE:
        sine_ratio = tl.maximum((t / sine) * sin_step - versine, -1.0)
        exponent += degrees * log1p(sine_ratio * (1.0 - 1e-15))  # so that it is never -1
    return change, exponent


@triton.jit
def _tail(SIDE: tl.constexpr, one_minus_t, one_plus_t, kappa, degrees, nodes, weights, CIRCLE: tl.constexpr):
    """a and b; SIDE is 1 towards the antipode, -1 towards the mode. ``degrees`` is d - 2."""
    t = 0.5 * (one_plus_t - one_minus_t)
    sine = tl.sqrt(one_minus_t) * tl.sqrt(one_plus_t)
    angle = _angle(one_minus_t, one_plus_t)
    room = _PI - angle if SIDE > 0 else angle
    # The window: the root of a quadratic bound of L - L', or more where that is too tight; see ``tail._window``. A tail
    # that has the mode inside is followed to there and beyond.
    descent = SIDE * (kappa * sine - degrees * (t / sine))
    curvature = tl.maximum(0.405 * kappa + degrees, 1e-3)
    root = tl.sqrt(descent * descent + 2.0 * _EXPONENT * curvature)
    falling = 2.0 * _EXPONENT / (tl.maximum(descent, 0.0) + root)
    to_mode = tl.where(descent > 0, 0.0, tl.abs(_mode(kappa, degrees) - angle))
    across = to_mode + tl.sqrt(1.0 / curvature * 2.0 * _EXPONENT)
    window = tl.minimum(tl.where(descent > 0, falling, across), room)
    if SIDE > 0:
        _, top = _changes(SIDE, to_mode, t, sine, kappa, degrees, CIRCLE)
        _, reached = _changes(SIDE, window, t, sine, kappa, degrees, CIRCLE)
        fall = tl.minimum(_EXPONENT / tl.maximum(kappa, 1e-30), one_plus_t)
        wider = tl.minimum(_angle(one_minus_t + fall, one_plus_t - fall) - angle, room)
        window = tl.where(reached - top > -0.9 * _EXPONENT, tl.maximum(window, wider), window)
    step = window[:, None] * nodes
    change, exponent = _changes(SIDE, step, t[:, None], sine[:, None], kappa[:, None], degrees, CIRCLE)
    mass = tl.exp(exponent) * weights
    return window * tl.sum(mass, 1), window * tl.sum(mass * change, 1)


@triton.jit(do_not_specialize=["rows", "kappa_stride"])
def _implicit_slope(
    slope_ptr,
    minus_ptr,
    plus_ptr,
    kappa_ptr,
    rule_ptr,
    rows: tl.int64,
    kappa_stride: tl.int64,
    degrees: tl.float32,
    CIRCLE: tl.constexpr,
    ROWS: tl.constexpr,
    NODES: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    there = row < rows
    one_minus_t = tl.maximum(tl.load(minus_ptr + row, mask=there, other=1.0).to(tl.float64), _TINY)
    one_plus_t = tl.maximum(tl.load(plus_ptr + row, mask=there, other=1.0).to(tl.float64), _TINY)
    kappa = tl.load(kappa_ptr + row * kappa_stride, mask=there, other=1.0).to(tl.float64)
    node = tl.arange(0, NODES)[None, :]
    nodes, weights = tl.load(rule_ptr + node), tl.load(rule_ptr + NODES + node)
    degrees = tl.zeros((), tl.float64) + degrees
    a_up, b_up = _tail(-1, one_minus_t, one_plus_t, kappa, degrees, nodes, weights, CIRCLE)
    a_down, b_down = _tail(1, one_minus_t, one_plus_t, kappa, degrees, nodes, weights, CIRCLE)
    sine = tl.sqrt(one_minus_t) * tl.sqrt(one_plus_t)
    slope = (a_down * b_up - a_up * b_down) / ((a_up + a_down) * sine)
    tl.store(slope_ptr + row, slope.to(tl.float32), mask=there)


def implicit_slope(one_minus_t: Tensor, one_plus_t: Tensor, concentration: Tensor, dim: int) -> Tensor:
    """(dt/dκ)/(1-t²) of each row, float32. All are contiguous, ``concentration`` may be one for all rows."""
    slope = torch.empty_like(one_minus_t)
    rule = _rule(one_minus_t.device)
    launch = _launch(slope.numel(), 0 if concentration.numel() == 1 else 1, dim, slope.device)
    launch((slope, one_minus_t, one_plus_t, concentration, rule))
    return slope


@functools.cache
def _rule(device: torch.device) -> Tensor:
    """Nodes, and then weights, of the Gauss–Legendre rule on [0, 1]."""
    return torch.stack(gauss_legendre(_NODES, torch.empty(0, dtype=torch.float64, device=device)))


@functools.lru_cache(1024)  # launches, of the latest sizes
def _launch(rows: int, kappa_stride: int, dim: int, device: torch.device) -> Launch:
    return Launch(
        _implicit_slope,
        (blocks(rows, _ROWS), 1),
        (rows, kappa_stride, float(dim - 2)),
        (dim == 2, _ROWS, _NODES),
        num_warps=4,
    )
