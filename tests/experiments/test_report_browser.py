"""The report in a real browser: it loads without a complaint, and fits a telephone."""

import html
import re
import shutil
import subprocess

import pytest

from powerspherical.experiments.report import TOPICS, write_report
from result_folders import write_vae

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
BROWSER = next(filter(None, map(shutil.which, NAMES)), None)
pytestmark = pytest.mark.skipif(
    BROWSER is None, reason=f"no browser: none of {', '.join(NAMES)} is installed"
)

# The page in a frame as wide as a telephone; what it measures stands in the title.
FRAME = """<!DOCTYPE html><meta charset="utf-8"><title>not measured</title>
<iframe style="width: {width}px; height: 800px; border: 0" srcdoc="{page}"></iframe>
<script>
addEventListener("load", () => {{
  const page = document.querySelector("iframe").contentDocument;
  document.title = [page.documentElement.clientWidth, page.documentElement.scrollWidth,
    [...page.images].filter(one => one.naturalWidth == 0).length].join(" ");
}});
</script>"""


@pytest.fixture
def load(tmp_path):
    """A function that loads a page and returns its elements as text and what the console shows."""

    def load(source):
        path = tmp_path / "loaded.html"
        path.write_text(source, encoding="utf-8")
        flags = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--hide-scrollbars",
        ]
        logs = ["--enable-logging=stderr", "--v=0", f"--user-data-dir={tmp_path / 'profile'}"]
        done = subprocess.run(
            [BROWSER, *flags, *logs, "--dump-dom", path.as_uri()],
            capture_output=True,
            text=True,
            encoding="utf-8",
            timeout=120,
            check=True,
        )
        return done.stdout, re.findall(r":CONSOLE[:(].*", done.stderr)

    return load


def measure(load, source, width=360):
    """The width of the frame, that of the page in it, and how many images did not load."""
    shown, console = load(FRAME.format(width=width, page=html.escape(source)))
    assert console == []
    return [int(number) for number in re.search(r"<title>(\d+ \d+ \d+)</title>", shown)[1].split()]


@pytest.fixture
def report(tmp_path):
    folder = tmp_path / "results"
    write_vae(folder)
    return write_report(folder).read_text(encoding="utf-8")


def test_the_page_loads(load, report):
    shown, console = load(report)
    assert console == []
    for name in TOPICS:
        assert f'<section id="{name}"' in shown
    assert shown.count("<figure>") == 1
    assert "−97.46" in shown


def test_the_page_fits_a_telephone(load, report):
    frame, page, unloaded = measure(load, report)
    assert page <= frame == 360
    assert unloaded == 0


def test_faults_would_be_seen(load):
    _, console = load("<!DOCTYPE html><title>x</title><script>undefined_function()</script>")
    assert len(console) == 1
    wide = '<!DOCTYPE html><div style="width: 900px">wide</div><img src="data:image/png;base64,AAAA" alt="broken">'
    assert measure(load, wide)[1:] == [900 + 8, 1]
