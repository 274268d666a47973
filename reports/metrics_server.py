"""A scrape endpoint that plays a run: `/metrics` shows the metrics of the moment that the clock says."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from reports.exposition import Exposition

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Player:
    """The run's clock: it starts with the first look at it, runs `speed` times as fast, and stops at the end.

    Args:
        exposition: the run.
        speed: seconds of the run a second.
        clock: seconds that pass.
    """

    def __init__(self, exposition: Exposition, speed: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.exposition = exposition
        self.speed = speed
        self.clock = clock
        self._began: float | None = None
        self._lock = threading.Lock()

    def now_ns(self) -> int:
        """Returns the moment of the run."""
        with self._lock:
            now = self.clock()
            if self._began is None:
                self._began = now
            return min(round((now - self._began) * self.speed * 1e9), self.exposition.end_ns)

    def text(self) -> str:
        """Returns the metrics of the moment."""
        return self.exposition.text(self.now_ns())


def metrics_server(
    exposition: Exposition, *, port: int, speed: float, clock: Callable[[], float] = time.monotonic
) -> ThreadingHTTPServer:
    """Returns a server on 127.0.0.1 that is ready to `serve_forever`.

    Raises:
        OSError: the port cannot be opened.
    """
    player = Player(exposition, speed, clock)

    class Handler(BaseHTTPRequestHandler):
        """Answers /metrics."""

        def do_GET(self) -> None:
            """Answers one request."""
            if self.path.split("?")[0] != "/metrics":
                self.send_error(404, "only /metrics is served")
                return
            body = player.text().encode()
            self.send_response(200)
            self.send_header("Content-Type", CONTENT_TYPE)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
            """Keeps scrapes off the terminal."""

    return ThreadingHTTPServer(("127.0.0.1", port), Handler)
