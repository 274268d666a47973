"""Every nanosecond of the engine's steps belongs to somebody, whichever scheduler made them."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from sim.engine.recorded import LinearCost
from sim.records import Outcome, RunRecord
from sim.scenario.load import scenario_from_text
from sim.simulate import simulate
from tests.cases.build import sent, serve

_WORLD = """
name: world
server: {kind: vllm, model: Qwen/Qwen2.5-7B-Instruct, gpu: rtx-4090, flags: {max_model_len: 8192, max_num_seqs: 48}}
workload:
  kind: users
  users: 40
  client_timeout: 8s
  classes:
    - {name: chat, share: 0.8, first_prompt_tokens: 300, next_prompt_tokens: 50, turns: 6,
       output_tokens: {uniform: {low: 1, high: 200}}, think_time: {exponential: {mean: 5s}}}
    - {name: document, share: 0.2, first_prompt_tokens: {uniform: {low: 1000, high: 6000}}, next_prompt_tokens: 50,
       output_tokens: 100, turns: 3, think_time: {exponential: {mean: 5s}}}
objectives: []
run: {duration: 40s, warm_up: 5s}
"""
F = "server.flags."
WORLDS: dict[str, tuple[str, ...]] = {
    "asynchronous": (f"{F}num_gpu_blocks_override=900",),
    "synchronous": (f"{F}num_gpu_blocks_override=900", f"{F}async_scheduling=false"),
    "small budget": (f"{F}num_gpu_blocks_override=1200", f"{F}max_num_batched_tokens=128"),
    "starved": (f"{F}max_num_batched_tokens=48", "workload.client_timeout=60s"),
    "by priority": (f"{F}num_gpu_blocks_override=900", f"{F}scheduling_policy=priority"),
}


def made(changes: Iterable[str], *, reference: bool) -> RunRecord:
    return simulate(scenario_from_text(_WORLD, overrides=changes), seed=1, reference=reference)


@pytest.mark.parametrize("name", WORLDS)
def test_the_fast_path_and_the_reference_agree_on_who_took_what(name: str) -> None:
    fast, slow = (made(WORLDS[name], reference=reference) for reference in (False, True))
    assert [each.engine_ns for each in fast.requests] == [each.engine_ns for each in slow.requests]
    assert fast.preemptions == slow.preemptions


@pytest.mark.parametrize("name", WORLDS)
def test_the_parts_add_up_to_the_time_that_the_engine_computed(name: str) -> None:
    run = made(WORLDS[name], reference=False)
    busy_ns = sum(run.steps.end_ns) - sum(run.steps.start_ns)
    parts_ns = sum(each.engine_ns for each in run.requests)
    late = sum(each.outcome is not Outcome.FINISHED for each in run.requests) + len(run.requests)
    longest_ns = max(end - start for start, end in zip(run.steps.start_ns, run.steps.end_ns, strict=True))
    # What is missing: a step in flight when its request ended is nobody's; each request has at most one or two.
    assert 0.9 * busy_ns < parts_ns <= busy_ns
    assert busy_ns - parts_ns <= 2 * late * longest_ns


def test_a_lone_request_takes_all_of_its_steps() -> None:
    alone = "{kind: closed_loop, num_requests: 1, classes: [{name: one, prompt_tokens: 3000, output_tokens: 50}]}"
    run = made((f"workload={alone}", f"{F}async_scheduling=false"), reference=False)
    busy_ns = sum(run.steps.end_ns) - sum(run.steps.start_ns)
    assert busy_ns - len(run.steps.end_ns) <= run.requests[0].engine_ns <= busy_ns  # rounded down in each step


def test_a_row_for_every_preemption_ends_when_its_request_is_scheduled_again() -> None:
    run = made(WORLDS["asynchronous"], reference=False)
    log = run.preemptions
    by_request = {each.request_id: each for each in run.requests}
    assert sum(run.steps.num_preempted) == len(log.request_id) > 3
    counts = {number: log.request_id.count(number) for number in set(log.request_id)}
    assert counts == {number: each.num_preemptions for number, each in by_request.items() if each.num_preemptions}
    for number, start, end in zip(log.request_id, log.start_ns, log.end_ns, strict=True):
        request = by_request[number]
        assert request.scheduled_ns <= start < request.finish_ns
        assert start < end <= request.finish_ns or (end == -1 and request.outcome is Outcome.TIMED_OUT)


@pytest.mark.parametrize("reference", [True, False])
def test_a_preemption_in_a_step_without_tokens_is_in_the_log_of_steps_too(reference: bool) -> None:
    """The first request's only token is in flight, and the second finds no block: nothing is left to compute."""
    requests = [sent(0, 31, 1), sent(1, 16, 4)]
    run = serve(requests, LinearCost(900, 11), num_gpu_blocks=4, async_scheduling=True, reference=reference)
    assert [request.num_preemptions for request in run.requests] == [0, 1]
    assert sum(run.steps.num_preempted) == 1
