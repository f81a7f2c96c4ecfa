"""Log-densities and KL divergences of all pairs: one matrix product of directions, then a function of each cosine.

Both are computed in blocks of rows, so that the memory beyond the result is bounded. The backward pass computes each
block again instead of storing its intermediate values.

A cosine t from a matrix product has an absolute error of about one rounding, ε = 1.2e-7 in float32 and 2.2e-16 in
float64. ``log_prob`` avoids this error near t = ±1, because it computes 1-t from the chord. Here it stays.
"""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.distributions import kl_divergence

from powerspherical._torch.chunks import CHUNK
from powerspherical._torch.modes import is_plain, without_autocast
from powerspherical._torch.triton import triton_takes
from powerspherical.distributions.cosine_matrix import log_densities_, log_offset
from powerspherical.distributions.density import FUSED
from powerspherical.distributions.uniform import HypersphericalUniform
from powerspherical.engines import block_size
from powerspherical.families import Family, derived
from powerspherical.families.exponential import ExponentialFamily
from powerspherical.quadrature.cosine import Cosine
from powerspherical.sampling.precision import computing
from powerspherical.special.gamma import log_sphere_area

if TYPE_CHECKING:
    from powerspherical.distributions.rotational import RotationallySymmetric

#: Entries of a block of log-densities. On a CPU it should fit the cache. The backward pass by torch operations holds
#: about 15 numbers per entry, the fused kernels one.
_DENSITIES_PER_BLOCK = {"cpu": 1 << 19, "cuda": 1 << 22}
_FUSED_DENSITIES_PER_BLOCK = 1 << 25


class _Pairs(ABC):
    """A function of B rows (directions and concentrations) and of N columns, with values of shape (B, N)."""

    @abstractmethod
    def values(self, loc: Tensor, kappa: Tensor, *columns: Tensor) -> Tensor:
        """Return the values by differentiable operations."""

    def write_(self, out: Tensor, loc: Tensor, kappa: Tensor, *columns: Tensor) -> None:
        """Write the values to ``out``."""
        out.copy_(self.values(loc, kappa, *columns))

    def gradients(self, grad: Tensor, needed: Sequence[bool], *tensors: Tensor) -> list[Tensor | None]:
        """Return the gradients in the arguments of ``values``, each None if it is not ``needed``."""
        create_graph = torch.is_grad_enabled()
        with torch.enable_grad():
            if not create_graph:
                tensors = tuple(
                    x.detach().requires_grad_(is_needed) for x, is_needed in zip(tensors, needed, strict=True)
                )
            wanted = [x for x, is_needed in zip(tensors, needed, strict=True) if is_needed]
            found = iter(torch.autograd.grad(self.values(*tensors), wanted, grad, create_graph=create_graph))
        return [next(found) if is_needed else None for is_needed in needed]

    @abstractmethod
    def block_entries(self, matrix: Tensor) -> int:
        """Return about how many entries of ``matrix`` to compute at a time."""


class _LogDensities(_Pairs):
    """log p of N points under B members of one family."""

    def __init__(self, family: Family, dim: int) -> None:
        self.family, self.dim = family, dim

    def values(self, loc: Tensor, kappa: Tensor, *columns: Tensor) -> Tensor:
        cosines = _cosines(loc, columns[0])
        # Rounding may take t to an end of [-1, 1] or beyond.
        eps = torch.finfo(cosines.dtype).eps
        t = Cosine((1 - cosines).clamp(min=eps), (1 + cosines).clamp(min=2 * eps))
        density = derived.log_density(self.family, t, kappa.unsqueeze(-1), self.dim)
        return density - log_sphere_area(self.dim)

    def write_(self, out: Tensor, loc: Tensor, kappa: Tensor, *columns: Tensor) -> None:
        torch.mm(loc, columns[0].T, out=out)
        if self._is_fused(out):
            from powerspherical.distributions import _triton_matrix

            offset, _ = self._functions_of_kappa(kappa)
            _triton_matrix.log_densities_(self.family.name, out, kappa, offset, self.dim)
            return
        offsets = (log_offset(self.family, kappa, self.dim) - log_sphere_area(self.dim)).unsqueeze(-1)
        found, _ = log_densities_(self.family, out, kappa.unsqueeze(-1), offsets, self.dim, keep=False)
        if found.data_ptr() != out.data_ptr():
            out.copy_(found)

    def gradients(self, grad: Tensor, needed: Sequence[bool], *tensors: Tensor) -> list[Tensor | None]:
        if torch.is_grad_enabled() or not self._is_fused(grad):
            return super().gradients(grad, needed, *tensors)
        from powerspherical.distributions import _triton_matrix

        loc, kappa, x = tensors
        pulls = loc @ x.T
        _, mean = self._functions_of_kappa(kappa)
        in_kappa = _triton_matrix.pull_back_(
            self.family.name, grad.contiguous(), pulls, kappa, mean, self.dim
        )
        in_loc = pulls @ x if needed[0] else None
        return [in_loc, in_kappa if needed[1] else None, pulls.T @ loc if needed[2] else None]

    def _functions_of_kappa(self, kappa: Tensor) -> tuple[Tensor, Tensor]:
        """Return minus Ψ and E T of an exponential family. The kernels do not read them for other families."""
        if isinstance(self.family, ExponentialFamily):
            return derived.offset_and_mean_score(self.family, kappa, self.dim)
        return kappa, kappa

    def _is_fused(self, matrix: Tensor) -> bool:
        return self.family in FUSED and triton_takes(matrix)

    def block_entries(self, matrix: Tensor) -> int:
        if self._is_fused(matrix):
            return block_size(_FUSED_DENSITIES_PER_BLOCK)
        return block_size(_DENSITIES_PER_BLOCK.get(matrix.device.type, 1 << 22))


class _Divergences(_Pairs):
    """KL(p‖q) of B members of the family of p and N members of that of q."""

    def __init__(self, p: Family, q: Family, dim: int, dtype: torch.dtype) -> None:
        self.p, self.q, self.dim, self.dtype = p, q, dim, dtype

    def values(self, loc: Tensor, kappa: Tensor, *columns: Tensor) -> Tensor:
        loc_q, kappa_q = columns
        cosines = _cosines(loc, loc_q).clamp(-1.0, 1.0)
        kappas = kappa.to(self.dtype).unsqueeze(-1), kappa_q.to(self.dtype)
        kappa_p, kappa_q, cosines = torch.broadcast_tensors(*kappas, cosines)
        angle = Cosine(1 - cosines, 1 + cosines)
        return derived.divergence(self.p, kappa_p, self.q, kappa_q, angle, self.dim).to(self.dtype)

    def block_entries(self, matrix: Tensor) -> int:
        return block_size(CHUNK)  # each entry has its quadrature nodes


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
            for rows in _row_blocks(out, pairs.block_entries(out)):
                pairs.write_(out[rows], loc[rows], kappa[rows], *columns)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        pairs, tensors, needed = ctx.pairs, ctx.saved_tensors, ctx.needs_input_grad[2:]
        if torch.is_grad_enabled():  # for a second derivative, which keeps all intermediate values
            return None, None, *pairs.gradients(grad, needed, *tensors)
        totals = [
            torch.zeros_like(x) if is_needed else None for x, is_needed in zip(tensors, needed, strict=True)
        ]
        with without_autocast(grad):
            for rows in _row_blocks(grad, pairs.block_entries(grad)):
                parts = (x[rows] if place < 2 else x for place, x in enumerate(tensors))
                for place, found in enumerate(pairs.gradients(grad[rows], needed, *parts)):
                    total = totals[place]
                    if total is not None and found is not None:
                        (total[rows] if place < 2 else total).add_(found)
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
            f"pairwise_kl needs two distributions of the same dimension, got dim {p.dim} and dim {q.dim}"
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
