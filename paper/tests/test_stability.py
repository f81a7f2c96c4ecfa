import copy
import json

import pytest
import torch

from powerspherical_paper import stability
from powerspherical_paper.maps import Grid
from powerspherical_paper.report.page import read
from powerspherical_paper.results import Task
from powerspherical_paper.stability import Health

NUMBERS = (1, 30, 1000, 100_000)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A quick run at few numbers: 1, 3, 10, …, 1000."""
    out, seen, few = tmp_path_factory.mktemp("stability"), [], stability.numbers_to(1000, (1, 3))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stability, "numbers_to", lambda *_: few)
        outcome = stability.run(Task("stability", out, seed=1, quick=True, progress=seen.append))
    assert {path.name for path in out.iterdir()} == set(stability.FILES)
    assert sorted(outcome.files) == sorted(out.iterdir())
    assert seen == sorted(seen)
    assert seen[-1] == 1
    assert read(out / "stability.json").finding.notes == []
    return outcome, json.loads((out / "stability.json").read_text(encoding="utf-8"))


@pytest.mark.slow
def test_ours_are_sound_and_the_published_ones_are_not(made):
    outcome, document = made
    results = document["results"]
    assert outcome.passed
    assert results["passed"]
    for name in stability.OURS:
        assert results["samples"][name]["cells"] == 49
        assert results["samples"][name]["bad"] == results["samples"][name]["off"] == 0
    assert [1000, 30] in results["samples"]["expanded_vmf"]["off_cells"]
    forms = results["closed_forms"]
    assert len(forms) == 16
    assert forms["ps/kl/published_float32"]["worst"] > 1
    assert forms["ps/kl/published_float64"]["worst"] > 1e-9
    assert forms["vmf/kl/published_float64"]["not_finite"] > 100
    for key in ("ps/kl", "ps/log_density", "vmf/kl", "vmf/log_density"):
        for method, most in (("ours_float32", 1e-6), ("ours_float64", 1e-14)):
            assert forms[f"{key}/{method}"]["not_finite"] == 0
            assert forms[f"{key}/{method}"]["worst"] < most
    assert "mpmath" in document["configuration"]["reference"]


def test_the_known_failures_are_found():
    torch.manual_seed(0)
    assert health("expanded_vmf", 2, [1.0, 9e5]) == [Health.FINE, Health.GRADIENT]
    assert health("expanded_vmf", 10_000, [5.0, 30.0]) == [Health.FINE, Health.OFF]
    assert health("published_vmf", 3, [1.0, 1e5]) == [Health.FINE, Health.SAMPLE]
    for name in stability.OURS:
        for dim in (2, 3, 10_000):
            assert health(name, dim, NUMBERS) == [Health.FINE] * len(NUMBERS)


def health(name, dim, concentrations):
    _, family, method = stability.METHODS[name]
    return stability.examine(method, family, dim, concentrations)


@pytest.mark.parametrize(
    ("spoil", "expected"),
    [
        (lambda x, k: x, Health.FINE),
        (lambda x, k: -x, Health.OFF),
        (lambda x, k: x + 0 * torch.sqrt(k - k).unsqueeze(-1), Health.GRADIENT),
        (lambda x, k: x / torch.zeros_like(x), Health.SAMPLE),
    ],
)
def test_every_kind_of_failure_is_seen(spoil, expected):
    torch.manual_seed(0)
    _, family, method = stability.METHODS["our_ps"]
    judged = stability.examine(lambda loc, k: spoil(method(loc, k), k), family, 5, [100.0, 1000.0])
    assert judged == [expected] * 2


@pytest.mark.slow
def test_the_check_can_fail(made):
    results = made[1]["results"]
    assert stability.passes(results)
    for where, change in (
        (("samples", "our_vmf"), {"bad": 1}),
        (("samples", "our_ps"), {"off": 1}),
        (("closed_forms", "ps/kl/ours_float32"), {"worst": 1e-3}),
        (("closed_forms", "ps/kl/ours_float64"), {"worst": 1e-7}),
        (("closed_forms", "vmf/log_density/ours_float32"), {"not_finite": 1}),
    ):
        spoiled = copy.deepcopy(results)
        spoiled[where[0]][where[1]].update(change)
        assert not stability.passes(spoiled)


def test_cells_are_split_without_a_change(monkeypatch):
    monkeypatch.setattr(stability, "ELEMENTS", 100)
    assert health("our_ps", 50, NUMBERS) == [Health.FINE] * len(NUMBERS)


def test_the_paper_s_grid():
    numbers = stability.numbers_to(900_000, range(1, 10))
    assert len(numbers) == 54
    assert numbers[-1] == 900_000
    assert Grid.of(numbers, numbers) == (numbers[1:], numbers)
