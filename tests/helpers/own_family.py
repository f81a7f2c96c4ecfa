"""A family that a user might write outside the package: the logarithm of its density, and a name."""

from __future__ import annotations

import pytest
from torch import Tensor

from powerspherical.distributions import rotational
from powerspherical.families import Family, register_family, registry
from powerspherical.mixture import _spherical_mixture


class SquaredChordFamily(Family):
    """Density ∝ exp(-κ(1-t)²/4)."""

    name = "squared_chord"
    title = "squared chord"

    def log_kernel(self, one_minus_t: Tensor, one_plus_t: Tensor, kappa: Tensor, dim: int) -> Tensor:
        return -kappa * one_minus_t.square() / 4


def registered(monkeypatch: pytest.MonkeyPatch) -> Family:
    """The family, registered for the time of a test."""
    for module, table in (
        (registry, "_FAMILIES"),
        (rotational, "_DISTRIBUTIONS"),
        (_spherical_mixture, "_MIXTURES"),
    ):
        monkeypatch.setattr(module, table, dict(getattr(module, table)))
    return register_family(SquaredChordFamily())
