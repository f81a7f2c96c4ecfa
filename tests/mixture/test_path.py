"""The number of files between ``fit`` and the arithmetic, for those who read or debug the code."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

import powerspherical
from powerspherical.mixture import PowerSphericalMixture

PACKAGE = str(Path(powerspherical.__file__).parent)


def test_fit_reaches_the_arithmetic_in_few_files() -> None:
    x = np.random.default_rng(0).normal(size=(200, 8))
    chains: set[frozenset[str]] = set()

    def watch(frame: FrameType | None, event: str, _: Any) -> None:
        files = set()
        while event == "call" and frame is not None:
            files.add(frame.f_code.co_filename)
            frame = frame.f_back
        chains.add(frozenset(file for file in files if file.startswith(PACKAGE)))

    sys.setprofile(watch)
    try:
        PowerSphericalMixture(3, n_init=1, random_state=0).fit(x)
    finally:
        sys.setprofile(None)
    longest = max(chains, key=len)
    assert 1 < len(longest) <= 9, longest
