"""Writes step records from inside a vLLM engine, without ever disturbing it. Standard library only.

Three promises: the engine's thread never waits for the disk (a thread of its own writes), no error reaches the engine
(the recorder says once what went wrong and stops), and the file is whole up to where it stops, but for its last line.

The objects it is given are vLLM's own: Scheduler, SchedulerOutput, Request. It reads them and changes nothing.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, Concatenate, ParamSpec

FORMAT = 1
FLUSH_INTERVAL_S = 0.25
MAX_QUEUED_BYTES = 64 << 20
"""When so much waits for the disk, recording stops: the engine's memory is not the recorder's to fill."""

_REASONS = {"FINISHED_STOPPED": "stop", "FINISHED_LENGTH_CAPPED": "length", "FINISHED_ABORTED": "abort"}
_HASH_BYTES = 8

logger = logging.getLogger("vllm.headcount")
_P = ParamSpec("_P")


def _harmless(method: Callable[Concatenate[StepWriter, _P], None]) -> Callable[Concatenate[StepWriter, _P], None]:
    """Keeps every error away from the engine, and counts the time the recorder takes from it."""

    @functools.wraps(method)
    def wrapper(self: StepWriter, /, *args: _P.args, **kwargs: _P.kwargs) -> None:
        if self.failed:
            return
        began = time.perf_counter()
        try:
            method(self, *args, **kwargs)
        except Exception as error:  # whatever it is, the engine must not notice
            self.give_up(f"{type(error).__name__}: {error}")
        self.seconds += time.perf_counter() - began

    return wrapper


class StepWriter:
    """Records one engine's steps in a file.

    Args:
        path: the file; an existing one is replaced.
        server: what to say of the engine in the first line.
        clock: monotonic seconds.

    Attributes:
        failed: recording has stopped for good.
        seconds: time taken from the engine's thread so far.
    """

    def __init__(self, path: Path, server: dict[str, Any], clock: Callable[[], float] = time.monotonic) -> None:
        self.path = path
        self.clock = clock
        self.failed = False
        self.seconds = 0.0
        self._numbers: dict[str, int] = {}
        self._num_added = 0
        self._num_prompt_hashes: dict[str, int] = {}
        self._to_resume: set[str] = set()
        self._preempted: list[int] = []
        self._num_schedules = 0
        self._num_done = 0
        self._in_flight: deque[tuple[int | None, str]] = deque()  # (id of the output, line so far)
        self._lines: deque[str] = deque()
        self._num_bytes_in = 0  # only the engine's thread counts here
        self._num_bytes_out = 0  # and only the writing thread here
        self._wake = threading.Event()
        self._closing = False
        first = {"ev": "init", "format": FORMAT, "t": round(clock(), 6), "wall": round(time.time(), 6), **server}
        self._put(json.dumps(first, default=str) + "\n")
        self._thread = threading.Thread(target=self._write_lines, name="headcount-record", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    @_harmless
    def added(self, request: Any) -> None:
        """Takes a request that came to the scheduler."""
        name = request.request_id
        if name in self._numbers:  # the next part of a streamed input is no new request
            return
        number = self._numbers[name] = self._num_added
        self._num_added += 1
        hashes = request.block_hashes
        self._num_prompt_hashes[name] = len(hashes)
        event = {
            "ev": "add",
            "t": round(self.clock(), 6),
            "n": number,
            "id": name,
            "prompt": request.num_prompt_tokens,
            "max_tokens": request.max_tokens,
            "priority": request.priority,
            "arrival": round(request.arrival_time, 9),
            "after": self._num_schedules,
            "hashes": _hex(hashes),
        }
        self._put(json.dumps(event, separators=(",", ":")) + "\n")

    @_harmless
    def preempted(self, request: Any) -> None:
        """Takes a preemption; it belongs to the `schedule()` under way."""
        self._preempted.append(self._numbers[request.request_id])
        self._to_resume.add(request.request_id)

    @_harmless
    def scheduled(self, scheduler: Any, output: Any, began: float) -> None:
        """Takes what `schedule()` decided; `began` is when it was called."""
        ended = self.clock()
        tokens = output.num_scheduled_tokens
        num_running, num_waiting = scheduler.get_request_counts()
        if not tokens and not num_running and not num_waiting:
            return  # the engine only tells its workers who has finished
        self._num_schedules += 1
        numbers, requests = self._numbers, scheduler.requests
        contexts = [requests[name].num_computed_tokens - n for name, n in tokens.items()]
        line = (
            f'{{"ev":"step","t0":{began:.6f},"t1":{ended:.6f},"n":{[numbers[name] for name in tokens]},'
            f'"tok":{list(tokens.values())},"ctx":{contexts},"run":{num_running},"wait":{num_waiting},'
            f'"free":{_num_free_blocks(scheduler)}'
        )
        admitted = {new.req_id for new in output.scheduled_new_reqs}
        if self._to_resume:
            admitted |= self._to_resume & tokens.keys()
            self._to_resume -= admitted
        if admitted:
            # What an admitted request had computed before its first step is its prefix hit.
            hits = {numbers[name]: context for name, context in zip(tokens, contexts, strict=True) if name in admitted}
            line += f',"hits":{json.dumps(hits)}'
        if self._preempted:
            line += f',"pre":{self._preempted}'
            self._preempted = []
        self._in_flight.append((id(output) if tokens else None, line))
        self._put_empty_steps()

    @_harmless
    def completed(self, scheduler: Any, output: Any, began: float) -> None:
        """Takes the end of a step: its outputs came at `began` and have just been taken in."""
        if not output.num_scheduled_tokens:
            return
        key, line = self._in_flight.popleft()
        assert key == id(output), "steps did not complete in the order in which they were scheduled"
        self._num_done += 1
        self._put(f'{line},"t2":{began:.6f},"t3":{self.clock():.6f},"free_end":{_num_free_blocks(scheduler)}}}\n')
        self._put_empty_steps()

    @_harmless
    def ended(self, request: Any) -> None:
        """Takes a request that leaves the scheduler."""
        name = request.request_id
        number = self._numbers.pop(name)
        self._to_resume.discard(name)
        status = request.status.name
        event = {
            "ev": "end",
            "t": round(self.clock(), 6),
            "n": number,
            "why": _REASONS.get(status, status.lower()),
            "out": request.num_output_tokens,
            "after": self._num_schedules,
            "done": self._num_done,
            "recorder_s": round(self.seconds, 6),
            "hashes": _hex(request.block_hashes[self._num_prompt_hashes.pop(name) :]),
        }
        self._put(json.dumps(event, separators=(",", ":")) + "\n")

    @_harmless
    def reset(self) -> None:
        """Takes a reset of the prefix cache."""
        event = {"ev": "reset", "t": round(self.clock(), 6), "after": self._num_schedules, "done": self._num_done}
        self._put(json.dumps(event, separators=(",", ":")) + "\n")

    @_harmless
    def close(self) -> None:
        """Writes what is left; waits two seconds at most."""
        self._closing = True
        self._wake.set()
        self._thread.join(timeout=2)

    def give_up(self, reason: str) -> None:
        """Stops recording for good, and says so once."""
        if not self.failed:
            self.failed = True
            self._lines.clear()
            logger.warning("Step recording to %s stopped: %s. Serving goes on.", self.path, reason)

    def _put_empty_steps(self) -> None:
        """Writes steps without tokens as soon as those scheduled before them are complete: lines keep their order."""
        while self._in_flight and self._in_flight[0][0] is None:
            self._put(self._in_flight.popleft()[1] + "}\n")

    def _put(self, line: str) -> None:
        self._num_bytes_in += len(line)
        if self._num_bytes_in - self._num_bytes_out > MAX_QUEUED_BYTES:
            self.give_up(f"the disk is too slow, {MAX_QUEUED_BYTES >> 20} MiB wait to be written")
            return
        self._lines.append(line)

    def _write_lines(self) -> None:
        """Runs in a thread of its own: opens the file and moves lines to it, several times a second."""
        try:
            file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
            try:
                while not self.failed:
                    closing = self._closing
                    self._write_queued(file)
                    if closing:
                        return
                    self._wake.wait(FLUSH_INTERVAL_S)
            finally:
                os.close(file)
        except OSError as error:
            self.give_up(error.strerror or str(error))

    def _write_queued(self, file: int) -> None:
        lines = []
        with contextlib.suppress(IndexError):
            while True:
                lines.append(self._lines.popleft())
        data = memoryview("".join(lines).encode())
        while data:
            data = data[os.write(file, data) :]
        self._num_bytes_out += sum(map(len, lines))


def _num_free_blocks(scheduler: Any) -> int:
    return int(scheduler.kv_cache_manager.block_pool.get_num_free_blocks())


def _hex(hashes: Any) -> list[str]:
    """Shortens content hashes: 64 bits tell blocks apart."""
    return [
        value[:_HASH_BYTES].hex() if isinstance(value, bytes) else f"{value & (1 << 8 * _HASH_BYTES) - 1:016x}"
        for value in hashes
    ]
