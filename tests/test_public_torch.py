"""Without any private name of torch: a new version may take them away."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

#: They run in every mode of torch, and compare engines.
FILES = [
    "tests/kernels/test_transforms.py",
    "tests/kernels/test_engines.py",
    "tests/distributions/test_log_prob.py",
    "tests/distributions/test_bad_input.py",
    "tests/nn/test_bottleneck.py",
]


@pytest.mark.slow
def test_results_are_the_same() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--fast", "-p", "no:xdist", "--tb=short", *FILES],
        cwd=Path(__file__).parents[1],
        env={**os.environ, "POWERSPHERICAL_PUBLIC_TORCH": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5000:]
    assert " passed" in done.stdout
