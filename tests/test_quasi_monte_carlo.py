"""The benchmark of quasi-Monte Carlo noise, its published results, and the page that shows them."""

import importlib
import json
import sys
from pathlib import Path

import pytest
import torch

from powerspherical import PowerSpherical

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "benchmarks"))  # as Python does for the scripts there
quasi_monte_carlo = importlib.import_module("quasi_monte_carlo")


@pytest.fixture
def published():
    return json.loads((ROOT / "results" / "quasi_monte_carlo.json").read_text(encoding="utf-8"))


def test_variances_are_those_of_averages():
    q = PowerSpherical(torch.eye(3, dtype=torch.float64)[0], 10.0)
    found = quasi_monte_carlo.variances(q, 64, lambda x: x[..., :1], 200)
    assert set(found) == set(quasi_monte_carlo.METHODS)
    expected = q.variance[0].item() / 64
    assert found["random"].item() == pytest.approx(expected, rel=0.4)
    assert found["Sobol"] < found["antithetic"] < found["random"]


def test_a_row_compares_with_random_noise():
    of = {"random": 6.0, "antithetic": 3.0, "Sobol": 0.5}
    row = quasi_monte_carlo.row("E f", PowerSpherical, 3, 64, of)
    assert row["factor"] == {"antithetic": 2.0, "Sobol": 12.0}
    assert list(quasi_monte_carlo.lines([row])) == [["E f", "Power Spherical", "3", "2.0", "12"]]


def test_the_gain(published):
    for row in published["results"]:
        assert row["factor"]["Sobol"] > row["draws"] ** 0.5
        assert row["factor"]["antithetic"] > 1.5


def test_the_page_shows_the_published_results(published):
    text = " ".join((ROOT / "docs" / "noise.md").read_text(encoding="utf-8").split())
    lines = list(quasi_monte_carlo.lines(published["results"]))
    for line in (quasi_monte_carlo.HEADINGS, *lines):
        assert f"| {' | '.join(line)} |" in text
    quantity, _, _, _, *sobol = lines[-1]
    assert quantity == "reconstruction"
    assert "reconstruction term by factors of {}, {} and {} at 64, 256 and 1024 draws".format(*sobol) in text
    assert f"averaged over {published['configuration']['images']} images" in text
    assert f"mean cosine of {published['configuration']['mean_cosine']} with" in text
