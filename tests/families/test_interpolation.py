"""Quantiles and slopes of many points with one concentration are interpolated."""

from __future__ import annotations

import pytest
import torch

from helpers.examples import family_objects
from powerspherical.families import Family


@family_objects
@pytest.mark.parametrize("dim", [2, 4, 64])
@pytest.mark.parametrize("kappa", [0.0, 5.0, 300.0])
def test_equals_single_points(family: Family, dim: int, kappa: float) -> None:
    normal = torch.linspace(-5, 5, 5000, dtype=torch.float64)
    u, complement = torch.special.ndtr(normal), torch.special.ndtr(-normal)
    kappas = torch.full_like(u, kappa)
    ends = family.quantile(u, complement, kappas, dim)
    slope = family.implicit_slope(*ends, kappas, dim).expand_as(u)
    few = slice(None, None, 100)  # too few points for an interpolation
    expected = family.quantile(u[few], complement[few], kappas[few], dim)
    torch.testing.assert_close(tuple(end[few] for end in ends), expected, rtol=1e-10, atol=0)
    expected_slope = family.implicit_slope(*(end[few] for end in ends), kappas[few], dim)
    torch.testing.assert_close(slope[few], expected_slope.expand_as(slope[few]), rtol=1e-10, atol=1e-16)
