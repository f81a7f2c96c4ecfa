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

#: A transform counts as vmap, so draws under ``torch.func.grad`` use other random numbers; and an error of the
#: compiler's instead of ours.
DIFFERENT = [
    "test_vmap_of_the_backward_pass",
    "test_outer_level_sees_through_an_inner_one",
    "test_generator_in_a_full_graph_is_refused",
]


@pytest.mark.slow
def test_results_are_the_same() -> None:
    options = [
        f"--deselect={FILES[0]}::{group}::{name}"
        for group in ("TestGrad", "TestCompile")
        for name in DIFFERENT
    ]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--fast", "-p", "no:xdist", "--tb=short", *options, *FILES],
        cwd=Path(__file__).parents[1],
        env={**os.environ, "POWERSPHERICAL_PUBLIC_TORCH": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5000:]
    assert " passed" in done.stdout
