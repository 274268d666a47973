"""One slot is the queue with one server of the textbooks."""

from __future__ import annotations

from statistics import fmean

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.engine.recorded import LinearCost
from sim.workload.random import random_stream
from tests.cases.build import MS, S
from tests.sim.engine.ollama.build import STEP_MS, answers, ask, model, placed, records, serve
from tests.theory.test_queues import expect, interval_99

WARM_UP = 300


@pytest.mark.parametrize("utilization", [0.5, 0.8])
def test_md1(utilization: float) -> None:
    """M/D/1: mean wait = rho / (2 (1 - rho)) services; here a service is one batch of 1 s."""
    means = []
    for seed in range(8):
        gaps_ms = random_stream(seed, "theory").exponential(1000 / utilization, 4000)
        requests = [ask(i, at_ms=at, prompt=1, output=1) for i, at in enumerate(np.cumsum(gaps_ms))]
        run = serve(requests, [model(cost=LinearCost(1_000_000))])
        means.append(fmean(answer.slot_wait for answer in list(answers(run).values())[WARM_UP:]) / S)
    expect(interval_99(means), utilization / (1 - utilization) / 2, 0.15)


@given(jobs=st.lists(st.tuples(st.integers(0, 400), st.integers(1, 30)), min_size=1, max_size=30))
@settings(max_examples=40, deadline=None)
def test_lindley(jobs: list[tuple[int, int]]) -> None:
    """Each starts when it comes or when the one before it ends, to the nanosecond."""
    at_ms = np.cumsum([gap for gap, _ in jobs]).tolist()
    run = serve([ask(i, at_ms=at, prompt=1, output=n) for i, (at, (_, n)) in enumerate(zip(at_ms, jobs, strict=True))])
    free_at = 0
    for number, (at, (_, steps)) in enumerate(zip(at_ms, jobs, strict=True)):
        start = max(at * MS, free_at)
        free_at = start + STEP_MS * MS * steps
        assert (records(run)[number].scheduled_ns, records(run)[number].finish_ns) == (start, free_at)


@pytest.mark.parametrize("slots", [1, 3])
def test_littles_law(slots: int) -> None:
    """Requests in the server on average = their rate x their time in it."""
    gaps_ms = random_stream(1, "theory").exponential(1500 / slots, 300)
    requests = [ask(i, at_ms=at, prompt=1, output=100) for i, at in enumerate(np.cumsum(gaps_ms))]
    run = serve(requests, [model(placement=placed(slots))])
    in_server = sum(answer.total_duration for answer in answers(run).values())
    steps = run.steps
    inside = sum(
        (end - start) * (running + waiting)
        for start, end, running, waiting in zip(
            steps.start_ns, steps.end_ns, steps.num_running, steps.num_waiting, strict=True
        )
    )
    # A request that comes while a batch runs is in no row before the next one: half a batch each.
    assert inside == pytest.approx(in_server, rel=0.01)
