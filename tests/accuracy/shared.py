"""Published measurements beside the repository, for the accuracy tests; they are skipped where there are none."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from calibrate.comparison import Comparison
from tests.factories import shared_folder


def measurements(name: str) -> Path:
    """Returns the folder of one source of measurements, or skips the test."""
    folder = shared_folder()
    if folder is None or not (folder / "data" / name).is_dir():
        pytest.skip(f"no measurements {name}: set HEADCOUNT_SHARED to the folder that holds data/{name}")
    return folder / "data" / name


def sizes(errors: list[float]) -> tuple[float, float]:
    """Returns the median and the worst of signed errors."""
    return float(np.median(np.abs(errors))), float(np.max(np.abs(errors)))


def scored(table: Comparison, *, saturated: bool) -> list[float]:
    """Returns the errors of TTFT, TPOT and E2E at P50, P90 and P99; of a saturated run's TTFT the P90 alone.

    There the TTFT's other percentiles are chance: equal requests that end together are replaced together, so the groups
    formed while the load came up persist to the end of the run.
    """
    kept = [("tpot_ms", s) for s in ("p50", "p90", "p99")] + [("e2el_ms", s) for s in ("p50", "p90", "p99")]
    if not saturated:
        kept += [("ttft_ms", s) for s in ("p50", "p90", "p99")]
    errors = [table.error_percent(metric, statistic) for metric, statistic in kept]
    return [error for error in errors if error is not None]
