"""Expectations, tails, quantiles and their slopes for any family, by quadrature from its log-kernel alone."""

from __future__ import annotations

import numpy as np

from powerspherical._torch.constants import Numbers, tensor_constant


def legendre(count: int) -> Numbers:
    """Return the nodes and weights of the Gauss–Legendre rule on [0, 1]."""
    nodes, weights = np.polynomial.legendre.leggauss(count)
    return [((nodes + 1) / 2).tolist(), (weights / 2).tolist()]


#: The same as a tensor of shape (2, count): ``gauss_legendre(like, count)`` has the dtype and device of ``like``.
gauss_legendre = tensor_constant(legendre)
