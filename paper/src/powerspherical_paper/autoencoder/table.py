"""The rows of the table of auto-encoders, grouped over seeds."""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

PAPER = "paper"  # the name of the paper's protocol
POSTERIORS = {
    "power_spherical": "Power Spherical",
    "von_mises_fisher": "von Mises–Fisher",
    "spherical_cauchy": "spherical Cauchy",
    "gaussian": "Gaussian",
}
"""The posteriors in the order of the table, with their names in words."""
COMPARED = ("power_spherical", "von_mises_fisher")  # the paper's posteriors


class Kind(NamedTuple):
    """What the rows of one group share: everything but the seed."""

    posterior: str
    dim: int
    prior: str
    factors: int | None
    proposal: str | None
    protocol: str

    @property
    def plain(self) -> "Kind":
        """The same posterior and d in the paper's setting: one sphere, the usual prior, the paper's protocol."""
        prior = "standard_normal" if self.posterior == "gaussian" else "uniform"
        return Kind(self.posterior, self.dim, prior, None, None, PAPER)


class Scores(NamedTuple):
    """The scores of one kind, one number per seed."""

    log_likelihood: list[float]
    elbo: list[float]

    @property
    def means(self) -> tuple[float, float]:
        """The mean log-likelihood and the mean ELBO over seeds."""
        return statistics.fmean(self.log_likelihood), statistics.fmean(self.elbo)


def deviation(values: Sequence[float]) -> float:
    """The standard deviation over seeds; NaN for a single seed."""
    return statistics.stdev(values) if len(values) > 1 else math.nan


Results = dict[Kind, Scores]


def collect(rows: Iterable[dict[str, Any]]) -> Results:
    """Group rows by kind: posteriors in the order of `POSTERIORS`, then by d."""
    found: Results = {}
    for row in rows:
        scores = found.setdefault(Kind(*(row[name] for name in Kind._fields)), Scores([], []))
        scores.log_likelihood.append(float(row["log_likelihood"]))
        scores.elbo.append(float(row["elbo"]))
    order = list(POSTERIORS)
    return dict(sorted(found.items(), key=lambda item: (order.index(item[0].posterior), item[0].dim)))


def place(row: dict[str, Any]) -> list[Any]:
    """The sort key of a row in the file, independent of the order in which runs finish."""
    numbers, names = (row["dim"], row["seed"]), (row["prior"], row["factors"], row["proposal"])
    return [row["protocol"], row["posterior"], *numbers, *(str(name) for name in names)]


def plain(results: Results, protocol: str = PAPER) -> dict[tuple[str, int], Scores]:
    """The scores of one protocol in the paper's setting (see `Kind.plain`), by posterior and d."""
    return {
        (kind.posterior, kind.dim): scores
        for kind, scores in results.items()
        if kind == kind.plain._replace(protocol=protocol)
    }


def gaps(log_likelihoods: Mapping[tuple[str, int], float]) -> dict[int, float]:
    """The differences between the posteriors `COMPARED`, by d. The keys of the argument are posterior and d."""
    ours, theirs = (
        {dim: value for (posterior, dim), value in log_likelihoods.items() if posterior == compared}
        for compared in COMPARED
    )
    return {dim: abs(ours[dim] - theirs[dim]) for dim in sorted(ours.keys() & theirs.keys())}
