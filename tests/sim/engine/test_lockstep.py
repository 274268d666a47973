"""Ranks that step together: one alone is a plain engine; equal ones take its time; nobody is ahead of the slowest."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from calibrate.replay import simulate_requests
from calibrate.replay_server import describe_server
from sim.api_server import ApiServer
from sim.deployment import Deployment
from sim.engine.engine_core import EngineCore
from sim.engine.fitted import FittedModel, StepCoefficients
from sim.engine.lockstep import combined, run_in_step
from sim.engine.step_time import Batch, ClientLatency
from sim.records import RunRecord
from sim.workload.open_loop import OpenLoop
from sim.workload.replay import ReplayedRequests, replay_times
from sim.workload.trace import Trace

COST = StepCoefficients(floor_ns=8e6, token_ns=40e3, attention_pair_ns=2.0, decode_context_ns=50)


def server(*, asynchronous: bool = True, model: str = "Qwen/Qwen3-30B-A3B") -> Deployment:
    flags = {
        "max_num_seqs": 32,
        "max_num_batched_tokens": 512,
        "max_model_len": 4096,
        "num_gpu_blocks_override": 600,
        "async_scheduling": asynchronous,
    }
    return describe_server({"model": model, "gpu": "h200", "version": "0.23.0", "flags": flags}).plan()


def made_requests(number: int = 60, rate_per_s: float = 20.0, seed: int = 0) -> Trace:
    rng = np.random.default_rng(seed)
    times = np.rint(np.cumsum(rng.exponential(1e9 / rate_per_s, number))).astype(np.int64)
    return Trace(times, rng.integers(20, 900, number), rng.integers(1, 60, number))


def in_step(shares: list[Trace], deployment: Deployment, largest_graph: int = 0) -> RunRecord:
    record = RunRecord(("replay",), 600, 16, 32, 512, num_replicas=len(shares), calibrated=True)
    model = FittedModel(COST)
    engines, servers = [], []
    for replica, share in enumerate(shares):
        source = ReplayedRequests(share, replay_times(share, 1.0, behind_a_cap=False), timeout_ns=None)
        engine = EngineCore(deployment.scheduler_config, deployment.cache_config, model)
        engines.append(engine)
        servers.append(
            ApiServer(
                OpenLoop(source, ("replay",)),
                engine,
                record,
                limits=deployment.limits,
                latency=ClientLatency(),
                replica=replica,
            )
        )
    record.end_ns = run_in_step(engines, servers, model, largest_graph=largest_graph)
    return record


def finishes(record: RunRecord, replica: int = 0) -> list[int]:
    found = [(r.request_id, r.finish_ns) for r in record.requests if r.replica == replica]
    return [finish for _, finish in sorted(found)]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_one_rank_alone_is_a_plain_engine(asynchronous: bool) -> None:
    deployment, requests = server(asynchronous=asynchronous), made_requests()
    plain = simulate_requests(requests, deployment, FittedModel(COST), ClientLatency())
    record = in_step([requests], deployment)
    assert finishes(record) == finishes(plain)
    assert list(record.steps.end_ns) == list(plain.steps.end_ns)
    assert record.end_ns == plain.end_ns


def test_equal_ranks_take_the_time_of_one() -> None:
    deployment, requests = server(), made_requests()
    one = in_step([requests], deployment)
    two = in_step([requests, requests], deployment)
    assert finishes(two, 0) == finishes(two, 1) == finishes(one)


def test_a_prompt_on_one_rank_holds_the_other_up() -> None:
    short = Trace(np.zeros(1, np.int64), np.array([20]), np.array([50]))
    long = Trace(np.full(1, 100_000_000), np.array([4000]), np.array([1]))
    alone = in_step([short], server())
    beside = in_step([short, long], server())
    delay = finishes(beside)[0] - finishes(alone)[0]
    assert delay > 0.25 * (finishes(beside, 1)[0] - 100_000_000)


def test_every_request_ends_and_steps_never_overlap() -> None:
    record = in_step([made_requests(seed=1), made_requests(number=20, seed=2)], server())
    assert all(request.finish_ns > request.arrival_ns for request in record.requests)
    assert len(record.requests) == 80
    spans = sorted(set(zip(record.steps.start_ns, record.steps.end_ns, strict=True)))
    assert all(first[1] <= second[0] for first, second in pairwise(spans))


def test_tokens_are_padded_to_the_largest_rank_under_graphs_and_shared_beyond() -> None:
    few, many = Batch.of([100] * 10), Batch.of([200] * 60)
    assert combined([few, many], 2, largest_graph=128).num_tokens == 60
    assert combined([few, many], 2, largest_graph=0).num_tokens == 35
    chunk = Batch.of([], [(1000, 0)])
    both = combined([few, chunk], 2, largest_graph=128)
    assert (both.num_tokens, both.num_decodes, both.attention_pairs) == (505, 10, chunk.attention_pairs)
    assert combined([chunk], 4, largest_graph=128).num_tokens == 251
    assert combined([many], 1, largest_graph=128) == many


def shared_ends(model: str) -> int:
    """Steps of two replicas that end at the same moment as one of the other."""
    deployment = server(model=model)
    record = simulate_requests(made_requests(), deployment, FittedModel(COST), ClientLatency(), replicas=2)
    return len(record.steps.end_ns) - len(set(record.steps.end_ns))


def test_ranks_of_a_model_with_experts_are_replayed_in_step_and_those_of_a_dense_one_are_not() -> None:
    assert shared_ends("Qwen/Qwen3-30B-A3B") > 100
    assert shared_ends("Qwen/Qwen3-8B") < 10
