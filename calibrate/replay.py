"""Replays a measured run through a server's model, and sets the prediction beside what was measured.

The client is replayed, not its shadow: where it held requests back behind a cap of its own, they come at the times at
which it wanted to send them, and wait for the cap again. Errors at saturation would otherwise feed on themselves.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

import numpy as np

from calibrate.comparison import Comparison, Row, compare, predicted_latencies
from calibrate.readers.ladder import Rung
from calibrate.readers.measured import MeasuredRun
from sim.api_server import ApiServer
from sim.deployment import Deployment, new_run
from sim.engine.engine_core import EngineCore
from sim.engine.process import run as run_engine
from sim.engine.step_time import ClientLatency, StepTimeModel
from sim.fleet.fleet import Fleet
from sim.records import Outcome, RequestLog, RunRecord
from sim.workload.client import Workload
from sim.workload.closed_loop import ClosedLoop
from sim.workload.open_loop import OpenLoop
from sim.workload.replay import ReplayedRequests, replay_times
from sim.workload.trace import Trace

_HELD_BACK_S = 0.5
_NO_ANSWER = {
    Outcome.REFUSED: "longer than max_model_len allows",
    Outcome.REJECTED: "an admission limit was reached",
    Outcome.TIMED_OUT: "the client gave up",
    Outcome.NEVER_FITS: "longer than the whole KV pool",
    Outcome.UNFINISHED: "still in the server at the end",
}


@dataclass(frozen=True, slots=True)
class Replay:
    """A simulated run beside the measured one.

    Attributes:
        record: what the simulation recorded.
        comparison: metrics of both.
        out_of_range: one sentence for each direction in which steps left the range of the profile's data.
    """

    record: RunRecord
    comparison: Comparison
    out_of_range: tuple[str, ...]


def replay(
    run: MeasuredRun,
    deployment: Deployment,
    *,
    max_concurrency: int | None = None,
    num_ranks: int = 1,
    window_s: tuple[float, float] | None = None,
) -> Replay:
    """Simulates a measured run's requests.

    Args:
        run: the requests, and what the client saw of them.
        deployment: the server.
        max_concurrency: the client's cap on requests in flight; None: the recording's, or none.
        num_ranks: data-parallel ranks of this kind that share the requests.
        window_s: completions are counted from the first to the second of these seconds; None: over the whole run.
    """
    cap = run.max_concurrency if max_concurrency is None else max_concurrency
    if num_ranks > 1:
        record, out_of_range = simulate_ranks(run.requests, deployment, num_ranks, max_concurrency=cap)
    else:
        model = deployment.step_time_model()
        record = simulate_requests(run.requests, deployment, model, deployment.latency, max_concurrency=cap)
        out_of_range = tuple(model.out_of_range())
    said = (*run.warnings, *deployment.warnings, *record.warnings, *_held_back(run, cap), *out_of_range)
    warnings = tuple(dict.fromkeys(said))
    warnings += (*_unanswered(record), *_empty_window(record, window_s))
    comparison = compare(run, predicted_latencies(record), record, window_s=window_s, warnings=warnings)
    return Replay(record, comparison, out_of_range)


def replay_rung(rung: Rung, deployment: Deployment, *, length_spread: float) -> Replay:
    """Simulates a closed loop of which only the totals are known.

    Args:
        rung: the totals.
        deployment: the server.
        length_spread: lengths are drawn uniformly within this share of their mean.
    """
    requests = rung.requests(length_spread)
    model = deployment.step_time_model()
    record = simulate_requests(requests, deployment, model, deployment.latency, max_concurrency=rung.max_concurrency)
    out_of_range = tuple(model.out_of_range())
    warnings = (*deployment.warnings, *record.warnings, *out_of_range)
    return Replay(record, compare_rung(rung, requests, record, warnings), out_of_range)


def compare_rung(rung: Rung, requests: Trace, record: RunRecord, warnings: tuple[str, ...] = ()) -> Comparison:
    """Returns the table of a rung: what it states as the measured side."""
    table = compare(MeasuredRun(rung.name, requests), predicted_latencies(record), record, warnings=warnings)
    preemptions = Row("preemptions", None, None, float(table.num_preemptions))
    rows = [replace(row, measured=rung.measured.get((row.metric, row.statistic))) for row in (*table.rows, preemptions)]
    return replace(table, rows=tuple(rows))


def simulate_requests(
    requests: Trace,
    deployment: Deployment,
    model: StepTimeModel,
    latency: ClientLatency,
    *,
    max_concurrency: int | None = None,
) -> RunRecord:
    """Runs recorded requests through a server; the records come back in the order of the requests."""
    workload = _workload(requests, max_concurrency)
    scheduler_config, cache_config = deployment.scheduler_config, deployment.cache_config
    record = new_run(workload, scheduler_config, cache_config, calibrated=model.calibrated)
    engine = EngineCore(scheduler_config, cache_config, model)
    server = ApiServer(workload, engine, record, limits=deployment.limits, latency=latency)
    record.end_ns = run_engine(engine, server)
    record.arrivals_end_ns = workload.arrivals_end_ns
    record.warnings += server.warnings()
    return _in_order(record)


def simulate_ranks(
    requests: Trace, deployment: Deployment, num_ranks: int, *, max_concurrency: int | None = None
) -> tuple[RunRecord, tuple[str, ...]]:
    """Runs recorded requests through the data-parallel ranks of a server, between which vLLM's own rule divides them.

    Args:
        requests: the recording.
        deployment: one rank.
        num_ranks: how many; those of a model with experts step together.
        max_concurrency: the client's cap on requests in flight.

    Returns:
        The records in the order of the requests, and a sentence for each direction in which steps left the range of
        the profile's data.
    """
    workload = _workload(requests, max_concurrency)
    server = deployment.server.model_copy(update={"data_parallel_size": num_ranks})
    calibrated = deployment.step_time_model().calibrated
    record = new_run(workload, deployment.scheduler_config, deployment.cache_config, calibrated=calibrated)
    fleet = Fleet(replace(deployment, server=server), workload, record)
    fleet.run()
    return _in_order(record), tuple(fleet.out_of_range())


def _in_order(record: RunRecord) -> RunRecord:
    """Puts the records in the order of the requests, which are numbered as they are sent."""
    record.requests = RequestLog(sorted(record.requests, key=lambda request: request.request_id))
    return record


def _workload(requests: Trace, max_concurrency: int | None) -> Workload:
    times = replay_times(requests, 1.0, behind_a_cap=max_concurrency is not None)
    source = ReplayedRequests(requests, times, timeout_ns=None)
    names = requests.class_names or ("replay",)
    if max_concurrency is None:
        return OpenLoop(source, names)
    return ClosedLoop(source, names, max_concurrency)


def _unanswered(record: RunRecord) -> tuple[str, ...]:
    """Says how many requests got no answer: they have no predicted latency, whatever was measured of them."""
    counts = Counter(request.outcome for request in record.requests)
    return tuple(
        f"{counts[outcome]} of {len(record.requests)} requests got no answer in the simulation: {why}; the predicted "
        "numbers are those of the others"
        for outcome, why in _NO_ANSWER.items()
        if counts[outcome]
    )


def _empty_window(record: RunRecord, window_s: tuple[float, float] | None) -> tuple[str, ...]:
    """Says when a window lies where nothing was simulated."""
    if window_s is None or window_s[0] < record.end_ns / 1e9:
        return ()
    end_s = record.end_ns / 1e9
    return (f"--window {window_s[0]:g}:{window_s[1]:g} begins after the simulated run, which ends at {end_s:.1f} s",)


def _held_back(run: MeasuredRun, cap: int | None) -> tuple[str, ...]:
    """Says when the recorded client had a cap that the replay does not know."""
    if cap is not None or run.requests.wanted_ns is None:
        return ()
    late_s = np.percentile(run.requests.sent_ns - run.requests.wanted_ns, 90) / 1e9
    if late_s < _HELD_BACK_S:
        return ()
    return (
        f"{run.name}: a tenth of the requests were sent {late_s:.1f} s or more after they were wanted, so the client "
        "held them back; give its cap with --max-concurrency, or small errors grow into large ones",
    )
