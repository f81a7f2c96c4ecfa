import json

import pytest
import torch

from powerspherical_paper import efficiency
from powerspherical_paper.results import name_on


def made(out):
    outcome = efficiency.run(out, seed=3, concentrations=[1, 100], trials=2, draws=2)
    return outcome, json.loads((out / "efficiency.json").read_text(encoding="utf-8"))


def test_run(no_reference, tmp_path):
    outcome, document = made(tmp_path)
    names = ["efficiency.json", "efficiency.png"]
    assert sorted(path.name for path in outcome.files) == names == sorted(x.name for x in tmp_path.iterdir())
    assert outcome.passed
    times = document["results"]["milliseconds"]
    assert list(times) == ["published_vmf", "our_vmf", "published_ps", "our_ps"]
    for rows in times.values():
        assert len(rows) == 2
        assert all(row["mean"] > 0 and row["variance"] >= 0 for row in rows)
    for ratio in document["results"]["vmf_over_ps"].values():
        assert 0 < ratio["min"] <= ratio["max"]
    assert set(document["results"]["claims"]) == {"published", "ours"}
    assert document["configuration"]["reference"] is None


def test_with_the_reference(reference, tmp_path):
    _, document = made(tmp_path)
    assert "reference_ps" in document["results"]["milliseconds"]


def test_every_method_draws_a_batch():
    loc = torch.nn.functional.normalize(torch.randn(efficiency.BATCH, efficiency.DIM), dim=-1)
    for _, draw in efficiency.samplers(loc, torch.full((efficiency.BATCH,), 10.0)):
        assert draw().shape == (efficiency.BATCH, efficiency.DIM)


def test_ratios():
    times = {"slow": [[4.0, 6.0, 100.0], [3.0, 3.0, 3.0]], "fast": [[2.0, 2.0, 2.0], [3.0, 3.0, 3.0]]}
    assert efficiency.ratios(times, "slow", "fast") == {"min": 1.0, "max": 3.0}
    assert efficiency.spread(times, "fast") == 1.5


def test_claims():
    """All claims hold for the published methods. For ours the gain is too small and PS is not constant."""
    times = {
        "published_vmf": [[6.0], [19.0]],
        "published_ps": [[1.0], [1.0]],
        "our_vmf": [[2.0], [2.0]],
        "our_ps": [[1.0], [1.6]],
    }
    answers = efficiency.verdicts(times)
    assert answers["published"]["vmf_over_ps"] == {"min": 6.0, "max": 19.0}
    assert list(answers["published"]["verdict"].values()) == [True, True, True, False]
    assert answers["ours"]["spread_over_concentrations"] == {"vmf": 1.0, "ps": 1.6}
    assert list(answers["ours"]["verdict"].values()) == [False, False, False, True]


def test_claims_that_noise_leaves_open():
    """The medians are as above: with little noise the verdicts stay the same, with much noise they are open."""
    medians = {
        "published_vmf": [6.5, 19.0],
        "published_ps": [1.0, 1.0],
        "our_vmf": [2.0, 2.0],
        "our_ps": [1.0, 1.6],
    }

    def verdicts(spread):
        times = {
            name: [[median * (1 + spread * sign) for sign in (-1, 0, 1)] for median in each]
            for name, each in medians.items()
        }
        return [list(one["verdict"].values()) for one in efficiency.verdicts(times).values()]

    assert verdicts(0.01) == [[True, True, True, False], [False, False, False, True]]
    assert verdicts(0.4) == [[None, None, True, False], [False, False, None, True]]


def test_open_claims_are_written(monkeypatch, tmp_path):
    times = [{name: [1.0, 40.0, 1.0, 40.0] for name in efficiency.LOOKS if name != "reference_ps"}] * 2
    monkeypatch.setattr(efficiency, "take_turns", lambda *_: times)
    assert None in efficiency.judged(made(tmp_path)[1]["results"]["claims"])


def test_files_say_their_device():
    names = [name_on(torch.device(device), "efficiency") for device in ("cpu", "cuda:1")]
    assert names == ["efficiency", "efficiency_cuda"]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_on_cuda(tmp_path):
    outcome = efficiency.run(tmp_path, device="cuda", concentrations=[10], trials=1, draws=2)
    names = ["efficiency_cuda.json", "efficiency_cuda.png", "efficiency_cuda.svg"]
    assert sorted(path.name for path in outcome.files) == names
