"""Log-densities of a matrix of cosines with Triton, in float32: one pass over the matrix forward and one backward.

Both work in place, because the matrix is often the largest tensor of a program.
"""

# mypy: ignore-errors
# (type checkers do not understand Triton's dialect of Python)

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor

from powerspherical._torch.triton import Launch, blocks
from powerspherical.distributions._triton_density import FORMS, slopes
from powerspherical.special.gamma import log_sphere_area

_BLOCK = 1024  # columns per program
_EPS = tl.constexpr(torch.finfo(torch.float32).eps)
_VON_MISES_FISHER = tl.constexpr(FORMS.index("von_mises_fisher"))
_POWER_SPHERICAL = tl.constexpr(FORMS.index("power_spherical"))


@triton.jit
def _ends(t):
    """1-t and 1+t of a cosine from a matrix product, which rounding may take to an end of [-1, 1] or beyond."""
    minus, plus = 1.0 - t, 1.0 + t
    # Comparisons keep NaN.
    return tl.where(minus < _EPS, _EPS, minus), tl.where(plus < 2.0 * _EPS, 2.0 * _EPS, plus)


@triton.jit(do_not_specialize=["columns", "tiles", "log_area"])
def _forward(
    values_ptr,
    kappa_ptr,
    offset_ptr,
    columns: tl.int64,
    tiles: tl.int64,
    log_area: tl.float32,
    FORM: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Overwrite BLOCK cosines of one row with log-densities."""
    program = tl.program_id(0).to(tl.int64)
    row = program // tiles
    column = (program % tiles) * BLOCK + tl.arange(0, BLOCK)
    there = column < columns
    kappa, offset = tl.load(kappa_ptr + row), tl.load(offset_ptr + row)
    place = values_ptr + row * columns + column
    minus, plus = _ends(tl.load(place, mask=there, other=0.0))
    # The rounding of t exceeds that of a plain logarithm, and log1p would take longer than the memory access.
    if FORM == _POWER_SPHERICAL:
        value = offset + kappa * tl.log(0.5 * plus)
    elif FORM == _VON_MISES_FISHER:
        value = offset - kappa * minus
    else:
        value = (DIM - 1.0) * (tl.log(1.0 + kappa) - tl.log(1.0 + 0.5 * minus * kappa * (kappa + 2.0)))
    tl.store(place, value - log_area, mask=there)


@triton.jit(do_not_specialize=["columns", "tiles"])
def _backward(
    cosines_ptr,
    grad_kappa_ptr,
    grad_ptr,
    kappa_ptr,
    mean_ptr,
    columns: tl.int64,
    tiles: tl.int64,
    FORM: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Overwrite BLOCK cosines of one row with the gradients in them. Write the sum of their gradients in κ."""
    program = tl.program_id(0).to(tl.int64)
    row = program // tiles
    column = (program % tiles) * BLOCK + tl.arange(0, BLOCK)
    there = column < columns
    kappa, mean = tl.zeros((BLOCK,), tl.float32) + tl.load(kappa_ptr + row), tl.load(mean_ptr + row)
    place = row * columns + column
    t = tl.load(cosines_ptr + place, mask=there, other=0.0)
    grad = tl.load(grad_ptr + place, mask=there, other=0.0)
    minus, plus = _ends(t)
    in_t, in_kappa = slopes(minus, plus, kappa, mean, FORM, DIM)
    # The ends are constant where they are clamped.
    in_t = tl.where((1.0 - t < _EPS) | (1.0 + t < 2.0 * _EPS), 0.0, in_t)
    tl.store(cosines_ptr + place, grad * in_t, mask=there)
    tl.store(grad_kappa_ptr + program, tl.sum(tl.where(there, grad * in_kappa, 0.0), 0))


def log_densities_(form: str, cosines: Tensor, kappa: Tensor, offset: Tensor, dim: int) -> None:
    """Overwrite ``cosines`` (B, N) with log-densities.

    Args:
        form: name of a family, one of ``FORMS``.
        cosines: contiguous, as all tensors here.
        kappa: (B,).
        offset: ``log_offset`` of an exponential family, (B,). Any tensor (B,) for other families.
        dim: d.
    """
    if cosines.numel():
        launch = _launch(_forward, form, *cosines.shape, dim, cosines.device)
        launch((cosines, kappa, offset))


def pull_back_(form: str, grad: Tensor, cosines: Tensor, kappa: Tensor, mean: Tensor, dim: int) -> Tensor:
    """Overwrite ``cosines`` (B, N) with the gradients in them, and return the gradient in κ, (B,).

    ``grad`` (B, N) is the gradient in the log-densities, and ``mean`` (B,) is E T of an exponential family. The other
    arguments are those of ``log_densities_``.
    """
    rows, columns = cosines.shape
    if not cosines.numel():
        return torch.zeros_like(kappa)
    parts = kappa.new_empty(rows, blocks(columns, _BLOCK))
    launch = _launch(_backward, form, rows, columns, dim, cosines.device)
    launch((cosines, parts, grad, kappa, mean))
    return parts.sum(-1)


@functools.lru_cache(256)
def _launch(kernel: object, form: str, rows: int, columns: int, dim: int, device: torch.device) -> Launch:
    tiles = blocks(columns, _BLOCK)
    numbers = (columns, tiles, log_sphere_area(dim)) if kernel is _forward else (columns, tiles)
    constants = FORMS.index(form), dim, _BLOCK
    return Launch(kernel, (rows * tiles, 1), numbers, constants, num_warps=4)
