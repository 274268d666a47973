"""Several replicas in the window: what each one did, what the router sent again, what failures cost."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sim.records import FleetLog, Outcome, RunRecord
from sim.results.columns import BoolArray, RequestColumns, as_array
from sim.results.percentiles import Sample
from sim.results.window import Window


@dataclass(frozen=True, slots=True)
class ReplicaUse:
    """One replica over the window; shares and means are over the time that it was up.

    Attributes:
        number: counts from 0.
        up_s: seconds in which it served.
        num_requests: requests sent in the window that ended (or still are) there.
        num_lost: of those, lost when it failed or was stopped.
        ttft_p95_ms: 95th percentile of their TTFT, of those that got a first token; None without any.
        output_tokens_per_s: tokens generated, per second up; None when it was never up.
        busy: share of the time that a step is executing.
        running: mean requests being served.
        waiting: mean requests in its queue.
        kv: mean share of its KV blocks held by requests.
        kv_max: the largest share.
        prefix_hit_rate: prompt tokens found in its prefix cache / looked up; None when none was.
        num_preemptions: preemptions.
    """

    number: int
    up_s: float
    num_requests: int
    num_lost: int
    ttft_p95_ms: float | None
    output_tokens_per_s: float | None
    busy: float | None
    running: float | None
    waiting: float | None
    kv: float | None
    kv_max: float | None
    prefix_hit_rate: float | None
    num_preemptions: int


@dataclass(frozen=True, slots=True)
class FleetUse:
    """All replicas over the window.

    Attributes:
        replicas: each of them.
        mean_up: replicas that served, mean over the window.
        most_up: the most at once.
        fewest_up: the fewest at once.
        replica_hours: time of all replicas from their start (loading included) to their stop, over the whole run.
        num_failures: replicas that failed in the window.
        num_starts: replicas started in the window.
        num_lost: requests sent in the window that were lost with their replica.
        num_retries: requests sent in the window that are a client's further try, whatever the reason.
        num_rerouted: requests sent in the window whose replica failed and that were sent to another one.
        rerouted_delay_ms: of those that were answered, mean time from the first sending to the last; None without any.
    """

    replicas: tuple[ReplicaUse, ...]
    mean_up: float
    most_up: int
    fewest_up: int
    replica_hours: float
    num_failures: int
    num_starts: int
    num_lost: int
    num_retries: int
    num_rerouted: int
    rerouted_delay_ms: float | None


def fleet_use(run: RunRecord, columns: RequestColumns, window: Window, sent: BoolArray) -> FleetUse | None:
    """Sums up the replicas; None of a server that has one.

    Args:
        run: the run.
        columns: its requests.
        window: the stretch of the run that is described.
        sent: which requests were sent in it.
    """
    log = run.fleet
    if log is None:
        return None
    up = log.up(run.end_ns)
    replica = as_array(run.requests.column("replica"))
    levels = _levels(up, window)
    inside = [event for event in log.events if window.start_ns <= event[1] <= window.end_ns]
    lost = sent & columns.ended(Outcome.LOST)
    num_rerouted, delay_ms = _rerouted(run, log, sent)
    return FleetUse(
        replicas=tuple(
            _replica(
                run,
                columns,
                window,
                number=number,
                up_ns=_up_ns(up, window, number),
                chosen=sent & (replica == number),
            )
            for number in range(run.num_replicas)
        ),
        mean_up=sum(_up_ns(up, window, number) for number in range(run.num_replicas)) / max(1, window.length_ns),
        most_up=max(levels),
        fewest_up=min(levels),
        replica_hours=_paid_ns(log, run.end_ns) / 3.6e12,
        num_failures=sum(what == "fail" for _, _, what in inside),
        num_starts=sum(what == "start" for _, _, what in inside),
        num_lost=int(lost.sum()),
        num_retries=int((sent & (as_array(run.requests.column("attempt")) > 0)).sum()),
        num_rerouted=num_rerouted,
        rerouted_delay_ms=delay_ms,
    )


def up_time_ns(run: RunRecord, window: Window) -> int:
    """Returns the time that replicas served in the window, summed over them."""
    if run.fleet is None:
        return window.length_ns * run.num_replicas
    up = run.fleet.up(run.end_ns)
    return sum(_up_ns(up, window, number) for number in range(run.num_replicas))


def _up_ns(up: list[tuple[int, int, int]], window: Window, number: int) -> int:
    return sum(
        max(0, min(end_ns, window.end_ns) - max(start_ns, window.start_ns))
        for replica, start_ns, end_ns in up
        if replica == number
    )


def _levels(up: list[tuple[int, int, int]], window: Window) -> list[int]:
    """Returns how many replicas serve after each change in the window, and at its start."""
    changes = sorted({window.start_ns, *(time for _, *times in up for time in times)})
    inside = [time for time in changes if window.start_ns <= time < window.end_ns] or [window.start_ns]
    return [sum(start <= time < end for _, start, end in up) for time in inside]


def _paid_ns(log: FleetLog, end_ns: int) -> int:
    """Returns the time from start to stop; a replica that fails goes on being paid for while it restarts."""
    since: dict[int, int] = {}
    total = 0
    for replica, time_ns, what in log.events:
        if what == "start":
            since.setdefault(replica, time_ns)
        elif what in ("stop", "fail") and replica in since:
            total += time_ns - since.pop(replica)
    return total + sum(end_ns - start_ns for start_ns in since.values())


def _rerouted(run: RunRecord, log: FleetLog, sent: BoolArray) -> tuple[int, float | None]:
    """Returns how many requests of the window were sent again, and how long those that were answered lost by it."""
    if not log.rerouted:
        return 0, None
    last = dict(log.rerouted)
    chosen = [
        request for request, inside in zip(run.requests, sent, strict=True) if inside and request.request_id in last
    ]
    delays = [
        last[request.request_id] - request.sent_ns for request in chosen if request.outcome is Outcome.FINISHED
    ]  # fmt: skip
    return len(chosen), sum(delays) / len(delays) / 1e6 if delays else None


def _replica(
    run: RunRecord, columns: RequestColumns, window: Window, *, number: int, up_ns: int, chosen: BoolArray
) -> ReplicaUse:
    steps = run.steps
    own = np.flatnonzero(as_array(steps.replica) == number)
    start, end = as_array(steps.start_ns)[own], as_array(steps.end_ns)[own]
    begin = start.copy()
    begin[1:] = np.maximum(start[1:], end[:-1])
    weight = np.clip(end, window.start_ns, window.end_ns) - np.clip(begin, window.start_ns, window.end_ns)
    ended = own[(end >= window.start_ns) & (end <= window.end_ns)]
    kv = 1 - as_array(steps.num_free_blocks)[own] / max(1, run.num_gpu_blocks - 1)

    def mean(values: npt.NDArray[np.float64] | npt.NDArray[np.int64]) -> float | None:
        return float((values * weight).sum()) / up_ns if up_ns else None

    first = columns.first_token_ns[chosen]
    ttft = Sample((first - columns.sent_ns[chosen])[first >= 0]).percentile(95)
    queries = int(as_array(steps.prefix_queries)[ended].sum())
    tokens = int(columns.num_output_tokens[chosen].sum())
    return ReplicaUse(
        number=number,
        up_s=up_ns / 1e9,
        num_requests=int(chosen.sum()),
        num_lost=int((chosen & columns.ended(Outcome.LOST)).sum()),
        ttft_p95_ms=None if ttft is None else ttft / 1e6,
        output_tokens_per_s=tokens / (up_ns / 1e9) if up_ns else None,
        busy=int(weight.sum()) / up_ns if up_ns else None,
        running=mean(as_array(steps.num_running)[own]),
        waiting=mean(as_array(steps.num_waiting)[own]),
        kv=mean(kv),
        kv_max=float(kv[weight > 0].max()) if (weight > 0).any() else None,
        prefix_hit_rate=int(as_array(steps.prefix_hits)[ended].sum()) / queries if queries else None,
        num_preemptions=int(as_array(steps.num_preempted)[ended].sum()),
    )
