"""Results of benchmark tools become runs: `vllm bench serve`, GuideLLM, LLMServingSim."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from calibrate.readers import detect_run_format, read_runs
from sim.errors import UserError


def bench(**changes: Any) -> dict[str, Any]:
    """A result of `vllm bench serve --save-detailed` with three requests, the second of which failed."""
    return {
        "max_concurrency": 2,
        "start_times": [11.0, 10.0, 12.0],
        "input_lens": [100, 50, 70],
        "output_lens": [3, 1, 2],
        "ttfts": [0.5, 0.0, 0.25],
        "itls": [[0.1, 0.2], [], [0.05]],
        "errors": ["", "timeout", ""],
    } | changes


def guide(**changes: Any) -> dict[str, Any]:
    """A GuideLLM report with one benchmark of two requests."""
    requests = [
        {
            "request_start_time": 1000.0 + i,
            "prompt_tokens": 10,
            "output_tokens": 5,
            "time_to_first_token_ms": 50.0,
            "request_latency": 0.5,
            "info": {"timings": {"targeted_start": 999.5 + i}},
        }
        for i in range(2)
    ]
    benchmark = {
        "config": {"strategy": {"type_": "concurrent", "streams": 4}},
        "requests": {"successful": requests, "errored": []},
        "metrics": {"request_totals": {"successful": 2}},
    }
    return {"benchmarks": [benchmark | changes]}


def write(path: Path, content: Any) -> Path:
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_a_vllm_result_keeps_the_requests_that_succeeded(tmp_path: Path) -> None:
    run = read_runs(write(tmp_path / "r.json", bench()))[0]
    assert run.max_concurrency == 2
    assert run.requests.prompt_tokens.tolist() == [100, 70]
    assert run.ttft_s is not None
    assert run.ttft_s.tolist() == [0.5, 0.25]
    assert run.e2el_s is not None
    np.testing.assert_allclose(run.e2el_s, [0.8, 0.3])
    assert run.itl_s is not None
    assert sorted(run.itl_s) == [0.05, 0.1, 0.2]
    assert "1 failed requests" in run.warnings[0]


def test_a_vllm_result_is_sorted_by_its_sends(tmp_path: Path) -> None:
    run = read_runs(write(tmp_path / "r.json", bench(start_times=[12.0, 11.0, 10.0])))[0]
    assert run.requests.prompt_tokens.tolist() == [70, 100]
    assert run.ttft_s is not None
    assert run.ttft_s.tolist() == [0.25, 0.5]


def test_a_guidellm_report_gives_a_run_a_benchmark(tmp_path: Path) -> None:
    (run,) = read_runs(write(tmp_path / "g.json", guide()))
    assert run.max_concurrency == 4
    assert run.e2el_s is not None
    assert run.e2el_s.tolist() == [0.5, 0.5]
    assert run.requests.wanted_ns is not None
    assert run.requests.wanted_ns.tolist() == [0, 1_000_000_000]
    assert run.requests.sent_ns.tolist() == [500_000_000, 1_500_000_000]


def test_an_older_guidellm_report_is_read_too(tmp_path: Path) -> None:
    old = {
        "start_time": 7.0,
        "first_token_time": 7.25,
        "end_time": 8.0,
        "prompt_tokens": 4,
        "output_tokens": 2,
    }
    report = {"benchmarks": [{"requests": [old]}, {"requests": {"successful": []}}]}
    (run,) = read_runs(write(tmp_path / "g.json", report))
    assert run.name == "g[0]"
    assert run.ttft_s is not None
    assert run.ttft_s.tolist() == [0.25]


def test_a_sampled_guidellm_report_is_warned_of(tmp_path: Path) -> None:
    report = guide(metrics={"request_totals": {"successful": 50}})
    (run,) = read_runs(write(tmp_path / "g.json", report))
    assert "2 of 50 successful requests" in run.warnings[0]


def test_a_published_engine_run_counts_from_its_queue_and_shares_prefixes(tmp_path: Path) -> None:
    rows = [
        {
            "arrival_time": 100.0 + i,
            "queued_ts": 5.0 + i,
            "first_token_ts": 5.5 + i,
            "last_token_ts": 6.0 + i,
            "input_toks": 40,
            "output_toks": 3,
        }
        for i in range(2)
    ]
    prompts = [{"input_toks": 40, "output_toks": 3, "input_tok_ids": [*range(32), *[i] * 8]} for i in range(2)]
    path = write(tmp_path / "requests.jsonl", "\n".join(map(json.dumps, rows)))
    data = write(tmp_path / "data.jsonl", "\n".join(map(json.dumps, prompts)))
    assert detect_run_format(path) == "llmservingsim"
    run = read_runs(path, prompts=data)[0]
    assert run.ttft_s is not None
    assert run.ttft_s.tolist() == [0.5, 0.5]
    assert run.requests.block_hashes is not None
    assert run.requests.block_hashes.tolist() == [0, 1, 0, 1]
    assert "nothing is cached" in read_runs(path)[0].warnings[0]
    other = write(tmp_path / "other.jsonl", json.dumps(prompts[0]))
    with pytest.raises(UserError, match="not the requests of"):
        read_runs(path, prompts=other)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "empty"),
        ('{"start_times": [1.0', "not JSON"),
        (json.dumps(bench())[:-40], "the file ends too early: is it complete?"),
        ("{}", "missing; run `vllm bench serve` with --save-detailed"),
        (bench(ttfts=[0.5]), "ttfts: 1 entries, but there are 3 requests"),
        (bench(ttfts=[-1, 0, 0]), "ttfts: got -1 at [0]; expected a number of seconds"),
        (bench(itls=[["x"], [], []]), "itls: got ['x'] at [0]"),
        (bench(ttfts=[500, 0, 250], itls=[[100, 200], [], [50]]), "s a token (median) cannot be"),
        (guide(requests={}), "benchmarks[0].requests.successful is missing"),
        (guide(requests={"successful": [{"request_start_time": 1.0}]}), "missing; expected a GuideLLM report"),
        ({"benchmarks": []}, "no successful requests in any of them"),
        ('{"queued_ts": 1}\n', "arrival_time: got None"),
        ('{"queued_ts": 1, "arriv', "is the file complete?"),
    ],
)
def test_a_bad_result_is_one_clear_line(tmp_path: Path, content: Any, message: str) -> None:
    with pytest.raises(UserError) as error:
        read_runs(write(tmp_path / "r.json", content))
    assert message in str(error.value)
    assert "\n" not in str(error.value)
