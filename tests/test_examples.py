"""The examples run, say what is right, and the family that one of them makes passes the suite for families."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
import torch

from helpers import own_family
from powerspherical import SphericalCauchy
from powerspherical.testing import FamilyConformance

PATH = Path(__file__).parents[1] / "examples" / "custom_family.py"


def _load():
    spec = importlib.util.spec_from_file_location("custom_family", PATH)
    module = importlib.util.module_from_spec(spec)
    sys.modules["custom_family"] = module  # pickle looks classes up there
    spec.loader.exec_module(module)
    return module


# Importing the example registers its family: for the tests here, and no others.
with pytest.MonkeyPatch.context() as patch:
    own_family.use(patch, own_family.entries())
    custom_family = _load()
    REGISTERED = own_family.entries()


@pytest.fixture(autouse=True)
def _registered(monkeypatch):
    own_family.use(monkeypatch, REGISTERED)


class TestPoissonKernel(FamilyConformance):
    distribution = custom_family.PoissonKernel

    def test_the_mean_length_is_rho(self, dim):
        p = self.make(dim)
        self.assert_close(p.mean.norm(dim=-1), p.rho)
        self.assert_close(self.family.log_partition(self.kappa, dim), torch.zeros_like(self.kappa))

    def test_is_the_spherical_cauchy_distribution_on_the_circle(self):
        p = self.make(2)
        q = SphericalCauchy(p.loc, p.concentration)
        x = q.sample((100,))
        self.assert_close(p.log_prob(x), q.log_prob(x))
        self.assert_close(p.entropy(), q.entropy())
        self.assert_close(p.cap_angle(0.9), q.cap_angle(0.9))


def test_the_example_is_short():
    assert len(PATH.read_text(encoding="utf-8").splitlines()) <= 100


def test_the_example_says_what_is_right(capsys):
    custom_family.main()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("ρ = 0.7500, ‖E x‖ = 0.7500, mean of 20,000 draws 0.75")
    fitted = float(lines[4].split()[3])
    assert abs(fitted - 6) < 0.3
    for line in lines[5:8]:  # divergences beside their Monte Carlo estimates
        exact, sampled = (float(part.split()[-1]) for part in line.rsplit(", by Monte Carlo", 1))
        assert abs(exact - sampled) < 0.05
    assert len(lines) == 10
