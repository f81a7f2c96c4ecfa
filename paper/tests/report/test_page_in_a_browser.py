"""The report in a real browser: it loads without errors, and is readable on a desktop and on a phone."""

import shutil

import pytest

from helpers import browser
from powerspherical_paper.report.page import TOPICS, write_report
from powerspherical_paper.results import DPI
from results_of import PUBLISHED

LEGIBLE = 85  # CSS pixels per inch of a figure; below, its smallest letters (8.5 points) are not legible
pytestmark = [browser.needs_browser, pytest.mark.slow]

MEASURED = """(() => {
  const all = selector => [...document.querySelectorAll(selector)];
  const edge = one => Math.round(one.getBoundingClientRect().right);
  const scrolling = all(".scroll").filter(one => one.scrollWidth > one.clientWidth);
  const letters = all("body *").filter(one => [...one.childNodes].some(
    node => node.nodeType == Node.TEXT_NODE && node.textContent.trim()));
  return {
    sections: all("section").map(one => one.id),
    page: document.documentElement.scrollWidth,
    unloaded: [...document.images].filter(one => one.naturalWidth == 0).length,
    scrolling: scrolling.length,
    cut: all("body :not(.scroll *)").filter(one => edge(one) > innerWidth).length,
    letters: Math.min(...letters.map(one => parseFloat(getComputedStyle(one).fontSize))),
    figures: Math.min(...[...document.images].map(one => one.width / one.naturalWidth)),
  };
})()"""


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """The report on the published results, which has all kinds of tables and figures."""
    folder = tmp_path_factory.mktemp("published")
    for path in PUBLISHED.iterdir():
        if path.suffix in (".json", ".png"):
            shutil.copy(path, folder)
    return write_report(folder).as_uri()


@pytest.mark.parametrize("width", [1280, 390])
def test_nothing_is_cut_and_all_can_be_read(report, tmp_path, width):
    """On a desktop everything fits. On a phone, wide tables and figures scroll in their frames."""
    with browser.Page(tmp_path / "profile") as page:
        page.open(report, width=width)
        found = page.evaluate(MEASURED)
        assert page.complaints() == []
    assert set(TOPICS) <= {*found["sections"]}
    assert found["page"] == width
    assert (found["unloaded"], found["cut"]) == (0, 0)
    assert (found["scrolling"] > 0) == (width < 1000)
    assert found["letters"] >= 12
    assert found["figures"] * DPI >= LEGIBLE
