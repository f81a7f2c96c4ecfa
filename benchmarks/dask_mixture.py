"""A mixture fitted to more rows than fit in memory: a lazy Dask array on workers with limited memory.

Each pass generates the rows again, block by block. The benchmark reports the time of the fit, the peak memory of a
worker, and the distance of the fitted directions from the true ones.

    python benchmarks/dask_mixture.py [--quick] [--out DIR]
"""

import resource
import time
import warnings
from typing import Any

import dask.array as da
import numpy as np
from _command import Command, table
from distributed import Client, LocalCluster
from sklearn.exceptions import ConvergenceWarning

from powerspherical.mixture import PowerSphericalMixture

COMPONENTS, STEPS, BLOCK = 10, 5, 100_000
SIZES, QUICK_SIZES = (10_000_000, 128, 2), (20_000, 16, 1)  # rows, dimension, workers
MEMORY = "2GB"  # of each worker


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


def fitted(rows: int, dim: int, workers: int) -> dict[str, Any]:
    """Fit on a local cluster, and return time, memory and accuracy."""
    x = lazy_rows(rows, dim)
    with (
        LocalCluster(
            n_workers=workers, threads_per_worker=1, memory_limit=MEMORY, dashboard_address=None
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
    command = Command("dask_mixture", __doc__, argv, cpu_only=True)
    rows, dim, workers = QUICK_SIZES if command.quick else SIZES
    found = fitted(rows, dim, workers)
    sizes = {"components": COMPONENTS, "workers": workers, "memory_limit": MEMORY, "block": BLOCK}
    lines = [(name.replace("_", " "), value) for name, value in found.items()]
    command.finish({"configuration": sizes, "results": [found]}, [table("A fit", ("", ""), lines)])


if __name__ == "__main__":
    main()
