"""What the results say: for each result file its verdict on the paper's claim, its tables and its figures.

Pure functions from a document that `write_json` wrote to what `page.py` shows; all text, nothing rendered.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from powerspherical.experiments import paper
from powerspherical.experiments.autoencoder.table import POSTERIORS
from powerspherical.experiments.closed_forms import label
from powerspherical.experiments.efficiency import LOOKS, UNMEASURABLE, judged
from powerspherical.experiments.stability import METHODS as EXAMINED

Document = dict[str, Any]


class Verdict(StrEnum):
    """What became of a claim of the paper."""

    CONFIRMED = "confirmed"
    PARTLY = "in part"
    REFUTED = "not confirmed"
    UNMEASURABLE = "not measurable here"  # the spread of the timings leaves it open
    SHOWN = "shown"  # nothing to judge

    @property
    def tone(self) -> str:
        """Its name, for a style sheet."""
        return self.name.lower()


@dataclass(frozen=True)
class Table:
    """A table of text; the first `labels` cells of each row are its heading.

    `on_cpu` is whether the processor computed it whatever the device of the run.
    """

    caption: str
    head: list[str]
    rows: list[list[str]]
    note: str = ""
    labels: int = 1
    on_cpu: bool = False


@dataclass(frozen=True)
class Figure:
    """A figure by the name of its file, without the ending; `on_cpu` as for a table."""

    name: str
    alt: str
    caption: str
    on_cpu: bool = False


@dataclass(frozen=True)
class Finding:
    """What one result file says; `text` is one sentence."""

    verdict: Verdict
    text: str
    figures: list[Figure] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


METHODS = {
    **{name: look[0] for name, look in LOOKS.items()},
    **{name: method[0].replace("$", "") for name, method in EXAMINED.items()},
    **POSTERIORS,
}
ABSENT = "–"
SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def number(value: float, form: str = ".3g") -> str:
    """A number with a true minus sign."""
    return f"{value:{form}}".replace("-", "−")


def small(value: float) -> str:
    """An error: two digits and a power of ten, or the plain number where that is short."""
    if not 0 < abs(value) < 0.01:
        return number(value, ".2g")
    digits, power = f"{value:.1e}".split("e")
    return f"{number(float(digits), '.1f')} · 10{str(int(power)).translate(SUPERSCRIPTS)}"


def words(name: str) -> str:
    """A name in a result file as a reader would write it."""
    return METHODS.get(name) or name.replace("_", " ")


def timed_verdict(held: Sequence[bool | None]) -> Verdict:
    """What claims on timings come to together; None, for one that the timings leave open, may count either way."""

    def verdict(assumed: bool) -> Verdict:
        known = [assumed if one is None else one for one in held]
        return Verdict.CONFIRMED if all(known) else Verdict.PARTLY if any(known) else Verdict.REFUTED

    best, worst = verdict(True), verdict(False)
    return best if best is worst else Verdict.UNMEASURABLE


def noise_notes(verdict: Verdict) -> list[str]:
    """What to say beside a verdict that the spread of the timings prevented."""
    again = "Run the command again while nothing else runs."
    return [f"{UNMEASURABLE.capitalize()}. {again}"] if verdict is Verdict.UNMEASURABLE else []


def device_of(document: Document) -> str:
    """Where a result was computed, in a sentence."""
    return str(document["hardware"]["device"].replace("cpu", "the CPU"))


def span(ratio: dict[str, float]) -> str:
    """The least and the greatest of a ratio."""
    return f"{number(ratio['min'])} to {number(ratio['max'])}"


def figure1(document: Document, name: str) -> Finding:
    """The draws, by the length of their mean beside the exact one."""
    rows = [
        [
            f"the {place}, κ = {one['concentration']:g}",
            number(one["mean_length"], ".4f"),
            number(one["sample_mean_length"], ".4f"),
            number(one["sample_mean_length"] - one["mean_length"], "+z.4f"),
        ]
        for place in ("circle", "sphere")
        for one in document["results"][place]
    ]
    samples = document["configuration"]["samples"]
    caption = "The length of the mean: of the distribution, and of its draws."
    alt = (
        "Left: the unit circle with three Power Spherical densities rising from it and histograms of their draws. "
        "Right: a sphere with the draws of three distributions about orthogonal directions, one tight and two wider."
    )
    return Finding(
        Verdict.SHOWN,
        f"{samples:,} draws from each of {len(rows)} distributions, beside their densities.",
        [Figure(name, alt, "Draws and densities of Power Spherical distributions.")],
        [Table(caption, ["distribution on", "exact", "draws", "difference"], rows)],
    )


def properties(document: Document, name: str) -> Finding:
    """The closed forms against quadrature and Monte Carlo, the worst of each over the grid."""
    every, settings = document["results"]["rows"], document["configuration"]
    rows = []
    for key in dict.fromkeys(row["name"] for row in every):
        group = [row for row in every if row["name"] == key]
        error = max(group, key=lambda row: _worst_last(row["error"]))
        z = max(group, key=lambda row: _worst_last(row["z"]))
        verdict = "agrees" if all(row["passed"] for row in group) else "differs"
        cells = [small(float(error["error"])), _at(error), number(float(z["z"]), ".2f"), _at(z), verdict]
        rows.append([key, paper.PROPERTIES.get(key, ABSENT), *cells])
    agreed = sum(row["passed"] for row in every)
    return Finding(
        Verdict.CONFIRMED if agreed == len(every) else Verdict.REFUTED,
        f"{agreed} of {len(every)} comparisons of the closed forms with quadrature and Monte Carlo agree.",
        tables=[
            Table(
                "The paper’s closed forms against quadrature (error) and Monte Carlo (|z|): the worst over the grid.",
                ["property", "paper’s formula", "error", "at (d, κ)", "|z|", "at (d, κ)", "verdict"],
                rows,
                f"Errors are relative, absolute below 1, and may reach {small(settings['tolerance'])}; |z| counts "
                f"standard errors of {settings['samples']:,} draws and may reach {settings['limit']:g}. "
                "α = (d−1)/2 + κ, β = (d−1)/2.",
                labels=2,
            )
        ],
    )


def _at(row: dict[str, Any]) -> str:
    return f"({row['dim']}, {row['concentration']:g})"


def _worst_last(value: float | str) -> tuple[bool, float]:
    """A key under which NaN, which a result file writes as text, is the greatest."""
    value = float(value)
    return value != value, value


def stability(document: Document, name: str) -> Finding:
    """The cells that are bad or off for each method, and the errors of the closed forms."""
    results = document["results"]
    samples = results["samples"]
    rows = [
        [words(key), *(f"{one[count]:,}" for count in ("cells", "bad", "off"))]
        for key, one in samples.items()
    ]
    forms = [
        [
            label(key),
            f"{one['cells']:,}",
            f"{one['not_finite']:,}",
            ABSENT if one["worst"] is None else small(one["worst"]),
            ABSENT if one["at"] is None else "({:,}, {:,})".format(*one["at"]),
        ]
        for key, one in results["closed_forms"].items()
    ]
    vmf, ps, ours = (samples[key]["bad"] for key in ("published_vmf", "published_ps", "our_ps"))
    verdict = Verdict.CONFIRMED if vmf > 0 == ps else Verdict.PARTLY if vmf > ps else Verdict.REFUTED
    cells = samples["published_vmf"]["cells"]
    text = (
        f"On {device_of(document)}: NaN, ∞ or no draw in {vmf:,} of {cells:,} cells for the published vMF, in {ps:,} "
        f"for the published Power Spherical; in {ours:,} for ours, and in {samples['our_vmf']['bad']:,} for our vMF."
    )
    side = paper.STABILITY_SIDE
    return Finding(
        verdict,
        text,
        [
            Figure(
                name,
                f"Maps over dimension and concentration, one for each method. {text}",
                "What became of ten float32 draws and their derivatives in κ, for every d and κ.",
            ),
            Figure(
                name.replace("stability", "accuracy"),
                "Maps of the errors of the KL divergence to the uniform and of the log-density over dimension and "
                "concentration: dark is accurate, hatched is NaN or infinite.",
                "The errors of the closed forms over a wider grid.",
                on_cpu=True,
            ),
        ],
        [
            Table(
                "Cells by what became of their draws.",
                ["method", "cells", "NaN or ∞", "of another law"],
                rows,
                f"The paper’s grid has {side} × {side} cells, d = 1 among them, where there is no sphere to speak of. "
                "A cell is of another law when its mean cosine cannot come from the distribution asked for.",
            ),
            Table(
                "The closed forms’ worst errors.",
                ["closed form", "cells", "NaN or ∞", "worst error", "at (d, κ)"],
                forms,
                on_cpu=True,
            ),
        ],
        [] if results["passed"] else ["A check of our own methods failed in this run."],
    )


def efficiency(document: Document, name: str) -> Finding:
    """The claims on sampling time beside what was measured, and the times."""
    results, settings = document["results"], document["configuration"]
    times, gain = results["milliseconds"], results["published_over_ours"]
    answers = [results["claims"][whose] for whose in ("published", "ours")]
    ratios = [one["vmf_over_ps"] for one in answers]
    spreads = [one["spread_over_concentrations"] for one in answers]
    least, most = paper.SAMPLING_SPEEDUP
    device = device_of(document)
    text = (
        f"On {device} the vMF takes {span(ratios[0])} times as long as the Power Spherical as published, "
        f"{span(ratios[1])} times with our samplers; over κ the time of the Power Spherical varies by a factor "
        f"{number(spreads[0]['ps'])} (ours {number(spreads[1]['ps'])})."
    )
    verdict = timed_verdict(judged(results["claims"]))
    claims = Table(
        "Is the Power Spherical 6 to 20 times faster, and constant in κ?",
        ["", "paper", "published methods, here", "ours, here"],
        [
            ["vMF over PS, least over κ", f"at least {least:g}", *(number(one["min"]) for one in ratios)],
            ["vMF over PS, greatest over κ", f"almost {most:g}", *(number(one["max"]) for one in ratios)],
            ["PS, slowest κ over fastest", "constant", *(number(one["ps"]) for one in spreads)],
            ["vMF, slowest κ over fastest", "not constant", *(number(one["vmf"]) for one in spreads)],
        ],
        f"The paper timed on an {paper.SAMPLING_DEVICE}. Published over ours: PS {span(gain['ps'])}, vMF "
        f"{span(gain['vmf'])}.",
    )
    measured = Table(
        f"Milliseconds for {settings['batch']} draws, d = {settings['dim']}: mean ± standard deviation over trials.",
        ["κ", *(words(key) for key in times)],
        [
            [f"{kappa:,g}", *(_mean_and_deviation(rows[i]) for rows in times.values())]
            for i, kappa in enumerate(settings["concentrations"])
        ],
    )
    return Finding(
        verdict,
        text,
        [
            Figure(
                name,
                f"Sampling time against κ, a line for each method. {text}",
                "Sampling time against κ.",
            )
        ],
        [claims, measured],
        noise_notes(verdict),
    )


def _mean_and_deviation(one: dict[str, float]) -> str:
    return f"{one['mean']:.3f} ± {one['variance'] ** 0.5:.3f}"
