"""Work for several threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing

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
def test_results_come_in_order(threads: int) -> None:
    def slow_at_first(item: int) -> int:
        time.sleep(0.02 if item == 0 else 0.001)
        return item**2

    assert list(in_order(slow_at_first, range(40), threads)) == [item**2 for item in range(40)]


def test_threads_work_side_by_side_and_torch_within_them_alone() -> None:
    together = threading.Barrier(3, timeout=30)

    def function(item: int) -> int:
        together.wait()
        return torch.get_num_threads()

    assert list(in_order(function, range(3), 3)) == [1, 1, 1]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
@pytest.mark.parametrize("inside", [True, False], ids=["of a thread", "of the caller"])
def test_an_error_ends_the_work(error: type[BaseException], inside: bool) -> None:
    started: list[int] = []

    def function(item: int) -> int:
        started.append(item)
        if inside and item == 3:
            raise error("no such item")
        time.sleep(0.005)
        return item

    def take_all() -> None:
        with closing(in_order(function, range(1000), 2)) as results:
            for result in results:
                if not inside and result == 3:
                    raise error("no such item")

    with pytest.raises(error, match="no such item"):
        take_all()
    assert len(started) < 20
