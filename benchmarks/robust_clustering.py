"""Recovery of planted clusters among outliers: spherical Cauchy mixtures compared with the other families.

The clusters are von Mises–Fisher around random directions, and a fifth of all points is uniform. Each mixture has one
component per cluster and none for the outliers. The adjusted Rand index (ARI) is computed over the points that belong
to a cluster, and averaged over seeds.

    python benchmarks/robust_clustering.py [--threads N] [--quick] [--out DIR]
"""

import statistics
from collections.abc import Iterator

import torch
from _command import Command, Row, grouped, table
from sklearn.metrics import adjusted_rand_score
from torch import Tensor

from powerspherical import HypersphericalUniform, VonMisesFisher
from powerspherical.families import family_named, family_names
from powerspherical.mixture import mixture_named

CLUSTERS, POINTS, OUTLIERS, STARTS = 6, 300, 0.2, 5
SETTINGS, QUICK_SETTINGS = ((8, 30.0), (16, 40.0), (32, 60.0)), ((8, 30.0),)
SEEDS, QUICK_SEEDS = 10, 2


def planted(dim: int, kappa: float, seed: int) -> tuple[Tensor, Tensor]:
    """Return unit vectors, first those in clusters and then the outliers, and the cluster labels of the former."""
    generator = torch.Generator().manual_seed(seed)
    centres = HypersphericalUniform(dim).sample((CLUSTERS,), generator=generator)
    points = VonMisesFisher(centres, kappa).sample((POINTS,), generator=generator).reshape(-1, dim)
    outliers = round(len(points) * OUTLIERS / (1 - OUTLIERS))
    far = HypersphericalUniform(dim).sample((outliers,), generator=generator)
    return torch.cat([points, far]), torch.arange(CLUSTERS).repeat(POINTS)


def indices(name: str, concentration_type: str, dim: int, kappa: float, seeds: int) -> list[float]:
    """Return the adjusted Rand index of the mixture of one family, for each seed."""
    found = []
    for seed in range(seeds):
        x, labels = planted(dim, kappa, seed)
        mixture = mixture_named(name)(
            CLUSTERS, concentration_type=concentration_type, n_init=STARTS, random_state=seed
        ).fit(x)
        found.append(float(adjusted_rand_score(labels, mixture.predict(x[: len(labels)]))))
    return found


def results(settings: tuple[tuple[int, float], ...], seeds: int) -> Iterator[Row]:
    """Yield the results of every family, tied and free, in every setting."""
    for dim, kappa in settings:
        for concentration_type in ("tied", "free"):
            for name in family_names():
                each = indices(name, concentration_type, dim, kappa, seeds)
                yield {
                    "dim": dim,
                    "concentration": kappa,
                    "method": f"{family_named(name).title}, {concentration_type}",
                    "ari": statistics.fmean(each),
                    "each": each,
                }


def main(argv: list[str] | None = None) -> None:
    """Fit, print the table, and write `robust_clustering.json`."""
    command = Command("robust_clustering", __doc__, argv, cpu_only=True)
    settings, seeds = (QUICK_SETTINGS, QUICK_SEEDS) if command.quick else (SETTINGS, SEEDS)
    rows = list(results(settings, seeds))
    configuration = {
        "clusters": CLUSTERS,
        "points_per_cluster": POINTS,
        "outliers": OUTLIERS,
        "n_init": STARTS,
        "seeds": seeds,
    }
    shown = table(
        f"Adjusted Rand index, {OUTLIERS:.0%} outliers",
        ("method", *(f"d = {dim}, κ = {kappa:g}" for dim, kappa in settings)),
        grouped(rows, ("method",), lambda row: f"{row['ari']:.3f}"),
    )
    command.finish({"configuration": configuration, "results": rows}, [shown])


if __name__ == "__main__":
    main()
