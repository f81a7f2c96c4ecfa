"""Pages in a headless browser. Tests that need one are skipped where none is installed."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
BROWSER = next(filter(None, map(shutil.which, NAMES)), None)
needs_browser = pytest.mark.skipif(
    BROWSER is None, reason=f"no browser: none of {', '.join(NAMES)} is installed"
)

CONSOLE = re.compile(r":CONSOLE[:(].*")


def command(url: str, profile: Path, *flags: str) -> list[str]:
    """Return the command that opens an address and logs the console output of its page."""
    quiet = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"]
    logs = ["--enable-logging=stderr", "--v=0", f"--user-data-dir={profile}"]
    return [BROWSER, *quiet, *logs, *flags, url]


def load(url: str, profile: Path, *flags: str) -> tuple[str, list[str]]:
    """Return the elements of a loaded page as text, and its console output."""
    done = subprocess.run(
        command(url, profile, "--dump-dom", *flags),
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=120,
        check=True,
    )
    return done.stdout, CONSOLE.findall(done.stderr)


def measured(url: str, profile: Path, *flags: str) -> Any:
    """Return the JSON that a page writes to its console after the word "measured", before anything else."""
    with subprocess.Popen(
        command(url, profile, *flags), stderr=subprocess.PIPE, text=True, encoding="utf-8"
    ) as browser:
        patience = threading.Timer(120, browser.kill)
        patience.start()
        try:
            said = next(filter(None, map(CONSOLE.search, browser.stderr)), None)
        finally:
            patience.cancel()
            browser.terminate()
    assert said, "the browser measured nothing"
    found = re.search(r'"measured (.*)", source: ', said[0])
    assert found, said[0]
    return json.loads(found[1])
