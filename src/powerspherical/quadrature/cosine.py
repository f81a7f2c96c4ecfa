"""A cosine as its distances from both ends of [-1, 1], each accurate where it is small."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from powerspherical._torch.derivatives import with_derivatives
from powerspherical._torch.elementary import sigmoid
from powerspherical.formulas.densities import power_statistic


class Cosine(NamedTuple):
    """The cosine t of an angle, as the tensors ``minus`` = 1-t and ``plus`` = 1+t of one shape.

    Close to ±1 the number t itself has lost the digits that a large concentration needs.

    >>> t = Cosine.of_rapidity(torch.tensor([0.0, 30.0], dtype=torch.float64))
    >>> t.minus  # 1 and 2e^{-60}
    tensor([1.0000e+00, 1.7513e-26], dtype=torch.float64)
    >>> t.value, t.rapidity
    (tensor([0., 1.], dtype=torch.float64), tensor([ 0., 30.], dtype=torch.float64))
    >>> t.to(torch.float32).dtype, t.unsqueeze(-1).minus.shape
    (torch.float32, torch.Size([2, 1]))
    """

    minus: Tensor
    plus: Tensor

    @classmethod
    def of_rapidity(cls, y: Tensor) -> Cosine:
        """Return t = tanh y, in the shape of ``y``."""
        return cls(2 * sigmoid(-2 * y), 2 * sigmoid(2 * y))

    @property
    def rapidity(self) -> Tensor:
        """The rapidity y = artanh t, in the shape of t."""
        return rapidity_of(self)

    @property
    def value(self) -> Tensor:
        """The number t, in its shape."""
        return value_of(self)

    @property
    def dtype(self) -> torch.dtype:
        """The common dtype of both distances."""
        return dtype_of(self)

    def to(self, dtype: torch.dtype) -> Cosine:
        """Return the cosine in another dtype."""
        return Cosine(self.minus.to(dtype), self.plus.to(dtype))

    def unsqueeze(self, axis: int) -> Cosine:
        """Return the cosine with a new axis of length 1."""
        return Cosine(self.minus.unsqueeze(axis), self.plus.unsqueeze(axis))


# The properties as functions: before torch 2.9 the compiler cannot trace a property of a named tuple.


def rapidity_of(t: Cosine) -> Tensor:
    """Return the rapidity y = artanh t, in the shape of t."""
    return 0.5 * (torch.log(t.plus) - torch.log(t.minus))


def value_of(t: Cosine) -> Tensor:
    """Return the number t, in its shape."""
    return 0.5 * (t.plus - t.minus)


def dtype_of(t: Cosine) -> torch.dtype:
    """Return the common dtype of 1-t and 1+t."""
    return torch.promote_types(t.minus.dtype, t.plus.dtype)


def log_half_cosine(t: Cosine) -> Tensor:
    """Return log((1+t)/2), accurate where it is small.

    At the antipode the value is log 0 = -inf. We define the derivative as 0 there, and where 1+t is subnormal: it would
    be NaN or overflow.
    """
    return _log_half_cosine(t.minus, t.plus)


_log_half_cosine = with_derivatives(
    lambda minus, plus: -1 / (minus + plus),
    lambda minus, plus: torch.where(plus < torch.finfo(plus.dtype).tiny, 0.0, minus / plus) / (minus + plus),
)(power_statistic)
