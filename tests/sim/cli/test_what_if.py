"""`headcount what-if`: a row a change, effects with intervals, bad input told in one line."""

import json
import re
import shlex
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

import sim.simulate
import sim.what_if
from sim.cli.what_if import Progress, what_if
from sim.errors import UserError
from sim.records import RunRecord
from sim.scenario.model import Scenario
from sim.what_if import Change, WhatIfProgress
from tests.factories import REPOSITORY
from tests.sim.cli.test_search import OPEN
from tests.sim.sweep.made import USERS, write

README = Path(sim.what_if.__file__).with_name("README.md")
DOCUMENTED = [line for line in README.read_text(encoding="utf-8").splitlines() if line.startswith("headcount what-if ")]


def invoke(path: Path, *arguments: str, jobs: int = 1) -> Result:
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(what_if)
    return CliRunner().invoke(app, [str(path), "--jobs", str(jobs), *arguments])


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    return write(tmp_path, OPEN)


def test_a_row_a_change_with_effects_and_intervals(scenario: Path) -> None:
    result = invoke(scenario, "--vary", "max_num_seqs=2", "--vary", "max_model_len=16384")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0] == "small: one flag changed at a time, at 2 requests/s"
    assert lines[1].startswith("  2 seeds, the same requests for all; in brackets the 95 % interval")
    assert lines[2].startswith("  step times: UNCALIBRATED")
    assert lines[4].split() == ["ttft.p95", "itl.p95", "throughput", "preemptions", "objectives"]
    assert lines[5].startswith("as it is  ")
    assert lines[6].startswith("max_num_seqs 256 -> 2  ")
    assert " (" in lines[6]
    assert lines[7].split() == ["max_model_len", "8192", "->", "16384", "=", "=", "=", "=", "met"]
    assert {line.rindex("  ") for line in lines[5:8]} == {lines[4].rindex("  ")}


def test_json_has_what_the_table_shows_and_does_not_depend_on_the_number_of_cores(scenario: Path) -> None:
    arguments = ("--vary", "max_num_seqs=2,4", "--metrics", "ttft.p95,goodput,errors", "--json")
    one, two = (invoke(scenario, *arguments, jobs=jobs) for jobs in (1, 2))
    assert one.stdout == two.stdout
    document = json.loads(one.stdout)
    assert [each["metric"] for each in document["metrics"]] == ["ttft.p95", "goodput", "errors"]
    assert [each["after"] for each in document["changes"]] == [2, 4]
    effect = document["changes"][0]["effects"]["ttft.p95"]
    assert effect["before"] == document["baseline"]["measures"]["ttft.p95"]
    assert effect["difference"] == pytest.approx(effect["after"] - effect["before"], rel=1e-4)
    assert effect["low"] <= effect["difference"] <= effect["high"]
    assert effect["share"] == pytest.approx(effect["difference"] / effect["before"], rel=1e-4)


def test_without_values_each_flag_is_changed(scenario: Path) -> None:
    document = json.loads(invoke(scenario, "--seeds", "1", "--set", "workload.num_requests=10", "--json").stdout)
    assert len(document["changes"]) == 12
    assert {each["status"] for each in document["changes"]} <= {"simulated", "same", "refused"}
    assert all(each["effects"]["ttft.p95"]["low"] is None for each in document["changes"] if each["effects"])


def test_a_scenario_with_a_search_is_compared_at_the_load_that_it_supports(tmp_path: Path) -> None:
    path = write(tmp_path, USERS)
    result = invoke(path, "--vary", "max_num_seqs=2", "--json")
    assert "searching for the load that the server supports" in result.stderr
    document = json.loads(result.stdout)
    assert document["baseline"]["holds"] is True
    at_load = json.loads(invoke(path, "--vary", "max_num_seqs=2", "--json", "--users", str(document["load"])).stdout)
    assert at_load["changes"] == document["changes"]


def test_what_does_not_start_or_fails_is_in_the_table(scenario: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    simulate = sim.simulate.simulate

    def flawed(scenario: Scenario, *, seed: int, load: float | None = None) -> RunRecord:
        if scenario.server.flags.max_num_seqs == 7:
            raise RuntimeError("boom")
        return simulate(scenario, seed=seed, load=load)

    monkeypatch.setattr(sim.simulate, "simulate", flawed)
    result = invoke(scenario, "--vary", "max_num_seqs=7", "--vary", "gpu_memory_utilization=0.1")
    assert result.exit_code == 1
    failed, refused = result.stdout.splitlines()[6:8]
    assert failed.startswith("max_num_seqs 256 -> 7 ")
    assert failed.endswith("failed: RuntimeError: boom")
    assert "does not start: server: vLLM would not start: " in refused


def test_ctrl_c_ends_it_with_130(scenario: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(scenario: Scenario, *, seed: int, load: float | None = None) -> RunRecord:
        raise KeyboardInterrupt

    monkeypatch.setattr(sim.simulate, "simulate", interrupted)
    result = invoke(scenario, "--vary", "max_num_seqs=7")
    assert result.exit_code == 130
    assert "interrupted: nothing is compared yet" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--vary", "max_seqs=1"), "no flag of vllm serve; got 'max_seqs'; did you mean"),
        (("--vary", "max_num_seqs=-1"), "--vary server.max_num_seqs=-1: "),
        (("--metrics", "tftt.p95"), "--metrics tftt.p95: unknown metric; did you mean 'ttft'?"),
        (("--metrics", "cost"), "--metrics cost: not measured in a run"),
        (("--metrics", ","), "--metrics: none given"),
        (("--users", "4"), "--users: the workload of "),
        (("--set", "server.kind=ollama"), "server.kind: flags of vLLM are changed"),
    ],
)
def test_bad_input_is_told_in_one_line(scenario: Path, arguments: tuple[str, ...], message: str) -> None:
    result = invoke(scenario, *arguments)
    assert isinstance(result.exception, UserError), result.output
    assert message in str(result.exception)
    assert "\n" not in str(result.exception)


@pytest.mark.parametrize("line", DOCUMENTED)
def test_the_documented_commands_do_what_is_said(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(REPOSITORY)
    _, _, path, *arguments = shlex.split(line)
    result = invoke(Path(path), *arguments)
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("office-team: one flag changed at a time, at 40 users")


def test_progress_names_the_change(capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress()
    progress.began -= 60
    progress.report(WhatIfProgress(3, 9, Change("server.max_num_seqs", 8, 16)))
    progress.clear()
    (line,) = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r"3 of 9 runs, last: max_num_seqs 8 -> 16, \d+ s", line)


def test_a_change_that_leaves_what_the_profile_was_fitted_to_says_so(scenario: Path) -> None:
    fitted = ("--set", "server.profile=llama-3.1-8b-rtx-4090", "--set", "server.model=meta-llama/Llama-3.1-8B-Instruct")
    result = invoke(scenario, *fitted, "--vary", "tensor_parallel_size=2", "--seeds", "1", "--json")
    document = json.loads(result.stdout)
    (change,) = document["changes"]
    assert any("tensor_parallel_size" in text for text in change["warnings"])
    assert not set(change["warnings"]) & set(document["warnings"])
    text = invoke(scenario, *fitted, "--vary", "tensor_parallel_size=2", "--seeds", "1").stdout
    assert f"  tensor_parallel_size 1 -> 2: {change['warnings'][0]}" in text
