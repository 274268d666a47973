"""Replicas as queues of the textbooks: what a router's rule does to the wait is known, or lies between known bounds.

A request is served in one step of a replica with one seat, exponentially long: a replica is a queue with one server.
"""

from __future__ import annotations

import math
from pathlib import Path
from statistics import fmean

import pytest

from sim.scenario.fleet import Router
from sim.simulate import simulate
from tests.cases.build import S, one_class, scenario, write_profile
from tests.theory.test_queues import interval_99

RATE_PER_S = 1.4  # of two replicas that serve one request a second each
WARM_UP = 500


def waits_s(folder: Path, router: Router, seed: int, number: int = 3000) -> float:
    write_profile(folder, per_token_us=1000)  # a thousand tokens are a second
    workload = {
        "kind": "open_loop", "request_rate": RATE_PER_S, "num_requests": number,
        "classes": one_class({"exponential": {"mean": 1000}}, 1),
    }  # fmt: skip
    case = scenario(
        folder, workload, server={"replicas": 2, "router": router}, max_num_seqs=1, max_num_batched_tokens=32_000,
        max_model_len=32_000, num_gpu_blocks_override=4000, enable_prefix_caching=False,
    )  # fmt: skip
    run = simulate(case, seed=seed)
    return fmean((request.scheduled_ns - request.arrival_ns) / S for request in run.requests[WARM_UP:])


def mean_wait(folder: Path, router: Router, seeds: int, number: int) -> tuple[float, float]:
    return interval_99([waits_s(folder, router, seed, number) for seed in range(seeds)])


def test_in_turns_each_replica_is_a_queue_with_erlang_arrivals(tmp_path: Path) -> None:
    """Every second arrival of a Poisson stream: E2/M/1, whose wait is σ / (1 - σ) with σ = (λ / (λ + 1 - σ))²."""
    sigma = 0.5
    for _ in range(100):
        sigma = (RATE_PER_S / (RATE_PER_S + 1 - sigma)) ** 2
    low, high = mean_wait(tmp_path, "round_robin", 12, 8000)
    assert low <= sigma / (1 - sigma) <= high
    assert high - low < 0.5


def test_the_fewest_in_flight_lies_between_one_queue_for_both_and_turns(tmp_path: Path) -> None:
    """Nothing beats M/M/2, where no server idles while somebody waits; joining the shorter queue comes close."""
    load = RATE_PER_S
    waiting = load**2 / (2 - load) / (1 + load + load**2 / (2 - load))  # Erlang C of two servers
    two_servers = waiting / (2 - load)
    low, high = mean_wait(tmp_path, "least_requests", 6, 4000)
    assert high > two_servers
    assert low < 1.5 * two_servers
    assert math.isclose(two_servers, 0.961, abs_tol=1e-3)


@pytest.mark.parametrize("seed", [0, 1])
def test_the_fewest_in_flight_beat_turns_on_the_same_requests(tmp_path: Path, seed: int) -> None:
    assert waits_s(tmp_path, "least_requests", seed) < 0.85 * waits_s(tmp_path, "round_robin", seed)
