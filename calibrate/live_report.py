"""A calibration in words: the fit's own report, how long the client waits, and the errors phase by phase."""

from __future__ import annotations

import math

from calibrate.live_profile import LiveProfile
from calibrate.observe import Observation
from sim.engine.profile import ErrorTable
from sim.engine.profile_terms import Estimate

_COLUMNS = (
    ("TTFT p50", "ttft_ms", "p50"),
    ("p90", "ttft_ms", "p90"),
    ("TPOT p50", "tpot_ms", "p50"),
    ("p90", "tpot_ms", "p90"),
    ("E2E p50", "e2el_ms", "p50"),
    ("p90", "e2el_ms", "p90"),
    ("duration", "duration_s", None),
)


def calibration_report(made: LiveProfile, observation: Observation) -> str:
    """Returns the report that `headcount calibrate` prints."""
    profile = made.profile
    lines = [f"{profile.name}: {profile.source}", *made.report]
    client = profile.client_latency
    lines += [
        "[[Outside the engine]]",
        f"    request_ms {_estimate(client.request_ms)}",
        f"    per_prompt_token_us {_estimate(client.per_prompt_token_us)}",
        f"    response_ms {_estimate(client.response_ms)}",
        f"    serial_ms {_estimate(client.serial_ms)}",
    ]
    phases = {result.phase.name for result in observation.phases}
    tables = [table for table in profile.errors if table.run in phases]
    if tables:
        lines.append("[[Errors of the phases, simulated with this profile, %]]")
        lines.append(" " * 24 + "".join(f"{title:>10}" for title, _, _ in _COLUMNS))
        lines += map(_phase_line, tables)
    lines += [f"note: {note}" for note in profile.notes]
    record = observation.steps
    if record is not None and record.recorder_s is not None and record.num_stages == 1:
        busy_s = sum(duration for _, duration in record.durations()) / 1e9
        share = 100 * record.recorder_s / busy_s if busy_s else 0.0
        lines.append(f"note: recording took {record.recorder_s:.2f} s of {busy_s:.1f} s of steps ({share:.2f} %)")
        lines += [f"note: {warning}" for warning in record.warnings]
    return "\n".join(lines)


def _phase_line(table: ErrorTable) -> str:
    errors: dict[tuple[str, str | None], float] = {(row.metric, row.statistic): row.error_percent for row in table.rows}
    cells = [errors.get((metric, statistic), math.nan) for _, metric, statistic in _COLUMNS]
    return f"    {table.run:<20}" + "".join("" if math.isnan(c) else f"{c:>+10.1f}" for c in cells)


def _estimate(estimate: Estimate) -> str:
    remark = f"  ({estimate.remark})" if estimate.remark else ""
    return f"{estimate.value:.5g}{remark}"
