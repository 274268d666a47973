"""What ends a long command besides Ctrl-C."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

INTERRUPTED = 130
"""The exit code that a shell reports of a program that Ctrl-C ended."""

READER_GONE = 141
"""The exit code that a shell reports of a program that wrote to a pipe which nobody reads any more."""


@contextmanager
def ends_by_signal() -> Iterator[None]:
    """Takes the signal by which job managers end a job for Ctrl-C, so that no worker process is left behind."""

    def interrupt(_signal: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():  # only the main thread may ask for signals
        yield
        return
    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
