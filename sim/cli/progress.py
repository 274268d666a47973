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
    """

    text: str = "simulating"
    began: float = field(default_factory=time.monotonic)
    last: float = 0.0
    shown: bool = False

    def tell(self, text: str) -> None:
        """Takes news."""
        self.text = text
        self.show()

    def show(self) -> None:
        """Shows the latest news with the time it has taken, if the last line is not too young."""
        now = time.monotonic()
        pause = 0.2 if sys.stderr.isatty() else 30.0
        if now - self.began < 2 or now - self.last < pause:
            return
        self.last, self.shown = now, True
        line = f"{self.text}, {now - self.began:.0f} s"
        typer.echo(f"\r{line:<70}" if sys.stderr.isatty() else line, err=True, nl=not sys.stderr.isatty())

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
        if self.shown and sys.stderr.isatty():
            typer.echo(f"\r{'':<70}\r", err=True, nl=False)
