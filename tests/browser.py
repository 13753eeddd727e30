"""A real browser without a window: Chromium, spoken to in its own protocol over two pipes."""

import base64
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--disable-extensions", "--disable-default-apps", "--hide-scrollbars"),
    "--remote-debugging-pipe",
)

AS_3_AND_4 = """
import fcntl, os, sys
read, write = (fcntl.fcntl(int(given), fcntl.F_DUPFD, 10) for given in sys.argv[1:3])
os.dup2(read, 3)
os.dup2(write, 4)
os.execv(sys.argv[3], sys.argv[3:])
"""  # where a browser reads and writes; out of the way first


def installed() -> str | None:
    """The browser's program, None if there is none that can be spoken to."""
    if os.name != "posix":  # the pipes
        return None
    return next((found for name in NAMES if (found := shutil.which(name))), None)


@dataclass
class Page:
    """One page. events: all that the browser told meanwhile, in order."""

    to: BinaryIO
    of: BinaryIO
    session: str = ""
    events: list[dict[str, Any]] = field(default_factory=list)
    _count: int = 0

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Ask the browser, and wait for its answer."""
        self._count += 1
        message = {"id": self._count, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        self.to.write(json.dumps(message).encode() + b"\0")
        self.to.flush()
        while (told := self._read()).get("id") != self._count:
            self.events.append(told)
        assert "error" not in told, told["error"]
        answer: dict[str, Any] = told["result"]
        return answer

    def open(self, url: str, width: int, height: int, *, dark: bool = False) -> None:
        """Show a file as a screen of this size does, and wait until it is there."""
        size = {"width": width, "height": height, "deviceScaleFactor": 2, "mobile": width < 600}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.events.clear()
        self.call("Page.navigate", url=url)
        while not self.told("Page.loadEventFired"):
            self.events.append(self._read())

    def evaluate(self, script: str) -> Any:
        """The value of a JavaScript expression."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def told(self, method: str) -> list[dict[str, Any]]:
        """What the browser told of one sort."""
        return [event["params"] for event in self.events if event.get("method") == method]

    def picture(self, file: Path, *, whole: bool = False) -> None:
        """Keep what is seen, or the whole page, as a PNG."""
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=whole)
        file.write_bytes(base64.b64decode(shot["data"]))

    def _read(self) -> dict[str, Any]:
        raw = bytearray()
        while (byte := self.of.read(1)) != b"\0":
            assert byte, "the browser ended"
            raw += byte
        message: dict[str, Any] = json.loads(raw)
        return message


@contextmanager
def browsing(program: str) -> Iterator[Page]:
    """A page of a browser of its own, which ends with it."""
    read, to = os.pipe()
    of, write = os.pipe()
    with TemporaryDirectory(ignore_cleanup_errors=True) as home:
        flags = (*FLAGS, f"--user-data-dir={home}", "about:blank")
        process = subprocess.Popen(
            [sys.executable, "-c", AS_3_AND_4, str(read), str(write), program, *flags],
            pass_fds=(read, write),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(read)
        os.close(write)
        with process, open(to, "wb") as sending, open(of, "rb") as receiving:
            try:
                page = Page(sending, receiving)
                target = page.call("Target.createTarget", url="about:blank")["targetId"]
                found = page.call("Target.attachToTarget", targetId=target, flatten=True)
                page.session = found["sessionId"]
                for domain in ("Page", "Runtime", "Log", "Network"):
                    page.call(f"{domain}.enable")
                yield page
            finally:
                process.terminate()
