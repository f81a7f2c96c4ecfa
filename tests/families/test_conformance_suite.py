"""Our families pass the public conformance suite, and each test of the suite can fail."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.autograd.gradcheck import GradcheckError

from helpers import own_family
from powerspherical import (
    ConvergenceWarning,
    PowerSpherical,
    RotationallySymmetric,
    SphericalCauchy,
    VonMisesFisher,
)
from powerspherical.families.spherical_cauchy import SphericalCauchyFamily
from powerspherical.quadrature.cosine import Cosine
from powerspherical.testing import FamilyConformance


class TestPowerSpherical(FamilyConformance):
    distribution = PowerSpherical


class TestVonMisesFisher(FamilyConformance):
    distribution = VonMisesFisher


class TestSphericalCauchy(FamilyConformance):
    distribution = SphericalCauchy


def changed(method: str, change: Callable[..., Any]) -> dict[str, Any]:
    """Return a method of the spherical Cauchy family with its result changed."""
    right = getattr(SphericalCauchyFamily, method)
    return {method: lambda *args, **options: change(right(*args, **options))}


def draw_too_close(family: SphericalCauchyFamily, length: Any, kappa: Any, *rest: Any) -> Any:
    return SphericalCauchyFamily.draw_cosine(family, length, 1.2 * kappa, *rest)


#: For each test of the suite, a mistake that it must find in an otherwise correct family.
MISTAKES = {
    "test_the_density_integrates_to_one": changed("offset", lambda x: x + 1e-6),
    "test_moments": changed("mean_loss", lambda x: 1.001 * x),
    "test_closed_forms_agree_with_quadrature": changed("offset", lambda x: x + 1e-6),
    "test_divergences_vanish_only_from_itself": changed("divergence", lambda x: x - 0.1),
    "test_divergences_are_mean_log_ratios": changed("relative_entropy", lambda x: 1.1 * x),
    "test_quantiles_invert_tails": changed("quantile", lambda x: Cosine(0.99 * x[0], 2 - 0.99 * x[0])),
    "test_draws_are_unit_vectors_with_the_law_of_the_marginal": {"draw_cosine": draw_too_close},
    "test_derivatives_of_draws": changed("slope", lambda x: 1.2 * x),
    "test_implicit_slopes_are_derivatives_of_quantiles": changed("slope", lambda x: 1.001 * x),
    "test_inverses": changed("from_mean_cosine", lambda x: 1.001 * x),
    "test_fits_recover_parameters": changed("score", lambda x: 1.2 * x + 1),
    "test_concentration_zero_is_the_uniform": changed("log_kernel", lambda x: x + 1e-6),
    "test_derivatives_in_both_modes": changed("mean_cosine", torch.Tensor.detach),
    "test_nan_concentration_gives_nan": changed("relative_entropy", torch.nan_to_num),
    "test_single_precision": changed("relative_entropy", torch.Tensor.double),
    "test_the_registry_knows_the_family": {"name": "a name with spaces"},
    "test_pickles": {"__reduce__": lambda family: (SphericalCauchyFamily, ())},
}


def test_there_is_a_mistake_for_each_test():
    assert set(MISTAKES) == {name for name in dir(FamilyConformance) if name.startswith("test_")}


@pytest.mark.parametrize("test", MISTAKES)
def test_mistakes_are_found(test, monkeypatch):
    own_family.use(monkeypatch, own_family.entries())
    mistaken = type("Mistaken", (SphericalCauchyFamily,), {"name": "mistaken", **MISTAKES[test]})
    distribution = type("MistakenDistribution", (RotationallySymmetric,), {"family": mistaken()})
    suite = type("Suite", (FamilyConformance,), {"distribution": distribution})()
    check, arguments = getattr(suite, test), {"dim": 3, "closed_form": "offset"}
    wanted = {name: arguments[name] for name in inspect.signature(check).parameters}
    with pytest.raises((AssertionError, GradcheckError, ConvergenceWarning)):
        check(**wanted)


QUADRATURE = """
import torch
from powerspherical.families import POWER_SPHERICAL
from powerspherical.testing.conformance import plain_twin

plain_twin(POWER_SPHERICAL).relative_entropy(torch.ones(1), 3)
"""
SUITE = """
from powerspherical import PowerSpherical
from powerspherical.testing import FamilyConformance

class TestStrict(FamilyConformance):
    distribution = PowerSpherical
    dims = (3,)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "options"),
    [(QUADRATURE, []), (SUITE, ["-m", "pytest", "-p", "no:cacheprovider", "-k", "both_modes"])],
    ids=["quadrature", "suite"],
)
def test_deprecated_parts_of_torch_are_no_error(tmp_path, code, options):
    """In a new process, because torch warns once."""
    (tmp_path / "test_strict.py").write_text(code, encoding="utf-8")
    command = [sys.executable, "-W", "error::DeprecationWarning", *options, "test_strict.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
