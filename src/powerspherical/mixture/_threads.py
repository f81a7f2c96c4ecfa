"""Work for several threads, whose results are taken in order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import TypeVar

import torch

Item = TypeVar("Item")
Result = TypeVar("Result")


#: The most items in a group, and in the groups to the end a share of those that remain.
_LARGEST, _SHARE = 8, 4


def grouped(items: Sequence[Item]) -> list[Sequence[Item]]:
    """The items in groups, for ``in_order``: large ones first, since each takes its time, and single ones at the end,
    so that no thread has long to wait for another.
    """
    groups, first = [], 0
    while first < len(items):
        size = min(max((len(items) - first) // _SHARE, 1), _LARGEST)
        groups.append(items[first : first + size])
        first += size
    return groups


def in_order(
    function: Callable[[Item], Result],
    items: Sequence[Item],
    take: Callable[[Result], None],
    threads: int,
) -> None:
    """``take`` the results of ``function`` for the items, one at a time and in their order.

    Each thread takes the next item as it is done with one, and what is ready to be taken, itself: the thread that waits
    for all of them is woken once, and no more results are kept than come before one that is late. With several threads,
    torch uses one within each.
    """
    threads = min(threads, len(items))
    if threads <= 1:
        for item in items:
            take(function(item))
        return
    remaining, lock = iter(enumerate(items)), Lock()
    ready: dict[int, Result] = {}
    taken, stopped = 0, False

    def work() -> None:
        nonlocal taken, stopped
        try:
            while not stopped:
                with lock:
                    step = next(remaining, None)
                if step is None:
                    return
                index, item = step
                result = function(item)
                with lock:
                    ready[index] = result
                    while taken in ready:
                        take(ready.pop(taken))
                        taken += 1
        except BaseException:
            stopped = True
            raise

    before = torch.get_num_threads()
    try:
        with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            try:
                for worker in [pool.submit(work) for _ in range(threads)]:
                    worker.result()
            finally:
                stopped = True  # where this thread was interrupted, the others need not go on
    finally:
        torch.set_num_threads(before)  # the initializer also set what threads that start later begin with
