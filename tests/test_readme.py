"""Every Python block of the README runs as printed, on its own."""

import importlib.util
import re
from pathlib import Path

import pytest
import torch
from typer.main import get_command

import powerspherical
from powerspherical import cli, nn

README = Path(__file__).parents[1] / "README.md"
TEXT = README.read_text(encoding="utf-8")
BLOCKS = re.findall(r"(?ms)^```python\n(.*?)^```", TEXT)


def test_the_table_names_what_exists():
    """Every name in the table of contents is a module of the package, or a public name or method of one."""
    rows = re.findall(
        r"(?m)^\| (`.*?) \| (.*) \|$", TEXT.partition("## What is there")[2].partition("## ")[0]
    )
    assert len(rows) >= 10
    places = [powerspherical, nn, torch.distributions, powerspherical.PowerSpherical]
    for name in re.findall(r"`(?:q\.)?([\w.]+)(?:\(\))?`", " ".join(left for left, _ in rows)):
        if name.startswith("powerspherical"):
            assert importlib.util.find_spec(name) is not None, name
        else:
            assert any(hasattr(place, name) for place in places), name
    commands = re.findall(r"`(\w+)`", rows[-1][1])
    assert {"cluster", "explore"} <= {*commands}
    assert {*commands} <= {*get_command(cli.application()).commands}


def test_links_lead_somewhere():
    links = re.findall(r"\]\((?!https?:)([^)#]+)\)", TEXT)
    assert {"docs/choosing.md", "docs/migration.md", "docs/clustering.md"} <= {*links}
    for link in links:
        assert (README.parent / link).is_file(), link


def test_its_shape():
    """Short, with a picture before the first heading."""
    assert len(TEXT.splitlines()) <= 120
    assert "![" in TEXT.partition("\n## ")[0]


def test_the_readme_has_examples():
    assert BLOCKS


@pytest.mark.parametrize("block", BLOCKS, ids=[f"block{i}" for i in range(1, len(BLOCKS) + 1)])
def test_block_runs(block):
    torch.manual_seed(0)
    exec(compile(block, str(README), "exec"), {"__name__": "readme"})
