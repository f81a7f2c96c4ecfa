"""Run a script in two processes, by ``torchrun``."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch


def in_two_processes(script: Path, *arguments: str | Path, results: Sequence[Path]) -> None:
    """Run the script in two processes, which see no GPU, until both have ended. Both must have written ``results``.

    The exit status says less: torch sometimes aborts while it shuts a group down, after all work is done.
    """
    if not (torch.distributed.is_available() and torch.distributed.is_gloo_available()):
        pytest.skip("torch was built without gloo")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    with subprocess.Popen(
        [*torchrun, script, *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
    ) as process:
        try:
            _, error = process.communicate(timeout=300)
        finally:
            process.terminate()  # and with it the two, should they wait for each other
    assert all(path.exists() for path in results), error
