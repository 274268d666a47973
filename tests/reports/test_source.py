"""What was written is read back as it was, and what is missing or broken is said in one line."""

import json
import shutil
from pathlib import Path

import pytest

from reports.source import Source
from reports.stored_run import read_run
from sim.capacity import find_capacity
from sim.errors import UserError
from sim.records import Outcome, RunRecord
from sim.results.folder import ResultFolder
from sim.scenario.model import scenario_hash
from sim.simulate import simulate
from tests.reports import sample
from tests.reports.worlds import run


def test_a_run_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    record = run("public", ("workload.client_timeout=1750ms",)).run
    assert {request.outcome for request in record.requests} == {Outcome.FINISHED, Outcome.TIMED_OUT}
    folder = ResultFolder(tmp_path, "world", "0" * 64, "requests_per_s")
    folder(record, 2.0, 0)
    assert read_run(tmp_path / "requests_per_s-2" / "seed-0") == record


def test_a_class_without_requests_keeps_its_number(tmp_path: Path) -> None:
    record = run("chat").run
    assert record.class_names == ("chat", "document")
    ResultFolder(tmp_path, "world", "0" * 64, "users")(record, 12.0, 0)
    assert read_run(tmp_path / "users-12" / "seed-0") == record


def test_an_empty_run_is_read_back(tmp_path: Path) -> None:
    record = RunRecord(("only",), 11, 16, 4, 100, 1, False)
    ResultFolder(tmp_path, "empty", "0" * 64, "users")(record, None, 3)
    assert read_run(tmp_path / "own-load" / "seed-3") == record


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sample, as `headcount run --out` would have stored its runs at two loads."""
    folder = tmp_path_factory.mktemp("stored")
    source = sample.source()
    keeper = ResultFolder(folder, source.name, source.document["scenario_hash"], source.unit)
    for (load, seed), record in source._runs.items():
        if load in (source.shown_load, source.broken_load):
            keeper(record, load, seed)
    keeper.write_result(json.dumps(source.document))
    return folder


def test_a_folder_gives_what_memory_gives(stored: Path) -> None:
    from_disk, in_memory = Source.read(stored, sample.scenario()), sample.source()
    for load in (in_memory.shown_load, in_memory.broken_load):
        ours, theirs = from_disk.detail(load), in_memory.detail(load)
        assert ours is not None
        assert ours == theirs
    assert from_disk.document == in_memory.document


def test_a_stored_scenario_is_found(stored: Path) -> None:
    assert Source.read(stored).scenario is None
    text = json.dumps(sample.scenario().model_dump(mode="json", by_alias=True))
    (stored / "scenario.json").write_text(text)
    found = Source.read(stored).scenario
    assert found is not None
    assert scenario_hash(found) == scenario_hash(sample.scenario())
    (stored / "scenario.json").unlink()


def test_a_what_if_of_another_scenario_is_not_taken(stored: Path) -> None:
    what_if = json.loads(sample.WHAT_IF.read_text())
    (stored / "what-if.json").write_text(json.dumps(what_if))
    assert Source.read(stored).what_if == what_if
    (stored / "what-if.json").write_text(json.dumps(what_if | {"scenario_hash": "other"}))
    assert Source.read(stored).what_if is None
    (stored / "what-if.json").unlink()


def test_the_run_that_is_shown_is_the_worst_of_its_load() -> None:
    source = sample.source()
    point = source.point(source.broken_load)
    assert point is not None
    judged = next(each for each in point["objectives"] if each["objective"] == source.document["binding_objective"])
    worst = max(zip(judged["per_seed"], point["seeds"], strict=True))[1]
    detail = source.detail(source.broken_load)
    assert detail is not None
    assert detail.seed == worst


def test_a_single_load_shows_itself() -> None:
    scenario = sample.scenario().model_copy(update={"search": None})
    data = scenario.model_copy(update={"workload": scenario.workload.model_copy(update={"users": 5})})
    source = Source.of_result(data, find_capacity(data, simulate), {})
    assert (source.shown_load, source.broken_load) == (5, None)


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        (None, "", "no result.json: give a folder that `headcount run --out DIR` wrote"),
        ("result.json", "{", "not valid JSON"),
        ("result.json", "[]", "a JSON object is expected, got list"),
        ("result.json", '{"format": 99}', "format 99; known: 1"),
    ],
)
def test_a_folder_that_is_none_is_said_in_one_line(tmp_path: Path, file: str | None, text: str, message: str) -> None:
    if file is not None:
        (tmp_path / file).write_text(text)
    with pytest.raises(UserError) as caught:
        Source.read(tmp_path)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_broken_records_are_said_in_one_line(tmp_path: Path) -> None:
    ResultFolder(tmp_path, "world", "0" * 64, "users")(run("chat").run, 1.0, 0)
    folder = tmp_path / "users-1" / "seed-0"
    (folder / "steps.parquet").write_bytes(b"not parquet")
    with pytest.raises(UserError, match=r"steps\.parquet: not a Parquet file of a run"):
        read_run(folder)
    (folder / "steps.parquet").unlink()
    with pytest.raises(UserError, match=r"steps\.parquet: cannot be read"):
        read_run(folder)
    (folder / "manifest.json").write_text('{"format": 1}')
    with pytest.raises(UserError, match="format 1; this version reads format 2"):
        read_run(folder)


def test_another_scenario_is_refused(stored: Path) -> None:
    other = sample.scenario().model_copy(update={"name": "other"})
    with pytest.raises(UserError, match="--scenario: not the scenario that"):
        Source.read(stored, other)


def test_the_stored_scenario_is_run_again_with_the_files_of_the_one_given(stored: Path) -> None:
    text = json.dumps(sample.scenario().model_dump(mode="json", by_alias=True))
    (stored / "scenario.json").write_text(text)
    other = sample.scenario().model_copy(update={"name": "other"}).with_base_dir(Path("elsewhere"))
    found = Source.read(stored, other).scenario
    (stored / "scenario.json").unlink()
    assert found is not None
    assert (found.name, found.resolve("x")) == ("small-office", Path("elsewhere/x"))


def test_a_run_that_was_not_kept_is_said_with_the_loads_that_were(stored: Path) -> None:
    source = Source.read(stored)
    kept = sorted({load for load in (source.shown_load, source.broken_load) if load is not None})
    with pytest.raises(UserError) as error:
        source.chosen_run(7, 9)
    assert str(error.value).endswith(f"no run at load 7, seed 9 was kept; loads: {kept[0]:g}, {kept[1]:g}")


def test_a_run_that_another_scenario_left_in_the_folder_is_not_shown(stored: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(stored, tmp_path / "again")
    source = Source.read(folder)
    assert source.broken_load is not None
    assert source.run(source.broken_load, 0) is not None
    for manifest in folder.glob("*/seed-*/manifest.json"):
        manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"scenario_hash": "other"}))
    source = Source.read(folder)
    assert source.run(source.broken_load, 0) is None
    with pytest.raises(UserError, match=r"was kept; loads: none"):
        source.chosen_run(source.broken_load, None)
