"""Log-densities of all pairs of members and points: one matrix product of directions, then a function of each cosine.

A cosine t from a matrix product has an absolute error of about one rounding, ε = 1.2e-7 in float32 and 2.2e-16 in
float64. ``log_prob`` avoids this error near t = ±1, because it computes 1-t from the chord. Here it stays.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from powerspherical._torch.composites import is_ours
from powerspherical._torch.modes import is_plain, without_autocast
from powerspherical._torch.vectors import computing
from powerspherical.distributions.cosine_matrix import log_densities_, pulls_
from powerspherical.engines import block_size
from powerspherical.families import Family
from powerspherical.families.exponential import ExponentialFamily
from powerspherical.kernels import find
from powerspherical.kernels.autograd import composed_gradients
from powerspherical.kernels.registry import Gradients, Kernel
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
    dtype = torch.promote_types(computing(loc.dtype), computing(x.dtype))
    directions, points, concentrations = (
        unit_rows(loc, dtype),
        unit_rows(x, dtype),
        kappa.to(dtype).reshape(-1),
    )
    dim = operator.index(loc.shape[-1])
    # The kernels compute the whole density of families that are no exponential ones.
    kernel = _kernel("matrix", family, directions) if is_plain(directions, points) else None
    whole = kernel is not None and not isinstance(family, ExponentialFamily)
    offset = torch.zeros_like(concentrations) if whole else family.offset(concentrations, dim)
    tensors = directions, concentrations, offset, points
    # Transforms and compilers take the plain operations: the latter fuse them.
    found = _LogDensities.apply(family, *tensors) if is_plain(*tensors) else _composition(family, *tensors)
    return found.reshape(kappa.shape + x.shape[:-1])


def unit_rows(vectors: Tensor, dtype: torch.dtype) -> Tensor:
    """Return v/‖v‖ in ``dtype``. It makes derivatives tangential, and t independent of the rounding of norms."""
    converted = vectors.to(dtype).reshape(-1, vectors.shape[-1])
    return converted / torch.linalg.vector_norm(converted, dim=-1, keepdim=True)


def cosines_between(first: Tensor, second: Tensor) -> Tensor:
    """Return the cosines of all pairs of unit vectors."""
    with without_autocast(first):  # it would run in half precision
        return first @ second.transpose(-1, -2)


def _kernel(what: str, family: Family, like: Tensor) -> Kernel | None:
    return find(what, like, like.shape[-1], family.name) if is_ours(type(family)) else None


def _composition(family: Family, loc: Tensor, kappa: Tensor, offset: Tensor, x: Tensor) -> Tensor:
    cosines, dim = cosines_between(loc, x), operator.index(loc.shape[-1])
    # Rounding may take t to an end of [-1, 1] or beyond.
    eps = torch.finfo(cosines.dtype).eps
    t = Cosine((1 - cosines).clamp(min=eps), (1 + cosines).clamp(min=2 * eps))
    return family.log_kernel(t, kappa.unsqueeze(-1), dim) + (offset.unsqueeze(-1) - log_sphere_area(dim))


def _blocks(matrix: Tensor) -> Iterator[slice]:
    """Split the rows of a matrix into blocks, at least one row each."""
    rows, columns = matrix.shape
    size = max(block_size(_BLOCK.get(matrix.device.type, 1 << 22)) // max(columns, 1), 1)
    return (slice(start, start + size) for start in range(0, rows, size))


class _LogDensities(torch.autograd.Function):
    """``_composition``, a block of rows at a time in both passes."""

    @staticmethod
    def forward(ctx: Any, family: Family, loc: Tensor, kappa: Tensor, offset: Tensor, x: Tensor) -> Tensor:
        kept: list[tuple[Tensor, ...]] = []
        dim = loc.shape[-1]
        out, kernel = loc.new_empty(len(loc), len(x)), _kernel("matrix", family, loc)
        keeps = kernel is None and any(ctx.needs_input_grad) and out.numel() <= block_size(_KEPT)
        with without_autocast(loc):
            for rows in _blocks(out):
                if kernel is not None:
                    torch.mm(loc[rows], x.T, out=out[rows])
                    kernel.run(family.name, out[rows], kappa[rows], offset[rows], dim, log_sphere_area(dim))
                    continue
                values, block = _log_densities(family, loc[rows], kappa[rows], offset[rows], x, keep=keeps)
                out[rows] = values
                kept.append(block)
        ctx.family, ctx.keeps = family, keeps
        ctx.save_for_backward(loc, kappa, offset, x, *(tensor for block in kept for tensor in block))
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Gradients:
        loc, kappa, offset, x, *kept = ctx.saved_tensors
        needed = ctx.needs_input_grad[1:]
        if torch.is_grad_enabled() or not is_plain(grad):
            tensors = loc, kappa, offset, x
            found = composed_gradients(
                lambda *args: _composition(ctx.family, *args), (grad,), needed, tensors
            )
            return None, *found
        blocks = list(_blocks(grad))
        each = len(kept) // max(len(blocks), 1)
        in_loc, in_kappa, in_x = torch.empty_like(loc), torch.empty_like(kappa), torch.zeros_like(x)
        with without_autocast(grad):
            for number, rows in enumerate(blocks):
                given = grad[rows], loc[rows], kappa[rows], offset[rows], x
                block = tuple(kept[each * number : each * (number + 1)]) if ctx.keeps else None
                in_loc[rows], in_kappa[rows] = _pull_back(ctx.family, block, *given, in_x, needs_x=needed[3])
        return None, in_loc, in_kappa, grad.sum(1) if needed[2] else None, in_x if needed[3] else None


def _log_densities(
    family: Family, loc: Tensor, kappa: Tensor, offset: Tensor, x: Tensor, *, keep: bool
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Return the log-densities of a block, and with ``keep`` what ``pulls_`` needs."""
    dim = loc.shape[-1]
    offsets = (offset - kappa if family.linear else offset) - log_sphere_area(dim)
    return log_densities_(family, loc @ x.T, kappa.unsqueeze(-1), offsets.unsqueeze(-1), dim, keep=keep)


def _pull_back(
    family: Family,
    kept: tuple[Tensor, ...] | None,
    grad: Tensor,
    loc: Tensor,
    kappa: Tensor,
    offset: Tensor,
    x: Tensor,
    in_x: Tensor,
    *,
    needs_x: bool,
) -> tuple[Tensor, Tensor]:
    """Return the gradients in ``loc`` and κ for a block of rows, and add that in x to ``in_x``."""
    if kernel := _kernel("matrix_gradient", family, loc):
        pulls = loc @ x.T
        in_kappa = kernel.run(family.name, grad, pulls, kappa, torch.zeros_like(kappa), loc.shape[-1])
        factor = torch.ones_like(kappa)
    elif family.linear:
        pulls, factor, in_kappa = grad, kappa, None
    else:
        if kept is None:
            _, kept = _log_densities(family, loc, kappa, offset, x, keep=True)
        pulls, factor, in_kappa = pulls_(family, kept, grad, kappa, loc.shape[-1])
    total = pulls @ x
    if in_kappa is None:  # Σ g (t-1)
        in_kappa = (loc * total).sum(-1) - grad.sum(-1)
    if needs_x:
        in_x.addmm_(pulls.T, factor.unsqueeze(-1) * loc)
    return factor.unsqueeze(-1) * total, in_kappa
