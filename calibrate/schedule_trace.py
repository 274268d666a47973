"""Recorded schedules of the real vLLM engine, replayed and compared field by field.

A trace is JSON lines (.jsonl or .jsonl.gz): a case (engine flags, step costs, requests), one object a step, and the
requests' token times. `check_trace` runs the case through the same engine process that every simulation uses and
reports the first difference.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from calibrate.schedule_replay import Replay, replay_case
from sim.errors import UserError

Json = dict[str, Any]

_STEP_FIELDS = ("t_us", "start_us", "scheduled", "hits", "preempted", "blocks", "end_us")  # causes before effects
_MAX_REPLAYS = 1_000
_MAX_GROUPS = 3  # groups of joint aborts looked at for one difference, the latest first


@dataclass(frozen=True, slots=True)
class ScheduleTrace:
    """A recorded schedule: the case, its steps, and what became of each request."""

    path: Path
    case: Json
    steps: list[Json]
    requests: dict[str, Json]


@dataclass(frozen=True, slots=True)
class Comparison:
    """What a replay came to: `difference` is None when every field of every step is equal."""

    path: Path
    num_steps: int
    num_requests: int
    difference: str | None


def read_trace(path: Path) -> ScheduleTrace:
    """Reads a recorded schedule.

    Raises:
        UserError: the file is missing, cut short, or not a recorded schedule.
    """
    try:
        opener = gzip.open if path.suffix == ".gz" else open
        with opener(path, "rt", encoding="utf-8") as file:
            lines = file.read().splitlines()
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    objects = []
    for number, line in enumerate(lines, start=1):
        try:
            value = json.loads(line)
        except json.JSONDecodeError as error:
            raise UserError(f"{path}:{number}:{error.colno}: not JSON ({error.msg}); is the file cut short?") from None
        if not isinstance(value, dict):
            raise UserError(f"{path}:{number}:1: expected a JSON object, got {type(value).__name__}")
        objects.append(value)
    if len(objects) < 2 or not {"engine", "cost_us", "requests"} <= objects[0].keys():
        raise UserError(f"{path}:1:1: not a recorded schedule: the first line must hold engine, cost_us and requests")
    if set(objects[-1]) != {"requests"}:
        raise UserError(f"{path}:{len(objects)}:1: the last line must hold the requests' times; is the file cut short?")
    return ScheduleTrace(path, objects[0], objects[1:-1], objects[-1]["requests"])


def check_trace(path: Path, *, reference: bool = False) -> Comparison:
    """Replays a recorded schedule and compares every field of every step and request.

    Args:
        path: the trace.
        reference: use the reference scheduler even where the fast path applies.

    Raises:
        UserError: the file is not a recorded schedule this engine can run.
    """
    trace = read_trace(path)
    orders = _find_abort_orders(trace, reference)
    # A few steps more than were recorded: enough to say that there are more, even if they would go on for ever.
    replay = replay_case(trace.case, str(path), orders, max_steps=len(trace.steps) + 4, reference=reference)
    return Comparison(path, len(trace.steps), len(trace.requests), _first_difference(trace, replay))


def _find_abort_orders(trace: ScheduleTrace, reference: bool) -> dict[int, list[int]]:
    """Finds in which orders the recorded process freed requests that were aborted together, from the blocks it took.

    The order shows when the freed blocks are taken again, one after another. Where another block is taken than the
    recorded one, both were freed by the same group of aborts (else no order of aborts explains it), and moving the
    owner of one beside the owner of the other, or at least elsewhere in the group, mends it. So each change of an order
    gets further into the trace, and a group of n requests takes about n of them, not n factorial.
    """
    orders: dict[int, list[int]] = {}
    best = _replay_until_different(trace, orders, reference)
    candidates = _other_abort_orders(trace, best, orders)
    for _ in range(_MAX_REPLAYS):
        candidate = next(candidates, None)
        if not best.stopped or candidate is None:
            break
        replay = _replay_until_different(trace, candidate, reference)
        if not replay.stopped or _progress(trace, replay) > _progress(trace, best):
            orders, best = candidate, replay
            candidates = _other_abort_orders(trace, best, orders)
    return orders


def _replay_until_different(trace: ScheduleTrace, orders: dict[int, list[int]], reference: bool) -> Replay:
    return replay_case(trace.case, str(trace.path), orders, trace.steps, reference=reference)


def _progress(trace: ScheduleTrace, replay: Replay) -> tuple[int, int]:
    """Returns how many steps were equal, and how many blocks of the next one."""
    index = len(replay.steps) - 1
    num_blocks = 0
    for expected, got in _taken_blocks(trace, replay):
        if expected != got:
            break
        num_blocks += 1
    return index, num_blocks


def _taken_blocks(trace: ScheduleTrace, replay: Replay) -> Iterator[tuple[int, int]]:
    """Yields pairs of blocks, recorded and replayed, in the replay's last step, in the order they were taken."""
    index = len(replay.steps) - 1
    if index >= len(trace.steps):
        return
    recorded = trace.steps[index].get("blocks", {})
    for name, blocks in replay.steps[index]["blocks"].items():
        yield from zip(_flat(recorded.get(name, [])), _flat(blocks), strict=False)


def _flat(blocks: Iterable[Any]) -> Iterator[int]:
    for block in blocks:
        if isinstance(block, list):
            yield from block
        else:
            yield block


def _other_abort_orders(
    trace: ScheduleTrace, replay: Replay, orders: dict[int, list[int]]
) -> Iterator[dict[int, list[int]]]:
    """Yields orders that may mend the first block that differs, those of the latest group of aborts first."""
    pair = next(((expected, got) for expected, got in _taken_blocks(trace, replay) if expected != got), None)
    if pair is None:
        return
    holders = [
        [[i for i, held in enumerate(group) if block in held] for block in pair] for group in replay.abort_groups
    ]
    for group in [i for i, owners in enumerate(holders) if all(owners)][: -_MAX_GROUPS - 1 : -1]:
        order = orders.get(group, list(range(len(replay.abort_groups[group]))))
        tried = [order]
        for other in _moves(order, *holders[group]):
            if other not in tried:
                tried.append(other)
                yield {**orders, group: other}


def _moves(order: Sequence[int], owners: Sequence[int], other_owners: Sequence[int]) -> Iterator[list[int]]:
    """Yields orders with one owner moved: first beside an owner of the other block, then to every place."""
    pairs = [pair for a in owners for b in other_owners for pair in ((a, b), (b, a)) if a != b]
    for moved, other in pairs:
        rest = [i for i in order if i != moved]
        place = rest.index(other)
        yield [*rest[: place + 1], moved, *rest[place + 1 :]]
        yield [*rest[:place], moved, *rest[place:]]
    for moved in (*owners, *other_owners):
        rest = [i for i in order if i != moved]
        yield from ([*rest[:place], moved, *rest[place:]] for place in range(len(order)))


def _first_difference(trace: ScheduleTrace, replay: Replay) -> str | None:
    steps, requests = replay.steps, replay.requests
    for i, (expected, got) in enumerate(zip(trace.steps, steps, strict=False)):
        for key in dict.fromkeys((*_STEP_FIELDS, *expected, *got)):
            if expected.get(key) != got.get(key):
                return f"step {i}: {key}: expected {_short(expected.get(key))}, got {_short(got.get(key))}"
    if len(trace.steps) != len(steps):
        return f"number of steps: expected {len(trace.steps)}, got {len(steps)}{' or more' if replay.stopped else ''}"
    for name in sorted(trace.requests.keys() | requests.keys()):
        expected, got = trace.requests.get(name, {}), requests.get(name, {})
        for key in sorted(expected.keys() | got.keys()):
            if expected.get(key) != got.get(key):
                return f"request {name}: {key}: expected {_short(expected.get(key))}, got {_short(got.get(key))}"
    return None


def _short(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 200 else f"{text[:200]}…"
