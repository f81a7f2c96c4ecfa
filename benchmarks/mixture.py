"""Time per iteration of mixtures and of spherical k-means, compared with scikit-learn's KMeans.

Each method is fitted twice from the same start through its public interface, with few and with more iterations. The
time per iteration is the difference of the times over the difference of the iterations. `products` are the two matrix
products that every iteration of soft EM needs, in the same blocks and precision. All methods take turns. On CUDA, which
scikit-learn does not support, the ratios are to the products, and the memory of a fit beyond the rows is measured, too.

    python benchmarks/mixture.py [--device cpu|cuda] [--threads N] [--quick] [--out DIR]
"""

import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from _command import Command, Row, summary_in, table
from _memory import peak
from rich.table import Table
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning
from threadpoolctl import threadpool_limits
from torch import Tensor

from powerspherical.mixture import PowerSphericalMixture, SphericalKMeans, VonMisesFisherMixture
from powerspherical.mixture._rows import block_size
from powerspherical_paper.timing import Clock, clock_on, ratio, take_turns

SIZES = {"cpu": (100_000, 384, 50), "cuda": (10_000_000, 384, 100)}
QUICK_SIZE = (3_000, 32, 5)
FEW, MORE = 2, 12
ROUNDS, QUICK_ROUNDS = 15, 2
LLOYD, PRODUCTS = "scikit_learn_lloyd", "products"


def data(rows: int, dim: int, components: int, device: torch.device) -> Tensor:
    """Return unit vectors in weak clusters, on which no method converges in a few iterations."""
    generator = torch.Generator(device).manual_seed(0)
    centres = 0.35 * torch.randn(components, dim, generator=generator, device=device)
    x = torch.empty(rows, dim, device=device)
    for block in x.split(1 << 20):
        torch.randn(block.shape, generator=generator, out=block)
        block += centres[torch.randint(components, (len(block),), generator=generator, device=device)]
        block /= torch.linalg.vector_norm(block, dim=1, keepdim=True)
    return x


def products(x: Tensor, directions: Tensor) -> None:
    """Compute the cosines with k directions and the k weighted sums of the rows."""
    for block in x.split(block_size(x.device, x.shape[1] + len(directions))):
        torch.mm(torch.mm(directions, block.T), block)


def fits(x: Tensor, components: int) -> Iterator[tuple[str, Callable[[int], Any]]]:
    """Yield names and methods, as functions of the number of iterations."""
    start = x[:components].clone()

    def ours(estimator: Any) -> Callable[[int], Any]:
        return lambda steps: estimator(components, max_iter=steps, init=start, tol=0.0).fit(x)

    yield "power_spherical", ours(PowerSphericalMixture)
    yield "von_mises_fisher", ours(VonMisesFisherMixture)
    yield "spherical_kmeans", ours(SphericalKMeans)
    if x.device.type == "cpu":
        array = x.numpy()
        lloyd = {"init": start.numpy(), "tol": 0.0, "n_init": 1, "algorithm": "lloyd"}
        yield LLOYD, lambda steps: KMeans(components, max_iter=steps, **lloyd).fit(array)


def iteration(fit: Callable[[int], Any], clock: Clock) -> float:
    """Return the seconds of one iteration. A first fit, not measured, brings memory into the state of this method."""

    def seconds(steps: int) -> float:
        taken: list[int] = []
        result = clock(lambda: taken.append(fit(steps).n_iter_), 1)
        if taken != [steps]:
            raise RuntimeError(f"the fit settled after {taken[0]} of {steps} steps, so these cannot be timed")
        return result

    seconds(FEW)
    few = seconds(FEW)
    return (seconds(MORE) - few) / (MORE - FEW)


def timed(x: Tensor, components: int, rounds: int) -> dict[str, list[float]]:
    """Return the seconds per iteration of each method in each round."""
    clock = clock_on(x.device)
    methods: dict[str, Callable[[], float]] = {
        name: partial(iteration, fit, clock) for name, fit in fits(x, components)
    }
    methods[PRODUCTS] = lambda: min(clock(lambda: products(x, x[:components]), 1) for _ in range(2))
    (times,) = take_turns([methods], rounds)
    return times


def memory(x: Tensor, components: int) -> dict[str, int]:
    """Return the peak bytes of a fit of each method beyond the rows. Only on CUDA, where all memory is counted."""
    if x.device.type == "cpu":
        return {}
    return {name: peak(partial(fit, 1), x.device) for name, fit in fits(x, components)}


def summary(times: dict[str, list[float]], peaks: dict[str, int]) -> Iterator[Row]:
    """Yield one result per method: its time, its ratios to KMeans and to the products, and its memory."""
    for name, seconds in times.items():
        yield {
            "method": name,
            **summary_in("milliseconds", seconds),
            "to_lloyd": ratio(seconds, times[LLOYD]) if LLOYD in times else None,
            "to_products": ratio(seconds, times[PRODUCTS]),
            "bytes_beyond_rows": peaks.get(name),
        }


def shown(rows: list[Row]) -> Table:
    """Return a table with one line per method and number of threads."""
    headings = ("method", "threads", "milliseconds", "to Lloyd's", "to the products", "GB")
    lines = []
    for row in rows:
        size = row["bytes_beyond_rows"]
        numbers = (row["to_lloyd"], row["to_products"], None if size is None else 1e-9 * size)
        cells = ("–" if number is None else f"{number:.2f}" for number in numbers)
        method = row["method"].replace("_", " ")
        lines.append((method, row["threads"], f"{row['milliseconds']:.1f}", *cells))
    return table("An iteration", headings, lines)


def main(argv: list[str] | None = None) -> None:
    """Measure, print the table, and write `mixture.json`."""
    command = Command("mixture", __doc__, argv)
    count, dim, components = QUICK_SIZE if command.quick else SIZES[command.device.type]
    rounds = QUICK_ROUNDS if command.quick else ROUNDS
    x = data(count, dim, components, command.device)
    rows: list[Row] = []
    counts = command.thread_counts()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # no fit should converge here
        peaks = memory(x, components)
        for threads in counts:
            torch.set_num_threads(threads)
            with threadpool_limits(threads):
                times = timed(x, components, rounds)
                rows += [{"threads": threads} | row for row in summary(times, peaks)]
    configuration = {
        "rows": count,
        "dim": dim,
        "components": components,
        "dtype": "float32",
        "matmul_precision": torch.get_float32_matmul_precision(),
        "bytes_of_responsibilities": 4 * count * components,  # no method may hold all of them at once
        "steps": (FEW, MORE),
        "threads": counts,
    }
    command.finish({"configuration": configuration, "results": rows}, [shown(rows)])


if __name__ == "__main__":
    main()
