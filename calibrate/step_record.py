"""Step records: what a recorder inside a real vLLM engine saw, and how long its steps took.

`record.py` writes them and `step_reader.py` reads them back.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sim.engine.step_time import Batch
from sim.errors import UserError

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class AddedRequest:
    """A request as the scheduler got it.

    Attributes:
        number: counts requests from 0.
        name: the engine's request id.
        time_ns: when, on the recording machine's monotonic clock.
        num_prompt_tokens: tokens of its prompt.
        max_tokens: outputs at most.
        priority: lower first, under the policy `priority`.
        arrival_ns: what the engine orders equal priorities by: when its front end got it, on another clock.
        after: schedules that came before it.
        hashes: content hashes of the prompt's full blocks, chained; None where they were not recorded.
    """

    number: int
    name: str
    time_ns: int
    num_prompt_tokens: int
    max_tokens: int
    priority: int
    arrival_ns: int
    after: int
    hashes: tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class EndedRequest:
    """A request that left the engine.

    Attributes:
        number: which.
        time_ns: when.
        reason: `stop` (end of sequence), `length` or `abort`.
        num_output_tokens: tokens it had generated.
        after: schedules that came before.
        done: completed steps that came before.
        hashes: content hashes of the blocks beyond the prompt's; empty where not recorded.
    """

    number: int
    time_ns: int
    reason: str
    num_output_tokens: int
    after: int
    done: int
    hashes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """One call of `schedule()` and what became of it; times are monotonic nanoseconds.

    Attributes:
        schedule_ns: when scheduling began.
        scheduled_ns: when it ended.
        output_ns: when the step's outputs reached the scheduler; None for a step without tokens.
        end_ns: when the scheduler had taken them in.
        numbers: the scheduled requests, in order.
        tokens: what each got.
        contexts: what each had computed before.
        hits: prefix-cache tokens of each admitted request; resumed ones only where `resumed_hits_known`.
        preempted: requests preempted by this call, in order.
        num_running: right after it.
        num_waiting: right after it.
        num_free_blocks: right after it.
        num_free_blocks_at_end: after its outputs were taken in; None where unknown.
    """

    schedule_ns: int
    scheduled_ns: int
    output_ns: int | None
    end_ns: int | None
    numbers: tuple[int, ...]
    tokens: tuple[int, ...]
    contexts: tuple[int, ...]
    hits: dict[int, int]
    preempted: tuple[int, ...]
    num_running: int
    num_waiting: int
    num_free_blocks: int
    num_free_blocks_at_end: int | None

    def batch(self) -> Batch:
        """Returns its composition, as step-time models see it."""
        pairs = list(zip(self.tokens, self.contexts, strict=True))
        return Batch.of([ctx for q, ctx in pairs if q == 1], [(q, ctx) for q, ctx in pairs if q > 1])


@dataclass(slots=True)
class StepRecord:
    """A whole record.

    Attributes:
        path: the file.
        server: versions, flags and sizes, as recorded in the first line; see `calibrate/README.md`.
        added: requests, in the order in which the scheduler got them.
        ended: requests that left, in order; empty in the older format.
        steps: calls of `schedule()`, in order.
        resets: (schedules, completed steps) before each reset of the prefix cache.
        resumed_hits_known: whether `hits` holds the hits of resumed requests too.
        recorder_s: time that recording took from the engine up to the last end; None in the older format.
        warnings: what the reader should know, one sentence each.
    """

    path: Path
    server: Json
    added: list[AddedRequest] = field(default_factory=list)
    ended: list[EndedRequest] = field(default_factory=list)
    steps: list[RecordedStep] = field(default_factory=list)
    resets: list[tuple[int, int]] = field(default_factory=list)
    resumed_hits_known: bool = True
    recorder_s: float | None = None
    warnings: list[str] = field(default_factory=list)

    @property
    def num_stages(self) -> int:
        """Stages of the engine's pipeline; 1: none. The steps of several overlap."""
        return int(self.server.get("pipeline_parallel_size", 1))

    @property
    def has_hashes(self) -> bool:
        """Whether prompt content was recorded."""
        return all(request.hashes is not None for request in self.added)

    def durations(self) -> Iterator[tuple[Batch, int]]:
        """Yields each completed step's composition with its duration in nanoseconds.

        Synchronous: from the start of scheduling to the start of the next (the engine was busy) or to the end of the
        step. Asynchronous: the interval between completions, for a step's own dispatch says nothing of its length.
        """
        for step, duration_ns in zip(self.steps, step_durations_ns(self), strict=True):
            if duration_ns is not None and step.numbers:
                yield step.batch(), duration_ns


def step_durations_ns(record: StepRecord) -> list[int | None]:
    """Returns how long each recorded step held the engine; None for steps without tokens or without an end.

    Raises:
        UserError: the engine is a pipeline, whose steps overlap.
    """
    if record.num_stages > 1:
        raise UserError(
            f"{record.path}:1:1: the steps of a pipeline of {record.num_stages} stages overlap, and how long each took "
            "is not recorded; fit the requests alone"
        )
    return _asynchronous_ns(record.steps) if record.server["async_scheduling"] else _synchronous_ns(record)


def _synchronous_ns(record: StepRecord) -> list[int | None]:
    steps = record.steps
    num_added_after = [0] * (len(steps) + 1)
    for request in record.added:
        num_added_after[min(request.after, len(steps))] += 1
    durations: list[int | None] = []
    for i, step in enumerate(steps):
        following = steps[i + 1] if i + 1 < len(steps) else None
        if not step.numbers or step.end_ns is None:
            durations.append(None)
        elif following is not None and _num_left(following, num_added_after[i + 1]) > 0:
            durations.append(following.schedule_ns - step.schedule_ns)
        else:
            durations.append(step.end_ns - step.schedule_ns)
    return durations


def _num_left(following: RecordedStep, num_added: int) -> int:
    """Returns the requests that were in the engine before those of the gap came: then it went on without a pause.

    A request that came and was aborted in the gap makes it one too few, which only shortens a pause.
    """
    return following.num_running + following.num_waiting - num_added


def _asynchronous_ns(steps: list[RecordedStep]) -> list[int | None]:
    durations: list[int | None] = []
    free_ns = 0
    for step in steps:
        if not step.numbers or step.output_ns is None:
            durations.append(None)
            continue
        durations.append(step.output_ns - max(free_ns, step.schedule_ns))
        free_ns = step.output_ns
    return durations
