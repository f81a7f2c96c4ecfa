"""Every Python block of the README runs as printed, on its own."""

import importlib.util
import re
from itertools import product
from pathlib import Path

import pytest
import torch

import powerspherical

README = Path(__file__).parents[1] / "README.md"
TEXT = README.read_text(encoding="utf-8")
BLOCKS = re.findall(r"(?ms)^```python\n(.*?)^```", TEXT)


def test_the_table_names_what_exists():
    """Every name that the table of the interface gives is there, on the families it is given for."""
    rows = [
        [cell.strip() for cell in row.split(" | ")]
        for row in re.findall(r"(?m)^\| (`.*|all four.*) \|$", TEXT)
    ]
    families = [powerspherical.PowerSpherical, powerspherical.VonMisesFisher, powerspherical.SphericalCauchy]
    checked = set()
    for left, right in rows:
        if left == "all four":
            methods = re.findall(r"`(\w+)`", right)
            owners = [*families, powerspherical.HypersphericalUniform]
        else:
            for name in re.findall(r"`([A-Z]\w+)[.(]", left):
                assert hasattr(powerspherical, name), name
                checked.add(name)
            methods = re.findall(r"`\.(\w+)", left)
            owners = families
        for owner, name in product(owners, methods):
            assert hasattr(owner, name), f"{owner.__name__}.{name}"
            checked.add(name)
    assert {"PowerSpherical", "rsample", "marginal", "cap_angle"} <= checked


def test_the_readme_has_examples():
    assert BLOCKS


@pytest.mark.parametrize("block", BLOCKS, ids=[f"block{i}" for i in range(1, len(BLOCKS) + 1)])
def test_block_runs(block):
    torch.manual_seed(0)
    exec(compile(block, str(README), "exec"), {"__name__": "readme"})


def test_the_tables_hold_the_published_results():
    """`benchmarks/readme_tables.py` writes them from `results/`."""
    spec = importlib.util.spec_from_file_location(
        "readme_tables", README.parent / "benchmarks/readme_tables.py"
    )
    tables = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tables)
    assert tables.filled(TEXT) == TEXT
    changed = TEXT.replace("−96.84", "−96.85")
    assert tables.filled(changed) == TEXT != changed
