"""Run a function of a test module in two processes, by ``torchrun``."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

TESTS = Path(__file__).parents[1]
SCRIPT = """\
import pathlib, sys
import torch.distributed
sys.path += [{module_folder!r}, {tests!r}]
import {module}
torch.distributed.init_process_group("gloo")
{module}.{function}(pathlib.Path({folder!r}))
torch.distributed.barrier()  # torchrun ends the other process if one fails while it shuts down
torch.distributed.destroy_process_group()
"""


def in_two_processes(module: Path, function: str, folder: Path, results: list[str]) -> None:
    """Call ``function(folder)`` of the test module in two processes of one group, until both have ended.

    The processes see no GPU. The call succeeds if both have written their ``results``, files in the folder. The exit
    status says less: torch sometimes aborts while it shuts the group down, after all work is done.
    """
    if not (torch.distributed.is_available() and torch.distributed.is_gloo_available()):
        pytest.skip("torch was built without gloo")
    script = folder / "script.py"
    script.write_text(
        SCRIPT.format(
            module_folder=str(module.parent),
            tests=str(TESTS),
            module=module.stem,
            function=function,
            folder=str(folder),
        )
    )
    with subprocess.Popen(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(script)],
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
    ) as process:
        try:
            _, error = process.communicate(timeout=120)
        finally:
            process.terminate()  # and with it the two, should they wait for each other
    assert all((folder / result).exists() for result in results), error
