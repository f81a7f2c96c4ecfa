"""Log-densities of all pairs of members and points: one matrix product of directions, then a function of each cosine.

In a few hundred dimensions one pass over the matrix takes a tenth of the time of the matrix product. So functions work
in place where possible, and Power Spherical and von Mises–Fisher have versions with fewer passes.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from powerspherical._torch.modes import without_autocast
from powerspherical._torch.vectors import computing
from powerspherical.engines import block_size
from powerspherical.families import POWER_SPHERICAL, Family, derived
from powerspherical.kernels.dispatch import by_kernel, find, is_plain
from powerspherical.kernels.registry import Gradients, Kernel, Tensors
from powerspherical.quadrature.cosine import Cosine
from powerspherical.special.gamma import log_sphere_area

#: Entries of a block. On a CPU it should fit the cache.
_BLOCK = {"cpu": 1 << 19, "cuda": 1 << 25}

#: Up to so many entries the forward pass keeps what the backward pass needs. Of a larger matrix the backward pass
#: computes each block again.
_KEPT = 1 << 22


def log_density_matrix(family: Family, loc: Tensor, kappa: Tensor, x: Tensor) -> Tensor:
    """Return the log-densities of points x (*n, d) under members of a family, of shape ``kappa.shape`` + n.

    ``loc`` has the shape (*``kappa.shape``, d). Accuracy: see ``RotationallySymmetric.log_prob_matrix``.
    """
    tensors, compose = (loc, kappa, x), partial(_composition, family)
    # Transforms and compilers take the plain operations: the latter fuse them.
    found = by_kernel(_IN_BLOCKS, compose, family, *tensors) if is_plain(*tensors) else compose(*tensors)
    return _shaped(found, kappa.shape + x.shape[:-1])


def _shaped(tensor: Tensor, shape: torch.Size) -> Tensor:
    """Reshape a tensor. Even a view of the same shape takes a few µs to make and to differentiate."""
    return tensor if tensor.shape == shape else tensor.reshape(shape)


def unit_rows(vectors: Tensor) -> Tensor:
    """Return v/‖v‖. It makes derivatives tangential, and t independent of the rounding of norms."""
    return vectors / _lengths(vectors)


def _lengths(vectors: Tensor) -> Tensor:
    return torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)


def cosines_between(first: Tensor, second: Tensor) -> Tensor:
    """Return the cosines of all pairs of unit vectors."""
    with without_autocast(first):  # it would run in half precision
        return first @ second.transpose(-1, -2)


def _flat(loc: Tensor, kappa: Tensor, x: Tensor) -> Tensors:
    """Return directions (k, d), concentrations (k, 1) and points (n, d) in one dtype."""
    dtype = torch.promote_types(computing(loc.dtype), computing(x.dtype))
    loc, x = (v.to(dtype) if v.dim() == 2 else v.to(dtype).reshape(-1, v.shape[-1]) for v in (loc, x))
    return loc, kappa.to(dtype).reshape(-1, 1), x


def _composition(family: Family, loc: Tensor, kappa: Tensor, x: Tensor, *_: Tensor) -> Tensor:
    """Return the matrix as torch operations."""
    loc, kappa, x = _flat(loc, kappa, x)
    cosines, dim = cosines_between(unit_rows(loc), unit_rows(x)), operator.index(loc.shape[-1])
    # Rounding may take t to an end of [-1, 1] or beyond.
    eps = torch.finfo(cosines.dtype).eps
    t = Cosine((1 - cosines).clamp(min=eps), (1 + cosines).clamp(min=2 * eps))
    return family.log_kernel(t, kappa, dim) + (family.offset(kappa, dim) - log_sphere_area(dim))


def log_densities_(
    family: Family, cosines: Tensor, kappa: Tensor, offsets: Tensor, dim: int, *, keep: bool
) -> Tensors:
    """Overwrite cosines (k, b) by unnormalised log-densities plus ``offsets`` (k, 1), for ``kappa`` (k, 1).

    With ``keep`` return the tensors (k, b) from which the derivatives follow: none if the family is linear in t,
    (1+t)/2 and its log for Power Spherical, otherwise 1-t and 1+t.
    """
    smallest = torch.finfo(cosines.dtype).eps  # rounding may take 1±t below it
    if family.linear:
        cosines.mul_(kappa).add_(offsets - kappa)
        return ()
    if family is POWER_SPHERICAL:
        into = None if keep else cosines
        sag = torch.add(cosines.new_full((), -0.5), cosines, alpha=0.5, out=into).clamp_(min=smallest - 1)
        logs = torch.log1p(sag, out=into)  # on a CPU it takes two thirds of the time of log
        torch.mul(logs, kappa, out=cosines).add_(offsets)
        return (sag.add_(1), logs) if keep else ()
    t = Cosine((1 - cosines).clamp_(min=smallest), (1 + cosines).clamp_(min=smallest))
    torch.add(family.log_kernel(t, kappa, dim), offsets, out=cosines)
    return t if keep else ()


def _pulls(
    family: Family, kept: Tensors, grad: Tensor, kappa: Tensor, dim: int
) -> tuple[Tensor, Tensor | float, Tensor | None]:
    """Return the gradients in the cosines up to a factor per row, that factor, and the gradients in κ, (k,).

    The last are None for a family that is linear in t: they follow from the gradients in the directions. ``kept`` comes
    from ``log_densities_``, and ``grad`` (k, b) is the gradient in the log-densities.
    """
    if family.linear:
        return grad, kappa, None
    if family is POWER_SPHERICAL:
        halves, logs = kept
        return grad / halves, 0.5 * kappa, torch.linalg.vecdot(grad, logs)
    t, rows = Cosine(*kept), kappa.expand_as(grad)
    steepness, _ = family.derivatives(t, rows, dim)
    return grad * steepness, 1.0, torch.linalg.vecdot(grad, family.score(t, rows, dim))


#: The rows of a matrix that is a single block: its view would take 2 µs to make.
_ALL = slice(None)


def _part(tensor: Tensor, rows: slice) -> Tensor:
    return tensor if rows is _ALL else tensor[rows]


class _Members(NamedTuple):
    """The rows of a matrix: k members of a family."""

    family: Family
    loc: Tensor  # unit vectors, (k, d)
    kappa: Tensor  # (k, 1)

    def blocks(self, columns: int) -> list[tuple[slice, _Members]]:
        """Split the rows of a matrix with so many columns into blocks."""
        size = max(block_size(_BLOCK.get(self.loc.device.type, 1 << 22)) // max(columns, 1), 1)
        if len(self.loc) <= size:
            return [(_ALL, self)]
        slices = [slice(start, start + size) for start in range(0, len(self.loc), size)]
        return [(rows, self._replace(loc=self.loc[rows], kappa=self.kappa[rows])) for rows in slices]

    def fill(self, out: Tensor, x: Tensor, *, keep: bool) -> Tensors:
        """Write the log-densities at unit vectors x (n, d) to ``out``. With ``keep`` return what ``pulls`` needs."""
        dim, log_area = x.shape[1], log_sphere_area(x.shape[1])
        offset = self.family.offset(self.kappa, dim)
        if self.family.linear and not x.is_cuda:  # CUDA would copy the offsets first
            torch.addmm(offset - self.kappa - log_area, self.kappa * self.loc, x.T, out=out)
            return ()
        torch.mm(self.loc, x.T, out=out)
        if kernel := self._kernel("matrix"):
            kernel.run(self.family.name, out, self.kappa, offset, dim, log_area)
            return ()
        return log_densities_(self.family, out, self.kappa, offset - log_area, dim, keep=keep)

    def pulls(self, kept: Tensors, grad: Tensor, x: Tensor) -> tuple[Tensor, Tensor | float, Tensor | None]:
        """Return ``_pulls`` for the gradient in the log-densities at x."""
        if kernel := self._kernel("matrix_gradient"):
            cosines = self.loc @ x.T
            in_kappa = kernel.run(self.family.name, grad, cosines, self.kappa, x.shape[1])
            return cosines, 1.0, in_kappa
        if not (kept or self.family.linear):
            kept = self.fill(torch.empty_like(grad), x, keep=True)
        return _pulls(self.family, kept, grad, self.kappa, x.shape[1])

    def _kernel(self, what: str) -> Kernel | None:
        return find(what, self.loc, dim=self.loc.shape[1], family=self.family.name)


def _evaluated(tensors: Tensors, family: Family, needed: Sequence[bool]) -> tuple[Tensor, Tensors]:
    """Return the matrix of ``_composition``, computed a block of rows at a time, and what the derivatives need."""
    loc, kappa, x = _flat(*tensors)
    lengths = _lengths(loc), _lengths(x)
    loc, x = loc / lengths[0], x / lengths[1]
    out = loc.new_empty(len(loc), len(x))
    keep = any(needed) and out.numel() <= block_size(_KEPT)
    kept: Tensors = ()
    with without_autocast(loc):
        for rows, block in _Members(family, loc, kappa).blocks(len(x)):
            kept += block.fill(_part(out, rows), x, keep=keep)
    return out, (*lengths, loc, kappa, x, *kept)


def _gradients(
    grads: Gradients, needed: Sequence[bool], tensors: Tensors, saved: Tensors, family: Family
) -> Gradients:
    """Return the gradients of ``_evaluated``, a block of rows at a time."""
    (grad,), (loc_length, x_length, loc, kappa, x, *kept) = grads, saved
    assert grad is not None
    in_loc, in_kappa = torch.empty_like(loc), torch.empty_like(kappa)
    in_x: Tensor | None = None
    sums = grad.sum(1, keepdim=True)
    blocks = _Members(family, loc, kappa).blocks(len(x))
    each = len(kept) // len(blocks)
    with without_autocast(grad):
        for number, (rows, block) in enumerate(blocks):
            part = tuple(kept[each * number : each * (number + 1)])
            pull, factor, of_kappa = block.pulls(part, _part(grad, rows), x)
            total = torch.mm(pull, x, out=_part(in_loc, rows))
            along = _tangential_(total, block.loc, factor / _part(loc_length, rows))
            if of_kappa is None:  # linear in t: Σ g (t-1)
                torch.sub(along, _part(sums, rows), out=_part(in_kappa, rows))
            else:
                _part(in_kappa, rows).copy_(of_kappa.unsqueeze(1))
            if needed[2]:
                scaled = factor * block.loc
                in_x = torch.mm(pull.T, scaled) if in_x is None else in_x.addmm_(pull.T, scaled)
        if in_x is not None:
            _tangential_(in_x, x, 1 / x_length)
    in_kappa.addcmul_(derived.mean_score(family, kappa, x.shape[1]), sums, value=-1)
    found = zip((in_loc, in_kappa, in_x), tensors, strict=True)
    return tuple(None if one is None else _shaped(one, like.shape) for one, like in found)


_IN_BLOCKS = Kernel(_evaluated, _gradients)


def _tangential_(grad: Tensor, unit: Tensor, factor: Tensor) -> Tensor:
    """Project gradients on the tangent spaces at unit vectors and scale them in place; return the parts along those."""
    along = torch.linalg.vecdot(grad, unit).unsqueeze(1)
    grad.addcmul_(along, unit, value=-1).mul_(factor)
    return along
