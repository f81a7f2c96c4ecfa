"""The rows of the table of auto-encoders, those that differ in their seed alone put together."""

import math
import statistics
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

PAPER = "paper"  # the name of the paper's protocol
POSTERIORS = {
    "power_spherical": "Power Spherical",
    "von_mises_fisher": "von Mises–Fisher",
    "spherical_cauchy": "spherical Cauchy",
    "gaussian": "Gaussian",
}
"""The posteriors in the order in which they are shown, with their names in words."""


class Kind(NamedTuple):
    """What rows that differ in their seed alone share."""

    posterior: str
    dim: int
    prior: str
    factors: int | None
    proposal: str | None
    protocol: str

    @property
    def plain(self) -> "Kind":
        """The same posterior and d as the paper has them: one sphere, the usual prior, the paper's protocol."""
        prior = "standard_normal" if self.posterior == "gaussian" else "uniform"
        return Kind(self.posterior, self.dim, prior, None, None, PAPER)

    @property
    def as_in_the_paper(self) -> "Kind":
        """The same under the paper's protocol."""
        return self._replace(protocol=PAPER)


class Scores(NamedTuple):
    """The scores of one kind, a number for each seed."""

    log_likelihood: list[float]
    elbo: list[float]

    @property
    def means(self) -> tuple[float, float]:
        """Log-likelihood and ELBO, each the mean over seeds."""
        return statistics.fmean(self.log_likelihood), statistics.fmean(self.elbo)


def deviation(values: Sequence[float]) -> float:
    """The standard deviation over seeds; NaN for one seed alone."""
    return statistics.stdev(values) if len(values) > 1 else math.nan


Results = dict[Kind, Scores]


def collect(rows: Iterable[dict[str, Any]]) -> Results:
    """The scores by kind: posteriors in the order of `POSTERIORS`, then by d."""
    found: Results = {}
    for row in rows:
        scores = found.setdefault(Kind(*(row[name] for name in Kind._fields)), Scores([], []))
        scores.log_likelihood.append(float(row["log_likelihood"]))
        scores.elbo.append(float(row["elbo"]))
    order = list(POSTERIORS)
    return dict(sorted(found.items(), key=lambda item: (order.index(item[0].posterior), item[0].dim)))


def place(row: dict[str, Any]) -> list[Any]:
    """The sort key of a row: its place in the file, whichever run was done first."""
    numbers, names = (row["dim"], row["seed"]), (row["prior"], row["factors"], row["proposal"])
    return [row["protocol"], row["posterior"], *numbers, *(str(name) for name in names)]


def plain(results: Results, protocol: str = PAPER) -> dict[tuple[str, int], Scores]:
    """Of one protocol, the rows without any option: by posterior and d."""
    return {
        (kind.posterior, kind.dim): scores
        for kind, scores in results.items()
        if kind.as_in_the_paper == kind.plain and kind.protocol == protocol
    }
