"""What the results of the auto-encoders say, beside the paper's table; see `findings.py`."""

import statistics
from typing import Any

from powerspherical.experiments import paper
from powerspherical.experiments.autoencoder.additions import trainings
from powerspherical.experiments.autoencoder.table import (
    PAPER,
    POSTERIORS,
    Kind,
    Results,
    Scores,
    collect,
    deviation,
    plain,
)
from powerspherical.experiments.autoencoder.training_time import claims
from powerspherical.experiments.autoencoder.vae import APART, shortfalls
from powerspherical.experiments.report.findings import (
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

PROPOSALS = {"closest_von_mises_fisher": "closest vMF returned"}
DATA = {"mnist": "MNIST", "fashion-mnist": "Fashion-MNIST", "digits": "the 8 × 8 digits of scikit-learn"}

Plain = dict[tuple[str, int], Scores]  # by posterior and d, as the paper has them


def vae(document: Document, name: str) -> Finding:
    """The paper's table beside ours, the options, and the other protocols."""
    rows, data = document["results"], document["configuration"]["data"]
    results = collect(rows)
    usual = plain(results)
    if not usual:
        raise ValueError("no rows under the paper's protocol")
    gaps, shown, comparable = differences(usual), DATA.get(data, data), data == paper.VAE_DATA
    if gaps:
        worst = max(gaps.values())
        judged = Verdict.CONFIRMED if worst <= APART else Verdict.REFUTED
        verdict = judged if comparable else Verdict.SHOWN  # the claim is about MNIST
        said = f"; in the paper by {number(max(_paper_gaps().values()), '.2f')}" if comparable else ""
        text = (
            f"On {shown} the log-likelihoods with Power Spherical and von Mises–Fisher posteriors differ by "
            f"{number(worst, '.2f')} nats at most (d = {', '.join(str(dim) for dim in gaps)}){said}."
        )
    else:
        verdict, text = (
            Verdict.SHOWN,
            f"On {shown} the two posteriors were not both trained at one dimension.",
        )
    if comparable:
        notes = [f"{_named(line)}." for line in shortfalls(rows)]
    else:
        notes = [f"These runs are on {shown}. The paper’s numbers are for MNIST and not comparable."]
    done = trainings(rows)
    planned = document["configuration"].get("runs", done)
    if done < planned:
        notes.insert(
            0, f"Only {done} of {planned} trainings are done; the same command goes on with the rest."
        )
    notes += [_added(posterior, made) for posterior, made in document.get("additions", {}).items()]
    alt = f"Test log-likelihood and evidence lower bound against the dimension, for each posterior. {text}"
    figures = [
        Figure(name, alt, f"The auto-encoders on {shown}."),
        Figure(
            f"{name}_images",
            "Test images, what the auto-encoder with a Power Spherical posterior makes of them, and images it draws.",
            "Images of an auto-encoder with a Power Spherical posterior.",
        ),
    ]
    tables = [
        _by_posterior(usual, comparable),
        _side_by_side(usual, gaps, comparable),
        *_more(results, comparable),
    ]
    return Finding(verdict, text, figures, tables, notes)


def _added(posterior: str, made: dict[str, Any]) -> str:
    """How rows were made that another command added to the result."""
    return (
        f"The rows with a {words(posterior)} posterior were added by another command: {made['command']} "
        f"({made['created'][:10]}, {made['hardware']['device']}, torch {made['versions']['torch']})."
    )


def _named(line: str) -> str:
    """A line with the posteriors' names in words."""
    for name, label in POSTERIORS.items():
        line = line.replace(name, label)
    return line


def differences(usual: Plain) -> dict[int, float]:
    """|LL(PS) - LL(vMF)| by dimension, where there are both."""
    means = {key: statistics.fmean(scores.log_likelihood) for key, scores in usual.items()}
    return {
        dim: abs(mean - means["von_mises_fisher", dim])
        for (posterior, dim), mean in means.items()
        if posterior == "power_spherical" and ("von_mises_fisher", dim) in means
    }


def _paper_gaps() -> dict[int, float]:
    ps, vmf = paper.VAE["power_spherical"], paper.VAE["von_mises_fisher"]
    return {dim: abs(ps[dim].log_likelihood - vmf[dim].log_likelihood) for dim in ps}


def _by_posterior(usual: Plain, comparable: bool) -> Table:
    """A row for each posterior and d; the paper's columns only where the data are the paper's."""
    head = ["posterior", "d"]
    for kind in ("LL", "ELBO"):
        head += [f"{kind}, paper", f"{kind}, ours", "difference"] if comparable else [kind]
    rows = []
    for (posterior, dim), scores in usual.items():
        row = [words(posterior), str(dim)]
        for said, ours in zip(paper.VAE.get(posterior, {}).get(dim, (None, None)), scores, strict=True):
            row += _beside(said, ours) if comparable else [average(ours)]
        rows.append([*row, str(len(scores.elbo))])
    return Table(
        "Test log-likelihood (LL) and evidence lower bound (ELBO), in nats: mean ± standard deviation over seeds.",
        [*head, "seeds"],
        rows,
        "The paper reports one number a cell, without a spread, and neither a spherical Cauchy nor a Gaussian."
        if comparable
        else "",
        labels=2,
    )


def _beside(said: float | None, ours: list[float]) -> list[str]:
    """The paper's number, ours, and the difference."""
    if said is None:
        return [ABSENT, average(ours), ABSENT]
    return [number(said, ".2f"), average(ours), number(statistics.fmean(ours) - said, "+z.2f")]


def _side_by_side(usual: Plain, gaps: dict[int, float], comparable: bool) -> Table:
    """The log-likelihoods of the posteriors in one row for each d."""
    posteriors = [one for one in POSTERIORS if any(one == posterior for posterior, _ in usual)]
    said = _paper_gaps()
    rows = []
    for dim in sorted({dim for _, dim in usual}):
        found = (usual.get((posterior, dim), Scores([], [])) for posterior in posteriors)
        row = [str(dim), *(average(one.log_likelihood) for one in found)]
        row += [number(each[dim], ".2f") if dim in each else ABSENT for each in (gaps, said)]
        rows.append(row if comparable else row[:-1])
    head = ["d", *(words(posterior) for posterior in posteriors), "|LL(PS) − LL(vMF)|"]
    return Table("The posteriors side by side: LL.", [*head, "in the paper"] if comparable else head, rows)


def _more(results: Results, comparable: bool) -> list[Table]:
    """The options under the paper's protocol, and whatever ran under another."""
    options = [kind for kind in results if kind.protocol == PAPER and kind != kind.plain]
    others = sorted((kind for kind in results if kind.protocol != PAPER), key=lambda kind: kind.protocol)
    tables = []
    if options:
        rows = []
        for kind in options:
            labels = [told(kind), words(kind.posterior), str(kind.dim)]
            rows.append(
                [*labels, *_compare(results[kind], results.get(without(kind))), _seeds(results, kind)]
            )
        head = ["option", "posterior", "d", "LL", "to without", "ELBO", "to without", "seeds"]
        caption = "Options, and the difference to the same posterior without the option."
        note = "A product of m spheres in d dimensions stands beside one sphere in m·(d−1) dimensions."
        tables.append(Table(caption, head, rows, note, labels=3))
    if others:
        rows = []
        for kind in others:
            labels = [words(kind.protocol), ", ".join(filter(None, (words(kind.posterior), told(kind))))]
            bases = [results.get(kind.as_in_the_paper)]
            if comparable:
                said = paper.VAE.get(kind.posterior, {}).get(kind.dim)
                bases.append(Scores([said.log_likelihood], [said.elbo]) if said else None)
            rows.append([*labels, str(kind.dim), *_compare(results[kind], *bases), _seeds(results, kind)])
        differences = ["to its protocol", "to the paper"] if comparable else ["to its protocol"]
        head = ["protocol", "posterior", "d", "LL", *differences, "ELBO", *differences, "seeds"]
        caption = (
            "Other protocols, and the differences to the paper’s protocol" + " and numbers." * comparable
        )
        tables.append(Table(caption if comparable else f"{caption}.", head, rows, labels=3))
    return tables


def told(kind: Kind) -> str:
    """What sets a kind apart from the paper's, its protocol aside, in words."""
    options = []
    if kind.prior != kind.plain.prior:
        options.append(f"{words(kind.prior)} prior")
    if kind.factors is not None:
        options.append(f"product of {kind.factors} spheres")
    if kind.proposal is not None:
        options.append(PROPOSALS.get(kind.proposal, words(kind.proposal)))
    return ", ".join(options)


def without(kind: Kind) -> Kind:
    """The kind to compare options with; for a product the single sphere of about as many degrees of freedom."""
    return kind.plain if kind.factors is None else kind.plain._replace(dim=kind.factors * (kind.dim - 1))


def _compare(scores: Scores, *bases: Scores | None) -> list[str]:
    """LL and ELBO, and after each the difference of its mean to that of every base."""
    cells = []
    for index, values in enumerate(scores):
        cells.append(average(values))
        for base in bases:
            gap = ABSENT if base is None else number(scores.means[index] - base.means[index], "+z.2f")
            cells.append(gap)
    return cells


def _seeds(results: Results, kind: Kind) -> str:
    return str(len(results[kind].elbo))


def average(values: list[float]) -> str:
    """Mean ± standard deviation; without the latter for a single value."""
    if not values:
        return ABSENT
    mean = number(statistics.fmean(values), ".2f")
    return mean if len(values) == 1 else f"{mean} ± {deviation(values):.2f}"


def training_time(document: Document, name: str) -> Finding:
    """How long a step takes with each posterior, and the factors between them beside the paper's."""
    results = document["results"]
    steps, by_dim, overall = (results[key] for key in ("milliseconds_per_step", "factors_by_dim", "factors"))
    published, ours = (overall[f"published_vmf_over_{whose}_ps"] for whose in ("published", "our"))
    text = (
        f"A step of training with the published vMF takes {number(published)} times as long as with the published "
        f"Power Spherical, and {number(ours)} times as long as with ours."
    )
    factors = Table(
        "How many times as long a step takes.",
        ["", "paper", *(f"d = {dim}" for dim in by_dim), "median"],
        [
            [
                key.replace("_", " ").replace("ps", "PS").replace("vmf", "vMF"),
                f"more than {paper.TRAINING_SPEEDUP:g}"
                if key == "published_vmf_over_published_ps"
                else ABSENT,
                *(number(each[key]) for each in by_dim.values()),
                number(middle),
            ]
            for key, middle in overall.items()
        ],
    )
    methods = list(next(iter(steps.values())))
    measured = Table(
        "Milliseconds for a step of training: median and quartiles.",
        ["d", *(words(method) for method in methods)],
        [[dim, *(_quartiles(each[method]) for method in methods)] for dim, each in steps.items()],
    )
    verdict = timed_verdict(claims(results, document["configuration"]["blocks"]))
    return Finding(verdict, text, tables=[factors, measured], notes=noise_notes(verdict))


def _quartiles(one: dict[str, Any]) -> str:
    low, high = one["quartiles"]
    return f"{one['median']:.2f} ({low:.2f} – {high:.2f})"
