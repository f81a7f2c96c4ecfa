import json
import math
from dataclasses import replace
from itertools import product

import pytest
import torch

from powerspherical_paper import properties
from powerspherical_paper.report.page import read
from powerspherical_paper.results import Task

NAMES = ["E[X]", "var(X)", "mode", "H(T)", "H(X)", "KL(PS‖U)", "KL(PS‖vMF)"]


def made(out, **options):
    """The outcome and the rows of a run at two dimensions and two concentrations."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(properties, "DIMS", (2, 5))
        patch.setattr(properties, "CONCENTRATIONS", (0.5, 50.0))
        outcome = properties.run(Task("properties", out, seed=2, quick=True, **options))
    (path,) = outcome.files
    return outcome, json.loads(path.read_text(encoding="utf-8"))["results"]


def test_all_agree(tmp_path):
    seen = []
    outcome, results = made(tmp_path, progress=seen.append)
    assert [row["name"] for row in results["rows"]] == NAMES * 4
    at = {(row["dim"], row["concentration"]) for row in results["rows"]}
    assert at == set(product((2, 5), (0.5, 50.0)))
    assert outcome.passed
    assert results["passed"]
    for row in results["rows"]:
        assert row["error"] <= properties.TOLERANCE
        assert row["z"] <= properties.LIMIT
    assert seen == [0.25, 0.5, 0.75, 1.0]
    assert read(tmp_path / "properties.json").finding.text.startswith("28 of 28 comparisons agree")


@pytest.mark.parametrize("change", [{"error": 2e-8}, {"error": math.nan}, {"z": 5.6}, {"z": math.nan}])
def test_a_row_can_fail(change):
    row = properties.Row("H(X)", 3, 1.0, error=1e-9, z=1.0)
    assert row.passed
    assert not replace(row, **change).passed


@pytest.mark.parametrize(("shift", "sampling"), [(1e-6, True), (0.5, False), (math.nan, False)])
def test_a_wrong_formula_is_seen(shift, sampling, tmp_path, monkeypatch):
    """An entropy off by 1e-6 fails against quadrature, and one off by 0.5 or NaN against Monte Carlo too."""
    right = properties.PowerSpherical.entropy
    monkeypatch.setattr(properties.PowerSpherical, "entropy", lambda self: right(self) + shift)
    outcome, results = made(tmp_path)
    assert not outcome.passed
    for row in results["rows"]:
        assert row["passed"] or row["name"] in ("H(X)", "KL(PS‖U)", "KL(PS‖vMF)")
        if row["name"] == "H(X)":
            assert float(row["error"]) == pytest.approx(shift, rel=0.9, nan_ok=True)
            assert (float(row["z"]) <= properties.LIMIT) is sampling


def test_estimates():
    torch.manual_seed(0)
    x = torch.randn(500, 3, dtype=torch.float64)
    direct = properties.Estimate.of(x[:, :, None] * x[:, None, :])
    products = properties.Estimate.of_products(x)
    torch.testing.assert_close(products.mean, direct.mean)
    torch.testing.assert_close(products.standard_error, direct.standard_error, rtol=2e-3, atol=0)
