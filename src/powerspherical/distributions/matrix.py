"""Log-densities of all pairs of members and points: one matrix product of directions, then a function of each cosine.

In a few hundred dimensions one pass over the matrix takes a tenth of the time of the matrix product. So kernels make
one pass, and torch operations work in place where possible.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from powerspherical._torch.modes import without_autocast
from powerspherical._torch.vectors import computing
from powerspherical.engines import block_size
from powerspherical.families import POWER_SPHERICAL, ExponentialFamily, Family, derived
from powerspherical.kernels import native
from powerspherical.kernels.dispatch import by_kernel, find, is_plain
from powerspherical.kernels.registry import Gradients, Kernel, Table, Tensors
from powerspherical.quadrature.cosine import Cosine
from powerspherical.special.curves import kernel_tables
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
    if is_plain(*tensors):
        dtype = _dtype(loc, x)
        exact = [tensor for tensor in tensors if tensor.dtype is dtype]
        kernel = None
        if exact:
            kernel = find("matrix", exact[0], dim=x.shape[-1], family=family.name, allowed=True)
        found = by_kernel(_IN_BLOCKS, compose, (family, kernel, dtype), *tensors)
    else:  # transforms and compilers take the plain operations: the latter fuse them
        found = compose(*tensors)
    return _shaped(found, kappa.shape + x.shape[:-1])


def offset_table(family: Family, dim: int, like: Tensor) -> Table | None:
    """Return the table of -Ψ for kernels, None for a family that is not exponential."""
    if not isinstance(family, ExponentialFamily):
        return None
    return kernel_tables(family.key, "offset", dim, 0, like.dtype, like.device)[0]


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


def _flat(loc: Tensor, kappa: Tensor, x: Tensor, dtype: torch.dtype) -> Tensors:
    """Return directions (k, d), concentrations (k, 1) and points (n, d) in one dtype."""
    loc, x = (v.to(dtype) if v.dim() == 2 else v.to(dtype).reshape(-1, v.shape[-1]) for v in (loc, x))
    return loc, kappa.to(dtype).reshape(-1, 1), x


def _dtype(loc: Tensor, x: Tensor) -> torch.dtype:
    """Return the dtype of the matrix."""
    return torch.promote_types(computing(loc.dtype), computing(x.dtype))


def _composition(family: Family, loc: Tensor, kappa: Tensor, x: Tensor, *_: Tensor) -> Tensor:
    """Return the matrix as torch operations."""
    loc, kappa, x = _flat(loc, kappa, x, _dtype(loc, x))
    cosines, dim = cosines_between(unit_rows(loc), unit_rows(x)), operator.index(loc.shape[-1])
    return family.log_kernel(_clamped(cosines), kappa, dim) + (
        family.offset(kappa, dim) - log_sphere_area(dim)
    )


def log_densities_(
    family: Family, cosines: Tensor, kappa: Tensor, offsets: Tensor, dim: int, *, keep: bool = False
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


#: The rows of a matrix that is a single block.
_ALL = slice(None)


def _part(tensor: Tensor, rows: slice) -> Tensor:
    return tensor if rows is _ALL else tensor[rows]


class _Matrix(NamedTuple):
    """The matrix of k members of a family and n points.

    Some kernels divide by the lengths of vectors themselves, which saves two passes over the vectors. They get 1 over
    the lengths as ``scales``, of shapes (k, 1) and (n, 1). Otherwise there are none, and ``loc`` and ``x`` hold unit
    vectors.
    """

    family: Family
    kernel: Any  # a ``Kernel`` or None
    loc: Tensor  # (k, d)
    kappa: Tensor  # (k, 1)
    x: Tensor  # (n, d)
    scales: Tensors

    def blocks(self) -> list[tuple[slice, _Matrix]]:
        """Split the rows into blocks."""
        count, columns = self.loc.shape[0], self.x.shape[0]
        size = max(block_size(_BLOCK.get(self.loc.device.type, 1 << 22)) // max(columns, 1), 1)
        if count <= size:
            return [(_ALL, self)]
        slices = [slice(start, start + size) for start in range(0, count, size)]
        return [(rows, self._rows(rows)) for rows in slices]

    def _rows(self, rows: slice) -> _Matrix:
        scales = (self.scales[0][rows], self.scales[1]) if self.scales else ()
        return self._replace(loc=self.loc[rows], kappa=self.kappa[rows], scales=scales)

    def fill(self, out: Tensor, *, keep: bool) -> Tensors:
        """Write the log-densities to ``out``. With ``keep`` return what ``pulls`` needs of them."""
        family, dim, log_area = self.family, self.x.shape[1], log_sphere_area(self.x.shape[1])
        products = torch.mm(self.loc, self.x.T, out=None if keep else out)
        if self.scales:
            table = offset_table(family, dim, products)
            arguments = family.name, products, self.kappa, table, log_area, dim, self.scales, out
            slope = self.kernel.run(*arguments)
            return (products, slope) if keep else ()
        offset = family.offset(self.kappa, dim)
        if self.kernel:
            self.kernel.run(family.name, products, self.kappa, offset, dim, log_area)
        else:
            log_densities_(family, out.copy_(products) if keep else out, self.kappa, offset - log_area, dim)
        return (products,) if keep else ()

    def pulls(self, kept: Tensors, grad: Tensor) -> Tensors:
        """Return the gradients in the products and in κ, (k, 1), given those in the log-densities.

        ``kept`` is the result of ``fill``.
        """
        family, kappa, dim = self.family, self.kappa, self.x.shape[1]
        products = kept[0] if kept else self.loc @ self.x.T
        slope = kept[1] if len(kept) > 1 else -derived.mean_score(family, kappa, dim)
        if self.scales:
            return self.kernel.gradients(family.name, grad, products, kappa, slope, dim, self.scales)
        if self.kernel:
            pull, in_kappa = self.kernel.gradients(family.name, grad, products, kappa, dim)
        else:
            t, rows = _clamped(products), kappa.expand_as(grad)
            pull = grad * family.derivatives(t, rows, dim)[0]
            in_kappa = torch.linalg.vecdot(grad, family.score(t, rows, dim)).unsqueeze(1)
        return pull, in_kappa.addcmul_(slope, grad.sum(1, keepdim=True))


def _clamped(cosines: Tensor) -> Cosine:
    """Return 1-t and 1+t of cosines that rounding may have taken to an end of [-1, 1] or beyond."""
    eps = torch.finfo(cosines.dtype).eps
    return Cosine((1 - cosines).clamp(min=eps), (1 + cosines).clamp(min=2 * eps))


#: The family, the kernel if there is one, and the dtype of the matrix.
_Options = tuple[Family, Kernel | None, torch.dtype]


def _evaluated(tensors: Tensors, options: _Options, needed: Sequence[bool]) -> tuple[Tensor, Tensors]:
    """Return the matrix of ``_composition``, computed a block of rows at a time, and what the derivatives need."""
    family, kernel, dtype = options
    loc, kappa, x = tensors
    loc, kappa, x = _flat(loc, kappa, x, dtype)
    scales = _lengths(loc).reciprocal_(), _lengths(x).reciprocal_()
    scaled = kernel is not None and kernel.scales
    if not scaled:
        loc, x = loc * scales[0], x * scales[1]
    out = loc.new_empty(loc.shape[0], x.shape[0])
    keep = (kernel is None or scaled) and True in needed and out.numel() <= block_size(_KEPT)
    kept: Tensors = ()
    with without_autocast(loc):
        for rows, block in _Matrix(family, kernel, loc, kappa, x, scales if scaled else ()).blocks():
            kept += block.fill(_part(out, rows), keep=keep)
    return out, (*scales, loc, kappa, x, *kept)


def _gradients(
    grads: Gradients,
    needed: Sequence[bool],
    tensors: Tensors,
    saved: Tensors,
    options: _Options,
) -> Gradients:
    """Return the gradients of ``_evaluated``, a block of rows at a time."""
    (grad,), (family, kernel, _), (loc_scale, x_scale, loc, kappa, x, *kept) = grads, options, saved
    assert grad is not None
    in_loc, kappas = loc.new_empty(loc.shape), []  # contiguous, whatever hooks made of ``loc``
    in_x: Tensor | None = None
    scaled = kernel is not None and kernel.scales
    matrix = _Matrix(family, kernel, loc, kappa, x, (loc_scale, x_scale) if scaled else ())
    with without_autocast(grad):
        blocks = matrix.blocks()
        each = len(kept) // len(blocks)
        for number, (rows, block) in enumerate(blocks):
            part = tuple(kept[each * number : each * (number + 1)])
            pull, of_kappa = block.pulls(part, _part(grad, rows))
            torch.mm(pull, x, out=_part(in_loc, rows))
            kappas.append(of_kappa)
            if needed[2]:
                in_x = torch.mm(pull.T, block.loc) if in_x is None else in_x.addmm_(pull.T, block.loc)
        _tangential_(in_loc, loc, loc_scale, scaled)
        if in_x is not None:
            _tangential_(in_x, x, x_scale, scaled)
    in_kappa = kappas[0] if len(kappas) == 1 else torch.cat(kappas)
    found = zip((in_loc, in_kappa, in_x), tensors, strict=True)
    return tuple(None if one is None else _shaped(one, like.shape) for one, like in found)


_IN_BLOCKS = Kernel(_evaluated, _gradients)


def _tangential_(grad: Tensor, vectors: Tensor, scale: Tensor, scaled: bool) -> None:
    """Project a gradient on the tangent space at each vector, in place.

    ``scale`` is 1 over the lengths. If ``scaled``, the gradient is that in vectors of this length. Otherwise it is that
    in unit vectors, which are given, and becomes that in the original ones.
    """
    if scaled:
        native.project_(grad, vectors, scale)
    else:
        along = torch.linalg.vecdot(grad, vectors).unsqueeze(1)
        grad.addcmul_(along, vectors, value=-1).mul_(scale)
