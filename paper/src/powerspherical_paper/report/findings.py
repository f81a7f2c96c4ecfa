"""What each result file shows: a verdict on the paper's claim, tables and figures.

One function per experiment maps the document that `write_json` wrote to a `Finding`, which is plain text. The report
(`page.py`) renders it as HTML, the command line as text, and the documentation takes tables from it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from powerspherical_paper import claims
from powerspherical_paper.autoencoder.table import POSTERIORS
from powerspherical_paper.closed_forms import label
from powerspherical_paper.efficiency import LOOKS
from powerspherical_paper.stability import METHODS as EXAMINED

Document = dict[str, Any]


class Verdict(str, Enum):
    """The verdict on a claim of the paper."""

    CONFIRMED = "confirmed"
    PARTLY = "partly confirmed"
    REFUTED = "not confirmed"
    UNMEASURABLE = "not measurable here"  # the timings are too noisy to decide
    SHOWN = "shown"  # nothing to judge

    __str__ = str.__str__  # as of ``enum.StrEnum``, which Python 3.10 does not have


@dataclass(frozen=True)
class Table:
    """A table of text. The first `labels` cells of each row are its heading."""

    caption: str
    head: list[str]
    rows: list[list[str]]
    note: str = ""
    labels: int = 1


@dataclass(frozen=True)
class Figure:
    """A figure. `name` is its file name without the extension."""

    name: str
    caption: str


@dataclass(frozen=True)
class Finding:
    """What one result file shows; `text` sums it up, `notes` are caveats."""

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
    """A number with a typographic minus sign."""
    return f"{value:{form}}".replace("-", "−")


def small(value: float) -> str:
    """A number with two digits, in scientific notation below 0.01."""
    if not 0 < abs(value) < 0.01:
        return number(value, ".2g")
    digits, power = f"{value:.1e}".split("e")
    return f"{number(float(digits), '.1f')} · 10{str(int(power)).translate(SUPERSCRIPTS)}"


def words(name: str) -> str:
    """A name from a result file in words."""
    return METHODS.get(name) or name.replace("_", " ")


def timed_verdict(held: Sequence[bool | None]) -> Verdict:
    """The joint verdict on several claims about timings; None stands for a claim that noise leaves open.

    The verdict is `UNMEASURABLE` if it depends on how the open claims would turn out.
    """

    def verdict(assumed: bool) -> Verdict:
        known = [assumed if one is None else one for one in held]
        return Verdict.CONFIRMED if all(known) else Verdict.PARTLY if any(known) else Verdict.REFUTED

    best, worst = verdict(True), verdict(False)
    return best if best is worst else Verdict.UNMEASURABLE


def noise_notes(verdict: Verdict) -> list[str]:
    """The notes beside a joint verdict on timings."""
    if verdict is not Verdict.UNMEASURABLE:
        return []
    return ["The timings are too noisy here for a verdict. Run the command again on an idle machine."]


def device_of(document: Document) -> str:
    """The device of a result, as part of a sentence."""
    return str(document["hardware"]["device"].replace("cpu", "the CPU"))


def span(ratio: dict[str, float]) -> str:
    """The range of a ratio in words."""
    return f"{number(ratio['min'])} to {number(ratio['max'])}"


def figure1(document: Document, name: str) -> Finding:
    """The draws of Figure 1, with the length of their mean beside the exact value."""
    rows = [
        [
            f"{place}, κ = {one['concentration']:g}",
            number(one["mean_length"], ".4f"),
            number(one["sample_mean_length"], ".4f"),
            number(one["sample_mean_length"] - one["mean_length"], "+z.4f"),
        ]
        for place in ("circle", "sphere")
        for one in document["results"][place]
    ]
    samples = document["configuration"]["samples"]
    caption = "Length of the mean of each distribution, and of the mean of its draws."
    return Finding(
        Verdict.SHOWN,
        f"{samples:,} draws from each of {len(rows)} distributions.",
        [
            Figure(
                name,
                "Densities and histograms of draws on the circle (left), and draws on the sphere around three "
                "orthogonal mean directions (right).",
            )
        ],
        [Table(caption, ["distribution", "exact", "draws", "difference"], rows)],
    )


def properties(document: Document, name: str) -> Finding:
    """The closed forms against quadrature and Monte Carlo: the worst errors over the grid."""
    every, settings = document["results"]["rows"], document["configuration"]
    rows = []
    for key in dict.fromkeys(row["name"] for row in every):
        group = [row for row in every if row["name"] == key]
        error = max(group, key=lambda row: _worst_last(row["error"]))
        z = max(group, key=lambda row: _worst_last(row["z"]))
        verdict = "agrees" if all(row["passed"] for row in group) else "differs"
        cells = [small(float(error["error"])), _at(error), number(float(z["z"]), ".2f"), _at(z), verdict]
        rows.append([key, claims.PROPERTIES.get(key, ABSENT), *cells])
    agreed = sum(row["passed"] for row in every)
    return Finding(
        Verdict.CONFIRMED if agreed == len(every) else Verdict.REFUTED,
        f"{agreed} of {len(every)} comparisons agree: closed forms against quadrature and Monte Carlo.",
        tables=[
            Table(
                "The paper’s closed forms against quadrature (error) and Monte Carlo (|z|): worst cases over the grid.",
                ["property", "paper’s formula", "error", "at (d, κ)", "|z|", "at (d, κ)", "verdict"],
                rows,
                f"Errors are relative for values above 1 and absolute below; up to {small(settings['tolerance'])} is "
                f"allowed. |z| is the deviation of the mean of {settings['samples']:,} draws in standard errors; up to "
                f"{settings['limit']:g} is allowed. α = (d−1)/2 + κ, β = (d−1)/2.",
                labels=2,
            )
        ],
    )


def _at(row: dict[str, Any]) -> str:
    return f"({row['dim']}, {row['concentration']:g})"


def _worst_last(value: float | str) -> tuple[bool, float]:
    """A sort key that puts NaN last; result files contain NaN as text."""
    value = float(value)
    return value != value, value


def stability(document: Document, name: str) -> Finding:
    """The bad and off cells per method, and the errors of the closed forms."""
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
        f"On {device_of(document)}, draws or derivatives fail (NaN, ∞ or never accepted) in {vmf:,} of {cells:,} cells "
        f"with the published vMF, in {ps:,} with the published Power Spherical, in {ours:,} with our Power Spherical "
        f"and in {samples['our_vmf']['bad']:,} with our vMF."
    )
    side = claims.STABILITY_SIDE
    return Finding(
        verdict,
        text,
        [
            Figure(name, "State of ten float32 draws and their derivatives in κ, for every d and κ."),
            Figure(
                name.replace("stability", "accuracy"),
                "Errors of the closed forms on the CPU, over a wider grid. Hatched is NaN or infinite.",
            ),
        ],
        [
            Table(
                "Cells by the state of their draws.",
                ["method", "cells", "NaN or ∞", "wrong distribution"],
                rows,
                f"The paper’s grid has {side} × {side} cells. We leave out d = 1, which has no sphere. “Wrong "
                "distribution” means that the mean cosine is incompatible with the requested distribution.",
            ),
            Table(
                "Worst errors of the closed forms, on the CPU.",
                ["closed form", "cells", "NaN or ∞", "worst error", "at (d, κ)"],
                forms,
            ),
        ],
        [] if results["passed"] else ["A check of our own methods failed in this run."],
    )


def efficiency(document: Document, name: str) -> Finding:
    """The paper's claims about sampling time beside our measurements, and the times."""
    results, settings = document["results"], document["configuration"]
    times, gain = results["milliseconds"], results["published_over_ours"]
    answers = [results["claims"][whose] for whose in ("published", "ours")]
    ratios = [one["vmf_over_ps"] for one in answers]
    spreads = [one["spread_over_concentrations"] for one in answers]
    least, most = claims.SAMPLING_SPEEDUP
    text = (
        f"On {device_of(document)} the vMF takes {span(ratios[0])} times as long as the Power Spherical with the "
        f"published methods, and {span(ratios[1])} times with ours. Over κ, the time of the Power Spherical "
        f"varies by a factor of {number(spreads[0]['ps'])} (published) and {number(spreads[1]['ps'])} (ours)."
    )
    verdict = timed_verdict(
        [holds for claim, holds in answers[0]["verdict"].items() if claim.startswith("ps_")]
    )
    kappas = settings["concentrations"]
    compared = Table(
        "Is the Power Spherical 6 to 20 times faster, and constant in κ?",
        ["ratio of times", "paper", "published methods", "ours"],
        [
            [
                f"vMF over Power Spherical, for κ from {kappas[0]:,g} to {kappas[-1]:,g}",
                f"{least:g} – {most:g}",
                *(f"{one['min']:.1f} – {one['max']:.1f}" for one in ratios),
            ],
            ["slowest over fastest κ, Power Spherical", "1", *(f"{one['ps']:.1f}" for one in spreads)],
            ["slowest over fastest κ, vMF", "not constant", *(f"{one['vmf']:.1f}" for one in spreads)],
        ],
        f"The paper used an {claims.SAMPLING_DEVICE}. Time of the published methods over ours: PS {span(gain['ps'])}, "
        f"vMF {span(gain['vmf'])}.",
    )
    measured = Table(
        f"Milliseconds per {settings['batch']} draws, d = {settings['dim']}: mean ± standard deviation over trials.",
        ["κ", *(words(key) for key in times)],
        [
            [f"{kappa:,g}", *(f"{one['mean']:.3f} ± {one['variance'] ** 0.5:.3f}" for one in row)]
            for kappa, *row in zip(kappas, *times.values(), strict=True)
        ],
    )
    return Finding(
        verdict,
        text,
        [Figure(name, "Sampling time against κ, one line per method.")],
        [compared, measured],
        noise_notes(verdict),
    )
