"""Case 25: one small GPU, measured completely, replayed with its profile."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from sim.results.metrics import RunMetrics, summarize
from sim.scenario.load import scenario_from_text
from sim.simulate import simulate

SCENARIO = """\
name: baseline
server:
  version: "0.23.0"
  model: Qwen/Qwen2.5-0.5B-Instruct
  gpu: l4
  profile: qwen2.5-0.5b-l4
  flags: {gpu_memory_utilization: 0.6, max_model_len: 8192}
workload:
  kind: closed_loop
  num_requests: 20
  max_concurrency: 1
  classes: [{name: only, prompt_tokens: 256, output_tokens: 128}]
"""


@dataclass(frozen=True)
class Measured:
    requests_per_s: float
    tokens_per_s: float
    ttft_ms: float
    itl_ms: float
    e2el_ms: float


GIVEN = {
    1: Measured(1.3, 168, 27.0, 5.1, 679),
    2: Measured(2.9, 367, 37.8, 5.2, 698),
    4: Measured(5.4, 698, 50.1, 5.3, 722),
    8: Measured(10.2, 1312, 60.9, 5.5, 772),
    16: Measured(17.8, 2277, 103.8, 6.0, 880),
    32: Measured(29.5, 3773, 135.3, 7.1, 1082),
}


@pytest.fixture(scope="module")
def replay() -> dict[int, RunMetrics]:
    """Returns the closed loop at each concurrency, ten requests for each in flight, twenty at least."""
    runs = {}
    for concurrency in GIVEN:
        number = max(20, 10 * concurrency)
        changes = [f"workload.num_requests={number}", f"workload.max_concurrency={concurrency}"]
        case = scenario_from_text(SCENARIO, overrides=changes)
        runs[concurrency] = summarize(simulate(case, seed=0), case)
    return runs


def p50(metrics: RunMetrics, kind: str) -> float:
    value = metrics.total.latency[kind].percentiles[50.0]
    assert value is not None
    return value


@pytest.mark.parametrize("concurrency", GIVEN)
def test_case_25_itl_and_e2e(replay: dict[int, RunMetrics], concurrency: int) -> None:
    """ITL p50 within 1 % and E2E p50 within 2 % at every concurrency."""
    assert p50(replay[concurrency], "itl") == pytest.approx(GIVEN[concurrency].itl_ms, rel=0.01)
    assert p50(replay[concurrency], "e2el") == pytest.approx(GIVEN[concurrency].e2el_ms, rel=0.02)


@pytest.mark.parametrize("concurrency", [2, 4, 8, 16, 32])
def test_case_25_throughput(replay: dict[int, RunMetrics], concurrency: int) -> None:
    """Requests and tokens per second within 4 %."""
    throughput = replay[concurrency].throughput
    assert throughput.completed == pytest.approx(GIVEN[concurrency].requests_per_s, rel=0.04)
    assert throughput.output_tokens == pytest.approx(GIVEN[concurrency].tokens_per_s, rel=0.04)


def test_case_25_throughput_of_one_user(replay: dict[int, RunMetrics]) -> None:
    """One user gets 128 tokens an E2E: 189/s. The 168/s measured hold a slow start (TTFT p95 115.5 ms against 27)."""
    assert replay[1].throughput.output_tokens == pytest.approx(1000 * 128 / GIVEN[1].e2el_ms, rel=0.01)
    assert replay[1].throughput.output_tokens == pytest.approx(GIVEN[1].tokens_per_s, rel=0.14)


@pytest.mark.parametrize("concurrency", GIVEN)
def test_case_25_ttft(replay: dict[int, RunMetrics], concurrency: int) -> None:
    """TTFT p50 within 17 %: equal requests stay in lockstep here, while real clients drift apart."""
    assert p50(replay[concurrency], "ttft") == pytest.approx(GIVEN[concurrency].ttft_ms, rel=0.17)


@pytest.mark.parametrize("concurrency", GIVEN)
def test_case_25_e2e_is_ttft_and_127_gaps(replay: dict[int, RunMetrics], concurrency: int) -> None:
    """27 + 127 x 5.1 = 675; 135 + 127 x 7.1 = 1037: within 5 %, as in the measured numbers."""
    metrics = replay[concurrency]
    assert p50(metrics, "ttft") + 127 * p50(metrics, "itl") == pytest.approx(p50(metrics, "e2el"), rel=0.05)


def test_case_25_the_server_is_far_from_its_limits(replay: dict[int, RunMetrics]) -> None:
    """KV peak 1.1 %, waiting 0 (but for the step in which 32 prompts of 256 exceed the budget), no preemption."""
    server = replay[32].server
    assert server.kv.max == pytest.approx(0.011, abs=0.002)
    assert server.waiting.mean is not None
    assert server.waiting.mean < 1.5
    assert server.num_preemptions == 0
    assert all(metrics.calibrated and not metrics.warnings for metrics in replay.values())
