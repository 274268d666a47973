"""`headcount check-schedule` takes recorded schedules and step records alike, and says which differ and where."""

import json
import shutil
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from sim.cli.check_schedule import check_schedule
from sim.core.request import Request
from tests.calibrate.simulated_record import Arrival, RecordedSimulation

SCHEDULE = Path(__file__).parents[2] / "fixtures" / "schedules" / "aborts-sync-000061.jsonl.gz"


def invoke(*arguments: str | Path) -> Result:
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(check_schedule)
    return CliRunner().invoke(app, [str(each) for each in arguments])


@pytest.fixture
def steps(tmp_path: Path) -> Path:
    path = tmp_path / "steps.jsonl"
    requests = [Request(n, ((0, 32), (10 + n, 90)), 60, n, 1000 + n) for n in range(12)]
    RecordedSimulation(path, [Arrival(500 * request.request_id, request) for request in requests], num_gpu_blocks=40)
    return path


def test_both_kinds_are_replayed_and_equal(steps: Path) -> None:
    result = invoke(SCHEDULE, steps)
    assert result.exit_code == 0, result.output
    first, second = result.stdout.splitlines()
    assert first.startswith(f"{SCHEDULE}: equal (")
    assert second.startswith(f"{steps}: equal (")
    assert second.endswith("steps, 12 requests)")


def test_json_is_one_object_a_file(steps: Path) -> None:
    rows = [json.loads(line) for line in invoke(SCHEDULE, steps, "--json").stdout.splitlines()]
    assert [(row["file"], row["equal"], row["difference"]) for row in rows] == [
        (str(SCHEDULE), True, None),
        (str(steps), True, None),
    ]
    assert rows[1]["preemptions"] > 0
    assert rows[1]["hits_taken_from_the_record"] == 0


def test_a_step_that_differs_is_named_and_the_exit_code_is_1(steps: Path) -> None:
    lines = steps.read_text().splitlines()
    place = [number for number, line in enumerate(lines) if '"ev":"step"' in line][20]
    event = json.loads(lines[place])
    event["run"] += 1
    lines[place] = json.dumps(event)
    steps.write_text("\n".join(lines) + "\n")
    result = invoke(steps)
    assert result.exit_code == 1
    assert result.stdout.startswith(f"{steps}: DIFFERENT: step 21: running: recorded ")


def test_a_record_cut_in_the_middle_of_a_line_is_used_up_to_there(steps: Path) -> None:
    steps.write_bytes(steps.read_bytes()[:-30])
    result = invoke(steps)
    assert result.exit_code == 0
    assert "warning: " in result.stderr
    assert ": cut short in line " in result.stderr
    assert ": equal (" in result.stdout


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"ev":"init","max_num', ":1:14: not JSON "),
        ('{"ev":"step"}\n', ':1:1: not a step record: its first line must be an object with "ev": "init"'),
        ("nothing\n", ""),
        ("", ""),
    ],
)
def test_what_cannot_be_read_is_one_line_and_the_others_are_checked(tmp_path: Path, text: str, message: str) -> None:
    bad = tmp_path / "bad.jsonl"
    bad.write_text(text)
    result = invoke(bad, SCHEDULE)
    assert result.exit_code == 2
    assert result.stdout.startswith(f"{SCHEDULE}: equal (")
    assert len(result.stderr.splitlines()) == 1
    assert result.stderr.startswith(f"{bad}{message}")


def test_a_missing_file_is_one_line(tmp_path: Path) -> None:
    shutil.copy(SCHEDULE, tmp_path / "there.jsonl.gz")
    result = invoke(tmp_path / "not there.jsonl", tmp_path / "there.jsonl.gz")
    assert result.exit_code == 2
    assert len(result.stderr.splitlines()) == 1
    assert "not there.jsonl" in result.stderr
