"""The scheduler with a decode pool: the same schedules as the reference, at a fraction of the work a step.

`decode_pool.py` and `fast_block_pool.py` say why they are the same. Precondition: KV cache groups of the kinds that
`FastKVCacheManager` knows.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from itertools import islice

from sim.core.config import CacheConfig, SchedulerConfig
from sim.core.decode_pool import DecodePool, running_order
from sim.core.fast_kv_cache_manager import FastKVCacheManager
from sim.core.output import SchedulerOutput
from sim.core.request import Request, RequestStatus
from sim.core.scheduler import Scheduler


class FastScheduler(Scheduler):
    """A `Scheduler` that advances steadily decoding requests together.

    Args:
        scheduler_config: limits of a step.
        cache_config: the pool of KV blocks.
        lists_blocks: know each block's id, and list the newly taken ones in `SchedulerOutput.new_blocks`. No decision
            depends on it.
    """

    def __init__(
        self, scheduler_config: SchedulerConfig, cache_config: CacheConfig, *, lists_blocks: bool = False
    ) -> None:
        self._fast_kv_cache_manager = FastKVCacheManager(cache_config, scheduler_config, keeps_ids=lists_blocks)
        super().__init__(scheduler_config, cache_config)
        self.pool = DecodePool(cache_config.block_size, self._fast_kv_cache_manager.sliding_window)
        self.lists_blocks = lists_blocks
        self._loose: list[Request] = []  # running requests that are not pooled, in running order
        self._in_flight: deque[SchedulerOutput] = deque()  # non-empty steps, scheduled and not completed
        self._refused: Request | None = None  # the head of the queue that the latest step found no room for
        self._num_frees_when_refused = 0

    @staticmethod
    def is_applicable(cache_config: CacheConfig) -> bool:
        """Returns whether the fast path can serve this KV cache."""
        return FastKVCacheManager.is_applicable(cache_config)

    def schedule(self) -> SchedulerOutput:
        """Decides the next step."""
        output = super().schedule()
        if not output.is_empty:
            self.pool.advance()
            self._in_flight.append(output)
            for request in output.num_scheduled_tokens:
                if self._decodes_steadily(request, output) and (num_tokens_left := self._num_tokens_left(request)) > 1:
                    self._loose.remove(request)
                    self.pool.join(request, len(self._in_flight), num_tokens_left)
        return output

    def update_from_output(self, output: SchedulerOutput) -> list[tuple[Request, bool]]:
        """Takes in the tokens of a completed step; returns those of requests that are not pooled."""
        if output.is_empty:
            return []
        assert self._in_flight.popleft() is output, "steps complete in the order in which they were scheduled"
        if output.is_unsorted:
            output.num_scheduled_tokens = dict(
                sorted(output.num_scheduled_tokens.items(), key=lambda item: item[0].running_order)
            )
        tokens = super().update_from_output(output)
        for request in self.pool.complete():
            if request in self.pool.members:
                self._leave_pool(request)
        return tokens

    def only_decodes(self) -> bool:
        """Returns whether every running request decodes in the pool and nobody can be admitted before blocks are freed.

        It stays so until a request arrives, leaves, or comes to its last token, or blocks run out.
        """
        if self._loose or not self.pool.members:
            return False
        for output in self._in_flight:
            if output.num_scheduled_tokens:
                return False
        if not self.waiting.requests or len(self.running) >= self.max_num_active_reqs:
            return True
        return (
            self.waiting.peek_request() is self._refused
            and self._fast_kv_cache_manager.block_pool.num_frees == self._num_frees_when_refused
            and not self.pool.has_windows  # they give blocks back without a free request
            and not self.config.long_prefill_token_threshold  # what the head asks for may change with the queue
        )

    def schedule_decodes(self) -> bool:
        """Does what `schedule()` does while `only_decodes()`; or does nothing and returns False: blocks run out."""
        pool, manager = self.pool, self._fast_kv_cache_manager
        due = pool.due()
        if due and len(due) * manager.num_groups > manager.block_pool.get_num_free_blocks():
            return False
        if pool.has_windows and (skipping := pool.skipping()):
            for request in sorted({*due, *skipping}, key=running_order):
                self._visit_pooled(request, SchedulerOutput())
        elif due:
            manager.allocate_places(due)
        pool.advance()
        return True

    def output_of_decodes(self) -> SchedulerOutput:
        """Returns the step of the latest `schedule_decodes()`, which is to be in flight now."""
        pool = self.pool
        output = SchedulerOutput()
        output.pooled_classes = dict(pool.classes)
        output.pooled_context = pool.context - len(pool.members)
        output.close()
        self._in_flight.append(output)
        return output

    def abort_requests(self, requests: list[Request]) -> None:
        """Ends requests whose client gave up."""
        for request in requests:
            if request in self.pool.members:
                self._leave_pool(request)
        super().abort_requests(requests)

    def scheduled_tokens(self, output: SchedulerOutput) -> list[tuple[Request, int]]:
        """Lists the tokens of each scheduled request, in scheduling order; to be asked right after `schedule()`."""
        pooled = filter(self.pool.is_in_latest, self.pool.members)
        tokens = [*output.num_scheduled_tokens.items(), *((request, 1) for request in pooled)]
        return sorted(tokens, key=lambda item: item[0].running_order)

    def _create_kv_cache_manager(self) -> FastKVCacheManager:
        return self._fast_kv_cache_manager

    def _schedule_running(self, output: SchedulerOutput, threshold: int) -> int:
        """Gives every pooled request a token, and the others what they miss. Returns the budget left."""
        pool = self.pool
        if pool.members and self._needs_reference(threshold):
            self.settle()
        if not pool.members:
            return super()._schedule_running(output, threshold)
        token_budget = self._schedule_beside_pool(output, threshold)
        output.pooled_classes = dict(pool.classes)
        output.pooled_context = pool.context
        return token_budget

    def _schedule_waiting(self, output: SchedulerOutput, threshold: int, token_budget: int) -> int:
        """Admits waiting requests, and notes the head for which there was no room."""
        self._refused = None
        if not self.waiting.requests:
            return token_budget
        budget_left = super()._schedule_waiting(output, threshold, token_budget)
        if budget_left and self.waiting.requests and len(self.running) < self.max_num_active_reqs:
            self._refused = self.waiting.peek_request()
            self._num_frees_when_refused = self._fast_kv_cache_manager.block_pool.num_frees
        return budget_left

    def _needs_reference(self, threshold: int) -> bool:
        """Returns whether this step may starve a pooled request of budget, or preempt by priority."""
        pool, loose = self.pool, self._loose
        if self.config.policy == "priority":
            num_free_blocks = self.kv_cache_manager.block_pool.get_num_free_blocks()
            num_needed = len(pool.due()) * self._fast_kv_cache_manager.num_groups
            if num_needed + self._num_loose_blocks(threshold) > num_free_blocks:
                return True
        num_before = len(loose)  # those that stand before a pooled request
        last = len(self.running) - 1
        while num_before and self.running[last] is loose[num_before - 1]:
            num_before -= 1
            last -= 1
        if not num_before:
            return False
        budget = self.config.max_num_batched_tokens
        return len(pool.members) + sum(self._num_new_tokens(r, threshold, budget) for r in loose[:num_before]) > budget

    def _num_loose_blocks(self, threshold: int) -> int:
        """Returns the blocks that the requests outside the pool can take in this step, at most."""
        block_size, budget = self.kv_cache_manager.block_size, self.config.max_num_batched_tokens
        num_places = sum(self._num_new_tokens(r, threshold, budget) // block_size + 1 for r in self._loose)
        return num_places * self._fast_kv_cache_manager.num_groups

    def _schedule_beside_pool(self, output: SchedulerOutput, threshold: int) -> int:
        """Takes blocks for due pooled requests and schedules the others, merged in running order."""
        pool, manager = self.pool, self._fast_kv_cache_manager
        token_budget = self.config.max_num_batched_tokens - len(pool.members)
        to_visit = self._pooled_to_visit()
        num_visited = 0
        for request in self._loose.copy():
            if num_visited < len(to_visit) and to_visit[num_visited].running_order < request.running_order:
                before, num_visited = num_visited, bisect_left(to_visit, request.running_order, key=running_order)
                if not self._visit_all_pooled(to_visit[before:num_visited], output):
                    return token_budget
            if request.status != RequestStatus.RUNNING:
                continue  # preempted for one before it
            num_new_tokens = self._num_new_tokens(request, threshold, token_budget)
            if num_new_tokens == 0:
                continue
            new_blocks = manager.allocate_slots(request, num_new_tokens)
            while new_blocks is None:
                if self._preempt_last(output) is request:
                    return token_budget
                new_blocks = manager.allocate_slots(request, num_new_tokens)
            output.num_scheduled_tokens[request] = num_new_tokens
            if any(new_blocks):
                output.new_blocks[request] = new_blocks
            token_budget -= num_new_tokens
        self._visit_all_pooled(to_visit[num_visited:] if num_visited else to_visit, output)
        return token_budget

    def _pooled_to_visit(self) -> list[Request]:
        """Returns, in running order, the pooled requests that this step does more for than count a token."""
        skipping = self.pool.skipping() if self.pool.has_windows else None
        return sorted({*self.pool.due(), *skipping}, key=running_order) if skipping else self.pool.due().copy()

    def _visit_all_pooled(self, requests: list[Request], output: SchedulerOutput) -> bool:
        """Does for pooled requests what is due; returns False where one of them was preempted for its own block."""
        manager = self._fast_kv_cache_manager
        num_free_blocks = manager.block_pool.get_num_free_blocks()
        if not manager.sliding_window and not output.preempted and len(requests) <= num_free_blocks:
            if requests:
                self._allocate_places(requests, output)
            return True
        return all(self._visit_pooled(request, output) for request in requests if request in self.pool.members)

    def _visit_pooled(self, request: Request, output: SchedulerOutput) -> bool:
        """Moves a pooled request's window and takes its next block where due; returns whether it is still running."""
        manager = self._fast_kv_cache_manager
        if manager.sliding_window:
            manager.remove_skipped_blocks(request, self.pool.num_processed_tokens(request))
        if not self.pool.is_due(request):
            return True
        while manager.block_pool.get_num_free_blocks() < manager.num_groups:
            if self._preempt_last(output) is request:
                return False
        self._allocate_places([request], output)
        return True

    def _allocate_places(self, requests: list[Request], output: SchedulerOutput) -> None:
        manager = self._fast_kv_cache_manager
        manager.allocate_places(requests)
        if self.lists_blocks:
            output.new_blocks.update((request, manager.latest_blocks(request)) for request in requests)

    def _preempt_last(self, output: SchedulerOutput) -> Request:
        victim, _ = self._pop_victim()
        self._preempt_request(victim)
        output.preempted.append(victim)
        return victim

    def _pop_victim(self) -> tuple[Request, int]:
        victim, index = super()._pop_victim()
        if victim in self.pool.members:
            self._leave_pool(victim)
        self._loose.remove(victim)
        return victim, index

    def _enter_running(self, request: Request) -> None:
        super()._enter_running(request)
        self._loose.append(request)

    def _leave_queue(self, request: Request) -> None:
        if request.status == RequestStatus.RUNNING:
            self._loose.remove(request)
        super()._leave_queue(request)

    def _decodes_steadily(self, request: Request, output: SchedulerOutput) -> bool:
        """Returns whether a request of the step just scheduled gets one token in every step after it."""
        return (
            request not in output.prefill_chunks
            and request.status == RequestStatus.RUNNING
            and not request.num_stale_output_tokens
        )

    def _num_tokens_left(self, request: Request) -> int:
        """Returns how many output tokens are still to come after those in flight, where all of these yield one."""
        most = min(request.eos_tokens, self.config.max_model_len - request.num_prompt_tokens)
        num_in_flight = request.num_output_placeholders if self.config.async_scheduling else 1
        return most - request.num_output_tokens - num_in_flight

    def _leave_pool(self, request: Request) -> None:
        """Gives a request back to the reference's code: its counters, its blocks, its place in steps in flight."""
        num_in_flight = self.pool.leave(request)
        if self.config.async_scheduling:
            request.num_output_placeholders += num_in_flight
        insort(self._loose, request, key=running_order)
        for output in islice(reversed(self._in_flight), num_in_flight):
            output.is_unsorted = bool(output.num_scheduled_tokens)  # it has been added at the end
            output.num_scheduled_tokens[request] = 1
            output.pooled_classes[request.class_id] -= 1
        manager = self._fast_kv_cache_manager
        manager.catch_up(request)
        manager.cache_blocks(request, self.pool.num_cacheable_tokens(request))

    def settle(self) -> None:
        """Brings every request's counters up to date: those that decode in the pool lag behind."""
        for request in list(self.pool.members):
            self._leave_pool(request)
