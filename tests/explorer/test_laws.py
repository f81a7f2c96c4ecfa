"""The formulas of the explorer, run under node: against the mpmath tables, and against the package beyond them.

Errors are relative to the value, or to 1 where the value is smaller.
"""

import itertools
import json
import math
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from torch.distributions import kl_divergence

from helpers.mpmath_tables import load
from powerspherical import HypersphericalUniform, PowerSpherical, SphericalCauchy, VonMisesFisher, cli

NODE = shutil.which("node")
pytestmark = [pytest.mark.skipif(NODE is None, reason="node is not installed"), pytest.mark.slow]

LAWS = Path(cli.__file__).parents[1] / "explorer" / "laws.js"
CLASSES = {
    "power_spherical": PowerSpherical,
    "von_mises_fisher": VonMisesFisher,
    "spherical_cauchy": SphericalCauchy,
}
DIMS = (2, 3, 5, 100, 10_000)
KAPPAS = (1e-3, 0.1, 1.0, 30.0, 1e3, 1e6)
TOLERANCE = 1e-10


def evaluate(questions):
    """Return the answers of ``evaluate.js`` to a list of questions."""
    done = subprocess.run(
        [NODE, Path(__file__).with_name("evaluate.js"), LAWS],
        input=json.dumps(questions),
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=True,
    )
    return json.loads(done.stdout)


def assert_close(actual, expected, label, tolerance=TOLERANCE):
    expected = float(expected)
    assert abs(actual - expected) <= tolerance * max(1.0, abs(expected)), (label, actual, expected)


def in_range(dim, kappa):
    return dim <= 10_000 and (kappa == 0 or 1e-3 <= kappa <= 1e6)


def table_rows(name, part):
    """The rows of a table in the range of the explorer, as dictionaries by column."""
    table = load(name)
    rows = [dict(zip(table["columns"], map(float, row), strict=True)) for row in table[part]]
    return [row for row in rows if in_range(row["dim"], row["kappa"])]


def distribution(family, kappa, dim, angle=0.0):
    """The distribution of the package, whose direction forms an angle with the first axis."""
    if family == "uniform":
        return HypersphericalUniform(dim, dtype=torch.float64)
    loc = torch.zeros(dim, dtype=torch.float64)
    loc[:2] = torch.tensor([math.cos(angle), math.sin(angle)], dtype=torch.float64)
    return CLASSES[family](loc, torch.tensor(kappa, dtype=torch.float64))


@pytest.mark.parametrize(
    ("family", "table", "part"),
    [
        ("power_spherical", "functions.json", "power_spherical"),
        ("von_mises_fisher", "functions.json", "von_mises_fisher"),
        ("spherical_cauchy", "cauchy.json", "moments"),
    ],
)
def test_normaliser_and_moments(family, table, part):
    rows = table_rows(table, part)
    answers = evaluate([{"ask": "summary", "p": [family, row["kappa"], row["dim"]]} for row in rows])
    for row, answer in zip(rows, answers, strict=True):
        label = (family, row["dim"], row["kappa"])
        assert_close(answer["mean"], 1 - row["mean_complement"], label)
        if "log_normalizer" in row:
            area = HypersphericalUniform(int(row["dim"]), dtype=torch.float64).entropy()
            assert_close(answer["log_normalizer"], area + row["log_normalizer"], label)
        for name in {
            "kl_uniform",
            "mean_complement",
            "variance",
        } & row.keys():  # small values keep their digits
            assert answer[name] == pytest.approx(row[name], rel=TOLERANCE, abs=1e-30), (*label, name)


@pytest.mark.parametrize("family", ["power_spherical", "von_mises_fisher"])
def test_density_tails_and_quantile_of_t(family):
    rows = table_rows("marginals.json", family)
    points, quantiles = [], []
    for row in rows:
        near = row["t"] > 0
        row["minus"] = row["one_minus_t"] if near else 1 - row["t"]
        plus = 2 - row["one_minus_t"] if near else 1 + row["t"]
        p = [family, row["kappa"], row["dim"]]
        points.append({"ask": "point", "p": p, "minus": row["minus"], "plus": plus})
        u, complement = math.exp(row["log_cdf"]), math.exp(row["log_sf"])
        quantiles.append({"ask": "quantile", "p": p, "u": u, "complement": complement})
    for row, point, quantile in zip(rows, evaluate(points), evaluate(quantiles), strict=True):
        label = (family, row["dim"], row["kappa"], row["t"])
        assert_close(point["log_pdf"], row["log_pdf"], label)
        for side, log in (("below", "log_cdf"), ("above", "log_sf")):
            if row[log] > math.log(1e-20):
                assert point[side] == pytest.approx(math.exp(row[log]), rel=TOLERANCE, abs=0), (*label, side)
        if min(row["log_cdf"], row["log_sf"]) > math.log(1e-20):
            assert quantile["minus"] == pytest.approx(row["minus"], rel=TOLERANCE, abs=0), label


def assert_divergences(cases, tolerance):
    questions = [
        {"ask": "kl", "p": [p, kappa_p, dim], "q": [q, kappa_q, dim], "angle": angle}
        for p, kappa_p, q, kappa_q, dim, angle, _ in cases
    ]
    for case, answer in zip(cases, evaluate(questions), strict=True):
        assert_close(answer, case[-1], case, tolerance(case))


def test_divergences_against_mpmath():
    """Pairs with a spherical Cauchy, at any angle. The next tests compare the others with the package."""
    mixed, cases = load("cauchy_kl.json"), []
    for dim, kappa_p, kappa_q, angle, *values in mixed["kl"]:
        for name, value in zip(mixed["columns"][4:], values, strict=True):
            p, q = name.split(" || ")
            cases.append((p, kappa_p, q, kappa_q, dim, angle, value))
    for dim, kappa_p, kappa_q, angle, value in load("cauchy.json")["pairs"]:
        if in_range(dim, kappa_p) and in_range(dim, kappa_q):
            cases.append(("spherical_cauchy", kappa_p, "spherical_cauchy", kappa_q, dim, angle, float(value)))
    assert_divergences(cases, lambda case: TOLERANCE)


@pytest.mark.parametrize("dim", DIMS)
def test_against_the_package_over_the_whole_range(dim):
    """Summaries, cdf and caps of every family."""
    cases = [("uniform", 0.0), *itertools.product(CLASSES, KAPPAS)]
    summaries = evaluate([{"ask": "summary", "p": [*case, dim]} for case in cases])
    for (family, kappa), answer in zip(cases, summaries, strict=True):
        law, label = distribution(family, kappa, dim), (family, kappa, dim)
        assert_close(answer["entropy"], law.entropy(), (*label, "entropy"))
        assert_close(answer["mean"], law.mean.norm(), (*label, "mean"))
        if family == "uniform":
            assert_close(answer["variance"], 1 / dim, (*label, "variance"))
            continue
        assert_close(answer["log_normalizer"], law.log_normalizer, (*label, "log_normalizer"))
        variance = float(law.marginal.variance)
        assert answer["variance"] == pytest.approx(variance, rel=TOLERANCE, abs=0), label
        for probability, angle in zip((0.5, 0.95), answer["caps"], strict=True):
            wanted = float(law.cap_angle(torch.tensor(probability, dtype=torch.float64)))
            assert angle == pytest.approx(wanted, rel=TOLERANCE, abs=0), (*label, probability)


@pytest.mark.parametrize("dim", DIMS)
def test_divergences_over_the_whole_range(dim):
    families = [("uniform", 0.0), *itertools.product(CLASSES, (1e-3, 1.0, 1e3, 1e6))]
    cases = []
    for (p, kappa_p), (q, kappa_q), angle in itertools.product(families, families, (0.0, 0.7, math.pi)):
        value = kl_divergence(distribution(p, kappa_p, dim), distribution(q, kappa_q, dim, angle))
        cases.append((p, kappa_p, q, kappa_q, dim, angle, float(value)))

    def tolerance(case):
        # Here the package multiplies E log(1+t) by κ. The next test has more digits.
        p, _, q, kappa_q, *_ = case
        return TOLERANCE + (2e-15 * kappa_q if (p, q) == ("spherical_cauchy", "power_spherical") else 0)

    assert_divergences(cases, tolerance)
