"""Which tests `pytest --fast` runs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from zlib import crc32

import pytest


def fast(items: Iterable[pytest.Item]) -> set[pytest.Item]:
    """One case of each test, and none of those marked slow.

    The name of the test decides which case: the same in every run and process, and of another family, dtype or size
    for another test.
    """
    cases = defaultdict(list)
    for item in items:
        if "slow" not in item.keywords:
            cases[item.nodeid.partition("[")[0]].append(item)
    return {found[crc32(name.encode()) % len(found)] for name, found in cases.items()}
