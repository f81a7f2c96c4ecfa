"""Log-densities from a matrix of cosines, in place and in one pass over it, as a Triton kernel for float32."""

# mypy: ignore-errors
# (type checkers do not understand Triton's dialect of Python)

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor

from powerspherical._torch.triton import Launch, blocks
from powerspherical.special._triton_gamma import log1p

_BLOCK = 1024
_NAMES = ("power_spherical", "von_mises_fisher", "spherical_cauchy")


@triton.jit(do_not_specialize=["columns", "tiles"])
def _finish(
    values_ptr,
    kappa_ptr,
    offsets_ptr,
    columns: tl.int64,
    tiles: tl.int64,
    degrees: tl.float32,
    NAME: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A program takes ``BLOCK`` columns of one row."""
    program = tl.program_id(0).to(tl.int64)
    row = program // tiles
    column = (program % tiles) * BLOCK + tl.arange(0, BLOCK)
    there = column < columns
    kappa, offset = tl.load(kappa_ptr + row), tl.load(offsets_ptr + row)
    place = values_ptr + row * columns + column
    t = tl.load(place, mask=there, other=0.0)
    if NAME == "power_spherical":
        half = 0.5 + 0.5 * t
        # A comparison keeps NaN.
        value = kappa * tl.log(tl.where(half < 1.1920929e-07, 1.1920929e-07, half))
    elif NAME == "von_mises_fisher":
        value = kappa * t
    else:
        minus = 1.0 - t
        minus = tl.where(minus < 1.1920929e-07, 1.1920929e-07, minus)
        value = degrees * (log1p(kappa) - log1p(0.5 * minus * kappa * (kappa + 2.0)))
    tl.store(place, value + offset, mask=there)


def finish_(name: str, cosines: Tensor, kappa: Tensor, offsets: Tensor, dim: int) -> bool:
    """Overwrite (B, N) ``cosines`` with ``Family.log_densities_`` of the family with this name.

    ``kappa`` and ``offsets`` have the shape (B,). All tensors are contiguous. Returns False for an unknown family.
    """
    if name not in _NAMES:
        return False
    if cosines.numel():
        _launch(name, *cosines.shape, dim, cosines.device)(
            (cosines, kappa.contiguous(), offsets.contiguous())
        )
    return True


@functools.lru_cache(256)
def _launch(name: str, rows: int, columns: int, dim: int, device: torch.device) -> Launch:
    tiles = blocks(columns, _BLOCK)
    numbers = columns, tiles, float(dim - 1)
    return Launch(_finish, (rows * tiles, 1), numbers, (name, _BLOCK), num_warps=4)
