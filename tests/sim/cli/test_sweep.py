"""`headcount sweep`: the table on stdout, the same bytes each time; progress and failures on stderr; an exit code."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

import sim.simulate
from sim.cli.sweep import Progress, sweep
from sim.errors import UserError
from sim.records import RunRecord
from sim.scenario.model import Scenario
from sim.sweep import SweepProgress
from tests.sim.cli.processes import wait_for_end, workers_of
from tests.sim.sweep.made import USERS, write


def write_scenario(folder: Path) -> Path:
    return write(folder, USERS)


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    return write_scenario(tmp_path)


def invoke(path: Path, *arguments: str, jobs: int | None = 1) -> Result:
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(sweep)
    parallel = [] if jobs is None else ["--jobs", str(jobs)]
    return CliRunner().invoke(app, [str(path), *parallel, *arguments])


def fails(path: Path, *arguments: str) -> str:
    result = invoke(path, *arguments)
    assert isinstance(result.exception, UserError), result.output
    return str(result.exception)


def test_one_row_a_point_in_order_and_the_same_bytes_on_any_number_of_cores(scenario: Path, tmp_path: Path) -> None:
    vary = ("--vary", "server.max_num_seqs=2,8", "--vary", "users=2:6:2")
    one = invoke(scenario, *vary, "--out", str(tmp_path / "one"))
    two = invoke(scenario, *vary, "--out", str(tmp_path / "two"), jobs=2)
    assert (one.exit_code, two.exit_code) == (0, 0)
    assert one.stdout == two.stdout
    lines = one.stdout.splitlines()
    assert lines[0] == "tiny: 2 x 3 points, 2 seeds each (latencies in ms, means over the seeds)"
    assert lines[1].startswith("step times: UNCALIBRATED")
    rows = [line.split() for line in lines[4:10]]
    assert [row[:2] for row in rows] == [[seqs, users] for seqs in ("2", "8") for users in ("2", "4", "6")]
    assert all(line.rstrip().endswith("met") or "broken: " in line for line in lines[4:10])
    for name in ("sweep.json", "points.csv", "points.parquet", "runs.csv", "runs.parquet"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_the_columns_of_header_and_rows_line_up(scenario: Path, tmp_path: Path) -> None:
    lines = invoke(scenario, "--vary", "users=2,4", "--out", str(tmp_path / "o")).stdout.splitlines()
    header, *rows = lines[3:6]
    assert {row.index("  met") for row in rows} == {header.index("  objectives")}


def test_what_is_finished_is_found_again(scenario: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ("--vary", "users=2,4", "--out", str(tmp_path / "o"), "--json")
    first = invoke(scenario, *arguments)
    monkeypatch.setattr(sim.simulate, "simulate", None)
    assert invoke(scenario, *arguments).stdout == first.stdout
    fewer = json.loads(invoke(scenario, *arguments, "--seeds", "1").stdout)
    assert [point["seeds"] for point in fewer["points"]] == [1, 1]


def test_json_is_one_object_with_a_row_a_point(scenario: Path, tmp_path: Path) -> None:
    result = invoke(
        scenario, "--vary", "users=2,4", "--set", "run.duration=10s", "--out", str(tmp_path / "o"), "--json"
    )
    document = json.loads(result.stdout)
    assert document["complete"] is True
    assert [point["users"] for point in document["points"]] == [2, 4]
    assert all(point["duration_s"] < 20 for point in document["points"])
    assert result.stdout == (tmp_path / "o" / "sweep.json").read_text()


def test_by_default_everything_lies_in_a_folder_of_the_scenario(
    scenario: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert invoke(scenario, "--vary", "users=2", "--set", "name=my team/1").exit_code == 0
    assert (tmp_path / "out" / "my-team-1" / "sweep" / "points.csv").exists()


def test_shards_write_no_tables_and_the_whole_puts_them_together(scenario: Path, tmp_path: Path) -> None:
    vary = ("--vary", "users=2,4,6", "--vary", "server.max_num_seqs=2,8")
    whole = invoke(scenario, *vary, "--out", str(tmp_path / "whole"))
    for index in ("1", "2"):
        part = invoke(scenario, *vary, "--out", str(tmp_path / "o"), "--shard", f"{index}/2")
        assert part.exit_code == 0
        assert f"part {index} of 2: each row is the mean over this part's runs alone\n" in part.stdout
    assert "part" not in whole.stdout
    assert sorted(path.name for path in (tmp_path / "o").iterdir()) == ["runs"]
    assert len(list((tmp_path / "o" / "runs").iterdir())) == 12
    assert invoke(scenario, *vary, "--out", str(tmp_path / "o")).stdout == whole.stdout


def test_failed_points_are_in_the_table_with_their_cause_and_the_exit_code_tells(
    scenario: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulate = sim.simulate.simulate

    def flawed(scenario: Scenario, *, seed: int, load: float | None = None) -> RunRecord:
        if scenario.server.flags.max_num_seqs == 7:
            raise RuntimeError("boom")
        return simulate(scenario, seed=seed, load=load)

    monkeypatch.setattr(sim.simulate, "simulate", flawed)
    vary = ("--vary", "server.max_num_seqs=6,7,9000", "--vary", "users=2", "--set", "server.max_num_batched_tokens=512")
    result = invoke(scenario, *vary, "--out", str(tmp_path / "o"))
    assert result.exit_code == 1
    good, bad, refused = result.stdout.splitlines()[4:7]
    assert good.endswith("  met")
    assert bad.endswith("failed: seed 0, 1: RuntimeError: boom")
    assert "  failed: server.flags.max_num_batched_tokens: must be at least max_num_seqs" in refused
    told = result.stderr.splitlines()
    assert told[0].startswith("failed: server.max_num_seqs=7 users=2 seed 0: RuntimeError: boom (traceback in ")
    assert len(told) == 2


def test_ctrl_c_keeps_what_is_finished_and_says_how_to_go_on(
    scenario: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulate = sim.simulate.simulate
    made: list[int] = []

    def interrupted(scenario: Scenario, *, seed: int, load: float | None = None) -> RunRecord:
        if len(made) == 3:
            raise KeyboardInterrupt
        made.append(seed)
        return simulate(scenario, seed=seed, load=load)

    monkeypatch.setattr(sim.simulate, "simulate", interrupted)
    arguments = ("--vary", "users=2,4,6", "--out", str(tmp_path / "o"))
    result = invoke(scenario, *arguments)
    assert result.exit_code == 130
    assert len(result.stdout.splitlines()) == 5
    assert result.stderr.strip().endswith(
        f"interrupted: 3 of 6 runs are finished and kept in {tmp_path / 'o'}; the same command goes on from there"
    )
    monkeypatch.setattr(sim.simulate, "simulate", simulate)
    resumed = invoke(scenario, *arguments)
    assert resumed.stdout == invoke(scenario, "--vary", "users=2,4,6", "--out", str(tmp_path / "new")).stdout


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_workers_too(scenario: Path, tmp_path: Path, number: signal.Signals) -> None:
    code = "import sys, typer\nfrom sim.cli.sweep import sweep\ntyper.run(sweep)"
    long = ["--set", "run.duration=100h", "--set", "run.warm_up=0s"]
    command = [sys.executable, "-c", code, str(scenario), "--vary", "users=50,60", *long, "--out", str(tmp_path / "o")]
    process = subprocess.Popen([*command, "--jobs", "2"], stderr=subprocess.PIPE, text=True, start_new_session=True)
    deadline = time.monotonic() + 60
    while len(workers := workers_of(process.pid)) < 2 and time.monotonic() < deadline:
        time.sleep(0.1)
    process.send_signal(number)
    assert "interrupted: 0 of 4 runs are finished" in process.communicate(timeout=60)[1]
    assert process.returncode == 130
    assert workers
    for worker in workers:
        wait_for_end(worker, deadline + 60)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--vary: missing; "),
        (["--vary", "users=2", "--shard", "3/2"], "--shard 3/2: expected I/N with I from 1 to N, for example 1/4"),
        (["--vary", "users=2", "--shard", "0/2"], "--shard 0/2: expected I/N"),
        (["--vary", "users=2", "--shard", "half"], "--shard half: expected I/N"),
        (["--vary", "server.max_num_seqz=2", "--vary", "users=2"], "did you mean 'flags.max_num_seqs'?"),
        (["--vary", "users=2", "--variant", "wide"], "unknown variant 'wide'"),
    ],
)
def test_bad_input_is_one_line_and_nothing_on_stdout(
    scenario: Path, tmp_path: Path, arguments: list[str], message: str
) -> None:
    assert message in (said := fails(scenario, "--out", str(tmp_path / "o"), *arguments))
    assert "\n" not in said
    assert not (tmp_path / "o").exists()


def test_a_folder_that_cannot_be_written_is_told_before_the_first_run(scenario: Path) -> None:
    said = fails(scenario, "--vary", "users=2", "--out", str(scenario / "below-a-file"))
    assert said.endswith(f"cannot be made: {scenario} is a file; choose another folder with --out")


def test_progress_tells_the_time_that_is_left(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    progress = Progress(began=100.0)
    clock = iter([101.0, 103.0, 104.0, 140.0])
    monkeypatch.setattr("sim.cli.progress.time.monotonic", lambda: next(clock))
    told: dict[str, Any] = {"num_runs": 9, "work": 40.0}
    for number, work in ((0, 0), (3, 5), (4, 8), (8, 32)):
        progress.report(SweepProgress(num_done=number, num_made=number, work_done=work, **told))
    progress.clear()
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines() == ["3 of 9 runs, 3 s", "8 of 9 runs, 40 s, about 10 s left"]


def test_importing_the_command_loads_nothing_heavy() -> None:
    heavy = ("numpy", "scipy", "pyarrow", "pydantic", "joblib", "ray")
    code = f"import sys, sim.cli.sweep; print([name for name in {heavy} if name in sys.modules])"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout == "[]\n"
