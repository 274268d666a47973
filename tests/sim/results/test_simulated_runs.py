"""The laws that hold between the logs of every simulated run, whatever its workload."""

import pytest

from sim.records import Outcome, RunRecord
from sim.results.metrics import summarize, summarize_window
from sim.results.steadiness import littles_law
from sim.results.window import Window
from sim.scenario.load import scenario_from_text
from sim.scenario.model import Scenario
from sim.simulate import simulate

CLASSES = """
    - name: short
      share: 3
      prompt_tokens: {lognormal: {median: 300, p95: 2000}}
      output_tokens: {uniform: {low: 1, high: 90}}
    - {name: long, prompt_tokens: 3000, output_tokens: 40}
"""
USERS = """
    - name: chat
      shared_prefix: {tokens: 300}
      first_prompt_tokens: {lognormal: {median: 300, p95: 2000}}
      next_prompt_tokens: 60
      output_tokens: {uniform: {low: 1, high: 90}}
      turns: 4
      think_time: {exponential: {mean: 3s}}
"""
WORKLOADS = {
    "open loop": f"kind: open_loop\n  request_rate: 6\n  client_timeout: 8s\n  classes:{CLASSES}",
    "all at once": f"kind: open_loop\n  arrivals: all_at_once\n  num_requests: 60\n  classes:{CLASSES}",
    "closed loop": f"kind: closed_loop\n  num_requests: 60\n  max_concurrency: 5\n  classes:{CLASSES}",
    "users": f"kind: users\n  users: 20\n  classes:{USERS}",
}


def scenario(workload: str, flags: str = "") -> Scenario:
    return scenario_from_text(
        f"""
name: laws
server:
  kind: vllm
  model: Qwen/Qwen2.5-7B-Instruct
  gpu: rtx-4090
  flags: {{max_model_len: 8192, {flags}}}
workload:
  {WORKLOADS[workload]}
run: {{duration: 40s}}
"""
    )


@pytest.fixture(
    scope="module", params=[(name, flags) for name in WORKLOADS for flags in ("", "num_gpu_blocks_override: 700")]
)
def run(request: pytest.FixtureRequest) -> tuple[Scenario, RunRecord]:
    asked = scenario(*request.param)
    return asked, simulate(asked, seed=1)


def test_littles_law_holds(run: tuple[Scenario, RunRecord]) -> None:
    law = littles_law(run[1])
    assert law.from_steps > 0
    assert law.holds, law


def test_the_token_log_and_the_requests_count_the_same_tokens(run: tuple[Scenario, RunRecord]) -> None:
    record = run[1]
    with_a_token = sum(each.first_token_ns >= 0 for each in record.requests)
    assert with_a_token + sum(record.itl.count) == sum(each.num_output_tokens for each in record.requests)
    rates = summarize_window(record, Window(0, record.end_ns, finite=True)).throughput
    assert rates.output_tokens is not None
    assert rates.output_tokens * record.end_ns / 1e9 == pytest.approx(
        sum(each.num_output_tokens for each in record.requests)
    )


def test_every_request_has_ended_and_its_parts_add_up(run: tuple[Scenario, RunRecord]) -> None:
    for each in run[1].requests:
        assert each.outcome is not Outcome.UNFINISHED
        if each.outcome is Outcome.FINISHED:
            times = [
                each.queued_ns,
                each.sent_ns,
                each.arrival_ns,
                each.scheduled_ns,
                each.first_token_ns,
                each.finish_ns,
            ]
            assert times == sorted(times)


def test_shares_lie_between_nothing_and_all(run: tuple[Scenario, RunRecord]) -> None:
    metrics = summarize(run[1], run[0])
    server = metrics.server
    for share in (server.kv.mean, server.kv.max, server.busy, metrics.total.error_share):
        assert share is not None
        assert 0 <= share <= 1
    assert server.running.max is not None
    assert server.running.max <= run[1].max_num_seqs
    reasons = server.wait_reasons
    assert reasons.max_num_seqs + reasons.token_budget + reasons.kv_blocks == pytest.approx(
        1 if server.waiting.mean else 0
    )
