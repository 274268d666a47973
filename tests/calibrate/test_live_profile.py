"""A profile from an observation: the fit finds the cost that made the steps; what cannot be fitted is no profile."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from calibrate.http_client import ServedModel
from calibrate.live_driver import LiveRun
from calibrate.live_latency import measure_latency, measure_serial_ns
from calibrate.live_profile import make_profile, phase_errors, steps_of
from calibrate.live_report import calibration_report
from calibrate.observe import Observation, PhaseResult, collect_steps, requests_file, write_requests
from calibrate.plan import Phase, PlannedRequest
from calibrate.step_reader import read_steps
from calibrate.step_record import StepRecord
from sim.cli.calibrate import calibrate
from sim.core.request import Request
from sim.engine.profile import load_profile, save_profile
from sim.errors import UserError
from sim.records import Outcome, RequestRecord, RunRecord
from tests.calibrate.fake_server import FakeServer
from tests.calibrate.simulated_record import Arrival, RecordedSimulation

MS = 1_000_000
SEND_NS, SEE_NS = 3 * MS, 2 * MS  # what the client waits for besides the engine


@pytest.fixture
def observed(tmp_path: Path) -> Observation:
    """One phase of single requests, as a client saw it whose requests take 3 ms to come and tokens 2 ms to be seen."""
    requests = tuple(PlannedRequest(10 + 7 * i, 8) for i in range(12))
    prompts = [((i, request.own_tokens),) for i, request in enumerate(requests)]
    arrivals = [Arrival(10_000 + i * 60_000, Request(i, p, 8, i, 100 + i)) for i, p in enumerate(prompts)]
    path = tmp_path / "steps.jsonl"
    simulation = RecordedSimulation(path, arrivals, max_num_batched_tokens=256)
    record = _described(read_steps(path))
    run = RunRecord(("single",), 0, 0, 0, 0, 1, True)
    names = []
    for added in record.added:
        steps = [step for step in record.steps if added.number in step.numbers]
        run.requests.append(
            RequestRecord(
                request_id=added.number,
                class_id=0,
                user_id=-1,
                turn=0,
                replica=0,
                queued_ns=0,
                sent_ns=added.time_ns - SEND_NS,
                num_prompt_tokens=added.num_prompt_tokens,
                max_tokens=8,
                first_token_ns=_end(steps[0]) + SEE_NS,
                finish_ns=_end(steps[-1]) + SEE_NS,
                num_output_tokens=8,
                outcome=Outcome.FINISHED,
            )
        )
        names.append(f"hc-1-single-{added.number}")
    assert len(simulation.vllm) == 12
    run.end_ns = max(request.finish_ns for request in run.requests)
    live = LiveRun(run, 0, names, Counter())
    result = PhaseResult(Phase("single", "low", requests, 1), live, {})
    return Observation("http://x", ServedModel("tiny"), "0.32.0", None, [result], record)


def _end(step: Any) -> int:
    assert step.end_ns is not None
    return int(step.end_ns)


def _described(record: StepRecord) -> StepRecord:
    """Names requests as vLLM does after the client's X-Request-Id, and adds what its recorder says of the server."""
    record.added = [replace(r, name=f"cmpl-hc-1-single-{r.number}-0-ab12") for r in record.added]
    sizes = dict.fromkeys(("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size"), 1)
    record.server |= {"vllm": "0.32.0", "dtype": "float32", "enforce_eager": True, **sizes}
    return record


def test_the_clients_latency_is_seen_in_requests_that_found_the_engine_idle(observed: Observation) -> None:
    assert observed.steps is not None
    latency = measure_latency(observed.phases, observed.steps)
    assert latency.num_requests == 12
    assert latency.request_ns == pytest.approx(SEND_NS, abs=2_000)
    assert latency.response_ns == pytest.approx(SEE_NS, abs=2_000)
    assert latency.per_prompt_token_ns == pytest.approx(0, abs=50)


def test_clocks_of_two_machines_give_no_latency(observed: Observation) -> None:
    assert observed.steps is not None
    observed.steps.added = [replace(r, time_ns=r.time_ns + 10**14) for r in observed.steps.added]
    assert measure_latency(observed.phases, observed.steps).num_requests == 0


def test_requests_sent_at_once_show_how_far_apart_they_reach_the_server(observed: Observation) -> None:
    """Three loops begin with four at once: two with 0.25 ms between them, one with a hiccup."""
    record, only = observed.steps, observed.phases[0]
    assert record is not None
    assert measure_serial_ns([only], record) == 0  # one at a time
    names = only.live.names
    four = replace(only.phase, max_concurrency=4)
    loops = [replace(only, phase=four, live=replace(only.live, names=names[i : i + 4])) for i in (0, 4, 8)]
    record.added = [
        replace(request, arrival_ns=request.number * MS // 4 + (9 * MS if request.number == 11 else 0))
        for request in record.added
    ]
    assert measure_serial_ns(loops, record) == pytest.approx(MS / 4)
    assert measure_serial_ns([], record) == 0
    assert measure_latency([replace(only, phase=replace(only.phase, max_concurrency=8))], record).serial_ns > 0


def test_a_profile_of_a_simulated_server_predicts_it(observed: Observation, tmp_path: Path) -> None:
    assert observed.steps is not None
    assert len(steps_of(observed.phases, observed.steps)) == 12 * 8
    made = make_profile(observed, tmp_path, name="toy", model="tiny", gpu="cpu")
    profile = made.profile
    save_profile(profile, tmp_path / "profile.yaml")
    read_back = load_profile(tmp_path / "profile.yaml")
    assert read_back == profile
    table = phase_errors(observed.phases[0], observed.steps, read_back)
    assert table is not None
    errors = {(row.metric, row.statistic): row.error_percent for row in table.rows}
    assert errors["tpot_ms", "p50"] == pytest.approx(0, abs=2)
    assert errors["ttft_ms", "p50"] == pytest.approx(0, abs=3)
    text = calibration_report(made, observed)
    assert "floor_us" in text
    assert "request_ms 3" in text
    assert "note: recording took" in text


def test_steps_that_are_slow_now_and_then_are_slow_in_the_mean(observed: Observation, tmp_path: Path) -> None:
    """Every eighth step takes three times as long: the profile's steps take as long in all."""
    assert observed.steps is not None
    steps = observed.steps.steps
    for i in range(0, len(steps), 8):
        assert steps[i].end_ns is not None
        later = steps[i].end_ns + 2 * (steps[i].end_ns - steps[i].schedule_ns)
        steps[i] = replace(steps[i], end_ns=later)
    observed.steps.server["async_scheduling"] = False
    pairs = steps_of(observed.phases, observed.steps)
    profile = make_profile(observed, tmp_path, name="toy", model="tiny", gpu="cpu").profile
    model = profile.step_time_model(async_scheduling=False)
    predicted = sum(model.step_time(batch) for batch, _ in pairs)
    assert predicted == pytest.approx(sum(duration for _, duration in pairs), rel=0.02)
    assert any("scaled by" in note for note in profile.notes)


def test_too_few_steps_are_said_so(observed: Observation, tmp_path: Path) -> None:
    assert observed.steps is not None
    observed.steps.steps = observed.steps.steps[:10]
    with pytest.raises(UserError, match="only 10 steps were recorded; a fit wants 50"):
        make_profile(observed, tmp_path, name="toy", model="tiny", gpu="cpu")


def test_without_a_step_record_the_requests_are_fitted(observed: Observation, tmp_path: Path) -> None:
    result = observed.phases[0]
    live = result.live
    live.gaps_ns = {name: [2 * MS] * 7 for name in live.names}
    write_requests(live, result.phase, requests_file(tmp_path, result.phase))
    observed.steps, observed.version = None, "0.32.0"
    observed.model = ServedModel("tiny", 1_024)
    made = make_profile(observed, tmp_path, name="toy", model="Qwen/Qwen3-0.6B", gpu="h100")
    assert made.profile.errors
    assert made.profile.server.vllm_version == "0.32.0"
    with pytest.raises(UserError, match="tiny"):
        make_profile(observed, tmp_path, name="toy", model="tiny", gpu="h100")


def test_of_a_pipeline_whose_steps_overlap_the_requests_are_fitted(observed: Observation, tmp_path: Path) -> None:
    assert observed.steps is not None
    observed.steps.server |= {"pipeline_parallel_size": 2, "max_model_len": 1_024}
    result = observed.phases[0]
    result.live.gaps_ns = {name: [2 * MS] * 7 for name in result.live.names}
    write_requests(result.live, result.phase, requests_file(tmp_path, result.phase))
    made = make_profile(observed, tmp_path, name="toy", model="Qwen/Qwen3-0.6B", gpu="h100")
    assert made.profile.errors
    assert made.profile.server.pipeline_parallel_size == 2
    assert "recording took" not in calibration_report(made, observed)


def test_a_record_is_collected_once_the_recorder_has_written_it(tmp_path: Path) -> None:
    RecordedSimulation(tmp_path / "steps.jsonl", [Arrival(0, Request(0, ((0, 9),), 3, 0, 1))])
    record = collect_steps(tmp_path / "steps.jsonl", tmp_path / "kept" / "copy.jsonl")
    assert len(record.steps) == 3
    assert (tmp_path / "kept" / "copy.jsonl").read_bytes() == (tmp_path / "steps.jsonl").read_bytes()


def _invoke(*arguments: str) -> Any:
    app = typer.Typer()
    app.command()(calibrate)
    return CliRunner().invoke(app, list(arguments))


def test_requests_without_a_record_are_kept_and_no_profile_is_written(tmp_path: Path) -> None:
    with FakeServer() as server:
        result = _invoke(
            "--base-url", server.base_url, "--out", str(tmp_path), "--max-concurrency", "2", "--max-time", "5"
        )
    assert isinstance(result.exception, UserError)
    assert "tiny" in str(result.exception)  # a fit to requests needs the model's shape
    assert (tmp_path / "requests-single.json").exists()
    assert not (tmp_path / "profile.yaml").exists()


def test_a_step_file_that_is_missing_is_said_and_the_requests_are_kept(tmp_path: Path) -> None:
    with FakeServer() as server:
        result = _invoke(
            "--base-url", server.base_url, "--out", str(tmp_path), "--max-concurrency", "2", "--max-time", "5",
            "--steps", str(tmp_path / "none.jsonl"),
        )  # fmt: skip
    assert "no such file; was the server started with the recorder?" in str(result.exception)
    assert (tmp_path / "requests-saturated.json").exists()
    assert not (tmp_path / "profile.yaml").exists()


@pytest.mark.parametrize("arguments", [[], ["--base-url", "http://x", "--serve", "vllm serve x"]])
def test_one_server_must_be_named(arguments: list[str]) -> None:
    assert "give one of --base-url" in str(_invoke(*arguments).exception)


def test_a_command_that_does_not_start_a_server_is_said_with_the_end_of_its_log(tmp_path: Path) -> None:
    result = _invoke("--serve", "sh -c 'echo no model; exit 3' --port 1", "--out", str(tmp_path))
    assert "ended with code 3 before it was ready" in str(result.exception)
    assert "no model" in str(result.exception)
