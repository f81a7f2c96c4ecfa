"""Every page of the documentation runs as printed: its Python blocks and its commands, in order, in one folder.

Building the site runs the gallery, and checks references and links inside the site: `tests/docs/test_site.py`.
"""

import json
import re
import shlex
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch

from helpers import own_family
from helpers.clusters import clustered
from powerspherical import cli

DOCS = Path(__file__).parents[1] / "docs"
PAGES = sorted(DOCS.glob("*.md"))
WITHOUT_CODE = ("changelog", "cite", "explorer")
STEP = re.compile(r"(?ms)^```python\n(?P<block>.*?)^```|^    (?P<command>powerspherical [^\n]*)$")


# Dynamo makes an instance of torch.autograd.Function to trace one.
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*Function'> should not be instantiated:DeprecationWarning")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_runs(page, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    own_family.use(monkeypatch, own_family.entries())  # a page may define a family, for itself alone
    np.save("embeddings.npy", clustered(400, dim=16, kappas=(300.0,) * 8)[0])
    torch.manual_seed(0)
    steps = list(STEP.finditer(page.read_text(encoding="utf-8")))
    assert page.stem in WITHOUT_CODE or any(step["block"] for step in steps)
    namespace = {"__name__": page.stem}
    for step in steps:
        if step["block"]:
            exec(compile(step["block"], str(page), "exec"), namespace)
        else:
            assert cli.run(shlex.split(step["command"])[1:]) == 0, step["command"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_what_a_page_shows_is_there(page):
    links = re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8"))
    for link in links:
        if link.startswith(("https://", "auto_gallery/")):  # the site's build checks the second kind
            continue
        target = (DOCS / link).resolve()
        assert target.is_file(), link
        assert target.stat().st_size < 1_000_000, link


def test_the_table_holds_the_published_results():
    """Of tied and free concentrations: `benchmarks/clustering.py` measured them, and the text says who wins."""
    results = json.loads((DOCS.parent / "results" / "clustering.json").read_text(encoding="utf-8"))["results"]
    rows = {row["method"]: row for row in results if row["data"] == "banking77_minilm"}
    text = (DOCS / "clustering.md").read_text(encoding="utf-8")
    for method, row in rows.items():
        likelihood = "–" if row["held_out"] is None else f"{row['held_out']:.2f}"
        assert f"| {method} | {row['ari']:.3f} | {likelihood} |" in text
    for family in ("Power Spherical", "von Mises–Fisher"):
        tied, free = rows[f"{family}, tied"], rows[f"{family}, free"]
        assert tied["ari"] > free["ari"] + 0.05
        assert free["held_out"] > tied["held_out"] + 5


def test_the_text_on_outliers_holds_the_published_results():
    results = json.loads((DOCS.parent / "results" / "robust_clustering.json").read_text(encoding="utf-8"))
    ari = {(row["dim"], row["method"]): row["ari"] for row in results["results"]}
    text = " ".join((DOCS / "clustering.md").read_text(encoding="utf-8").split())
    cauchy, light = (
        [ari[8, f"{family}, {kind}"] for kind in ("tied", "free")]
        for family in ("spherical Cauchy", "von Mises–Fisher")
    )
    assert f"{cauchy[0]:.3f} tied and {cauchy[1]:.3f} free" in text
    assert f"against {light[0]:.3f} and {light[1]:.3f} for von Mises–Fisher" in text
    assert all(index > 0.999 for (dim, method), index in ari.items() if dim == 32 and method.endswith("tied"))


def test_the_figure_shows_what_the_text_says():
    """Which number of components each criterion is best at, and the index there, from `results`."""
    results = json.loads((DOCS.parent / "results" / "clustering_choice.json").read_text(encoding="utf-8"))
    means: dict[str, dict[int, float]] = {"held_out": {}, "bic": {}, "ari": {}}
    for member, row in product(means, results["results"]):
        if row["model"] == "Power Spherical, tied":
            line = means[member]
            share = row[member] / results["configuration"]["seeds"]
            line[row["n_components"]] = line.get(row["n_components"], 0.0) + share
    held_out, bic, ari = means.values()
    assert (max(held_out, key=held_out.get), min(bic, key=bic.get), max(ari, key=ari.get)) == (600, 300, 110)
    text = (DOCS / "clustering.md").read_text(encoding="utf-8")
    assert f"best at 110 (ARI {ari[110]:.3f}, against {ari[77]:.3f} at 77)" in text


def test_the_navigation_has_every_page():
    index = (DOCS / "index.md").read_text(encoding="utf-8")
    toctrees = "\n".join(re.findall(r"(?ms)^```\{toctree\}\n(.*?)^```", index))
    assert {page.stem for page in PAGES} - {"index"} <= set(toctrees.split())
