"""Timing of methods that take turns.

A round calls every method once (or a few times), so that slow phases of the machine affect all methods. The order in
each round is random: a method that always followed the same other one would find the caches as that one leaves them. A
method and its floor are compared within a round. This module needs only the standard library, because TensorFlow
Probability is timed in an environment without torch.
"""

import ctypes
import math
import random
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

Name = TypeVar("Name", bound=Hashable)
Call = Callable[[], object]
Clock = Callable[[Call, int], float]
"""Maps a method and a number of calls to the seconds per call."""

UNSEEN = 2  # warm-up calls per method; one warm-up round follows
TURN = 0.02  # seconds per turn, if it has several calls


@dataclass(frozen=True)
class Effort:
    """How long to measure a group of methods: about `seconds`, with at least `least` and at most `most` rounds."""

    seconds: float
    least: int
    most: int

    def rounds(self, one: float) -> int:
        """Return the number of rounds, if one takes `one` seconds."""
        return min(max(math.ceil(self.seconds / one), self.least), self.most)


def in_turn(names: Sequence[Name], turn: int) -> list[Name]:
    """Return the methods in the order of round `turn`, which is random but the same in every run."""
    return random.Random(turn).sample(names, len(names))


def measure(
    methods: Mapping[Name, Call], effort: Effort, clock: Clock, calls: int = 1
) -> dict[Name, list[float]]:
    """Return the seconds per call of each method in each round. A turn has up to `calls` calls, fewer if slow."""
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
    """Make glibc keep freed memory instead of returning it to the system. Other C libraries are left as they are.

    By default glibc may return large blocks and request them again, depending on the layout of the heap. Clearing the
    new pages can take a quarter of a call, for one method and not for another.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for parameter in (_TRIM_THRESHOLD, _MMAP_THRESHOLD):
            mallopt(parameter, 1 << 30)


_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # from malloc.h


def wall_clock(call: Call, calls: int) -> float:
    """Time methods that are complete when they return."""
    started = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - started) / calls


def event_clock(cuda: Any) -> Clock:
    """Return a clock for methods that run asynchronously on the device: the time between two events in its queue.

    `cuda` is torch.cuda. The queue is empty when the first event is recorded. So the time includes the host's, which
    dominates for small batches.
    """
    start, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)

    def clock(call: Call, calls: int) -> float:
        cuda.synchronize()
        start.record()
        for _ in range(calls):
            call()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / 1e3 / calls  # torch returns milliseconds

    return clock


def queued_clock(cuda: Any) -> Clock:
    """Return a clock like `event_clock` that measures only the device, which is kept busy until all calls are queued.

    This is the situation in training, where the host runs ahead of the device.
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
            late = start.query()  # the device started before the host had queued all calls
            end.synchronize()
            if not late:
                return start.elapsed_time(end) / 1e3 / calls
            cycles *= 2

    return clock


def captured(call: Call, times: int, cuda: Any) -> Call:
    """Capture `times` calls in a CUDA graph, and return the function that replays it. `cuda` is torch.cuda."""
    # torch recommends to warm up on a separate stream before a capture.
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
