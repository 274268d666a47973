"""Laws that hold in every run, whatever is served: Little, utilization, work conservation, monotony."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.engine.recorded import LinearCost
from sim.records import Outcome, RequestLog, RequestRecord, RunRecord
from sim.results.metrics import summarize
from sim.results.server_use import server_use
from sim.results.steadiness import littles_law
from sim.results.window import Window
from sim.scenario.model import Scenario
from sim.simulate import simulate
from tests.cases.build import MS, S, by_id, measured, one_class, scenario, sent, serve, write_profile

# ---- Little's law: L = lambda W, from two logs that know nothing of each other ----

CHAT: dict[str, Any] = {
    "name": "chat",
    "shared_prefix": {"tokens": 500, "scope": "all"},
    "first_prompt_tokens": {"lognormal": {"median": 300, "p95": 2000}},
    "next_prompt_tokens": 80,
    "output_tokens": {"lognormal": {"median": 150, "p95": 500}},
    "turns": {"geometric": {"mean": 4, "max": 12}},
    "think_time": {"exponential": {"mean": "8s"}},
}
MIXED = one_class({"lognormal": {"median": 400, "p95": 3000}}, {"lognormal": {"median": 100, "p95": 400}})
TRACE = "arrival_s,input_tokens,output_tokens\n" + "".join(
    f"{0.11 * i:.2f},{100 + 977 * i % 3000},{20 + 31 * i % 200}\n" for i in range(300)
)

RUNS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "users": ({"kind": "users", "users": 40, "classes": [CHAT]}, {}),
    "users who give up": (
        {
            "kind": "users",
            "users": 90,
            "classes": [CHAT],
            "client_timeout": "8s",
            "retries": {"max": 2, "backoff": "1s"},
        },
        {"max_num_seqs": 16},
    ),
    "open loop": ({"kind": "open_loop", "request_rate": 6, "classes": MIXED}, {}),
    "open loop in bursts": (
        {"kind": "open_loop", "request_rate": 6, "arrivals": {"gamma": {"burstiness": 0.2}}, "classes": MIXED},
        {},
    ),
    "overload": ({"kind": "open_loop", "request_rate": 40, "classes": MIXED}, {"max_num_seqs": 32}),
    "turned away": ({"kind": "open_loop", "request_rate": 40, "classes": MIXED}, {"max_num_queued_reqs": 50}),
    "all at once": (
        {"kind": "open_loop", "arrivals": "all_at_once", "num_requests": 300, "classes": MIXED},
        {},
    ),
    "closed loop": ({"kind": "closed_loop", "num_requests": 400, "max_concurrency": 24, "classes": MIXED}, {}),
    "synchronous": (
        {"kind": "closed_loop", "num_requests": 400, "max_concurrency": 24, "classes": MIXED},
        {"async_scheduling": False},
    ),
    "trace": ({"kind": "trace", "path": "trace.csv"}, {}),
    "preemptions": (
        {"kind": "closed_loop", "num_requests": 300, "max_concurrency": 64, "classes": MIXED},
        {"num_gpu_blocks_override": 1_100, "scheduler_reserve_full_isl": False},
    ),
    "priorities": (
        {
            "kind": "open_loop",
            "request_rate": 12,
            "classes": [{**MIXED[0], "name": "first"}, {**MIXED[0], "name": "last", "priority": 5}],
        },
        {"scheduling_policy": "priority", "num_gpu_blocks_override": 1_100},
    ),
    "without chunks": (
        {"kind": "open_loop", "request_rate": 6, "classes": MIXED},
        {"enable_chunked_prefill": False, "max_num_batched_tokens": 16_384},
    ),
    "sliding windows": (
        {"kind": "closed_loop", "num_requests": 200, "max_concurrency": 16, "classes": MIXED},
        {"model": "gpt-oss-20b"},
    ),
}


def world(folder: Path, name: str) -> Scenario:
    """Returns one of the runs above, on steps of 15 ms + 30 us a token + 0.2 ms a decode."""
    write_profile(folder, floor_us=15_000, per_token_us=30, per_decode_us=200, client_latency={"request_ms": 5})
    (folder / "trace.csv").write_text(TRACE, encoding="utf-8")
    workload, flags = RUNS[name]
    flags = dict(flags)
    server = {"model": flags.pop("model", "Qwen/Qwen2.5-7B-Instruct")}
    defaults = {"max_model_len": 16_384, "max_num_batched_tokens": 2048}
    duration = {"duration": "90s"} if workload["kind"] in ("users", "open_loop") else {}
    return scenario(folder, workload, server=server, run={**duration, "seeds": 1}, **{**defaults, **flags})


@pytest.mark.parametrize("name", RUNS)
def test_littles_law(tmp_path: Path, name: str) -> None:
    """Time average of running + waiting in the step log = arrivals per second x mean time, from the requests."""
    case = world(tmp_path, name)
    run = simulate(case, seed=1)
    law = littles_law(run)
    assert law.holds
    assert law.from_steps > 0
    assert law.slack < 0.5 * law.from_steps  # else it would say nothing
    metrics = summarize(run, case)
    if name == "preemptions":
        assert metrics.server.num_preemptions > 20
    if name == "turned away":
        assert metrics.total.errors["rejected"] > 100
    if name == "users who give up":
        assert metrics.total.errors["timed_out"] > 20


@pytest.mark.parametrize("name", ["overload", "closed loop"])
def test_littles_law_would_notice_a_lost_request(tmp_path: Path, name: str) -> None:
    """A run whose records miss one request in three breaks the law."""
    run = simulate(world(tmp_path, name), seed=1)
    run.requests = RequestLog(request for request in run.requests if request.request_id % 3)
    assert not littles_law(run).holds


# ---- the engine is busy until its last step ends ----

SLOW = 406 * MS


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("offered_per_s", [2, 38])
def test_steps_of_406_ms_serve_2_46_requests_per_s_and_never_more(asynchronous: bool, offered_per_s: int) -> None:
    """One step each, one at a time: whatever is offered, 1 / 0.406 s = 2.46 requests/s is all."""
    requests = [sent(i, 16, 1, i * S // offered_per_s) for i in range(60 * offered_per_s)]
    run = serve(requests, LinearCost(SLOW // 1000), max_num_seqs=1, async_scheduling=asynchronous)
    assert all(request.outcome is Outcome.FINISHED for request in run.requests)
    ends = np.sort([request.finish_ns for request in run.requests])
    assert np.diff(ends).min() >= SLOW  # in no stretch of time more than 2.46 a second
    assert len(ends) * SLOW <= run.end_ns
    busy = server_use(run, Window(0, run.end_ns, finite=True)).busy
    assert busy is not None
    if offered_per_s == 38:
        assert len(ends) / (run.end_ns / S) == pytest.approx(2.463, rel=1e-3)
        assert busy == 1
    else:
        assert busy == pytest.approx(2 * 0.406, rel=0.01)


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("in_flight", [1, 5, 20])
def test_a_closed_fifo_queue_of_406_ms_steps(tmp_path: Path, asynchronous: bool, in_flight: int) -> None:
    """However many users wait in line, 2.46 requests/s leave it, and each waits for all before it."""
    write_profile(tmp_path, floor_us=SLOW / 1000)
    workload = {"kind": "closed_loop", "num_requests": 100, "max_concurrency": in_flight}
    case = scenario(
        tmp_path,
        workload | {"classes": one_class(16, 1)},
        max_model_len=2048,
        max_num_seqs=1,
        async_scheduling=asynchronous,
    )
    _, metrics = measured(case)
    assert metrics.throughput.completed == pytest.approx(2.463, rel=1e-3)
    assert metrics.total.latency["ttft"].percentiles[50.0] == in_flight * 406
    assert metrics.server.busy == 1


def test_an_engine_with_seats_serves_more_by_the_batch_not_by_overlap() -> None:
    """Eight seats serve eight requests a step, and steps still do not overlap: 8 / 0.406 s = 19.7 requests/s."""
    requests = [sent(i, 16, 1, i * S // 38) for i in range(60 * 38)]
    run = serve(requests, LinearCost(SLOW // 1000), max_num_seqs=8, async_scheduling=True)
    assert len(run.requests) / (run.end_ns / S) == pytest.approx(8 / 0.406, rel=0.01)
    no_overlap(run)


# ---- any engine, any requests ----

jobs = st.lists(
    st.tuples(
        st.integers(0, 400),  # ms since the one before
        st.integers(1, 300),  # prompt
        st.integers(1, 40),  # output
        st.none() | st.integers(50, 2_000),  # ms until the client gives up
    ),
    min_size=1,
    max_size=30,
)
engines = st.fixed_dictionaries(
    {
        "max_num_seqs": st.integers(1, 8),
        "max_num_batched_tokens": st.sampled_from([8, 64, 512]),
        "num_gpu_blocks": st.sampled_from([25, 60, 2_000]),
        "async_scheduling": st.booleans(),
        "enable_prefix_caching": st.booleans(),
        "scheduler_reserve_full_isl": st.booleans(),
    }
)
COST = LinearCost(10_000, per_token=100, per_seq=500, per_1k_context=700)
Jobs = list[tuple[int, int, int, int | None]]


def requests_of(jobs: Jobs) -> list[Any]:
    arrivals = np.cumsum([gap for gap, *_ in jobs]).tolist()
    return [
        sent(i, prompt, output, at * MS, timeout_ns=None if patience is None else patience * MS)
        for i, (at, (_, prompt, output, patience)) in enumerate(zip(arrivals, jobs, strict=True))
    ]


def no_overlap(run: RunRecord) -> None:
    starts, ends = run.steps.start_ns, run.steps.end_ns
    assert all(start < end for start, end in zip(starts, ends, strict=True))
    assert all(end <= start for end, start in zip(ends, starts[1:], strict=False))


@settings(max_examples=80, deadline=None)
@given(jobs=jobs, flags=engines)
def test_steps_follow_one_another_and_the_engine_rests_only_when_nothing_is_there(
    jobs: Jobs, flags: dict[str, Any]
) -> None:
    """Work conservation: in every pause between two steps no request is in the server."""
    run = serve(requests_of(jobs), COST, **flags)
    no_overlap(run)
    for rest, work in zip([0, *run.steps.end_ns], [*run.steps.start_ns, run.end_ns], strict=True):
        if rest < work:
            assert not present(run.requests, rest, work), f"idle from {rest} to {work}"


def present(requests: Iterable[RequestRecord], start_ns: int, end_ns: int) -> list[int]:
    """Returns the requests that were in the server for some of a stretch of time."""
    return [r.request_id for r in requests if max(r.arrival_ns, start_ns) < min(r.finish_ns, end_ns)]


@settings(max_examples=80, deadline=None)
@given(jobs=jobs, flags=engines)
def test_every_request_ends_once_and_gets_what_it_asked_for(jobs: Jobs, flags: dict[str, Any]) -> None:
    """Nothing is lost: each request sent has one record and one end; those not given up got every token, in order."""
    run = serve(requests_of(jobs), COST, **flags)
    assert sorted(request.request_id for request in run.requests) == list(range(len(jobs)))
    for number, request in by_id(run).items():
        _, _, output, patience = jobs[number]
        if request.outcome is Outcome.TIMED_OUT:
            assert patience is not None
            assert request.finish_ns == request.sent_ns + patience * MS
            assert request.num_output_tokens < output
            continue
        assert request.outcome is Outcome.FINISHED
        assert request.num_output_tokens == output
        assert request.arrival_ns <= request.scheduled_ns < request.first_token_ns <= request.finish_ns
    later = sum(max(0, request.num_output_tokens - 1) for request in run.requests)
    assert sum(run.itl.count) == later


@settings(max_examples=50, deadline=None)
@given(jobs=jobs, flags=engines)
def test_asynchronous_scheduling_changes_times_not_tokens(jobs: Jobs, flags: dict[str, Any]) -> None:
    """Scheduling a step ahead gives every request the same tokens."""
    patient: Jobs = [(gap, prompt, output, None) for gap, prompt, output, _ in jobs]
    runs = [serve(requests_of(patient), COST, **{**flags, "async_scheduling": mode}) for mode in (False, True)]
    tokens = [[(n, r.outcome, r.num_output_tokens) for n, r in sorted(by_id(run).items())] for run in runs]
    assert tokens[0] == tokens[1]


@settings(max_examples=50, deadline=None)
@given(jobs=jobs, flags=engines)
def test_the_fast_path_is_the_reference(jobs: Jobs, flags: dict[str, Any]) -> None:
    """The same records, steps and gaps, tick by tick."""
    fast, reference = (serve(requests_of(jobs), COST, reference=mode, **flags) for mode in (False, True))
    assert fast.requests == reference.requests
    assert fast.steps == reference.steps
    assert sorted(gap_rows(fast)) == sorted(gap_rows(reference))


def gap_rows(run: RunRecord) -> list[tuple[int, int, int, int]]:
    return list(zip(run.itl.end_ns, run.itl.gap_ns, run.itl.class_id, run.itl.count, strict=True))


@settings(max_examples=50, deadline=None)
@given(jobs=jobs, flags=engines)
def test_utilization_law(jobs: Jobs, flags: dict[str, Any]) -> None:
    """Busy share x time = Σ step durations, none counted twice."""
    run = serve(requests_of(jobs), COST, **flags)
    busy = server_use(run, Window(0, run.end_ns, finite=True)).busy
    durations = sum(run.steps.end_ns) - sum(run.steps.start_ns)
    assert busy == pytest.approx(durations / run.end_ns if run.end_ns else 0)
    assert (busy or 0) <= 1


# ---- one seat: what must be monotone is so for each request ----

one_seat = st.lists(st.tuples(st.integers(0, 3_000), st.integers(1, 500), st.integers(1, 10)), min_size=1, max_size=25)


def finishes(work: list[tuple[int, int, int]], *, squeeze: int = 1, cost: LinearCost = COST) -> list[int]:
    """Returns how long each request was in a server with one seat; `squeeze` divides the gaps between arrivals."""
    arrivals = np.cumsum([gap * MS // squeeze for gap, *_ in work]).tolist()
    requests = [sent(i, prompt, n, at) for i, (at, (_, prompt, n)) in enumerate(zip(arrivals, work, strict=True))]
    run = serve(requests, cost, max_num_seqs=1, enable_prefix_caching=False)
    return [request.finish_ns - request.sent_ns for _, request in sorted(by_id(run).items())]


@settings(max_examples=60, deadline=None)
@given(work=one_seat, factor=st.integers(2, 5))
def test_the_same_requests_at_a_higher_rate_never_wait_less(work: list[tuple[int, int, int]], factor: int) -> None:
    """Arrivals closer together, services as before: no request is in the server for a shorter time."""
    assert all(a <= b for a, b in zip(finishes(work), finishes(work, squeeze=factor), strict=True))


@settings(max_examples=60, deadline=None)
@given(work=one_seat, extra=st.integers(1, 20_000))
def test_slower_steps_never_make_a_request_faster(work: list[tuple[int, int, int]], extra: int) -> None:
    """Each step longer, arrivals as before: no request is in the server for a shorter time."""
    slower = LinearCost(COST.base + extra, COST.per_token, COST.per_seq, COST.per_1k_context)
    assert all(a < b for a, b in zip(finishes(work), finishes(work, cost=slower), strict=True))


@settings(max_examples=60, deadline=None)
@given(work=one_seat, index=st.integers(0, 24), longer=st.integers(1, 50))
def test_a_longer_answer_never_helps_those_behind_it(work: list[tuple[int, int, int]], index: int, longer: int) -> None:
    """One answer longer: it and all later requests stay as long or longer; earlier ones do not notice."""
    index %= len(work)
    gap, prompt, output = work[index]
    before, after = finishes(work), finishes([*work[:index], (gap, prompt, output + longer), *work[index + 1 :]])
    assert before[:index] == after[:index]
    assert before[index] < after[index]
    assert all(a <= b for a, b in zip(before, after, strict=True))
