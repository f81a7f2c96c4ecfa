"""Work for several threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
import torch

from powerspherical.mixture._rows import grouped, in_order


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    """torch's own number of threads stays what it was."""
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    assert torch.get_num_threads() == 3
    torch.set_num_threads(before)


@pytest.mark.parametrize("count", [0, 1, 2, 7, 84, 1000])
def test_groups_are_all_items_and_get_smaller(count: int) -> None:
    groups = grouped(range(count))
    assert [item for group in groups for item in group] == list(range(count))
    sizes = [len(group) for group in groups]
    assert sizes == sorted(sizes, reverse=True)
    assert max(sizes, default=0) <= 8
    assert sizes[-3:] == [1] * min(3, count)


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_results_are_taken_in_order_and_one_at_a_time(threads: int) -> None:
    taken: list[int] = []
    taking = threading.Lock()

    def slow_at_first(item: int) -> int:
        time.sleep(0.02 if item == 0 else 0.001)
        return item**2

    def take(result: int) -> None:
        assert taking.acquire(blocking=False)
        taken.append(result)
        taking.release()

    in_order(slow_at_first, range(40), take, threads)
    assert taken == [item**2 for item in range(40)]


def test_threads_work_side_by_side_and_torch_within_them_alone() -> None:
    together = threading.Barrier(3, timeout=30)

    def function(item: int) -> int:
        together.wait()
        return torch.get_num_threads()

    inside: list[int] = []
    in_order(function, range(3), inside.append, 3)
    assert inside == [1, 1, 1]


@pytest.mark.parametrize("error", [ValueError, StopIteration, KeyboardInterrupt])
def test_an_error_is_raised_and_ends_the_work(error: type[BaseException]) -> None:
    started: list[int] = []

    def function(item: int) -> int:
        started.append(item)
        if item == 3:
            raise error("no such item")
        time.sleep(0.005)
        return item

    with pytest.raises(error, match="no such item"):
        in_order(function, range(1000), lambda result: None, 2)
    assert len(started) < 20


def test_an_error_of_whoever_takes_is_raised() -> None:
    def refuse(result: int) -> None:
        raise ValueError(f"not {result}")

    with pytest.raises(ValueError, match="not 0"):
        in_order(int, range(100), refuse, 2)
