"""The findings of the auto-encoder experiments, beside the paper's table; see `findings.py`."""

import statistics
from collections.abc import Iterator
from typing import Any

from powerspherical_paper import claims
from powerspherical_paper.autoencoder.table import (
    PAPER,
    POSTERIORS,
    Kind,
    Results,
    collect,
    deviation,
    gaps,
    plain,
)
from powerspherical_paper.autoencoder.training_time import verdicts
from powerspherical_paper.autoencoder.vae import APART, shortfalls
from powerspherical_paper.report.findings import (
    ABSENT,
    Document,
    Figure,
    Finding,
    Table,
    Verdict,
    noise_notes,
    number,
    timed_verdict,
    words,
)

PROPOSALS = {"closest_von_mises_fisher": "replaced by the closest vMF"}
DATA = {"mnist": "MNIST", "digits": "the 8 × 8 digits of scikit-learn"}
PAPER_GAPS = gaps(
    {(q, dim): score.log_likelihood for q, by_dim in claims.VAE.items() for dim, score in by_dim.items()}
)


def vae(document: Document, name: str) -> Finding:
    """The paper's table beside ours, and all runs with their spread over seeds."""
    rows, data = document["results"], document["configuration"]["data"]
    results = collect(rows)
    usual = plain(results)
    if not usual:
        raise ValueError("no rows under the paper's protocol")
    apart = gaps({key: scores.means[0] for key, scores in usual.items()})
    shown, comparable = DATA.get(data, data), data == claims.VAE_DATA
    verdict, text = Verdict.SHOWN, f"On {shown}, the two posteriors share no dimension to compare them at."
    if apart:
        worst = max(apart.values())
        in_the_paper = ""
        if comparable:  # the claim is about MNIST
            verdict = Verdict.CONFIRMED if worst <= APART else Verdict.REFUTED
            in_the_paper = f" (in the paper: {number(max(PAPER_GAPS.values()), '.2f')})"
        text = (
            f"On {shown}, the log-likelihoods with Power Spherical and von Mises–Fisher posteriors differ by at most "
            f"{number(worst, '.2f')} nats{in_the_paper}, for d = {', '.join(str(dim) for dim in apart)}."
        )
    figure = Figure(
        name,
        f"Test log-likelihood and evidence lower bound on {shown} against the dimension, for each posterior.",
    )
    notes = list(_notes(document, shown, comparable))
    return Finding(verdict, text, [figure], [scores(results, comparable), every(results)], notes)


def _notes(document: Document, data: str, comparable: bool) -> Iterator[str]:
    yield from document.get("notes", ())
    if not comparable:
        yield f"These runs are on {data}. The paper’s numbers are for MNIST and not comparable."
    else:
        yield from (f"{line}." for line in shortfalls(document["results"]))


def scores(results: Results, comparable: bool = True) -> Table:
    """The mean scores: in the paper (for `comparable` data), by its protocol, and tuned. Also in the documentation."""
    tuned = {key: found.means for key, found in plain(results, "tuned").items()}
    rows = []
    for (posterior, dim), found in plain(results).items():
        columns = [found.means, tuned.get((posterior, dim))]
        if comparable:
            columns.insert(0, claims.VAE.get(posterior, {}).get(dim))
        rows.append([POSTERIORS[posterior], str(dim), *map(_pair, columns)])
    return Table(
        "Test log-likelihood and evidence lower bound, in nats: means over seeds.",
        ["posterior", "d", *(["the paper"] if comparable else []), "the paper's protocol", "tuned"],
        rows,
        "The paper has no spherical Cauchy and no Gaussian." if comparable else "",
        labels=2,
    )


def _pair(means: tuple[float, float] | None) -> str:
    return ABSENT if means is None else ", ".join(number(mean, ".2f") for mean in means)


def every(results: Results) -> Table:
    """All runs with their spread over seeds, and how each change to the paper's protocol moves the scores."""
    rows = []
    for kind in sorted(results, key=lambda kind: (kind.protocol != PAPER, kind.protocol, change(kind))):
        found, base = results[kind], results.get(compared_with(kind))
        cells = [change(kind) or "none", words(kind.posterior), str(kind.dim)]
        for index, values in enumerate(found):
            cells.append(average(values))
            moved = None if kind == kind.plain or base is None else found.means[index] - base.means[index]
            cells.append(ABSENT if moved is None else number(moved, "+z.2f"))
        rows.append([*cells, str(len(found.elbo))])
    return Table(
        "Every run: log-likelihood (LL) and evidence lower bound (ELBO), mean ± standard deviation over seeds.",
        ["change to the paper’s protocol", "posterior", "d", "LL", "change", "ELBO", "change", "seeds"],
        rows,
        "A product of m spheres in d dimensions is compared with one sphere in m·(d−1) dimensions, any other change "
        "with the same posterior under the paper’s protocol.",
        labels=3,
    )


def change(kind: Kind) -> str:
    """How a kind differs from the paper's, in words."""
    changes = [] if kind.protocol == PAPER else [words(kind.protocol)]
    if kind.prior != kind.plain.prior:
        changes.append(f"{words(kind.prior)} prior")
    if kind.factors is not None:
        changes.append(f"product of {kind.factors} spheres")
    if kind.proposal is not None:
        changes.append(PROPOSALS.get(kind.proposal, words(kind.proposal)))
    return ", ".join(changes)


def compared_with(kind: Kind) -> Kind:
    """The kind without its change: for a product, the single sphere of as many degrees of freedom."""
    return kind.plain if kind.factors is None else kind.plain._replace(dim=kind.factors * (kind.dim - 1))


def average(values: list[float]) -> str:
    """Mean ± standard deviation, or the mean alone for a single value."""
    mean = number(statistics.fmean(values), ".2f")
    return mean if len(values) == 1 else f"{mean} ± {deviation(values):.2f}"


def training_time(document: Document, name: str) -> Finding:
    """The time of a training step with each posterior, and the ratios beside the paper's."""
    results = document["results"]
    steps, by_dim, overall = (results[key] for key in ("milliseconds_per_step", "factors_by_dim", "factors"))
    published, ours = (overall[f"published_vmf_over_{whose}_ps"] for whose in ("published", "our"))
    text = (
        f"A training step with the published vMF takes {number(published)} times as long as with the published Power "
        f"Spherical, and {number(ours)} times as long as with ours."
    )
    in_the_paper = {"published_vmf_over_published_ps": f"more than {claims.TRAINING_SPEEDUP:g}"}
    factors = Table(
        "Ratios of the time of a training step.",
        ["", "paper", *(f"d = {dim}" for dim in by_dim), "median"],
        [
            [
                key.replace("_", " ").replace("ps", "PS").replace("vmf", "vMF"),
                in_the_paper.get(key, ABSENT),
                *(number(each[key]) for each in by_dim.values()),
                number(median),
            ]
            for key, median in overall.items()
        ],
    )
    measured = Table(
        "Milliseconds per training step: median and quartiles.",
        ["d", *(words(method) for method in next(iter(steps.values())))],
        [[dim, *(_quartiles(one) for one in each.values())] for dim, each in steps.items()],
    )
    verdict = timed_verdict(verdicts(results, document["configuration"]["blocks"]))
    return Finding(verdict, text, tables=[factors, measured], notes=noise_notes(verdict))


def _quartiles(one: dict[str, Any]) -> str:
    low, high = one["quartiles"]
    return f"{one['median']:.2f} ({low:.2f} – {high:.2f})"
