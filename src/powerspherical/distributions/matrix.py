"""Log-densities of all pairs of members and points: one matrix product of directions, then a function of each cosine.

A cosine t from a matrix product has an absolute error of about one rounding, ε = 1.2e-7 in float32 and 2.2e-16 in
float64. ``log_prob`` avoids this error near t = ±1, because it computes 1-t from the chord. Here it stays.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import Tensor

from powerspherical._torch.composites import is_ours
from powerspherical._torch.modes import without_autocast
from powerspherical._torch.vectors import computing
from powerspherical.distributions.cosine_matrix import log_densities_, pulls_
from powerspherical.engines import block_size
from powerspherical.families import Family
from powerspherical.families.exponential import ExponentialFamily
from powerspherical.kernels.dispatch import composed_gradients, find, is_plain, is_plain_backward
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
    kernel = _kernel("matrix", family, directions)
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
    return find(what, like, dim=like.shape[-1], family=family.name) if is_ours(type(family)) else None


def _composition(family: Family, loc: Tensor, kappa: Tensor, offset: Tensor, x: Tensor) -> Tensor:
    cosines, dim = cosines_between(loc, x), operator.index(loc.shape[-1])
    # Rounding may take t to an end of [-1, 1] or beyond.
    eps = torch.finfo(cosines.dtype).eps
    t = Cosine((1 - cosines).clamp(min=eps), (1 + cosines).clamp(min=2 * eps))
    return family.log_kernel(t, kappa.unsqueeze(-1), dim) + (offset.unsqueeze(-1) - log_sphere_area(dim))


def _blocks(rows: int, columns: int, device: torch.device) -> list[slice]:
    """Split the rows of a matrix into blocks, at least one row each."""
    size = max(block_size(_BLOCK.get(device.type, 1 << 22)) // max(columns, 1), 1)
    return [slice(start, start + size) for start in range(0, max(rows, 1), size)]


class _LogDensities(torch.autograd.Function):
    """``_composition``, a block of rows at a time in both passes."""

    @staticmethod
    def forward(ctx: Any, family: Family, loc: Tensor, kappa: Tensor, offset: Tensor, x: Tensor) -> Tensor:
        entries, kernel = len(loc) * len(x), _kernel("matrix", family, loc)
        keeps = kernel is None and any(ctx.needs_input_grad) and entries <= block_size(_KEPT)
        ctx.family, ctx.blocks = family, _blocks(len(loc), len(x), loc.device)
        out = loc.new_empty(len(loc), len(x)) if len(ctx.blocks) > 1 else None
        kept: list[Tensor] = []
        with without_autocast(loc):
            for rows in ctx.blocks:
                part = loc[rows], kappa[rows], offset[rows], x
                if kernel is not None:
                    found = _by_kernel(kernel, family, *part)
                else:
                    found, block = _log_densities(family, *part, keep=keeps)
                    kept.extend(block)
                if out is None:
                    out = found
                else:
                    out[rows] = found
        ctx.save_for_backward(loc, kappa, offset, x, *kept)
        assert out is not None  # there is at least one block
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Gradients:
        loc, kappa, offset, x, *kept = ctx.saved_tensors
        needed = ctx.needs_input_grad[1:]
        if not is_plain_backward(grad):
            tensors = loc, kappa, offset, x
            found = composed_gradients(
                lambda *args: _composition(ctx.family, *args), (grad,), needed, tensors
            )
            return None, *found
        each, in_x, in_loc, in_kappa = len(kept) // len(ctx.blocks), None, [], []
        with without_autocast(grad):
            for number, rows in enumerate(ctx.blocks):
                block = tuple(kept[each * number : each * (number + 1)]) or None
                part = grad[rows], loc[rows], kappa[rows], offset[rows], x
                pulls, factor, of_kappa = _pulls(ctx.family, block, *part)
                total = pulls @ x
                if of_kappa is None:  # a linear family: Σ g (t-1)
                    of_kappa = (loc[rows] * total).sum(-1) - grad[rows].sum(-1)
                in_kappa.append(of_kappa)
                in_loc.append(total.mul_(factor.unsqueeze(-1)))
                if needed[3]:
                    scaled = factor.unsqueeze(-1) * loc[rows]
                    in_x = pulls.T @ scaled if in_x is None else in_x.addmm_(pulls.T, scaled)
        return None, _joined(in_loc), _joined(in_kappa), grad.sum(1) if needed[2] else None, in_x


def _joined(parts: list[Tensor]) -> Tensor:
    """Return the rows of all blocks."""
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _by_kernel(
    kernel: Kernel, family: Family, loc: Tensor, kappa: Tensor, offset: Tensor, x: Tensor
) -> Tensor:
    """Return the log-densities of a block."""
    cosines, dim = loc @ x.T, loc.shape[-1]
    kernel.run(family.name, cosines, kappa, offset, dim, log_sphere_area(dim))
    return cosines


def _log_densities(
    family: Family, loc: Tensor, kappa: Tensor, offset: Tensor, x: Tensor, *, keep: bool
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Return the log-densities of a block, and with ``keep`` what ``pulls_`` needs."""
    dim = loc.shape[-1]
    offsets = (offset - kappa if family.linear else offset) - log_sphere_area(dim)
    return log_densities_(family, loc @ x.T, kappa.unsqueeze(-1), offsets.unsqueeze(-1), dim, keep=keep)


def _pulls(
    family: Family,
    kept: tuple[Tensor, ...] | None,
    grad: Tensor,
    loc: Tensor,
    kappa: Tensor,
    offset: Tensor,
    x: Tensor,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return ``pulls_`` for a block of rows; None as gradient in κ for a family that is linear in t."""
    if kernel := _kernel("matrix_gradient", family, loc):
        pulls, nothing = loc @ x.T, torch.zeros_like(kappa)
        in_kappa = kernel.run(family.name, grad, pulls, kappa, nothing, loc.shape[-1])
        return pulls, torch.ones_like(kappa), in_kappa
    if family.linear:
        return grad, kappa, None
    if kept is None:
        _, kept = _log_densities(family, loc, kappa, offset, x, keep=True)
    return pulls_(family, kept, grad, kappa, loc.shape[-1])
