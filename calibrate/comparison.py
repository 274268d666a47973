"""Measured and predicted side by side: metric × statistic, with signed errors.

Definitions are those of `vllm bench serve`: TTFT and E2E count from the send, TPOT is (E2E − TTFT) / (output tokens
− 1), percentiles are linear (numpy's default).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from calibrate.readers.measured import Floats, MeasuredRun
from sim.records import Outcome, RunRecord
from sim.results.columns import RequestColumns, as_array

STATISTICS = ("mean", "p50", "p90", "p95", "p99")
SCORED = ("p50", "p90", "p99")
"""The percentiles that a run's median and worst error are taken over, of TTFT, TPOT and E2E."""


@dataclass(frozen=True, slots=True)
class Row:
    """One number, measured and predicted; None where there is none.

    Attributes:
        metric: ttft_ms, tpot_ms, itl_ms, e2el_ms, duration_s, request_throughput_per_s, output_throughput_per_s,
            preemptions.
        statistic: mean, p50, …; None for a number of the whole run.
    """

    metric: str
    statistic: str | None
    measured: float | None
    predicted: float | None

    @property
    def error_percent(self) -> float | None:
        """Signed: positive where more is predicted than was measured; None where either is unknown, or 0."""
        if self.measured is None or self.predicted is None or self.measured == 0:
            return None
        return 100.0 * (self.predicted - self.measured) / self.measured


@dataclass(frozen=True, slots=True)
class Comparison:
    """One run's table.

    Attributes:
        run: its name.
        rows: the table.
        num_requests: requests of the measured run.
        num_preemptions: in the simulation.
        max_running: largest number of running requests after a step's scheduling, in the simulation.
        max_waiting: the same of waiting ones.
        warnings: what the reader must know, one sentence each.
    """

    run: str
    rows: tuple[Row, ...]
    num_requests: int
    num_preemptions: int
    max_running: int
    max_waiting: int
    warnings: tuple[str, ...] = ()

    def error_percent(self, metric: str, statistic: str | None = None) -> float | None:
        """Returns one signed error."""
        return next(
            (row.error_percent for row in self.rows if (row.metric, row.statistic) == (metric, statistic)), None
        )

    def errors_percent(self) -> list[float]:
        """Returns the errors of TTFT, TPOT and E2E that are known, at the statistics that count (`SCORED`)."""
        metrics = ("ttft_ms", "tpot_ms", "e2el_ms")
        found = [self.error_percent(metric, statistic) for metric in metrics for statistic in SCORED]
        return [error for error in found if error is not None]


@dataclass(frozen=True, slots=True)
class Latencies:
    """A run's latencies in seconds, a number a request in the order of sending (NaN: none), and its token gaps.

    Attributes:
        gaps_s: distinct gaps between tokens.
        gap_counts: how often each came.
    """

    sent_s: Floats
    ttft_s: Floats
    e2el_s: Floats
    tpot_s: Floats
    output_tokens: Floats
    gaps_s: Floats | None = None
    gap_counts: Floats | None = None


def predicted_latencies(record: RunRecord) -> Latencies:
    """Returns the latencies of a simulated run."""
    columns = RequestColumns.of(record)
    done = columns.ended(Outcome.FINISHED)
    ttft = np.where(done, (columns.first_token_ns - columns.sent_ns) / 1e9, np.nan)
    e2el = np.where(done, (columns.finish_ns - columns.sent_ns) / 1e9, np.nan)
    gaps = columns.num_output_tokens - 1
    return Latencies(
        sent_s=columns.sent_ns / 1e9,
        ttft_s=ttft,
        e2el_s=e2el,
        tpot_s=np.where(gaps > 0, (e2el - ttft) / np.maximum(gaps, 1), np.nan),
        output_tokens=columns.num_output_tokens.astype(np.float64),
        gaps_s=as_array(record.itl.gap_ns) / 1e9,
        gap_counts=as_array(record.itl.count).astype(np.float64),
    )


def measured_latencies(run: MeasuredRun) -> Latencies:
    """Returns the latencies of a measured run."""
    unknown = np.full(len(run), np.nan)
    ttft = unknown if run.ttft_s is None else run.ttft_s
    e2el = unknown if run.e2el_s is None else run.e2el_s
    return Latencies(
        sent_s=run.sent_s,
        ttft_s=ttft,
        e2el_s=e2el,
        tpot_s=unknown if run.tpot_s is None else run.tpot_s,
        output_tokens=run.requests.output_tokens.astype(np.float64),
        gaps_s=run.itl_s,
    )


def compare(
    run: MeasuredRun,
    predicted: Latencies,
    record: RunRecord,
    *,
    window_s: tuple[float, float] | None = None,
    warnings: tuple[str, ...] = (),
) -> Comparison:
    """Returns the table of a measured run and its simulation."""
    measured = measured_latencies(run)
    rows = []
    for metric, kind in (("ttft_ms", "ttft_s"), ("tpot_ms", "tpot_s"), ("e2el_ms", "e2el_s")):
        ours, theirs = getattr(predicted, kind), getattr(measured, kind)
        rows += [Row(metric, s, _statistic(theirs, s, 1e3), _statistic(ours, s, 1e3)) for s in STATISTICS]
    rows += [
        Row("itl_ms", s, _gap_statistic(measured, s), _gap_statistic(predicted, s))
        for s in STATISTICS
    ]  # fmt: skip
    before, after = _totals(measured, window_s), _totals(predicted, window_s)
    rows += [Row(metric, None, before[metric], after[metric]) for metric in after]
    steps = record.steps
    return Comparison(
        run=run.name,
        rows=tuple(rows),
        num_requests=len(run),
        num_preemptions=sum(request.num_preemptions for request in record.requests),
        max_running=max(steps.num_running, default=0),
        max_waiting=max(steps.num_waiting, default=0),
        warnings=warnings,
    )


def completions_per_s(latencies: Latencies, window_s: tuple[float, float]) -> float | None:
    """Returns requests completed in a window, a second; None where no end is known."""
    ends = latencies.sent_s + latencies.e2el_s
    if np.isnan(ends).all():
        return None
    start, end = window_s
    return float(((ends >= start) & (ends < end)).sum() / (end - start))


def _totals(latencies: Latencies, window_s: tuple[float, float] | None) -> dict[str, float | None]:
    ends = latencies.sent_s + latencies.e2el_s
    known = ~np.isnan(ends)
    if not known.any():
        return dict.fromkeys(("duration_s", "request_throughput_per_s", "output_throughput_per_s"))
    duration = float(ends[known].max())
    start, end = window_s or (0.0, duration * (1 + 1e-12))
    inside = known & (ends >= start) & (ends < end)
    return {
        "duration_s": duration,
        "request_throughput_per_s": float(inside.sum() / (end - start)),
        "output_throughput_per_s": float(latencies.output_tokens[inside].sum() / (end - start)),
    }


def _statistic(values: Floats, statistic: str, scale: float) -> float | None:
    known = values[~np.isnan(values)]
    if not len(known):
        return None
    value = known.mean() if statistic == "mean" else np.percentile(known, float(statistic[1:]))
    return float(scale * value)


def _gap_statistic(latencies: Latencies, statistic: str) -> float | None:
    """Returns a statistic of the token gaps in milliseconds, exact however they are counted."""
    gaps = latencies.gaps_s
    if gaps is None or not len(gaps):
        return None
    counts = np.ones(len(gaps)) if latencies.gap_counts is None else latencies.gap_counts
    if statistic == "mean":
        return float(1e3 * np.average(gaps, weights=counts))
    order = np.argsort(gaps, kind="stable")
    ends = np.cumsum(counts[order])
    place = float(statistic[1:]) / 100 * (ends[-1] - 1)
    low, high = (gaps[order][np.searchsorted(ends, at, side="right")] for at in (np.floor(place), np.ceil(place)))
    return float(1e3 * (low + (high - low) * (place - np.floor(place))))
