"""Latencies of the requests of a window, and which requests met their bounds.

Definitions are those of `vllm bench serve` (vllm/benchmarks/serve.py): TTFT runs from the client's send (after its
semaphore) to the first token, E2EL from the send to the last, TPOT = (E2EL − TTFT) / (output tokens − 1), ITL is the
gap between two tokens. Queue time runs from the engine's receipt to the first scheduling.

One thing is added. A request that was still waiting when its client gave up, or when the run ended, has no TTFT, and to
drop it would make a server look better the worse it gets. It counts with the time it had waited by then: a lower
bound, and `num_censored` says how many there are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from sim.records import Outcome, RunRecord
from sim.results.columns import BoolArray, RequestColumns, as_array
from sim.results.percentiles import IntArray, Sample
from sim.results.window import Window

LATENCIES = ("ttft", "tpot", "itl", "e2el", "queue")
"""The latencies an objective may bound."""

PARTS = ("client", "prefill", "decode")
"""What an E2E latency is made of besides the queue: the way to the engine, first scheduling to first token, first token
to last."""

PERCENTILES = (50.0, 90.0, 95.0, 99.0)
"""The percentiles that every result states; an objective may ask for more."""

_OPEN = (Outcome.UNFINISHED, Outcome.TIMED_OUT)  # ends that leave a latency known only from below


@dataclass(frozen=True, slots=True)
class LatencySummary:
    """The distribution of one latency, in milliseconds; every number is None when there are no data.

    Attributes:
        count: values in it: requests, or tokens for ITL.
        num_censored: of those, known only from below.
        mean: arithmetic mean.
        max: the largest.
        percentiles: q -> the q-th percentile.
    """

    count: int
    num_censored: int
    mean: float | None
    max: float | None
    percentiles: Mapping[float, float | None]


def summarize_sample(sample: Sample, percentiles: Iterable[float], num_censored: int = 0) -> LatencySummary:
    """Sums up a sample of nanoseconds in milliseconds."""
    return LatencySummary(
        count=len(sample),
        num_censored=num_censored,
        mean=_ms(sample.mean()),
        max=_ms(sample.max()),
        percentiles={q: _ms(sample.percentile(q)) for q in percentiles},
    )


def request_latency(columns: RequestColumns, kind: str) -> tuple[IntArray, BoolArray, BoolArray]:
    """Returns one latency of every request.

    Returns:
        the values in nanoseconds, which of them exist, and which of those are lower bounds.
    """
    match kind:
        case "ttft":
            return _between(columns, columns.sent_ns, columns.first_token_ns)
        case "queue":
            return _between(columns, columns.arrival_ns, columns.scheduled_ns)
        case "e2el":
            finish = np.where(columns.ended(Outcome.FINISHED), columns.finish_ns, -1)
            return _between(columns, columns.sent_ns, finish)
        case "client" | "prefill":
            start, end = (columns.sent_ns, columns.arrival_ns) if kind == "client" else (
                columns.scheduled_ns, columns.first_token_ns
            )  # fmt: skip
            values, exists, open_end = _between(columns, start, end)
            return values, exists & ~open_end, np.zeros_like(exists)
        case "decode" | "tpot":
            exists = columns.ended(Outcome.FINISHED) & (columns.num_output_tokens > (1 if kind == "tpot" else 0))
            gaps = np.maximum(columns.num_output_tokens - 1, 1) if kind == "tpot" else 1
            return (columns.finish_ns - columns.first_token_ns) // gaps, exists, np.zeros_like(exists)
    raise AssertionError(f"no latency of a request is called {kind!r}")


def itl_sample(run: RunRecord, window: Window, class_id: int | None) -> Sample:
    """Returns the gaps (ns) before the tokens that came out in the window, of one class or of all."""
    end, gap, count = as_array(run.itl.end_ns), as_array(run.itl.gap_ns), as_array(run.itl.count)
    inside = (end >= window.start_ns) & (end <= window.end_ns)
    if class_id is not None:
        inside &= as_array(run.itl.class_id) == class_id
    return Sample(gap[inside], counts=count[inside])


def goodput(columns: RequestColumns, chosen: BoolArray, bounds_ns: Mapping[str, float]) -> float | None:
    """Returns the share of the chosen requests that finished within every bound, or None when none has ended.

    A request still under way counts only once it has already broken a bound: before that, nothing is known of it.
    """
    good = chosen & columns.ended(Outcome.FINISHED)
    judged = chosen & ~columns.ended(Outcome.UNFINISHED)
    for kind, bound in bounds_ns.items():
        values, exists, open_end = request_latency(columns, kind)
        broken = exists & (values > bound)
        good &= ~broken
        judged |= chosen & broken & open_end
    total = int(judged.sum())
    return int(good.sum()) / total if total else None


def _between(columns: RequestColumns, start: IntArray, end: IntArray) -> tuple[IntArray, BoolArray, BoolArray]:
    """Returns end − start where both happened, and the time known so far where only the start did."""
    began = start >= 0
    closed = began & (end >= 0)
    open_end = began & ~closed & columns.ended(*_OPEN)
    return np.where(closed, end, columns.known_until_ns) - start, closed | open_end, open_end


def _ms(nanoseconds: float | None) -> float | None:
    return None if nanoseconds is None else nanoseconds / 1e6
