"""Small worlds for the rules of diagnosis: one run each, really simulated, in a fraction of a second."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

from reports.diagnosis import Symptom, find_symptoms
from reports.source import Detail
from sim.results.metrics import summarize
from sim.scenario.load import scenario_from_text
from sim.simulate import simulate

_CHAT = """
name: world
server: {kind: vllm, model: Qwen/Qwen2.5-7B-Instruct, gpu: rtx-4090,
         flags: {max_model_len: 16384, max_num_seqs: 64, max_num_batched_tokens: 2048}}
workload:
  kind: users
  users: 12
  classes:
    - {name: chat, share: 1, first_prompt_tokens: 200, next_prompt_tokens: 50, output_tokens: 100, turns: 6,
       think_time: {exponential: {mean: 10s}}}
    - {name: document, share: 0, first_prompt_tokens: 8000, next_prompt_tokens: 50, output_tokens: 100, turns: 3,
       think_time: {exponential: {mean: 10s}}}
objectives: []
run: {duration: 60s, warm_up: 5s}
"""

_PUBLIC = """
name: world
server: {kind: vllm, model: Qwen/Qwen2.5-7B-Instruct, gpu: rtx-4090,
         flags: {max_model_len: 16384, max_num_seqs: 64, max_num_batched_tokens: 2048}}
workload:
  kind: open_loop
  request_rate: 2
  arrivals: poisson
  classes: [{name: public, prompt_tokens: 300, output_tokens: 100}]
objectives: []
run: {duration: 60s, warm_up: 5s}
"""

_BENCH = """
name: world
server: {kind: vllm, model: Qwen/Qwen2.5-7B-Instruct, gpu: rtx-4090,
         flags: {max_model_len: 16384, max_num_seqs: 64, max_num_batched_tokens: 2048}}
workload:
  kind: closed_loop
  num_requests: 100
  max_concurrency: 8
  classes: [{name: bench, prompt_tokens: 300, output_tokens: 100}]
objectives: []
run: {}
"""

WORLDS = {"chat": _CHAT, "public": _PUBLIC, "bench": _BENCH}


@cache
def run(world: str, changes: tuple[str, ...] = ()) -> Detail:
    """Simulates a world with values changed, as `--set` changes them."""
    scenario = scenario_from_text(WORLDS[world], overrides=changes)
    record = simulate(scenario, seed=0)
    return Detail(None, 0, record, summarize(record, scenario))


def symptoms(world: str, changes: Iterable[str] = ()) -> dict[str, Symptom]:
    """Returns what the rules find in a world, by key."""
    changes = tuple(changes)
    scenario = scenario_from_text(WORLDS[world], overrides=changes)
    caching = scenario.server.flags.enable_prefix_caching is not False
    found = find_symptoms(run(world, changes), scenario.objectives, prefix_caching=caching)
    return {symptom.key: symptom for symptom in found}
