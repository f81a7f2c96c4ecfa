"""Log-densities of all pairs of members and points: one matrix product of directions, then a function of each cosine.

A cosine t from a matrix product has an absolute error of about one rounding, ε. ``log_prob`` avoids this error near
t = ±1, because it computes 1-t from the chord. Here it stays.

In a few hundred dimensions one pass over the matrix takes a tenth of the time of the matrix product. So functions work
in place where possible, and Power Spherical and von Mises–Fisher have versions with fewer passes.
"""

from __future__ import annotations

import operator
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from powerspherical._torch.composites import is_ours
from powerspherical._torch.modes import without_autocast
from powerspherical._torch.vectors import computing
from powerspherical.engines import block_size
from powerspherical.families import POWER_SPHERICAL, Family, derived
from powerspherical.kernels.dispatch import composed_gradients, find, is_plain, is_plain_backward
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
    tensors = loc, kappa, x
    if not is_plain(*tensors):  # transforms and compilers take the plain operations: the latter fuse them
        found = _composition(family, *tensors)
    elif torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        found = _LogDensities.apply(family, *tensors)
    else:
        found, *_ = _evaluated(family, *tensors, keep=False)
    return found.reshape(kappa.shape + x.shape[:-1])


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
    directions, points = (vectors.to(dtype).reshape(-1, vectors.shape[-1]) for vectors in (loc, x))
    return directions, kappa.to(dtype).reshape(-1, 1), points


def _composition(family: Family, *tensors: Tensor) -> Tensor:
    loc, kappa, x = _flat(*tensors)
    cosines, dim = cosines_between(unit_rows(loc), unit_rows(x)), operator.index(loc.shape[-1])
    # Rounding may take t to an end of [-1, 1] or beyond.
    eps = torch.finfo(cosines.dtype).eps
    t = Cosine((1 - cosines).clamp(min=eps), (1 + cosines).clamp(min=2 * eps))
    return family.log_kernel(t, kappa, dim) + (family.offset(kappa, dim) - log_sphere_area(dim))


def log_densities_(
    family: Family, cosines: Tensor, kappa: Tensor, offsets: Tensor, dim: int, *, keep: bool
) -> Tensors:
    """Overwrite cosines by unnormalised log-densities plus ``offsets``. With ``keep`` return what ``_pulls`` needs.

    Args:
        family: the family of the members.
        cosines: (k, b).
        kappa, offsets: (k, 1).
        dim: the ambient dimension d.
        keep: whether to return the tensors (k, b) from which the derivatives follow: none if the family is linear in
            t, (1+t)/2 and its log for Power Spherical, otherwise 1-t and 1+t.
    """
    smallest = torch.finfo(cosines.dtype).eps  # rounding may take 1±t below it
    if family.linear:
        cosines.mul_(kappa).add_(offsets - kappa)
        return ()
    if family is POWER_SPHERICAL:
        into = None if keep else cosines
        halves = torch.add(cosines.new_full((), 0.5), cosines, alpha=0.5, out=into).clamp_(min=smallest)
        logs = torch.log(halves, out=into)
        torch.mul(logs, kappa, out=cosines).add_(offsets)
        return (halves, logs) if keep else ()
    t = Cosine((1 - cosines).clamp_(min=smallest), (1 + cosines).clamp_(min=smallest))
    torch.add(family.log_kernel(t, kappa, dim), offsets, out=cosines)
    return t if keep else ()


def _pulls(
    family: Family, kept: Tensors, grad: Tensor, kappa: Tensor, dim: int
) -> tuple[Tensor, Tensor | float, Tensor | None]:
    """Return the gradients in the cosines up to a factor per row, that factor, and the gradients in κ, (k,).

    The last are None for a family that is linear in t. They follow from the gradients in the directions.

    Args:
        family: the family of the members.
        kept: the result of ``log_densities_`` with ``keep=True``.
        grad: the gradient g in the log-densities, (k, b).
        kappa: (k, 1).
        dim: the ambient dimension d.
    """
    if family.linear:
        return grad, kappa, None
    if family is POWER_SPHERICAL:
        halves, logs = kept
        return grad / halves, 0.5 * kappa, torch.linalg.vecdot(grad, logs)
    t, rows = Cosine(*kept), kappa.expand_as(grad)
    steepness, _ = family.derivatives(t, rows, dim)
    return grad * steepness, 1.0, torch.linalg.vecdot(grad, family.score(t, rows, dim))


class _Members(NamedTuple):
    """The rows of a matrix: k members of a family."""

    family: Family
    loc: Tensor  # unit vectors, (k, d)
    kappa: Tensor  # (k, 1)

    def blocks(self, columns: int) -> list[tuple[slice, _Members]]:
        """Split the rows of a matrix with so many columns into blocks."""
        size = max(block_size(_BLOCK.get(self.loc.device.type, 1 << 22)) // max(columns, 1), 1)
        if len(self.loc) <= size:
            return [(slice(None), self)]
        slices = [slice(start, start + size) for start in range(0, len(self.loc), size)]
        return [(rows, self._replace(loc=self.loc[rows], kappa=self.kappa[rows])) for rows in slices]

    def fill(self, out: Tensor, x: Tensor, *, keep: bool) -> Tensors:
        """Write the log-densities at unit vectors x (n, d) to ``out``. With ``keep`` return what ``pulls`` needs."""
        dim, log_area = x.shape[1], log_sphere_area(x.shape[1])
        offset = self.family.offset(self.kappa, dim)
        torch.mm(self.loc, x.T, out=out)
        if kernel := self._kernel("matrix"):
            kernel.run(self.family.name, out, self.kappa, offset, dim, log_area)
            return ()
        return log_densities_(self.family, out, self.kappa, offset - log_area, dim, keep=keep)

    def pulls(self, kept: Tensors, grad: Tensor, x: Tensor) -> tuple[Tensor, Tensor | float, Tensor | None]:
        """Return ``_pulls`` for the gradient in the log-densities at x."""
        if kernel := self._kernel("matrix_gradient"):
            cosines, nothing = self.loc @ x.T, torch.zeros_like(self.kappa)
            in_kappa = kernel.run(self.family.name, grad, cosines, self.kappa, nothing, x.shape[1])
            return cosines, 1.0, in_kappa
        if not (kept or self.family.linear):
            kept = self.fill(torch.empty_like(grad), x, keep=True)
        return _pulls(self.family, kept, grad, self.kappa, x.shape[1])

    def _kernel(self, what: str) -> Kernel | None:
        return (
            find(what, self.loc, dim=self.loc.shape[1], family=self.family.name)
            if is_ours(type(self.family))
            else None
        )


def _evaluated(family: Family, *tensors: Tensor, keep: bool) -> Tensors:
    """Return the matrix of ``_composition``, computed a block of rows at a time, and what the derivatives need."""
    loc, kappa, x = _flat(*tensors)
    lengths = _lengths(loc), _lengths(x)
    loc, x = loc / lengths[0], x / lengths[1]
    out = loc.new_empty(len(loc), len(x))
    kept: Tensors = ()
    with without_autocast(loc):
        for rows, block in _Members(family, loc, kappa).blocks(len(x)):
            kept += block.fill(out[rows], x, keep=keep and out.numel() <= block_size(_KEPT))
    return out, *lengths, loc, kappa, x, *kept


class _LogDensities(torch.autograd.Function):
    """``_composition``, a block of rows at a time in both passes."""

    @staticmethod
    def forward(ctx: Any, family: Family, *tensors: Tensor) -> Tensor:
        out, *kept = _evaluated(family, *tensors, keep=True)
        ctx.family = family
        ctx.save_for_backward(*tensors, *kept)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Gradients:
        saved, needed = ctx.saved_tensors, ctx.needs_input_grad[1:]
        tensors = saved[:3]
        if not is_plain_backward(grad):
            return None, *composed_gradients(partial(_composition, ctx.family), (grad,), needed, tensors)
        loc_length, x_length, loc, kappa, x, *kept = saved[3:]
        in_loc, sums = torch.empty_like(loc), grad.sum(1)
        in_kappa, in_x = torch.empty_like(sums), torch.zeros_like(x) if needed[2] else None
        blocks = _Members(ctx.family, loc, kappa).blocks(len(x))
        each = len(kept) // len(blocks)
        with without_autocast(grad):
            for number, (rows, block) in enumerate(blocks):
                part = tuple(kept[each * number : each * (number + 1)])
                pull, factor, of_kappa = block.pulls(part, grad[rows], x)
                total = torch.mm(pull, x, out=in_loc[rows])
                if of_kappa is None:  # linear in t: Σ g (t-1)
                    of_kappa = torch.linalg.vecdot(block.loc, total) - sums[rows]
                in_kappa[rows] = of_kappa
                total.mul_(factor)
                if in_x is not None:
                    in_x.addmm_(pull.T, factor * block.loc)
            in_loc = _tangential_(in_loc, loc, loc_length).reshape(tensors[0].shape)
            if in_x is not None:
                in_x = _tangential_(in_x, x, x_length).reshape(tensors[2].shape)
        in_kappa.sub_(derived.mean_score(ctx.family, kappa, x.shape[1]).squeeze(1) * sums)
        return None, in_loc, in_kappa.reshape(tensors[1].shape), in_x


def _tangential_(grad: Tensor, unit: Tensor, length: Tensor) -> Tensor:
    """Return the gradient in v, given that in the unit vector v/‖v‖, which is overwritten."""
    along = torch.linalg.vecdot(grad, unit).unsqueeze(1)
    return grad.addcmul_(along, unit, value=-1).div_(length)
