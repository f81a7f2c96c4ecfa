"""The findings: verdicts and tables from result files, beside the paper's numbers."""

import json

import pytest

from powerspherical_paper import claims
from powerspherical_paper.report.autoencoder import training_time, vae
from powerspherical_paper.report.findings import (
    Verdict,
    efficiency,
    figure1,
    properties,
    small,
    stability,
)
from results_of import PUBLISHED, vae_row

#: Two seeds per spherical posterior, at half a nat around (paper's number + 1), and one row of every other kind.
VAE_ROWS = [
    *(vae_row("power_spherical", 10, seed, -96.96 + seed, -101.36 + seed) for seed in (0, 1)),
    *(vae_row("von_mises_fisher", 10, seed, -96.87 + seed, -101.28 + seed) for seed in (0, 1)),
    vae_row("gaussian", 10, 0, -95.0, -99.0),
    vae_row("power_spherical", 10, 0, -97.0, -102.0, prior="von_mises_fisher"),
    vae_row("power_spherical", 3, 0, -90.0, -96.0, factors=5),
    vae_row("power_spherical", 10, 0, -96.56, -101.0, proposal="closest_von_mises_fisher"),
    vae_row("power_spherical", 10, 0, -95.46, -99.0, protocol="early_stopping"),
]


def published(name):
    return json.loads((PUBLISHED / f"{name}.json").read_text(encoding="utf-8"))


def test_draws():
    finding = figure1(published("figure1"), "figure1")
    assert finding.verdict is Verdict.SHOWN
    assert len(finding.tables[0].rows) == 6
    assert finding.tables[0].rows[0][:2] == ["circle, κ = 4", "0.8000"]  # κ/(κ+d-1)


def auto_encoders(rows=VAE_ROWS, data="mnist"):
    return vae({"results": rows, "configuration": {"data": data}}, "vae")


def test_auto_encoders_beside_the_paper():
    """A posterior that the paper does not have gets its own row, and no number of the paper."""
    rows = [*VAE_ROWS, vae_row("von_mises_fisher", 10, 0, -95.0, -98.0, protocol="tuned")]
    finding = auto_encoders(rows)
    assert finding.tables[0].rows == [
        ["Power Spherical", "10", "−97.46, −101.86", "−96.46, −100.86", "–"],
        ["von Mises–Fisher", "10", "−97.37, −101.78", "−96.37, −100.78", "−95.00, −98.00"],
        ["Gaussian", "10", "–", "−95.00, −99.00", "–"],
    ]
    assert (finding.verdict, finding.notes) == (Verdict.CONFIRMED, [])
    assert "differ by at most 0.09 nats (in the paper: 0.10), for d = 10" in finding.text


def test_every_run_of_the_auto_encoders():
    """With its spread over seeds and its change. The base has -96.46 and -100.86."""
    assert auto_encoders().tables[1].rows == [
        ["none", "Power Spherical", "10", "−96.46 ± 0.71", "–", "−100.86 ± 0.71", "–", "2"],
        ["none", "von Mises–Fisher", "10", "−96.37 ± 0.71", "–", "−100.78 ± 0.71", "–", "2"],
        ["none", "Gaussian", "10", "−95.00", "–", "−99.00", "–", "1"],
        ["product of 5 spheres", "Power Spherical", "3", "−90.00", "+6.46", "−96.00", "+4.86", "1"],
        ["replaced by the closest vMF", "Power Spherical", "10", "−96.56", "−0.10", "−101.00", "−0.14", "1"],
        ["von Mises–Fisher prior", "Power Spherical", "10", "−97.00", "−0.54", "−102.00", "−1.14", "1"],
        ["early stopping", "Power Spherical", "10", "−95.46", "+1.00", "−99.00", "+1.86", "1"],
    ]


def test_other_data_are_not_compared_with_the_paper():
    finding = auto_encoders(data="digits")
    assert "the paper" not in finding.tables[0].head
    assert finding.tables[0].rows[0] == ["Power Spherical", "10", "−96.46, −100.86", "–"]
    assert "for MNIST and not comparable" in finding.notes[0]
    assert "in the paper" not in finding.text
    assert finding.verdict is Verdict.SHOWN


def test_notes_on_auto_encoders():
    """Shortfalls, and notes in the file."""
    low = [vae_row("power_spherical", 40, 0, -101.0, -109.0)]
    assert auto_encoders(low).notes == ["Power Spherical, d=40: log-likelihood 2.37 nats below the paper's."]
    document = {"results": VAE_ROWS, "configuration": {"data": "mnist"}, "notes": ["Mind the gap."]}
    assert vae(document, "vae").notes == ["Mind the gap."]


def test_auto_encoders_that_differ():
    rows = [vae_row("power_spherical", 5, 0, -90.0, -95.0), vae_row("von_mises_fisher", 5, 0, -92.0, -97.0)]
    assert auto_encoders(rows).verdict is Verdict.REFUTED
    assert auto_encoders(rows[:1]).verdict is Verdict.SHOWN


@pytest.mark.parametrize(
    ("held", "verdict"),
    [
        ((True, True, True), Verdict.CONFIRMED),
        ((True, None, False), Verdict.PARTLY),  # an open claim matters only if the others agree
        ((False, False, False), Verdict.REFUTED),
        ((False, False, None), Verdict.UNMEASURABLE),
        ((True, None, True), Verdict.UNMEASURABLE),
    ],
)
def test_sampling_time(held, verdict):
    document = published("efficiency")
    names = (
        "ps_at_least_6_times_faster",
        "ps_almost_20_times_faster_somewhere",
        "ps_constant_in_concentration",
    )
    judged = document["results"]["claims"]["published"]["verdict"]
    assert set(judged) == {*names, "vmf_constant_in_concentration"}
    judged.update(zip(names, held, strict=True))
    finding = efficiency(document, "efficiency")
    assert finding.verdict is verdict
    noisy = ["The timings are too noisy here for a verdict. Run the command again on an idle machine."]
    assert finding.notes == (noisy if verdict is Verdict.UNMEASURABLE else [])
    compared, times = finding.tables
    assert [row[1:] for row in compared.rows[:2]] == [
        ["6 – 20", "1.8 – 3.8", "1.0 – 1.1"],
        ["1", "1.1", "1.1"],
    ]
    first = document["results"]["milliseconds"]["published_vmf"][0]
    assert times.rows[0][:2] == ["1", f"{first['mean']:.3f} ± {first['variance'] ** 0.5:.3f}"]


@pytest.mark.parametrize(
    ("factor", "spread", "blocks", "verdict"),
    [
        (2.1, 0.01, 40, Verdict.CONFIRMED),
        (1.5, 0.01, 40, Verdict.PARTLY),
        (0.9, 0.01, 40, Verdict.REFUTED),
        (2.1, 0.6, 6, Verdict.UNMEASURABLE),  # as on a busy machine
        (1.5, 0.6, 6, Verdict.UNMEASURABLE),
        (0.9, 0.6, 6, Verdict.UNMEASURABLE),
        (1.5, 0.6, 10**6, Verdict.PARTLY),
    ],
)
def test_training(factor, spread, blocks, verdict):
    """Times of the published vMF that are `factor` times those of the Power Spherical, with quartiles at ± `spread`."""
    document = published("training_time")
    results = document["results"]
    for dim, times in results["milliseconds_per_step"].items():
        for name, median in (("published_ps", 1.0), ("published_vmf", factor)):
            times[name] = {"median": median, "quartiles": [median * (1 - spread), median * (1 + spread)]}
        results["factors_by_dim"][dim]["published_vmf_over_published_ps"] = factor
    results["factors"]["published_vmf_over_published_ps"] = factor
    document["configuration"]["blocks"] = blocks
    finding = training_time(document, "training_time")
    assert finding.verdict is verdict
    assert bool(finding.notes) == (verdict is Verdict.UNMEASURABLE)
    rows = {row[0]: row[1:] for row in finding.tables[0].rows}
    assert rows["published vMF over published PS"] == ["more than 2", *[f"{factor:g}"] * 5]
    quartiles = f"1.00 ({1 - spread:.2f} – {1 + spread:.2f})"
    assert all(quartiles in row for row in finding.tables[1].rows)


@pytest.mark.parametrize(
    ("vmf", "ps", "verdict"), [(3, 0, Verdict.CONFIRMED), (3, 1, Verdict.PARTLY), (0, 0, Verdict.REFUTED)]
)
def test_stability(vmf, ps, verdict):
    one = published("stability")
    one["results"]["samples"]["published_vmf"]["bad"] = vmf
    one["results"]["samples"]["published_ps"]["bad"] = ps
    finding = stability(one, "stability")
    assert finding.verdict is verdict
    assert finding.tables[0].rows[0][:3] == ["vMF, published", "2,862", str(vmf)]
    assert finding.notes == []
    one["results"]["passed"] = False
    assert "failed" in stability(one, "stability").notes[0]


def test_properties_that_are_no_numbers():
    one = published("properties")
    assert properties(one, "properties").verdict is Verdict.CONFIRMED
    one["results"]["rows"].append({**one["results"]["rows"][0], "error": "nan", "passed": False})
    finding = properties(one, "properties")
    assert finding.verdict is Verdict.REFUTED
    assert finding.tables[0].rows[0][2] == "nan"
    assert finding.tables[0].rows[0][-1] == "differs"
    assert finding.tables[0].rows[0][1] == claims.PROPERTIES["E[X]"]


def test_the_papers_bounds_lie_below_its_likelihoods():
    for scores in claims.VAE.values():
        assert list(scores) == [5, 10, 20, 40]
        assert all(one.elbo < one.log_likelihood < 0 for one in scores.values())


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0.0, "0"), (0.25, "0.25"), (-3e-16, "−3.0 · 10⁻¹⁶"), (1.25e-8, "1.2 · 10⁻⁸"), (53.1, "53")],
)
def test_small(value, shown):
    assert small(value) == shown
