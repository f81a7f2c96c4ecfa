"""The README and every page of the documentation run as printed: Python blocks, commands, and what tables call ours.

They run in order, in one folder.

Building the site checks references, links inside the site, and that the navigation has every page:
`tests/docs/test_site.py`.
"""

import importlib.util
import json
import re
import shlex
from collections import Counter
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.main import get_command

import powerspherical
from helpers import own_family
from helpers.clusters import clustered
from powerspherical import cli

DOCS = Path(__file__).parents[1] / "docs"
README = DOCS.parent / "README.md"
PAGES = sorted(DOCS.glob("*.md"))
RESULTS = DOCS.parent / "results"
STEP = re.compile(
    r"(?ms)^```python\n(?P<block>.*?)^```|^    (?P<command>powerspherical [^\n]*)$"
    r"|^\| theirs \| ours \|[^\n]*\n\|---[^\n]*\n(?P<rows>(?:\|[^\n]*\n?)+)"
)


# Dynamo makes an instance of torch.autograd.Function to trace one.
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*Function'> should not be instantiated:DeprecationWarning")
@pytest.mark.parametrize(
    "page", [README, *(page for page in PAGES if page.stem != "migration")], ids=lambda page: page.stem
)
def test_a_page_runs(page, monkeypatch, tmp_path):
    """`test_migration.py` runs the other one."""
    if page.stem in ("jax", "numpyro"):
        pytest.importorskip(page.stem)
    monkeypatch.chdir(tmp_path)
    own_family.use(monkeypatch, own_family.entries())  # a page may define a family, for itself alone
    np.save("embeddings.npy", clustered(400, dim=16, kappas=(300.0,) * 8)[0])
    torch.manual_seed(0)
    namespace = {"__name__": page.stem}
    for step in STEP.finditer(page.read_text(encoding="utf-8")):
        if step["block"]:
            if page == README:
                namespace = {"__name__": "readme"}  # each of its blocks runs on its own
            exec(compile(step["block"], str(page), "exec"), namespace)
        elif step["rows"]:
            for row in step["rows"].splitlines():
                assert eval(row.split(" | ")[1].strip("`"), namespace) is not None, row
        else:
            assert cli.run(shlex.split(step["command"])[1:]) == 0, step["command"]


def test_links_lead_to_files():
    links = {
        (page.name, page.parent / link)
        for page in (README, *PAGES)
        for link in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8"))
        if not link.startswith(("https://", "auto_gallery/"))  # the site's build checks the second kind
    }
    assert {(page, target) for page, target in links if not target.is_file()} == set()


def test_the_readme_names_what_exists():
    """Every name in its table is a module of the package, a public name or a method; every command is one."""
    table = README.read_text(encoding="utf-8").partition("## What is there")[2].partition("## ")[0]
    rows = re.findall(r"(?m)^\| (`.*?) \| (.*) \|$", table)
    places = [powerspherical, powerspherical.nn, torch.distributions, powerspherical.PowerSpherical]
    for name in re.findall(r"`(?:q\.)?([\w.]+)(?:\(\))?`", " ".join(left for left, _ in rows)):
        if name.startswith("powerspherical"):
            assert importlib.util.find_spec(name) is not None, name
        else:
            assert any(hasattr(place, name) for place in places), name
    commands = re.findall(r"`(\w+)`", rows[-1][1])
    assert {*commands} <= {*get_command(cli.application()).commands}


def published(name):
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def clustering():
    return " ".join((DOCS / "clustering.md").read_text(encoding="utf-8").split())


class TestClusteringPage:
    """The numbers on the page are the published results, and these support what the text says."""

    def test_tied_and_free_concentrations(self, clustering):
        rows = {
            row["method"]: row
            for row in published("clustering")["results"]
            if row["data"] == "banking77_minilm"
        }
        for method, row in rows.items():
            likelihood = "–" if row["held_out"] is None else f"{row['held_out']:.2f}"
            assert f"| {method} | {row['ari']:.3f} | {likelihood} |" in clustering
        for family in ("Power Spherical", "von Mises–Fisher"):
            tied, free = rows[f"{family}, tied"], rows[f"{family}, free"]
            assert tied["ari"] > free["ari"] + 0.05
            assert free["held_out"] > tied["held_out"] + 5

    def test_outliers(self, clustering):
        ari = {(row["dim"], row["method"]): row["ari"] for row in published("robust_clustering")["results"]}
        cauchy, light = (
            [ari[8, f"{family}, {kind}"] for kind in ("tied", "free")]
            for family in ("spherical Cauchy", "von Mises–Fisher")
        )
        assert f"{cauchy[0]:.3f} tied and {cauchy[1]:.3f} free" in clustering
        assert f"against {light[0]:.3f} and {light[1]:.3f} for von Mises–Fisher" in clustering
        tied = [index for (dim, method), index in ari.items() if dim == 32 and method.endswith("tied")]
        assert min(tied) > 0.999

    def test_the_number_of_components(self, clustering):
        """Which one each criterion is best at, and the index there."""
        results = published("clustering_choice")
        means = {"held_out": Counter(), "bic": Counter(), "ari": Counter()}
        for member, row in product(means, results["results"]):
            if row["model"] == "Power Spherical, tied":
                means[member][row["n_components"]] += row[member] / results["configuration"]["seeds"]
        held_out, bic, ari = means.values()
        assert (max(held_out, key=held_out.get), min(bic, key=bic.get), max(ari, key=ari.get)) == (
            600,
            300,
            110,
        )
        assert f"best at 110 (ARI {ari[110]:.3f}, against {ari[77]:.3f} at 77)" in clustering
