"""`headcount search`: the front on stdout, each trial to be run alone, storages shared and resumed, bad input told."""

import json
import shlex
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

import sim.search
import sim.simulate
from sim.cli.run import run
from sim.cli.search import Progress, search
from sim.errors import UserError
from sim.records import RunRecord
from sim.scenario.model import Scenario
from sim.search import SearchProgress, Trial
from tests.factories import REPOSITORY
from tests.sim.sweep.made import USERS, write

OPEN = """
name: small
server: {model: Qwen/Qwen2.5-7B-Instruct, gpu: rtx-4090, flags: {max_model_len: 8192}}
workload:
  kind: open_loop
  arrivals: poisson
  request_rate: 2
  num_requests: 40
  classes:
    - {name: mixed, prompt_tokens: {uniform: {low: 200, high: 3000}}, output_tokens: {uniform: {low: 20, high: 60}}}
objectives: [errors <= 1%]
run: {seeds: 2}
"""
README = Path(sim.search.__file__).with_name("README.md")
DOCUMENTED = [line for line in README.read_text(encoding="utf-8").splitlines() if line.startswith("headcount search ")]
FLAGS = ("--vary", "max_num_seqs=4,16", "--vary", "server.enable_prefix_caching=true,false")
LATENCIES = ("--minimize", "ttft.p95,itl.p99", "--maximize", "throughput")


def invoke(path: Path, *arguments: str, out: Path | None = None, jobs: int | None = 1) -> Result:
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(search)
    out = out if out is not None else path.parent / "out"
    parallel = [] if jobs is None else ["--jobs", str(jobs)]
    return CliRunner().invoke(app, [str(path), *parallel, "--out", str(out), *arguments])


def rerun(line: str) -> dict[str, Any]:
    """Runs the `headcount run` line that a search printed."""
    words = shlex.split(line)
    assert words[:2] == ["headcount", "run"]
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(run)
    document: dict[str, Any] = json.loads(CliRunner().invoke(app, [*words[2:], "--json", "--jobs", "1"]).stdout)
    return document


def fails(path: Path, *arguments: str) -> str:
    result = invoke(path, *arguments)
    assert isinstance(result.exception, UserError), result.output
    message = str(result.exception)
    assert "\n" not in message
    return message


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    return write(tmp_path, OPEN)


def test_the_front_as_table_plot_and_command_lines(scenario: Path, tmp_path: Path) -> None:
    result = invoke(scenario, *LATENCIES, *FLAGS)
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0].startswith("small: ")
    assert lines[0].endswith(" on the front (4 of 4 configurations simulated)")
    assert (
        lines[1] == "  minimize ttft.p95, minimize itl.p99, maximize throughput (means over 2 seeds, all at one load)"
    )
    assert lines[2] == "  required: the server starts, objectives hold, no preemptions"
    assert lines[3].startswith("  step times: UNCALIBRATED")
    assert "throughput (tok/s) against ttft.p95 (s); letters: the front, dots: what it beats" in lines
    document = json.loads((tmp_path / "out" / "pareto.json").read_text())
    for letter, row in zip("abcd", document["front"], strict=False):
        assert f"  {letter}  {row['serve']}" in lines
        assert f"     {row['run']}" in lines
    page = (tmp_path / "out" / "pareto.html").read_text()
    assert page.count("<svg") >= 2
    assert all(row["serve"].replace("'", "&#39;") in page for row in document["front"])


@pytest.mark.parametrize("line", DOCUMENTED)
def test_the_documented_commands_do_what_is_said(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(REPOSITORY)
    _, _, path, *arguments = shlex.split(line)
    result = invoke(Path(path), *arguments, out=tmp_path)
    assert result.exit_code == 0, result.output
    assert "To start a server, and to simulate it again" in result.stdout
    assert "vllm serve Qwen/Qwen2.5-7B-Instruct" in result.stdout


def test_every_trial_can_be_run_alone_and_gives_the_same_numbers(scenario: Path) -> None:
    arguments = (*LATENCIES, *FLAGS, "--json", "--set", "workload.request_rate=1.5", "--seed", "3")
    document = json.loads(invoke(scenario, *arguments).stdout)
    assert len(document["trials"]) == 4
    for trial in document["trials"]:
        (point,) = rerun(trial["run"])["points"]
        found = [point["ttft_ms"]["p95"] / 1000, point["itl_ms"]["p99"] / 1000]
        assert [trial["measures"][name] for name in ("ttft.p95", "itl.p99")] == pytest.approx(found, rel=1e-9)
        assert trial["measures"]["throughput"] == point["throughput"]["output_tokens_per_s"]
        assert (trial["load"], point["load"]) == (1.5, 1.5)


def test_users_are_searched_for_each_configuration_and_the_rest_is_measured_at_the_answer(tmp_path: Path) -> None:
    path = write(tmp_path, USERS)
    vary = ("--vary", "max_num_seqs=2,8", "--vary", "tensor_parallel_size=1,2")
    arguments = ("--minimize", "itl.p95,cost", "--maximize", "users", "--gpu-price", "0.7", *vary)
    result = invoke(path, *arguments)
    assert result.exit_code == 0
    document = json.loads((tmp_path / "out" / "pareto.json").read_text())
    assert len(document["trials"]) == 4
    for trial in document["trials"][:2]:
        again = rerun(trial["run"])
        answer = again["supported_users"]
        assert (trial["measures"]["users"], trial["low"], trial["high"]) == tuple(
            answer[name] for name in ("value", "low", "high")
        )
        (point,) = [each for each in again["points"] if each["load"] == answer["value"]]
        assert trial["measures"]["itl.p95"] == pytest.approx(point["itl_ms"]["p95"] / 1000, rel=1e-9)
        assert trial["measures"]["cost"] == 0.7 * trial["parameters"]["server.tensor_parallel_size"]
        assert trial["binding_objective"] == again["binding_objective"]
    header = next(line for line in result.stdout.splitlines() if "breaks next" in line)
    assert header.split()[-4:] == ["users", "load", "breaks", "next"]


def test_the_result_does_not_depend_on_the_number_of_cores(scenario: Path, tmp_path: Path) -> None:
    one = invoke(scenario, *LATENCIES, *FLAGS, out=tmp_path / "one")
    two = invoke(scenario, *LATENCIES, *FLAGS, out=tmp_path / "two", jobs=2)
    assert one.stdout == two.stdout


def test_what_is_known_is_found_again(scenario: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = invoke(scenario, *LATENCIES, *FLAGS)
    monkeypatch.setattr(sim.simulate, "simulate", None)
    again = invoke(scenario, *LATENCIES, *FLAGS)
    assert (again.exit_code, again.stdout) == (0, first.stdout)


def test_ctrl_c_keeps_what_is_finished_and_says_how_to_go_on(
    scenario: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulate = sim.simulate.simulate
    made: list[int] = []

    def interrupted(scenario: Scenario, *, seed: int, load: float | None = None) -> RunRecord:
        if len(made) == 5:
            raise KeyboardInterrupt
        made.append(seed)
        return simulate(scenario, seed=seed, load=load)

    monkeypatch.setattr(sim.simulate, "simulate", interrupted)
    result = invoke(scenario, *LATENCIES, *FLAGS)
    assert result.exit_code == 130
    assert result.stdout.startswith("small: interrupted, so far ")
    assert "interrupted: 2 trials are kept; the same command goes on from there" in result.stderr
    monkeypatch.setattr(sim.simulate, "simulate", simulate)
    whole = invoke(scenario, *LATENCIES, *FLAGS)
    assert whole.exit_code == 0
    assert "(4 of 4 configurations simulated)" in whole.stdout


def test_ctrl_c_in_the_search_for_a_capacity_is_no_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    simulate = sim.simulate.simulate
    made: list[int] = []

    def interrupted(scenario: Scenario, *, seed: int, load: float | None = None) -> RunRecord:
        made.append(seed)
        if len(made) == 3:
            raise KeyboardInterrupt
        return simulate(scenario, seed=seed, load=load)

    monkeypatch.setattr(sim.simulate, "simulate", interrupted)
    path = write(tmp_path, USERS)
    result = invoke(path, "--minimize", "itl.p95", "--maximize", "users", "--vary", "max_num_seqs=2,8")
    assert (result.exit_code, len(made)) == (130, 3)
    assert "failed" not in result.output
    assert "interrupted: 0 trials are kept; the same command goes on from there" in result.stderr


def test_two_processes_share_one_storage(scenario: Path, tmp_path: Path) -> None:
    code = "import sys; from sim.cli import main; sys.argv[0] = 'headcount'; main()"
    command = [sys.executable, "-c", code, "search", str(scenario), "--minimize", "ttft.p95", "--jobs", "1"]
    command += ["--vary", "max_num_seqs=2,3,4,6,8,12", "--storage", str(tmp_path / "s.db"), "--json", "--batch", "1"]
    started = [
        subprocess.Popen(
            [*command, "--out", str(tmp_path / name)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for name in ("one", "two")
    ]
    ended = [(*process.communicate(timeout=300), process.returncode) for process in started]
    assert [code for _, _, code in ended] == [0, 0], ended
    both = [json.loads(out) for out, _, _ in ended]
    whole = max(both, key=lambda document: len(document["trials"]))
    assert len(whole["trials"]) == 6
    assert len({trial["parameters"]["server.max_num_seqs"] for trial in whole["trials"]}) == 6


def test_a_killed_search_keeps_its_trials(scenario: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import sys; from sim.cli import main; sys.argv[0] = 'headcount'; main()"
    arguments = ("--minimize", "ttft.p95", "--vary", "max_num_seqs=2:13:1", "--batch", "1", "--trials", "12")
    command = [sys.executable, "-c", code, "search", str(scenario), *arguments, "--jobs", "1"]
    process = subprocess.Popen(
        [*command, "--out", str(tmp_path / "out")], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        while process.poll() is None and _num_done(tmp_path / "out" / "search.db") < 2:
            time.sleep(0.05)
    finally:
        process.kill()
        process.wait()
    kept = _num_done(tmp_path / "out" / "search.db")
    assert kept >= 2
    simulate, made = sim.simulate.simulate, []

    def counted(scenario: Scenario, *, seed: int, load: float | None = None) -> RunRecord:
        made.append(seed)
        return simulate(scenario, seed=seed, load=load)

    monkeypatch.setattr(sim.simulate, "simulate", counted)
    result = invoke(scenario, *arguments)
    assert "(12 of 12 configurations simulated)" in result.stdout
    assert len(made) == 2 * (12 - kept)


def _num_done(database: Path) -> int:
    if not database.exists():
        return 0
    try:
        with closing(sqlite3.connect(database)) as connection:
            (number,) = connection.execute("SELECT COUNT(*) FROM trials WHERE state = 'COMPLETE'").fetchone()
    except sqlite3.OperationalError:  # its tables are being made
        return 0
    return int(number)


def test_without_a_configuration_that_may_be_the_nearest_are_shown_and_the_exit_code_tells(scenario: Path) -> None:
    result = invoke(scenario, *LATENCIES, *FLAGS, "--set", "objectives=['ttft.p95 <= 1ms']")
    assert result.exit_code == 1
    assert "none meets what is required" in result.stdout
    assert "None is feasible; these break least" in result.stdout
    assert "broken: objectives" in result.stdout
    allowed = invoke(scenario, *LATENCIES, *FLAGS, "--set", "objectives=['ttft.p95 <= 1ms']", "--allow", "broken")
    assert allowed.exit_code == 0


def test_servers_that_do_not_start_are_counted(scenario: Path, tmp_path: Path) -> None:
    result = invoke(scenario, "--minimize", "ttft.p95", "--vary", "gpu_memory_utilization=0.1,0.9", "--seeds", "1")
    assert "(1 of 2 configurations simulated, 1 more do not start)" in result.stdout
    assert "  does not start: gpu_memory_utilization=0.1: server: vLLM would not start: " in result.stdout
    document = json.loads((tmp_path / "out" / "pareto.json").read_text())
    assert "would not start" in document["failures"][0]["cause"]


def test_a_scenario_with_a_search_is_measured_at_one_load_when_nobody_asks_for_users(tmp_path: Path) -> None:
    path = write(tmp_path, USERS)
    arguments = ("--minimize", "ttft.p95", "--vary", "max_num_seqs=2,8", "--json", "--seeds", "1")
    assert "at which load? Give one (--users, --rate or --concurrency), or have users among" in fails(path, *arguments)
    given = json.loads(invoke(path, *arguments, "--users", "5").stdout)
    stated = json.loads(invoke(path, *arguments, "--set", "workload.users=5").stdout)
    assert [each["measures"] for each in given["trials"]] == [each["measures"] for each in stated["trials"]]
    for document in (given, stated):
        trial = document["trials"][0]
        (point,) = rerun(trial["run"])["points"]
        assert trial["measures"]["ttft.p95"] == pytest.approx(point["ttft_ms"]["p95"] / 1000, rel=1e-9)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--vary", "max_num_seqs=1,2"), "--minimize, --maximize: missing; for example"),
        (("--minimize", "ttft.p95"), "--vary: missing, so there is nothing to choose from"),
        (("--minimize", "ttft.p95", "--vary", "max_seqs=1"), "no flag of vllm serve; got 'max_seqs'; did you mean"),
        (("--minimize", "cost", "--vary", "max_num_seqs=1"), "what does an hour of rtx-4090 cost? Give --gpu-price"),
        (
            ("--minimize", "ttft.p95", "--vary", "gpu=l4,h1000"),
            "--vary server.gpu=h1000: unknown GPU 'h1000'; did you mean 'h100-80gb'",
        ),
        (
            ("--minimize", "cost", "--vary", "gpu=rtx-4090,h100", "--gpu-price", "rtx-4090=1"),
            "what does an hour of h100 cost?",
        ),
        (
            ("--minimize", "cost", "--vary", "max_num_seqs=1", "--gpu-price", "much"),
            "--gpu-price much: expected a price",
        ),
        (
            ("--minimize", "cost", "--vary", "max_num_seqs=1", "--gpu-price", "rtx-4090=-1"),
            "--gpu-price rtx-4090=-1: expected a price of an hour, at least 0, as in 2.5 or h100=2.5",
        ),
        (
            ("--minimize", "ttft.p95", "--vary", "max_num_seqs=1", "--allow", "preemption"),
            "did you mean 'preemptions'?",
        ),
        (("--maximize", "users", "--vary", "max_num_seqs=1"), "--maximize users: the answer of a search, but one load"),
        (("--minimize", "ttft.p95", "--vary", "max_num_seqs=1", "--users", "4"), "--users: the workload of "),
        (("--minimize", "ttft.p95", "--vary", "max_num_seqs=1", "--lang", "fr"), "--lang: unknown language 'fr'"),
    ],
)
def test_bad_input_is_told_in_one_line(scenario: Path, arguments: tuple[str, ...], message: str) -> None:
    assert message in fails(scenario, *arguments)


def test_a_storage_that_cannot_be_opened_is_told_without_its_password(scenario: Path, tmp_path: Path) -> None:
    common = ("--minimize", "ttft.p95", "--vary", "max_num_seqs=1,2", "--storage")
    (tmp_path / "text.db").write_text("this is no database, and much longer than a header of SQLite is" * 20)
    assert "text.db: cannot be opened: " in fails(scenario, *common, str(tmp_path / "text.db"))
    (tmp_path / "file").write_text("")
    assert "cannot be opened: " in fails(scenario, *common, str(tmp_path / "file" / "s.db"))
    message = fails(scenario, *common, "nosuchdb://me:secret@host/name")
    assert message.startswith("--storage nosuchdb://me:***@host/name: cannot be opened: ")
    assert "secret" not in message


def test_a_folder_that_cannot_be_written_is_told_before_anything_is_simulated(
    scenario: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sim.simulate, "simulate", None)
    (tmp_path / "file").write_text("")
    result = invoke(scenario, *LATENCIES, *FLAGS, "--storage", str(tmp_path / "s.db"), out=tmp_path / "file")
    assert isinstance(result.exception, UserError)
    assert "is a file; choose another folder" in str(result.exception)


def test_without_optuna_the_extra_is_named(scenario: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    message = fails(scenario, *LATENCIES, *FLAGS)
    assert message == "search: Optuna is not installed; install it with: pip install 'headcount[search]'"


def test_progress_names_failed_trials(capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress()
    progress.report(SearchProgress(1, 4, 1, Trial(3, {}, "running"), "RuntimeError: boom"))
    progress.began -= 60
    progress.report(SearchProgress(2, 4, 1))
    progress.clear()
    first, second = capsys.readouterr().err.splitlines()
    assert first == "failed: trial 3: RuntimeError: boom"
    assert second.startswith("2 of 4 configurations, 1 on the front, ")


def test_with_a_fitted_profile_the_interval_is_that_of_the_run_alone(tmp_path: Path) -> None:
    path = write(tmp_path, USERS)
    fitted = ("--set", "server.profile=llama-3.1-8b-rtx-4090", "--set", "server.model=meta-llama/Llama-3.1-8B-Instruct")
    result = invoke(path, *fitted, "--maximize", "users", "--vary", "max_num_seqs=4", "--json")
    (trial,) = json.loads(result.stdout)["trials"]
    answer = rerun(trial["run"])["supported_users"]
    assert (trial["measures"]["users"], trial["low"], trial["high"]) == tuple(
        answer[name] for name in ("value", "low", "high")
    )
    assert trial["calibrated"] is True
