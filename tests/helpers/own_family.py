"""A family as a user might define it outside the package, by its log-density and a name."""

from __future__ import annotations

from typing import Any

import pytest
from torch import Tensor

from powerspherical.distributions import rotational
from powerspherical.families import Family, register_family, registry
from powerspherical.mixture import _mixture
from powerspherical.quadrature.cosine import Cosine


class SquaredChordFamily(Family):
    """Density ∝ exp(-κ(1-t)²/4)."""

    name = "squared_chord"
    title = "squared chord"

    def log_kernel(self, t: Cosine, kappa: Tensor, dim: int) -> Tensor:
        return -kappa * t.minus.square() / 4


#: The registries of families, distributions and mixtures.
TABLES = ((registry, "_FAMILIES"), (rotational, "_DISTRIBUTIONS"), (_mixture, "_MIXTURES"))


def entries() -> list[dict[str, Any]]:
    """Return copies of all registries."""
    return [dict(getattr(module, table)) for module, table in TABLES]


def use(monkeypatch: pytest.MonkeyPatch, content: list[dict[str, Any]]) -> None:
    """Replace the registries by copies of ``content`` until ``monkeypatch`` is undone."""
    for (module, table), entry in zip(TABLES, content, strict=True):
        monkeypatch.setattr(module, table, dict(entry))


def registered(monkeypatch: pytest.MonkeyPatch, family: Family | None = None) -> Family:
    """Return a family, by default the one above, registered for the duration of a test."""
    use(monkeypatch, entries())
    return register_family(family or SquaredChordFamily())
