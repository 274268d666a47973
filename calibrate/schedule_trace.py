"""Recorded schedules of the real vLLM engine, replayed and compared field by field.

A trace is JSON lines (.jsonl or .jsonl.gz): a case (engine flags, step costs, requests), one object a step, and the
requests' token times. `check_trace` runs the case through the same engine process that every simulation uses and
reports the first difference.
"""

from __future__ import annotations

import gzip
import heapq
import itertools
import json
import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sim.core.config import CacheConfig, SchedulerConfig
from sim.core.kv_cache_coordinator import Blocks
from sim.core.kv_cache_interface import FullAttentionSpec, KVCacheSpec, SlidingWindowSpec, get_kv_cache_groups
from sim.core.request import Request, Segment
from sim.engine.engine_core import EngineCore, InFlightBatch, StepOutputs
from sim.engine.process import run
from sim.engine.recorded import LinearCost
from sim.errors import UserError

Json = dict[str, Any]

_SCHEDULER_KEYS = (
    "max_num_seqs",
    "max_num_batched_tokens",
    "max_model_len",
    "enable_chunked_prefill",
    "long_prefill_token_threshold",
    "long_prefill_token_threshold_adaptive",
    "policy",
    "async_scheduling",
    "max_num_active_seqs",
    "watermark",
    "scheduler_reserve_full_isl",
)
_CACHE_KEYS = ("num_gpu_blocks", "block_size", "enable_prefix_caching")
_US = 1_000
_STEP_FIELDS = ("t_us", "start_us", "scheduled", "hits", "preempted", "blocks", "end_us")  # causes before effects
_MAX_ABORT_ORDERS = 1_000


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
        raise UserError(f"{path}: cannot be read: {error}") from None
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

    Raises:
        UserError: the file is not a recorded schedule this engine can run.
    """
    trace = read_trace(path)
    orders: list[int] = []
    first_difference = None
    for _ in range(_MAX_ABORT_ORDERS):
        replay = replay_case(trace.case, str(path), orders, reference=reference)
        difference = _first_difference(trace, replay)
        if difference is None:
            return Comparison(path, len(trace.steps), len(trace.requests), None)
        first_difference = first_difference or difference
        orders = _next_abort_orders(orders, replay.abort_groups)
        if not orders:
            break
    return Comparison(path, len(trace.steps), len(trace.requests), first_difference)


@dataclass(slots=True)
class Replay:
    """A simulated run of a case, in the recorder's format; `abort_groups`: how many requests each abort took."""

    steps: list[Json]
    requests: dict[str, Json]
    abort_groups: list[int]


def replay_case(case: Json, where: str, abort_orders: Sequence[int] = (), *, reference: bool = False) -> Replay:
    """Runs a case through the simulated engine.

    Args:
        case: the case, as in the first line of a trace.
        where: names the file in error messages.
        abort_orders: for each abort that takes several requests at once, which permutation of them to free by.
            vLLM keeps such requests in a set of strings, so their order differs from process to process.
        reference: use the reference scheduler even where the fast path applies.

    Raises:
        UserError: the case is not one this engine can run.
    """
    try:
        engine = _build_engine(case, reference)
        clients = _CaseClients(case, engine, abort_orders)
        run(engine, clients)
    except (KeyError, TypeError, ValueError) as error:
        reason = f"missing {error}" if isinstance(error, KeyError) else str(error)
        raise UserError(f"{where}:1:1: this case cannot be run: {reason}") from None
    return Replay(clients.steps, clients.request_stats(), clients.abort_groups)


def _next_abort_orders(orders: list[int], groups: list[int]) -> list[int]:
    """Returns the next choice of permutations, the last group's changing fastest; empty when all were tried."""
    choice = (orders + [0] * len(groups))[: len(groups)]
    for i in range(len(groups) - 1, -1, -1):
        choice[i] += 1
        if choice[i] < math.factorial(groups[i]):
            return choice
        choice[i] = 0
    return []


def _build_engine(case: Json, reference: bool) -> EngineCore:
    flags = dict(case["engine"])
    layers = flags.pop("kv_layers", [["full", 1]])
    unknown = sorted(flags.keys() - set(_SCHEDULER_KEYS) - set(_CACHE_KEYS))
    if unknown:
        raise ValueError(f"unknown engine keys {unknown}; known: {sorted((*_SCHEDULER_KEYS, *_CACHE_KEYS))}")
    scheduler_flags = {key: value for key, value in flags.items() if key in _SCHEDULER_KEYS}
    cache_flags = {key: value for key, value in flags.items() if key in _CACHE_KEYS}
    groups = get_kv_cache_groups([(_layer_spec(*layer), layer[1]) for layer in layers])
    return EngineCore(
        SchedulerConfig(**scheduler_flags),
        CacheConfig(**cache_flags, kv_cache_groups=groups),
        LinearCost(**case["cost_us"]),
        reference=reference,
        list_pooled=True,
    )


def _layer_spec(kind: str, _count: int, window: int | None = None) -> KVCacheSpec:
    match kind, window:
        case "full", None:
            return FullAttentionSpec()
        case "sliding", int():
            return SlidingWindowSpec(window)
        case _:
            raise ValueError(f"unknown kv layer {kind!r} with window {window}; known: full, sliding with a window")


class _CaseClients:
    """The clients of a recorded case, and the recorder of what the engine does for them."""

    def __init__(self, case: Json, engine: EngineCore, abort_orders: Sequence[int]) -> None:
        self.engine = engine
        self.spec: dict[str, Json] = {spec["id"]: spec for spec in case["requests"]}
        self.order = {name: i for i, name in enumerate(self.spec)}
        self.names = list(self.spec)
        self.requests: dict[str, Request] = {}
        self.stats: dict[str, Json] = {name: {"token_us": []} for name in self.spec}
        self.arrivals = [
            (spec["arrival_us"], i, spec["id"]) for i, spec in enumerate(case["requests"]) if "arrival_us" in spec
        ]
        heapq.heapify(self.arrivals)
        self.followers: dict[str, list[Json]] = {}
        for spec in case["requests"]:
            if "after" in spec:
                self.followers.setdefault(spec["after"][0], []).append(spec)
        self.aborts = sorted(((s["abort_us"], s["id"]) for s in case["requests"] if "abort_us" in s), reverse=True)
        self.abort_orders = abort_orders
        self.abort_groups: list[int] = []
        self.next_tie = len(self.order)
        self.steps: list[Json] = []
        self.preempted: list[str] = []
        self.step_of: dict[int, Json] = {}  # by end time
        engine.on_schedule = self._record_step

    def deliver(self, now_ns: int) -> None:
        while self.arrivals and self.arrivals[0][0] * _US <= now_ns:
            arrival_us, _, name = heapq.heappop(self.arrivals)
            self._add(name, arrival_us)
        self.abort_due(now_ns)

    def abort_due(self, now_ns: int) -> None:
        due = []
        while self.aborts and self.aborts[-1][0] * _US <= now_ns:
            name = self.aborts.pop()[1]
            request = self.requests.get(name)
            if request is not None and not request.is_finished:
                due.append(request)
                self.stats[name]["abort_us"] = now_ns // _US
        if len(due) > 1:
            group = len(self.abort_groups)
            order = self.abort_orders[group] if group < len(self.abort_orders) else 0
            self.abort_groups.append(len(due))
            due = list(next(itertools.islice(itertools.permutations(due), order, None)))
        self.engine.scheduler.abort_requests(due)

    def next_event_ns(self) -> int | None:
        return self.arrivals[0][0] * _US if self.arrivals else None

    def publish(self, batch: InFlightBatch, outputs: StepOutputs) -> None:
        now_us = batch.end_ns // _US
        tokens = sorted(
            [*outputs.tokens, *((r, False) for r in outputs.pooled)], key=lambda token: token[0].running_order
        )
        for request, finished in tokens:
            name = self.names[request.request_id]
            self.stats[name]["token_us"].append(now_us)
            if finished:
                self.stats[name]["finish_us"] = now_us
                self.step_of[now_us]["finished"].append(name)
                for spec in self.followers.get(name, ()):
                    heapq.heappush(self.arrivals, (now_us + spec["after"][1], self.next_tie, spec["id"]))
                    self.next_tie += 1

    def request_stats(self) -> dict[str, Json]:
        for name, stats in self.stats.items():
            stats["first_token_us"] = stats["token_us"][0] if stats["token_us"] else None
            request = self.requests.get(name)
            stats["num_preemptions"] = request.num_preemptions if request is not None else 0
        return self.stats

    def _add(self, name: str, arrival_us: int) -> None:
        spec = self.spec[name]
        request = Request(
            self.order[name],
            self._prompt(spec["prompt"]),
            spec["max_tokens"],
            arrival_us * _US,
            self._output_stream(name),
            priority=spec.get("priority", 0),
        )
        self.requests[name] = request
        self.stats[name] |= {"arrival_us": arrival_us, "num_prompt_tokens": request.num_prompt_tokens}
        self.engine.scheduler.add_request(request)

    def _prompt(self, segments: list[list[Any]]) -> tuple[Segment, ...]:
        prompt = []
        for stream, value in segments:
            if stream == "out":
                prompt.append((self._output_stream(value), self.requests[value].num_output_tokens))
            else:
                prompt.append((int(stream), int(value)))
        return tuple(prompt)

    def _output_stream(self, name: str) -> int:
        return -1 - self.order[name]

    def _record_step(self, batch: InFlightBatch) -> None:
        output = batch.output
        names = self.names
        self.preempted += [names[request.request_id] for request in output.preempted]
        if output.is_empty:
            return
        step: Json = {
            "t_us": batch.scheduled_ns // _US,
            "start_us": batch.start_ns // _US,
            "end_us": batch.end_ns // _US,
            "scheduled": [
                [names[request.request_id], n] for request, n in self.engine.scheduler.scheduled_tokens(output)
            ],
            "hits": {names[request.request_id]: hit for request, hit in output.hits.items()},
            "preempted": self.preempted,
            "blocks": {names[r.request_id]: _by_group(blocks) for r, blocks in output.new_blocks.items()},
            "running": batch.num_running,
            "waiting": batch.num_waiting,
            "free_blocks": batch.num_free_blocks,
            "finished": [],
        }
        self.preempted = []
        self.steps.append(step)
        self.step_of[step["end_us"]] = step


def _by_group(blocks: Blocks) -> list[Any]:
    groups = [list(group) for group in blocks]
    return groups[0] if len(groups) == 1 else groups


def _first_difference(trace: ScheduleTrace, replay: Replay) -> str | None:
    steps, requests = replay.steps, replay.requests
    for i, (expected, got) in enumerate(zip(trace.steps, steps, strict=False)):
        for key in dict.fromkeys((*_STEP_FIELDS, *expected, *got)):
            if expected.get(key) != got.get(key):
                return f"step {i}: {key}: expected {_short(expected.get(key))}, got {_short(got.get(key))}"
    if len(trace.steps) != len(steps):
        return f"number of steps: expected {len(trace.steps)}, got {len(steps)}"
    for name in sorted(trace.requests.keys() | requests.keys()):
        expected, got = trace.requests.get(name, {}), requests.get(name, {})
        for key in sorted(expected.keys() | got.keys()):
            if expected.get(key) != got.get(key):
                return f"request {name}: {key}: expected {_short(expected.get(key))}, got {_short(got.get(key))}"
    return None


def _short(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 200 else f"{text[:200]}…"
