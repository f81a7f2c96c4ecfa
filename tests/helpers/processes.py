"""Run a function of a test module in two processes, by ``torchrun``."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]


def in_two_processes(module: Path, function: str, folder: Path) -> None:
    """Call ``function(folder)`` of the test module in two processes, and wait until both end."""
    script = folder / "script.py"
    script.write_text(
        f"import pathlib, sys\nsys.path += [{str(module.parent)!r}, {str(TESTS)!r}]\n"
        f"import {module.stem}\n{module.stem}.{function}(pathlib.Path({str(folder)!r}))\n"
    )
    with subprocess.Popen(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(script)],
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    ) as process:
        try:
            _, error = process.communicate(timeout=120)
        finally:
            process.terminate()  # and with it the two, should they wait for each other
    assert process.returncode == 0, error
