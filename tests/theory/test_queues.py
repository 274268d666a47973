"""The engine as a queue of the textbooks: where theory is exact, so is the simulator.

A request whose prompt fits one step and whose answer is one token is served in one step; with one seat (max_num_seqs 1)
and a cost of so many nanoseconds a token, that is a queue with one server and any distribution of service times. With
c seats and steps of constant duration, a request with an answer of n tokens holds a seat for n steps, whoever else is
there: a queue with c servers, whose service starts at step ends only. That costs at most a step of waiting, and nothing
when requests arrive at step ends.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import stdtrit

from sim.engine.recorded import LinearCost
from sim.records import RunRecord
from sim.workload.random import random_stream
from tests.cases.build import MS, S, by_id, measured, scenario, sent, serve, write_profile

US_PER_TOKEN = 1000
ONE_SEAT: dict[str, Any] = {
    "max_num_seqs": 1,
    "max_num_batched_tokens": 100_000,
    "max_model_len": 100_001,
    "num_gpu_blocks": 100,
    "block_size": 1024,  # any prompt fits: the KV cache is no limit here
}
MEAN_SERVICE_S = 1.0
WARM_UP = 500  # requests


def one_server(arrivals_ns: Sequence[int], services: Sequence[int], **flags: Any) -> RunRecord:
    """Runs requests through one seat; a service is a number of prompt tokens, 1 ms each."""
    requests = [sent(i, service, 1, at) for i, (at, service) in enumerate(zip(arrivals_ns, services, strict=True))]
    return serve(requests, LinearCost(0, per_token=US_PER_TOKEN), **ONE_SEAT, **flags)


def waits_s(run: RunRecord) -> list[float]:
    return [(request.scheduled_ns - request.arrival_ns) / S for request in run.requests]


def mean_wait_interval(
    services: Callable[[np.random.Generator, int], np.ndarray],
    utilization: float,
    *,
    seeds: int = 8,
    number: int = 6000,
) -> tuple[float, float]:
    """Returns the 99 % interval of the mean wait in seconds, from Poisson arrivals at one seat."""
    means = []
    for seed in range(seeds):
        draws = random_stream(seed, "theory")
        gaps = draws.exponential(MEAN_SERVICE_S / utilization, number)
        tokens = np.maximum(np.rint(services(draws, number) * 1e6 / US_PER_TOKEN), 1).astype(int)
        run = one_server(np.rint(np.cumsum(gaps) * S).astype(int).tolist(), tokens.tolist())
        means.append(fmean(waits_s(run)[WARM_UP:]))
    return interval_99(means)


def interval_99(values: Sequence[float]) -> tuple[float, float]:
    """Returns Student's 99 % interval of the mean: dozens of tests look at one, and one in twenty may not miss."""
    half = float(stdtrit(len(values) - 1, 0.995)) * stdev(values) / math.sqrt(len(values))
    return fmean(values) - half, fmean(values) + half


def expect(interval: tuple[float, float], theory: float, half_width: float) -> None:
    """The interval holds the value of theory, and is narrow enough to mean something."""
    low, high = interval
    assert low <= theory <= high
    assert high - low <= 2 * half_width * theory


# ---- one server ----


@pytest.mark.parametrize("utilization", [0.5, 0.8])
def test_mm1(utilization: float) -> None:
    """M/M/1: mean wait = rho / (1 - rho) mean services."""
    interval = mean_wait_interval(lambda draws, n: draws.exponential(MEAN_SERVICE_S, n), utilization)
    expect(interval, MEAN_SERVICE_S * utilization / (1 - utilization), 0.12)


@pytest.mark.parametrize("utilization", [0.5, 0.8])
def test_md1(utilization: float) -> None:
    """M/D/1: half the wait of M/M/1."""
    interval = mean_wait_interval(lambda _, n: np.full(n, MEAN_SERVICE_S), utilization)
    expect(interval, MEAN_SERVICE_S * utilization / (1 - utilization) / 2, 0.1)


def test_mg1_by_pollaczek_khinchine() -> None:
    """M/G/1: mean wait = rate * E[S^2] / (2 (1 - rho)); here short prompts and, one in ten, long ones."""
    utilization, short, long, share = 0.6, 0.5, 5.5, 0.1
    assert (1 - share) * short + share * long == pytest.approx(MEAN_SERVICE_S)
    second_moment = (1 - share) * short**2 + share * long**2
    interval = mean_wait_interval(lambda draws, n: np.where(draws.random(n) < share, long, short), utilization)
    expect(interval, utilization / MEAN_SERVICE_S * second_moment / (2 * (1 - utilization)), 0.15)


@settings(max_examples=60, deadline=None)
@given(
    jobs=st.lists(st.tuples(st.integers(0, 5 * S), st.integers(1, 5_000)), min_size=1, max_size=40),
    asynchronous=st.booleans(),
    reference=st.booleans(),
)
def test_lindley(jobs: list[tuple[int, int]], asynchronous: bool, reference: bool) -> None:
    """Lindley's recursion, to the nanosecond: W' = max(0, W + S - A), for any arrivals and services."""
    arrivals = np.cumsum([gap for gap, _ in jobs]).tolist()
    run = one_server(arrivals, [tokens for _, tokens in jobs], async_scheduling=asynchronous, reference=reference)
    records, free_at = by_id(run), 0
    for number, (arrival, (_, tokens)) in enumerate(zip(arrivals, jobs, strict=True)):
        start = max(arrival, free_at)
        free_at = start + 1000 * US_PER_TOKEN * tokens
        assert (records[number].scheduled_ns, records[number].finish_ns) == (start, free_at)


# ---- c servers ----

STEP_NS = 50 * MS
SEATS = 4


def c_servers(arrivals_ns: Sequence[int], steps: Sequence[int], seats: int = SEATS) -> RunRecord:
    """Runs requests through c seats; a service is a number of steps of 50 ms."""
    requests = [sent(i, 1, number, at) for i, (at, number) in enumerate(zip(arrivals_ns, steps, strict=True))]
    return serve(requests, LinearCost(STEP_NS // 1000), max_num_seqs=seats, enable_prefix_caching=False)


def erlang_c_wait(utilization: float, servers: int) -> float:
    """Returns the mean wait of M/M/c in mean services (Erlang's C formula)."""
    offered = utilization * servers
    blocked = offered**servers / math.factorial(servers) / (1 - utilization)
    waits = blocked / (blocked + sum(offered**k / math.factorial(k) for k in range(servers)))
    return waits / (servers * (1 - utilization))


@pytest.mark.parametrize("utilization", [0.6, 0.85])
def test_mmc(utilization: float) -> None:
    """M/M/c with four seats: Erlang's C, and at most one step more, since service starts at step ends."""
    means = []
    for seed in range(8):
        draws = random_stream(seed, "theory")
        gaps = draws.exponential(MEAN_SERVICE_S / (SEATS * utilization), 2500)
        steps = np.ceil(draws.exponential(MEAN_SERVICE_S, 2500) * S / STEP_NS).astype(int)
        run = c_servers(np.rint(np.cumsum(gaps) * S).astype(int).tolist(), steps.tolist())
        means.append(fmean(waits_s(run)[WARM_UP:]))
    interval = interval_99(means)
    # Rounding up to whole steps makes a service half a step longer, too: the load is a little higher.
    step_s = STEP_NS / S
    low = erlang_c_wait(utilization, SEATS) * MEAN_SERVICE_S
    high = erlang_c_wait(utilization * (1 + step_s / 2), SEATS) * (1 + step_s / 2) + step_s
    assert interval[0] <= high
    assert interval[1] >= low
    assert interval[1] - interval[0] < 0.5 * high


@settings(max_examples=60, deadline=None)
@given(
    jobs=st.lists(st.tuples(st.integers(0, 12), st.integers(1, 30)), min_size=1, max_size=40),
    seats=st.integers(1, 5),
)
def test_kiefer_wolfowitz(jobs: list[tuple[int, int]], seats: int) -> None:
    """With arrivals at step ends the c-server queue is exact: each starts when the first of c servers is free."""
    arrivals = (STEP_NS * np.cumsum([gap for gap, _ in jobs])).tolist()
    records = by_id(c_servers(arrivals, [steps for _, steps in jobs], seats))
    free_at = [0] * seats
    for number, (arrival, (_, steps)) in enumerate(zip(arrivals, jobs, strict=True)):
        start = max(arrival, heapq.heappop(free_at))
        heapq.heappush(free_at, start + STEP_NS * steps)
        assert (records[number].scheduled_ns, records[number].finish_ns) == (start, start + STEP_NS * steps)


# ---- users who think ----


def test_machine_repair(tmp_path: Path) -> None:
    """Twenty users think 10 s, ask one server for 0.5 s: the response of M/M/1//N (mean value analysis)."""
    write_profile(tmp_path, per_token_us=1000)
    user = {
        "name": "only",
        "first_prompt_tokens": {"exponential": {"mean": 500}},
        "next_prompt_tokens": 1,
        "output_tokens": 1,
        "turns": 1,
        "think_time": {"exponential": {"mean": "10s"}},
    }
    case = scenario(
        tmp_path,
        {"kind": "users", "users": 20, "classes": [user]},
        run={"duration": "3000s", "warm_up": "200s", "seeds": 1},
        server={"model": "Llama-3.1-8B-Instruct"},
        max_model_len=16_384,
        max_num_batched_tokens=16_384,
        max_num_seqs=1,
        num_gpu_blocks_override=2_000,
        enable_prefix_caching=False,
    )
    means = []
    for seed in range(8):
        mean_ms = measured(case, seed=seed)[1].total.latency["e2el"].mean
        assert mean_ms is not None
        means.append(mean_ms / 1000)
    interval = interval_99(means)
    expect(interval, repair_response_s(20, service_s=0.5, think_s=10.0), 0.1)


def repair_response_s(users: int, service_s: float, think_s: float) -> float:
    """Exact mean value analysis (Reiser and Lavenberg 1980)."""
    queue = response = 0.0
    for population in range(1, users + 1):
        response = service_s * (1 + queue)
        queue = response * population / (response + think_s)
    return response
