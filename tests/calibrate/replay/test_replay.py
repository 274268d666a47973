"""A measured run replayed through the model that made it comes out as measured; errors have the right sign."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from calibrate.comparison import compare, completions_per_s, measured_latencies, predicted_latencies
from calibrate.comparison_text import comparison_data, comparison_lines
from calibrate.readers import read_runs
from calibrate.readers.measured import MeasuredRun
from calibrate.replay import Replay, simulate_ranks, simulate_requests
from calibrate.replay import replay as replay_run
from calibrate.replay_server import describe_server
from sim.cli.replay import replay as replay_command
from sim.engine.fitted import FittedModel, StepCoefficients
from sim.engine.step_time import ClientLatency
from sim.errors import UserError
from sim.records import RunRecord
from sim.workload.trace import Trace
from tests.calibrate.fit.made import deployment, made_run
from tests.calibrate.fit.test_fit import SERVER, write_run

PROFILE = """\
format: 1
name: made
calibrated: prior
date: 2026-11-29
source: made up
data: [none]
server:
  model: Qwen/Qwen3-8B
  gpu: h100-80gb
  vllm_version: "0.23.0"
  flags: {max_num_batched_tokens: 2048, num_gpu_blocks_override: 20000}
step_time:
  kind: fitted
  floor_us: 9000
  per_token_us: 60
  per_attention_pair_ns: 2
  per_decode_us: 40
  per_decode_context_token_ns: 60
client_latency: {request_ms: 8}
"""


def run_command(*arguments: str | Path) -> tuple[int, str]:
    app = typer.Typer()
    app.command()(replay_command)
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    return result.exit_code, str(result.exception) if isinstance(result.exception, UserError) else result.output


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "made.yaml").write_text(PROFILE)
    (tmp_path / "server.yaml").write_text(SERVER)
    write_run(tmp_path / "busy.csv", 40.0, cap=32)
    return tmp_path


def test_ctrl_c_prints_what_is_replayed_and_says_so(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Replay] = []

    def interrupted(*arguments: Any, **options: Any) -> Replay:
        if made:
            raise KeyboardInterrupt
        made.append(replay_run(*arguments, **options))
        return made[0]

    (run,) = read_runs(files / "busy.csv")
    monkeypatch.setattr("calibrate.readers.read_runs", lambda *_, **__: [run, run, run])
    monkeypatch.setattr("calibrate.replay.replay", interrupted)
    code, output = run_command(files / "busy.csv", "--profile", files / "made.yaml")
    assert code == 130
    assert output.startswith("busy: 120 requests replayed with profile made")
    assert output.endswith("interrupted: 1 of 3 runs are replayed; nothing is kept\n")


def test_the_model_that_made_a_run_predicts_it_exactly(files: Path) -> None:
    code, output = run_command(
        files / "busy.csv", "--profile", files / "made.yaml", "--max-concurrency", "32", "--json"
    )
    assert code == 0
    document = json.loads(output)
    assert document["profile"] == "made"
    assert document["calibrated"] is False
    (run,) = document["runs"]
    assert run["requests"] == 120
    assert run["worst_error_percent"] < 0.01
    assert run["max_running"] == 32
    keys = {(row["metric"], row["statistic"]) for row in run["metrics"]}
    assert {("ttft_ms", "p90"), ("tpot_ms", "mean"), ("e2el_ms", "p99"), ("duration_s", None)} <= keys


def test_without_the_cap_the_held_back_client_is_warned_of(files: Path) -> None:
    code, output = run_command(files / "busy.csv", "--profile", files / "made.yaml")
    assert code == 0
    assert "give its cap with --max-concurrency" in output


def test_the_text_shows_measured_predicted_and_error(files: Path) -> None:
    _, output = run_command(files / "busy.csv", "--profile", files / "made.yaml", "--max-concurrency", "32")
    for part in ("TTFT ms measured", "predicted", "error", "requests/s", "median 0.00 %", "uncalibrated: a prior"):
        assert part in output


def test_a_file_of_flags_changes_the_server_and_the_client(files: Path) -> None:
    (files / "server.yaml").write_text("max_num_seqs: 4\nclient_max_concurrency: 32\n")
    _, output = run_command(
        files / "busy.csv", "--profile", files / "made.yaml", "--server", files / "server.yaml", "--json"
    )
    document = json.loads(output)
    assert document["server"]["flags"]["max_num_seqs"] == 4
    assert document["server"]["flags"]["num_gpu_blocks_override"] == 20000
    assert document["runs"][0]["max_running"] == 4
    assert document["runs"][0]["max_concurrency"] == 32


@pytest.mark.parametrize(
    ("file", "options", "message"),
    [
        ("busy.csv", ("--length-spread", "0.2"), "--length-spread: of a ladder of closed-loop totals; "),
        ("busy.csv", ("--prompts", "busy.csv"), "--prompts: of an LLMServingSim run; "),
        ("ladder.csv", ("--limit", "5"), "--limit: {path} is a ladder of closed-loop totals, "),
        ("ladder.csv", ("--window", "0:5"), "--window: {path} is a ladder of closed-loop totals, "),
        ("ladder.csv", ("--max-concurrency", "5"), "--max-concurrency: {path} is a ladder of closed-loop totals, "),
    ],
)
def test_an_option_of_another_kind_of_recording_is_refused(
    files: Path, file: str, options: tuple[str, str], message: str
) -> None:
    (files / "ladder.csv").write_text("max_concurrency,num_prompts,input_len,output_len\n1,2,100,10\n")
    code, said = run_command(files / file, "--profile", files / "made.yaml", *options)
    assert code != 0
    assert said.startswith(message.format(path=files / file))
    assert "\n" not in said


def test_limit_window_and_bad_options(files: Path) -> None:
    profile = ("--profile", files / "made.yaml")
    _, output = run_command(files / "busy.csv", *profile, "--limit", "10", "--window", "0:1", "--json")
    assert json.loads(output)["runs"][0]["requests"] == 10
    for window in ("5", "a:b", "9:3"):
        code, said = run_command(files / "busy.csv", *profile, "--window", window)
        assert code != 0
        assert f"--window: got '{window}'" in said
    assert "no shipped profile has this name" in run_command(files / "busy.csv", "--profile", "qwen")[1]
    assert "cannot be read" in run_command(files / "none.csv", *profile)[1]


def test_requests_without_latencies_are_predicted_alone(files: Path) -> None:
    (files / "bare.csv").write_text("arrival_s,input_tokens,output_tokens\n0,100,5\n1,100,5\n")
    code, output = run_command(files / "bare.csv", "--profile", files / "made.yaml", "--json")
    assert code == 0
    (run,) = json.loads(output)["runs"]
    assert run["median_error_percent"] is None
    row = next(row for row in run["metrics"] if row["metric"] == "ttft_ms")
    assert row["measured"] is None
    assert row["predicted"] == pytest.approx(8 + 9.01, rel=0.01)


def test_requests_without_an_answer_and_windows_without_a_request_are_told(files: Path) -> None:
    (files / "long.csv").write_text("arrival_s,input_tokens,output_tokens\n0,100,5\n1,9999999,5\n")
    code, output = run_command(files / "long.csv", "--profile", files / "made.yaml", "--window", "50:60")
    assert code == 0
    assert "warning: 1 of 2 requests got no answer in the simulation: longer than max_model_len allows" in output
    assert "warning: --window 50:60 begins after the simulated run, which ends at 1.0 s" in output
    (files / "short.csv").write_text("arrival_s,input_tokens,output_tokens\n0,100,5\n1,100,5\n")
    _, output = run_command(files / "short.csv", "--profile", files / "made.yaml", "--window", "0:2")
    assert "warning" not in output


def ranks_of(model: str, number: int = 60) -> RunRecord:
    """Requests of very different lengths on two ranks of an H200."""
    flags = {"max_num_seqs": 32, "max_num_batched_tokens": 512, "max_model_len": 4096, "num_gpu_blocks_override": 600}
    server = {"model": model, "gpu": "h200", "version": "0.23.0", "flags": flags}
    rng = np.random.default_rng(0)
    sent_ns = np.rint(np.cumsum(rng.exponential(5e7, number))).astype(np.int64)
    requests = Trace(sent_ns, rng.integers(20, 900, number), rng.integers(1, 60, number))
    record, _ = simulate_ranks(requests, describe_server(server).plan(), 2)
    assert [request.num_prompt_tokens for request in record.requests] == requests.prompt_tokens.tolist()
    assert record.num_replicas == 2
    return record


def test_ranks_share_the_requests_as_vllm_balances_them_and_not_in_turn() -> None:
    ranks = [request.replica for request in ranks_of("Qwen/Qwen3-8B").requests]
    assert 20 <= sum(ranks) <= 40
    assert ranks[0] == 0  # an empty server: the first one
    assert any(before == after for before, after in pairwise(ranks))


def test_ranks_of_a_model_with_experts_step_together_and_those_of_a_dense_one_do_not() -> None:
    experts, dense = ranks_of("Qwen/Qwen3-30B-A3B").steps, ranks_of("Qwen/Qwen3-8B").steps
    assert len(experts.end_ns) - len(set(experts.end_ns)) > 100  # steps that end at the moment of another
    assert len(dense.end_ns) - len(set(dense.end_ns)) < 10


def test_errors_are_signed_and_unknown_ones_are_none() -> None:
    times = np.array([0, 10**9])
    requests = Trace(sent_ns=times, prompt_tokens=np.array([10, 10]), output_tokens=np.array([3, 1]))
    run = MeasuredRun("r", requests, ttft_s=np.array([0.02, np.nan]), e2el_s=np.array([0.04, np.nan]))
    record = simulate_requests(requests, deployment(), FittedModel(StepCoefficients(floor_ns=1e7)), ClientLatency())
    table = compare(run, predicted_latencies(record), record, window_s=(0.0, 1.0))
    assert table.error_percent("ttft_ms", "mean") == pytest.approx(-50.0)
    assert table.error_percent("tpot_ms", "mean") == pytest.approx(0.0)
    assert table.error_percent("itl_ms", "mean") is None
    assert table.error_percent("request_throughput_per_s") == pytest.approx(0.0)
    assert len(table.errors_percent()) == 9
    assert completions_per_s(measured_latencies(run), (0.0, 1.0)) == 1.0
    assert completions_per_s(measured_latencies(replace(run, e2el_s=None)), (0.0, 1.0)) is None


def test_a_known_spread_is_shown_beside_the_error() -> None:
    run = made_run("low", 2.0)
    model = FittedModel(StepCoefficients(floor_ns=1e7))
    record = simulate_requests(run.requests, deployment(), model, ClientLatency())
    table = compare(run, predicted_latencies(record), record)
    spread = {("ttft_ms", "p99"): 4.8}
    assert any("server's own spread" in line and "4.8 %" in line for line in comparison_lines(table, spread))
    data = comparison_data(table, spread)
    assert [row["server_spread_percent"] for row in data["metrics"] if row["server_spread_percent"]] == [4.8]


def test_gaps_between_tokens_are_exact_however_they_are_counted() -> None:
    run = made_run("low", 2.0)
    model = FittedModel(StepCoefficients(floor_ns=1e7, token_ns=5e4))
    record = simulate_requests(run.requests, deployment(), model, ClientLatency())
    itl = record.itl
    flat = np.repeat(np.array(itl.gap_ns) / 1e6, np.array(itl.count))
    table = compare(run, predicted_latencies(record), record)
    rows = [row for row in table.rows if row.metric == "itl_ms"]
    assert {"mean", "p50", "p99"} <= {row.statistic for row in rows}
    for row in rows:
        expected = flat.mean() if row.statistic == "mean" else np.percentile(flat, float(str(row.statistic)[1:]))
        assert row.predicted == pytest.approx(expected), row.statistic
