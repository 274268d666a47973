"""A simulated run prints and saves what `vllm bench serve` would, number by number."""

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest

from reports.bench_serve import BenchSettings, bench_result, render_console, render_json
from reports.token_times import TokenTimes
from sim.records import Outcome, RunRecord
from sim.scenario.load import scenario_from_text
from sim.workload.traces import read_trace
from tests.factories import shared_folder
from tests.reports.worlds import WORLDS, run
from tests.sim.results.toys import MS, S, add_gaps, add_step, empty_run, finished, request


def toy() -> RunRecord:
    """Three answers and a timeout: 3 tokens 10 ms apart, 2 tokens 30 ms apart, one token."""
    record = empty_run()
    record.requests += [
        finished(0, 0, 100 * MS, decode_ns=20 * MS, tokens=3, num_prompt_tokens=10),
        finished(1, 500 * MS, 200 * MS, decode_ns=30 * MS, tokens=2, num_prompt_tokens=20, queued_ns=400 * MS),
        finished(2, 2 * S, 50 * MS, num_prompt_tokens=30),
        request(3, 2 * S, outcome=Outcome.TIMED_OUT, finish_ns=4 * S),
    ]
    for end in (100 * MS, 110 * MS, 120 * MS, 700 * MS, 730 * MS, 2050 * MS):
        add_step(record, end - 5 * MS, end)
    for end, gap in ((110 * MS, 10 * MS), (120 * MS, 10 * MS), (730 * MS, 30 * MS)):
        add_gaps(record, end, gap, 1)
    record.end_ns = record.arrivals_end_ns = 4 * S
    return record


def test_the_block_is_vllms_line_by_line() -> None:
    settings = BenchSettings("m", request_rate=2.0, max_concurrency=4, goodput_s={"ttft": 0.15})
    assert render_console(bench_result(toy(), settings)).splitlines()[:14] == [
        "============ Serving Benchmark Result ============",
        "Successful requests:                     3         ",
        "Failed requests:                         1         ",
        "Maximum request concurrency:             4         ",
        "Request rate configured (RPS):           2.00      ",
        "Benchmark duration (s):                  4.00      ",
        "Total input tokens:                      60        ",
        "Total generated tokens:                  6         ",
        "Request throughput (req/s):              0.75      ",
        "Request goodput (req/s):                 0.50      ",
        "Output token throughput (tok/s):         1.50      ",
        "Peak output token throughput (tok/s):    5.00      ",
        "Peak concurrent requests:                2.00      ",
        "Total token throughput (tok/s):          16.50     ",
    ]


def test_sections_have_their_headers_and_all_lines_their_width() -> None:
    lines = render_console(bench_result(toy(), BenchSettings("m"))).splitlines()
    assert "---------------Time to First Token----------------" in lines
    assert "-----Time per Output Token (excl. 1st token)------" in lines
    assert "---------------Inter-token Latency----------------" in lines
    assert "----------------End-to-end Latency----------------" in lines
    assert lines[-1] == "=" * 50
    assert not any(line.startswith(("Maximum request", "Request rate", "Request goodput")) for line in lines)
    assert all(len(line) in (50, 51) for line in lines)


def test_every_statistic_is_numpys() -> None:
    statistics = bench_result(toy(), BenchSettings("m"))
    ttft = np.array([100.0, 200.0, 50.0])
    found = statistics.statistics("ttft")
    assert found["mean_ttft_ms"] == pytest.approx(ttft.mean())
    assert found["median_ttft_ms"] == pytest.approx(np.median(ttft))
    assert found["std_ttft_ms"] == pytest.approx(ttft.std())
    assert found["p99_ttft_ms"] == pytest.approx(np.percentile(ttft, 99))
    assert statistics.statistics("tpot")["mean_tpot_ms"] == pytest.approx((10 + 30) / 2)  # one token has none
    assert statistics.statistics("itl")["mean_itl_ms"] == pytest.approx((10 + 10 + 30) / 3)
    assert statistics.statistics("itl")["p90_itl_ms"] == pytest.approx(np.percentile([10, 10, 30], 90))


def test_a_run_without_answers_has_zeros_as_vllm_prints_them() -> None:
    record = empty_run()
    record.end_ns = S
    text = render_console(bench_result(record, BenchSettings("m")))
    assert "Successful requests:                     0" in text
    assert "nan" not in text
    json.loads(render_json(bench_result(record, BenchSettings("m"))))


def test_goodput_counts_a_single_token_as_a_tpot_of_zero() -> None:
    result = bench_result(toy(), BenchSettings("m", goodput_s={"tpot": 0.001}))
    assert result.request_goodput == pytest.approx(1 / 4)


def test_the_detailed_file_puts_every_request_together_again() -> None:
    record = run("bench").run
    result = bench_result(record, BenchSettings("m", max_concurrency=8))
    data = json.loads(render_json(result, record))
    for index, each in enumerate(record.requests):
        assert len(data["itls"][index]) == each.num_output_tokens - 1
        assert data["ttfts"][index] + sum(data["itls"][index]) == pytest.approx(data["latencies"][index], abs=1e-6)
    gaps = [gap for gaps in data["itls"] for gap in gaps]
    logged = sorted(np.repeat(np.array(record.itl.gap_ns), np.array(record.itl.count)) / 1e9)
    assert sorted(gaps) == pytest.approx(logged, abs=1e-9)  # no request paused, so every gap is exact
    assert data["completed"] == 100
    assert data["p99_ttft_ms"] == pytest.approx(1000 * np.percentile(data["ttfts"], 99))


def test_a_delay_before_the_clients_eyes_is_found() -> None:
    record = toy()
    for each in record.requests[:3]:
        each.first_token_ns += 7 * MS
        each.finish_ns += 7 * MS
    assert TokenTimes.of(record).response_ns == 7 * MS
    assert TokenTimes.of(record).gaps_of(record.requests[0]) == [0.01, 0.01]


def test_a_request_that_paused_has_gaps_of_the_right_sum() -> None:
    record = toy()
    add_step(record, 725 * MS, 726 * MS)  # a step between its two tokens
    (gap,) = TokenTimes.of(record).gaps_of(record.requests[1])
    assert gap == 0.03


def test_our_own_trace_reader_reads_the_detailed_file(tmp_path: Path) -> None:
    record = run("bench").run
    path = tmp_path / "result.json"
    path.write_text(render_json(bench_result(record, BenchSettings("m")), record))
    trace = read_trace(path, "vllm_bench")
    assert trace.prompt_tokens.tolist() == [each.num_prompt_tokens for each in record.requests]
    assert trace.output_tokens.tolist() == [each.num_output_tokens for each in record.requests]


@pytest.mark.parametrize(
    ("world", "changes", "load", "expected"),
    [
        ("bench", (), None, (math.inf, 1.0, 8)),
        ("bench", ("workload.request_rate=3", "workload.burstiness=0.5"), None, (3.0, 0.5, 8)),
        ("public", (), None, (2.0, 1.0, None)),
        ("public", ("workload.arrivals={gamma: {burstiness: 0.25}}",), None, (2.0, 0.25, None)),
        ("chat", (), None, (math.inf, 1.0, None)),
    ],
)
def test_settings_are_those_of_the_scenario(
    world: str, changes: tuple[str, ...], load: float | None, expected: tuple[float, float, int | None]
) -> None:
    settings = BenchSettings.of(scenario_from_text(WORLDS[world], overrides=changes), load)
    assert (settings.request_rate, settings.burstiness, settings.max_concurrency) == expected


def test_the_varied_load_is_the_setting() -> None:
    changes = ["search={vary: max_concurrency, from: 1, to: 64}", "objectives=['ttft.p95 <= 1s']"]
    scenario = scenario_from_text(WORLDS["bench"], overrides=changes)
    settings = BenchSettings.of(scenario, 32)
    assert (settings.max_concurrency, settings.goodput_s) == (32, {"ttft": 1.0})


def test_keys_and_their_order_are_those_of_a_real_result() -> None:
    folder = shared_folder()
    if folder is None or not (folder / "data" / "vllm-cpu-0.32").is_dir():
        pytest.skip("the results of a real vLLM 0.32 are not here (HEADCOUNT_SHARED)")
    real = json.loads((folder / "data" / "vllm-cpu-0.32" / "runs" / "A_mnbt512_kv64k__c4.json").read_text())
    record = run("bench").run
    ours = json.loads(render_json(bench_result(record, BenchSettings("m", max_concurrency=8)), record))
    stripped = {"generated_texts", "errors"}  # left out of the stored files
    assert [key for key in ours if key not in stripped] == list(real)


def test_no_line_of_the_block_depends_on_the_locale() -> None:
    text = render_console(bench_result(run("bench").run, BenchSettings("m")))
    assert not re.search(r"\d,\d", text)
