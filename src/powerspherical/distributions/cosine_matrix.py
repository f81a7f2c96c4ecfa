"""Log-densities of a matrix of cosines, (k, b): k members of one family against b points, in place where possible.

In a few hundred dimensions one pass over such a matrix takes a tenth of the time of the matrix product that computes
it. So Power Spherical and von Mises–Fisher have versions with fewer passes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from powerspherical.families import POWER_SPHERICAL, Family
from powerspherical.quadrature.cosine import Cosine


def log_offset(family: Family, kappa: Tensor, dim: int) -> Tensor:
    """Return the constant that turns ``log_densities_`` with zero offsets into log-densities relative to the uniform.

    >>> cosines, kappa = torch.tensor([[0.0, 0.5, 1.0]]), torch.tensor([[1.0]])
    >>> offsets = log_offset(POWER_SPHERICAL, kappa, 3)
    >>> log_densities_(POWER_SPHERICAL, cosines, kappa, offsets, 3, keep=False)[0].exp()  # 1+t
    tensor([[1.0000, 1.5000, 2.0000]])
    """
    offset = family.offset(kappa, dim)
    return offset - kappa if family.linear else offset


def log_densities_(
    family: Family, cosines: Tensor, kappa: Tensor, offsets: Tensor, dim: int, *, keep: bool
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Return unnormalised log-densities plus ``offsets``, (k, b), and with ``keep`` what the derivatives need.

    Args:
        family: the family of the members.
        cosines: (k, b), may be overwritten.
        kappa, offsets: (k, 1).
        dim: the ambient dimension d.
        keep: whether to return the tensors from which the derivatives follow: none if the family is linear in t,
            (1+t)/2 and its log for Power Spherical, otherwise 1-t and 1+t.
    """
    smallest = torch.finfo(cosines.dtype).eps  # rounding may take 1±t below it
    if family.linear:
        return cosines.mul_(kappa).add_(offsets), ()
    if family is POWER_SPHERICAL:
        halves = torch.add(cosines.new_full((), 0.5), cosines, alpha=0.5, out=cosines).clamp_(min=smallest)
        if not keep:
            return halves.log_().mul_(kappa).add_(offsets), ()
        logs = halves.log()
        return torch.addcmul(offsets, logs, kappa), (halves, logs)
    t = Cosine((1 - cosines).clamp_(min=smallest), (1 + cosines).clamp_(min=smallest))
    return family.log_kernel(t, kappa, dim) + offsets, t if keep else ()


def pulls_(
    family: Family, kept: tuple[Tensor, ...], grad: Tensor, kappa: Tensor, dim: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients in the cosines up to a factor per row, that factor, and the gradients in κ.

    Args:
        family: the family of the members; not linear in t.
        kept: the second result of ``log_densities_`` with ``keep=True``, (k, b).
        grad: the gradient in the log-densities, (k, b).
        kappa: (k,).
        dim: the ambient dimension d.
    """
    if family is POWER_SPHERICAL:
        halves, logs = kept
        return grad / halves, 0.5 * kappa, torch.linalg.vecdot(grad, logs)
    t, rows = Cosine(*kept), kappa.unsqueeze(-1).expand_as(grad)
    pulls = grad * family.derivatives(t, rows, dim)[0]
    return pulls, torch.ones_like(kappa), torch.linalg.vecdot(grad, family.score(t, rows, dim))
