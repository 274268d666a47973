"""A calibration in words: coefficients with errors, how long the client waits, and the errors by load."""

from __future__ import annotations

import math

from calibrate.observe import Observation
from sim.engine.profile import Profile
from sim.engine.profile_terms import Estimate, FittedStepTime


def report_profile(profile: Profile, observation: Observation) -> str:
    """Returns the report that `headcount calibrate` prints."""
    lines = [f"{profile.name}: {profile.source}", *profile.data, ""]
    assert isinstance(profile.step_time, FittedStepTime)
    lines.append("step time = the sum of")
    for name in FittedStepTime.model_fields:
        estimate = getattr(profile.step_time, name)
        if isinstance(estimate, Estimate) and name != "overlap" and (estimate.value or estimate.remark):
            lines.append(f"  {name:<28} {_estimate(estimate)}")
    client = profile.client_latency
    lines += [
        "outside the engine",
        f"  {'request_ms':<28} {_estimate(client.request_ms)}",
        f"  {'per_prompt_token_us':<28} {_estimate(client.per_prompt_token_us)}",
        f"  {'response_ms':<28} {_estimate(client.response_ms)}",
        "",
        f"{'errors of the phases it was fitted to, %':<44}"
        f"{'TTFT p50':>9}{'p90':>7}{'TPOT p50':>10}{'p90':>7}{'E2E p50':>9}{'p90':>7}{'time':>7}",
    ]
    for table in profile.errors:
        errors: dict[tuple[str, str | None], float] = {
            (row.metric, row.statistic): row.error_percent for row in table.rows
        }
        keys = [(metric, statistic) for metric in ("ttft_ms", "tpot_ms", "e2el_ms") for statistic in ("p50", "p90")]
        cells = [errors.get(key, math.nan) for key in [*keys, ("duration_s", None)]]
        widths = (9, 7, 10, 7, 9, 7, 7)
        lines.append(f"  {table.run:<42}" + "".join(f"{c:>+{w}.1f}" for c, w in zip(cells, widths, strict=True)))
    recorder_s = observation.steps.recorder_s if observation.steps is not None else None
    if observation.steps is not None and recorder_s is not None:
        busy_s = sum(duration for _, duration in observation.steps.durations()) / 1e9
        share = 100 * recorder_s / busy_s if busy_s else 0.0
        lines += ["", f"recording took {recorder_s:.2f} s of {busy_s:.1f} s of steps ({share:.2f} %)"]
        lines += observation.steps.warnings
    return "\n".join(lines)


def _estimate(estimate: Estimate) -> str:
    error = f" ± {estimate.stderr:.3g}" if estimate.stderr is not None else ""
    remark = f"  ({estimate.remark})" if estimate.remark else ""
    return f"{estimate.value:.5g}{error}{remark}"
