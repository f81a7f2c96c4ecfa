"""A cosine as its distances from both ends of [-1, 1], each accurate where it is small."""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
from torch import Tensor

from powerspherical._torch.elementary import sigmoid


class Cosine(NamedTuple):
    """The cosine t of an angle, as 1-t and 1+t.

    Close to ±1 the number t itself has lost the digits that a large concentration needs.

    >>> Cosine.of_rapidity(torch.tensor(30.0, dtype=torch.float64)).minus  # 2e^{-60}, and t rounds to 1
    tensor(1.7513e-26, dtype=torch.float64)
    """

    minus: Tensor
    plus: Tensor

    @classmethod
    def of_rapidity(cls, y: Tensor) -> Cosine:
        """Return t = tanh y."""
        return cls(2 * sigmoid(-2 * y), 2 * sigmoid(2 * y))

    @property
    def rapidity(self) -> Tensor:
        """The rapidity y = artanh t."""
        return 0.5 * (torch.log(self.plus) - torch.log(self.minus))

    @property
    def value(self) -> Tensor:
        """The number t."""
        return 0.5 * (self.plus - self.minus)

    @property
    def dtype(self) -> torch.dtype:
        """The common dtype of both distances."""
        return functools.reduce(torch.promote_types, (x.dtype for x in self))

    def to(self, dtype: torch.dtype) -> Cosine:
        """Return the cosine in another dtype."""
        return Cosine(self.minus.to(dtype), self.plus.to(dtype))

    def unsqueeze(self, axis: int) -> Cosine:
        """Return the cosine with a new axis of length 1."""
        return Cosine(self.minus.unsqueeze(axis), self.plus.unsqueeze(axis))
