"""Quantiles and slopes of many points with one concentration are interpolated."""

from __future__ import annotations

import pytest
import torch

from helpers.examples import family_objects
from powerspherical.families import Family
from powerspherical.quadrature import law
from powerspherical.quadrature.cosine import Cosine


@family_objects
@pytest.mark.parametrize("dim", [2, 4, 64])
@pytest.mark.parametrize("kappa", [0.0, 5.0, 300.0])
def test_equals_single_points(family: Family, dim: int, kappa: float) -> None:
    normal = torch.linspace(-5, 5, 5000, dtype=torch.float64)
    u, complement = torch.special.ndtr(normal), torch.special.ndtr(-normal)
    kappas = torch.full_like(u, kappa)
    t = family.quantile(u, complement, kappas, dim)
    slope = law.slope(family, t, kappas, dim)
    few = slice(None, None, 100)  # too few points for an interpolation
    expected = family.quantile(u[few], complement[few], kappas[few], dim)
    some = Cosine(*(end[few] for end in t))
    torch.testing.assert_close(some, expected, rtol=1e-10, atol=0)
    torch.testing.assert_close(slope[few], law.slope(family, some, kappas[few], dim), rtol=1e-9, atol=1e-16)
