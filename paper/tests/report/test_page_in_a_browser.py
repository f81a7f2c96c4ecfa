"""The report in a real browser: it loads without errors, and is readable on a desktop and on a phone."""

import html
import shutil
from pathlib import Path

import pytest

from helpers import browser
from powerspherical_paper.report.page import ENLARGED, LEGIBLE, TOPICS, write_report
from result_folders import write_vae

PUBLISHED = Path(__file__).parents[3] / "results"
pytestmark = browser.needs_browser

# The page in a frame of a given width. What the script measures goes to the console, once the page has been drawn.
FRAME = """<!DOCTYPE html><meta charset="utf-8">
<iframe style="width: {width}px; height: 800px; border: 0" srcdoc="{page}"></iframe>
<script>
addEventListener("load", () => requestAnimationFrame(() => requestAnimationFrame(() => {{
  const page = document.querySelector("iframe").contentDocument;
  const all = selector => [...page.querySelectorAll(selector)];
  const edge = one => Math.round(one.getBoundingClientRect().right);
  const scrolling = all(".scroll").filter(one => one.scrollWidth > one.clientWidth);
  const hinted = one => one.querySelector(".hint")?.offsetHeight >= 15;
  const letters = all("body *").filter(one => [...one.childNodes].some(
    node => node.nodeType == Node.TEXT_NODE && node.textContent.trim()));
  console.info("measured", JSON.stringify({{
    page: [page.documentElement.clientWidth, page.documentElement.scrollWidth],
    unloaded: [...page.images].filter(one => one.naturalWidth == 0).length,
    scrolling: scrolling.length,
    unhinted: scrolling.filter(one => !hinted(one)).length,
    cut: all("caption span, .hint").filter(one => edge(one) > edge(one.closest(".scroll"))).length,
    letters: Math.min(...letters.map(one => parseFloat(getComputedStyle(one).fontSize))),
    figures: Math.min(...[...page.images].map(one => one.width / one.getAttribute("width"))),
  }}));
}})));
</script>"""


@pytest.fixture
def load(tmp_path):
    """A function that loads a page and returns its elements as text and the console output."""

    def load(source):
        path = tmp_path / "loaded.html"
        path.write_text(source, encoding="utf-8")
        return browser.load(path.as_uri(), tmp_path / "profile")

    return load


@pytest.fixture
def measure(tmp_path):
    """A function that returns what the script in the frame measures on a page."""

    def measure(source, width):
        path = tmp_path / "frame.html"
        path.write_text(FRAME.format(width=width, page=html.escape(source)), encoding="utf-8")
        return browser.measured(path.as_uri(), tmp_path / "profile")

    return measure


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """The report on the published results, which has all kinds of tables and figures."""
    folder = tmp_path_factory.mktemp("published")
    for path in PUBLISHED.iterdir():
        if path.suffix in (".json", ".png"):
            shutil.copy(path, folder)
    return write_report(folder).read_text(encoding="utf-8")


@pytest.fixture
def report(tmp_path):
    folder = tmp_path / "results"
    write_vae(folder)
    return write_report(folder).read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_page_loads(load, report):
    shown, console = load(report)
    assert console == []
    for name in TOPICS:
        assert f'<section id="{name}"' in shown
    assert shown.count("<figure>") == 1
    assert "−97.46" in shown


@pytest.mark.slow
@pytest.mark.parametrize("width", [1280, 390])
def test_nothing_is_cut_and_all_can_be_read(measure, published, width):
    """On a desktop everything fits. On a phone, wide tables and figures scroll in their frames, with a hint."""
    found = measure(published, width)
    assert found["page"] == [width, width]
    assert (found["unloaded"], found["unhinted"], found["cut"]) == (0, 0, 0)
    assert (found["scrolling"] > 0) == (width < 1000)
    assert found["letters"] >= 12
    assert found["figures"] >= 0.99 * LEGIBLE / ENLARGED


@pytest.mark.slow
def test_faults_would_be_seen(load, measure):
    _, console = load("<!DOCTYPE html><title>x</title><script>undefined_function()</script>")
    assert len(console) == 1
    broken = (
        '<img src="data:image/png;base64,AAAA" alt="broken" width="900" style="display: block; width: 90px">'
    )
    cut = '<table style="width: 900px"><caption><span style="display: block">wide</span></caption></table>'
    faulty = f"""<!DOCTYPE html><div style="width: 900px">wide</div>{broken}
<div class="scroll" style="width: 300px; overflow: auto; font-size: 9px">{cut}</div>"""
    assert measure(faulty, 360) == {
        "page": [360, 900 + 8],
        "unloaded": 1,
        "scrolling": 1,
        "unhinted": 1,
        "cut": 1,
        "letters": 9,
        "figures": 0.1,
    }
