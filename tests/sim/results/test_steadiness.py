"""Little's law holds between the two logs of every run; a queue that grows with the run is recognised."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.records import Outcome, RunRecord
from sim.results.metrics import summarize
from sim.results.steadiness import littles_law
from tests.sim.results.toys import (
    S,
    add_step,
    empty_run,
    finished,
    open_loop_scenario,
    queue_run,
    repair_mean_response_s,
    request,
    simulate_mm,
    simulate_repair,
    users_scenario,
)

TOY = open_loop_scenario("ttft.p95 <= 1s")


@settings(max_examples=50)
@given(
    gaps=st.lists(st.floats(0.001, 10), min_size=1, max_size=60),
    servers=st.integers(1, 5),
    seed=st.integers(0, 2**32 - 1),
)
def test_littles_law_holds_on_any_queue(gaps: list[float], servers: int, seed: int) -> None:
    services = np.random.default_rng(seed).exponential(size=len(gaps))
    law = littles_law(queue_run(np.cumsum(gaps), services, servers=servers))
    assert law.from_steps == pytest.approx(law.from_requests, abs=1e-6)
    assert law.holds


def test_littles_law_notices_a_lost_request() -> None:
    run = simulate_mm(TOY, seed=1, load=8)
    assert littles_law(run).holds
    for each in run.requests[::10]:  # the server forgets one in ten for half an hour, the step log does not know
        each.finish_ns += 1800 * S
    assert not littles_law(run).holds


def test_littles_law_leaves_out_what_never_entered_the_engine() -> None:
    run = empty_run()
    run.end_ns = 10 * S
    run.requests.append(finished(0, 0, 10 * S))
    run.requests.append(request(1, 0, finish_ns=0, outcome=Outcome.REJECTED))
    run.requests.append(request(2, 0, arrival_ns=-1, finish_ns=0, outcome=Outcome.REFUSED))
    add_step(run, 0, 10 * S, running=1)
    law = littles_law(run)
    assert (law.from_steps, law.from_requests) == (1, 1)


def test_m_m_1_has_the_response_time_of_the_textbook() -> None:
    means = []
    for seed in range(10):
        metrics = summarize(simulate_mm(TOY, seed=seed, load=7, service_s=0.1), TOY)
        means.append(metrics.total.latency["ttft"].mean)
    assert np.mean(means) == pytest.approx(1000 / (10 - 7), rel=0.05)  # 1 / (mu - lambda)


def test_the_machine_repair_model_has_the_response_time_of_mean_value_analysis() -> None:
    scenario = users_scenario("ttft.mean <= 1s")
    means = [
        summarize(simulate_repair(scenario, seed=seed, load=15), scenario).total.latency["ttft"].mean
        for seed in range(20)
    ]
    assert np.mean(means) == pytest.approx(1000 * repair_mean_response_s(15), rel=0.05)


@pytest.mark.parametrize("rate", [11, 12, 15, 30])
def test_more_arrivals_than_the_server_completes_are_overload(rate: float) -> None:
    for seed in range(5):
        overload = summarize(simulate_mm(TOY, seed=seed, load=rate), TOY).overload
        assert overload is not None
        assert overload.completed < overload.arrived
        assert overload.in_system_end > overload.in_system_start
        assert f"{overload.arrived / 900:.3g} requests/s arrive" in overload.sentence
        assert "grows as long as the load lasts" in overload.sentence


@pytest.mark.parametrize("rate", [1, 5, 8, 9])
def test_a_stable_queue_is_not_called_overloaded(rate: float) -> None:
    found = [summarize(simulate_mm(TOY, seed=seed, load=rate), TOY).overload for seed in range(20)]
    assert found == [None] * 20


def test_a_queue_that_is_bounded_only_by_clients_who_give_up_is_overloaded() -> None:
    run = empty_run()
    for number in range(100):
        if number % 10:
            run.requests.append(finished(number, number * 10 * S + 100 * S, 5 * S))
        else:
            run.requests.append(
                request(
                    number, number * 10 * S + 100 * S, finish_ns=number * 10 * S + 160 * S, outcome=Outcome.TIMED_OUT
                )
            )
    run.end_ns = run.arrivals_end_ns = 1100 * S
    overload = summarize(run, TOY).overload
    assert overload is not None
    assert "10 % of the requests time out or are turned away" in overload.sentence


def test_a_finite_workload_is_never_overloaded() -> None:
    scenario = open_loop_scenario(
        "ttft.p95 <= 1s", changes=["workload.arrivals=all_at_once", "workload.num_requests=500"]
    )
    run: RunRecord = queue_run([0.0] * 500, [1.0] * 500, servers=1)
    assert summarize(run, scenario).overload is None


def test_an_empty_run_has_nothing_to_say() -> None:
    run = empty_run()
    assert summarize(run, TOY).overload is None
    law = littles_law(run)
    assert (law.from_steps, law.from_requests, law.holds) == (0, 0, True)
    assert not math.isnan(law.slack)
