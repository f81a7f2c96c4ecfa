"""First and second derivatives of the special functions against finite differences."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from powerspherical import special
from powerspherical.families import SPHERICAL_CAUCHY

KAPPA = [0.01, 0.7, 6.0, 55.0]  # on both sides of the branches of the functions

dims = pytest.mark.parametrize("dim", [2, 3, 10, 50])

TWICE = {
    "log_gamma_ratio": special.log_gamma_ratio,
    "mean_log1p": special.mean_log1p,
    "digamma_difference": special.digamma_difference,
    "log_hyp0f1": special.log_hyp0f1,
    "bessel_ratio_complement": special.bessel_ratio_complement,
    "log_bessel_i": lambda kappa, dim: special.log_bessel_i(dim / 2 - 1, kappa),
    "mean_log_boost": special.mean_log_boost,
    "cauchy_relative_entropy": special.cauchy_relative_entropy,
    "cauchy_mean_cosine": special.cauchy_mean_cosine,
    "cauchy_mean_cosine_complement": special.cauchy_mean_cosine_complement,
    "cauchy_variance_cosine": special.cauchy_variance_cosine,
    "cauchy_mean_log_loss": SPHERICAL_CAUCHY.mean_log_loss,
}


def double(values: list[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64, requires_grad=True)


def check_twice(function: Callable[[Tensor], Tensor], x: Tensor) -> None:
    """Check first and second derivatives by central differences, which have an error of about 1e-9."""
    assert gradcheck(function, x, rtol=1e-6, atol=1e-8)
    assert gradgradcheck(function, x, rtol=1e-6, atol=1e-8)


@dims
@pytest.mark.parametrize("name", TWICE)
def test_functions_of_kappa(name: str, dim: int) -> None:
    check_twice(lambda kappa: TWICE[name](kappa, dim), double(KAPPA))


@dims
@pytest.mark.parametrize("variance", [special.trigamma_difference, special.bessel_ratio_slope])
def test_variances_are_differentiable_once(variance: Callable[[Tensor, int], Tensor], dim: int) -> None:
    assert gradcheck(lambda kappa: variance(kappa, dim), double(KAPPA), rtol=1e-6, atol=1e-8)


@dims
def test_bessel_ratio_inverse(dim: int) -> None:
    check_twice(lambda ratio: special.bessel_ratio_inverse(ratio, dim), double([0.01, 0.3, 0.6, 0.9]))
