"""Data-parallel ranks of a mixture of experts: their forward passes are aligned, for every layer's experts are shared.

    rank 0   | prompt .............. | decode ..... | decode ..... |
    rank 1   | decode ... (waits)    | decode ..... | dummy        |
             ^ wave                  ^ wave         ^ wave

All ranks begin a step together and end it together; `sim.engine.lockstep.combined` says what the step costs. A rank
without anything to schedule takes part with a dummy pass.
Source: vLLM's documentation on data parallel deployment, and `DPEngineCoreProc.run_busy_loop`.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from sim.core.config import CacheConfig, SchedulerConfig
from sim.engine.engine_core import EngineCore, InFlightBatch
from sim.engine.lockstep import combined
from sim.engine.process import Clients, Clock
from sim.engine.step_split import StepMeter
from sim.engine.step_time import Batch, StepTimeModel


class _Unpriced:
    """Stands in for the step-time model of a rank: keeps what was scheduled until the wave is priced."""

    name = "unpriced"
    calibrated = False

    def __init__(self) -> None:
        self.latest = Batch.of()

    def step_time(self, batch: Batch) -> int:
        self.latest = batch
        return 0

    def out_of_range(self) -> list[str]:
        return []


class RankCore(EngineCore):
    """An engine whose steps get their times from its group.

    Args:
        scheduler_config: the scheduler's flags.
        cache_config: the KV blocks.
        reference: use the reference scheduler even where the fast path applies.
    """

    def __init__(
        self, scheduler_config: SchedulerConfig, cache_config: CacheConfig, *, reference: bool = False
    ) -> None:
        self._unpriced = _Unpriced()
        super().__init__(scheduler_config, cache_config, self._unpriced, reference=reference)
        self.scheduled: deque[Batch] = deque()  # what the batches in the queue are made of

    def schedule_next(self, now_ns: int) -> InFlightBatch | None:
        """Schedules one more step into the queue; None where there is nothing to schedule."""
        if not self.scheduler.has_unfinished_requests():
            return None
        batch = self.schedule(now_ns)
        self.batch_queue.append(batch)
        self.scheduled.append(Batch.of() if batch.output.is_empty else self._unpriced.latest)
        return batch

    def take_next(self) -> InFlightBatch:
        """Takes the oldest batch off the queue."""
        self.scheduled.popleft()
        return self.batch_queue.popleft()


@dataclass(slots=True)
class Rank:
    """One rank, as a replica drives it: what it does is done by the group."""

    group: LockstepGroup
    engine: RankCore
    clients: Clients

    @property
    def is_idle(self) -> bool:
        """Whether no rank of the group is at work."""
        return self.group.is_idle

    @property
    def last_ns(self) -> int:
        """When the group last did anything."""
        return self.group.last_ns

    def wake(self) -> None:
        """Tells the group that there may be something to do."""
        self.group.wake()

    def stop(self) -> None:
        """Ranks do not stop one by one: without one of them the others cannot compute."""
        raise AssertionError("a rank of a lockstep group was stopped")


class LockstepGroup:
    """The ranks of one server.

    Args:
        clock: virtual time.
        model: prices a step of one rank, given that the others have as many tokens.
        largest_graph: tokens of the largest captured graph.
        meter: keeps what each rank's steps are made of, where that is asked for.
    """

    def __init__(
        self, clock: Clock, model: StepTimeModel, *, largest_graph: int = 0, meter: StepMeter | None = None
    ) -> None:
        self.is_idle = True
        self.last_ns = 0
        self._clock = clock
        self._model = model
        self._meter = meter
        self._largest_graph = largest_graph
        self._ranks: list[Rank] = []

    def join(self, engine: RankCore, clients: Clients) -> Rank:
        """Adds a rank."""
        rank = Rank(self, engine, clients)
        self._ranks.append(rank)
        return rank

    def wake(self) -> None:
        """Starts a wave, unless one is under way."""
        if self.is_idle:
            self.is_idle = False
            self._begin()

    def _begin(self) -> None:
        """Begins a wave: every rank brings the step that it has scheduled, or schedules one."""
        now = self.last_ns = self._clock.now_ns
        for rank in self._ranks:
            rank.clients.deliver(now)
        taking_part = [rank for rank in self._ranks if self._has_step(rank, now)]
        if not taking_part:
            self._rest()
            return
        scheduled = [rank.engine.scheduled[0] for rank in taking_part]
        together = combined(scheduled, len(self._ranks), self._largest_graph)
        duration_ns = self._model.step_time(together)
        for rank in taking_part:
            batch = rank.engine.batch_queue[0]
            batch.start_ns, batch.end_ns = now, now + duration_ns
            if self._meter is not None:
                self._meter.keep(together)
        for rank in taking_part:
            if rank.engine.batch_queue_size > 1 and len(rank.engine.batch_queue) == 1:
                rank.engine.schedule_next(now)  # asynchronous: while this one executes
        self._clock.at(now + duration_ns, lambda: self._end(taking_part))

    def _has_step(self, rank: Rank, now_ns: int) -> bool:
        """Returns whether a rank has a step with tokens next; empty ones are taken in at once."""
        engine, is_fresh = rank.engine, False
        while True:
            if not engine.batch_queue:
                if engine.schedule_next(now_ns) is None:
                    return False
                is_fresh = True
            batch = engine.batch_queue[0]
            if not batch.output.is_empty:
                return True
            engine.take_next()
            rank.clients.publish(batch, engine.complete(batch))
            if is_fresh and not batch.output.preempted:
                return False

    def _end(self, took_part: list[Rank]) -> None:
        now = self.last_ns = self._clock.now_ns
        for rank in self._ranks:
            rank.clients.abort_due(now)
        for rank in took_part:
            batch = rank.engine.take_next()
            rank.clients.publish(batch, rank.engine.complete(batch))
        self._begin()

    def _rest(self) -> None:
        self.is_idle = True
        known = [next_ns for rank in self._ranks if (next_ns := rank.clients.next_event_ns()) is not None]
        if known:
            self._clock.at(min(known), self.wake)
