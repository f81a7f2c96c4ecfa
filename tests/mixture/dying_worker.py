"""Fit a mixture on a Dask cluster of two processes, one of which dies on the way, and save what was found.

A program of its own, for test_dask.py: exceptions that Dask leaves in finalizers stay out of the tests' process.
"""

import multiprocessing
import os
import signal
import sys
from multiprocessing import forkserver
from pathlib import Path

import dask
import dask.array as da
import distributed
import numpy as np

SETTINGS = {
    "distributed.scheduler.allowed-failures": 10,
    "distributed.worker.multiprocessing-method": "forkserver",
}


def deadly(block: np.ndarray, calls: Path) -> np.ndarray:
    """Return the block. The process that makes the twentieth call dies, once."""
    (calls / f"{os.getpid()}-{os.urandom(8).hex()}").touch()
    if len(list(calls.iterdir())) >= 20:
        try:
            (calls / "killed").touch(exist_ok=False)
        except FileExistsError:
            return block
        os.kill(os.getpid(), signal.SIGKILL)
    return block


def main(rows: Path, calls: Path, result: Path) -> None:
    # The workers import this file too.
    from powerspherical.mixture import PowerSphericalMixture

    # All workers, also the one in place of the dead one, are forks of a process that imports once.
    multiprocessing.set_forkserver_preload(["distributed", "powerspherical.mixture"])
    forkserver.ensure_running()
    x = np.load(rows)
    blocks = da.from_array(x, chunks=(150, 8)).map_blocks(deadly, calls, dtype=x.dtype, meta=x[:0])
    with (
        dask.config.set(SETTINGS),
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        distributed.Client(cluster),
    ):
        found = PowerSphericalMixture(3, random_state=0, n_init=2).fit(blocks)
    np.savez(result, directions=found.mean_directions_, lower_bound=found.lower_bound_)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
