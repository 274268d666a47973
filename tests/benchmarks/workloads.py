"""The workloads that the figures are about: the peers' workload, and what makes a scheduler's life harder."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np

from sim.deployment import plan
from sim.results.metrics import summarize
from sim.scenario.load import load_scenario, override, scenario_from_text
from sim.scenario.model import Scenario
from sim.simulate import simulate

_LOAD = 0.85  # of saturation, as in the peers' figures

_SINGLE = """
name: single
server:
  model: meta-llama/Llama-3.1-8B-Instruct
  gpu: h100
  flags:
    {max_model_len: 8192, max_num_seqs: 256, max_num_batched_tokens: 2048, block_size: 16, enable_prefix_caching: true}
workload:
  kind: open_loop
  arrivals: poisson
  classes:
    - name: only
      prompt_tokens: {uniform_ratio: {mean: 512, ratio: 0.5}}
      output_tokens: {uniform_ratio: {mean: 256, ratio: 0.5}}
  request_rate: 1
  num_requests: 1500
run: {duration: 1000h}
"""

_CONVERSATIONS = """
name: conversations
server:
  model: meta-llama/Llama-3.1-8B-Instruct
  gpu: h100
  flags:
    {max_model_len: 16384, max_num_seqs: 256, max_num_batched_tokens: 2048, block_size: 16, enable_prefix_caching: true}
workload:
  kind: users
  users: 200
  classes:
    - name: chat
      first_prompt_tokens: {uniform_ratio: {mean: 512, ratio: 0.5}}
      next_prompt_tokens: {uniform_ratio: {mean: 128, ratio: 0.5}}
      output_tokens: {uniform_ratio: {mean: 256, ratio: 0.5}}
      turns: 10
      think_time: {exponential: {mean: 10s}}
run: {duration: 20min}
"""

_TRACE = """
name: trace
server:
  model: meta-llama/Llama-3.1-8B-Instruct
  gpu: h100
  flags:
    {max_model_len: 8192, max_num_seqs: 256, max_num_batched_tokens: 2048, block_size: 16, enable_prefix_caching: true}
workload: {kind: trace, path: trace.csv}
"""


def single(num_requests: int) -> Scenario:
    """The peers' workload: prompts of 512 tokens on average, answers of 256, Poisson at 85 % of saturation."""
    return _open_loop(num_requests)


def long_prompts(num_requests: int) -> Scenario:
    """Prompts of 4,096 tokens on average, answers of 512, Poisson at 85 % of saturation."""
    return _open_loop(num_requests, ("prompt_tokens", 4096), ("output_tokens", 512))


def preemption(num_requests: int) -> Scenario:
    """The peers' workload with half of the KV blocks that its requests want on average, so that many are preempted."""
    scenario = single(num_requests)
    usage = summarize(simulate(single(2_000), seed=0), single(2_000)).server.kv.mean
    assert usage is not None, "a run of 2,000 requests is not empty"
    num_blocks = round(_num_blocks(scenario) * usage / 2)
    return override(scenario, {"server.num_gpu_blocks_override": num_blocks})


def conversations(num_requests: int) -> Scenario:
    """200 users in conversations of ten turns, each prompt with all before it; about so many requests."""
    scenario = scenario_from_text(_CONVERSATIONS)
    rate = len(simulate(override(scenario, {"run.duration": "3min"}), seed=0).requests) / 180
    return override(scenario, {"run.duration": f"{num_requests / rate:.0f}s"})


def coding_assistant(_num_requests: int) -> Scenario:
    """One hour of 300 developers with contexts to 128k tokens; the number of requests is what they send in it."""
    return load_scenario(Path(__file__).with_name("spoc.yaml"))


def trace(num_requests: int, folder: Path) -> Scenario:
    """A recording of the peers' workload: Poisson arrivals at the same rate, lengths as there."""
    random = np.random.default_rng(0)
    rate = _rate(scenario_from_text(_SINGLE))
    times = np.cumsum(random.exponential(1 / rate, num_requests))
    prompts, outputs = random.integers(256, 769, num_requests), random.integers(128, 385, num_requests)
    columns = np.column_stack([times, prompts, outputs])
    header = "arrival_s,input_tokens,output_tokens"
    np.savetxt(folder / "trace.csv", columns, fmt=("%.6f", "%d", "%d"), delimiter=",", header=header, comments="")
    return scenario_from_text(_TRACE, str(folder / "trace.yaml"))


def synchronous(num_requests: int) -> Scenario:
    """The peers' workload by the rules that the naive engine knows, so that all engines make the same steps."""
    return naive_twin(single(num_requests))


def naive_twin(scenario: Scenario) -> Scenario:
    """The same work by the rules that the naive engine knows."""
    return override(scenario, {"server.async_scheduling": False, "server.enable_prefix_caching": False})


WORKLOADS: dict[str, Callable[[int], Scenario]] = {
    "single": single,
    "synchronous": synchronous,
    "long_prompts": long_prompts,
    "conversations": conversations,
    "preemption": preemption,
    "coding_assistant": coding_assistant,
}
"""Name -> the scenario with about so many requests."""


def _open_loop(num_requests: int, *lengths: tuple[str, int]) -> Scenario:
    changes = {f"workload.classes.0.{key}": {"uniform_ratio": {"mean": mean, "ratio": 0.5}} for key, mean in lengths}
    scenario = override(scenario_from_text(_SINGLE), changes)
    rate = _rate(scenario)
    return override(scenario, {"workload.request_rate": rate, "workload.num_requests": num_requests})


def _rate(scenario: Scenario) -> float:
    return _rate_of(scenario.model_dump_json(by_alias=True))


@cache
def _rate_of(scenario_json: str) -> float:
    """Returns 85 % of the rate at which requests leave a server that is offered far more."""
    flooded = override(scenario_from_text(scenario_json), {"workload.request_rate": 1000})
    run = simulate(flooded, seed=1)
    ends = sorted(request.finish_ns for request in run.requests)
    first, last = ends[300], ends[1200]  # between start-up and drain
    return float(f"{_LOAD * 900 / ((last - first) / 1e9):.3g}")


def _num_blocks(scenario: Scenario) -> int:
    return plan(scenario).cache_config.num_gpu_blocks
