"""A run on disk holds what the run recorded, is the same bytes for the same run, and is never half written."""

import errno
import json
import resource
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sim.errors import UserError
from sim.records import (
    ItlLog,
    OllamaLog,
    OllamaModel,
    OllamaResponse,
    Outcome,
    RequestRecord,
    RunRecord,
    StepLog,
)
from sim.results.storage import check_writable, versions, write_run, write_text
from sim.results.tables import ROW_GROUP
from tests.sim.results.toys import S, add_gaps, add_step, empty_run, finished, request

FILES = ["itl.parquet", "manifest.json", "preemptions.parquet", "requests.parquet", "steps.parquet"]
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


def test_the_columns_are_as_documented(tmp_path: Path) -> None:
    write_run(tmp_path, some_run(), MANIFEST)
    names = pa.dictionary(pa.int32(), pa.string())
    requests = {field.name: pa.int64() for field in fields(RequestRecord)}
    requests = {"class_name" if name == "class_id" else name: kind for name, kind in requests.items()}
    requests |= {"class_name": names, "outcome": names}
    for file, known in (
        ("requests", requests),
        ("steps", {field.name: pa.int64() for field in fields(StepLog)}),
        ("itl", {field.name: pa.int64() for field in fields(ItlLog)}),
    ):
        schema = pq.read_schema(tmp_path / f"{file}.parquet")
        assert dict(zip(schema.names, schema.types, strict=True)) == known


def test_a_long_run_is_written_in_row_groups(tmp_path: Path) -> None:
    run = empty_run()
    run.requests += [finished(n, n * S, S + n, decode_ns=n, tokens=2) for n in range(ROW_GROUP + 5)]
    for n in range(ROW_GROUP + 5):
        add_step(run, n, n + 1, running=n % 7)
    write_run(tmp_path, run, MANIFEST)
    for file in ("requests", "steps"):
        read = pq.ParquetFile(tmp_path / f"{file}.parquet")
        assert [read.metadata.row_group(group).num_rows for group in range(2)] == [ROW_GROUP, 5]
    finish = pq.read_table(tmp_path / "requests.parquet")["finish_ns"].to_pylist()
    assert finish == [each.finish_ns for each in run.requests]
    running = pq.read_table(tmp_path / "steps.parquet")["num_running"].to_pylist()
    assert running == run.steps.num_running.tolist()


def test_an_answer_of_ollama_may_not_tell_what_was_cached(tmp_path: Path) -> None:
    for cached in (None, 3):
        run = empty_run()
        model = OllamaModel("llama3", 1, 4096, 512, 1, 2, 3, 4, 5)
        run.ollama = OllamaLog((model,), [OllamaResponse(0, 0, 9, 1, 5, 2, 4, 3, cached)])
        write_run(tmp_path, run, MANIFEST)
        (row,) = pq.read_table(tmp_path / "responses.parquet").to_pylist()
        assert (row["model"], row["total_duration"], row["prompt_eval_cached_count"]) == ("llama3", 9, cached)


def test_writing_does_not_import_pandas(tmp_path: Path) -> None:
    text = (
        "import sys; from pathlib import Path; from tests.sim.results.test_storage import some_run, write_run\n"
        "before = 'pandas' in sys.modules; write_run(Path(sys.argv[1]), some_run(), {})\n"
        "sys.exit(before or 'pandas' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", text, str(tmp_path)], check=True)


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


@pytest.mark.parametrize("folder", ["file", "file/out/deep"])
def test_a_file_in_the_place_of_a_folder_is_named(tmp_path: Path, folder: str) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(UserError) as caught:
        check_writable(tmp_path / folder)
    said = f"{tmp_path / folder}: cannot be made: {tmp_path / 'file'} is a file; choose another folder with --out"
    assert str(caught.value) == said


def test_to_check_a_folder_leaves_nothing_in_it(tmp_path: Path) -> None:
    check_writable(tmp_path / "new" / "folder")
    assert not list((tmp_path / "new" / "folder").iterdir())


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


def test_a_disk_that_fills_up_under_a_table_is_one_line(tmp_path: Path) -> None:
    run = empty_run()
    for n in range(50_000):
        add_step(run, n**3 % 65_537, n**5 % 65_539, running=n * 7919 % 257)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    try:
        with pytest.raises(UserError, match=r"steps.parquet: cannot be written: .*File too large"):
            write_run(tmp_path, run, MANIFEST)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [path.name for path in tmp_path.iterdir()] == ["requests.parquet"]


def test_an_interrupt_leaves_no_half_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(path: Path, text: str, **_: object) -> None:
        path.write_bytes(text[:1].encode())
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "write_text", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_text(tmp_path / "result.json", "new")
    assert list(tmp_path.iterdir()) == []
