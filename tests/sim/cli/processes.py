"""Worker processes, seen from outside."""

from __future__ import annotations

import os
import time
from pathlib import Path


def workers_of(parent: int) -> list[int]:
    """Returns the process ids of the joblib workers that a process has started."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            is_child = (folder / "stat").read_text().rsplit(")", 1)[1].split()[1] == str(parent)
            is_worker = "popen_loky" in (folder / "cmdline").read_text()
        except OSError:
            continue
        if is_child and is_worker:
            found.append(int(folder.name))
    return found


def wait_for_end(process_id: int, deadline: float) -> None:
    """Waits until a process has ended; `deadline` is of time.monotonic()."""
    while time.monotonic() < deadline:
        try:
            os.kill(process_id, 0)
            if (Path("/proc") / str(process_id) / "stat").read_text().rsplit(")", 1)[1].split()[0] == "Z":
                return  # nobody takes it in where the test's own parent does not reap
        except (ProcessLookupError, FileNotFoundError):
            return
        time.sleep(0.1)
    raise AssertionError(f"process {process_id} still runs")
