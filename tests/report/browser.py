"""Headless Chromium, driven over its own pipe (DevTools protocol): no package needed but the browser."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome")
# The protocol is spoken on the file descriptors 3 and 4.
START = (
    "import os, sys; r, w = os.dup(int(sys.argv[1])), os.dup(int(sys.argv[2])); "
    "r, w = (os.dup(x) if x in (3, 4) else x for x in (r, w)); os.dup2(r, 3); os.dup2(w, 4); "
    "os.execv(sys.argv[3], sys.argv[3:])"
)


def find() -> str | None:
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class Browser:
    """One page in one browser. `trouble` collects console errors, exceptions, log errors and requests for addresses."""

    def __init__(self, folder: Path, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        mine, theirs = os.pipe(), os.pipe()
        self._write, self._read = mine[1], theirs[0]
        flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
        flags += ["--remote-debugging-pipe", f"--user-data-dir={folder}", "--disable-background-networking"]
        self._process = subprocess.Popen(
            [sys.executable, "-S", "-c", START, str(mine[0]), str(theirs[1]), str(find()), *flags, "about:blank"],
            pass_fds=(mine[0], theirs[1]),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(mine[0])
        os.close(theirs[1])
        self._buffer, self._number, self._session = b"", 0, ""
        self.trouble: list[str] = []
        pages = [t for t in self.call("Target.getTargets")["targetInfos"] if t["type"] == "page"]
        target = pages[0]["targetId"] if pages else self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.resize(width, height)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """The result of a command of the protocol; events that come in between are looked at."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]
            self._look(answer)

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            piece = os.read(self._read, 1 << 16)
            assert piece, "the browser has gone"
            self._buffer += piece
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)

    def _look(self, event: dict[str, Any]) -> None:
        name, found = event.get("method"), event.get("params", {})
        if name == "Runtime.exceptionThrown":
            self.trouble.append(json.dumps(found["exceptionDetails"])[:2000])
        elif name == "Runtime.consoleAPICalled" and found["type"] in ("error", "warning", "assert"):
            self.trouble.append(json.dumps(found["args"])[:2000])
        elif name == "Log.entryAdded" and found["entry"]["level"] in ("error", "warning"):
            self.trouble.append(found["entry"]["text"])
        elif name == "Network.requestWillBeSent" and not found["request"]["url"].startswith(("file:", "data:")):
            self.trouble.append(f"request for {found['request']['url']}")

    def open(self, address: str) -> None:
        self.call("Page.navigate", url=address)
        self.wait(f"location.href === {json.dumps(address)} && document.readyState === 'complete'")

    def ask(self, expression: str) -> Any:
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait(self, expression: str, seconds: float = 20) -> None:
        end = time.monotonic() + seconds
        while not self.ask(expression):
            assert time.monotonic() < end, f"still not true: {expression}"
            time.sleep(0.05)

    def click(self, finder: str) -> None:
        box = "(e => { e.scrollIntoView({block: 'center'}); const b = e.getBoundingClientRect(); "
        where = self.ask(box + f"return [b.x + b.width / 2, b.y + b.height / 2]; }})({finder})")
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=where[0], y=where[1], button="left", clickCount=1)

    def type(self, text: str) -> None:
        self.call("Input.insertText", text=text)

    def resize(self, width: int, height: int, mobile: bool = False) -> None:
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=mobile)

    def screenshot(self, path: Path, whole: bool = False) -> None:
        answer = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(answer["data"]))

    def close(self) -> None:
        self._session = ""
        self.call("Browser.close")
        self._process.wait(20)
        os.close(self._write)
        os.close(self._read)
