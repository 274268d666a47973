"""Replicas that fail, are updated one by one, come and go with the load: nothing is uncounted, nothing served twice."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from sim.records import FleetLog, Outcome, RunRecord
from sim.results.metrics import RunMetrics, summarize
from sim.scenario.model import RateChange, Scenario
from sim.simulate import simulate
from tests.cases.build import S
from tests.sim.fleet.build import open_loop, users

RISE = [{"after": "20s", "factor": 4.0}, {"after": "60s", "factor": 1.0}]


def failing(**failure: Any) -> dict[str, Any]:
    return {"replicas": 3, "failures": [{"after": "20s", "replica": 1, **failure}]}


def made(case: Scenario, seed: int = 0) -> tuple[RunRecord, RunMetrics, FleetLog]:
    run = simulate(case, seed=seed)
    assert run.fleet is not None
    return run, summarize(run, case), run.fleet


def fleet_of(metrics: RunMetrics) -> Any:
    assert metrics.fleet is not None
    return metrics.fleet


def served_by(run: RunRecord, replica: int) -> list[tuple[int, int]]:
    """Returns the (start, end) of a replica's steps."""
    rows = zip(run.steps.replica, run.steps.start_ns, run.steps.end_ns, strict=True)
    return [(start, end) for number, start, end in rows if number == replica]


def most_down(log: FleetLog, number: int, end_ns: int) -> int:
    """Returns how many of so many replicas were down at once, from the time that the last one was up."""
    up = log.up(end_ns)
    times = sorted({time for _, *pair in up for time in pair if time < end_ns})
    return max(number - sum(start <= time < end for _, start, end in up) for time in times)


def test_what_a_failed_replica_was_serving_is_lost_and_counted(tmp_path: Path) -> None:
    run, metrics, log = made(open_loop(tmp_path, 30.0, server=failing(restart="10s")))
    lost = [request for request in run.requests if request.outcome is Outcome.LOST]
    assert lost
    assert all(request.replica == 1 and request.finish_ns == 20 * S + 5_000_000 for request in lost)
    assert fleet_of(metrics).num_lost == len(lost) == metrics.total.errors["lost"]
    assert [event for event in log.events if event[0] == 1] == [
        (1, 0, "start"), (1, 0, "ready"), (1, 20 * S, "fail"), (1, 20 * S, "start"), (1, 30 * S, "ready")
    ]  # fmt: skip
    steps = served_by(run, 1)
    assert not [step for step in steps if step[1] > 20 * S and step[0] < 30 * S]
    assert steps[-1][0] > 30 * S  # it serves again
    assert all(request.outcome in (Outcome.FINISHED, Outcome.LOST) for request in run.requests)


def test_a_router_that_tries_again_saves_those_without_a_first_token(tmp_path: Path) -> None:
    """What already streams cannot be taken back; what waits or is on its way is served elsewhere, a little later."""
    once, _, _ = made(open_loop(tmp_path, 60.0, server=failing(restart="10s")))
    again, metrics, log = made(open_loop(tmp_path, 60.0, server={**failing(restart="10s"), "router_max_retries": 1}))
    saved = {request_id for request_id, _ in log.rerouted}
    assert saved
    by_id = {request.request_id: request for request in again.requests}
    assert len(by_id) == len(again.requests)  # still one record a request
    assert all(by_id[number].outcome is Outcome.FINISHED and by_id[number].replica != 1 for number in saved)
    lost = [request for request in again.requests if request.outcome is Outcome.LOST]
    assert all(request.first_token_ns >= 0 for request in lost)
    assert len(lost) + len(saved) == sum(request.outcome is Outcome.LOST for request in once.requests)
    assert fleet_of(metrics).num_rerouted == len(saved)


def test_a_request_that_is_sent_to_its_failed_replica_again_has_one_record(tmp_path: Path) -> None:
    """Until the router notices, it knows no better; what fails there a second time is lost."""
    failure = {"after": "20s", "replica": 0, "restart": "10s", "noticed_after": "5s"}
    run, _, log = made(open_loop(tmp_path, 30.0, server={"failures": [failure], "router_max_retries": 1}))
    by_id = {request.request_id: request for request in run.requests}
    assert len(by_id) == len(run.requests)
    arrived = [by_id[number] for number, time_ns in log.rerouted if time_ns == 20 * S]
    assert arrived
    assert all(request.outcome is Outcome.LOST for request in arrived)


@pytest.mark.parametrize("seed", range(2))
def test_what_a_failed_replica_had_answered_is_what_the_reference_says(tmp_path: Path, seed: int) -> None:
    """Requests that decode in the pool are brought up to date before their records are closed."""
    case = open_loop(tmp_path, 10.0, server={**failing(restart="10s"), "router_max_retries": seed})
    run, expected = simulate(case, seed=seed), simulate(case, seed=seed, reference=True)
    assert any(request.outcome is Outcome.LOST and request.num_output_tokens > 10 for request in expected.requests)
    assert list(run.requests) == list(expected.requests)


def test_a_client_that_tries_again_gets_its_answer(tmp_path: Path) -> None:
    case = users(tmp_path, 40, server=failing(restart="10s"), retries={"max": 3, "backoff": "100ms"})
    run, metrics, _ = made(case)
    lost = sum(request.outcome is Outcome.LOST for request in run.requests)
    assert lost
    assert sum(request.attempt > 0 for request in run.requests) == lost == fleet_of(metrics).num_retries
    assert all(request.outcome is Outcome.FINISHED for request in run.requests if request.attempt)


def test_a_failure_that_goes_unnoticed_draws_requests_in(tmp_path: Path) -> None:
    """A dead replica has nothing to do, so the rule of least requests sends it everything: the black hole."""
    at_once = {**failing(restart="10s"), "router": "least_requests"}
    late = {**failing(restart="10s", noticed_after="2s"), "router": "least_requests"}
    noticed, unnoticed = (
        made(open_loop(tmp_path, 30.0, server=each))[1].total.errors["lost"] for each in (at_once, late)
    )
    assert noticed + 40 < unnoticed < noticed + 80  # most of the 60 that come in these two seconds, and no others


def test_without_any_replica_requests_are_answered_503(tmp_path: Path) -> None:
    server = {"failures": [{"after": "20s", "restart": "5s"}]}
    run, metrics, _ = made(open_loop(tmp_path, 5.0, server=server))
    turned_away = [request for request in run.requests if request.outcome is Outcome.REJECTED]
    assert all(20 * S <= request.sent_ns <= 25 * S and request.replica == -1 for request in turned_away)
    assert len(turned_away) == pytest.approx(25, abs=12)
    assert (fleet_of(metrics).fewest_up, fleet_of(metrics).most_up) == (0, 1)


def test_a_restarted_replica_has_an_empty_cache(tmp_path: Path) -> None:
    case = users(tmp_path, 12, server={"failures": [{"after": "30s", "restart": "1s"}]})
    run, _, _ = made(case)
    after = [request for request in run.requests if request.arrival_ns >= 31 * S and request.scheduled_ns >= 0]
    steps = run.steps
    first = next(row for row, start in enumerate(steps.start_ns) if start >= 31 * S)
    assert steps.prefix_queries[first] > 0
    assert steps.prefix_hits[first] == 0
    assert any(request.num_cached_tokens for request in after)  # and fills it again


def test_a_rolling_switch_takes_one_replica_at_a_time(tmp_path: Path) -> None:
    switch = {"after": "10s", "load_time": "6s", "drain": "20s"}
    run, metrics, log = made(users(tmp_path, 30, server={"replicas": 3, "model_switch": switch}))
    assert most_down(log, 3, run.end_ns) == 1
    assert Counter(what for _, _, what in log.events) == {"start": 6, "ready": 6, "drain": 3, "stop": 3}
    assert "lost" not in metrics.total.errors  # answers are shorter than the drain
    assert all(request.outcome is Outcome.FINISHED for request in run.requests)
    assert fleet_of(metrics).fewest_up == 2


def test_a_drain_that_is_too_short_loses_answers(tmp_path: Path) -> None:
    switch = {"after": "20s", "load_time": "5s", "drain": "0s"}
    run, metrics, _ = made(open_loop(tmp_path, 30.0, server={"replicas": 3, "model_switch": switch}))
    assert metrics.total.errors["lost"] == sum(request.outcome is Outcome.LOST for request in run.requests) > 0


def scaled(folder: Path, **rule: Any) -> tuple[RunRecord, RunMetrics, FleetLog]:
    autoscaling = {
        "min": 1, "max": 5, "metric": "requests", "target": 10.0, "every": "5s", "start_up": "8s",
        "scale_down_after": "15s", **rule,
    }  # fmt: skip
    case = open_loop(folder, 8.0, server={"autoscaling": autoscaling, "router": "least_requests"}, duration="120s")
    workload = case.workload.model_copy(update={"rate_over_time": _changes(RISE)})
    return made(case.model_copy(update={"workload": workload}).with_base_dir(folder))


def _changes(changes: Sequence[dict[str, Any]]) -> Any:
    return tuple(RateChange.model_validate(change) for change in changes)


def up_at(log: FleetLog, run: RunRecord, second: float) -> int:
    return sum(start <= second * S < end for _, start, end in log.up(run.end_ns))


def test_replicas_follow_the_load_up_and_down(tmp_path: Path) -> None:
    run, metrics, log = scaled(tmp_path)
    assert up_at(log, run, 19) == 1
    assert up_at(log, run, 55) >= 3
    assert up_at(log, run, 118) < up_at(log, run, 60)
    assert all(request.outcome is Outcome.FINISHED for request in run.requests)  # scaling down drains
    starts = [time for _, time, what in log.events if what == "start" and time]
    ready = [time for _, time, what in log.events if what == "ready" and time]
    assert ready == [time + 8 * S for time in starts]
    assert fleet_of(metrics).replica_hours < 5 * 120 / 3600
    assert run.end_ns < 125 * S  # no look at the load keeps the run alive


def test_autoscaling_stays_within_its_limits(tmp_path: Path) -> None:
    run, metrics, log = scaled(tmp_path, max=2, target=1.0)
    assert fleet_of(metrics).most_up == 2
    assert max(up_at(log, run, second) for second in range(120)) == 2


def test_a_longer_start_up_hurts_more(tmp_path: Path) -> None:
    slow, fast = (scaled(tmp_path, start_up=each)[1].total.latency["ttft"].percentiles[95.0] for each in ("30s", "1s"))
    assert slow is not None
    assert fast is not None
    assert slow > 2 * fast


@pytest.mark.parametrize(("metric", "target"), [("waiting", 2.0), ("kv", 0.05)])
def test_the_queue_and_the_cache_scale_too(tmp_path: Path, metric: str, target: float) -> None:
    _, metrics, _ = scaled(tmp_path, metric=metric, target=target)
    assert fleet_of(metrics).most_up > 1
