"""The findings: verdicts and tables from result files, beside the paper's numbers."""

import copy
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
from result_folders import VAE_ROWS, vae_row, write_all


@pytest.fixture(scope="module")
def documents(tmp_path_factory):
    """The results of the experiments, by name."""
    with pytest.MonkeyPatch.context() as patch:
        folder = write_all(tmp_path_factory.mktemp("results"), patch)
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in folder.glob("*.json")}


def test_draws(documents):
    finding = figure1(documents["figure1"], "figure1")
    assert finding.verdict is Verdict.SHOWN
    assert len(finding.tables[0].rows) == 6
    assert finding.tables[0].rows[0][:2] == ["circle, κ = 4", "0.8000"]  # κ/(κ+d-1)


def auto_encoders(rows=VAE_ROWS, data="mnist", **configuration):
    return vae({"results": rows, "configuration": {"data": data, **configuration}}, "vae")


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
    """Trainings that are missing (one that is scored twice counts once), shortfalls, and notes in the file."""
    runs = len(VAE_ROWS)
    assert auto_encoders(runs=runs - 1).notes == []
    missing = f"Only {runs - 1} of {runs} trainings are done. The same command continues with the rest."
    assert auto_encoders(runs=runs).notes == [missing]
    low = [vae_row("power_spherical", 40, 0, -101.0, -109.0)]
    assert auto_encoders(low).notes == ["Power Spherical, d=40: log-likelihood 2.37 nats below the paper's."]
    document = {"results": VAE_ROWS, "configuration": {"data": "mnist"}, "notes": ["Mind the gap."]}
    assert vae(document, "vae").notes == ["Mind the gap."]


def test_auto_encoders_that_differ():
    rows = [vae_row("power_spherical", 5, 0, -90.0, -95.0), vae_row("von_mises_fisher", 5, 0, -92.0, -97.0)]
    assert auto_encoders(rows).verdict is Verdict.REFUTED
    assert auto_encoders(rows[:1]).verdict is Verdict.SHOWN


def sampling(published, spread):
    span = {"min": published, "max": 25.0}
    held = {
        "ps_at_least_6_times_faster": published >= 6,
        "ps_almost_20_times_faster_somewhere": False,
        "ps_constant_in_concentration": spread < 1.5,
        "vmf_constant_in_concentration": True,
    }
    judged = {"vmf_over_ps": span, "spread_over_concentrations": {"ps": spread, "vmf": 3.0}, "verdict": held}
    time = {"mean": 1.5, "variance": 0.25, "median": 1.4}
    return {
        "hardware": {"device": "cpu"},
        "configuration": {"batch": 100, "dim": 64, "concentrations": [1000.0]},
        "results": {
            "milliseconds": {"published_ps": [time]},
            "published_over_ours": {"ps": span, "vmf": span},
            "claims": {"published": judged, "ours": judged},
        },
    }


def test_sampling_time():
    finding = efficiency(sampling(5.0, 1.2), "efficiency")
    compared, times = finding.tables
    assert [row[1:] for row in compared.rows] == [
        ["6 – 20", "5.0 – 25.0", "5.0 – 25.0"],
        ["1", "1.2", "1.2"],
        ["not constant", "3.0", "3.0"],
    ]
    assert times.rows == [["1,000", "1.500 ± 0.500"]]
    assert finding.verdict is Verdict.PARTLY
    assert efficiency(sampling(5.0, 2.0), "efficiency").verdict is Verdict.REFUTED


def test_sampling_time_that_noise_leaves_open():
    """An open claim matters if the others are refuted. If one of them is confirmed, it does not."""
    document = sampling(5.0, 2.0)
    held = document["results"]["claims"]["published"]["verdict"]
    held["ps_constant_in_concentration"] = None
    finding = efficiency(document, "efficiency")
    assert (str(finding.verdict), finding.verdict.tone) == ("not measurable here", "unmeasurable")
    assert finding.notes == [
        "The timings are too noisy here for a verdict. Run the command again on an idle machine."
    ]
    held["ps_at_least_6_times_faster"] = True
    finding = efficiency(document, "efficiency")
    assert (finding.verdict, finding.notes) == (Verdict.PARTLY, [])


def training(factor, quartiles, blocks=40):
    factors = {"published_vmf_over_published_ps": factor, "published_vmf_over_our_ps": 3.0}
    steps = {
        "our_ps": {"median": 1.0, "quartiles": [0.9, 1.2]},
        "published_ps": {"median": 500.0, "quartiles": quartiles},
        "published_vmf": {"median": 500.0 * factor, "quartiles": [factor * one for one in quartiles]},
    }
    results = {
        "milliseconds_per_step": {"10": steps},
        "factors": factors,
        "factors_by_dim": {"10": factors},
    }
    return training_time({"results": results, "configuration": {"blocks": blocks}}, "training_time")


@pytest.mark.parametrize(
    ("factor", "verdict"), [(2.1, Verdict.CONFIRMED), (1.5, Verdict.PARTLY), (0.9, Verdict.REFUTED)]
)
def test_training(factor, verdict):
    finding = training(factor, [495.0, 505.0])
    assert (finding.verdict, finding.notes) == (verdict, [])
    assert finding.tables[0].rows[0] == [
        "published vMF over published PS",
        "more than 2",
        f"{factor:g}",
        f"{factor:g}",
    ]
    assert finding.tables[1].rows[0][:2] == ["10", "1.00 (0.90 – 1.20)"]


@pytest.mark.parametrize("factor", [0.9, 1.5, 2.1])
def test_training_that_noise_leaves_open(factor):
    """Quartiles of 261 and 825 ms, as on a busy machine, cannot decide on a factor of 2 without very many blocks."""
    finding = training(factor, [261.0, 825.0], blocks=6)
    assert finding.verdict is Verdict.UNMEASURABLE
    assert "too noisy" in finding.notes[0]
    assert training(factor, [261.0, 825.0], blocks=10**6).verdict is not Verdict.UNMEASURABLE


@pytest.mark.parametrize(
    ("vmf", "ps", "verdict"), [(3, 0, Verdict.CONFIRMED), (3, 1, Verdict.PARTLY), (0, 0, Verdict.REFUTED)]
)
def test_stability(documents, vmf, ps, verdict):
    one = copy.deepcopy(documents["stability"])
    one["results"]["samples"]["published_vmf"]["bad"] = vmf
    one["results"]["samples"]["published_ps"]["bad"] = ps
    finding = stability(one, "stability")
    assert finding.verdict is verdict
    assert finding.tables[0].rows[0] == ["vMF, published", "4", str(vmf), "0"]
    assert finding.notes == []
    one["results"]["passed"] = False
    assert "failed" in stability(one, "stability").notes[0]


def test_properties_that_are_no_numbers(documents):
    one = copy.deepcopy(documents["properties"])
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
