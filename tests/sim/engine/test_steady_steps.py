"""Steps made ahead are the steps that the reference makes one by one: same requests, same rows, same clock."""

from __future__ import annotations

import random
from dataclasses import fields
from operator import attrgetter
from typing import Any

import pytest

from sim.engine import engine_core
from sim.records import REQUEST_FIELDS, RunRecord, StepLog
from sim.scenario.load import scenario_from_text
from sim.scenario.model import Scenario
from sim.simulate import simulate

TEXT = """
name: drawn
server:
  model: {model}
  gpu: mi300x  # takes blocks of any size
  flags:
    max_model_len: {max_model_len}
    max_num_seqs: {max_num_seqs}
    max_num_batched_tokens: {max_num_batched_tokens}
    block_size: {block_size}
    num_gpu_blocks_override: {num_blocks}
    enable_prefix_caching: {caching}
    async_scheduling: {asynchronous}
    scheduling_policy: {policy}
workload:
  kind: users
  users: {users}
  ramp_up: 2s
  {patience}
  classes:
    - name: one
      shared_prefix: {{tokens: {shared}, scope: all, name: head}}
      first_prompt_tokens: {prompt}
      next_prompt_tokens: {{uniform_ratio: {{mean: 40, ratio: 0.9}}}}
      output_tokens: {{exponential: {{mean: {answer}}}}}
      turns: 5
      think_time: {{exponential: {{mean: 2s}}}}
    - name: other
      priority: 1
      first_prompt_tokens: 150
      next_prompt_tokens: 10
      output_tokens: 80
      turns: 2
      think_time: {{exponential: {{mean: 1s}}}}
run: {{duration: 10s}}
"""


def scenario(seed: int) -> Scenario:
    """A small server and a few users, both drawn."""
    rng = random.Random(seed)
    block_size, max_model_len = rng.choice([1, 4, 16, 32]), rng.choice([512, 1024])
    values: dict[str, Any] = {
        "model": rng.choice(["meta-llama/Llama-3.1-8B-Instruct", "openai/gpt-oss-20b"]),
        "max_model_len": max_model_len,
        "max_num_seqs": rng.choice([2, 8, 32]),
        "max_num_batched_tokens": rng.choice([128, 512]),
        "block_size": block_size,
        "num_blocks": 2 * max_model_len // block_size + rng.choice([40, 400, 4000]),
        "caching": str(rng.random() < 0.8).lower(),
        "asynchronous": str(seed % 3 > 0).lower(),
        "policy": rng.choice(["fcfs", "fcfs", "priority"]),
        "users": rng.choice([2, 10, 40]),
        "patience": rng.choice(["client_timeout: 2s", "team_size: 3"]),
        "shared": rng.choice([1, 40, 100]),
        "prompt": rng.choice([50, 300]),
        "answer": rng.choice([5, 60]),
    }
    return scenario_from_text(TEXT.format(**values))


def rows(run: RunRecord) -> tuple[object, ...]:
    """All that a run recorded; gaps of one step in no particular order, as classes have none."""
    gaps = zip(run.itl.end_ns, run.itl.gap_ns, run.itl.class_id, run.itl.count, strict=True)
    steps = [getattr(run.steps, field.name) for field in fields(StepLog)]
    return list(map(attrgetter(*REQUEST_FIELDS), run.requests)), steps, sorted(gaps), run.end_ns


@pytest.mark.parametrize("seed", range(24))
def test_steps_made_ahead_are_those_of_the_reference(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    num_ahead = 0
    decode_ahead = engine_core.decode_ahead

    def counted(*args: Any) -> Any:
        nonlocal num_ahead
        steps = decode_ahead(*args)
        num_ahead += len(steps.end_ns) if steps is not None else 0
        return steps

    monkeypatch.setattr(engine_core, "decode_ahead", counted)
    drawn = scenario(seed)
    reference = simulate(drawn, seed=seed, reference=True)
    assert num_ahead == 0
    assert rows(simulate(drawn, seed=seed)) == rows(reference)
    if drawn.workload.client_timeout is None:
        assert num_ahead > len(reference.steps.end_ns) // 20


def test_what_looks_at_every_step_sees_every_step() -> None:
    drawn = scenario(1)
    seen = 0
    original = engine_core.EngineCore.__init__

    def watched(self: engine_core.EngineCore, *args: Any, **options: Any) -> None:
        nonlocal seen

        def count(_: engine_core.InFlightBatch) -> None:
            nonlocal seen
            seen += 1

        original(self, *args, **options)
        self.on_schedule = count

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine_core.EngineCore, "__init__", watched)
        run = simulate(drawn, seed=1)
    assert seen >= len(run.steps.end_ns)
