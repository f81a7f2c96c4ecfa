"""The tests check the arithmetic and the format of the timings, never the times themselves."""

import pytest
import torch

from powerspherical_paper.autoencoder import training_time
from powerspherical_paper.report.page import read
from powerspherical_paper.results import Task

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")


@pytest.mark.slow
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=needs_cuda)])
def test_run(device, no_reference, tmp_path):
    fractions = []
    task = Task("vae", tmp_path, 3, True, device, {"data": "digits"}, fractions.append)
    (path,) = training_time.run(task).files
    assert path == task.path("training_time.json")
    assert fractions == sorted(fractions)
    assert fractions[-1] == 1.0
    result = read(path)
    assert result.made["command"] == task.command
    times, factors = (table.rows for table in reversed(result.finding.tables))
    assert len(times[0]) == 6
    assert len(factors) == 4


@pytest.mark.parametrize("posterior", training_time.POSTERIORS.values())
def test_a_step_moves_every_parameter(posterior, reference, monkeypatch):
    built = []
    build = training_time.build
    monkeypatch.setattr(training_time, "build", lambda *given: built.append(build(*given)) or built[-1])
    torch.manual_seed(0)
    step = training_time.training(posterior, 5, list(training_time.data(2, 16, torch.device("cpu"))))
    before = [parameter.detach().clone() for parameter in built[0].parameters()]
    step()
    for old, new in zip(before, built[0].parameters(), strict=True):
        assert (old != new).any()


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


@pytest.mark.parametrize(("blocks", "open_"), [([1.0, 20.0, 1.0, 20.0], True), ([1.0] * 4, False)])
def test_noise_leaves_claims_open(blocks, open_):
    results = training_time.summarised({"10": dict.fromkeys(training_time.POSTERIORS, blocks)})
    assert set(results["factors"]) == {f"{slow}_over_{fast}" for slow, fast in training_time.FACTORS}
    assert (None in training_time.verdicts(results, blocks=len(blocks))) == open_


def test_data_are_bits_with_structure():
    torch.manual_seed(0)
    (bits,) = training_time.data(1, 64, torch.device("cpu"))
    assert bits.shape == (64, training_time.PIXELS)
    assert set(bits.unique().tolist()) == {0.0, 1.0}
    # Were the bits independent, the overlaps of two data would have a variance of about PIXELS/16.
    overlaps = (bits @ bits.T)[~torch.eye(64, dtype=torch.bool)]
    assert overlaps.var() > 4 * training_time.PIXELS / 16
