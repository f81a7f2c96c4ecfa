"""What ``sample`` and ``rsample`` take: a shape, and a source of random numbers."""

from __future__ import annotations

import numbers
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution


def sizes(name: str, value: Any) -> torch.Size:
    """The shape that ``value`` means: an integer ≥ 0 or a sequence of them."""
    sequence: Any = value
    if not isinstance(value, tuple) and isinstance(value, numbers.Integral) and not isinstance(value, bool):
        sequence = (value,)
    try:
        shape = torch.Size(sequence)
    except TypeError:
        raise _not_sizes(name, value) from None
    # The compiler cannot compare sizes that depend on data.
    if shape and not torch.compiler.is_compiling() and min(shape) < 0:
        raise _not_sizes(name, value)
    return shape


def _not_sizes(name: str, value: Any) -> ValueError:
    return ValueError(f"{name} must be an integer ≥ 0 or a tuple of them, got {value!r}")


class Reparameterised(Distribution):
    """A distribution with differentiable draws, which may come from the caller's own generator."""

    has_rsample = True

    def sample(self, sample_shape: Any = torch.Size(), *, generator: torch.Generator | None = None) -> Tensor:
        """The draws of ``rsample``, without gradients."""
        with torch.no_grad():
            return self.rsample(sample_shape, generator=generator)

    def rsample(
        self, sample_shape: Any = torch.Size(), *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Draws of shape ``sample_shape + batch_shape + event_shape``, differentiable once in the parameters.

        Args:
            sample_shape: an integer ≥ 0 or a tuple of them.
            generator: source of the random numbers, on the device of the parameters. Default: torch's generator of
                that device, which ``torch.manual_seed`` seeds. ``torch.compile`` cannot trace a draw from another one.
        """
        return self._draws(sizes("sample_shape", sample_shape) + self.batch_shape, generator)

    def _draws(self, shape: torch.Size, generator: torch.Generator | None) -> Tensor:
        """Draws of shape ``shape + event_shape``."""
        raise NotImplementedError
