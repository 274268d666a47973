"""The recorder writes what it sees, costs little, and whatever goes wrong with it never reaches the engine."""

from __future__ import annotations

import json
import logging
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from calibrate import step_writer
from calibrate.step_reader import read_steps
from calibrate.step_writer import StepWriter


class _Engine:
    """Stands for vLLM's scheduler, its requests and its outputs: only what the recorder reads of them."""

    def __init__(self, num_requests: int = 0) -> None:
        self.requests: dict[str, Any] = {}
        self.kv_cache_manager = SimpleNamespace(block_pool=SimpleNamespace(get_num_free_blocks=lambda: 77))
        for number in range(num_requests):
            self.add(number)

    def add(self, number: int, **fields: Any) -> Any:
        request = SimpleNamespace(
            request_id=f"cmpl-{number:032x}-0",
            num_prompt_tokens=64,
            max_tokens=10,
            priority=0,
            arrival_time=1.5,
            block_hashes=[number.to_bytes(32, "big"), b"\x01" * 32],
            num_computed_tokens=65,
            num_output_tokens=1,
            status=SimpleNamespace(name="FINISHED_LENGTH_CAPPED"),
            **fields,
        )
        self.requests[request.request_id] = request
        return request

    def get_request_counts(self) -> tuple[int, int]:
        return len(self.requests), 3

    def output(self, num_new: int = 0) -> Any:
        tokens = dict.fromkeys(self.requests, 1)
        new = [SimpleNamespace(req_id=name) for name in list(tokens)[:num_new]]
        return SimpleNamespace(num_scheduled_tokens=tokens, scheduled_new_reqs=new)


def _step(writer: StepWriter, engine: _Engine, num_new: int = 0) -> None:
    output = engine.output(num_new)
    writer.scheduled(engine, output, writer.clock())
    writer.completed(engine, output, writer.clock())


def test_a_step_is_one_line_with_all_that_the_fit_and_the_replay_need(tmp_path: Path) -> None:
    engine, path = _Engine(2), tmp_path / "steps.jsonl"
    clock = iter(float(i) for i in range(100))
    writer = StepWriter(path, {"vllm": "0.32.0", "async_scheduling": False}, clock=lambda: next(clock))
    requests = list(engine.requests.values())
    for request in requests:
        writer.added(request)
    _step(writer, engine, num_new=2)
    writer.preempted(requests[1])
    _step(writer, engine)
    requests[0].block_hashes.append(b"\x02" * 32)
    writer.ended(requests[0])
    writer.reset()
    writer.close()
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert [line["ev"] for line in lines] == ["init", "add", "add", "step", "step", "end", "reset"]
    assert lines[3] == {
        "ev": "step", "t0": 3.0, "t1": 4.0, "n": [0, 1], "tok": [1, 1], "ctx": [64, 64], "run": 2, "wait": 3,
        "free": 77, "hits": {"0": 64, "1": 64}, "t2": 5.0, "t3": 6.0, "free_end": 77,
    }  # fmt: skip
    assert lines[4]["pre"] == [1]
    assert lines[4]["hits"] == {"1": 64}  # preempted, and back in the same step
    assert lines[5]["hashes"] == ["02" * 8]  # the answer's blocks; the prompt's came with the request
    assert (lines[5]["why"], lines[5]["after"], lines[5]["done"]) == ("length", 2, 2)
    record = read_steps(path)
    assert record.server["vllm"] == "0.32.0"
    assert record.has_hashes
    assert record.resets == [(2, 2)]
    assert record.recorder_s is not None
    assert record.recorder_s > 0


def test_an_idle_call_is_no_step_and_an_empty_one_keeps_its_place(tmp_path: Path) -> None:
    engine, path = _Engine(), tmp_path / "steps.jsonl"
    writer = StepWriter(path, {"async_scheduling": True})
    idle = SimpleNamespace(num_scheduled_tokens={}, scheduled_new_reqs=[])
    engine.get_request_counts = lambda: (0, 0)  # type: ignore[method-assign]
    writer.scheduled(engine, idle, 0.0)
    del engine.get_request_counts
    writer.added(engine.add(0))
    output = engine.output()
    writer.scheduled(engine, output, 1.0)
    writer.scheduled(engine, idle, 2.0)  # while the first is in flight
    writer.completed(engine, output, 3.0)
    writer.close()
    assert [step.schedule_ns for step in read_steps(path).steps] == [1_000_000_000, 2_000_000_000]


def test_a_full_disk_stops_the_recorder_and_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("needs /dev/full")
    engine = _Engine(3)
    writer = StepWriter(full, {})
    with caplog.at_level(logging.WARNING, logger="vllm.headcount"):
        deadline = time.monotonic() + 30
        while not writer.failed and time.monotonic() < deadline:
            _step(writer, engine)  # no request was added, so this fails as well: whichever comes first is said
        writer.close()
    assert writer.failed
    assert len(caplog.records) == 1
    assert "Serving goes on" in caplog.text


@pytest.mark.parametrize("path", ["missing/steps.jsonl", "."])
def test_a_file_that_cannot_be_opened_stops_the_recorder(tmp_path: Path, path: str) -> None:
    writer = StepWriter(tmp_path / path, {})
    writer.close()
    assert writer.failed


def test_no_error_in_the_recorder_reaches_the_engine(tmp_path: Path) -> None:
    engine = _Engine(1)
    for break_it in ("added", "scheduled", "completed", "ended", "preempted"):
        writer = StepWriter(tmp_path / f"{break_it}.jsonl", {})
        args = {"scheduled": (engine, None, 0.0), "completed": (engine, engine.output(), 0.0)}.get(break_it, (None,))
        getattr(writer, break_it)(*args)
        assert writer.failed
        _step(writer, engine)  # does nothing any more
        writer.close()


def test_a_disk_that_is_too_slow_stops_the_recorder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_writer, "MAX_QUEUED_BYTES", 2_000)
    monkeypatch.setattr(step_writer, "FLUSH_INTERVAL_S", 3_600.0)
    engine = _Engine(1)
    writer = StepWriter(tmp_path / "steps.jsonl", {})
    writer.added(next(iter(engine.requests.values())))
    for _ in range(100):
        _step(writer, engine)
    assert writer.failed
    writer.close()


def test_recording_takes_less_than_two_percent_of_a_step_of_ten_milliseconds(tmp_path: Path) -> None:
    """The fastest of many steps: what recording takes, and not what else the machine does meanwhile."""
    engine = _Engine(128)
    writer = StepWriter(tmp_path / "steps.jsonl", {})
    for request in engine.requests.values():
        writer.added(request)
    seconds = []
    for _ in range(200):
        before = writer.seconds
        _step(writer, engine)
        seconds.append(writer.seconds - before)
    writer.close()
    assert not writer.failed
    assert min(seconds) < 0.02 * 10e-3
