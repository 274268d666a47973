"""A run on disk holds what the run recorded, is the same bytes for the same run, and is never half written."""

import errno
import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from sim.errors import UserError
from sim.records import Outcome, RunRecord
from sim.results.storage import versions, write_run, write_text
from tests.sim.results.toys import S, add_gaps, add_step, empty_run, finished, request

FILES = ["itl.parquet", "manifest.json", "requests.parquet", "steps.parquet"]
MANIFEST = {"scenario": "toy", "scenario_hash": "ab12", "seed": 3, "load": 8}


def some_run() -> RunRecord:
    run = empty_run()
    run.class_names = ("chat", "document")
    run.requests.append(finished(0, 0, S, decode_ns=S, tokens=3, class_id=1))
    run.requests.append(request(1, S, finish_ns=2 * S, outcome=Outcome.TIMED_OUT))
    add_step(run, 0, 2 * S, running=1, waiting=1)
    add_gaps(run, 2 * S, S, 2, class_id=1)
    run.warnings.append("something to know")
    run.end_ns = run.arrivals_end_ns = 2 * S
    return run


def test_the_tables_hold_every_record(tmp_path: Path) -> None:
    write_run(tmp_path / "made" / "on the way", some_run(), MANIFEST)
    folder = tmp_path / "made" / "on the way"
    assert sorted(path.name for path in folder.iterdir()) == FILES
    rows = pq.read_table(folder / "requests.parquet").to_pylist()
    assert [row["class_name"] for row in rows] == ["document", "chat"]
    assert [row["outcome"] for row in rows] == ["finished", "timed_out"]
    assert [row["first_token_ns"] for row in rows] == [S, -1]
    steps = pq.read_table(folder / "steps.parquet").to_pylist()
    assert (steps[0]["end_ns"], steps[0]["num_waiting"]) == (2 * S, 1)
    assert pq.read_table(folder / "itl.parquet").to_pylist() == [
        {"end_ns": 2 * S, "gap_ns": S, "class_id": 1, "count": 2}
    ]


def test_the_manifest_says_what_the_files_are(tmp_path: Path) -> None:
    write_run(tmp_path, some_run(), MANIFEST)
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert MANIFEST.items() <= manifest.items()
    assert manifest["versions"] == versions()
    assert set(manifest["versions"]) == {"headcount", "python", "numpy", "simpy", "pyarrow"}
    assert manifest["server"]["num_gpu_blocks"] == 101
    assert manifest["warnings"] == ["something to know"]


def test_the_same_run_is_the_same_bytes(tmp_path: Path) -> None:
    for name in ("first", "second"):
        write_run(tmp_path / name, some_run(), MANIFEST)
    for file in FILES:
        assert (tmp_path / "first" / file).read_bytes() == (tmp_path / "second" / file).read_bytes()


def test_a_run_without_a_request_can_be_kept(tmp_path: Path) -> None:
    write_run(tmp_path, empty_run(), MANIFEST)
    assert pq.read_table(tmp_path / "requests.parquet").num_rows == 0
    assert "sent_ns" in pq.read_table(tmp_path / "requests.parquet").column_names


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(UserError, match=r"file/out/requests.parquet: cannot be written: Not a directory; choose"):
        write_run(tmp_path / "file" / "out", some_run(), MANIFEST)


def test_a_full_disk_is_one_line_and_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_text(tmp_path / "result.json", "old")

    def full(path: Path, text: str, **_: object) -> None:
        path.write_bytes(text[:1].encode())
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(UserError, match=r"result.json: cannot be written: No space left on device"):
        write_text(tmp_path / "result.json", "new")
    assert [path.name for path in tmp_path.iterdir()] == ["result.json"]
    assert (tmp_path / "result.json").read_bytes() == b"old"


def test_an_interrupt_leaves_no_half_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(path: Path, text: str, **_: object) -> None:
        path.write_bytes(text[:1].encode())
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "write_text", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_text(tmp_path / "result.json", "new")
    assert list(tmp_path.iterdir()) == []
