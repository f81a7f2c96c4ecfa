"""Timing of methods that take turns.

A round calls every method once (or a few times), so that slow phases of the machine affect all methods. The order in
each round is random: a method that always followed the same other one would find the caches as that one leaves them.
Methods are compared within a round.

Importing this module needs only the standard library, because TensorFlow Probability is timed in an environment without
torch.
"""

import ctypes
import math
import random
import statistics
import sys
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import torch

Name = TypeVar("Name", bound=Hashable)
Call = Callable[[], object]
Clock = Callable[[Call, int], float]
"""Maps a method and a number of calls to the seconds per call."""

UNSEEN = 2  # warm-up calls per method; one warm-up round follows
TURN = 0.02  # seconds per turn, if it has several calls
#: For n normal numbers, the standard error of the median is this times their interquartile range over √n.
MEDIAN_ERROR = 0.93


@dataclass(frozen=True)
class Effort:
    """How long to measure a group of methods: about `seconds`, with at least `least` and at most `most` rounds."""

    seconds: float
    least: int
    most: int

    def rounds(self, one: float) -> int:
        """Return the number of rounds, if one takes `one` seconds."""
        return min(max(math.ceil(self.seconds / one), self.least), self.most)


def measure(
    methods: Mapping[Name, Call], effort: Effort, clock: Clock, calls: int = 1
) -> dict[Name, list[float]]:
    """Return the seconds per call of each method in each round. A turn has up to `calls` calls, fewer if slow."""
    first = {name: min(clock(call, 1) for _ in range(UNSEEN)) for name, call in methods.items()}
    turns = {name: min(max(int(TURN / max(one, 1e-9)), 1), calls) for name, one in first.items()}
    timers = {name: partial(clock, call, turns[name]) for name, call in methods.items()}
    started = time.perf_counter()
    for timer in timers.values():
        timer()
    (times,) = take_turns([timers], effort.rounds(time.perf_counter() - started))
    return times


def take_turns(
    groups: Sequence[Mapping[Name, Callable[[], float]]],
    rounds: int,
    progress: Callable[[float], None] = lambda fraction: None,
) -> list[dict[Name, list[float]]]:
    """Return what each timer measures in each round. Each round visits all groups, and their timers in random order.

    The order is the same in every run. `progress` is called with the completed fraction after each round.
    """
    order = random.Random(0)
    times: list[dict[Name, list[float]]] = [{name: [] for name in timers} for timers in groups]
    for turn in range(rounds):
        for timers, found in zip(groups, times, strict=True):
            for name in order.sample(list(timers), len(timers)):
                found[name].append(timers[name]())
        progress((turn + 1) / rounds)
    return times


def summary(times: Sequence[float]) -> dict[str, Any]:
    """Return the median and the quartiles over rounds."""
    low, median, high = (
        statistics.quantiles(times, n=4, method="inclusive") if len(times) > 1 else 3 * [*times]
    )
    return {"median": median, "quartiles": [low, high]}


def ratio(slow: Sequence[float], fast: Sequence[float]) -> float:
    """Return the median over rounds of the ratio of two methods' times."""
    return statistics.median(a / b for a, b in zip(slow, fast, strict=True))


def relative_error(median: float, quartiles: Sequence[float], count: int) -> float:
    """Return the relative standard error of the median of `count` numbers, assuming that they are normal."""
    low, high = quartiles
    return MEDIAN_ERROR * (high - low) / math.sqrt(count) / median


def interval(ratio: float, *errors: float) -> tuple[float, float]:
    """Return two standard errors on either side of a ratio of times, given their relative standard errors."""
    factor = math.exp(2 * math.hypot(*errors))
    return ratio / factor, ratio * factor


def reaches(limit: float, low: float, high: float) -> bool | None:
    """Whether a ratio in [low, high] is at least `limit`; None if the limit lies inside the interval."""
    return None if low < limit <= high else low >= limit


def keep_freed_memory() -> None:
    """Make glibc keep freed memory instead of returning it to the system. Other C libraries are left as they are.

    By default glibc may return large blocks and request them again, depending on the layout of the heap. Clearing the
    new pages can take a quarter of a call, for one method and not for another.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        for parameter in (_TRIM_THRESHOLD, _MMAP_THRESHOLD):
            mallopt(parameter, 1 << 30)


_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # from malloc.h


def clock_on(device: "torch.device") -> Clock:
    """Return the clock for a device."""
    return wall_clock if device.type == "cpu" else event_clock


def wall_clock(call: Call, calls: int) -> float:
    """Time methods that are complete when they return."""
    started = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - started) / calls


def event_clock(call: Call, calls: int, busy: int = 0) -> float:
    """Time methods that run asynchronously on a CUDA device: the time between two events in its queue.

    By default the queue is empty when the first event is recorded. So the time includes the host's, which dominates for
    small batches. If the device is first kept `busy` for so many cycles, or more, until the host has queued all calls,
    the time is the device's alone.
    """
    from torch import cuda

    start, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
    while True:
        cuda.synchronize()
        if busy:
            cuda._sleep(busy)
        start.record()
        for _ in range(calls):
            call()
        end.record()
        late = busy and start.query()  # the device started before the host had queued all calls
        end.synchronize()
        if not late:
            return start.elapsed_time(end) / 1e3 / calls  # torch returns milliseconds
        busy *= 2


#: The device's time alone, as in training, where the host runs ahead of the device.
queued_clock: Clock = partial(event_clock, busy=1_000_000)
