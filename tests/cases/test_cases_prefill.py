"""Cases 15, 19 and 20: prompts cost time, not memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sim.capacity import find_capacity
from sim.deployment import plan
from sim.results.metrics import RunMetrics
from sim.scenario.model import Scenario
from sim.simulate import simulate
from tests.cases.build import diagnosed, measured, one_class, scenario, write_profile

# ---- case 15: "Maximum concurrency 26x", but it slows down at 5 users ----

PREFILL_TOKENS_PER_S = 16_000 / 3.345


def awq_14b(folder: Path, workload: dict[str, Any], **rest: Any) -> Scenario:
    """Qwen3-14B-AWQ on an A100, 16,000 in and 200 out: 4,783 prompt tokens/s, 20.63 ms a token, a pool of 26x."""
    write_profile(folder, floor_us=20_630, per_token_us=1e6 / PREFILL_TOKENS_PER_S)
    return scenario(
        folder,
        {**workload, "classes": one_class(16_000, 200)},
        objectives=["ttft.p95 <= 10s"],
        max_model_len=16_384,
        max_num_batched_tokens=2048,
        num_gpu_blocks_override=26 * 1024 + 1,
        **rest,
    )


def benchmark(folder: Path, concurrency: int, num_requests: int) -> RunMetrics:
    """The benchmark of the case: one request a second, at most so many in flight."""
    workload = {"kind": "closed_loop", "num_requests": num_requests, "request_rate": 1, "max_concurrency": concurrency}
    return measured(awq_14b(folder, workload))[1]


def test_case_15_the_concurrency_line_says_26(tmp_path: Path) -> None:
    """The log line is right: 26 requests of 16,384 tokens do fit."""
    deployment = plan(awq_14b(tmp_path, {"kind": "closed_loop", "num_requests": 1}))
    assert "16,384 tokens per request: 26.00x" in deployment.memory.max_concurrency_line


def test_case_15_one_user(tmp_path: Path) -> None:
    """c=1: TTFT 3345 ms, TPOT 20.63 ms."""
    one = benchmark(tmp_path, 1, 5)
    assert one.total.latency["ttft"].percentiles[50.0] == pytest.approx(3345, rel=0.001)
    assert one.total.latency["tpot"].percentiles[50.0] == pytest.approx(20.63, rel=0.001)


def test_case_15_the_speed_a_user_sees_falls_long_before_26(tmp_path: Path) -> None:
    """52 -> 12 (c5) -> 3 tok/s (c25), TTFT 34 s, while nothing is ever preempted or short of KV blocks."""
    for concurrency, given in ((1, 52), (5, 12), (25, 3)):
        metrics = benchmark(tmp_path, concurrency, 50)
        tpot = metrics.total.latency["tpot"].mean
        assert tpot is not None
        assert 1000 / tpot == pytest.approx(given, rel=0.1)
        assert metrics.server.num_preemptions == 0
        assert metrics.server.wait_reasons.kv_blocks == 0
    first_wave = benchmark(tmp_path, 25, 25)
    assert first_wave.total.latency["ttft"].mean == pytest.approx(34_000, rel=0.1)


def test_case_15_no_concurrency_gives_more_than_030_requests_per_s(tmp_path: Path) -> None:
    """16,000 tokens at 4,783 tok/s: at most 0.30 requests/s, however many are in flight."""
    rates = [benchmark(tmp_path, concurrency, 50).throughput.completed or 0 for concurrency in (1, 5, 25, 50)]
    assert rates == sorted(rates)
    assert rates[-1] <= PREFILL_TOKENS_PER_S / 16_000 < 0.30
    assert rates[-1] > 0.27


def test_case_15_one_request_a_second_is_an_overload(tmp_path: Path) -> None:
    """Offered 1 request/s, 3.3 times what it can do: the queue grows for ever, and the diagnosis is the prompts."""
    run = {"duration": "10min", "warm_up": "60s", "seeds": 1}
    metrics, diagnosis = diagnosed(awq_14b(tmp_path, {"kind": "open_loop", "request_rate": 1}, run=run))
    assert metrics.overload is not None
    assert metrics.throughput.completed is not None
    assert metrics.throughput.completed <= 0.30
    assert diagnosis is not None
    assert diagnosis.resource == "token_budget"


def test_case_15_the_capacity_is_a_rate_not_a_concurrency(tmp_path: Path) -> None:
    """The search ends below 0.30 requests/s, on prompts that arrive as fast as they can be read."""
    search = {"vary": "request_rate", "from": 0.05, "to": 2, "resolution": 0.02}
    run = {"duration": "10min", "warm_up": "2min", "seeds": 1}
    case = awq_14b(tmp_path, {"kind": "open_loop"}, search=search, run=run)
    result = find_capacity(case, simulate)
    assert result.value is not None
    assert 0.1 < result.value < 0.30
    assert result.diagnosis is not None
    assert result.diagnosis.resource == "token_budget"


# ---- case 19: what does prefix caching really buy? ----


def rtx_4080(folder: Path, concurrency: int, output_tokens: int, *, hit: bool) -> RunMetrics:
    """2,930 in; steps of 9.22 ms + 178.4 us a token, from TTFT 541.6 and ITL 9.40 ms of one user without hits.

    A hit is a shared prefix of 2,921 tokens (99.7 %). 32 requests, the first of which fills the cache.
    """
    write_profile(folder, floor_us=9_222, per_token_us=178.4, overlap=0)
    prompt = one_class(9, output_tokens, shared_prefix={"tokens": 2_921}) if hit else one_class(2_930, output_tokens)
    workload = {"kind": "closed_loop", "num_requests": 32, "max_concurrency": concurrency, "classes": prompt}
    server = {"version": "0.26.0", "gpu": "rtx-4080", "memory": {"weights_gib": 5.2}}
    return measured(scenario(folder, workload, server=server, max_model_len=8192, kv_cache_memory_bytes="4GiB"))[1]


def ttft_ms(metrics: RunMetrics) -> float:
    """The median: what users see once the cache is warm."""
    ttft = metrics.total.latency["ttft"].percentiles[50.0]
    assert ttft is not None
    return ttft


def output_rate(metrics: RunMetrics) -> float:
    assert metrics.throughput.output_tokens is not None
    return metrics.throughput.output_tokens


def test_case_19_one_user(tmp_path: Path) -> None:
    """c1 miss: TTFT 541.6 ITL 9.40 -> 95.7 tok/s; hit 26.3/9.44 -> 105.8: within 1 % (TTFT of a hit: half)."""
    miss, hit = rtx_4080(tmp_path, 1, 512, hit=False), rtx_4080(tmp_path, 1, 512, hit=True)
    assert ttft_ms(miss) == pytest.approx(541.6, rel=0.002)
    assert miss.total.latency["itl"].mean == pytest.approx(9.40, rel=0.002)
    assert output_rate(miss) == pytest.approx(95.7, rel=0.01)
    assert ttft_ms(hit) < 26.3
    assert hit.total.latency["itl"].mean == pytest.approx(9.44, rel=0.005)
    assert output_rate(hit) == pytest.approx(105.8, rel=0.01)


@pytest.mark.parametrize(("output_tokens", "miss", "hit"), [(512, 398.7, 740.1), (128, 174.1, 641.8)])
def test_case_19_eight_users(tmp_path: Path, output_tokens: int, miss: float, hit: float) -> None:
    """c8: 398.7 -> 740.1 tok/s; with 128 out 174.1 -> 641.8: within 7 %, from the numbers of one user alone."""
    assert output_rate(rtx_4080(tmp_path, 8, output_tokens, hit=False)) == pytest.approx(miss, rel=0.07)
    assert output_rate(rtx_4080(tmp_path, 8, output_tokens, hit=True)) == pytest.approx(hit, rel=0.07)


def test_case_19_the_ttft_gain_depends_on_the_hit_rate_alone(tmp_path: Path) -> None:
    """TTFT falls by the same factor whatever the answer's length; throughput gains 10 %, 85 % or 270 %."""
    factors, gains = [], []
    for concurrency, output_tokens in ((1, 512), (1, 128), (8, 512), (8, 128)):
        miss = rtx_4080(tmp_path, concurrency, output_tokens, hit=False)
        hit = rtx_4080(tmp_path, concurrency, output_tokens, hit=True)
        factors.append(ttft_ms(miss) / ttft_ms(hit))
        gains.append(output_rate(hit) / output_rate(miss))
    assert factors[0] == pytest.approx(factors[1])
    assert factors[2] == pytest.approx(factors[3], rel=0.01)
    assert min(factors) > 20
    assert gains[0] == pytest.approx(105.8 / 95.7, rel=0.01)
    assert gains[2] == pytest.approx(740.1 / 398.7, rel=0.08)
    assert gains[3] == pytest.approx(641.8 / 174.1, rel=0.02)


def test_case_19_the_hit_rate_is_counted(tmp_path: Path) -> None:
    """99.7 % of a prompt is shared, in whole blocks 99.4 %; the first of 32 requests finds nothing."""
    hit = rtx_4080(tmp_path, 1, 128, hit=True)
    assert hit.server.prefix_hit_rate == pytest.approx(31 / 32 * 2912 / 2930)
    assert rtx_4080(tmp_path, 1, 128, hit=False).server.prefix_hit_rate == 0


# ---- case 20: requests queue at KV 16.2 % ----


def replica(folder: Path, prompt: int, output: int, rate: float, *, objective: str, max_num_seqs: int) -> Scenario:
    """One of the ten replicas: 4,000 prompt tokens/s, and a pool of which 16 requests of 1,250 tokens are 16.2 %."""
    write_profile(folder, floor_us=25_000, per_token_us=250)
    return scenario(
        folder,
        {"kind": "open_loop", "request_rate": rate, "classes": one_class(prompt, output)},
        objectives=[objective],
        run={"duration": "300s", "warm_up": "60s", "seeds": 1},
        max_model_len=8192,
        max_num_batched_tokens=2048,
        max_num_seqs=max_num_seqs,
        num_gpu_blocks_override=round(16 * 1_250 / 0.162 / 16) + 1,
    )


def test_case_20_sixteen_seats_are_full_at_16_percent_of_the_pool(tmp_path: Path) -> None:
    """1000/250 tokens, 16 running: the queue grows at KV 16.2 %, and the diagnosis is not the KV cache."""
    metrics, diagnosis = diagnosed(replica(tmp_path, 1_000, 250, 3.5, objective="ttft.p95 <= 2s", max_num_seqs=16))
    assert metrics.server.kv.max == pytest.approx(0.162, abs=0.005)
    assert metrics.overload is not None
    assert diagnosis is not None
    assert diagnosis.resource == "max_num_seqs"
    assert f"KV cache {100 * (metrics.server.kv.mean or 0):.3g} % used on average" in diagnosis.evidence


@pytest.mark.parametrize("objective", ["ttft.p95 <= 2s", "queue.p95 <= 1s"])
def test_case_20_prefill_heavy_traffic_queues_at_low_kv(tmp_path: Path, objective: str) -> None:
    """KV occupancy is a stock, prefill a rate: prompts of 4,000 tokens at 1.1/s queue just as well."""
    metrics, diagnosis = diagnosed(replica(tmp_path, 4_000, 5, 1.1, objective=objective, max_num_seqs=256))
    assert metrics.server.waiting.mean is not None
    assert metrics.server.waiting.mean > 1
    assert metrics.server.kv.mean is not None
    assert metrics.server.kv.mean < 0.162
    assert metrics.server.num_preemptions == 0
    assert diagnosis is not None
    assert diagnosis.resource == "token_budget"
    assert "KV cache" in diagnosis.evidence  # shown beside the cause, not as the cause
