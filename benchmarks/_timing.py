"""Methods that take turns: how everything in this folder is timed.

A round calls every method once (or a few times), in an order that rotates from round to round, so that a slow moment
of the machine falls on all of them. The rounds are kept apart: a method and its floor are compared inside a round.
Only the standard library is needed here, because TensorFlow Probability is timed in an environment without torch.
"""

import ctypes
import math
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

Name = TypeVar("Name", bound=Hashable)
Call = Callable[[], object]
Clock = Callable[[Call, int], float]
"""From a method and a number of calls to the seconds that one call takes."""

UNSEEN = 2  # calls of each method that go first; a round more is not looked at either
TURN = 0.02  # seconds that a turn of several calls may take


@dataclass(frozen=True)
class Effort:
    """How long to measure one group of methods: about `seconds`, but at least and at most so many rounds."""

    seconds: float
    least: int
    most: int

    def rounds(self, one: float) -> int:
        """The number of rounds, where one takes `one` seconds."""
        return min(max(math.ceil(self.seconds / one), self.least), self.most)


def in_turn(names: Sequence[Name], turn: int) -> list[Name]:
    """The order of the methods in a round: each comes first in its turn."""
    first = turn % len(names)
    return [*names[first:], *names[:first]]


def measure(
    methods: Mapping[Name, Call], effort: Effort, clock: Clock, calls: int = 1
) -> dict[Name, list[float]]:
    """The seconds a call of each method takes, round by round; a turn is `calls` calls, fewer of the slow."""
    names = list(methods)
    times: dict[Name, list[float]] = {name: [] for name in names}
    first = {name: min(clock(methods[name], 1) for _ in range(UNSEEN)) for name in names}
    turns = {name: min(max(int(TURN / max(first[name], 1e-9)), 1), calls) for name in names}
    started = time.perf_counter()
    for name in names:
        clock(methods[name], turns[name])
    for turn in range(effort.rounds(time.perf_counter() - started)):
        for name in in_turn(names, turn):
            times[name].append(clock(methods[name], turns[name]))
    return times


def keep_freed_memory() -> None:
    """Have the process keep the memory it frees, where its C library is GNU's.

    By default that gives large blocks back and asks for them anew, or not, as what was freed before happens to lie: a
    quarter of the time of a call can then go into the kernel's clearing of pages, of one method and not of another.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for parameter in (_TRIM_THRESHOLD, _MMAP_THRESHOLD):
            mallopt(parameter, 1 << 30)


_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of malloc.h


def wall_clock(call: Call, calls: int) -> float:
    """For methods that are done when they return."""
    started = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - started) / calls


def event_clock(cuda: Any) -> Clock:
    """For methods that leave their work to the device: the time between two events in its queue.

    `cuda` is torch.cuda. The queue is empty when the first event is recorded, so that the time includes what the host
    takes to fill it, which is all the time there is where the batch is small.
    """
    start, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)

    def clock(call: Call, calls: int) -> float:
        cuda.synchronize()
        start.record()
        for _ in range(calls):
            call()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / 1e3 / calls  # torch gives milliseconds

    return clock


def queued_clock(cuda: Any) -> Clock:
    """As `event_clock`, but of the device alone: it is kept busy until the host has queued all calls.

    So it is in training, where the host is ahead of the device.
    """
    cuda.synchronize()
    start, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)

    def clock(call: Call, calls: int) -> float:
        cycles = 1_000_000
        while True:
            cuda.synchronize()
            cuda._sleep(cycles)
            start.record()
            for _ in range(calls):
                call()
            end.record()
            late = start.query()  # the device had begun before the host was done
            end.synchronize()
            if not late:
                return start.elapsed_time(end) / 1e3 / calls
            cycles *= 2

    return clock


def captured(call: Call, times: int, cuda: Any) -> Call:
    """A CUDA graph of `times` calls in a row, as the function that replays it; `cuda` is torch.cuda."""
    # A capture must not be the first thing that runs, nor run where other work is queued: torch's recipe is to warm up
    # on a stream of its own.
    stream = cuda.Stream()
    stream.wait_stream(cuda.current_stream())
    with cuda.stream(stream):
        for _ in range(3):
            call()
    cuda.current_stream().wait_stream(stream)
    graph = cuda.CUDAGraph()
    with cuda.graph(graph):
        for _ in range(times):
            call()
    return graph.replay
