import json
import math
from dataclasses import replace
from itertools import product

import pytest
import torch

from powerspherical_paper import properties

DIMS, CONCENTRATIONS = (2, 5), (0.5, 50.0)
NAMES = ["E[X]", "var(X)", "mode", "H(T)", "H(X)", "KL(PS‖U)", "KL(PS‖vMF)"]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    out = tmp_path_factory.mktemp("properties")
    seen = []
    outcome = properties.run(
        out, seed=2, dims=DIMS, concentrations=CONCENTRATIONS, samples=5_000, progress=seen.append
    )
    return out, outcome, seen


def test_all_agree(made):
    out, outcome, seen = made
    document = json.loads((out / "properties.json").read_text(encoding="utf-8"))
    rows = document["results"]["rows"]
    assert [row["name"] for row in rows] == NAMES * 4
    assert {(row["dim"], row["concentration"]) for row in rows} == set(product(DIMS, CONCENTRATIONS))
    assert outcome.passed
    assert outcome.files == [*out.iterdir()]
    assert document["results"]["passed"]
    for row in rows:
        assert row["error"] <= properties.TOLERANCE
        assert row["z"] <= properties.LIMIT
        assert row["formula"] == pytest.approx(row["quadrature"], rel=1e-8, abs=1e-8)
    assert seen == [0.25, 0.5, 0.75, 1.0]


def test_known_values(made):
    """Two values computed by hand: the mean, and the entropy on the circle for κ = 0.5."""
    out, _, _ = made
    rows = json.loads((out / "properties.json").read_text(encoding="utf-8"))["results"]["rows"]
    at = {(row["name"], row["dim"], row["concentration"]): row for row in rows}
    assert at["E[X]", 5, 50.0]["formula"] == pytest.approx(50 / 54, rel=1e-12)
    # d = 2, κ = 1/2: α = 1, β = 1/2, N = 2^1.5 √π Γ(1)/Γ(1.5) = 4√2, ψ(1) - ψ(1.5) = 2 log 2 - 2.
    by_hand = math.log(4 * math.sqrt(2)) - 0.5 * (math.log(2) + 2 * math.log(2) - 2)
    assert at["H(X)", 2, 0.5]["formula"] == pytest.approx(by_hand, rel=1e-12)


@pytest.mark.parametrize("change", [{"error": 2e-8}, {"error": math.nan}, {"z": 5.6}, {"z": math.nan}])
def test_a_row_can_fail(change):
    row = properties.Row("H(X)", 3, 1.0, 1.0, 1.0, 1.0, standard_error=0.1, error=1e-9, z=1.0)
    assert row.passed
    assert not replace(row, **change).passed


def test_a_wrong_formula_is_seen(tmp_path, monkeypatch):
    """An entropy off by 1e-6 fails against quadrature, and one off by 0.5 against Monte Carlo too."""
    right = properties.PowerSpherical.entropy
    for shift, sampling in ((1e-6, True), (0.5, False)):
        monkeypatch.setattr(properties.PowerSpherical, "entropy", lambda self, by=shift: right(self) + by)
        outcome = properties.run(tmp_path, dims=[3], concentrations=[5.0], samples=2_000)
        assert not outcome.passed
        rows = json.loads((tmp_path / "properties.json").read_text(encoding="utf-8"))["results"]["rows"]
        entropy = next(row for row in rows if row["name"] == "H(X)")
        assert entropy["error"] == pytest.approx(shift, rel=0.7)
        assert (entropy["z"] <= properties.LIMIT) is sampling


def test_estimates():
    torch.manual_seed(0)
    x = torch.randn(500, 3, dtype=torch.float64)
    direct = properties.Estimate.of(x[:, :, None] * x[:, None, :])
    products = properties.Estimate.of_products(x)
    torch.testing.assert_close(products.mean, direct.mean)
    torch.testing.assert_close(products.standard_error, direct.standard_error, rtol=2e-3, atol=0)
