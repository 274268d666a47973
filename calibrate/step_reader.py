"""Reads step records, whole or cut short.

`calibrate/README.md` describes the format; the older one of events add, sched and done (no block hashes, no ends of
requests) is read too. A record that stops in the middle of a line is what a killed server leaves behind: everything
before that line is used, and a warning says so.
"""

from __future__ import annotations

import gzip
import io
import json
import zlib
from pathlib import Path
from typing import Any

from calibrate.step_record import AddedRequest, EndedRequest, Json, RecordedStep, StepRecord
from sim.errors import UserError

_NS = 1e9


def is_step_record(path: Path) -> bool:
    """Returns whether a file begins as a step record does; False also where it cannot be read."""
    try:
        with gzip.open(path, "rt") if path.suffix == ".gz" else path.open(encoding="utf-8") as file:
            return '"ev"' in file.readline(200)
    except (OSError, EOFError, zlib.error, UnicodeDecodeError):
        return False


def read_steps(path: Path) -> StepRecord:
    """Reads a step record (.jsonl or .jsonl.gz).

    Raises:
        UserError: the file is missing, is not a step record, or is damaged before its last line.
    """
    lines, cut = _read_lines(path)
    first = _parse(path, 1, lines[0]) if lines else None
    if not isinstance(first, dict) or first.get("ev") != "init":
        raise UserError(f'{path}:1:1: not a step record: its first line must be an object with "ev": "init"')
    reader = _Reader(path, first)
    for number, line in enumerate(lines[1:], start=2):
        try:
            event = json.loads(line)
            reader.take(event)
        except json.JSONDecodeError as error:
            if number < len(lines):
                raise UserError(f"{path}:{number}:{error.colno}: not JSON ({error.msg})") from None
            cut = True
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            raise UserError(f"{path}:{number}:1: not an event of a step record: {_reason(error)}") from None
    record = reader.finish()
    if cut:
        record.warnings.append(f"{path}: cut short in line {len(lines)}; the {len(record.steps)} steps before are used")
    return record


def _reason(error: Exception) -> str:
    return f"missing {error}" if isinstance(error, KeyError) else str(error)


def _read_lines(path: Path) -> tuple[list[str], bool]:
    """Returns the lines, and whether the file's end is missing (a compressed file may break anywhere)."""
    parts: list[bytes] = []
    cut = False
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            while part := file.read(io.DEFAULT_BUFFER_SIZE):
                parts.append(part)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; was the server started with the recorder?") from None
    except (EOFError, zlib.error):
        cut = True
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from None
    text = b"".join(parts).decode("utf-8", errors="replace")
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()
    return lines, cut


def _parse(path: Path, number: int, line: str) -> Any:
    try:
        return json.loads(line)
    except json.JSONDecodeError as error:
        raise UserError(f"{path}:{number}:{error.colno}: not JSON ({error.msg}); is this a step record?") from None


class _Reader:
    """Turns events into a record, in either format."""

    def __init__(self, path: Path, first: Json) -> None:
        self.is_old = "format" not in first
        if not self.is_old and first["format"] != 1:
            raise UserError(f"{path}:1:1: step record format {first['format']}; this version reads 1")
        server = {key: value for key, value in first.items() if key not in ("ev", "format", "t")}
        if self.is_old:
            server = _old_server(first)
        self.record = StepRecord(path, server, resumed_hits_known=not self.is_old)
        self.numbers: dict[str, int] = {}
        self.open: Json | None = None  # older format: the step that was scheduled last

    def take(self, event: Json) -> None:
        """Takes one line."""
        match event["ev"]:
            case "add":
                self._add(event)
            case "step":
                self.record.steps.append(_step(event))
            case "end":
                self.record.ended.append(_end(event))
                self.record.recorder_s = event["recorder_s"]
            case "reset":
                self.record.resets.append((event["after"], event["done"]))
            case "sched":
                self._close_old()
                self.open = event
            case "done":
                self._close_old(event)
            case other:
                raise ValueError(f"unknown event {other!r}")

    def finish(self) -> StepRecord:
        """Returns the record; a step that never completed has no end."""
        self._close_old()
        return self.record

    def _add(self, event: Json) -> None:
        added = self.record.added
        self._close_old()
        hashes = event.get("hashes")
        added.append(
            AddedRequest(
                number=len(added) if self.is_old else event["n"],
                name=event["id"],
                time_ns=_ns(event["t"]),
                num_prompt_tokens=event["prompt"],
                max_tokens=event["max_tokens"],
                priority=event.get("priority", 0),
                arrival_ns=_ns(event["arrival"] if "arrival" in event else event["t"]),
                after=len(self.record.steps) if self.is_old else event["after"],
                hashes=None if hashes is None else tuple(hashes),
            )
        )
        if added[-1].number != len(added) - 1:
            raise ValueError(f"request {added[-1].number} comes after {len(added) - 1} others; lines are missing")
        self.numbers[event["id"]] = added[-1].number

    def _close_old(self, done: Json | None = None) -> None:
        """Older format: a step is complete with its `done` line; without, it has no end."""
        if self.open is None:
            return
        numbers, sched, self.open = self.numbers, self.open, None
        ids = list(sched["tok"])
        self.record.steps.append(
            RecordedStep(
                schedule_ns=_ns(sched["t0"]),
                scheduled_ns=_ns(sched["t1"]),
                output_ns=_ns(done["t2"]) if done else None,
                end_ns=_ns(done["t3"]) if done else None,
                numbers=tuple(numbers[i] for i in ids),
                tokens=tuple(sched["tok"].values()),
                contexts=tuple(sched["comp"][i] for i in ids),
                hits={numbers[i]: hit for i, hit in sched["first"].items()},
                preempted=tuple(numbers[i] for i, _ in sched["preempted"]),
                num_running=sched["running"],
                num_waiting=sched["waiting"],
                num_free_blocks=sched["free_blocks"],
                num_free_blocks_at_end=done["free_blocks"] if done else None,
            )
        )


def _old_server(first: Json) -> Json:
    keys = ("num_blocks", "block_size", "max_num_seqs", "max_num_batched_tokens", "prefix_caching")
    values = {key: first[key] for key in keys}
    return {
        "num_gpu_blocks": values["num_blocks"],
        "block_size": values["block_size"],
        "enable_prefix_caching": values["prefix_caching"],
        "max_num_seqs": values["max_num_seqs"],
        "max_num_batched_tokens": values["max_num_batched_tokens"],
        "async_scheduling": False,
        "wall": first.get("wall"),
    }


def _step(event: Json) -> RecordedStep:
    numbers, tokens, contexts = event["n"], event["tok"], event["ctx"]
    if not len(numbers) == len(tokens) == len(contexts):
        raise ValueError(f"n, tok and ctx have {len(numbers)}, {len(tokens)} and {len(contexts)} values")
    return RecordedStep(
        schedule_ns=_ns(event["t0"]),
        scheduled_ns=_ns(event["t1"]),
        output_ns=_ns(event["t2"]) if "t2" in event else None,
        end_ns=_ns(event["t3"]) if "t3" in event else None,
        numbers=tuple(numbers),
        tokens=tuple(tokens),
        contexts=tuple(contexts),
        hits={int(number): hit for number, hit in event.get("hits", {}).items()},
        preempted=tuple(event.get("pre", ())),
        num_running=event["run"],
        num_waiting=event["wait"],
        num_free_blocks=event["free"],
        num_free_blocks_at_end=event.get("free_end"),
    )


def _end(event: Json) -> EndedRequest:
    return EndedRequest(
        number=event["n"],
        time_ns=_ns(event["t"]),
        reason=event["why"],
        num_output_tokens=event["out"],
        after=event["after"],
        done=event["done"],
        hashes=tuple(event.get("hashes", ())),
    )


def _ns(seconds: float) -> int:
    return round(seconds * _NS)
