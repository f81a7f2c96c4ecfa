"""The formulas of the explorer, run under node: against the package, and t against the mpmath table.

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


@pytest.mark.parametrize("family", ["power_spherical", "von_mises_fisher"])
def test_density_tails_and_quantile_of_t(family):
    """The rows of the table up to the explorer's d = 10,000."""
    table = load("marginals.json")
    rows = [dict(zip(table["columns"], map(float, row), strict=True)) for row in table[family]]
    rows = [row for row in rows if row["dim"] <= 10_000]
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


@dims
def test_the_uniform(dim):
    (answer,) = evaluate([{"ask": "summary", "p": ["uniform", 0.0, dim]}])
    assert_close(answer["entropy"], distribution("uniform", 0.0, dim).entropy(), "entropy")
    assert_close(answer["mean"], 0.0, "mean")
    assert_close(answer["variance"], 1 / dim, "variance")


@dims
@pytest.mark.parametrize("family", CLASSES)
def test_summaries_over_the_whole_range(family, dim):
    """Rates, variances and 1 - E t keep their digits where they are small."""
    kappas = double(0.0, 1e-3, 0.1, 1.0, 30.0, 1e3, 1e6)
    law = distribution(family, kappas, dim)
    caps = law.cap_angle(double(0.5, 0.95).unsqueeze(-1)).T
    large = {"entropy": law.entropy(), "mean": law.mean.norm(dim=-1), "log_normalizer": law.log_normalizer}
    small = {
        "kl_uniform": kl_divergence(law, distribution("uniform", 0.0, dim)),
        "mean_complement": law.family.mean_loss(kappas, dim),
        "variance": law.marginal.variance,
        "caps": caps,
    }
    answers = evaluate([{"ask": "summary", "p": [family, kappa, dim]} for kappa in kappas.tolist()])
    for index, answer in enumerate(answers):
        for name, values in large.items():
            assert_close(answer[name], values[index], (index, name))
        for name, values in small.items():
            assert answer[name] == pytest.approx(values[index].tolist(), rel=TOLERANCE, abs=0), (index, name)


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
        # Here the package multiplies E log(1+t) by κ.
        p, _, q, kappa_q, *_ = case
        return TOLERANCE + (2e-15 * kappa_q if (p, q) == ("spherical_cauchy", "power_spherical") else 0)

    assert_divergences(cases, tolerance)
