"""Runs cases on the real engine core in virtual time, with the step recorder in front of its scheduler.

    python record_virtual_steps.py CASE.json... OUT_DIR

Runs in vLLM's environment, with the repository on PYTHONPATH: the recorder must need nothing else.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from calibrate import record_schedule, virtual_vllm

_watched = virtual_vllm._watched_scheduler


def _recorded(is_async: bool, watcher: Any) -> type:
    """Returns the watched scheduler with the recorder's hooks in front."""
    from calibrate.record import _Recording  # noqa: PLC0415 - vllm is only there when an engine is built

    return type("RecordedScheduler", (_Recording, _watched(is_async, watcher)), {})


def main() -> None:
    *cases, out = sys.argv[1:]
    virtual_vllm._watched_scheduler = _recorded
    for case in cases:
        os.environ["HEADCOUNT_STEP_RECORD"] = str(Path(out) / f"{Path(case).stem}.jsonl")
        record_schedule.record(json.loads(Path(case).read_text(encoding="utf-8")))


if __name__ == "__main__":
    main()
