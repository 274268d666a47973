"""Recorded steps of a real vLLM, replayed: the simulated scheduler must put every step together exactly as recorded.

The recorded durations are the step times, so the clock is the recorded one, and requests reach the scheduler at the
step boundaries at which the real one got them. What is compared, step by step: the scheduled requests in order, the
tokens and computed tokens of each, prefix hits, preemptions, queue lengths, and the free blocks after scheduling and
after the outputs. That holds the scheduler and the block pool to account; it says nothing of predicted step times.

Prompts are made from the recorded block hashes. An older record has none: then the recorded first hits are inputs, and
`recorded_prompts.py` finds earlier requests that the hit blocks may come from.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from calibrate.recorded_engine import engine_configs
from calibrate.recorded_prompts import LeadingHits, RecordedPrompt, recorded_prompts
from calibrate.step_reader import read_steps
from calibrate.step_record import RecordedStep, StepRecord, step_durations_ns
from sim.core.request import Request, RequestStatus
from sim.core.scheduler import Scheduler
from sim.engine.engine_core import EngineCore, InFlightBatch, StepOutputs
from sim.engine.process import run
from sim.engine.recorded import RecordedSteps

_MAX_ROUNDS = 200
_SUSPECTS = 8  # the last requests admitted before a difference: one of them may have hit another's blocks


@dataclass(frozen=True, slots=True)
class StepComparison:
    """What a replay came to.

    Attributes:
        path: the record.
        num_steps: recorded steps, those without tokens left out.
        num_equal_steps: how many from the start came out equal in every field.
        num_on_time: of those, how many were scheduled at the recorded nanosecond (a synchronous engine's all are).
        num_requests: requests added.
        num_preemptions: in the recorded steps.
        num_input_hits: first prefix hits that were taken from the record, for want of block hashes.
        difference: the first difference, or None.
        warnings: what the record's reader said.
    """

    path: Path
    num_steps: int
    num_equal_steps: int
    num_on_time: int
    num_requests: int
    num_preemptions: int
    num_input_hits: int
    difference: str | None
    warnings: tuple[str, ...] = ()


def check_steps(path: Path, *, reference: bool = False) -> StepComparison:
    """Reads a step record, replays it and compares every step.

    Args:
        path: the record.
        reference: use the reference scheduler even where the fast path applies.

    Raises:
        UserError: the file is not a step record, or its engine is of a kind that is not simulated.
    """
    return compare_steps(read_steps(path), reference=reference)


def compare_steps(record: StepRecord, *, reference: bool = False) -> StepComparison:
    """Replays a step record and compares every step; see `check_steps`."""
    if record.has_hashes:
        replay, num_input_hits = _Replay(record, recorded_prompts(record), None, reference), 0
    else:
        replay, num_input_hits = _with_hits_as_inputs(record, reference)
    return StepComparison(
        path=record.path,
        num_steps=sum(bool(step.numbers) for step in record.steps),
        num_equal_steps=replay.num_equal,
        num_on_time=replay.num_on_time,
        num_requests=len(record.added),
        num_preemptions=sum(len(step.preempted) for step in record.steps),
        num_input_hits=num_input_hits,
        difference=replay.difference,
        warnings=tuple(record.warnings),
    )


def _with_hits_as_inputs(record: StepRecord, reference: bool) -> tuple[_Replay, int]:
    """Replays with first hits forced; which earlier request each comes from is found by trying.

    It shows in the free blocks, at once or when one of the two ends: a hit block that another request holds costs none.
    Each try changes one request's source, those admitted last before the difference first.
    """
    hits = {number: hit for step in record.steps for number, hit in step.hits.items() if hit}
    if not hits:
        return _Replay(record, _own_prompts(record), None, reference), 0
    best = _replay_with_hits(record, LeadingHits(hits))
    for _ in range(_MAX_ROUNDS):
        if best.difference is None:
            break
        for choices in _other_choices(record, best):
            replay = _replay_with_hits(record, LeadingHits(hits, choices))
            if replay.progress > best.progress:
                best = replay
                break
        else:
            break
    return best, len(hits)


def _replay_with_hits(record: StepRecord, leading_hits: LeadingHits) -> _Replay:
    return _Replay(record, _own_prompts(record), leading_hits, True)


def _own_prompts(record: StepRecord) -> list[RecordedPrompt]:
    return [RecordedPrompt(((2 * r.number, r.num_prompt_tokens),), 2 * r.number + 1) for r in record.added]


def _other_choices(record: StepRecord, replay: _Replay) -> Iterator[dict[int, int]]:
    leading_hits = replay.leading_hits
    assert leading_hits is not None
    admitted = [number for step in record.steps[: replay.index + 1] for number in step.hits]
    for number in admitted[: -_SUSPECTS - 1 : -1]:
        for source in leading_hits.sources.get(number, ()):
            if source != leading_hits.choices.get(number):
                yield {**leading_hits.choices, number: source}


class _StopError(Exception):
    """There is no use in going on: a step differs, or the record is at its end."""


class _Replay:
    """One run of a recorded engine's requests through the simulated engine, compared as it goes.

    Args:
        record: what to replay.
        prompts: what each request's prompt is made of.
        leading_hits: forces first hits; None where the prompts bring their own.
        reference: use the reference scheduler.

    Attributes:
        index: the recorded step that was scheduled last.
        num_equal: non-empty steps that were equal.
        num_on_time: of those, scheduled at the recorded nanosecond.
        difference: the first difference.
        progress: grows with how far the replay got, and how near it was where it failed.
    """

    def __init__(
        self,
        record: StepRecord,
        prompts: list[RecordedPrompt],
        leading_hits: LeadingHits | None,
        reference: bool,
    ) -> None:
        self.record = record
        self.leading_hits = leading_hits
        self.prompts = prompts
        self.engine = _build_engine(record, leading_hits, reference)
        self.engine.on_schedule = self._compare
        self.origin_ns = record.steps[0].schedule_ns if record.steps else 0
        self.full_steps = [step for step in record.steps if step.numbers]
        self.requests: list[Request] = []
        self.to_add = deque(record.added)
        self.to_abort = deque(end for end in record.ended if end.reason == "abort")
        self.outputs_of = {end.number: end.num_output_tokens for end in record.ended if end.reason == "stop"}
        self.index = -1
        self.num_done = 0
        self.num_equal = 0
        self.num_on_time = 0
        self.difference: str | None = None
        self.distance = 0
        try:
            run(self.engine, self)
            if self.index + 1 < len(record.steps):
                self.difference = f"number of steps: recorded {len(record.steps)}, simulated {self.index + 1}"
        except _StopError:
            pass

    @property
    def progress(self) -> tuple[int, int, int]:
        return self.index, self.num_done, -self.distance

    def deliver(self, now_ns: int) -> None:
        self.abort_due(now_ns)
        # While there is something to schedule, requests are counted in by steps; else the clock wakes the engine.
        while self.to_add and self.to_add[0].after <= self.index + 1:
            is_busy = self.engine.scheduler.has_unfinished_requests()
            if not is_busy and self._wake_ns() > now_ns and self._wake_ns() >= self._in_flight_until_ns():
                break
            self._add()
            self.abort_due(now_ns)

    def abort_due(self, now_ns: int) -> None:  # noqa: ARG002 - aborts are counted in by steps
        while self.to_abort and self._is_due(self.to_abort[0].number):
            end = self.to_abort[0]
            if end.after > self.index + 1 or end.done > self.num_done:
                break
            self.to_abort.popleft()
            self.engine.scheduler.abort_requests([self.requests[end.number]])

    def next_event_ns(self) -> int | None:
        return self._wake_ns() if self.to_add else None

    def publish(self, batch: InFlightBatch, outputs: StepOutputs) -> None:  # noqa: ARG002 - the blocks show it all
        if not batch.output.is_empty:
            self._compare_end()
        if self.index + 1 >= len(self.record.steps) and not self.engine.batch_queue:
            self._compare_ends()
            raise _StopError

    def _is_due(self, number: int) -> bool:
        return number < len(self.requests)

    def _in_flight_until_ns(self) -> int:
        """Returns when the step in flight ended for the real engine: it could schedule another until then."""
        if not self.engine.batch_queue or self.num_done >= len(self.full_steps):
            return 0
        return (self.full_steps[self.num_done].output_ns or 0) - self.origin_ns

    def _wake_ns(self) -> int:
        """Returns when the real engine scheduled for the next request to come."""
        request = self.to_add[0]
        steps = self.record.steps
        time_ns = steps[request.after].schedule_ns if request.after < len(steps) else request.time_ns
        return time_ns - self.origin_ns

    def _add(self) -> None:
        added = self.to_add.popleft()
        prompt = self.prompts[added.number]
        request = Request(
            added.number,
            prompt.segments,
            added.max_tokens,
            added.arrival_ns,
            prompt.output_stream,
            eos_tokens=self.outputs_of.get(added.number),
            priority=added.priority,
        )
        self.requests.append(request)
        self.engine.scheduler.add_request(request)

    def _compare(self, batch: InFlightBatch) -> None:
        self.index += 1
        if self.index >= len(self.record.steps):  # only two batches in flight get here
            raise _StopError
        step = self.record.steps[self.index]
        for name, recorded, simulated in self._fields(step, batch):
            if recorded != simulated:
                self._fail(step, name, recorded, simulated)
        if step.numbers:
            self.num_equal += 1
            self.num_on_time += batch.scheduled_ns == step.schedule_ns - self.origin_ns

    def _fields(self, step: RecordedStep, batch: InFlightBatch) -> Iterator[tuple[str, Any, Any]]:
        """Yields each field's name, its recorded and its simulated value; causes before effects."""
        output = batch.output
        scheduled = self.engine.scheduler.scheduled_tokens(output)
        yield "requests", step.numbers, tuple(request.request_id for request, _ in scheduled)
        yield "tokens", step.tokens, tuple(num_tokens for _, num_tokens in scheduled)
        hits = {request.request_id: hit for request, hit in output.hits.items()}
        if not self.record.resumed_hits_known:
            hits = {number: hit for number, hit in hits.items() if not self.requests[number].num_preemptions}
        yield "hits", step.hits, hits
        contexts = dict(zip(step.numbers, step.contexts, strict=True))
        for request, num_tokens in scheduled:  # of those that the pool decoded, only the sum is kept
            if request in output.num_scheduled_tokens:
                number = request.request_id
                yield (
                    f"computed tokens of request {number}",
                    contexts.pop(number),
                    (request.num_computed_tokens - num_tokens),
                )
        yield "computed tokens of decodes", sum(contexts.values()), output.pooled_context
        yield "preempted", step.preempted, tuple(request.request_id for request in output.preempted)
        yield "running", step.num_running, batch.num_running
        yield "waiting", step.num_waiting, batch.num_waiting
        yield "free blocks", step.num_free_blocks, batch.num_free_blocks

    def _compare_end(self) -> None:
        step = self.full_steps[self.num_done]
        if step.num_free_blocks_at_end is not None:
            free = self.engine.scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
            if free != step.num_free_blocks_at_end:
                self._fail(step, "free blocks at the end", step.num_free_blocks_at_end, free)
        self.num_done += 1

    def _compare_ends(self) -> None:
        """Compares who is left when the record is at its end; an older record does not say."""
        if self.record.ended:
            ended = self.record.ended
            recorded = {end.number for end in ended if end.done < self.num_done and end.reason != "abort"}
            by_itself = (RequestStatus.FINISHED_STOPPED, RequestStatus.FINISHED_LENGTH_CAPPED)
            simulated = {request.request_id for request in self.requests if request.status in by_itself}
            if recorded != simulated:
                self.difference = f"ended requests that differ: {_short(sorted(recorded ^ simulated))}"

    def _fail(self, step: RecordedStep, name: str, recorded: Any, simulated: Any) -> None:
        place = self.record.steps.index(step)
        self.difference = f"step {place + 1}: {name}: recorded {_short(recorded)}, simulated {_short(simulated)}"
        if isinstance(recorded, int):
            self.distance = abs(recorded - simulated)
        raise _StopError


def _build_engine(record: StepRecord, leading_hits: LeadingHits | None, reference: bool) -> EngineCore:
    scheduler_config, cache_config = engine_configs(record)
    durations = [
        0 if duration is None else duration
        for step, duration in zip(record.steps, step_durations_ns(record), strict=True)
        if step.numbers
    ]
    step_times = RecordedSteps([*durations, 0], str(record.path))
    engine = EngineCore(scheduler_config, cache_config, step_times, reference=reference)
    if leading_hits is not None:
        engine.scheduler = Scheduler(scheduler_config, cache_config)
        engine.scheduler.kv_cache_manager = leading_hits.manager(cache_config, scheduler_config)
        engine.pool = None
    return engine


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 200 else f"{text[:200]}…"
