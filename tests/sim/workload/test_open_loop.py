"""Open loops send at the arrivals, whatever the server does."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.errors import UserError
from sim.records import Outcome
from sim.workload.build import build_workload
from sim.workload.client import ClientRequest
from tests.sim.workload.made import ONE_SHOT, open_loop
from tests.sim.workload.server import SECOND, serve

ARRIVALS: list[Any] = ["poisson", "constant", {"gamma": {"burstiness": 0.25}}]


def content(request: ClientRequest) -> tuple[int, int, int, int]:
    return request.class_id, request.num_prompt_tokens, request.output_tokens, request.max_tokens


@pytest.mark.parametrize("arrivals", ARRIVALS)
def test_requests_are_sent_when_they_arrive_at_the_rate_asked_for(arrivals: Any) -> None:
    run = serve(build_workload(open_loop(arrivals=arrivals), 0), 100 * SECOND, slots=3)
    assert len(run.sent) == pytest.approx(5 * 600, rel=0.05)
    assert all(request.sent_ns == request.queued_ns < 600 * SECOND for request in run.sent)
    assert [request.request_id for request in run.sent] == list(range(len(run.sent)))


@settings(max_examples=20)
@given(slow=st.floats(0.1, 10), fast=st.floats(0.1, 10), seed=st.integers(0, 99), arrivals=st.sampled_from(ARRIVALS))
def test_the_kth_request_is_the_same_at_every_rate(slow: float, fast: float, seed: int, arrivals: Any) -> None:
    """Common random numbers: the same class and lengths in the same order, at times that only scale."""
    classes = [{**ONE_SHOT, "name": "a", "share": 0.3}, {**ONE_SHOT, "name": "b", "share": 0.7, "priority": 1}]
    scenario = open_loop(arrivals=arrivals, classes=classes, run={"duration": "30s"})
    one, other = (serve(build_workload(scenario, seed, load=rate)).sent for rate in (slow, fast))
    for left, right in zip(one, other, strict=False):
        assert content(left) == content(right)
        assert left.sent_ns * slow == pytest.approx(right.sent_ns * fast, rel=1e-6)


def test_the_same_seed_gives_the_same_requests_and_another_seed_others() -> None:
    one, same, other = (serve(build_workload(open_loop(), seed)).sent for seed in (1, 1, 2))
    assert one == same
    assert [content(request) for request in one[:50]] != [content(request) for request in other[:50]]


def test_classes_come_by_their_shares_and_bring_their_priority() -> None:
    classes = [{**ONE_SHOT, "name": "a", "share": 1}, {**ONE_SHOT, "name": "b", "share": 3, "priority": 7}]
    sent = serve(build_workload(open_loop(classes=classes, request_rate=20), 0)).sent
    assert sum(request.class_id for request in sent) / len(sent) == pytest.approx(0.75, abs=0.02)
    assert {(request.class_id, request.priority) for request in sent} == {(0, 0), (1, 7)}


def test_a_class_without_a_share_sends_nothing() -> None:
    classes = [{**ONE_SHOT, "name": "a", "share": 0}, ONE_SHOT, {**ONE_SHOT, "name": "c", "share": 0}]
    assert {request.class_id for request in serve(build_workload(open_loop(classes=classes), 0)).sent} == {1}


def test_all_at_once_is_all_at_once() -> None:
    kinds: list[dict[str, Any]] = [{"arrivals": "all_at_once"}, {"request_rate": "inf"}]
    for workload in kinds:
        sent = build_workload(open_loop(num_requests=100, **workload), 0).pop_due(0)
        assert [request.sent_ns for request in sent] == [0] * 100


def test_a_number_of_requests_ends_the_arrivals_and_the_duration_cuts_them() -> None:
    short = open_loop(num_requests=40, arrivals="constant", run={"duration": "4s"})
    assert len(serve(build_workload(open_loop(num_requests=40), 0)).sent) == 40
    assert len(serve(build_workload(short, 0)).sent) == 19


def test_peaks_and_steps_reach_the_arrivals() -> None:
    scenario = open_loop(
        arrivals="constant",
        peaks={"factor": 3, "duration": "1min", "every": "4min"},
        rate_over_time=[{"after": "5min", "factor": 2}],
    )
    minutes = Counter(request.sent_ns // (60 * SECOND) for request in serve(build_workload(scenario, 0)).sent)
    assert [round(minutes[minute], -2) for minute in range(10)] == [300, 300, 900, 300, 300, 600, 1800, 600, 600, 600]


def test_prompts_share_nothing_but_the_prefix_of_all() -> None:
    prefixes = [{"tokens": 64, "scope": "all"}, {"tokens": 32, "scope": "none"}, {"tokens": 16, "scope": "user"}]
    workload = build_workload(open_loop(classes=[{**ONE_SHOT, "shared_prefix": prefixes}]), 0)
    sent = serve(workload).sent
    streams = Counter(stream for request in sent for stream, _ in (*request.prompt, (request.output_stream, 0)))
    assert streams[sent[0].prompt[0][0]] == len(sent)
    assert sum(streams.values()) == len(streams) + len(sent) - 1
    assert all([length for _, length in request.prompt][:3] == [64, 32, 16] for request in sent)
    assert all(request.num_prompt_tokens == sum(length for _, length in request.prompt) for request in sent)
    assert workload.warnings == (
        "class 'api': a shared prefix of scope 'user' is shared by no two requests here: only a workload of kind users "
        "has users and teams",
    )


@pytest.mark.parametrize(("given_max", "asked", "generated"), [(None, 50, 50), (20, 20, 20), (80, 80, 50)])
def test_max_tokens_is_what_the_client_asks_for_and_the_answer_never_longer(
    given_max: int | None, asked: int, generated: int
) -> None:
    request = serve(build_workload(open_loop(classes=[{**ONE_SHOT, "max_tokens": given_max}]), 0)).sent[0]
    assert (request.max_tokens, request.output_tokens) == (asked, generated)


def test_a_request_that_times_out_is_sent_again_after_a_backoff_that_doubles() -> None:
    scenario = open_loop(num_requests=1, client_timeout="10s", retries={"max": 2, "backoff": "3s"})
    run = serve(build_workload(scenario, 0), service_ns=60 * SECOND)
    assert [(request.attempt, request.sent_ns - run.sent[0].sent_ns) for request in run.sent] == [
        (0, 0), (1, 13 * SECOND), (2, 29 * SECOND),
    ]  # fmt: skip
    assert {served.outcome for served in run.served} == {Outcome.TIMED_OUT}
    assert {request.prompt for request in run.sent} == {run.sent[0].prompt}
    assert [request.request_id for request in run.sent] == [0, 1, 2]


@pytest.mark.parametrize(
    ("outcome", "tries"),
    [
        (Outcome.FINISHED, 1), (Outcome.REJECTED, 3), (Outcome.TIMED_OUT, 3), (Outcome.REFUSED, 1),
        (Outcome.NEVER_FITS, 1),
    ],
)  # fmt: skip
def test_only_what_may_go_better_is_tried_again(outcome: Outcome, tries: int) -> None:
    scenario = open_loop(num_requests=5, retries={"max": 2, "backoff": "1s"})
    assert len(serve(build_workload(scenario, 0), fate=lambda _: outcome).sent) == 5 * tries


def test_nothing_is_sent_after_the_end_not_even_a_retry() -> None:
    scenario = open_loop(retries={"max": 9, "backoff": "30s"}, run={"duration": "60s"})
    workload = build_workload(scenario, 0)
    run = serve(workload, fate=lambda _: Outcome.REJECTED)
    assert workload.arrivals_end_ns == 60 * SECOND
    assert max(request.sent_ns for request in run.sent) < 60 * SECOND
    assert max(request.attempt for request in run.sent) == 1


def test_a_finite_workload_ends_with_its_last_event() -> None:
    workload = build_workload(open_loop(num_requests=5, run={}), 0)
    run = serve(workload)
    assert workload.arrivals_end_ns == run.served[-1].done_ns


@pytest.mark.parametrize(
    ("workload", "run", "error"),
    [
        ({"request_rate": None}, None, "workload.request_rate: missing"),
        ({"request_rate": "inf"}, None, "workload.num_requests: missing"),
        ({}, {}, "run.duration: missing"),
    ],
)
def test_a_missing_number_is_told(workload: Any, run: Any, error: str) -> None:
    scenario = open_loop(**workload)
    if run is not None:
        scenario = scenario.model_copy(update={"run": scenario.run.model_copy(update={"duration": None})})
    with pytest.raises(UserError, match=error):
        build_workload(scenario, 0)


def test_a_rate_of_infinity_may_be_the_load() -> None:
    scenario = open_loop(num_requests=3)
    assert len(build_workload(scenario, 0, load=math.inf).pop_due(0)) == 3
