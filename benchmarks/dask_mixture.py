"""A mixture fitted to more rows than fit in memory: a lazy Dask array on workers with limited memory.

Each pass generates the rows again, block by block. The benchmark reports the time of the fit, the peak memory of a
worker, and the distance of the fitted directions from the true ones.

    python benchmarks/dask_mixture.py [--rows N] [--dim D] [--workers W] [--memory LIMIT] [--quick] [--out DIR]
"""

import resource
import time
import warnings
from typing import Any

import dask.array as da
import numpy as np
from _command import Command
from distributed import Client, LocalCluster
from sklearn.exceptions import ConvergenceWarning

from powerspherical.mixture import PowerSphericalMixture

COMPONENTS, STEPS, BLOCK = 10, 5, 100_000


def directions(dim: int) -> np.ndarray:
    """Return the true directions, (k, d)."""
    x = np.random.default_rng(0).standard_normal((COMPONENTS, dim))
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def some_rows(template: np.ndarray, block_info: Any = None) -> np.ndarray:
    """Return one block: the directions plus Gaussian noise of length about ½. Every call returns the same block."""
    rows, dim = block_info[None]["chunk-shape"]
    random = np.random.default_rng(block_info[None]["chunk-location"][0])
    noise = random.standard_normal((rows, dim), dtype=np.float32)
    noise *= 0.5 * dim**-0.5
    noise += directions(dim).astype(np.float32)[random.integers(COMPONENTS, size=rows)]
    return noise


def lazy_rows(rows: int, dim: int) -> da.Array:
    """Return a lazy array of all rows."""
    template = da.empty((rows, dim), chunks=(min(BLOCK, rows), dim), dtype=np.float32)
    return template.map_blocks(some_rows, dtype=np.float32, meta=np.empty((0, 0), np.float32))


def peak() -> int:
    """Return the peak memory of this process in bytes (on Linux, which counts in KiB)."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def fitted(rows: int, dim: int, workers: int, memory: str) -> dict[str, Any]:
    """Fit on a local cluster, and return time, memory and accuracy."""
    x = lazy_rows(rows, dim)
    with (
        LocalCluster(
            n_workers=workers, threads_per_worker=1, memory_limit=memory, dashboard_address=None
        ) as cluster,
        Client(cluster) as client,
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore", ConvergenceWarning)
        before = client.run(peak)
        started = time.perf_counter()
        model = PowerSphericalMixture(COMPONENTS, max_iter=STEPS, random_state=0, verbose=1).fit(x)
        seconds = time.perf_counter() - started
        after = client.run(peak)
    cosines = np.max(directions(dim) @ model.mean_directions_.T, axis=1)
    return {
        "rows": rows,
        "dim": dim,
        "gigabytes_of_rows": 4e-9 * rows * dim,
        "seconds": round(seconds, 1),
        "gigabytes_of_a_worker_before": round(1e-9 * max(before.values()), 2),
        "gigabytes_of_a_worker_at_most": round(1e-9 * max(after.values()), 2),
        "steps": model.n_iter_,
        "least_cosine": float(cosines.min()),
    }


def main(argv: list[str] | None = None) -> None:
    """Fit, print the results, and write `dask_mixture.json`."""
    options = {
        "--rows": {"type": int, "default": 10_000_000, "metavar": "N", "help": "default: 10,000,000"},
        "--dim": {"type": int, "default": 128, "metavar": "D", "help": "default: 128"},
        "--workers": {"type": int, "default": 2, "metavar": "W", "help": "default: 2"},
        "--memory": {
            "default": "2GB",
            "metavar": "LIMIT",
            "help": "memory limit of each worker; default: 2GB",
        },
    }
    command = Command("dask_mixture", __doc__, argv, options, cpu_only=True)
    arguments = command.arguments
    rows = 20_000 if command.quick else arguments.rows
    found = fitted(rows, arguments.dim, arguments.workers, arguments.memory)
    configuration = {
        "components": COMPONENTS,
        "workers": arguments.workers,
        "memory_limit": arguments.memory,
        "block": BLOCK,
    }
    notes = [f"{name.replace('_', ' ')}: {value}" for name, value in found.items()]
    command.finish({"configuration": configuration, "results": [found]}, notes=notes)


if __name__ == "__main__":
    main()
