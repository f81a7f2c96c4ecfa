"""The tables of the migration page: every expression in a column "ours" runs, and compares with SciPy where shown."""

import re
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
import torch

PAGE = Path(__file__).parents[1] / "docs" / "migration.md"
TABLE = re.compile(r"(?m)^\| theirs \| ours \|.*\n\|---.*\n(?P<rows>(?:\|.*\n)+)")
BLOCK_OR_TABLE = re.compile(
    rf"(?ms)^```python\n(?P<block>.*?)^```|(?-s:{TABLE.pattern.removeprefix('(?m)')})"
)


def test_what_the_tables_call_ours_runs():
    torch.manual_seed(0)
    namespace: dict = {}
    values = []
    for part in BLOCK_OR_TABLE.finditer(PAGE.read_text(encoding="utf-8")):
        if part["block"]:
            exec(compile(part["block"], str(PAGE), "exec"), namespace)
            continue
        for row in part["rows"].splitlines():
            ours = re.fullmatch(r"`([^`]+)`", row.split(" | ")[1])
            assert ours, row
            values.append(eval(ours[1], namespace))
    assert len(values) == 8 + 4 + 7 + 4
    assert all(value is not None for value in values)


def test_each_pattern_takes_five_lines_at_most():
    patterns = PAGE.read_text(encoding="utf-8").partition("## Patterns in public code")[2]
    blocks = re.findall(r"(?ms)^```python\n(.*?)^```", patterns)
    assert len(blocks) >= 14
    assert all(len(block.splitlines()) <= 5 for block in blocks)


def test_scipy_s_arguments_give_scipy_s_numbers():
    from powerspherical.stats import uniform_sphere, von_mises_fisher

    mu = np.array([0.6, 0.0, 0.8])
    x = von_mises_fisher(mu, 20.0).rvs(50, random_state=0)
    theirs = scipy.stats.vonmises_fisher(mu, 20)
    np.testing.assert_allclose(von_mises_fisher(mu, 20).logpdf(x), theirs.logpdf(x), rtol=1e-10)
    for ours, fitted in zip(von_mises_fisher.fit(x), scipy.stats.vonmises_fisher.fit(x), strict=True):
        np.testing.assert_allclose(ours, fitted, rtol=1e-6)
    assert uniform_sphere(3).rvs(5).shape == scipy.stats.uniform_direction(3).rvs(5).shape


def test_the_original_needs_a_squeeze_that_compat_does_not():
    """What the page says of (B, 1): ours refuses it, and names the way out."""
    from powerspherical import PowerSpherical

    with pytest.raises(ValueError, match=r"squeeze\(-1\)"):
        PowerSpherical(torch.eye(4), torch.ones(4, 1))
