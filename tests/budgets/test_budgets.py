"""What a simulation may cost, counted and not timed: the same numbers on every machine, idle or not.

The work of the interpreter is counted in lines of Python executed. Timings are in tests/benchmarks.
"""

from __future__ import annotations

import gc
import sys
import tracemalloc
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import simpy

import sim.core.scheduler
from sim.core.fast_scheduler import FastScheduler
from sim.engine.engine_core import EngineCore
from sim.engine.recorded import LinearCost
from sim.results.metrics import summarize
from sim.results.storage import write_run
from sim.scenario.load import override, scenario_from_text
from sim.scenario.model import Scenario
from sim.simulate import simulate
from tests.factories import create_request, create_scheduler

SCENARIO = """
name: budget
server:
  model: meta-llama/Llama-3.1-8B-Instruct
  gpu: h100
  flags: {max_model_len: 8192, max_num_seqs: 256, max_num_batched_tokens: 2048, block_size: 16}
workload:
  kind: open_loop
  arrivals: poisson
  request_rate: 28
  num_requests: 1000
  classes:
    - name: only
      prompt_tokens: {uniform_ratio: {mean: 512, ratio: 0.5}}
      output_tokens: {uniform_ratio: {mean: 256, ratio: 0.5}}
"""
BLOCK_SIZE = 16

is_compiled = not str(sim.core.scheduler.__file__).endswith(".py")
interpreted = pytest.mark.skipif(is_compiled, reason="the lines of a compiled core cannot be counted")


def scenario(num_requests: int) -> Scenario:
    return override(scenario_from_text(SCENARIO), {"workload.num_requests": num_requests})


def few_tokens(num_requests: int) -> Scenario:
    """Requests that are soon simulated, in 2.4 steps each: a little more than at the usual lengths."""
    changes = {"workload.classes.0.output_tokens": 24, "workload.request_rate": 40}
    return override(scenario(num_requests), changes)


def count_lines(action: Callable[[], Any]) -> int:
    """Returns how many lines of Python an action executes in the package's own code."""
    lines = 0

    def trace(frame: FrameType, event: str, _argument: Any) -> Any:
        nonlocal lines
        if "/sim/" not in frame.f_code.co_filename.replace("\\", "/"):
            return None
        lines += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        action()
    finally:
        sys.settrace(before)
    return lines


def test_a_step_is_one_simpy_event(monkeypatch: pytest.MonkeyPatch) -> None:
    events = 0
    step = simpy.Environment.step

    def counted(environment: simpy.Environment) -> None:
        nonlocal events
        events += 1
        step(environment)

    monkeypatch.setattr(simpy.Environment, "step", counted)
    run = simulate(scenario(1000), seed=0)
    assert events <= 1.1 * len(run.steps.end_ns)


class SteadyDecode:
    """An engine in which a number of requests decode, and nothing else happens for a long time."""

    def __init__(self, num_requests: int, *, reference: bool = False) -> None:
        scheduler = create_scheduler(max_num_seqs=1024, max_num_batched_tokens=8192, num_gpu_blocks=60_001)
        self.engine = EngineCore(
            scheduler.config, scheduler.cache_config, LinearCost(1000, 1, 1, 0), reference=reference
        )
        for number in range(num_requests):
            # Prompts of all lengths, so that block boundaries are spread over the steps.
            self.engine.scheduler.add_request(create_request(number, 100 + number, max_tokens=2000))
        self.now = 0
        self.advance(80)

    def advance(self, num_steps: int) -> None:
        for _ in range(num_steps):
            batch = self.engine.dispatch(self.now)
            assert batch is not None
            self.now = batch.end_ns
            self.engine.complete(batch)

    def touched(self, num_steps: int) -> float:
        """Returns how many requests a step names one by one, on average."""
        named = 0
        schedule = self.engine.scheduler.schedule
        if isinstance(self.engine.scheduler, FastScheduler):
            self.engine.scheduler.lists_blocks = True
        for _ in range(num_steps):
            output = schedule()
            named += len(output.num_scheduled_tokens.keys() | output.new_blocks.keys())
            self.engine.scheduler.update_from_output(output)
        return named / num_steps


@pytest.mark.parametrize("num_requests", [64, 512])
def test_a_step_of_steady_decoding_names_the_requests_at_a_block_boundary_alone(num_requests: int) -> None:
    assert SteadyDecode(num_requests).touched(160) == num_requests / BLOCK_SIZE
    assert SteadyDecode(num_requests, reference=True).touched(16) == num_requests


@interpreted
def test_a_step_of_steady_decoding_works_for_one_request_in_sixteen() -> None:
    few, many = SteadyDecode(64), SteadyDecode(512)
    lines = [count_lines(partial(engine.advance, 160)) / 160 for engine in (few, many)]
    per_request = (lines[1] - lines[0]) / (512 - 64)
    assert lines[0] < 250, f"{lines[0]:.0f} lines a step with 64 requests"
    assert per_request < 16 / BLOCK_SIZE, f"{per_request:.2f} lines a step for each request that decodes"


def test_prompts_that_nobody_shares_are_hashed_in_a_block_or_two_each() -> None:
    scheduler = create_scheduler(fast=True, max_num_batched_tokens=8192, max_num_seqs=64, num_gpu_blocks=3000)
    requests = [create_request(number, 1000, max_tokens=40) for number in range(60)]
    for request in requests:
        scheduler.add_request(request)
    while scheduler.has_unfinished_requests():
        scheduler.update_from_output(scheduler.schedule())
    num_hashes = sum(len(request.block_hashes) for request in requests)
    assert num_hashes < 3 * len(requests), f"{num_hashes} hashes for {len(requests)} requests"


def test_each_block_of_tokens_is_taken_once() -> None:
    scheduler = create_scheduler(fast=True, max_num_batched_tokens=2048, max_num_seqs=64)
    lengths = {number: (500 + 7 * number, 30 + number) for number in range(60)}
    for number, (prompt, answer) in lengths.items():
        scheduler.add_request(create_request(number, prompt, max_tokens=answer))
    taken = 0
    while scheduler.has_unfinished_requests():
        output = scheduler.schedule()
        taken += sum(len(group) for blocks in output.new_blocks.values() for group in blocks)
        scheduler.update_from_output(output)
    needed = sum(-(-(prompt + answer - 1) // BLOCK_SIZE) for prompt, answer in lengths.values())
    assert taken == needed  # the last token is never computed and needs no place


@interpreted
def test_the_work_grows_with_the_number_of_requests_and_no_faster() -> None:
    few, many = (count_lines(partial(simulate, scenario(number), seed=0)) for number in (300, 1200))
    assert many < 4.2 * few, f"{few} lines for 300 requests, {many} for 1,200"


@interpreted
def test_a_request_costs_a_bounded_number_of_lines() -> None:
    simulate(scenario(10), seed=0)  # what is imported and looked up once
    lines = count_lines(lambda: simulate(scenario(1000), seed=0)) / 1000
    assert lines < 2600, f"{lines:.0f} lines a request of 512 prompt and 256 output tokens"


@pytest.mark.parametrize("patience", [None, "100h"])
def test_a_request_takes_less_than_a_kilobyte_summed_up_and_written(tmp_path: Path, patience: str | None) -> None:
    peaks = []
    for number in (10, 1000, 9000):  # the first imports what is imported once
        tried = override(few_tokens(number), {"workload.client_timeout": patience})
        gc.collect()
        tracemalloc.start()
        run = simulate(tried, seed=0)
        summarize(run, tried)
        write_run(tmp_path, run, {})
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    per_request = (peaks[2] - peaks[1]) / 8000
    assert per_request < 1000, f"{per_request:.0f} bytes a request"
