"""Real runs and a simulation of the same requests, in one table, with a verdict.

TTFT and E2E count from the send, TPOT is (E2E − TTFT) / (output tokens − 1); an inter-token gap is what the client saw.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from calibrate.live_driver import LiveRun
from sim.records import Outcome, RunRecord

LATENCIES = ("ttft", "tpot", "itl", "e2el")
PERCENTILES = (50, 90, 99)
_SPREADS_ALLOWED = 2.0
_PREEMPTIONS_TOLERANCE = 0.20

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class SpotRow:
    """One number, of each real run and of the simulation; None where there is none.

    Attributes:
        metric: ttft, tpot, itl, e2el (seconds); request_throughput, output_throughput (per second); duration
            (seconds); preemptions; hit_rate (share).
        statistic: p50, p90, p99, mean; empty for a number of the whole run.
        live: of each repeat.
        predicted: of the simulation.
    """

    metric: str
    statistic: str
    live: tuple[float | None, ...]
    predicted: float | None

    @property
    def measured(self) -> float | None:
        """The mean of the repeats."""
        known = [value for value in self.live if value is not None]
        return float(np.mean(known)) if known else None

    @property
    def spread_percent(self) -> float | None:
        """How far apart the repeats are, in percent of their mean; None for fewer than two."""
        known = [value for value in self.live if value is not None]
        if len(known) < 2 or not self.measured:
            return None
        return 100.0 * (max(known) - min(known)) / self.measured

    @property
    def error_percent(self) -> float | None:
        """Signed: positive where more is predicted than was measured."""
        if self.predicted is None or not self.measured:
            return None
        return 100.0 * (self.predicted - self.measured) / self.measured


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether the prediction is good enough.

    Attributes:
        passed: it is.
        median_error_percent: median of the absolute errors of TTFT, TPOT, ITL and E2E at p50, p90 and p99.
        median_spread_percent: median of their spreads between the repeats.
        allowed_percent: the tolerance, or twice the spread, whichever is larger.
        reasons: why not, one sentence each.
    """

    passed: bool
    median_error_percent: float | None
    median_spread_percent: float | None
    allowed_percent: float
    reasons: tuple[str, ...] = ()


@dataclass(slots=True)
class Repeat:
    """One real run: what the client saw, and how the server's counters grew."""

    live: LiveRun
    counters: dict[str, float]


@dataclass(slots=True)
class SpotCheck:
    """A scenario, run for real and simulated.

    Attributes:
        name: the scenario's.
        rows: the table.
        repeats: the real runs.
        simulated: the simulation.
        warnings: what the reader should know, one sentence each.
        warm_up_ns: requests sent before are left out of all numbers.
    """

    name: str
    rows: tuple[SpotRow, ...]
    repeats: list[Repeat]
    simulated: RunRecord
    warnings: list[str] = field(default_factory=list)
    warm_up_ns: int = 0

    def verdict(self, tolerance_percent: float) -> Verdict:
        """Judges the prediction: see `Verdict`; preemptions must agree within 20 %, or as the repeats do."""
        scored = [r for r in self.rows if r.metric in LATENCIES and r.statistic != "mean"]
        errors = [abs(row.error_percent) for row in scored if row.error_percent is not None]
        spreads = [row.spread_percent for row in scored if row.spread_percent is not None]
        spread = float(np.median(spreads)) if spreads else None
        allowed = max(tolerance_percent, _SPREADS_ALLOWED * (spread or 0.0))
        error = float(np.median(errors)) if errors else None
        reasons = []
        if error is None:
            reasons.append("no latency was both measured and predicted")
        elif error > allowed:
            reasons.append(f"the median error is {error:.1f} %, more than {allowed:.1f} %")
        reasons += self._preemption_reasons()
        if any(repeat.live.stopped is not None for repeat in self.repeats):
            reasons.append("a real run ended early")
        return Verdict(not reasons, error, spread, allowed, tuple(reasons))

    def row(self, metric: str, statistic: str = "") -> SpotRow:
        """Returns one row."""
        return next(row for row in self.rows if (row.metric, row.statistic) == (metric, statistic))

    def _preemption_reasons(self) -> list[str]:
        row = self.row("preemptions")
        known = [value for value in row.live if value is not None]
        if not known or row.predicted is None or row.measured is None:
            return []
        spread = max(known) - min(known)
        allowed = max(_PREEMPTIONS_TOLERANCE * row.measured, _SPREADS_ALLOWED * spread, 1.0)
        if abs(row.predicted - row.measured) <= allowed:
            return []
        return [f"{row.predicted:.0f} preemptions are predicted and {row.measured:.1f} were counted (± {allowed:.1f})"]


def compare(repeats: Sequence[Repeat], simulated: RunRecord, warm_up_ns: int = 0) -> tuple[SpotRow, ...]:
    """Returns the table of the real runs and the simulation."""
    live = [_numbers(repeat.live.record, warm_up_ns) | _counted(repeat.counters) for repeat in repeats]
    predicted = _numbers(simulated, warm_up_ns) | _simulated_counts(simulated)
    return tuple(
        SpotRow(metric, statistic, tuple(numbers.get((metric, statistic)) for numbers in live), value)
        for (metric, statistic), value in predicted.items()
    )


def samples(run: RunRecord, warm_up_ns: int = 0) -> dict[str, tuple[Floats, Floats]]:
    """Returns each latency's values in seconds and how often each came, of the requests answered in full."""
    done = [r for r in run.requests if r.outcome is Outcome.FINISHED and r.sent_ns >= warm_up_ns]
    several = [r for r in done if r.num_output_tokens > 1]
    gaps = np.array(run.itl.gap_ns, dtype=np.float64) / 1e9
    inside = np.array(run.itl.end_ns, dtype=np.float64) >= warm_up_ns
    values = {
        "ttft": np.array([r.first_token_ns - r.sent_ns for r in done], dtype=np.float64) / 1e9,
        "tpot": np.array([(r.finish_ns - r.first_token_ns) / (r.num_output_tokens - 1) for r in several]) / 1e9,
        "itl": gaps[inside],
        "e2el": np.array([r.finish_ns - r.sent_ns for r in done], dtype=np.float64) / 1e9,
    }
    counts = {name: np.ones(len(value)) for name, value in values.items()}
    counts["itl"] = np.array(run.itl.count, dtype=np.float64)[inside]
    return {name: (values[name], counts[name]) for name in LATENCIES}


def _numbers(run: RunRecord, warm_up_ns: int) -> dict[tuple[str, str], float | None]:
    numbers: dict[tuple[str, str], float | None] = {}
    for name, (values, counts) in samples(run, warm_up_ns).items():
        numbers[name, "mean"] = float(np.average(values, weights=counts)) if counts.sum() else None
        for percent in PERCENTILES:
            numbers[name, f"p{percent}"] = _percentile(values, counts, percent)
    done = [r for r in run.requests if r.outcome is Outcome.FINISHED and r.sent_ns >= warm_up_ns]
    duration_s = (max(r.finish_ns for r in done) - warm_up_ns) / 1e9 if done else None
    numbers["request_throughput", ""] = len(done) / duration_s if duration_s else None
    numbers["output_throughput", ""] = sum(r.num_output_tokens for r in done) / duration_s if duration_s else None
    numbers["duration", ""] = duration_s
    return numbers


def _percentile(values: Floats, counts: Floats, percent: float) -> float | None:
    """Returns the nearest-rank percentile of values that came several times each."""
    if not len(values):
        return None
    order = np.argsort(values, kind="stable")
    ends = np.cumsum(counts[order])
    return float(values[order][np.searchsorted(ends, percent / 100 * ends[-1])])


def _counted(counters: Mapping[str, float]) -> dict[tuple[str, str], float | None]:
    queries, hits = counters.get("prefix_queries"), counters.get("prefix_hits")
    hit_rate = hits / queries if queries and hits is not None else None
    return {("preemptions", ""): counters.get("num_preemptions"), ("hit_rate", ""): hit_rate}


def _simulated_counts(run: RunRecord) -> dict[tuple[str, str], float | None]:
    queries = sum(run.steps.prefix_queries)
    return {
        ("preemptions", ""): float(sum(run.steps.num_preempted)),
        ("hit_rate", ""): sum(run.steps.prefix_hits) / queries if queries else None,
    }
