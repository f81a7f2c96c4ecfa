"""The arithmetic of timings, never the times themselves."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from powerspherical_paper import timing


def test_rounds():
    effort = timing.Effort(seconds=2.0, least=5, most=100)
    assert [effort.rounds(one) for one in (10.0, 0.3, 1e-6)] == [5, 7, 100]


def test_methods_take_turns_in_every_order():
    order, fractions = [], []
    groups = [
        {name: lambda name=name: order.append(name) or float(len(order)) for name in names}
        for names in ("abc", "xy")
    ]
    first, second = timing.take_turns(groups, 60, fractions.append)
    rounds = ["".join(order[start : start + 5]) for start in range(0, 300, 5)]
    assert {one[:3] for one in rounds} == {"abc", "acb", "bac", "bca", "cab", "cba"}
    assert {one[3:] for one in rounds} == {"xy", "yx"}
    for name, found in (first | second).items():
        assert found == [5 * turn + one.index(name) + 1 for turn, one in enumerate(rounds)]
    assert fractions == [turn / 60 for turn in range(1, 61)]


def test_a_slow_method_is_called_once_per_turn():
    calls = []

    def clock(call, count):
        for _ in range(count):
            call()
        return timing.TURN * {"fast": 0.5, "faster": 0.01, "slow": 2.0}[calls[-1]]

    methods = {name: lambda name=name: calls.append(name) for name in ("fast", "faster", "slow")}
    times = timing.measure(methods, timing.Effort(seconds=0, least=3, most=9), clock, calls=50)
    assert {name: len(found) for name, found in times.items()} == {"fast": 3, "faster": 3, "slow": 3}
    turns = timing.UNSEEN + 4  # before the rounds: single calls, and one round that does not count
    counts = [calls.count(name) for name in methods]
    assert counts == [timing.UNSEEN + 4 * 2, timing.UNSEEN + 4 * 50, turns]


def test_summary():
    assert timing.summary([5.0, 1.0, 2.0, 4.0, 3.0]) == {"median": 3.0, "quartiles": [2.0, 4.0]}
    assert timing.summary([5.0]) == {"median": 5.0, "quartiles": [5.0, 5.0]}


def test_ratios_are_taken_within_a_round():
    assert timing.ratio([3.0, 4.0, 30.0], [1.0, 2.0, 10.0]) == 3.0  # that of the medians is 2
    assert timing.ratio([2.0, 9.0], [2.0, 3.0]) == 2.0


def test_the_error_of_a_median():
    """Of many samples of normal numbers, and with an interval of two standard errors around a ratio."""
    samples = 10 + torch.randn(2000, 101, dtype=torch.float64)
    summaries = [timing.summary(sample) for sample in samples.tolist()]
    errors = torch.tensor([timing.relative_error(**one, count=101) for one in summaries])
    medians = torch.tensor([one["median"] for one in summaries])
    assert errors.mean().item() == pytest.approx(medians.std().item() / 10, rel=0.1)
    low, high = timing.interval(6.0, 0.03, 0.04)
    assert (low, high) == pytest.approx((6 / 1.1052, 6 * 1.1052), rel=1e-4)
    assert [timing.reaches(limit, low, high) for limit in (5.0, 6.0, 7.0)] == [True, None, False]


def test_importing_needs_the_standard_library_only():
    """TensorFlow Probability is timed in an environment without torch."""
    code = "import sys; import powerspherical_paper.timing; print({'torch', 'numpy'} & {*sys.modules})"
    folder = Path(timing.__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-S", "-c", f"import sys; sys.path.append({str(folder)!r}); {code}"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout == "set()\n"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_clocks_on_cuda():
    """Both measure a long kernel. The queued clock does not count a slow host."""

    def on_device():
        torch.cuda._sleep(20_000_000)

    def on_host():
        torch.ones(1, device="cuda")
        sum(range(100_000))

    for clock in (timing.event_clock, timing.queued_clock):
        assert clock(on_device, 2) > 2e-3
    assert timing.queued_clock(on_host, 3) < timing.event_clock(on_host, 3) / 4
