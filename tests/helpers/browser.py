"""Pages in a headless browser. Tests that need one are skipped where none is installed."""

from __future__ import annotations

import json
import select
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import Self

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
BROWSER = next(filter(None, map(shutil.which, NAMES)), None)
needs_browser = pytest.mark.skipif(
    BROWSER is None, reason=f"no browser: none of {', '.join(NAMES)} is installed"
)

PATIENCE = 60.0  # seconds
KEYS = {"Tab": 9, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}

# The visible texts whose contrast with their background is too low (WCAG 2.2, 1.4.3): below 4.5, or 3 for large text.
# Disabled controls are exempt.
FAINT = """(() => {
  const brush = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
  const known = new Map();
  const rgba = (colour) => {
    if (!known.has(colour)) {
      brush.clearRect(0, 0, 1, 1);
      brush.fillStyle = colour;
      brush.fillRect(0, 0, 1, 1);
      known.set(colour, [...brush.getImageData(0, 0, 1, 1).data].map((value) => value / 255));
    }
    return known.get(colour);
  };
  const over = (top, below) => top.map((value, i) => (i < 3 ? value * top[3] + below[i] * (1 - top[3]) : 1));
  const background = (one) =>
    one ? over(rgba(getComputedStyle(one).backgroundColor), background(one.parentElement)) : [1, 1, 1, 1];
  const light = (colour) => colour.slice(0, 3)
    .map((value) => (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4))
    .reduce((sum, value, i) => sum + value * [0.2126, 0.7152, 0.0722][i], 0);
  const large = (style) => {
    const size = parseFloat(style.fontSize);
    return size >= 24 || (size >= 18.66 && style.fontWeight >= 700);
  };
  const hasText = (one) => ["number", "select-one"].includes(one.type) ||
    [...one.childNodes].some((child) => child.nodeType === 3 && child.textContent.trim());
  return [...document.body.querySelectorAll("*")]
    .filter((one) => one.checkVisibility() && hasText(one) && !one.closest("option, .control:has(:disabled)"))
    .map((one) => {
      const style = getComputedStyle(one), below = background(one);
      const text = over(rgba(one.tagName === "text" ? style.fill : style.color), below);
      const [dark, bright] = [light(text), light(below)].sort((a, b) => a - b);
      return [one.tagName, one.className, (bright + 0.05) / (dark + 0.05), large(style) ? 3 : 4.5];
    })
    .filter(([, , contrast, wanted]) => contrast < wanted - 0.005);
})()"""


class Page:
    """One tab, driven through the DevTools protocol.

    ``events`` holds what the browser reported: console messages, exceptions and requests. The protocol is JSON
    messages, each ended by a null byte, on the file descriptors 3 and 4 of the browser.
    """

    def __init__(self, folder: Path) -> None:
        flags = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--hide-scrollbars",
        ]
        pipe = ["--remote-debugging-pipe", f"--user-data-dir={folder}"]
        self._browser = subprocess.Popen(
            ["sh", "-c", 'exec "$@" 3<&0 4>&1', "sh", BROWSER, *flags, *pipe, "about:blank"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
        )
        self.events: list[dict[str, Any]] = []
        self._count, self._buffer, self._session = 0, b"", None

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
        self._browser.wait(PATIENCE)
        self._browser.stdin.close()
        self._browser.stdout.close()

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol and return its result."""
        self._count += 1
        message = {"id": self._count, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        self._browser.stdin.write(json.dumps(message).encode() + b"\0")
        while (answer := self._receive()).get("id") != self._count:
            self.events.append(answer)
        assert "error" not in answer, (method, answer["error"])
        return answer["result"]

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._browser.stdout], [], [], PATIENCE)
            assert ready, f"the browser has not answered for {PATIENCE} s"
            received = self._browser.stdout.read(1 << 16)
            assert received, "the browser has ended"
            self._buffer += received
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)

    def open(self, url: str, *, width: int = 1280) -> None:
        """Load a page in a window of the given width and wait until it has been drawn."""
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        self.call("Page.navigate", url="about:blank")  # a new hash alone would not load the page again
        before = len(self.events)
        document = self.call("Page.navigate", url=url)["loaderId"]
        # Until the new document is loaded, scripts may still run in the one before it.
        loaded = {"loaderId": document, "name": "load"}
        while not any(loaded.items() <= event.get("params", {}).items() for event in self.events[before:]):
            self.events.append(self._receive())
        self.settle()

    def settle(self) -> None:
        """Wait until two frames have been drawn."""
        self.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done())))")

    def evaluate(self, expression: str) -> Any:
        """Return the value of a JavaScript expression; a promise is awaited."""
        answer = self.call(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True, userGesture=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def press(self, key: str, times: int = 1) -> None:
        """Press one of ``KEYS`` on the element that has the focus."""
        named = {"key": key, "code": key, "windowsVirtualKeyCode": KEYS[key]}
        for _ in range(times):
            for kind in ("rawKeyDown", "keyUp"):
                self.call("Input.dispatchKeyEvent", type=kind, **named)
        self.settle()

    def drag(self, start: tuple[float, float], end: tuple[float, float]) -> None:
        """Drag the mouse from one point of the window to another."""
        for kind, (x, y) in (("mousePressed", start), ("mouseMoved", end), ("mouseReleased", end)):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", buttons=1, clickCount=1)
        self.settle()

    def faint_texts(self) -> list[list[Any]]:
        """Return the texts with too little contrast in the light or the dark colour scheme."""
        found = []
        for scheme in ("light", "dark"):
            self.call(
                "Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}]
            )
            self.settle()
            found += [[scheme, *text] for text in self.evaluate(FAINT)]
        return found

    def complaints(self) -> list[dict[str, Any]]:
        """Return console messages, log entries and exceptions so far."""
        kinds = ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")
        return [event for event in self.events if event.get("method") in kinds]

    def requests(self) -> list[str]:
        """Return the addresses that the page has requested so far."""
        sent = [event for event in self.events if event.get("method") == "Network.requestWillBeSent"]
        return [event["params"]["request"]["url"] for event in sent]
