"""A spot check as text and as JSON."""

from __future__ import annotations

from typing import Any

from calibrate.spot_comparison import LATENCIES, SpotCheck, SpotRow, Verdict

_NAMES = {
    "ttft": "TTFT ms",
    "tpot": "TPOT ms",
    "itl": "ITL ms",
    "e2el": "E2E ms",
    "request_throughput": "requests/s",
    "output_throughput": "output tokens/s",
    "duration": "duration s",
    "preemptions": "preemptions",
    "hit_rate": "prefix hit rate %",
}
_SCALES = {**dict.fromkeys(LATENCIES, 1e3), "hit_rate": 100.0}


def as_text(check: SpotCheck, verdict: Verdict) -> str:
    """Returns the table and the verdict."""
    repeats = [f"live {i + 1}" for i in range(len(check.repeats))]
    requests = [str(repeat.live.num_finished) for repeat in check.repeats]
    lines = [
        f"{check.name}: {' and '.join(requests)} requests answered live, {len(check.simulated.requests)} simulated",
        "",
        f"{'':<24}" + "".join(f"{name:>11}" for name in [*repeats, "simulated"]) + f"{'error':>9}{'spread':>9}",
    ]
    lines += [_line(row) for row in check.rows]
    lines.append("")
    lines += [f"note: {warning}" for warning in check.warnings]
    return "\n".join([*lines, verdict_text(verdict)])


def verdict_text(verdict: Verdict) -> str:
    """Returns the verdict in one line."""
    error, spread = verdict.median_error_percent, verdict.median_spread_percent
    numbers = f"median error {'unknown' if error is None else f'{error:.1f} %'}"
    numbers += f", the server's own spread {'unknown' if spread is None else f'{spread:.1f} %'}"
    numbers += f", allowed {verdict.allowed_percent:.1f} %"
    if verdict.passed:
        return f"PASS: {numbers}"
    return f"FAIL: {'; '.join(verdict.reasons)} ({numbers})"


def as_document(check: SpotCheck, verdict: Verdict) -> dict[str, Any]:
    """Returns everything as plain values for JSON; latencies in seconds."""
    return {
        "scenario": check.name,
        "passed": verdict.passed,
        "median_error_percent": verdict.median_error_percent,
        "median_spread_percent": verdict.median_spread_percent,
        "allowed_percent": verdict.allowed_percent,
        "reasons": list(verdict.reasons),
        "num_requests": [len(repeat.live.record.requests) for repeat in check.repeats],
        "num_finished": [repeat.live.num_finished for repeat in check.repeats],
        "warnings": check.warnings,
        "rows": [
            {
                "metric": row.metric,
                "statistic": row.statistic or None,
                "live": list(row.live),
                "simulated": row.predicted,
                "error_percent": row.error_percent,
                "spread_percent": row.spread_percent,
            }
            for row in check.rows
        ],
    }


def _line(row: SpotRow) -> str:
    scale = _SCALES.get(row.metric, 1.0)
    cells = "".join(f"{_number(value, scale):>11}" for value in [*row.live, row.predicted])
    error = "" if row.error_percent is None else f"{row.error_percent:+.1f} %"
    spread = "" if row.spread_percent is None else f"{row.spread_percent:.1f} %"
    return f"{_NAMES[row.metric] + ' ' + row.statistic:<24}{cells}{error:>9}{spread:>9}"


def _number(value: float | None, scale: float) -> str:
    if value is None:
        return "–"
    value *= scale
    return f"{value:.0f}" if abs(value) >= 1_000 else f"{value:.4g}"
