"""A real browser, headless, driven over its debugging protocol; skipped aloud where there is none."""

import base64
import contextlib
import itertools
import json
import shutil
import subprocess
import tempfile
import time
import urllib.request
from pathlib import Path

import pytest
from websockets.sync.client import connect

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")


class Page:
    """Drives a tab."""

    def __init__(self, line, domains: tuple[str, ...] = ("Page", "Runtime", "Log")) -> None:
        self._line, self._numbers = line, itertools.count(1)
        self.complaints: list[str] = []
        """Errors of the console, and what the content-security policy has stopped."""
        for domain in domains:
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters):
        """A call of the protocol, and its result."""
        number = next(self._numbers)
        self._line.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while True:
            said = json.loads(self._line.recv(timeout=20))
            if said.get("id") == number:
                assert "error" not in said, said
                return said["result"]
            self._note(said)

    def _note(self, said) -> None:
        if said.get("method") == "Runtime.exceptionThrown":
            self.complaints.append(said["params"]["exceptionDetails"]["text"])
        elif said.get("method") == "Log.entryAdded" and said["params"]["entry"]["level"] == "error":
            self.complaints.append(said["params"]["entry"]["text"])

    def open(self, address: str) -> None:
        """Go there."""
        self.call("Page.navigate", url=address)

    def value(self, expression: str):
        """Return the value of an expression in the page."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def wait_for(self, expression: str, timeout_s: float = 15.0) -> None:
        """Wait until the expression is true."""
        deadline = time.monotonic() + timeout_s
        while not self.value(
            f"(() => {{ try {{ return Boolean({expression}) }} catch {{ return false }} }})()"
        ):  # it may not be loaded yet
            assert time.monotonic() < deadline, f"{expression} has not come true: {self.value('document.body.innerText')}"
            time.sleep(0.05)

    def picture(self, path: Path, width: int = 1240, height: int = 1400) -> None:
        """Save a screenshot of the page."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))


class Browser:
    """Drives a browser; each tab is in a profile of its own."""

    def __init__(self, port: int, line) -> None:
        self._port, self._itself = port, Page(line, domains=())

    @contextlib.contextmanager
    def tab(self):
        """A tab, while this lasts; none of its connections outlives it."""
        profile = self._itself.call("Target.createBrowserContext")["browserContextId"]
        target = self._itself.call("Target.createTarget", url="about:blank", browserContextId=profile)["targetId"]
        try:
            with connect(f"ws://127.0.0.1:{self._port}/devtools/page/{target}", max_size=None, proxy=None) as line:
                yield Page(line)
        finally:
            self._itself.call("Target.disposeBrowserContext", browserContextId=profile)


@contextlib.contextmanager
def browsing():
    """A browser, while this lasts."""
    program = next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        pytest.skip(f"no browser: none of {', '.join(NAMES)} is installed")
    with tempfile.TemporaryDirectory(prefix="oppa-browser-", ignore_cleanup_errors=True) as folder:
        words = ["--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0", f"--user-data-dir={folder}", "about:blank"]
        process = subprocess.Popen([program, *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            port = _port(Path(folder, "DevToolsActivePort"))
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/json/version", timeout=10) as answer:
                address = json.load(answer)["webSocketDebuggerUrl"]
            with connect(address, max_size=None, proxy=None) as line:
                yield Browser(port, line)
        finally:
            process.terminate()
            process.wait(20)


def _port(path: Path) -> int:
    deadline = time.monotonic() + 20
    while not (path.exists() and path.read_text().strip()):
        assert time.monotonic() < deadline, "the browser has not started"
        time.sleep(0.05)
    return int(path.read_text().splitlines()[0])
