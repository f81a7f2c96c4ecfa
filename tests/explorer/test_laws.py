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

from helpers.examples import FAMILIES
from helpers.mpmath_tables import load
from powerspherical import HypersphericalUniform, cli

NODE = shutil.which("node")
pytestmark = [pytest.mark.skipif(NODE is None, reason="node is not installed"), pytest.mark.slow]

LAWS = Path(cli.__file__).parents[1] / "explorer" / "laws.js"
CLASSES = {family.family.name: family for family in FAMILIES}
dims = pytest.mark.parametrize("dim", [2, 3, 5, 100, 10_000])
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


def double(*values):
    return torch.tensor(values, dtype=torch.float64)


def distribution(family, kappa, dim, angle=0.0):
    """The distributions of the package whose directions form the angles (…) with the first axis."""
    if family == "uniform":
        return HypersphericalUniform(dim, dtype=torch.float64)
    angle = torch.as_tensor(angle, dtype=torch.float64)
    loc = torch.zeros(*angle.shape, dim, dtype=torch.float64)
    loc[..., 0], loc[..., 1] = angle.cos(), angle.sin()
    return CLASSES[family](loc, kappa)


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
        for name in {"kl_uniform", "mean_complement", "variance"} & row.keys():  # small values keep digits
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


def assert_divergences(cases, tolerance=lambda case: TOLERANCE):
    """Each case is a family and κ, another family and κ, the dimension, the angle, and the divergence."""
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
    assert_divergences(cases)


@dims
def test_the_uniform(dim):
    (answer,) = evaluate([{"ask": "summary", "p": ["uniform", 0.0, dim]}])
    assert_close(answer["entropy"], distribution("uniform", 0.0, dim).entropy(), "entropy")
    assert_close(answer["mean"], 0.0, "mean")
    assert_close(answer["variance"], 1 / dim, "variance")


@dims
@pytest.mark.parametrize("family", CLASSES)
def test_summaries_over_the_whole_range(family, dim):
    kappas = (1e-3, 0.1, 1.0, 30.0, 1e3, 1e6)
    law = distribution(family, double(*kappas), dim)
    caps = law.cap_angle(double(0.5, 0.95).unsqueeze(-1)).T
    columns = (law.entropy(), law.mean.norm(dim=-1), law.log_normalizer, law.marginal.variance)
    answers = evaluate([{"ask": "summary", "p": [family, kappa, dim]} for kappa in kappas])
    for kappa, answer, cap, *values in zip(kappas, answers, caps, *columns, strict=True):
        for name, value in zip(("entropy", "mean", "log_normalizer"), values, strict=False):
            assert_close(answer[name], value, (kappa, name))
        assert answer["variance"] == pytest.approx(float(values[-1]), rel=TOLERANCE, abs=0), kappa
        assert answer["caps"] == pytest.approx(cap.tolist(), rel=TOLERANCE, abs=0), kappa


@dims
def test_divergences_over_the_whole_range(dim):
    kappas, angles, cases = (1e-3, 1.0, 1e3, 1e6), (0.0, 0.7, math.pi), []
    for p, q in itertools.product(("uniform", *CLASSES), repeat=2):
        first = distribution(p, double(*kappas).reshape(-1, 1, 1), dim)
        second = distribution(q, double(*kappas).unsqueeze(-1), dim, double(*angles))
        values = kl_divergence(first, second).expand(4, 4, 3).flatten().tolist()
        for (kappa_p, kappa_q, angle), value in zip(
            itertools.product(kappas, kappas, angles), values, strict=True
        ):
            cases.append((p, kappa_p, q, kappa_q, dim, angle, value))

    def tolerance(case):
        # Here the package multiplies E log(1+t) by κ. The test against mpmath has more digits.
        p, _, q, kappa_q, *_ = case
        return TOLERANCE + (2e-15 * kappa_q if (p, q) == ("spherical_cauchy", "power_spherical") else 0)

    assert_divergences(cases, tolerance)
