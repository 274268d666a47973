"""One vLLM engine in virtual time: schedule, time it, update.

`EngineCore` mirrors vLLM's `step_with_batch_queue`. Batches wait in a queue of one (synchronous) or two
(asynchronous: step n+1 is scheduled when step n starts executing); in a pipeline, of one more for each further stage.
The driver, `process.py`, alternates:

    batch = engine.dispatch(now)        # schedule one more step if the queue has room
    ... let the clock run to batch.end_ns, deliver what happened meanwhile ...
    outputs = engine.complete(batch)    # take in its tokens

Invariants: steps execute one after another, each from when it could start (`start_ns`) to `end_ns`, and the engine is
busy until the last of them ends; tokens reach clients at `end_ns`, never before. In a pipeline they overlap: a step is
a batch's way through all stages, and each stage takes one batch after another.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from sim.core.config import CacheConfig, SchedulerConfig
from sim.core.decode_pool import DecodePool
from sim.core.fast_scheduler import FastScheduler
from sim.core.output import SchedulerOutput
from sim.core.request import Request
from sim.core.scheduler import Scheduler
from sim.engine.steady_steps import SteadySteps, decode_ahead
from sim.engine.step_time import Batch, StepTimeModel
from sim.errors import UserError

MOST_PREEMPTED_IN_VAIN = 100_000
"""Preemptions without a token between them; thousands are possible while a long prompt is read in small chunks."""


class InFlightBatch:
    """A dispatched step. Queue lengths are those right after `schedule()`; an empty step has start = end."""

    __slots__ = (
        "end_ns",
        "num_decodes",
        "num_free_blocks",
        "num_prefill_tokens",
        "num_running",
        "num_waiting",
        "output",
        "scheduled_ns",
        "start_ns",
    )

    def __init__(  # noqa: PLR0917  # made once a step; keywords cost
        self,
        output: SchedulerOutput,
        scheduled_ns: int,
        times_ns: tuple[int, int],
        tokens: tuple[int, int],
        queue: tuple[int, int],
        num_free_blocks: int,
    ) -> None:
        self.output = output
        self.scheduled_ns = scheduled_ns
        self.start_ns, self.end_ns = times_ns
        self.num_prefill_tokens, self.num_decodes = tokens
        self.num_running, self.num_waiting = queue
        self.num_free_blocks = num_free_blocks


class StepOutputs:
    """What the clients get when a step completes.

    Attributes:
        tokens: requests that got a token, in scheduling order, each with whether it was the last; without those that
            decode in the pool, whose tokens are neither first nor last.
        pooled: those in the pool; listed only when the engine was asked to.
        gaps: for tokens after the first: (class, nanoseconds since the request's previous token) -> how many.
        first_tokens: requests that got their first token.
        finished: requests that got their last token.
    """

    __slots__ = ("finished", "first_tokens", "gaps", "pooled", "tokens")

    def __init__(
        self, tokens: list[tuple[Request, bool]], pooled: list[Request], gaps: dict[tuple[int, int], int]
    ) -> None:
        self.tokens = tokens
        self.pooled = pooled
        self.gaps = gaps
        self.first_tokens: list[Request] = []
        self.finished: list[Request] = []


class EngineCore:
    """Scheduler, batch queue and step times of one engine.

    Args:
        scheduler_config: the scheduler's flags.
        cache_config: the KV blocks.
        step_time_model: prices each step.
        reference: use the reference scheduler even where the fast path applies.
        list_pooled: list the pool's blocks and tokens too, for those who look at every one.
    """

    def __init__(
        self,
        scheduler_config: SchedulerConfig,
        cache_config: CacheConfig,
        step_time_model: StepTimeModel,
        *,
        reference: bool = False,
        list_pooled: bool = False,
    ) -> None:
        self.scheduler: Scheduler
        self.fast: FastScheduler | None = None  # the scheduler, where it is that
        self.pool: DecodePool | None = None
        num_stages = scheduler_config.pipeline_parallel_size
        if reference or num_stages > 1 or not FastScheduler.is_applicable(cache_config):
            self.scheduler = Scheduler(scheduler_config, cache_config)
        else:
            fast = FastScheduler(scheduler_config, cache_config, lists_blocks=list_pooled)
            self.scheduler, self.fast, self.pool = fast, fast, fast.pool
        self.list_pooled = list_pooled
        self.step_time_model = step_time_model
        self.batch_queue: deque[InFlightBatch] = deque()
        self.batch_queue_size = scheduler_config.batch_queue_size
        self.device_free_ns = 0  # when the last dispatched step ends
        self.earlier_free_ns = [0] * (num_stages - 1)  # pipelines: when it leaves each stage before the last
        self.num_preempted_in_vain = 0  # since a token came out
        self.on_schedule: Callable[[InFlightBatch], None] | None = None  # called right after each schedule()

    def has_work(self) -> bool:
        """Returns whether there is anything to schedule or to wait for."""
        return bool(self.batch_queue) or self.scheduler.has_unfinished_requests()

    def dispatch(self, now_ns: int) -> InFlightBatch | None:
        """Schedules one step, and returns the batch to wait for next.

        Returns:
            The oldest batch in flight, taken off the queue; None when the queue has room: dispatch again at once.
        """
        if self.scheduler.has_unfinished_requests():
            batch = self.schedule(now_ns)
            self.batch_queue.append(batch)
            # In a pipeline the next look may find something: a request's turn comes with the number of the step.
            is_worth_another = not batch.output.is_empty or bool(self.earlier_free_ns)
            if len(self.batch_queue) < self.batch_queue_size and is_worth_another:
                return None
        return self.batch_queue.popleft()

    def complete(self, batch: InFlightBatch) -> StepOutputs:
        """Takes in the tokens of a batch whose time is over."""
        end_ns, pool = batch.end_ns, self.pool
        pooled: list[Request] = []
        if pool is not None and self.list_pooled and not batch.output.is_empty:
            pooled = list(filter(pool.is_in_next_completed, pool.members))
        gaps: dict[tuple[int, int], int] = {}
        if pool is not None and not batch.output.is_empty:
            for class_id, count in batch.output.pooled_classes.items():
                if count:
                    gaps[class_id, end_ns - pool.last_end_ns] = count
            pool.last_end_ns = end_ns
        outputs = StepOutputs(self.scheduler.update_from_output(batch.output), pooled, gaps)
        for request, finished in outputs.tokens:
            if request.num_output_tokens == 1:
                outputs.first_tokens.append(request)
            else:
                key = (request.class_id, end_ns - request.last_token_ns)
                gaps[key] = gaps.get(key, 0) + 1
            request.last_token_ns = end_ns
            if finished:
                outputs.finished.append(request)
        if self.num_preempted_in_vain and (outputs.tokens or gaps):
            self.num_preempted_in_vain = 0
        return outputs

    def settle(self) -> None:
        """Brings the counters of every request up to date, for whoever looks at requests that have not ended."""
        if self.fast is not None:
            self.fast.settle()

    def can_decode_ahead(self) -> bool:
        """Returns whether all that can happen next is that running requests decode, and nobody looks at each step."""
        fast = self.fast
        return fast is not None and fast.only_decodes() and not self.list_pooled and self.on_schedule is None

    def decode_ahead(self, now_ns: int, arrival_ns: int, deadline_ns: int | None) -> SteadySteps | None:
        """Makes many steps at once, while `can_decode_ahead()`; see `steady_steps.py`.

        Args:
            now_ns: a moment at which a step could be dispatched.
            arrival_ns: when the next request arrives, as far as is known.
            deadline_ns: when the next client gives up; None: nobody will.

        Returns:
            The completed steps; None if there is none, and then nothing was done.
        """
        assert self.fast is not None
        return decode_ahead(self, self.fast, now_ns, arrival_ns, deadline_ns)

    def batch_of_decodes(self, step: tuple[int, int, int], steps: SteadySteps) -> InFlightBatch:
        """Returns the last of these steps (start, end, free blocks), not completed yet, as one that was dispatched."""
        assert self.fast is not None
        output = self.fast.output_of_decodes()
        start_ns, end_ns, num_free_blocks = step
        num_decodes, num_waiting = steps.num_decodes, steps.num_waiting
        return InFlightBatch(
            output, steps.now_ns, (start_ns, end_ns), (0, num_decodes), (num_decodes, num_waiting), num_free_blocks
        )

    def is_stuck(self, batch: InFlightBatch) -> bool:
        """Returns whether only an arrival or an abort can bring progress: with nothing running, nothing was admitted.

        That is a waiting request larger than the whole pool. A step that preempted made room, and is progress.
        """
        idle = all(each.output.is_empty and not each.output.preempted for each in (batch, *self.batch_queue))
        return idle and batch.num_running == 0 and batch.num_waiting > 0

    def schedule(self, now_ns: int) -> InFlightBatch:
        """Schedules and prices one step, whether or not the queue has room (`dispatch` looks at that)."""
        output = self.scheduler.schedule()
        if output.preempted:
            self._check_progress(len(output.preempted), now_ns)
        for request in output.hits:
            if request.scheduled_ns < 0:
                request.scheduled_ns = now_ns
        if not output.is_empty:
            composition = batch_composition(output)
            duration_ns = self.step_time_model.step_time(composition)
            if self.earlier_free_ns:
                start_ns, end_ns = self._pass_stages(max(now_ns, self._tokens_due_ns(output)), duration_ns)
            else:
                start_ns = max(now_ns, self.device_free_ns)
                end_ns = start_ns + duration_ns
            self.device_free_ns = end_ns
            num_prefill_tokens, num_decodes = composition.num_prefill_tokens, composition.num_decodes
        else:
            start_ns = end_ns = now_ns
            num_prefill_tokens = num_decodes = 0
        scheduler = self.scheduler
        batch = InFlightBatch(
            output,
            now_ns,
            (start_ns, end_ns),
            (num_prefill_tokens, num_decodes),
            (len(scheduler.running), len(scheduler.waiting.requests)),
            scheduler.kv_cache_manager.block_pool.get_num_free_blocks(),
        )
        if self.on_schedule is not None:
            self.on_schedule(batch)
        return batch

    def _check_progress(self, num_preempted: int, now_ns: int) -> None:
        """Ends a run in which requests preempt each other for ever, as the real scheduler lets them.

        Raises:
            UserError: more were preempted since the last token than any load with an end would bring.
        """
        self.num_preempted_in_vain += num_preempted
        if self.num_preempted_in_vain > MOST_PREEMPTED_IN_VAIN:
            raise UserError(
                f"at {now_ns / 1e9:.1f} s requests preempt each other for ever, as they would in vLLM: "
                f"{self.num_preempted_in_vain:,} preemptions since the last token. With scheduling_policy priority and "
                "scheduler_reserve_full_isl false, requests of one priority that come at one moment can do so; leave "
                "scheduler_reserve_full_isl on, or give the server a larger KV cache"
            )

    def _pass_stages(self, ready_ns: int, duration_ns: int) -> tuple[int, int]:
        """Sends a batch through the stages, an equal share of its time each; returns its start and end."""
        earlier = self.earlier_free_ns
        share_ns = duration_ns // (len(earlier) + 1)
        start_ns = at_ns = max(ready_ns, earlier[0])
        for stage, free_ns in enumerate(earlier):
            at_ns = earlier[stage] = max(at_ns, free_ns) + share_ns
        return start_ns, max(at_ns, self.device_free_ns) + duration_ns - len(earlier) * share_ns

    def _tokens_due_ns(self, output: SchedulerOutput) -> int:
        """Returns when the tokens are known that a step is to read: those that steps in flight sample."""
        for batch in reversed(self.batch_queue):
            sampled = batch.output.num_scheduled_tokens.keys() - batch.output.prefill_chunks
            if not sampled.isdisjoint(output.num_scheduled_tokens):
                return batch.end_ns
        return 0


def batch_composition(output: SchedulerOutput) -> Batch:
    """Returns what a step-time model looks at, from a schedule already counted as computed."""
    num_pooled = num_decodes = output.num_pooled
    decode_context = output.pooled_context
    num_prefill_tokens = attention_pairs = chunk_context = 0
    chunks = []
    for request, num_tokens in output.num_scheduled_tokens.items():
        context = request.num_computed_tokens - num_tokens
        if num_tokens == 1:
            num_decodes += 1
            decode_context += context
        else:
            num_prefill_tokens += num_tokens
            attention_pairs += num_tokens * context + num_tokens * (num_tokens + 1) // 2
            chunk_context += context
            chunks.append((num_tokens, context))
    return Batch(
        num_pooled + len(output.num_scheduled_tokens),
        num_prefill_tokens,
        num_decodes,
        attention_pairs,
        decode_context,
        chunk_context,
        tuple(chunks),
    )
