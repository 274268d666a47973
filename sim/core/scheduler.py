"""The reference scheduler: vLLM's V1 `Scheduler` and `AsyncScheduler`, rule by rule.

There is no decoding phase nor prefill phase. Each request has `num_computed_tokens` and `num_tokens` (prompt plus
outputs); a step gives requests tokens so that the first catches up with the second. That covers chunked prefill,
prefix caching, preemption with recomputation, and plain decoding, in which one token is missing.

Invariants, between calls:

- a request is in `running` (status RUNNING), in `waiting` (WAITING or PREEMPTED), or finished, and in one only;
- `len(running) <= max_num_seqs`, and the tokens of a step never exceed max_num_batched_tokens;
- only running requests hold blocks.
"""

from __future__ import annotations

from typing import Any

from sim.core.config import CacheConfig, SchedulerConfig
from sim.core.fast_kv_cache_manager import FastKVCacheManager
from sim.core.kv_cache_manager import KVCacheManager
from sim.core.output import SchedulerOutput
from sim.core.request import Request, RequestStatus
from sim.core.request_queue import create_request_queue


class Scheduler:
    """Decides, step by step, which requests get how many tokens.

    Args:
        scheduler_config: limits of a step; says whether scheduling is asynchronous.
        cache_config: the pool of KV blocks.
    """

    def __init__(self, scheduler_config: SchedulerConfig, cache_config: CacheConfig) -> None:
        self.config = scheduler_config
        self.cache_config = cache_config
        self.kv_cache_manager = self._create_kv_cache_manager()
        self.waiting = create_request_queue(scheduler_config.policy)
        self.running: list[Request] = []
        self.num_admissions = 0  # requests that entered `running` so far
        self.current_step = 0
        self.max_num_active_reqs = scheduler_config.num_seats
        self.lists_blocks = True  # in each step's `new_blocks`

    def _create_kv_cache_manager(self) -> KVCacheManager | FastKVCacheManager:
        return KVCacheManager(self.cache_config, self.config)

    def add_request(self, request: Request) -> None:
        """Takes a new request into the waiting queue."""
        self.waiting.add_request(request)

    def scheduled_tokens(self, output: SchedulerOutput) -> list[tuple[Request, int]]:
        """Lists the tokens of each scheduled request, in scheduling order; to be asked right after `schedule()`."""
        return list(output.num_scheduled_tokens.items())

    def has_unfinished_requests(self) -> bool:
        """Returns whether anything is running or waiting."""
        return bool(self.running or self.waiting.requests)

    def schedule(self) -> SchedulerOutput:
        """Decides the next step: running requests first, then, if nothing was preempted, waiting ones."""
        self.current_step += 1
        output = SchedulerOutput()
        threshold = self._long_prefill_token_threshold()
        token_budget = self._schedule_running(output, threshold)
        if not output.preempted:
            token_budget = self._schedule_waiting(output, threshold, token_budget)
        self._update_after_schedule(output)
        output.close()
        return output

    def update_from_output(self, output: SchedulerOutput) -> list[tuple[Request, bool]]:
        """Takes in the tokens of a completed step.

        Args:
            output: what `schedule()` returned for that step.

        Returns:
            The requests that got a token, in scheduling order, each with whether it finished by it. A request aborted
            meanwhile gets nothing; a preempted one gets the token that was in flight.
        """
        tokens = []
        for request, num_tokens in output.num_scheduled_tokens.items():
            request.num_in_flight_tokens -= num_tokens
            is_stale = request.num_stale_output_tokens > 0
            if is_stale:
                request.num_stale_output_tokens -= num_tokens
            if request.is_finished:
                continue
            if request not in output.prefill_chunks:
                stopped = self._update_request_with_output(request, is_stale)
                tokens.append((request, stopped))
        return tokens

    def abort_requests(self, requests: list[Request]) -> None:
        """Ends requests whose client gave up; their blocks are free at once, even while a step still computes them."""
        unfinished = [request for request in requests if not request.is_finished]
        for request in unfinished:
            self._leave_queue(request)
        for request in unfinished:
            request.status = RequestStatus.FINISHED_ABORTED
            self.kv_cache_manager.free(request)

    def _long_prefill_token_threshold(self) -> int:
        """Returns the cap on one request's tokens in this step, 0 for none: a lone request starves nobody."""
        config = self.config
        threshold = config.long_prefill_token_threshold
        if threshold <= 0:
            return 0
        num_requests = len(self.running) + len(self.waiting)
        if num_requests <= 1:
            return 0
        if config.long_prefill_token_threshold_adaptive:
            return max(threshold, config.max_num_batched_tokens // num_requests)
        return threshold

    def _schedule_running(self, output: SchedulerOutput, threshold: int) -> int:
        """Gives running requests, in order, what they miss; preempts where blocks run out. Returns the budget left."""
        config = self.config
        scheduled = output.num_scheduled_tokens
        token_budget = config.max_num_batched_tokens
        index = 0
        while index < len(self.running) and token_budget > 0:
            request = self.running[index]
            num_new_tokens = self._num_new_tokens(request, threshold, token_budget)
            if num_new_tokens == 0:
                # vLLM's rule: go on to lower-priority requests rather than stop.
                index += 1
                continue
            new_blocks = self.kv_cache_manager.allocate_slots(request, num_new_tokens)
            while new_blocks is None:
                victim, victim_index = self._pop_victim()
                if victim_index < index:
                    index -= 1
                    token_budget += scheduled.pop(victim, 0)
                    output.new_blocks.pop(victim, None)
                self._preempt_request(victim)
                output.preempted.append(victim)
                if victim is request:
                    return token_budget
                new_blocks = self.kv_cache_manager.allocate_slots(request, num_new_tokens)
            scheduled[request] = num_new_tokens
            if any(new_blocks):
                output.new_blocks[request] = new_blocks
            token_budget -= num_new_tokens
            index += 1
        return token_budget

    def _num_new_tokens(self, request: Request, threshold: int, token_budget: int) -> int:
        """Returns the tokens a running request gets in this step, 0 for none."""
        placeholders = request.num_output_placeholders
        if placeholders and (
            request.num_computed_tokens + 2 - placeholders >= request.num_prompt_tokens + request.max_tokens
        ):
            # Asynchronous: the step in flight yields its last token.
            return 0
        if self.current_step < request.next_decode_eligible_step:
            return 0
        num_new_tokens = request.num_tokens + placeholders - request.num_computed_tokens
        if 0 < threshold < num_new_tokens:
            num_new_tokens = threshold
        return min(num_new_tokens, token_budget, self.config.max_model_len - 1 - request.num_computed_tokens)

    def _pop_victim(self) -> tuple[Request, int]:
        """Takes the request to preempt out of `running`; returns it with the place it had.

        FCFS: the last. Priority: the first maximum of (priority, arrival time).
        """
        running = self.running
        if self.config.policy == "priority":
            index = max(range(len(running)), key=lambda i: (running[i].priority, running[i].arrival_time))
        else:
            index = len(running) - 1
        return running.pop(index), index

    def _preempt_request(self, request: Request) -> None:
        """Puts a request that was taken out of `running` back to waiting, to be recomputed; its outputs stay."""
        self.kv_cache_manager.free(request)
        request.status = RequestStatus.PREEMPTED
        request.num_computed_tokens = 0
        request.num_stale_output_tokens = request.num_in_flight_tokens
        request.num_output_placeholders = 0
        request.num_preemptions += 1
        self.waiting.prepend_request(request)

    def _schedule_waiting(self, output: SchedulerOutput, threshold: int, token_budget: int) -> int:
        """Admits waiting requests, the head first, until budget, seats or blocks stop it. Returns the budget left."""
        config = self.config
        manager = self.kv_cache_manager
        skipped: list[Request] = []
        while token_budget > 0 and self.waiting.requests and len(self.running) < self.max_num_active_reqs:
            request = self.waiting.peek_request()
            if request.num_stale_output_tokens:
                # Pipelines: its token is still in flight. A resumed request would compute that token again.
                skipped.append(self.waiting.pop_request())
                continue
            hit_blocks: Any  # the manager's own affair
            hit_blocks, num_hit_tokens = manager.get_computed_blocks(request)
            num_new_tokens = request.num_tokens - num_hit_tokens
            if 0 < threshold < num_new_tokens:
                num_new_tokens = threshold
            if not config.enable_chunked_prefill and num_new_tokens > token_budget:
                break
            num_new_tokens = min(num_new_tokens, token_budget)
            new_blocks = manager.allocate_slots(
                request,
                num_new_tokens,
                num_hit_tokens,
                hit_blocks,
                admission=True,
                full_sequence_must_fit=config.scheduler_reserve_full_isl,
                has_scheduled_reqs=bool(self.running),
            )
            if new_blocks is None:
                break
            self.waiting.pop_request()
            self._enter_running(request)
            request.num_computed_tokens = num_hit_tokens
            self._record_admission(output, request, num_hit_tokens)
            output.num_scheduled_tokens[request] = num_new_tokens
            token_budget -= num_new_tokens
        for request in reversed(skipped):
            self.waiting.prepend_request(request)
        return token_budget

    def _record_admission(self, output: SchedulerOutput, request: Request, num_hit_tokens: int) -> None:
        output.hits[request] = num_hit_tokens
        if self.lists_blocks:
            output.new_blocks[request] = self.kv_cache_manager.get_blocks(request)
        if request.num_cached_tokens < 0:
            request.num_cached_tokens = num_hit_tokens
            output.num_prefix_queries += request.num_tokens
            output.num_prefix_hits += num_hit_tokens

    def _update_after_schedule(self, output: SchedulerOutput) -> None:
        """Counts the scheduled tokens as computed at once, so that the next step can be scheduled before this ends."""
        is_async, num_stages = self.config.async_scheduling, self.config.pipeline_parallel_size
        for request, num_tokens in output.num_scheduled_tokens.items():
            request.num_computed_tokens += num_tokens
            request.num_in_flight_tokens += num_tokens
            known_tokens = request.num_tokens + request.num_output_placeholders
            if request.num_computed_tokens < known_tokens:
                output.prefill_chunks.add(request)
            elif is_async:
                request.num_output_placeholders += 1
                if num_stages > 1:
                    request.next_decode_eligible_step = self.current_step + num_stages

    def _update_request_with_output(self, request: Request, is_stale: bool) -> bool:
        """Appends the token of a step; returns whether it was the last."""
        was_running = request.status == RequestStatus.RUNNING
        request.append_output_token()
        stopped = self._stop_status(request)
        if self.config.async_scheduling:
            if not is_stale:
                request.num_output_placeholders -= 1
            if was_running:
                self.kv_cache_manager.cache_blocks(
                    request, request.num_computed_tokens - request.num_output_placeholders
                )
        if stopped:
            self._leave_queue(request)
            request.status = stopped
            self.kv_cache_manager.free(request)
        return stopped is not None

    def _stop_status(self, request: Request) -> RequestStatus | None:
        """Returns the final status when the token just appended was the last: end of sequence, or a length cap."""
        if request.num_output_tokens >= request.max_tokens or request.num_tokens >= self.config.max_model_len:
            return RequestStatus.FINISHED_LENGTH_CAPPED
        if request.num_output_tokens >= request.eos_tokens:
            return RequestStatus.FINISHED_STOPPED
        return None

    def _enter_running(self, request: Request) -> None:
        request.status = RequestStatus.RUNNING
        self.num_admissions += 1
        request.running_order = self.num_admissions
        self.running.append(request)

    def _leave_queue(self, request: Request) -> None:
        """Takes a request out of whichever queue it stands in."""
        if request.status == RequestStatus.RUNNING:
            self.running.remove(request)
        else:
            self.waiting.remove_request(request)
