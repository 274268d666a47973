"""`headcount run`: the answer on stdout, the same bytes each time, and an exit code that says which answer it is."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

import pytest
import typer
from jsonschema import Draft202012Validator
from typer.testing import CliRunner, Result

import sim.simulate
from sim.cli.app import app
from sim.cli.run import Progress, run
from sim.errors import UserError
from sim.records import RunRecord
from sim.scenario.model import Scenario
from tests.sim.cli.processes import wait_for_end, workers_of

SCENARIO = """
name: tiny
server: {kind: vllm, model: Qwen/Qwen2.5-7B-Instruct, gpu: rtx-4090, flags: {max_model_len: 8192, max_num_seqs: 8}}
workload:
  kind: users
  classes:
    - name: chat
      first_prompt_tokens: 500
      next_prompt_tokens: 100
      output_tokens: 100
      turns: 4
      think_time: {exponential: {mean: 5s}}
objectives: [ttft.p95 <= 1s, errors <= 1%]
search: {vary: users, from: 4, to: 64}
run: {duration: 40s, warm_up: 10s, seeds: 2}
active_share: 0.5
variants:
  narrow: {server.max_num_seqs: 2}
"""


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.yaml"
    path.write_text(SCENARIO)
    return path


def invoke(path: Path, *arguments: str) -> Result:
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(run)
    return CliRunner().invoke(app, [str(path), "--jobs", "1", *arguments])


def fails(path: Path, *arguments: str) -> str:
    result = invoke(path, *arguments)
    assert isinstance(result.exception, UserError), result.output
    assert result.stdout == ""
    return str(result.exception)


def test_a_search_answers_in_the_first_line_and_succeeds(scenario: Path) -> None:
    result = invoke(scenario)
    assert result.exit_code == 0
    first = result.stdout.splitlines()[0]
    assert first.startswith("tiny: ")
    assert "users supported (95 % interval" in first
    assert "\nWhy not more\n" in result.stdout
    assert "bound by max_num_seqs: " in result.stdout
    assert "UNCALIBRATED" in result.stdout


def test_the_same_scenario_and_seed_print_the_same_bytes_on_any_number_of_cores(
    scenario: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sim.capacity.runs._WORTH_PARALLEL_S", 0.0)
    first, second = (invoke(scenario, "--json", "--jobs", jobs) for jobs in ("1", "2"))
    assert first.stdout_bytes == second.stdout_bytes
    assert invoke(scenario, "--json", "--seed", "9").stdout_bytes != first.stdout_bytes


def test_json_is_one_object_that_keeps_to_the_committed_schema(scenario: Path) -> None:
    document = json.loads(invoke(scenario, "--json").stdout)
    Draft202012Validator(json.loads(files("sim.results").joinpath("run.schema.json").read_text())).validate(document)
    supported = document["supported_users"]
    assert supported["low"] <= supported["value"] <= supported["high"]
    assert document["registered_people"] == 2 * supported["value"]
    assert document["binding_resource"] == "max_num_seqs"


def test_the_answer_holds_and_the_next_load_does_not(scenario: Path) -> None:
    document = json.loads(invoke(scenario, "--json").stdout)
    value, after = document["supported_users"]["value"], document["search"]["next_load"]
    assert invoke(scenario, "--users", str(value)).exit_code == 0
    beyond = invoke(scenario, "--users", str(after))
    assert beyond.exit_code == 1
    assert beyond.stdout.startswith(f"tiny at {after} users: NOT supported\n")


def test_a_search_without_a_supported_load_fails(scenario: Path) -> None:
    result = invoke(scenario, "--set", "objectives=['ttft.p95 <= 1ms']", "--set", "search.to=8")
    assert result.exit_code == 1
    assert result.stdout.startswith("tiny: 0 users: not even 1 user is supported\n")


def test_variant_set_and_seeds_change_the_scenario(scenario: Path) -> None:
    changes = ["--variant", "narrow", "--set", "run.duration=20s", "--seeds", "3"]
    document = json.loads(invoke(scenario, "--users", "4", *changes, "--json").stdout)
    assert document["scenario"] == "tiny-narrow"
    assert document["server"]["flags"]["max_num_seqs"] == {"value": 2, "default": False}
    assert document["seeds"] == [0, 1, 2]
    assert "to 20 s of each run" in document["points"][0]["window"]


def test_the_reference_scheduler_gives_the_same_answer(scenario: Path) -> None:
    fast, reference = invoke(scenario, "--users", "6"), invoke(scenario, "--users", "6", "--reference")
    assert fast.stdout_bytes == reference.stdout_bytes


def test_out_keeps_every_run_and_the_result(scenario: Path, tmp_path: Path) -> None:
    out = tmp_path / "kept"
    for name in ("first", "second"):
        assert invoke(scenario, "--users", "6", "--json", "--out", str(out / name)).exit_code == 0
    kept = sorted(path.relative_to(out / "first") for path in (out / "first").rglob("*") if path.is_file())
    names = ("itl.parquet", "manifest.json", "preemptions.parquet", "requests.parquet", "steps.parquet")
    runs = [Path(f"users-6/seed-{seed}/{name}") for seed in (0, 1) for name in names]
    assert kept == sorted([Path("result.json"), Path("scenario.json"), *runs])
    for path in kept:
        assert (out / "first" / path).read_bytes() == (out / "second" / path).read_bytes()
    manifest = json.loads((out / "first" / "users-6" / "seed-1" / "manifest.json").read_text())
    assert (manifest["scenario"], manifest["load"], manifest["seed"]) == ("tiny", 6, 1)
    result = json.loads((out / "first" / "result.json").read_text())
    assert manifest["scenario_hash"] == result["scenario_hash"]


def test_a_folder_that_cannot_be_written_is_told_before_the_first_run(
    scenario: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sim.simulate, "simulate", None)
    message = fails(scenario, "--users", "4", "--out", str(scenario / "below-a-file"))
    assert message.endswith(f"cannot be made: {scenario} is a file; choose another folder with --out")


def test_ctrl_c_prints_what_is_known_and_keeps_what_is_written(
    scenario: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulate, made = sim.simulate.simulate, []

    def interrupted(scenario: Scenario, *, seed: int, load: float | None = None) -> RunRecord:
        if len(made) == 5:
            raise KeyboardInterrupt
        made.append(seed)
        return simulate(scenario, seed=seed, load=load)

    monkeypatch.setattr(sim.simulate, "simulate", interrupted)
    result = invoke(scenario, "--out", str(tmp_path / "kept"))
    assert result.exit_code == 130
    assert result.stdout.startswith("tiny: interrupted, no answer; everything held at 8 users\n")
    assert len(list((tmp_path / "kept").glob("users-*/seed-*/manifest.json"))) == 5
    assert json.loads((tmp_path / "kept" / "result.json").read_text())["search"]["num_runs"] == 5


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_workers_too_and_what_is_known_is_printed(
    scenario: Path, tmp_path: Path, number: signal.Signals
) -> None:
    code = "from sim.cli import main; main()"
    long = ["--users", "8", "--seeds", "500", "--set", "run.duration=10min"]
    command = [
        sys.executable,
        "-c",
        code,
        "run",
        str(scenario),
        *long,
        "--jobs",
        "2",
        "--json",
        "--out",
        str(tmp_path / "o"),
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    deadline = time.monotonic() + 120
    while len(workers := workers_of(process.pid)) < 2 and time.monotonic() < deadline:
        time.sleep(0.1)
    process.send_signal(number)
    document = json.loads(process.communicate(timeout=60)[0])
    assert process.returncode == 130
    assert document["notes"] == ["interrupted: the search was stopped before it had an answer"]
    assert workers
    for worker in workers:
        wait_for_end(worker, deadline + 60)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--rate", "3"], "--rate: the workload of {path} is of kind users, not open_loop; did you mean --users?"),
        (
            ["--concurrency", "3"],
            "--concurrency: the workload of {path} is of kind users, not closed_loop",
        ),
        (["--users", "3", "--rate", "3"], "--users and --rate: give one load; got 2"),
        (["--set", "server.clock_factor=1e-300"], "server.clock_factor: must be at least 0.01; got 1e-300"),
        (
            ["--set", "server.memory.kv_cache_gib=1e300"],
            "server.memory.kv_cache_gib: must be at most 1e+06",
        ),
        (["--set", "workload.client_timeout=1e300h"], "a duration is at most 1e9s (31 years); got '1e300h'"),
        (["--lang", "pt-BR"], "--lang pt-BR: the language of the report, and none is written; add --report"),
        (["--what-if"], "--what-if: changes are simulated for the report, and none is written; add --report"),
        (["--no-what-if"], "--no-what-if: changes are simulated for the report, and none is written; add --report"),
        (["--set", "server.flags.max_num_seq=3"], "did you mean"),
        (["--variant", "wide"], "unknown variant 'wide'"),
        (["--set", "objectives=['tpot.p95[chat] <= 1s']", "--set", "workload.classes.0.output_tokens=1"], "no data"),
    ],
)
def test_bad_input_is_one_line_and_nothing_on_stdout(scenario: Path, arguments: Sequence[str], message: str) -> None:
    said = fails(scenario, *arguments)
    assert message.format(path=scenario) in said
    assert "\n" not in said


def test_an_objective_without_data_is_told_with_its_place_in_the_file(scenario: Path) -> None:
    text = SCENARIO.replace("ttft.p95 <= 1s", "tpot.p95 <= 1s").replace("output_tokens: 100", "output_tokens: 1")
    scenario.write_text(text)
    place = next(n for n, line in enumerate(text.splitlines(), start=1) if "objectives" in line)
    assert fails(scenario, "--users", "4").startswith(f"{scenario}:{place}:14: objectives.0: tpot.p95 <= 1s: no data: ")


def test_progress_is_silent_for_two_seconds_and_goes_to_stderr(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    progress = Progress(began=100.0)
    clock = iter([101.0, 103.0, 104.0, 140.0])
    monkeypatch.setattr("sim.cli.progress.time.monotonic", lambda: next(clock))
    for number in range(1, 5):
        progress.report(number, 8, 0)
    progress.clear()
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines() == ["2 runs, now at load 8, 3 s", "4 runs, now at load 8, 40 s"]


def test_importing_the_command_loads_nothing_heavy() -> None:
    heavy = ("numpy", "scipy", "pyarrow", "pydantic", "joblib")
    code = f"import sys, sim.cli.run; print([name for name in {heavy} if name in sys.modules])"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout == "[]\n"


def test_where_the_step_time_goes_is_said_when_it_is_asked_for(scenario: Path) -> None:
    assert "Where the step time goes" not in invoke(scenario, "--users", "6").stdout
    result = invoke(scenario, "--users", "6", "--step-split")
    assert (
        "Where the step time goes at load 6 (mean step in ms and %; analytical, as its parts add up)" in result.stdout
    )
    document = json.loads(invoke(scenario, "--step-split", "--json").stdout)
    assert document["step_split"]["load"] == document["supported_users"]["value"]
    parts = document["step_split"]["all"]["parts"]
    assert sum(part["share"] for part in parts.values()) == pytest.approx(1, abs=1e-4)
    schema = json.loads(files("sim.results").joinpath("run.schema.json").read_text(encoding="utf-8"))
    Draft202012Validator(schema).validate(document)


def test_an_answer_is_printed_although_the_run_for_its_step_times_is_interrupted(
    scenario: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulate = sim.simulate.simulate

    def interrupted(scenario: Scenario, *, seed: int, load: float | None = None, step_split: bool = False) -> RunRecord:
        if step_split:
            raise KeyboardInterrupt
        return simulate(scenario, seed=seed, load=load)

    monkeypatch.setattr(sim.simulate, "simulate", interrupted)
    result = invoke(scenario, "--users", "6", "--step-split")
    assert result.exit_code == 130
    assert result.stdout == invoke(scenario, "--users", "6").stdout
    assert result.stderr == "interrupted: the answer stands; where the step time goes is not known\n"


def test_ctrl_c_before_anything_is_simulated_is_said(scenario: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("sim.cli.checked.load_checked", interrupted)
    for command in ("run", "check"):
        result = CliRunner().invoke(app, [command, str(scenario)])
        assert (result.exit_code, result.stdout, result.stderr) == (130, "", "interrupted before the end\n")


def test_a_full_disk_is_one_line(scenario: Path) -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("no /dev/full here")
    command = [sys.executable, "-c", "from sim.cli import main; main()", "run", str(scenario), "--users", "2"]
    with full.open("w") as stdout:
        ended = subprocess.run([*command, "--jobs", "1"], stdout=stdout, stderr=subprocess.PIPE, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (2, "the output: cannot be written: No space left on device\n")
