"""Qwen3-14B on one H100: the five published runs through the shipped profile, and each predicted from the others."""

from __future__ import annotations

from pathlib import Path

import pytest

from calibrate.fit import FitOptions, request_cases
from calibrate.fit_requests import fit_requests
from calibrate.fit_terms import MIXED_TERMS, REQUEST_TERMS, ModelForm, start_terms
from calibrate.published import QWEN_H100_RUNS
from calibrate.readers import read_runs
from calibrate.replay import replay
from calibrate.replay_server import choose_server, describe_server
from sim.capacity import find_capacity
from sim.engine.profile import load_profile
from sim.scenario.load import load_scenario
from sim.simulate import simulate
from tests.accuracy.shared import LATENCIES, Bars, measurements, of_comparison, of_held_out, spreads

pytestmark = pytest.mark.accuracy

NAME = "qwen3-14b-h100"
CAPACITY_PER_S = 17.2
"""Completions per second of saturated18 over [60 s, 600 s], 256 requests in flight."""

SCENARIO = """\
name: full
server:
  version: "0.23"
  model: Qwen/Qwen3-14B
  gpu: h100-80gb
  profile: qwen3-14b-h100
  flags: {max_num_batched_tokens: 8192, max_num_seqs: 256, num_gpu_blocks_override: 18038}
"""
CLASSES = "  classes: [{name: chat, prompt_tokens: {uniform: {low: 950, high: 1022}}, output_tokens: 128}]\n"


def set_bars(bars: Bars, name: str) -> None:
    """The TTFT of a saturated run is judged at P90 alone, for its other percentiles are chance: equal requests that end
    together are replaced together, so the groups formed while the load came up persist to the end of the run."""
    if name == "saturated18":
        bars.median_and_worst([key for key in LATENCIES if key[0] != "ttft_ms"], median=1.5, worst=10)
        bars.each(("ttft_ms", "p90"), most=12)
    else:
        bars.median_and_worst(LATENCIES, median=1.5, worst=10)
    bars.each(("request_throughput_per_s", None), most=2)
    bars.check()


@pytest.mark.parametrize("name", QWEN_H100_RUNS)
def test_the_shipped_profile_predicts_the_run(name: str) -> None:
    folder, profile = measurements(NAME), load_profile(NAME)
    (run,) = read_runs(folder / f"{name}.csv.gz")
    deployment = choose_server(profile, folder / "server.json").plan()
    table = replay(run, deployment, max_concurrency=256, window_s=(60.0, 600.0)).comparison
    set_bars(of_comparison(name, table, spreads(profile.errors)), name)


@pytest.mark.parametrize("name", QWEN_H100_RUNS)
def test_the_run_was_predicted_from_the_others(name: str) -> None:
    set_bars(of_held_out(load_profile(NAME), name), name)


def test_fitting_again_gives_the_shipped_profile() -> None:
    """The whole fit, some minutes of CPU time; the terms agree within their stated errors."""
    folder = measurements(NAME)
    server = describe_server({"model": "Qwen/Qwen3-14B", "gpu": "h100-80gb"}, folder / "server.json")
    options = FitOptions("again", "published", window_s=(60.0, 600.0))
    cases = request_cases([folder / f"{name}.csv.gz" for name in QWEN_H100_RUNS], server, options)
    terms = start_terms(server.plan(), (*REQUEST_TERMS, *MIXED_TERMS))
    found = fit_requests(cases, terms, ModelForm(), leave_one_out=False)
    shipped = load_profile(NAME).step_time
    for key in ("floor_us", "per_token_us", "per_decode_us", "per_decode_context_token_ns", *MIXED_TERMS):
        estimate = getattr(shipped, key)
        assert abs(found.values[key] - estimate.value) <= 2 * estimate.stderr + 0.002 * estimate.value, key


def test_the_measured_client_with_lengths_drawn_anew_serves_what_was_measured(tmp_path: Path) -> None:
    """Poisson arrivals at 18/s, at most 256 in flight. (All 256 sent at once would stay in step for ever, eight prompts
    a step: 17.7/s.)"""
    measurements(NAME)
    path = tmp_path / "full.yaml"
    loop = "workload:\n  kind: closed_loop\n  num_requests: 11000\n  request_rate: 18\n  max_concurrency: 256\n"
    path.write_text(SCENARIO + loop + CLASSES)
    record = simulate(load_scenario(path), seed=0)
    ends = [request.finish_ns / 1e9 for request in record.requests]
    bars = Bars("the same client, simulated", {})
    bars.number("requests/s", sum(60 <= end < 600 for end in ends) / 540, CAPACITY_PER_S, percent=2)
    bars.check()


def test_the_capacity_search_finds_the_measured_rate_with_256_in_flight(tmp_path: Path) -> None:
    """Poisson arrivals on a server that runs 256 requests at once: beyond its capacity they wait ever longer."""
    measurements(NAME)
    path = tmp_path / "poisson.yaml"
    loop = "workload:\n  kind: open_loop\n  num_requests: 10000\n  request_rate: 16\n"
    search = "objectives: [ttft.p90 <= 2s]\nsearch: {vary: request_rate, from: 14, to: 22}\nrun: {seeds: 3}\n"
    path.write_text(SCENARIO + loop + CLASSES + search)
    result = find_capacity(load_scenario(path), simulate)
    bars = Bars("capacity search", {})
    assert result.value is not None
    bars.number("requests/s", result.value, CAPACITY_PER_S, percent=2)
    bars.check()
