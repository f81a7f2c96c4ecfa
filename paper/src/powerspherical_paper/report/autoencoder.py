"""The findings of the auto-encoder experiments, beside the paper's table; see `findings.py`."""

import statistics
from collections.abc import Iterator
from typing import Any

from powerspherical_paper import claims
from powerspherical_paper.autoencoder.additions import trainings
from powerspherical_paper.autoencoder.table import (
    PAPER,
    POSTERIORS,
    Kind,
    Results,
    Scores,
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
DATA = {"mnist": "MNIST", "fashion-mnist": "Fashion-MNIST", "digits": "the 8 × 8 digits of scikit-learn"}
PAPER_GAPS = gaps(
    {(q, dim): score.log_likelihood for q, by_dim in claims.VAE.items() for dim, score in by_dim.items()}
)

Plain = dict[tuple[str, int], Scores]  # the rows that the paper has too, by posterior and d


def vae(document: Document, name: str) -> Finding:
    """The paper's table beside ours, the options, and the other protocols."""
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
    alt = f"Test log-likelihood and evidence lower bound against the dimension, for each posterior. {text}"
    figures = [
        Figure(name, alt, f"The auto-encoders on {shown}."),
        Figure(
            f"{name}_images",
            "Test images, their reconstructions by the auto-encoder with a Power Spherical posterior, and its draws.",
            "Images of an auto-encoder with a Power Spherical posterior.",
        ),
    ]
    tables = [
        _by_posterior(usual, comparable),
        _side_by_side(usual, apart, comparable),
        *_more(results, comparable),
    ]
    return Finding(verdict, text, figures, tables, list(_notes(document, shown, comparable)))


def _notes(document: Document, data: str, comparable: bool) -> Iterator[str]:
    rows = document["results"]
    done = trainings(rows)
    planned = document["configuration"].get("runs", done)
    if done < planned:
        yield f"Only {done} of {planned} trainings are done. The same command continues with the rest."
    if not comparable:
        yield f"These runs are on {data}. The paper’s numbers are for MNIST and not comparable."
    else:
        yield from (f"{line}." for line in shortfalls(rows))
    for posterior, made in document.get("additions", {}).items():
        yield (
            f"The rows with a {words(posterior)} posterior were added by another command: {made['command']} "
            f"({made['created'][:10]}, {made['hardware']['device']}, torch {made['versions']['torch']})."
        )


def _by_posterior(usual: Plain, comparable: bool) -> Table:
    """One row per posterior and d, with the paper's columns if the data are the paper's."""
    head = ["posterior", "d"]
    for kind in ("LL", "ELBO"):
        head += [f"{kind}, paper", f"{kind}, ours", "difference"] if comparable else [kind]
    rows = []
    for (posterior, dim), scores in usual.items():
        row = [words(posterior), str(dim)]
        published = claims.VAE.get(posterior, {}).get(dim, (None, None))
        for theirs, ours in zip(published, scores, strict=True):
            row += _beside(theirs, ours) if comparable else [average(ours)]
        rows.append([*row, str(len(scores.elbo))])
    return Table(
        "Test log-likelihood (LL) and evidence lower bound (ELBO), in nats: mean ± standard deviation over seeds.",
        [*head, "seeds"],
        rows,
        "The paper reports one number per cell, without a spread. It has no spherical Cauchy and no Gaussian."
        if comparable
        else "",
        labels=2,
    )


def _beside(theirs: float | None, ours: list[float]) -> list[str]:
    """Three cells: the paper's number, ours, and the difference."""
    if theirs is None:
        return [ABSENT, average(ours), ABSENT]
    return [number(theirs, ".2f"), average(ours), number(statistics.fmean(ours) - theirs, "+z.2f")]


def _side_by_side(usual: Plain, apart: dict[int, float], comparable: bool) -> Table:
    """The log-likelihoods of all posteriors, one row per d."""
    posteriors = [one for one in POSTERIORS if any(one == posterior for posterior, _ in usual)]
    rows = []
    for dim in sorted({dim for _, dim in usual}):
        found = (usual.get((posterior, dim), Scores([], [])) for posterior in posteriors)
        row = [str(dim), *(average(one.log_likelihood) for one in found)]
        row += [number(each[dim], ".2f") if dim in each else ABSENT for each in (apart, PAPER_GAPS)]
        rows.append(row if comparable else row[:-1])
    head = ["d", *(words(posterior) for posterior in posteriors), "|LL(PS) − LL(vMF)|"]
    return Table(
        "Log-likelihoods of the posteriors side by side.",
        [*head, "in the paper"] if comparable else head,
        rows,
    )


def _more(results: Results, comparable: bool) -> Iterator[Table]:
    """A table of the options under the paper's protocol, and a table of the other protocols."""
    options = [kind for kind in results if kind.protocol == PAPER and kind != kind.plain]
    others = sorted((kind for kind in results if kind.protocol != PAPER), key=lambda kind: kind.protocol)
    if options:
        rows = []
        for kind in options:
            labels = [option(kind), words(kind.posterior), str(kind.dim)]
            rows.append([*labels, *_compare(results[kind], results.get(without_option(kind)))])
        yield Table(
            "Options under the paper’s protocol.",
            ["option", "posterior", "d", "LL", "change", "ELBO", "change", "seeds"],
            rows,
            "The change is relative to the same posterior without the option. A product of m spheres in d dimensions "
            "is compared with one sphere in m·(d−1) dimensions.",
            labels=3,
        )
    if others:
        rows = []
        for kind in others:
            labels = [words(kind.protocol), ", ".join(filter(None, (words(kind.posterior), option(kind))))]
            bases = [results.get(kind.as_in_the_paper)]
            if comparable:
                published = claims.VAE.get(kind.posterior, {}).get(kind.dim)
                bases.append(Scores(*([score] for score in published)) if published else None)
            rows.append([*labels, str(kind.dim), *_compare(results[kind], *bases)])
        differences = ["change", "vs. paper"] if comparable else ["change"]
        yield Table(
            "Other protocols.",
            ["protocol", "posterior", "d", "LL", *differences, "ELBO", *differences, "seeds"],
            rows,
            "The change is relative to our runs under the paper’s protocol.",
            labels=3,
        )


def option(kind: Kind) -> str:
    """How a kind differs from the paper's, apart from its protocol, in words."""
    options = []
    if kind.prior != kind.plain.prior:
        options.append(f"{words(kind.prior)} prior")
    if kind.factors is not None:
        options.append(f"product of {kind.factors} spheres")
    if kind.proposal is not None:
        options.append(PROPOSALS.get(kind.proposal, words(kind.proposal)))
    return ", ".join(options)


def without_option(kind: Kind) -> Kind:
    """The kind to compare an option with: for a product, the single sphere of as many degrees of freedom."""
    return kind.plain if kind.factors is None else kind.plain._replace(dim=kind.factors * (kind.dim - 1))


def _compare(scores: Scores, *bases: Scores | None) -> list[str]:
    """Cells for LL and ELBO, each followed by the differences to the bases, and for the number of seeds."""
    cells = []
    for index, values in enumerate(scores):
        cells.append(average(values))
        for base in bases:
            gap = ABSENT if base is None else number(scores.means[index] - base.means[index], "+z.2f")
            cells.append(gap)
    return [*cells, str(len(scores.elbo))]


def average(values: list[float]) -> str:
    """Mean ± standard deviation, or the mean alone for a single value."""
    if not values:
        return ABSENT
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
    factors = Table(
        "Ratios of the time of a training step.",
        ["", "paper", *(f"d = {dim}" for dim in by_dim), "median"],
        [
            [
                key.replace("_", " ").replace("ps", "PS").replace("vmf", "vMF"),
                f"more than {claims.TRAINING_SPEEDUP:g}"
                if key == "published_vmf_over_published_ps"
                else ABSENT,
                *(number(each[key]) for each in by_dim.values()),
                number(median),
            ]
            for key, median in overall.items()
        ],
    )
    methods = list(next(iter(steps.values())))
    measured = Table(
        "Milliseconds per training step: median and quartiles.",
        ["d", *(words(method) for method in methods)],
        [[dim, *(_quartiles(each[method]) for method in methods)] for dim, each in steps.items()],
    )
    verdict = timed_verdict(verdicts(results, document["configuration"]["blocks"]))
    return Finding(verdict, text, tables=[factors, measured], notes=noise_notes(verdict))


def _quartiles(one: dict[str, Any]) -> str:
    low, high = one["quartiles"]
    return f"{one['median']:.2f} ({low:.2f} – {high:.2f})"
