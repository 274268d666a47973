"""Runs a recorded case through the simulated engine, and records what happens in the recorder's format.

vLLM keeps requests that are aborted together in a set of strings, and so frees their blocks in an order that differs
from process to process. A replay takes that order as an input; `schedule_trace.py` finds it from the recorded blocks.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from calibrate.recorded_engine import CACHE_KEYS, SCHEDULER_KEYS, kv_spec
from sim.core.config import CacheConfig, SchedulerConfig
from sim.core.kv_cache_coordinator import Blocks
from sim.core.kv_cache_interface import SlidingWindowSpec, get_kv_cache_groups
from sim.core.request import Request, RequestStatus, Segment
from sim.engine.engine_core import EngineCore, InFlightBatch, StepOutputs
from sim.engine.process import run
from sim.engine.recorded import LinearCost
from sim.engine.step_time import Batch
from sim.errors import UserError

Json = dict[str, Any]

AbortOrders = Mapping[int, Sequence[int]]
"""For some groups of requests aborted together: the order in which to free them, as places in the group."""

_US = 1_000
_FIRST_OUTPUT_STREAM = 1 << 40  # far above the streams that cases name


@dataclass(slots=True)
class Replay:
    """A simulated run of a case.

    Attributes:
        steps: one object a step, as recorded.
        requests: what became of each request, as recorded.
        abort_groups: for each call that aborted several requests with blocks, the blocks that each of them held.
        stopped: it was stopped before its end: the last step is not the expected one, or one too many.
    """

    steps: list[Json]
    requests: dict[str, Json]
    abort_groups: list[list[set[int]]]
    stopped: bool = False


def replay_case(
    case: Json,
    where: str,
    abort_orders: AbortOrders | None = None,
    expected_steps: Sequence[Json] | None = None,
    *,
    max_steps: int | None = None,
    reference: bool = False,
) -> Replay:
    """Runs a case through the simulated engine.

    Args:
        case: the case, as in the first line of a trace.
        where: names the file in error messages.
        abort_orders: in which order requests aborted together give back their blocks; the case's where not given.
        expected_steps: where given, the replay stops at the first step that differs.
        max_steps: where given, the replay stops after so many steps.
        reference: use the reference scheduler even where the fast path applies.

    Raises:
        UserError: the case is not one this engine can run.
    """
    try:
        engine = _build_engine(case, reference)
        clients = _CaseClients(case, engine, abort_orders or {}, expected_steps, max_steps)
        stopped = False
        try:
            run(engine, clients)
        except _StoppedError:
            stopped = True
    except (KeyError, TypeError, ValueError) as error:
        reason = f"missing {error}" if isinstance(error, KeyError) else str(error)
        raise UserError(f"{where}:1:1: this case cannot be run: {reason}") from None
    return Replay(clients.steps, clients.request_stats(), clients.abort_groups, stopped)


class _StoppedError(Exception):
    """A step differs from the expected one, or there are too many: there is no use in going on."""


def _build_engine(case: Json, reference: bool) -> EngineCore:
    flags = dict(case["engine"])
    layers = flags.pop("kv_layers", [["full", 1]])
    unknown = sorted(flags.keys() - set(SCHEDULER_KEYS) - set(CACHE_KEYS))
    if unknown:
        raise ValueError(f"unknown engine keys {unknown}; known: {sorted((*SCHEDULER_KEYS, *CACHE_KEYS))}")
    scheduler_config = SchedulerConfig(**{key: value for key, value in flags.items() if key in SCHEDULER_KEYS})
    groups = get_kv_cache_groups([(kv_spec(kind, *window), count) for kind, count, *window in layers])
    cache_flags = {key: value for key, value in flags.items() if key in CACHE_KEYS}
    cache_config = CacheConfig(**cache_flags, kv_cache_groups=groups)
    needed = blocks_for_one_request(scheduler_config, cache_config)
    if needed > cache_config.num_gpu_blocks - 1:
        raise ValueError(
            f"num_gpu_blocks ({cache_config.num_gpu_blocks}) must be at least {needed + 1}: what one request of "
            f"max_model_len ({scheduler_config.max_model_len}) needs, and the null block"
        )
    cost = _WayThrough(LinearCost(**case["cost_us"]), scheduler_config.pipeline_parallel_size)
    return EngineCore(scheduler_config, cache_config, cost, reference=reference, list_pooled=True)


@dataclass(frozen=True, slots=True)
class _WayThrough:
    """The cost of a case, at each stage of a pipeline."""

    stage: LinearCost
    num_stages: int
    name = "stated cost"
    calibrated = True

    def step_time(self, batch: Batch) -> int:
        return self.num_stages * self.stage.step_time(batch)

    def out_of_range(self) -> list[str]:
        return []


def blocks_for_one_request(scheduler_config: SchedulerConfig, cache_config: CacheConfig) -> int:
    """Returns the blocks that a request of max_model_len needs at most; vLLM does not start with fewer."""
    block_size, max_model_len = cache_config.block_size, scheduler_config.max_model_len
    return sum(
        group.max_admission_blocks_per_request(scheduler_config.max_in_flight_tokens, max_model_len, block_size)
        if isinstance(group, SlidingWindowSpec)
        else -(-max_model_len // block_size)
        for group in cache_config.kv_cache_groups
    )


class _CaseClients:
    """The clients of a recorded case, and the recorder of what the engine does for them."""

    def __init__(
        self,
        case: Json,
        engine: EngineCore,
        abort_orders: AbortOrders,
        expected_steps: Sequence[Json] | None,
        max_steps: int | None,
    ) -> None:
        self.engine = engine
        self.max_model_len: int = case["engine"]["max_model_len"]
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
        self.abort_groups: list[list[set[int]]] = []
        self.expected_steps = expected_steps
        self.max_steps = max_steps
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
        # Only running requests hold blocks: the order of the others makes no difference.
        holders = [request for request in due if request.status == RequestStatus.RUNNING]
        if len(holders) > 1:
            order = self.abort_orders.get(len(self.abort_groups), range(len(holders)))
            self.abort_groups.append([self._blocks_of(request) for request in holders])
            due = [request for request in due if request not in holders] + [holders[i] for i in order]
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
        prompt = self._prompt(spec["prompt"])
        num_tokens = sum(length for _, length in prompt)
        if not 0 < num_tokens < self.max_model_len:
            raise ValueError(
                f"the prompt of request {name} has {num_tokens} tokens; "
                f"it must have at least one and fewer than max_model_len ({self.max_model_len})"
            )
        request = Request(
            self.order[name],
            prompt,
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
        return _FIRST_OUTPUT_STREAM + self.order[name]

    def _blocks_of(self, request: Request) -> set[int]:
        return {block for group in self.engine.scheduler.kv_cache_manager.get_blocks(request) for block in group}

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
        num_steps = len(self.steps)
        if num_steps == self.max_steps:
            raise _StoppedError
        if self.expected_steps is not None and not _is_expected(step, num_steps - 1, self.expected_steps):
            raise _StoppedError


def _by_group(blocks: Blocks) -> list[Any]:
    groups = [list(group) for group in blocks]
    return groups[0] if len(groups) == 1 else groups


def _is_expected(step: Json, index: int, expected_steps: Sequence[Json]) -> bool:
    """Returns whether a step just scheduled is the recorded one; who finishes by it is not known yet."""
    if index >= len(expected_steps):
        return False
    expected = expected_steps[index]
    return all(value == expected.get(key) for key, value in step.items() if key != "finished")
