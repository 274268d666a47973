"""The scheduler under any sequence of arrivals, steps and aborts: the numbered invariants of tests/INVARIANTS.md.

Two schedulers take the same requests: the reference and the one with the fast path. Every step must be equal.
"""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sim.core.block_pool import NULL_BLOCK, BlockPool
from sim.core.config import CacheConfig
from sim.core.fast_scheduler import FastScheduler
from sim.core.kv_cache_interface import FullAttentionSpec, SlidingWindowSpec
from sim.core.output import SchedulerOutput
from sim.core.request import Request, RequestStatus
from sim.core.scheduler import Scheduler
from tests.factories import FUZZ, create_request, create_scheduler, free_blocks, num_free_blocks, reference_counts

FULL = (FullAttentionSpec(),)
BLOCK_SIZE = 4


@st.composite
def draw_flags(draw: st.DrawFn, hybrid: bool) -> dict[str, Any]:
    max_num_seqs = draw(st.integers(1, 6))
    max_model_len = draw(st.sampled_from([16, 24, 40]))
    chunked = draw(st.booleans())
    budget = max(draw(st.sampled_from([max_num_seqs, 8, 11, 40])), max_num_seqs, 0 if chunked else max_model_len)
    groups = (
        draw(
            st.sampled_from(
                [(*FULL, SlidingWindowSpec(6)), (SlidingWindowSpec(5),) * 2 + FULL, (SlidingWindowSpec(9),)]
            )
        )
        if hybrid
        else FULL
    )
    # Pools that hold one request of max_model_len, and hardly a second one.
    in_flight = 2 * budget  # at most
    one_request = sum(
        max_model_len // BLOCK_SIZE
        if isinstance(group, FullAttentionSpec)
        else group.max_admission_blocks_per_request(in_flight, max_model_len, BLOCK_SIZE)
        for group in groups
    )
    return {
        "max_num_seqs": max_num_seqs,
        "max_num_batched_tokens": budget,
        "max_model_len": max_model_len,
        "enable_chunked_prefill": chunked,
        "long_prefill_token_threshold": draw(st.sampled_from([0, 0, 3, 8])),
        "long_prefill_token_threshold_adaptive": draw(st.booleans()),
        "policy": draw(st.sampled_from(["fcfs", "priority"])),
        "async_scheduling": draw(st.booleans()),
        "watermark": draw(st.sampled_from([0.0, 0.0, 0.3])),
        "scheduler_reserve_full_isl": draw(st.booleans()),
        "block_size": BLOCK_SIZE,
        "num_gpu_blocks": 1 + draw(st.integers(one_request, one_request * 3 // 2)),
        "enable_prefix_caching": draw(st.booleans()),
        "kv_cache_groups": groups,
    }


class SchedulerMachine(RuleBasedStateMachine):
    """One request at a time arrives or is aborted; steps are scheduled and completed as the batch queue allows."""

    hybrid = False

    def __init__(self) -> None:
        super().__init__()
        self.schedulers: list[Scheduler] = []
        self.requests: list[tuple[Request, ...]] = []  # the same request in each scheduler
        self.in_flight: list[tuple[SchedulerOutput, ...]] = []
        self.num_tokens: dict[int, int] = {}  # output tokens by request

    @initialize(data=st.data())
    def start(self, data: st.DataObject) -> None:
        self.flags = data.draw(draw_flags(self.hybrid))
        cache_config = CacheConfig(99, BLOCK_SIZE, self.flags["enable_prefix_caching"], self.flags["kv_cache_groups"])
        kinds = (False, True) if FastScheduler.is_applicable(cache_config) else (False,)
        self.schedulers = [create_scheduler(fast=fast, **self.flags) for fast in kinds]

    @rule(
        num_requests=st.integers(1, 5),
        shared=st.sampled_from([0, 4, 8, 10]),
        own=st.integers(1, 14),
        max_tokens=st.sampled_from([1, 2, 9, 40, 40]),
        eos=st.sampled_from([None, None, 1, 12]),
        same_time=st.booleans(),
    )
    def arrive(
        self, *, num_requests: int, shared: int, own: int, max_tokens: int, eos: int | None, same_time: bool
    ) -> None:
        if self.flags["policy"] == "priority" and not self.flags["scheduler_reserve_full_isl"]:
            # Requests of equal priority and arrival, admitted on their first chunk, can preempt each other for ever.
            same_time = False
        for k in range(num_requests):
            i = len(self.requests)
            prompt = [(1_000, shared), (i, own)]
            arrival_time = 0 if same_time else i
            self.send(prompt, max_tokens=max_tokens, eos_tokens=eos, priority=k % 3, arrival_time=arrival_time)

    @precondition(lambda self: any(r.is_finished for r, *_ in self.requests))
    @rule(data=st.data(), own=st.integers(1, 5), max_tokens=st.integers(1, 9))
    def follow_up(self, data: st.DataObject, own: int, max_tokens: int) -> None:
        before = data.draw(st.sampled_from([r for r, *_ in self.requests if r.is_finished]))
        prompt = [*before.prompt, (before.output_stream, before.num_output_tokens), (len(self.requests), own)]
        self.send(prompt, max_tokens=max_tokens, priority=before.priority)

    def send(self, prompt: Any, **fields: Any) -> None:
        if sum(length for _, length in prompt) >= self.flags["max_model_len"]:
            return
        i = len(self.requests)
        copies = tuple(create_request(i, prompt=prompt, **fields) for _ in self.schedulers)
        for scheduler, request in zip(self.schedulers, copies, strict=True):
            scheduler.add_request(request)
        self.requests.append(copies)
        self.num_tokens[i] = 0

    @precondition(lambda self: any(not r.is_finished for r, *_ in self.requests))
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        aborted = data.draw(st.lists(st.sampled_from(self.requests), max_size=3, unique_by=id))
        for scheduler, copies in zip(self.schedulers, zip(*aborted, strict=True), strict=False):
            scheduler.abort_requests(list(copies))

    @precondition(lambda self: any(not r.is_finished for r, *_ in self.requests))
    @rule(num_calls=st.integers(1, 40))
    def run(self, num_calls: int) -> None:
        """Schedules while the batch queue has room, else completes: so either may be in flight at the end."""
        for _ in range(num_calls):
            if len(self.in_flight) < self.schedulers[0].config.batch_queue_size:
                self.schedule()
            else:
                self.complete()

    def schedule(self) -> None:
        outputs = tuple(scheduler.schedule() for scheduler in self.schedulers)
        self.in_flight.append(outputs)
        steps = [describe(scheduler, output) for scheduler, output in zip(self.schedulers, outputs, strict=True)]
        assert steps[0] == steps[-1], "I11: the fast path schedules what the reference does"
        num_tokens = sum(n for _, n in steps[0]["scheduled"])
        assert num_tokens <= self.flags["max_num_batched_tokens"], "I5: the budget holds"
        idle = not num_tokens and not outputs[0].preempted and len(self.in_flight) == 1
        assert not (idle and self.schedulers[0].has_unfinished_requests()), "I10: with work, something is in flight"

    def complete(self) -> None:
        for scheduler, output in zip(self.schedulers, self.in_flight.pop(0), strict=True):
            scheduler.update_from_output(output)

    @invariant()
    def i1_every_request_is_in_exactly_one_place(self) -> None:
        for i, scheduler in enumerate(self.schedulers):
            for copies in self.requests:
                request = copies[i]
                places = (request in scheduler.running, request in list(scheduler.waiting), request.is_finished)
                assert sum(places) == 1
                assert places[0] == (request.status == RequestStatus.RUNNING)

    @invariant()
    def i2_i7_blocks_are_free_or_held_and_reference_counts_are_holders(self) -> None:
        for scheduler in self.schedulers:
            holders = [0] * self.flags["num_gpu_blocks"]
            for request in scheduler.running:
                for table in scheduler.kv_cache_manager.get_blocks(request):
                    for block in table:
                        holders[block] += block != NULL_BLOCK
            assert holders == reference_counts(scheduler)
            assert sorted(free_blocks(scheduler)) == [b for b in range(1, len(holders)) if not holders[b]]

    @invariant()
    def i6_no_more_run_than_max_num_seqs(self) -> None:
        for scheduler in self.schedulers:
            assert len(scheduler.running) <= self.flags["max_num_seqs"]

    @invariant()
    def i8_a_block_with_a_content_is_found_by_it(self) -> None:
        if self.schedulers:
            pool = self.schedulers[0].kv_cache_manager.block_pool
            assert isinstance(pool, BlockPool)
            for block, content in enumerate(pool.block_hashes):
                if content is not None:
                    assert pool.get_cached_block(content, [pool.block_groups[block]]) is not None

    @invariant()
    def i3_tokens_only_grow_and_never_past_the_end(self) -> None:
        for request, *_ in self.requests:
            assert request.num_output_tokens >= self.num_tokens[request.request_id]
            assert request.num_output_tokens <= request.eos_tokens
            assert request.num_prompt_tokens + request.num_output_tokens <= self.flags["max_model_len"]
            self.num_tokens[request.request_id] = request.num_output_tokens

    def teardown(self) -> None:
        """Runs to the end: every request that was not aborted gets all its tokens, and every block comes back."""
        if not self.schedulers:
            return
        for _ in range(4_000):
            if not self.schedulers[0].has_unfinished_requests():
                break
            self.run(20)
        while self.in_flight:
            self.complete()
        for request, *_ in self.requests:
            assert request.is_finished
            if request.status != RequestStatus.FINISHED_ABORTED:
                room = self.flags["max_model_len"] - request.num_prompt_tokens
                assert request.num_output_tokens == min(request.eos_tokens, room)
        assert num_free_blocks(self.schedulers[0]) == self.flags["num_gpu_blocks"] - 1


def describe(scheduler: Scheduler, output: SchedulerOutput) -> dict[str, Any]:
    """Returns all that a step decided, by request ids."""
    return {
        "scheduled": [(request.request_id, n) for request, n in scheduler.scheduled_tokens(output)],
        "hits": {request.request_id: n for request, n in output.hits.items()},
        "preempted": [request.request_id for request in output.preempted],
        "blocks": {r.request_id: [list(group) for group in blocks] for r, blocks in output.new_blocks.items()},
        "running": [request.request_id for request in scheduler.running],
        "waiting": [request.request_id for request in scheduler.waiting],
        "free": free_blocks(scheduler),
    }


class HybridSchedulerMachine(SchedulerMachine):
    hybrid = True


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = settings(max_examples=60 * FUZZ, stateful_step_count=25)
TestHybridScheduler = HybridSchedulerMachine.TestCase
TestHybridScheduler.settings = settings(max_examples=30 * FUZZ, stateful_step_count=25)
