"""Qwen3-14B on one H100: the five published runs through the shipped profile, and each predicted from the others."""

from __future__ import annotations

from functools import cache

import pytest

from calibrate.comparison import Comparison
from calibrate.fit import FitOptions, request_cases
from calibrate.fit_requests import fit_requests
from calibrate.fit_terms import REQUEST_TERMS, ModelForm, start_terms
from calibrate.published import QWEN_H100_RUNS
from calibrate.readers import read_runs
from calibrate.replay import replay
from calibrate.replay_server import choose_server, describe_server
from sim.engine.profile import ErrorTable, load_profile
from sim.scenario.load import load_scenario
from sim.simulate import simulate
from tests.accuracy.shared import measurements, scored, sizes

pytestmark = pytest.mark.slow

NAME = "qwen3-14b-h100"
SCENARIO = """\
name: full
server:
  version: "0.23"
  model: Qwen/Qwen3-14B
  gpu: h100-80gb
  profile: qwen3-14b-h100
  flags: {max_num_batched_tokens: 8192, max_num_seqs: 256, num_gpu_blocks_override: 18038}
workload:
  kind: closed_loop
  num_requests: 6000
  max_concurrency: 256
  classes: [{name: chat, prompt_tokens: {uniform: {low: 950, high: 1022}}, output_tokens: 128}]
"""


@cache
def replayed(name: str) -> Comparison:
    folder = measurements(NAME)
    (run,) = read_runs(folder / f"{name}.csv.gz")
    deployment = choose_server(load_profile(NAME), folder / "server.json").plan()
    return replay(run, deployment, max_concurrency=256, window_s=(60.0, 600.0)).comparison


def held_out(name: str) -> ErrorTable:
    table = next(table for table in load_profile(NAME).errors if table.run == name)
    assert table.held_out
    return table


@pytest.mark.parametrize("name", QWEN_H100_RUNS)
def test_the_shipped_profile_predicts_the_run(name: str) -> None:
    table, saturated = replayed(name), name == "saturated18"
    median, worst = sizes(scored(table, saturated=saturated))
    assert median <= 1.5
    assert worst <= 10
    throughput = table.error_percent("request_throughput_per_s")
    assert throughput is not None
    assert abs(throughput) <= 2
    if saturated:
        ttft = table.error_percent("ttft_ms", "p90")
        assert ttft is not None
        assert abs(ttft) <= 12


@pytest.mark.parametrize("name", QWEN_H100_RUNS)
def test_the_run_was_predicted_from_the_others(name: str) -> None:
    """What the profile states of its errors: each run left out of the fit."""
    table, saturated = held_out(name), name == "saturated18"
    rows = {(row.metric, row.statistic): row.error_percent for row in table.rows}
    metrics = ("tpot_ms", "e2el_ms") if saturated else ("ttft_ms", "tpot_ms", "e2el_ms")
    median, worst = sizes([rows[metric, statistic] for metric in metrics for statistic in ("p50", "p90", "p99")])
    assert median <= 1.5
    assert worst <= 10
    assert abs(rows["request_throughput_per_s", None]) <= 2
    assert abs(rows["ttft_ms", "p90"]) <= 12


def test_fitting_again_gives_the_shipped_profile() -> None:
    """The whole fit, some ten minutes of CPU time; the terms agree within their stated errors."""
    folder = measurements(NAME)
    server = describe_server({"model": "Qwen/Qwen3-14B", "gpu": "h100-80gb"}, folder / "server.json")
    options = FitOptions("again", "published", window_s=(60.0, 600.0))
    cases = request_cases([folder / f"{name}.csv.gz" for name in QWEN_H100_RUNS], server, options)
    found = fit_requests(cases, start_terms(server.plan(), REQUEST_TERMS), ModelForm(), leave_one_out=False)
    shipped = load_profile(NAME).step_time
    for key in ("floor_us", "per_token_us", "per_decode_us", "per_decode_context_token_ns"):
        estimate = getattr(shipped, key)
        assert abs(found.values[key] - estimate.value) <= 3 * estimate.stderr + 0.002 * estimate.value, key


def test_a_closed_loop_of_256_finds_the_measured_capacity(tmp_path) -> None:
    path = tmp_path / "full.yaml"
    path.write_text(SCENARIO)
    record = simulate(load_scenario(path), seed=0)
    ends = sorted(request.finish_ns / 1e9 for request in record.requests)
    rate = sum(60 <= end < 300 for end in ends) / 240
    assert rate == pytest.approx(17.2, rel=0.02)
