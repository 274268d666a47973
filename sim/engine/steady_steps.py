"""Many steps at once, where all that happens is that running requests decode.

Between an arrival, a last token and a full pool, each step is the one before with longer contexts: requests at a block
boundary take a block, the step is priced, its tokens are counted. Such steps need none of the objects and queues that
`EngineCore.dispatch` and `complete` pass on; made in one loop, they cost a fraction, and they are the same steps, to
the nanosecond and the block.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sim.core.decode_pool import DecodePool
from sim.core.fast_scheduler import FastScheduler
from sim.engine.step_time import Batch

if TYPE_CHECKING:
    from sim.engine.engine_core import EngineCore, InFlightBatch, StepOutputs


class SteadySteps:
    """Completed steps in which all running requests decoded.

    Attributes:
        first: the step that was in flight before (asynchronous scheduling), with its tokens.
        start_ns: when each further step began.
        end_ns: when it ended.
        gap_ns: the time between its tokens and those of the step before.
        num_free_blocks: free KV blocks right after it was scheduled.
        num_decodes: requests that decoded, the same in all further steps; and how many of each class.
        num_waiting: requests in the queue meanwhile.
        now_ns: when the last step ended.
    """

    __slots__ = (
        "classes",
        "end_ns",
        "first",
        "gap_ns",
        "now_ns",
        "num_decodes",
        "num_free_blocks",
        "num_waiting",
        "start_ns",
    )

    def __init__(self, num_decodes: int, num_waiting: int, classes: dict[int, int], now_ns: int) -> None:
        self.num_decodes = num_decodes
        self.num_waiting = num_waiting
        self.classes = classes
        self.now_ns = now_ns
        self.first: tuple[InFlightBatch, StepOutputs] | None = None
        self.start_ns: list[int] = []
        self.end_ns: list[int] = []
        self.gap_ns: list[int] = []
        self.num_free_blocks: list[int] = []

    def add(self, pool: DecodePool, step: tuple[int, int, int]) -> None:
        """Counts a step (start, end, free blocks) as completed."""
        start_ns, end_ns, num_free_blocks = step
        self.start_ns.append(start_ns)
        self.end_ns.append(end_ns)
        self.gap_ns.append(end_ns - pool.last_end_ns)
        self.num_free_blocks.append(num_free_blocks)
        self.now_ns = pool.last_end_ns = end_ns
        pool.num_completed += 1


def decode_ahead(
    engine: EngineCore, scheduler: FastScheduler, now_ns: int, arrival_ns: int, deadline_ns: int | None
) -> SteadySteps | None:
    """Makes steady steps until something else is due; see `EngineCore.decode_ahead`."""
    if now_ns >= arrival_ns:
        return None
    if engine.batch_queue_size == 1:
        # When a step will end is known only once it is made, so a client must not give up meanwhile.
        return _one_by_one(engine, scheduler, now_ns, arrival_ns) if deadline_ns is None else None
    if len(engine.batch_queue) != 1:
        return None
    return _one_in_flight(engine, scheduler, now_ns, arrival_ns, 1 << 62 if deadline_ns is None else deadline_ns)


def _one_by_one(engine: EngineCore, scheduler: FastScheduler, now_ns: int, arrival_ns: int) -> SteadySteps | None:
    """Makes steps of a synchronous engine: each is completed before the next is scheduled."""
    pool = scheduler.pool
    steps = _no_steps(scheduler, now_ns)
    while steps.now_ns < arrival_ns and not pool.leaves_at_next_completion() and scheduler.schedule_decodes():
        steps.add(pool, _dispatch(engine, scheduler, steps.now_ns))
    return steps if steps.end_ns else None


def _one_in_flight(
    engine: EngineCore, scheduler: FastScheduler, now_ns: int, arrival_ns: int, deadline_ns: int
) -> SteadySteps | None:
    """Makes steps of an asynchronous engine: each is scheduled while the one before executes."""
    pool, queue = scheduler.pool, engine.batch_queue
    first = queue[0]
    if first.end_ns >= deadline_ns or pool.leaves_at_next_completion() or not scheduler.schedule_decodes():
        return None
    steps = _no_steps(scheduler, first.end_ns)
    in_flight = _dispatch(engine, scheduler, now_ns)
    steps.first = queue.popleft(), engine.complete(first)
    while (
        steps.now_ns < arrival_ns
        and in_flight[1] < deadline_ns
        and not pool.leaves_at_next_completion()
        and scheduler.schedule_decodes()
    ):
        following = _dispatch(engine, scheduler, steps.now_ns)
        steps.add(pool, in_flight)
        in_flight = following
    queue.append(engine.batch_of_decodes(in_flight, steps))
    return steps


def _no_steps(scheduler: FastScheduler, now_ns: int) -> SteadySteps:
    pool = scheduler.pool
    return SteadySteps(len(pool.members), len(scheduler.waiting), dict(pool.classes), now_ns)


def _dispatch(engine: EngineCore, scheduler: FastScheduler, now_ns: int) -> tuple[int, int, int]:
    """Prices the step that was just scheduled; returns when it starts and ends, and the blocks that are left."""
    pool = scheduler.pool
    num_decodes = len(pool.members)
    context = pool.context - num_decodes  # before the step
    start_ns = max(now_ns, engine.device_free_ns)
    duration_ns = engine.step_time_model.step_time(Batch(num_decodes, 0, num_decodes, 0, context, 0, ()))
    end_ns = engine.device_free_ns = start_ns + duration_ns
    return start_ns, end_ns, scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
