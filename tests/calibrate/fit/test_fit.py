"""From files to a profile: kinds of data, bad input, and a report that says what to believe."""

from __future__ import annotations

import datetime
import json
from pathlib import Path

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from calibrate.fit import FitOptions, fit, is_step_record
from calibrate.fit_report import AT_BOUNDARY, NOT_IDENTIFIED, FittedTerm, report_lines
from sim.cli.fit import fit as fit_command
from sim.engine.profile import load_profile
from sim.engine.profile_draws import sample_profiles
from sim.errors import UserError
from tests.calibrate.fit.made import TRUTH, choice, made_run

SERVER = (
    "model: Qwen/Qwen3-8B\ngpu: h100-80gb\nversion: '0.23.0'\nnum_gpu_blocks: 20000\nmax_num_batched_tokens: 2048\n"
)


def write_run(path: Path, rate: float, cap: int | None = None) -> Path:
    run = made_run(path.stem, rate, cap=cap)
    assert run.ttft_s is not None
    assert run.e2el_s is not None
    assert run.requests.wanted_ns is not None
    columns = [run.requests.wanted_ns / 1e9, run.sent_s, run.requests.prompt_tokens, run.requests.output_tokens]
    rows = zip(*columns, run.ttft_s, run.e2el_s, strict=True)
    header = "arrival_s,send_s,input_tokens,output_tokens,ttft_s,e2el_s"
    path.write_text("\n".join([header, *(",".join(f"{cell:.9g}" for cell in row) for row in rows)]) + "\n")
    return path


def write_steps(path: Path, number: int = 60, server: dict[str, object] | None = None) -> Path:
    """A step record of decodes whose duration is 10 ms and 1 ms a request."""
    first = {"ev": "init", "t": 0.0, "wall": 0.0, "num_blocks": 100, "block_size": 16, "max_num_seqs": 8}
    first |= {"max_num_batched_tokens": 512, "prefix_caching": False} | (server or {})
    lines = [first]
    lines += [{"ev": "add", "t": 0.0, "id": f"r{i}", "prompt": 64, "max_tokens": 900} for i in range(8)]
    now = 1.0
    for step in range(number):
        ids = [f"r{i}" for i in range(1 + step % 8)]
        took = 0.010 + 0.001 * len(ids)
        sched = {"ev": "sched", "step": step, "t0": now, "t1": now, "tok": dict.fromkeys(ids, 1)}
        sched |= {"comp": dict.fromkeys(ids, 64 + step), "first": {}, "preempted": [], "running": 8, "waiting": 0}
        lines += [sched | {"free_blocks": 9}]
        now += took
        lines += [{"ev": "done", "step": step, "t2": now, "t3": now, "free_blocks": 9}]
    path.write_text("\n".join(map(json.dumps, lines)) + "\n")
    return path


def run_command(*arguments: str | Path) -> tuple[int, str]:
    app = typer.Typer()
    app.command()(fit_command)
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    return result.exit_code, str(result.exception) if isinstance(result.exception, UserError) else result.output


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("fit")
    (folder / "server.yaml").write_text(SERVER)
    runs = [write_run(folder / "low.csv", 2.0), write_run(folder / "busy.csv", 40.0, cap=32)]
    code, output = run_command(
        *runs, "--out", folder / "mine.yaml", "--server", folder / "server.yaml", "--max-concurrency", "32",
        "--terms", "floor_us,per_token_us,client.request_ms", "--jobs", "1",
    )  # fmt: skip
    assert code == 0, output
    return folder / "mine.yaml", output


def test_requests_become_a_profile_that_loads(fitted: tuple[Path, str]) -> None:
    profile = load_profile(fitted[0])
    assert profile.name == "mine"
    assert profile.calibrated is True
    assert profile.server.model == "Qwen/Qwen3-8B"
    assert profile.data == ("low.csv", "busy.csv")
    assert [(table.run, table.held_out) for table in profile.errors] == [("low", True), ("busy", True)]
    assert profile.valid_up_to.num_requests == 32
    assert profile.client_latency.request_ms.stderr is not None


def test_the_report_says_what_to_believe(fitted: tuple[Path, str]) -> None:
    for part in (
        "[[Terms]]",
        "floor_us",
        "±",
        "% of time",
        "left out of the fit",
        "extrapolates beyond",
        "32 sequences",
    ):
        assert part in fitted[1]


def test_draws_differ_as_the_covariance_says(fitted: tuple[Path, str]) -> None:
    profile = load_profile(fitted[0])
    draws = sample_profiles(profile, 200, seed=3)
    floors = np.array([each.step_time.coefficients().floor_ns for each in draws])  # type: ignore[union-attr]
    stderr = profile.step_time.floor_us.stderr  # type: ignore[union-attr]
    assert floors.std() == pytest.approx(1e3 * stderr, rel=0.2)
    assert sample_profiles(profile, 3, seed=3)[2] == draws[2]
    assert len({each.client_latency.request_ms.value for each in draws}) > 150


def test_steps_become_a_profile(tmp_path: Path) -> None:
    record = write_steps(tmp_path / "steps.jsonl")
    assert is_step_record(record)
    options = FitOptions("steps", "here", terms=("floor_us", "per_request_us"), date=datetime.date(2026, 1, 2))
    outcome = fit([record], choice(), options)
    step_time = outcome.profile.step_time.coefficients()  # type: ignore[union-attr]
    assert step_time.floor_ns == pytest.approx(10e6, rel=0.02)
    assert step_time.request_ns == pytest.approx(1e6, rel=0.02)
    assert outcome.profile.server.async_scheduling is False
    assert all(table.held_out for table in outcome.profile.errors)
    assert "60 steps" in outcome.report[0]


def test_a_record_cut_in_the_middle_of_a_line_is_used_and_said(tmp_path: Path) -> None:
    record = write_steps(tmp_path / "steps.jsonl", number=100)
    record.write_text(record.read_text()[:-500])
    options = FitOptions("steps", "here", terms=("floor_us", "per_request_us"))
    report = fit([record], choice(), options).report
    assert any("cut short in line" in line for line in report)


def test_the_command_reads_steps_of_a_model_nobody_knows(tmp_path: Path) -> None:
    record = write_steps(tmp_path / "steps.jsonl")
    out = tmp_path / "tiny.yaml"
    code, output = run_command(record, "--out", out, "--model", "./tiny/config.json", "--gpu", "cpu")
    assert code == 0, output
    assert load_profile(out).server.model == "./tiny/config.json"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["low.csv", "--out", "a.yaml"], "which server was measured? give --model and --gpu"),
        (["low.csv", "--out", "a.yaml", "--model", "x"], "give --gpu"),
        (["low.csv", "--out", "a.txt"], "a profile's name ends in .yaml"),
        (["low.csv", "--out", "none/a.yaml"], "there is no folder"),
        (["none.csv", "--out", "a.yaml"], "none.csv: cannot be read"),
        (["bare.csv", "--out", "a.yaml", "--server", "server.yaml"], "no latencies to fit to"),
        (["steps.jsonl", "low.csv", "--out", "a.yaml", "--server", "server.yaml"], "fit one kind at a time"),
        (["few.jsonl", "--out", "a.yaml", "--server", "server.yaml"], "8 steps are too few to fit"),
        (["low.csv", "--out", "a.yaml", "--server", "server.yaml", "--terms", "flor_us"], "flor_us: no term"),
        (["low.csv", "--out", "a.yaml", "--server", "bad.yaml"], "did you mean 'max_num_seqs'?"),
    ],
)
def test_bad_input_is_one_line_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "low.csv", 2.0)
    (tmp_path / "bare.csv").write_text("arrival_s,input_tokens,output_tokens\n0,1,1\n")
    (tmp_path / "server.yaml").write_text(SERVER)
    (tmp_path / "bad.yaml").write_text(SERVER + "max_num_seq: 4\n")
    write_steps(tmp_path / "steps.jsonl")
    write_steps(tmp_path / "few.jsonl", number=8)
    code, said = run_command(*arguments)
    assert code != 0
    assert message in said
    assert "\n" not in said
    assert not list(tmp_path.rglob("a.*"))


def test_flags_of_terms() -> None:
    lines = report_lines(
        "made",
        [
            FittedTerm("floor_us", 10.0, 0.1, informed=0.99, share=0.7, moved=(0.2, "low")),
            FittedTerm("per_token_us", 0.0, 0.0, informed=0.99),
            FittedTerm("per_decode_us", 5.0, 9.0, informed=0.2),
        ],
        np.diag([0.01, 1.0, 81.0]),
        errors={"low": [1.0, -2.0]},
        held_out={},
        valid_up_to={"num_tokens": 2048, "num_requests": 0},
    )
    text = "\n".join(lines)
    assert f"[{AT_BOUNDARY}]" in next(line for line in lines if "per_token_us" in line)
    assert f"[{NOT_IDENTIFIED}]" in next(line for line in lines if "per_decode_us" in line)
    assert "[" not in next(line for line in lines if "floor_us" in line)
    assert "+2.0 % without low" in text
    assert "extrapolates beyond 2,048 tokens, in one step" in text
    assert "median  1.50 %  worst  2.00 %  mean -0.50 %" in text


def test_the_truth_of_the_made_server_is_what_the_tests_say() -> None:
    assert set(TRUTH) == {"floor_us", "per_token_us", "per_decode_us", "client.request_ms"}
