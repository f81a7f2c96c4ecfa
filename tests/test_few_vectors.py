"""The benchmark of fits to few vectors, its published results, and the page that shows them."""

import importlib
import json
import sys
from pathlib import Path

import pytest
import torch

from powerspherical import VonMisesFisher

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "benchmarks"))  # as Python does for the scripts there
few_vectors = importlib.import_module("few_vectors")


@pytest.fixture
def published():
    return json.loads((ROOT / "results" / "few_vectors.json").read_text(encoding="utf-8"))


def test_the_bias_is_measured():
    row = few_vectors.measured(VonMisesFisher, 64, 5, 0.6, 40)
    assert (row["family"], row["dim"], row["number"]) == ("von Mises–Fisher", 64, 5)
    truth = VonMisesFisher.from_mean_length(torch.eye(1, 64, dtype=torch.float64)[0], 0.6)
    assert row["concentration"] == pytest.approx(truth.concentration.item())
    assert row["bias"] > 0.3
    assert abs(row["bias_corrected"]) < 5 * row["standard_error"] + 0.02
    assert row["standard_error"] == pytest.approx(row["spread"] / 40**0.5)


def test_a_line_has_both_biases_for_each_cosine():
    common = {"family": "F", "dim": 3, "number": 5, "bias": 1.5, "bias_corrected": -0.012, "scipy": None}
    rows = [common | {"mean_cosine": cosine} for cosine in (0.3, 0.6)]
    assert list(few_vectors.lines(rows)) == [["F", "3", "5", *["+150.0 %, -1.2 %"] * 2, "–"]]
    (line,) = few_vectors.lines([row | {"scipy": 1e-8} for row in rows])
    assert line[-1] == "1e-08"


def test_it_refuses_a_gpu(tmp_path):
    with pytest.raises(SystemExit):
        few_vectors.main(["--device", "cuda", "--out", str(tmp_path)])


def test_the_goal_is_met(published):
    rows = published["results"]
    assert {row["dim"] for row in rows} == set(few_vectors.SAMPLES)
    assert published["worst"] == max(abs(row["bias_corrected"]) for row in rows) < few_vectors.WANTED
    assert all(row["bias"] > few_vectors.WANTED for row in rows)
    assert all(row["scipy"] == 1e-8 for row in rows if row["family"] == "von Mises–Fisher")


def test_the_page_shows_the_published_results(published):
    text = " ".join((ROOT / "docs" / "few_vectors.md").read_text(encoding="utf-8").split())
    rows = published["results"]
    for line in few_vectors.lines(rows):
        assert f"| {' | '.join(line)} |" in text
    samples = list(dict.fromkeys(row["samples"] for row in rows))
    assert "over {}, {} and {} samples".format(*samples) in text
    assert f"the bias is at most {published['worst']:.1%}".replace("%", " %") in text
    error = max(row["standard_error"] for row in rows)
    assert f"at most {error:.1%}.".replace("%", " %") in text
    spreads = [
        f"{row['spread']:.0%}".replace("%", " %")
        for row in rows
        if (row["family"], row["dim"], row["number"]) == ("von Mises–Fisher", 384, 5)
    ]
    assert f"κ is {spreads[0]}, {spreads[1]} and {spreads[2]} of κ" in text
