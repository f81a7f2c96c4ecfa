"""The site builds without warnings, documents every public name, works from files, and is readable on a phone."""

import re
import shutil
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

from helpers import browser

pytest.importorskip("furo", reason="the extra docs is not installed")
pytest.importorskip("myst_parser")
pytest.importorskip("sphinx_copybutton")
pytest.importorskip("sphinx_gallery")

import public

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.slow

# What is wrong with the images of a page: those that do not load, and those without an alternative text.
IMAGES = """[...document.images]
  .filter((one) => !one.naturalWidth || !(one.alt || one.closest(".sphx-glr-thumbcontainer")))
  .map((one) => one.src)"""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of the built site. The gallery is not run: ``test_gallery.py`` does that."""
    folder = tmp_path_factory.mktemp("site")
    for name in ("docs", "results"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("auto_gallery"))
    shutil.copy(ROOT / "CHANGELOG.md", folder)
    command = [sys.executable, "-m", "sphinx", "--quiet", "--fail-on-warning", "--keep-going"]
    done = subprocess.run(
        [*command, "-D", "plot_gallery=0", "docs", "site"],
        cwd=folder,
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert (done.stdout + done.stderr, done.returncode) == ("", 0)
    return folder / "site"


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    with browser.Page(tmp_path_factory.mktemp("profile")) as page:
        yield page


def test_every_public_name_is_documented(site):
    inventory = (site / "objects.inv").read_bytes().split(b"\n", 4)[4]
    documented = {line.split()[0] for line in zlib.decompress(inventory).decode().splitlines()}
    assert set(public.names()) - documented == set()


def test_pages_load_nothing_from_elsewhere(site):
    for path in site.rglob("*.html"):
        text = path.read_text(encoding="utf-8")
        loaded = re.findall(
            r"<(?:script|img|link|iframe|source)\b[^>]*(?:src|href)=\"((?:https?:)?//[^\"]*)", text
        )
        assert loaded == [], path.name


def test_formulas_are_mathml(site):
    text = (site / "api" / "powerspherical.html").read_text(encoding="utf-8")
    assert text.count("<math ") >= 3
    assert "\\frac" not in text


@browser.needs_browser
def test_search_works_from_files(site, page):
    page.open(f"{(site / 'search.html').as_uri()}?q=outliers")
    found = "document.querySelector('#search-results a[href^=\"clustering.html\"]')"
    page.evaluate(
        f"new Promise(done => {{ const look = () => {found} ? done() : setTimeout(look, 50); look(); }})"
    )
    assert page.complaints() == []


@browser.needs_browser
def test_pages_are_readable_on_a_phone(site, page):
    """Nothing is wider than the screen, texts have contrast, and images load and have alternative texts."""
    faults = {}
    for path in sorted(site.rglob("*.html")):
        page.open(path.as_uri(), width=360)
        width = page.evaluate("document.documentElement.scrollWidth")
        found = [width, page.faint_texts(), page.evaluate(IMAGES)]
        if found != [360, [], []]:
            faults[path.name] = found
    assert faults == {}
