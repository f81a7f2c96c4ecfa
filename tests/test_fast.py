"""The selection of `pytest --fast`."""

from dataclasses import dataclass

from helpers.fast import fast


@dataclass(frozen=True)
class Item:
    nodeid: str
    keywords: tuple[str, ...] = ()


def test_one_case_of_each_test():
    items = [Item(f"a.py::test_{name}[{case}]") for name in range(20) for case in range(5)]
    items += [Item("a.py::TestA::test_0"), Item("b.py::test_0[0]"), Item("c.py::test_0", ("slow",))]
    kept = fast(items)
    assert sorted(item.nodeid.partition("[")[0] for item in kept) == sorted(
        [*(f"a.py::test_{name}" for name in range(20)), "a.py::TestA::test_0", "b.py::test_0"]
    )
    assert kept == fast(items)  # in every process
    assert len({item.nodeid[-2] for item in kept if item.nodeid.startswith("a.py::test_")}) == 5


def test_a_test_with_slow_cases_keeps_another():
    items = [Item("a.py::test[0]", ("slow",)), Item("a.py::test[1]"), Item("a.py::test[2]", ("slow",))]
    assert fast(items) == {items[1]}
