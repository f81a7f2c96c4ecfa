"""Log-densities and KL divergences of all pairs: one matrix product of directions, then a function of each cosine.

Both are computed in blocks of rows, so that the memory beyond the result is bounded. The backward pass computes each
block again instead of storing its intermediate values.

A cosine t from a matrix product has an absolute error of about one rounding, ε = 1.2e-7 in float32 and 2.2e-16 in
float64. ``log_prob`` avoids this error near t = ±1, because it computes 1-t from the chord. Here it stays.
"""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.distributions import kl_divergence

from powerspherical._torch.chunks import CHUNK
from powerspherical._torch.modes import is_plain, without_autocast
from powerspherical._torch.triton import triton_takes
from powerspherical.distributions.uniform import HypersphericalUniform
from powerspherical.families import Family
from powerspherical.sampling.precision import computing
from powerspherical.special.gamma import log_sphere_area

if TYPE_CHECKING:
    from powerspherical.distributions.rotational import RotationallySymmetric

#: Entries of a block of log-densities. It should fit the cache. The backward pass holds about 15 numbers per entry.
_DENSITIES_PER_BLOCK = {"cpu": 1 << 19, "cuda": 1 << 22}


class _Pairs(ABC):
    """A function of B rows (directions and concentrations) and of N columns, with values of shape (B, N)."""

    @abstractmethod
    def values(self, loc: Tensor, kappa: Tensor, *columns: Tensor) -> Tensor:
        """Return the values by differentiable operations."""

    def write_(self, out: Tensor, loc: Tensor, kappa: Tensor, *columns: Tensor) -> None:
        """Write the values to ``out``."""
        out.copy_(self.values(loc, kappa, *columns))

    @abstractmethod
    def block_entries(self, device: torch.device) -> int:
        """Return about how many entries to compute at a time."""


class _LogDensities(_Pairs):
    """log p of N points under B members of one family."""

    def __init__(self, family: Family, dim: int) -> None:
        self.family, self.dim = family, dim

    def values(self, loc: Tensor, kappa: Tensor, *columns: Tensor) -> Tensor:
        cosines = _cosines(loc, columns[0])
        # Rounding may take t to an end of [-1, 1] or beyond.
        eps = torch.finfo(cosines.dtype).eps
        ends = (1 - cosines).clamp(min=eps), (1 + cosines).clamp(min=2 * eps)
        density = self.family.log_density(*ends, kappa.unsqueeze(-1), self.dim)
        return density - log_sphere_area(self.dim)

    def write_(self, out: Tensor, loc: Tensor, kappa: Tensor, *columns: Tensor) -> None:
        torch.mm(loc, columns[0].T, out=out)
        offsets = self.family.log_offset(kappa, self.dim) - log_sphere_area(self.dim)
        if triton_takes(out) and _finish_fused_(self.family, out, kappa, offsets, self.dim):
            return
        found, _ = self.family.log_densities_(
            out, kappa.unsqueeze(-1), offsets.unsqueeze(-1), self.dim, keep=False
        )
        if found.data_ptr() != out.data_ptr():
            out.copy_(found)

    def block_entries(self, device: torch.device) -> int:
        return _DENSITIES_PER_BLOCK.get(device.type, 1 << 22)


class _Divergences(_Pairs):
    """KL(p‖q) of B members of the family of p and N members of that of q."""

    def __init__(self, p: Family, q: Family, dim: int, dtype: torch.dtype) -> None:
        self.p, self.q, self.dim, self.dtype = p, q, dim, dtype

    def values(self, loc: Tensor, kappa: Tensor, *columns: Tensor) -> Tensor:
        loc_q, kappa_q = columns
        half_chord = (0.5 - 0.5 * _cosines(loc, loc_q)).clamp(0.0, 1.0)
        kappa_p, kappa_q, half_chord = torch.broadcast_tensors(kappa.unsqueeze(-1), kappa_q, half_chord)
        single = self.dtype != torch.float64
        found = self.q.divergence_from(self.p, kappa_p, kappa_q, half_chord, self.dim, single=single)
        return found.to(self.dtype)

    def block_entries(self, device: torch.device) -> int:
        return CHUNK  # each entry has its quadrature nodes


def _finish_fused_(family: Family, cosines: Tensor, kappa: Tensor, offsets: Tensor, dim: int) -> bool:
    """Turn cosines into log-densities by one kernel, in place. Returns whether there is one for the family."""
    from powerspherical.distributions import _triton_matrix

    return _triton_matrix.finish_(family.name, cosines, kappa, offsets, dim)


def _cosines(first: Tensor, second: Tensor) -> Tensor:
    with without_autocast(first):  # it would run in half precision
        return first @ second.transpose(-1, -2)


def _directions(vectors: Tensor, dtype: torch.dtype) -> Tensor:
    """Return v/‖v‖ in ``dtype``. It makes derivatives tangential, and t independent of the rounding of norms."""
    converted = vectors.to(dtype).reshape(-1, vectors.shape[-1])
    return converted / torch.linalg.vector_norm(converted, dim=-1, keepdim=True)


def _row_blocks(matrix: Tensor, entries: int) -> Iterator[slice]:
    """Split the rows of a matrix into blocks of about ``entries`` entries, at least one row each."""
    rows, columns = matrix.shape
    size = max(entries // max(columns, 1), 1)
    return (slice(start, start + size) for start in range(0, rows, size))


class _InBlocks(torch.autograd.Function):
    """``pairs.values`` of (loc, kappa, *columns), a block of rows at a time in both passes."""

    @staticmethod
    def forward(ctx: Any, pairs: _Pairs, dtype: torch.dtype, *tensors: Tensor) -> Tensor:
        loc, kappa, *columns = tensors
        ctx.pairs = pairs
        ctx.save_for_backward(*tensors)
        out = loc.new_empty((len(loc), len(columns[0])), dtype=dtype)
        with without_autocast(loc):
            for rows in _row_blocks(out, pairs.block_entries(loc.device)):
                pairs.write_(out[rows], loc[rows], kappa[rows], *columns)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        pairs, tensors, needed = ctx.pairs, ctx.saved_tensors, ctx.needs_input_grad[2:]
        if torch.is_grad_enabled():  # for a second derivative, which keeps all intermediate values
            wanted = [x for x, is_needed in zip(tensors, needed, strict=True) if is_needed]
            found = iter(torch.autograd.grad(pairs.values(*tensors), wanted, grad, create_graph=True))
            return None, None, *(next(found) if is_needed else None for is_needed in needed)
        totals = [
            torch.zeros_like(x) if is_needed else None for x, is_needed in zip(tensors, needed, strict=True)
        ]
        entries = pairs.block_entries(grad.device)
        with torch.enable_grad(), without_autocast(grad):
            for rows in _row_blocks(grad, entries):
                parts = (x[rows] if place < 2 else x for place, x in enumerate(tensors))
                leaves = [
                    x.detach().requires_grad_(is_needed) for x, is_needed in zip(parts, needed, strict=True)
                ]
                wanted = [leaf for leaf in leaves if leaf.requires_grad]
                found = iter(torch.autograd.grad(pairs.values(*leaves), wanted, grad[rows]))
                for place, total in enumerate(totals):
                    if total is not None:
                        part = total[rows] if place < 2 else total
                        part.add_(next(found))
        return None, None, *totals


def _matrix(pairs: _Pairs, dtype: torch.dtype, *tensors: Tensor) -> Tensor:
    # Transforms and compilers take the plain operations: the latter fuse them.
    return _InBlocks.apply(pairs, dtype, *tensors) if is_plain(*tensors) else pairs.values(*tensors)


def log_density_matrix(family: Family, loc: Tensor, kappa: Tensor, x: Tensor) -> Tensor:
    """Return the log-densities of points x (*n, d) under members of a family, of shape ``kappa.shape`` + n.

    ``loc`` has the shape (*``kappa.shape``, d). Accuracy: see ``RotationallySymmetric.log_prob_matrix``.
    """
    dtype = torch.promote_types(computing(loc.dtype), computing(x.dtype))
    tensors = _directions(loc, dtype), kappa.to(dtype).reshape(-1), _directions(x, dtype)
    found = _matrix(_LogDensities(family, operator.index(loc.shape[-1])), dtype, *tensors)
    return found.reshape(kappa.shape + x.shape[:-1])


def pairwise_kl(
    p: RotationallySymmetric | HypersphericalUniform, q: RotationallySymmetric | HypersphericalUniform
) -> Tensor:
    """Return KL(p_i‖q_j) for all pairs of two batches of distributions, of shape p.batch_shape + q.batch_shape.

    Args:
        p, q: distributions of this package on the same sphere, of any two families.

    It is differentiable twice in all parameters. The first derivative needs, beyond the result, the memory of a block
    of about 4096 pairs (at least one row). The dtype is the larger of the two, and at least float32.

    Accuracy: that of ``kl_divergence``, plus about 2e-16·|dKL/dt| where t is the cosine of two mean directions: 2e-16·κ
    between von Mises–Fisher distributions. The error matters only if two directions nearly agree in float64.

    >>> import torch
    >>> from powerspherical import PowerSpherical, pairwise_kl
    >>> p = PowerSpherical(torch.eye(3), torch.tensor([1.0, 10.0, 100.0]))
    >>> pairwise_kl(p, p).shape
    torch.Size([3, 3])
    >>> bool((pairwise_kl(p, p).diagonal().abs() < 1e-6).all())
    True
    """
    for name, one in (("p", p), ("q", q)):
        if not isinstance(one, HypersphericalUniform) and not hasattr(one, "family"):
            raise ValueError(
                f"{name} must be a distribution of this package, such as PowerSpherical, got {type(one).__name__}"
            )
    if p.dim != q.dim:
        raise ValueError(
            f"pairwise_kl needs two distributions of one dimension, got dim {p.dim} and dim {q.dim}"
        )
    shape = p.batch_shape + q.batch_shape
    if isinstance(q, HypersphericalUniform):
        found = kl_divergence(p, HypersphericalUniform(q.dim, validate_args=False))
        return found.reshape(p.batch_shape + (1,) * len(q.batch_shape)).expand(shape)
    if isinstance(p, HypersphericalUniform):
        return kl_divergence(HypersphericalUniform(p.dim, validate_args=False), q).expand(shape)
    dtype = torch.promote_types(computing(p.loc.dtype), computing(q.loc.dtype))
    tensors: list[Tensor] = []
    for one in (p, q):
        tensors += _directions(one.loc, torch.float64), one.concentration.double().reshape(-1)
    return _matrix(_Divergences(p.family, q.family, p.dim, dtype), dtype, *tensors).reshape(shape)
