"""Every example of the gallery runs, and draws figures with titles, which become the alt texts of the images."""

import runpy
from pathlib import Path

import pytest

from helpers import own_family

EXAMPLES = sorted((Path(__file__).parents[2] / "docs" / "gallery").glob("plot_*.py"))


@pytest.mark.slow
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs(path, monkeypatch, tmp_path):
    pyplot = pytest.importorskip("matplotlib.pyplot")
    monkeypatch.chdir(tmp_path)
    own_family.use(monkeypatch, own_family.entries())  # an example may define a family, for itself alone
    pyplot.close("all")
    pyplot.switch_backend("agg")
    runpy.run_path(str(path))
    figures = [pyplot.figure(number) for number in pyplot.get_fignums()]
    assert figures
    assert all(one.get_suptitle() or any(ax.get_title() for ax in one.axes) for one in figures)
    pyplot.close("all")
