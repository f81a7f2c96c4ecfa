import json
import sys
from types import SimpleNamespace

import pytest
import torch

from powerspherical import PowerSpherical
from powerspherical.experiments import efficiency


@pytest.fixture
def reference(monkeypatch):
    """Stand in for the authors' package, installed or not."""
    monkeypatch.setitem(sys.modules, efficiency.REFERENCE, SimpleNamespace(PowerSpherical=PowerSpherical))


@pytest.fixture
def no_reference(monkeypatch):
    def missing(name):
        raise ModuleNotFoundError(name=name)

    monkeypatch.setattr(efficiency, "importlib", SimpleNamespace(import_module=missing))


def made(out):
    outcome = efficiency.run(out, seed=3, concentrations=[1, 100], trials=2, draws=2)
    return outcome, json.loads((out / "efficiency.json").read_text(encoding="utf-8"))


def test_run(no_reference, tmp_path):
    outcome, document = made(tmp_path)
    names = ["efficiency.json", "efficiency.png", "efficiency.svg"]
    assert sorted(path.name for path in outcome.files) == names == sorted(x.name for x in tmp_path.iterdir())
    assert outcome.passed
    times = document["results"]["milliseconds"]
    assert list(times) == ["published_vmf", "our_vmf", "published_ps", "our_ps"]
    for rows in times.values():
        assert len(rows) == 2
        assert all(row["mean"] > 0 and row["variance"] >= 0 for row in rows)
    for ratio in document["results"]["vmf_over_ps"].values():
        assert 0 < ratio["min"] <= ratio["max"]
    assert document["configuration"]["reference"] is None
    assert outcome.table.row_count == 2


def test_with_the_reference(reference, tmp_path):
    _, document = made(tmp_path)
    assert "reference_ps" in document["results"]["milliseconds"]


def test_every_method_draws_a_batch():
    loc = torch.nn.functional.normalize(torch.randn(efficiency.BATCH, efficiency.DIM), dim=-1)
    for _, draw in efficiency.samplers(loc, torch.full((efficiency.BATCH,), 10.0)):
        assert draw().shape == (efficiency.BATCH, efficiency.DIM)


def test_methods_take_turns():
    order = []
    methods = {name: lambda name=name: order.append(name) for name in "abc"}
    times = efficiency.measure(methods, 3, 1, torch.device("cpu"))
    assert "".join(order) == "cab" + "abc" + "bca" + "cab"
    assert {name: len(trials) for name, trials in times.items()} == {"a": 3, "b": 3, "c": 3}


def test_ratios():
    times = {"slow": [[4.0, 6.0, 100.0], [3.0, 3.0, 3.0]], "fast": [[2.0, 2.0, 2.0], [3.0, 3.0, 3.0]]}
    assert efficiency.ratios(times, "slow", "fast") == {"min": 1.0, "max": 3.0}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_on_cuda(tmp_path):
    outcome = efficiency.run(tmp_path, device="cuda", concentrations=[10], trials=1, draws=2)
    assert outcome.passed
