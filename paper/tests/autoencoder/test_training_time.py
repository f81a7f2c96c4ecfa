"""The tests check the arithmetic and the format of the timings, never the times themselves."""

import json
import time

import pytest
import torch

from powerspherical_paper.autoencoder import training_time

FACTORS = {
    "published_ps_over_our_ps",
    "published_vmf_over_our_ps",
    "our_vmf_over_our_ps",
    "published_vmf_over_published_ps",
}


@pytest.mark.slow
def test_run(no_reference, tmp_path):
    fractions = []
    outcome = training_time.run(tmp_path, seed=3, quick=True, progress=fractions.append)
    assert outcome.files == [tmp_path / "training_time.json"] == list(tmp_path.iterdir())
    assert outcome.passed
    assert fractions == sorted(fractions)
    assert fractions[-1] == 1.0
    document = json.loads(outcome.files[0].read_text(encoding="utf-8"))
    assert document["command"] == "powerspherical reproduce vae --seed 3 --quick"
    results = document["results"]
    (times,) = results["milliseconds_per_step"].values()
    assert list(times) == ["our_ps", "published_ps", "our_vmf", "published_vmf", "gaussian"]
    for one in times.values():
        low, high = one["quartiles"]
        assert 0 < low <= one["median"] <= high
    assert set(results["factors"]) == FACTORS
    assert results["factors"] == results["factors_by_dim"]["10"]  # the median over one d
    assert all(factor > 0 for factor in results["factors"].values())


def test_with_the_reference(reference, monkeypatch, tmp_path):
    monkeypatch.setattr(training_time, "training", lambda *_: lambda: time.sleep(1e-4))
    outcome = training_time.run(tmp_path, quick=True)
    results = json.loads(outcome.files[0].read_text(encoding="utf-8"))["results"]
    assert set(results["factors"]) == {*FACTORS, "reference_ps_over_our_ps"}


def test_factors():
    """A block that is slow for all methods does not change the ratios."""
    times = {
        "our_ps": [1.0, 90.0, 1.0],
        "published_ps": [1.5, 135.0, 7.0],
        "our_vmf": [2.0, 180.0, 2.0],
        "published_vmf": [3.0, 270.0, 3.0],
    }
    assert training_time.factors(times) == {
        "published_ps_over_our_ps": 1.5,
        "published_vmf_over_our_ps": 3.0,
        "our_vmf_over_our_ps": 2.0,
        "published_vmf_over_published_ps": 2.0,
    }


def test_noise_leaves_claims_open(no_reference, monkeypatch, tmp_path):
    for times, open_ in (([1.0, 20.0, 1.0, 20.0], True), ([1.0, 1.0, 1.0, 1.0], False)):
        measured = [dict.fromkeys(training_time.POSTERIORS, times)]
        monkeypatch.setattr(training_time, "take_turns", lambda *_, measured=measured: measured)
        monkeypatch.setattr(training_time, "training", lambda *_: lambda: None)
        (path,) = training_time.run(tmp_path, quick=True).files
        results = json.loads(path.read_text(encoding="utf-8"))["results"]
        assert (None in training_time.verdicts(results, blocks=len(times))) == open_


@pytest.mark.parametrize("posterior", training_time.POSTERIORS.values())
def test_a_step_moves_every_parameter(posterior, reference, monkeypatch):
    built = []

    def build(*args):
        built.append(models_build(*args))
        return built[-1]

    models_build = training_time.build
    monkeypatch.setattr(training_time, "build", build)
    torch.manual_seed(0)
    step = training_time.training(posterior, 5, list(training_time.data(2, 16, torch.device("cpu"))))
    before = [parameter.detach().clone() for parameter in built[0].parameters()]
    step()
    for old, new in zip(before, built[0].parameters(), strict=True):
        assert (old != new).any()


def test_data_are_bits_with_structure():
    torch.manual_seed(0)
    (bits,) = training_time.data(1, 64, torch.device("cpu"))
    assert bits.shape == (64, training_time.PIXELS)
    assert set(bits.unique().tolist()) == {0.0, 1.0}
    # Were the bits independent, the overlaps of two data would have a variance of about PIXELS/16.
    overlaps = (bits @ bits.T)[~torch.eye(64, dtype=torch.bool)]
    assert overlaps.var() > 4 * training_time.PIXELS / 16


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_on_cuda(tmp_path):
    outcome = training_time.run(tmp_path, quick=True, device="cuda")
    assert [path.name for path in outcome.files] == ["training_time_cuda.json"]
