"""The progress output of `reproduce`, with a clock that the tests control."""

import io

import pytest
from rich.console import Console
from rich.progress import Progress

from powerspherical_paper.command import Advance, rounded


@pytest.fixture
def clock():
    return [0.0]


@pytest.fixture
def shown(clock):
    console = Console(file=io.StringIO(), get_time=lambda: clock[0])
    return Progress(console=console, disable=True)


def test_a_log_gets_a_line_now_and_then(clock, shown):
    """The first line comes at the start, later ones predict the remaining time, and there are few of them."""
    advance = Advance(shown, "vae")
    assert shown.console.file.getvalue() == "vae: started\n"
    while clock[0] < 300:
        clock[0] += 1.0
        advance(clock[0] / 300)
    lines = shown.console.file.getvalue().splitlines()
    assert lines[1:4] == [
        "vae: 1%, about 5 min left",
        "vae: 4%, about 5 min left",
        "vae: 7%, about 5 min left",
    ]
    assert lines[-1] == "vae: 91%, about 30 s left"
    assert len(lines) == 22
    advance.end()
    assert shown.tasks == []


def test_no_prediction_from_a_single_step(clock, shown):
    advance = Advance(shown, "vae")
    clock[0] = 30.0
    advance(0.25)
    assert shown.console.file.getvalue() == "vae: started\nvae: 25%\n"


def test_on_a_terminal_the_bars_are_enough(clock, shown):
    shown.disable = False
    advance = Advance(shown, "vae")
    clock[0] = 30.0
    advance(0.5)
    assert shown.console.file.getvalue() == ""
    assert shown.tasks[0].completed == 0.5


@pytest.mark.parametrize(
    ("seconds", "shown_as"),
    [(3, "10 s"), (38, "40 s"), (57, "1 min"), (230, "4 min"), (5000, "83 min"), (9000, "2 h")],
)
def test_rounded(seconds, shown_as):
    assert rounded(seconds) == shown_as
