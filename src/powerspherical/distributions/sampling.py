"""The base class that gives every distribution ``sample`` and ``rsample``."""

from __future__ import annotations

import numbers
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution

from powerspherical.distributions import validation


def sizes(name: str, value: Any) -> torch.Size:
    """Convert an integer ≥ 0, or a sequence of them, to a shape."""
    sequence: Any = value
    if not isinstance(value, tuple) and isinstance(value, numbers.Integral) and not isinstance(value, bool):
        sequence = (value,)
    try:
        shape = torch.Size(sequence)
    except TypeError:
        raise _not_sizes(name, value) from None
    # The compiler cannot compare data-dependent sizes.
    if shape and not torch.compiler.is_compiling() and min(shape) < 0:
        raise _not_sizes(name, value)
    return shape


def _not_sizes(name: str, value: Any) -> ValueError:
    return ValueError(f"{name} must be an integer ≥ 0 or a tuple of them, got {value!r}")


class Reparameterised(Distribution):
    """A distribution with differentiable draws, from torch's generator or the caller's.

    A subclass checks its own arguments, with better messages than torch's, and implements ``_draws``.
    """

    has_rsample = True

    def __init__(
        self, batch_shape: torch.Size, event_shape: torch.Size, validate_args: bool | None = None
    ) -> None:
        super().__init__(batch_shape, event_shape, validate_args=False)
        self._validate_args = validation.is_enabled(validate_args)

    def sample(self, sample_shape: Any = torch.Size(), *, generator: torch.Generator | None = None) -> Tensor:
        """Return the draws of ``rsample`` without gradients."""
        with torch.no_grad():
            return self.rsample(sample_shape, generator=generator)

    def rsample(
        self, sample_shape: Any = torch.Size(), *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Return draws of shape ``sample_shape + batch_shape + event_shape``, differentiable once in the parameters.

        Args:
            sample_shape: an integer ≥ 0 or a tuple of them.
            generator: source of random numbers, on the device of the parameters. Default: torch's own generator, which
                ``torch.manual_seed`` seeds. ``torch.compile`` can trace only draws from the default generator.
        """
        return self._draws(sizes("sample_shape", sample_shape) + self.batch_shape, generator)

    def _draws(self, shape: torch.Size, generator: torch.Generator | None) -> Tensor:
        """Return draws of shape ``shape + event_shape``."""
        raise NotImplementedError
