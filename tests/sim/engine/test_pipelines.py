"""Pipelines: as many batches are under way as there are stages, each stage takes one at a time, and it pays.

That schedules and times are those of the real scheduler is checked by the recorded ones with `pp` in their names.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from sim.core.config import SchedulerConfig
from sim.deployment import plan
from sim.engine.recorded import LinearCost
from sim.records import Outcome, RunRecord
from sim.results.steadiness import littles_law
from sim.scenario.load import scenario_from_text
from sim.scenario.model import Scenario
from sim.simulate import simulate as simulate_scenario
from tests.factories import create_request
from tests.sim.engine.test_engine_core import MS, simulate

TWENTY_MS = LinearCost(base=20_000)


def test_chunks_of_one_prompt_follow_each_other_through_the_stages() -> None:
    clients, _ = simulate([create_request(0, 60, max_tokens=1)], TWENTY_MS, max_num_batched_tokens=20,
                          pipeline_parallel_size=2)  # fmt: skip
    assert [(s.start_ns, s.end_ns) for s in clients.steps] == [(0, 20 * MS), (10 * MS, 30 * MS), (20 * MS, 40 * MS)]


@pytest.mark.parametrize("is_async", [False, True])
def test_a_token_is_computed_when_the_one_before_it_is_known(is_async: bool) -> None:
    flags: dict[str, Any] = {"pipeline_parallel_size": 2, "async_scheduling": is_async}
    clients, _ = simulate([create_request(0, max_tokens=4)], TWENTY_MS, **flags)
    assert clients.token_ns[0] == [20 * MS, 40 * MS, 60 * MS, 80 * MS]
    assert all(later.start_ns >= earlier.end_ns for earlier, later in pairwise(clients.steps))


def test_as_many_batches_as_stages_are_under_way_and_one_more_when_scheduled_ahead() -> None:
    limits: dict[str, Any] = {"max_num_seqs": 8, "max_num_batched_tokens": 64, "max_model_len": 64}
    sizes = {
        (stages, is_async): SchedulerConfig(
            **limits, pipeline_parallel_size=stages, async_scheduling=is_async
        ).batch_queue_size
        for stages in (1, 2, 4)
        for is_async in (False, True)
    }
    assert sizes == {(1, False): 1, (1, True): 2, (2, False): 2, (2, True): 3, (4, False): 4, (4, True): 5}


@pytest.mark.parametrize("is_async", [False, True])
def test_a_client_that_gives_up_frees_a_pipeline_that_was_stuck(is_async: bool) -> None:
    requests = [create_request(0, 60), create_request(1, 5, max_tokens=1, arrival_time=7 * MS)]
    clients, _ = simulate(requests, TWENTY_MS, num_gpu_blocks=3, aborts={7 * MS: 0}, pipeline_parallel_size=3,
                          async_scheduling=is_async)  # fmt: skip
    assert clients.token_ns == {0: [], 1: [27 * MS]}


TEXT = """
name: pipeline
server:
  version: "{version}"
  model: {model}
  gpu: h100
  pipeline_parallel_size: {stages}
  data_parallel_size: {ranks}
  flags: {{max_model_len: 4096, max_num_batched_tokens: 1024, async_scheduling: {asynchronous},
    enable_expert_parallel: {experts}}}
workload:
  kind: open_loop
  request_rate: 30
  num_requests: 300
  classes:
    - {{name: chat, prompt_tokens: {{uniform: {{low: 500, high: 2500}}}}, output_tokens: {{exponential: {{mean: 60}}}}}}
"""


def scenario(**changes: object) -> Scenario:
    values = {"version": "0.32", "model": "Qwen/Qwen3-14B", "stages": 2, "ranks": 1, "asynchronous": "true"}
    return scenario_from_text(TEXT.format(**{**values, "experts": "false", **changes}))


def run(**changes: object) -> RunRecord:
    return simulate_scenario(scenario(**changes), seed=0)


@pytest.mark.parametrize("asynchronous", ["true", "false"])
def test_two_stages_carry_a_load_faster_than_one_batch_at_a_time_could(asynchronous: str) -> None:
    record = run(asynchronous=asynchronous)
    assert {request.outcome for request in record.requests} == {Outcome.FINISHED}
    steps = record.steps
    busy_s = sum(end - start for start, end in zip(steps.start_ns, steps.end_ns, strict=True)) / 1e9
    assert busy_s > 1.3 * record.end_ns / 1e9  # batches overlap
    assert max(steps.end_ns) == steps.end_ns[-1]
    assert all(a <= b for a, b in pairwise(steps.end_ns))
    assert littles_law(record).holds


def test_before_0_32_a_request_is_in_one_batch_at_a_time() -> None:
    ahead = {"0.15.0": "false", "0.20.0": "true", "0.32": "true"}
    configs = {v: plan(scenario(version=v, asynchronous=on)).scheduler_config for v, on in ahead.items()}
    assert {version: (c.batch_queue_size, c.async_scheduling) for version, c in configs.items()} == {
        "0.15.0": (2, False), "0.20.0": (2, False), "0.32": (3, True)
    }  # fmt: skip


def test_ranks_that_step_together_are_said_to_take_one_batch_at_a_time() -> None:
    deployment = plan(scenario(model="Qwen/Qwen3-30B-A3B", ranks=2, experts="true"))
    assert deployment.scheduler_config.pipeline_parallel_size == 1
    assert any(text.startswith("pipeline_parallel_size: stages of ranks") for text in deployment.warnings)
    assert not any("pipeline" in text for text in plan(scenario()).warnings)
