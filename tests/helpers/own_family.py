"""A family that a user might write outside the package: the logarithm of its density, and a name."""

from __future__ import annotations

from typing import Any

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


#: Where families, their distributions and their mixtures are registered.
TABLES = ((registry, "_FAMILIES"), (rotational, "_DISTRIBUTIONS"), (_spherical_mixture, "_MIXTURES"))


def entries() -> list[dict[str, Any]]:
    """A copy of all that is registered."""
    return [dict(getattr(module, table)) for module, table in TABLES]


def use(monkeypatch: pytest.MonkeyPatch, content: list[dict[str, Any]]) -> None:
    """Have this registered, and what is added to it, while ``monkeypatch`` lasts."""
    for (module, table), entry in zip(TABLES, content, strict=True):
        monkeypatch.setattr(module, table, dict(entry))


def registered(monkeypatch: pytest.MonkeyPatch) -> Family:
    """The family, registered for the time of a test."""
    use(monkeypatch, entries())
    return register_family(SquaredChordFamily())
