"""Log-densities of a matrix of cosines with Triton, in float32: one pass over the matrix forward and one backward.

Both work in place, because the matrix is often the largest tensor of a program.
"""

# mypy: ignore-errors
# (type checkers do not understand Triton's dialect of Python)

import torch
import triton
import triton.language as tl
from torch import Tensor

from powerspherical.kernels.launch import blocks, launch
from powerspherical.kernels.registry import register
from powerspherical.kernels.triton.density import log_density_and_slopes
from powerspherical.kernels.triton.elementary import at_least
from powerspherical.kernels.triton.formulas import cauchy_distance

_BLOCK = 1024  # columns per program
_EPS = tl.constexpr(torch.finfo(torch.float32).eps)


@triton.jit
def _entries(columns, BLOCK: tl.constexpr):
    """The row of this program, the places of its entries, and which of them exist."""
    program, tiles = tl.program_id(0).to(tl.int64), tl.cdiv(columns, BLOCK)
    column = (program % tiles) * BLOCK + tl.arange(0, BLOCK)
    row = program // tiles
    return row, row * columns + column, column < columns


@triton.jit
def _ends(t):
    """1-t and 1+t of a cosine from a matrix product, which rounding may take to an end of [-1, 1] or beyond."""
    return at_least(1.0 - t, _EPS), at_least(1.0 + t, 2.0 * _EPS)


@triton.jit(do_not_specialize=["columns", "log_area"])
def _forward(
    values_ptr,
    kappa_ptr,
    offset_ptr,
    columns: tl.int64,
    log_area: tl.float32,
    FAMILY: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Overwrite BLOCK cosines of one row with log-densities."""
    row, place, there = _entries(columns, BLOCK)
    kappa, offset = tl.load(kappa_ptr + row), tl.load(offset_ptr + row)
    minus, plus = _ends(tl.load(values_ptr + place, mask=there, other=0.0))
    # The rounding of t exceeds that of a plain logarithm, and log1p would take longer than the memory access.
    if FAMILY == "power_spherical":
        value = offset + kappa * tl.log(0.5 * plus)
    elif FAMILY == "von_mises_fisher":
        value = offset - kappa * minus
    else:
        value = (1.0 - DIM) * tl.log(cauchy_distance(minus, kappa))
    tl.store(values_ptr + place, value - log_area, mask=there)


@triton.jit(do_not_specialize=["columns"])
def _backward(
    cosines_ptr,
    grad_kappa_ptr,
    grad_ptr,
    kappa_ptr,
    columns: tl.int64,
    FAMILY: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Overwrite BLOCK cosines of one row with the gradients in them. Write the sum of their part of those in κ."""
    row, place, there = _entries(columns, BLOCK)
    kappa = tl.zeros((BLOCK,), tl.float32) + tl.load(kappa_ptr + row)
    t = tl.load(cosines_ptr + place, mask=there, other=0.0)
    grad = tl.load(grad_ptr + place, mask=there, other=0.0)
    minus, plus = _ends(t)
    _, in_t, in_kappa = log_density_and_slopes(minus, plus, kappa, 0.0, 0.0, FAMILY, DIM)
    # The ends are constant where they are clamped.
    in_t = tl.where((1.0 - t < _EPS) | (1.0 + t < 2.0 * _EPS), 0.0, in_t)
    tl.store(cosines_ptr + place, grad * in_t, mask=there)
    tl.store(grad_kappa_ptr + tl.program_id(0), tl.sum(tl.where(there, grad * in_kappa, 0.0), 0))


def log_densities_(
    family: str, cosines: Tensor, kappa: Tensor, offset: Tensor, dim: int, log_area: float
) -> None:
    """Overwrite ``cosines`` (B, N) with log-densities.

    Args:
        family: its name.
        cosines: contiguous.
        kappa: (B, 1).
        offset: -Ψ of an exponential family, (B, 1). Any tensor for other families.
        dim: d.
        log_area: the log of the area of the sphere.
    """
    rows, columns = cosines.shape
    programs, constants = rows * blocks(columns, _BLOCK), (family, dim, _BLOCK)
    launch(_forward, (programs, 1), (cosines, kappa, offset), (columns, log_area), constants)


def pull_back_(family: str, grad: Tensor, cosines: Tensor, kappa: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """Overwrite ``cosines`` (B, N) with the gradients in them. Return them, and the gradient in κ, (B, 1).

    ``grad`` (B, N) is the gradient in the log-densities. The gradient in κ lacks the term -E T of an exponential
    family. The other arguments are those of ``log_densities_``.
    """
    rows, columns = cosines.shape
    parts = kappa.new_empty(rows, blocks(columns, _BLOCK))
    launch(_backward, (parts.numel(), 1), (cosines, parts, grad, kappa), (columns,), (family, dim, _BLOCK))
    return cosines, parts.sum(-1, keepdim=True)


register("matrix", "triton", log_densities_, pull_back_, dtypes=(torch.float32,))
