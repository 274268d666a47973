"""A comparison as text for people and as plain data for programs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from calibrate.comparison import SCORED, STATISTICS, Comparison, Row

Spread = Mapping[tuple[str, str | None], float]
"""(metric, statistic) -> per cent by which the server's own repeats differ."""

_NAMES = {"ttft_ms": "TTFT ms", "tpot_ms": "TPOT ms", "e2el_ms": "E2E ms", "itl_ms": "ITL ms"}
_TOTALS = {
    "duration_s": "duration s",
    "request_throughput_per_s": "requests/s",
    "output_throughput_per_s": "output tokens/s",
    "preemptions": "preemptions",
}


def comparison_lines(comparison: Comparison, spread: Spread | None = None) -> list[str]:
    """Returns the table metric × statistic: measured, predicted, signed error, and the server's own spread."""
    spread = spread or {}
    lines = [f"{'':<27}" + "".join(f"{statistic:>11}" for statistic in STATISTICS)]
    for metric, name in _NAMES.items():
        rows = [row for row in comparison.rows if row.metric == metric]
        if any(row.predicted is not None for row in rows):
            lines += _block(name, rows, [spread.get((metric, row.statistic)) for row in rows])
    lines.append("")
    lines += [_total(_TOTALS[row.metric], row) for row in comparison.rows if row.metric in _TOTALS]
    lines.append(
        f"simulated: at most {comparison.max_running} running and {comparison.max_waiting} waiting, "
        f"{comparison.num_preemptions} preemptions"
    )
    errors = comparison.errors_percent()
    if errors:
        sizes = np.abs(errors)
        lines.append(
            f"error over TTFT, TPOT and E2E at {', '.join(SCORED)}: median {np.median(sizes):.2f} %, "
            f"worst {sizes.max():.2f} %"
        )
    return lines


def comparison_data(comparison: Comparison, spread: Spread | None = None) -> dict[str, Any]:
    """Returns the same for `--json`: numbers as they are, None where there is none."""
    spread = spread or {}
    errors = np.abs(comparison.errors_percent())
    return {
        "run": comparison.run,
        "requests": comparison.num_requests,
        "metrics": [
            {
                "metric": row.metric,
                "statistic": row.statistic,
                "measured": row.measured,
                "predicted": row.predicted,
                "error_percent": row.error_percent,
                "server_spread_percent": spread.get((row.metric, row.statistic)),
            }
            for row in comparison.rows
        ],
        "median_error_percent": float(np.median(errors)) if len(errors) else None,
        "worst_error_percent": float(errors.max()) if len(errors) else None,
        "preemptions": comparison.num_preemptions,
        "max_running": comparison.max_running,
        "max_waiting": comparison.max_waiting,
        "warnings": list(comparison.warnings),
    }


def _block(name: str, rows: list[Row], spreads: list[float | None]) -> list[str]:
    """Returns a metric's lines; those without any number are left out."""
    kinds = [
        ("measured", [_number(row.measured) for row in rows]),
        ("predicted", [_number(row.predicted) for row in rows]),
        ("error", [_percent(row.error_percent) for row in rows]),
        ("server's own spread", ["" if each is None else f"{each:.1f} %" for each in spreads]),
    ]
    kept = [(kind, cells) for kind, cells in kinds if any(cells)]
    return [
        f"{name if i == 0 else '':<8}{kind:<19}" + "".join(f"{cell:>11}" for cell in cells)
        for i, (kind, cells) in enumerate(kept)
    ]


def _total(name: str, row: Row) -> str:
    measured = (
        "" if row.measured is None else f"  measured {_number(row.measured)}  error {_percent(row.error_percent)}"
    )
    return f"{name:<17}predicted {_number(row.predicted)}{measured}"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}" if value >= 1000 else f"{value:.4g}"


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:+.1f} %"
