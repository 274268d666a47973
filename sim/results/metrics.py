"""The numbers that a person reads from one run: `summarize(run, scenario)`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from sim.records import Outcome, RunRecord
from sim.results.columns import BoolArray, RequestColumns, as_array
from sim.results.fleet import FleetUse, fleet_use
from sim.results.latency import (
    LATENCIES,
    PARTS,
    PERCENTILES,
    LatencySummary,
    goodput,
    itl_sample,
    request_latency,
    summarize_sample,
)
from sim.results.other_servers import OllamaUse, StaticUse, ollama_use, static_use
from sim.results.percentiles import Sample
from sim.results.server_use import ServerUse, server_use
from sim.results.steadiness import Overload, find_overload
from sim.results.window import Window, steady_window
from sim.scenario.model import Bound, ClosedLoopWorkload, Objective, OpenLoopWorkload, Scenario, TraceWorkload

Bounds = tuple[Bound, ...]

_MIN_TURNOVERS = 5.0

_ERRORS = {
    Outcome.REFUSED: "refused",
    Outcome.REJECTED: "rejected",
    Outcome.TIMED_OUT: "timed_out",
    Outcome.NEVER_FITS: "never_fits",
    Outcome.LOST: "lost",
}


@dataclass(frozen=True, slots=True)
class GroupMetrics:
    """The requests sent in the window, of one class or of all. Every attempt of a retry is a request of its own.

    Attributes:
        name: the class; `all` for the whole.
        num_requests: requests sent.
        num_finished: of those, answered in full.
        num_unfinished: of those, still in the server when the run ended.
        errors: of those, ended otherwise: kind -> count (refused: HTTP 400, rejected: 503, timed_out, never_fits,
            lost: its replica failed).
        latency: ttft, tpot, itl, e2el, queue, and the parts client, prefill and decode.
        goodput: bounds -> share of the ended requests that finished within all of them.
        num_preemptions: preemptions of these requests.
        num_prompt_tokens: prompt tokens of these requests.
        num_cached_tokens: of those, found in the prefix cache.
        num_output_tokens: tokens that these requests got.
    """

    name: str
    num_requests: int
    num_finished: int
    num_unfinished: int
    errors: Mapping[str, int]
    latency: Mapping[str, LatencySummary]
    goodput: Mapping[Bounds, float | None]
    num_preemptions: int
    num_prompt_tokens: int
    num_cached_tokens: int
    num_output_tokens: int

    @property
    def num_ended(self) -> int:
        """Requests whose end is known."""
        return self.num_requests - self.num_unfinished

    @property
    def error_share(self) -> float | None:
        """Errors per ended request; None when none has ended."""
        return sum(self.errors.values()) / self.num_ended if self.num_ended else None


@dataclass(frozen=True, slots=True)
class Throughput:
    """Rates over the window, per second; None for an empty window.

    Attributes:
        offered: requests sent.
        completed: requests answered in full.
        output_tokens: tokens generated, also for requests that were later given up.
        prompt_tokens: prompt tokens of the requests that got their first token, cached ones included (as vLLM counts).
    """

    offered: float | None
    completed: float | None
    output_tokens: float | None
    prompt_tokens: float | None

    @property
    def total_tokens(self) -> float | None:
        """Prompt and output tokens together."""
        if self.output_tokens is None or self.prompt_tokens is None:
            return None
        return self.output_tokens + self.prompt_tokens


@dataclass(frozen=True, slots=True)
class RunMetrics:
    """One run in numbers.

    Attributes:
        window: the stretch of the run that the numbers describe.
        total: all requests sent in it.
        classes: the same by class.
        throughput: rates over it.
        server: what the engine did in it.
        overload: why the run is not steady, or None.
        duration_s: the whole run, warm-up and drain included.
        calibrated: whether its step times were fitted to a real server.
        max_num_seqs: the server's cap on running requests, of all replicas together.
        max_num_batched_tokens: the server's token budget.
        bounds: those of goodput where no objective names its own.
        warnings: said once each.
        ollama: of servers of that kind: loads, evictions, slots, 503s.
        static: of servers of that kind: what static batches waste.
        fleet: of servers with several replicas: what each one did, failures, requests lost and sent again.
    """

    window: Window
    total: GroupMetrics
    classes: Mapping[str, GroupMetrics]
    throughput: Throughput
    server: ServerUse
    overload: Overload | None
    duration_s: float
    calibrated: bool
    max_num_seqs: int
    max_num_batched_tokens: int
    bounds: Bounds
    warnings: tuple[str, ...] = field(default=())
    ollama: OllamaUse | None = None
    static: StaticUse | None = None
    fleet: FleetUse | None = None


def summarize(run: RunRecord, scenario: Scenario) -> RunMetrics:
    """Returns the numbers of a run, over the steady-state window that the scenario asks for."""
    window = _window(run, scenario)
    metrics = summarize_window(run, window, scenario.objectives)
    short = _short_run(run, metrics, scenario)
    return replace(metrics, warnings=(*metrics.warnings, short)) if short else metrics


def summarize_window(run: RunRecord, window: Window, objectives: Sequence[Objective] = ()) -> RunMetrics:
    """Returns the numbers of a run over a window, with every percentile and goodput that the objectives name."""
    columns = RequestColumns.of(run)
    counts = window.finite or window.length_ns > 0  # all refused at once: a finite run without length still counts
    sent = (columns.sent_ns >= window.start_ns) & (columns.sent_ns <= window.end_ns) & counts
    asked = _Asked.by(objectives)
    source = _Source(run, columns, window, asked)
    return RunMetrics(
        window=window,
        total=source.group("all", sent, None),
        classes={
            name: source.group(name, sent & (columns.class_id == number), number)
            for number, name in enumerate(run.class_names)
        },
        throughput=_throughput(run, columns, window, sent),
        server=server_use(run, window, columns, asked.percentiles),
        overload=find_overload(columns, window),
        duration_s=run.end_ns / 1e9,
        calibrated=run.calibrated,
        max_num_seqs=run.max_num_seqs * run.num_replicas,
        max_num_batched_tokens=run.max_num_batched_tokens,
        bounds=asked.default_bounds,
        warnings=tuple(run.warnings),
        ollama=ollama_use(run, window),
        static=static_use(run, window),
        fleet=fleet_use(run, columns, window, sent),
    )


def is_finite(scenario: Scenario) -> bool:
    """Returns whether the workload is a fixed amount of work that is run to its end, so that the whole run counts."""
    match scenario.workload:
        case ClosedLoopWorkload() | TraceWorkload():
            return True
        case OpenLoopWorkload(arrivals=arrivals, request_rate=rate):
            return arrivals == "all_at_once" or rate == float("inf")
    return False


def _window(run: RunRecord, scenario: Scenario) -> Window:
    window = steady_window(run, warm_up_ns=round(scenario.run.warm_up * 1e9), finite=is_finite(scenario))
    if isinstance(scenario.workload, OpenLoopWorkload) and scenario.workload.num_requests and not window.finite:
        # A number of requests at a rate: the load lasts until the last of them is sent.
        last_ns = max(run.requests.column("sent_ns"), default=0)
        return Window(window.start_ns, min(window.end_ns, last_ns), finite=False)
    return window


def _short_run(run: RunRecord, metrics: RunMetrics, scenario: Scenario) -> str | None:
    """Warns when requests that come at a rate stop coming before the first of them have left.

    Such a run only ever fills the server: a rate that it survives may be far above what the server can keep up.
    """
    workload, mean_ms = scenario.workload, metrics.total.latency["e2el"].mean
    capped = isinstance(workload, TraceWorkload) and workload.max_concurrency is not None
    if mean_ms is None or capped or not isinstance(workload, TraceWorkload | OpenLoopWorkload):
        return None
    sent = run.requests.column("sent_ns")
    span_s = (max(sent) - min(sent)) / 1e9
    if span_s == 0 or span_s >= _MIN_TURNOVERS * mean_ms / 1000:
        return None
    return (
        f"short run: requests come for {span_s:.3g} s and take {mean_ms / 1000:.3g} s on average, so the server was "
        "never in a steady state; a longer run at this rate may fare worse"
    )


@dataclass(frozen=True, slots=True)
class _Asked:
    """What the objectives ask for beyond the usual."""

    percentiles: tuple[float, ...]
    default_bounds: Bounds
    bounds: frozenset[Bounds]

    @classmethod
    def by(cls, objectives: Sequence[Objective]) -> _Asked:
        extra = {objective.percentile for objective in objectives if objective.percentile is not None}
        named = [objective.bounds for objective in objectives if objective.metric == "goodput"]
        # Without a goodput of their own, the latency objectives that can be told of one request make it.
        default = named[0] if named else tuple(
            Bound(objective.metric, objective.value)
            for objective in objectives
            if objective.metric in ("ttft", "tpot", "e2el") and objective.op == "<=" and not objective.class_name
        )  # fmt: skip
        return cls(tuple(sorted({*PERCENTILES, *extra})), default, frozenset([*named, default]))


@dataclass(frozen=True, slots=True)
class _Source:
    """What the numbers of a group are drawn from."""

    run: RunRecord
    columns: RequestColumns
    window: Window
    asked: _Asked

    def group(self, name: str, chosen: BoolArray, class_id: int | None) -> GroupMetrics:
        columns = self.columns
        errors = {label: int((chosen & columns.ended(outcome)).sum()) for outcome, label in _ERRORS.items()}
        return GroupMetrics(
            name=name,
            num_requests=int(chosen.sum()),
            num_finished=int((chosen & columns.ended(Outcome.FINISHED)).sum()),
            num_unfinished=int((chosen & columns.ended(Outcome.UNFINISHED)).sum()),
            errors={label: count for label, count in errors.items() if count},
            latency={kind: self.latency(kind, chosen, class_id) for kind in (*LATENCIES, *PARTS)},
            goodput={
                bounds: goodput(columns, chosen, {bound.metric: bound.seconds * 1e9 for bound in bounds})
                for bounds in self.asked.bounds
            },
            num_preemptions=int(columns.num_preemptions[chosen].sum()),
            num_prompt_tokens=int(columns.num_prompt_tokens[chosen].sum()),
            num_cached_tokens=int(columns.num_cached_tokens[chosen].sum()),
            num_output_tokens=int(columns.num_output_tokens[chosen].sum()),
        )

    def latency(self, kind: str, chosen: BoolArray, class_id: int | None) -> LatencySummary:
        if kind == "itl":
            return summarize_sample(itl_sample(self.run, self.window, class_id), self.asked.percentiles)
        values, exists, open_end = request_latency(self.columns, kind)
        num_censored = int((chosen & open_end).sum())
        return summarize_sample(Sample(values[chosen & exists]), self.asked.percentiles, num_censored)


def _throughput(run: RunRecord, columns: RequestColumns, window: Window, sent: BoolArray) -> Throughput:
    if not window.length_ns:
        return Throughput(None, None, None, None)

    def inside(times: np.ndarray[tuple[int], np.dtype[np.int64]]) -> BoolArray:
        return (times >= window.start_ns) & (times <= window.end_ns)

    first = inside(columns.first_token_ns) & (columns.first_token_ns >= 0)
    completed = inside(columns.finish_ns) & columns.ended(Outcome.FINISHED)
    later_tokens = int(as_array(run.itl.count)[inside(as_array(run.itl.end_ns))].sum())
    return Throughput(
        offered=int(sent.sum()) / window.length_s,
        completed=int(completed.sum()) / window.length_s,
        output_tokens=(int(first.sum()) + later_tokens) / window.length_s,
        prompt_tokens=int(columns.num_prompt_tokens[first].sum()) / window.length_s,
    )
