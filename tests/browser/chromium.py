"""A headless Chromium, driven over the pipe of its DevTools protocol: no driver, no port, no network."""

from __future__ import annotations

import fcntl
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_PATIENCE_S = 60.0


def find_chromium() -> str | None:
    """Returns the browser's path; HEADCOUNT_CHROMIUM names another one."""
    wanted = os.environ.get("HEADCOUNT_CHROMIUM")
    return wanted or next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """One page of a running browser, and what it reported."""

    def __init__(self, process: subprocess.Popen[bytes], send: int, receive: int) -> None:
        self.process = process
        self.events: list[dict[str, Any]] = []
        self._send, self._receive = send, receive
        self._buffer = b""
        self._next = 0
        self._session: str | None = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Calls a method of the protocol and returns its result."""
        self._next += 1
        message: dict[str, Any] = {"id": self._next, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._send, json.dumps(message).encode() + b"\0")
        while True:
            found = self._read()
            if found.get("id") == self._next:
                assert "error" not in found, f"{method}: {found['error']}"
                result: dict[str, Any] = found["result"]
                return result
            self.events.append(found)

    def open(self, address: str, width: int, height: int = 900) -> None:
        """Opens a page at a window size and waits until it has loaded."""
        self.events.clear()
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        self.call("Page.navigate", url=address)
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._read())

    def value(self, expression: str) -> Any:
        """Returns the value of a JavaScript expression."""
        return self.call("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")

    def named(self, *methods: str) -> list[dict[str, Any]]:
        """Returns the events of these methods since the page was opened."""
        return [event["params"] for event in self.events if event.get("method") in methods]

    def _read(self) -> dict[str, Any]:
        until = time.monotonic() + _PATIENCE_S
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._receive], [], [], max(0.0, until - time.monotonic()))
            chunk = os.read(self._receive, 1 << 16) if ready else b""
            assert chunk, f"the browser said nothing for {_PATIENCE_S:g} s (exit {self.process.poll()})"
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        return message


@contextmanager
def running(path: str) -> Iterator[Browser]:
    """Starts a browser that cannot reach any network, and ends it."""
    to_browser, from_browser = os.pipe(), os.pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        options = ["--headless", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
                   "--disable-dev-shm-usage", "--no-first-run", "--disable-background-networking",
                   "--disable-component-update", "--disable-sync", "--proxy-server=127.0.0.1:9",
                   f"--user-data-dir={profile}"]  # fmt: skip
        ends = [fcntl.fcntl(fd, fcntl.F_DUPFD, 10) for fd in (to_browser[0], from_browser[1])]

        def connect() -> None:  # the browser reads from file descriptor 3 and writes to 4
            os.dup2(ends[0], 3)
            os.dup2(ends[1], 4)

        with Path(profile, "log").open("wb") as log, subprocess.Popen(
            [path, *options], preexec_fn=connect, pass_fds=(3, 4), stdout=log, stderr=log  # noqa: PLW1509 - no threads
        ) as process:  # fmt: skip
            for fd in (*ends, to_browser[0], from_browser[1]):
                os.close(fd)
            try:
                yield Browser(process, to_browser[1], from_browser[0])
            finally:
                process.terminate()
                process.wait()
                os.close(to_browser[1])
                os.close(from_browser[0])
