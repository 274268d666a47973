"""Several replicas behind a router: what holds of them whatever the rule, and what each rule is for."""

from collections import Counter
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from sim.records import Outcome, RunRecord
from sim.results.metrics import summarize
from sim.scenario.fleet import Router
from sim.scenario.model import Scenario
from sim.simulate import simulate
from tests.cases.build import one_class, scenario
from tests.sim.fleet.build import FLAGS, MIXED, costs, open_loop, simulate_as_fleet, users

ROUTERS: tuple[Router, ...] = ("round_robin", "least_requests", "session_affinity", "prefix_aware")


def replicas(number: int, router: Router = "round_robin", **rest: Any) -> dict[str, Any]:
    return {"replicas": number, "router": router, **rest}


def impatient(folder: Path) -> Scenario:
    """Returns users who give up and try again, at a server that turns some away."""
    return users(folder, 60, client_timeout="8s", retries={"max": 2, "backoff": "500ms"})


def closed(folder: Path) -> Scenario:
    workload = {"kind": "closed_loop", "num_requests": 300, "max_concurrency": 24, "classes": one_class(700, MIXED)}
    return scenario(costs(folder), workload, **FLAGS, max_num_queued_reqs=20)


@pytest.mark.parametrize("case", [impatient, closed, lambda folder: open_loop(folder, 4.0, output=MIXED)])
def test_one_replica_behind_a_router_is_the_engine_alone(tmp_path: Path, case: Any) -> None:
    made = case(tmp_path)
    alone, behind = simulate(made, seed=3), simulate_as_fleet(made, seed=3)
    assert list(behind.requests) == list(alone.requests)
    assert behind.steps == alone.steps
    assert behind.itl == alone.itl
    assert (behind.end_ns, behind.arrivals_end_ns) == (alone.end_ns, alone.arrivals_end_ns)


@pytest.mark.parametrize("router", ROUTERS)
def test_requests_are_conserved_over_the_replicas(tmp_path: Path, router: Router) -> None:
    made = users(tmp_path, 80, server=replicas(3, router), client_timeout="6s")
    run = simulate(made, seed=1)
    assert sorted(request.request_id for request in run.requests) == list(range(len(run.requests)))
    assert all(request.outcome in (Outcome.FINISHED, Outcome.TIMED_OUT) for request in run.requests)
    assert {request.replica for request in run.requests} == {0, 1, 2}
    metrics = summarize(run, made)
    assert metrics.fleet is not None
    assert sum(each.num_requests for each in metrics.fleet.replicas) == metrics.total.num_requests
    assert sum(each.num_preemptions for each in metrics.fleet.replicas) == metrics.server.num_preemptions
    for number in range(3):  # each replica's device computes one step after the other
        rows = [
            (start, end)
            for replica, start, end in zip(run.steps.replica, run.steps.start_ns, run.steps.end_ns, strict=True)
            if replica == number
        ]
        assert all(after[0] >= before[1] for before, after in pairwise(rows))


@pytest.mark.parametrize("router", ROUTERS)
def test_the_same_seed_gives_the_same_fleet(tmp_path: Path, router: Router) -> None:
    made = users(tmp_path, 30, server=replicas(3, router), duration="30s")
    first, second = simulate(made, seed=5), simulate(made, seed=5)
    assert list(first.requests) == list(second.requests)
    assert first.steps == second.steps


def test_n_times_the_load_in_turns_is_one_replica_n_times(tmp_path: Path) -> None:
    """Requests like clockwork, in turns: each replica sees exactly what one sees at its share."""
    one = simulate(open_loop(tmp_path, 1.0, arrivals="constant"), seed=0)
    four = simulate(open_loop(tmp_path, 4.0, arrivals="constant", server=replicas(4)), seed=0)
    (latency,) = {request.finish_ns - request.sent_ns for request in one.requests}
    assert {request.finish_ns - request.sent_ns for request in four.requests} == {latency}
    assert set(Counter(request.replica for request in four.requests).values()) <= {59, 60}


def test_n_times_the_load_over_n_replicas_is_about_as_fast(tmp_path: Path) -> None:
    """Turns make arrivals at a replica more even than chance would, so that it may be a little faster."""
    one = summarize(*run_of(open_loop(tmp_path, 6.0)))
    four = summarize(*run_of(open_loop(tmp_path, 24.0, server=replicas(4))))
    alone, together = one.total.latency["e2el"].mean, four.total.latency["e2el"].mean
    assert alone is not None
    assert together is not None
    assert 0.8 * alone < together < 1.05 * alone
    assert four.server.busy == pytest.approx(one.server.busy, rel=0.1)


def test_prefix_aware_and_sessions_find_more_in_the_cache_than_turns(tmp_path: Path) -> None:
    rates = {router: hit_rate(users(tmp_path, 60, server=replicas(4, router))) for router in ROUTERS}
    assert rates["prefix_aware"] > 1.3 * rates["round_robin"]
    assert rates["session_affinity"] > 1.3 * rates["round_robin"]


def test_least_requests_waits_less_than_turns_where_lengths_differ(tmp_path: Path) -> None:
    """With turns a replica that got the long answers gets the next request all the same."""

    def waits_s(router: Router) -> float:
        made = open_loop(
            tmp_path, 24.0, output={"lognormal": {"median": 60, "p95": 900}}, server=replicas(4, router), duration="30s"
        )  # fmt: skip
        runs = [simulate(made, seed=seed) for seed in range(2)]
        return fmean(
            (r.first_token_ns - r.sent_ns) / 1e9 for run in runs for r in run.requests if r.first_token_ns >= 0
        )

    assert waits_s("least_requests") < 0.9 * waits_s("round_robin")


def test_a_user_stays_with_one_replica_by_session(tmp_path: Path) -> None:
    run = simulate(users(tmp_path, 40, server=replicas(4, "session_affinity")), seed=2)
    of_user: dict[int, set[int]] = {}
    for request in run.requests:
        of_user.setdefault(request.user_id, set()).add(request.replica)
    assert all(len(numbers) == 1 for numbers in of_user.values())
    assert len({number for numbers in of_user.values() for number in numbers}) == 4


def run_of(made: Scenario) -> tuple[RunRecord, Scenario]:
    return simulate(made, seed=0), made


def hit_rate(made: Scenario) -> float:
    rate = summarize(*run_of(made)).server.prefix_hit_rate
    assert rate is not None
    return rate
