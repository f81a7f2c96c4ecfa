"""The site builds without warnings, documents every public name, works from files, and is readable on a phone."""

import json
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

# Loads each page in a frame as wide as a phone. Measures the width of the page, and the contrast of its text in both
# themes: at least 4.5, or 3 for large text.
FRAME = """<!DOCTYPE html><meta charset="utf-8"><iframe style="width: 360px; height: 800px; border: 0"></iframe>
<script>
const brush = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
const rgba = colour => {
  brush.clearRect(0, 0, 1, 1);
  brush.fillStyle = colour;
  brush.fillRect(0, 0, 1, 1);
  return [...brush.getImageData(0, 0, 1, 1).data].map(value => value / 255);
};
const over = (top, below) => top.map((value, i) => i < 3 ? value * top[3] + below[i] * (1 - top[3]) : 1);
const light = colour => colour.slice(0, 3)
  .map(value => value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4)
  .reduce((sum, value, i) => sum + value * [0.2126, 0.7152, 0.0722][i], 0);
const background = one => {
  if (!one) return [1, 1, 1, 1];
  const own = rgba(getComputedStyle(one).backgroundColor);
  return own[3] == 1 ? own : over(own, background(one.parentElement));
};
const contrast = one => {
  const below = background(one), text = over(rgba(getComputedStyle(one).color), below);
  const [dark, bright] = [light(text), light(below)].sort((a, b) => a - b);
  return (bright + 0.05) / (dark + 0.05);
};
const enough = style => {
  const size = parseFloat(style.fontSize);
  return size >= 24 || (size >= 18.66 && style.fontWeight >= 700) ? 3 : 4.5;
};
const written = page => [...page.querySelectorAll("body *")].filter(one =>
  one.checkVisibility() && [...one.childNodes].some(node => node.nodeType == 3 && node.textContent.trim()));
const frame = document.querySelector("iframe");
const loaded = address => new Promise(done => { frame.onload = done; frame.src = address; });
(async () => {
  const found = {};
  for (const address of PAGES) {
    await loaded(address);
    const page = frame.contentDocument;
    const faint = new Set();
    for (const theme of ["light", "dark"]) {
      page.body.dataset.theme = theme;
      for (const one of written(page)) {
        const ratio = contrast(one);
        if (ratio < enough(getComputedStyle(one)) - 0.005)
          faint.add([theme, one.tagName, one.className, ratio.toFixed(2)].join(" "));
      }
    }
    found[address] = {
      width: page.documentElement.scrollWidth,
      faint: [...faint],
      unloaded: [...page.images].filter(one => one.naturalWidth == 0).length,
      nameless: [...page.images].filter(one => !one.alt && !one.closest(".sphx-glr-thumbcontainer")).length,
    };
  }
  console.info("measured", JSON.stringify(found));
})();
</script>"""


def build(folder, *options):
    """Build the site from a copy of its sources. Returns what Sphinx printed and its exit status."""
    for name in ("docs", "results"):
        shutil.copytree(
            ROOT / name, folder / name, ignore=shutil.ignore_patterns("auto_gallery"), dirs_exist_ok=True
        )
    shutil.copy(ROOT / "CHANGELOG.md", folder)
    command = [sys.executable, "-m", "sphinx", "--quiet", "--fail-on-warning", "--keep-going", *options]
    done = subprocess.run(
        [*command, "docs", "site"], cwd=folder, capture_output=True, encoding="utf-8", check=False
    )
    return done.stdout + done.stderr, done.returncode


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of the built site. The gallery is not run: ``test_gallery.py`` does that."""
    folder = tmp_path_factory.mktemp("site")
    assert build(folder, "-D", "plot_gallery=0") == ("", 0)
    return folder / "site"


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
def test_search_works_from_files(site, tmp_path):
    url = f"{(site / 'search.html').as_uri()}?q=outliers"
    shown, console = browser.load(url, tmp_path / "profile", "--virtual-time-budget=5000")
    assert console == []
    assert 'href="clustering.html"' in re.search(r'<div id="search-results">.*', shown)[0]


def measured(folder, pages, profile):
    """Return what the script in the frame measures on each page of a folder."""
    frame = folder / "frame.html"
    frame.write_text(FRAME.replace("PAGES", json.dumps(pages)), encoding="utf-8")
    return browser.measured(frame.as_uri(), profile, "--allow-file-access-from-files")


@browser.needs_browser
def test_pages_are_readable_on_a_phone(site, tmp_path):
    pages = sorted(path.relative_to(site).as_posix() for path in site.rglob("*.html"))
    found = measured(site, pages, tmp_path / "profile")
    good = {"width": 360, "faint": [], "unloaded": 0, "nameless": 0}
    assert len(found) == len(pages)
    assert {page: faults for page, faults in found.items() if faults != good} == {}


@browser.needs_browser
def test_faults_would_be_seen(tmp_path):
    page = """<!DOCTYPE html><body style="margin: 0"><img src="none.png"><div style="width: 900px">wide</div>
<p style="color: #777">faint</p><p style="color: #767676">clear</p><p style="color: #777; font-size: 24px">large</p>
<div style="background: #0008"><p style="color: #888">below</p></div>"""
    (tmp_path / "faulty.html").write_text(page, encoding="utf-8")
    found = measured(tmp_path, ["faulty.html"], tmp_path / "profile")["faulty.html"]
    assert (found["width"], found["unloaded"], found["nameless"]) == (900, 1, 1)
    assert found["faint"] == [
        "light P  4.48", "light P  1.26", "dark P  4.48", "dark P  1.26"
    ]  # fmt: skip
