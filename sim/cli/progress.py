"""The line on stderr that says how far a long command is."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import typer


@dataclass
class ProgressLine:
    """Says on stderr how far a command is, once it has taken two seconds; a terminal sees one line that changes.

    Attributes:
        text: the latest news.
        share: of the work that is done, above 0; None where nobody knows.
    """

    text: str = "simulating"
    share: float | None = None
    began: float = field(default_factory=time.monotonic)
    last: float = 0.0
    width: int = 0  # of the line that a terminal shows; 0: none
    lock: threading.RLock = field(default_factory=threading.RLock)  # the thread of `alive` writes too

    def tell(self, text: str, share: float | None = None) -> None:
        """Takes news."""
        self.text, self.share = text, share
        self.show()

    def show(self) -> None:
        """Shows the latest news with the time it has taken, if the last line is not too young."""
        now = time.monotonic()
        is_terminal = sys.stderr.isatty()
        if now - self.began < 2 or now - self.last < (0.2 if is_terminal else 30.0):
            return
        line = f"{self.text}, {_duration(now - self.began)}"
        if self.share is not None and self.share < 1:
            line += f", about {_duration((now - self.began) * (1 - self.share) / self.share)} left"
        with self.lock:
            typer.echo(f"\r{line:<{self.width}}" if is_terminal else line, err=True, nl=not is_terminal)
            self.last, self.width = now, len(line) if is_terminal else 0

    def write(self, text: str, *, err: bool = False) -> None:
        """Writes text to stdout, or to stderr, where the line was."""
        with self.lock:
            self.clear()
            typer.echo(text, nl=False, err=err)
            (sys.stderr if err else sys.stdout).flush()

    @contextmanager
    def alive(self, every_s: float = 1.0) -> Iterator[None]:
        """Shows the latest news again and again, as the next may be minutes away; removes the line at the end."""
        ended = threading.Event()

        def beat() -> None:
            while not ended.wait(every_s):
                self.show()

        thread = threading.Thread(target=beat, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
            self.clear()

    def clear(self) -> None:
        """Removes the line."""
        with self.lock:
            if self.width:
                typer.echo(f"\r{'':<{self.width}}\r", err=True, nl=False)
            self.width = 0


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
