"""Pages in a headless browser. Tests that need one are skipped where none is installed."""

from __future__ import annotations

import base64
import json
import os
import re
import select
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Self

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


# Replaces itself by the browser, with two given file descriptors as 3 and 4. The copies above 9 keep them apart.
LAUNCHER = """
import fcntl, os, sys
copies = [fcntl.fcntl(int(given), fcntl.F_DUPFD, 10) for given in sys.argv[1:3]]
for copy, wanted in zip(copies, (3, 4)):
    os.dup2(copy, wanted)
os.execv(sys.argv[3], sys.argv[3:])
"""


class Page:
    """One tab, driven through the DevTools protocol over a pipe.

    ``events`` holds what the browser reported: console messages, exceptions and requests. The protocol is JSON
    messages, each ended by a null byte, on the file descriptors 3 and 4 of the browser.
    """

    def __init__(self, folder: Path, patience: float = 60.0) -> None:
        assert BROWSER is not None
        self.patience = patience
        self.events: list[dict[str, Any]] = []
        self._count, self._buffer, self._session = 0, b"", None
        theirs_in, self._out = os.pipe()
        self._in, theirs_out = os.pipe()
        flags = "--headless --no-sandbox --disable-gpu --disable-dev-shm-usage --remote-debugging-pipe"
        command = [BROWSER, *flags.split(), f"--user-data-dir={folder}", "about:blank"]
        self._browser = subprocess.Popen(
            [sys.executable, "-c", LAUNCHER, str(theirs_in), str(theirs_out), *command],
            pass_fds=(theirs_in, theirs_out),
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_in)
        os.close(theirs_out)

    def __enter__(self) -> Self:
        try:
            target = self.call("Target.createTarget", url="about:blank")["targetId"]
            self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
            for domain in ("Page", "Runtime", "Network", "Log"):
                self.call(f"{domain}.enable")
            self.call("Page.setLifecycleEventsEnabled", enabled=True)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._browser.terminate()
        self._browser.wait(self.patience)
        os.close(self._in)
        os.close(self._out)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol and return its result."""
        self._count += 1
        message = {"id": self._count, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while (answer := self._receive()).get("id") != self._count:
            self.events.append(answer)
        assert "error" not in answer, (method, answer["error"])
        return answer["result"]

    def _receive(self) -> dict[str, Any]:
        deadline = time.monotonic() + self.patience
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._in], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"the browser has not answered for {self.patience} s"
            received = os.read(self._in, 1 << 16)
            assert received, "the browser has ended"
            self._buffer += received
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)

    def open(self, url: str, *, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        """Load a page in a window of the given size and wait until it has been drawn."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Page.navigate", url="about:blank")  # a new hash alone would not load the page again
        self._wait_for_load(self.call("Page.navigate", url=url)["loaderId"])
        self.settle()

    def _wait_for_load(self, document: str) -> None:
        """Wait until a document is loaded. Until then, scripts may still run in the one before it."""
        seen = 0
        while not any(
            event.get("method") == "Page.lifecycleEvent"
            and (event["params"]["loaderId"], event["params"]["name"]) == (document, "load")
            for event in self.events[seen:]
        ):
            seen = len(self.events)
            self.events.append(self._receive())

    def settle(self) -> None:
        """Wait until the page is loaded and two frames have been drawn."""
        loaded = (
            "document.readyState === 'complete' ? 0 : new Promise(done => addEventListener('load', done))"
        )
        self.evaluate(f"(async () => {{ await {loaded}; }})()")
        self.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done())))")

    def evaluate(self, expression: str) -> Any:
        """Return the value of a JavaScript expression; a promise is awaited."""
        answer = self.call(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True, userGesture=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def press(self, key: str, times: int = 1) -> None:
        """Press a key on the element that has the focus. Arrow keys and Tab are known."""
        codes = {"Tab": 9, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}
        for _ in range(times):
            for kind in ("rawKeyDown", "keyUp"):
                code = codes[key]
                self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code)
        self.settle()

    def drag(self, start: tuple[float, float], end: tuple[float, float]) -> None:
        """Drag the mouse from one point of the window to another."""
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=start[0], y=start[1])
        steps = (("mousePressed", start), ("mouseMoved", end), ("mouseReleased", end))
        for kind, (x, y) in steps:
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", buttons=1, clickCount=1)
        self.settle()

    def complaints(self) -> list[dict[str, Any]]:
        """Return console messages, log entries and exceptions so far."""
        kinds = ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")
        return [event for event in self.events if event.get("method") in kinds]

    def requests(self) -> list[str]:
        """Return the addresses that the page has requested so far."""
        sent = [event for event in self.events if event.get("method") == "Network.requestWillBeSent"]
        return [event["params"]["request"]["url"] for event in sent]

    def screenshot(self) -> bytes:
        """Return a PNG of the whole page."""
        picture = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        return base64.b64decode(picture["data"])
