"""Every example of the gallery runs, and draws a figure."""

import runpy
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[2] / "docs" / "gallery").glob("plot_*.py"))


@pytest.mark.slow
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs(path, monkeypatch, tmp_path):
    pyplot = pytest.importorskip("matplotlib.pyplot")
    monkeypatch.chdir(tmp_path)
    pyplot.close("all")
    pyplot.switch_backend("agg")
    runpy.run_path(str(path))
    assert pyplot.get_fignums()
    pyplot.close("all")


def test_there_are_examples():
    assert EXAMPLES
