"""The choice of tests that `pytest --fast` runs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from zlib import crc32

import pytest


def fast(items: Iterable[pytest.Item]) -> set[pytest.Item]:
    """Return one case of each test that is not marked slow.

    A hash of the test's name chooses the case. It is the same in every run and process, and different tests cover
    different families, dtypes and sizes.
    """
    cases = defaultdict(list)
    for item in items:
        if "slow" not in item.keywords:
            cases[item.nodeid.partition("[")[0]].append(item)
    return {found[crc32(name.encode()) % len(found)] for name, found in cases.items()}
