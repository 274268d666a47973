"""A spot check on disk: the table, the verdict, and each latency's distribution, for `headcount report`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from calibrate.spot_comparison import LATENCIES, SpotCheck, Verdict, samples
from calibrate.spot_text import as_document
from sim.records import RunRecord
from sim.results.storage import write_text

FILE = "spot-check.json"
FORMAT = 1

SHARES = (*range(0, 100, 5), 96, 97, 98, 99, 99.5, 100)
"""Percent of the values at which a distribution is kept."""


def write_spot_check(check: SpotCheck, verdict: Verdict, folder: Path) -> Path:
    """Writes `spot-check.json`: what `--json` prints, and the distributions.

    Raises:
        UserError: it cannot be written.
    """
    runs = [repeat.live.record for repeat in check.repeats]
    distributions = {
        name: {
            "live": [_quantiles(run, name, check.warm_up_ns) for run in runs],
            "simulated": _quantiles(check.simulated, name, check.warm_up_ns),
        }
        for name in LATENCIES
    }
    document: dict[str, Any] = {"format": FORMAT, **as_document(check, verdict)}
    document |= {"shares": list(SHARES), "distributions": distributions}
    path = folder / FILE
    write_text(path, json.dumps(document, indent=1, allow_nan=False) + "\n")
    return path


def _quantiles(run: RunRecord, name: str, warm_up_ns: int) -> list[float]:
    """Returns the values, in seconds, below which each of `SHARES` lies; none where there is no value."""
    values, counts = samples(run, warm_up_ns)[name]
    if not counts.sum():
        return []
    order = np.argsort(values, kind="stable")
    ends = np.cumsum(counts[order])
    places = np.minimum(np.searchsorted(ends, np.array(SHARES) / 100 * ends[-1]), len(order) - 1)
    return [float(f"{value:.6g}") for value in values[order][places]]
