"""One loaded model: its slots, the requests that wait for one, and its batches.

A slot owns `num_ctx` tokens and keeps what it computed last, so that a prompt that begins with the same tokens goes on
from there. Slots do not lend each other room. A request gets a slot from a semaphore without a limit on how many wait:
nobody is ever turned away here.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import pairwise

from sim.engine.ollama.batching import RoundRobin, Work, decode_first
from sim.engine.ollama.placement import Placement
from sim.engine.ollama.request import OllamaRequest, Slice, State, as_slices, common_prefix, head, truncated
from sim.engine.ollama.rules import OPEN_ENDED_CONTEXTS, Batching
from sim.engine.step_time import Batch, StepTimeModel

SIMILAR = 0.1
"""llama-server takes the slot with the longest common prefix when that is more than this share of the prompt."""


@dataclass(slots=True)
class Slot:
    """One slot.

    Attributes:
        content: what it holds, of the request that had it last.
        request: which has it now.
        last_used_ns: when a request left it; -1: never.
    """

    content: list[Slice] = field(default_factory=list)
    request: OllamaRequest | None = None
    last_used_ns: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerConfig:
    """How a runner works.

    Attributes:
        placement: slots, context and batch.
        batching: how a batch is filled.
        num_keep: tokens that truncation and context shift leave at the beginning.
        shift: whether a full context is shifted; else prompts that do not fit are answered 400, and answers end.
        multiuser_cache: OLLAMA_MULTIUSER_CACHE of the Go runner: the best prefix of any slot is copied.
    """

    placement: Placement
    batching: Batching
    num_keep: int = 4
    shift: bool = True
    multiuser_cache: bool = False

    def refuses(self, num_prompt_tokens: int) -> bool:
        """Returns whether a prompt is answered 400: too long, where nothing may be shifted out."""
        return not self.shift and num_prompt_tokens > self.placement.num_ctx - 1


@dataclass(slots=True)
class Step:
    """A batch that is being computed; or a run of batches, each the next token of the same answers.

    Attributes:
        work: requests with their tokens.
        start_ns: when it began.
        ends_ns: when it ends; of a run, when each of its batches does.
        num_prefill_tokens: tokens of prompt chunks longer than one token.
        num_decodes: requests with one token.
        num_running: slots taken.
        num_waiting: requests that wait for a slot.
        num_tokens_held: tokens in the slots that are taken, after the first batch.
        prefix_queries: prompt tokens of the requests that got a slot since the last batch.
        prefix_hits: of those, found in their slot.
    """

    work: Work
    start_ns: int
    ends_ns: list[int]
    num_prefill_tokens: int
    num_decodes: int
    num_running: int
    num_waiting: int
    num_tokens_held: int
    prefix_queries: int
    prefix_hits: int

    @property
    def end_ns(self) -> int:
        """When all of it is over."""
        return self.ends_ns[-1]


@dataclass(slots=True)
class StepResult:
    """What a step gave.

    Attributes:
        first_tokens: requests that got their first token.
        gaps: (class, nanoseconds since the token before) -> tokens, of each batch.
        finished: answers that are complete.
    """

    first_tokens: list[OllamaRequest] = field(default_factory=list)
    gaps: list[dict[tuple[int, int], int]] = field(default_factory=list)
    finished: list[OllamaRequest] = field(default_factory=list)


class Runner:
    """Serves the requests of one loaded model.

    Args:
        config: how it works.
        step_time_model: what its batches cost.
    """

    def __init__(self, config: RunnerConfig, step_time_model: StepTimeModel) -> None:
        self.config = config
        self.step_time_model = step_time_model
        self.slots = [Slot() for _ in range(config.placement.num_parallel)]
        self.waiting: deque[OllamaRequest] = deque()
        self.step: Step | None = None
        self._round_robin = RoundRobin() if config.batching == "round_robin" else None
        self._num_running = 0
        self._prefix_queries = self._prefix_hits = 0

    def submit(self, request: OllamaRequest, now_ns: int) -> None:
        """Takes a request that has been given this runner; it gets a slot at once if one is free."""
        request.runner_ns = now_ns
        request.state = State.WAITING
        self.waiting.append(request)
        self._admit(now_ns)

    def cancel(self, request: OllamaRequest, now_ns: int) -> None:
        """Lets go of a request whose client gave up; its slot is free at once, and keeps what it computed."""
        if request.state is State.WAITING:
            self.waiting.remove(request)
        else:
            self._leave(request, now_ns)
        request.state = State.CANCELLED
        self._admit(now_ns)

    @property
    def is_idle(self) -> bool:
        """Whether no request has a slot."""
        return self._num_running == 0

    def dispatch(self, now_ns: int, sharing: int = 1, until_ns: int | None = None) -> Step | None:
        """Starts the next batch, or a run of batches that nothing can change; None when there is nothing to do.

        Args:
            now_ns: the time.
            sharing: runners that compute on the same GPU at this moment, this one included: each gets its turn, so a
                batch takes so many times as long.
            until_ns: nothing happens outside this runner before; None: nothing does until an answer is complete.
        """
        assert self.step is None, "a runner computes one batch at a time"
        if not self._num_running:
            return None
        self._make_room()
        running = [slot.request for slot in self.slots]
        num_batch = self.config.placement.num_batch
        if self._round_robin is not None:
            work = self._round_robin.fill(running, num_batch)
        else:
            work = decode_first(running, num_batch)
        if not work:
            return None
        batch = _composition(work)
        ends_ns = [now_ns + self.step_time_model.step_time(batch) * sharing]
        for request, tokens in work:
            if request.prompt_start_ns < 0:
                request.prompt_start_ns = now_ns
            request.context += tokens
        held = sum(request.context for request in running if request is not None)
        if sharing == 1 and batch.num_decodes == self._num_running:
            self._go_on(work, batch, ends_ns, until_ns)
        self.step = Step(
            work, now_ns, ends_ns, batch.num_prefill_tokens, batch.num_decodes, self._num_running, len(self.waiting),
            held, self._prefix_queries, self._prefix_hits,
        )  # fmt: skip
        self._prefix_queries = self._prefix_hits = 0
        return self.step

    def _go_on(self, work: Work, batch: Batch, ends_ns: list[int], until_ns: int | None) -> None:
        """Lets a batch that only decodes go on with the next ones, until an answer ends or something may happen."""
        num_ctx = self.config.placement.num_ctx
        more = -1 + min(
            min(request.answer_length - request.num_generated, num_ctx - request.context + 1) for request, _ in work
        )
        if any(request.prompt_left for request, _ in work):  # its last token: a decode to the kernels, not to us
            return
        step_time, tokens = self.step_time_model.step_time, len(work)
        end_ns, made = ends_ns[0], 0
        while made < more and (until_ns is None or end_ns < until_ns):
            batch.decode_context += tokens
            end_ns += step_time(batch)
            ends_ns.append(end_ns)
            made += 1
        for request, _ in work:
            request.context += made

    def complete(self) -> StepResult:
        """Takes in the tokens of the step, whose time is over; those who waited get the slots that are free now."""
        step = self.step
        assert step is not None, "no batch is being computed"
        self.step = None
        result, gaps = StepResult(), dict[tuple[int, int], int]()
        ends_ns = step.ends_ns
        first_ns, now_ns = ends_ns[0], ends_ns[-1]
        decoding: dict[int, int] = {}
        for request, tokens in step.work:
            if request.state is not State.RUNNING:
                continue
            if request.prompt_left:
                request.prompt_left -= tokens
                if request.prompt_left:
                    continue
                request.first_token_ns = now_ns
                result.first_tokens.append(request)
            else:
                gap = (request.class_id, first_ns - request.last_token_ns)
                gaps[gap] = gaps.get(gap, 0) + 1
                decoding[request.class_id] = decoding.get(request.class_id, 0) + 1
            request.last_token_ns = now_ns
            request.num_generated += len(ends_ns)
            if request.num_generated >= request.answer_length or self._is_full(request):
                result.finished.append(request)
        result.gaps.append(gaps)
        for before_ns, end_ns in pairwise(ends_ns):
            result.gaps.append({(class_id, end_ns - before_ns): count for class_id, count in decoding.items()})
        for request in result.finished:
            self._finish(request, now_ns)
        if result.finished:
            self._admit(now_ns)
        return result

    def _finish(self, request: OllamaRequest, now_ns: int) -> None:
        self._leave(request, now_ns)
        request.state = State.FINISHED
        request.end_ns = now_ns

    def _is_full(self, request: OllamaRequest) -> bool:
        """Whether an answer ends because its context is full and may not be shifted."""
        return not self.config.shift and request.context >= self.config.placement.num_ctx

    def _leave(self, request: OllamaRequest, now_ns: int) -> None:
        slot = next(slot for slot in self.slots if slot.request is request)
        # What is in the batch under way is not there yet.
        held = request.all_content()
        slot.content = held if not request.prompt_left else _computed(held, request)
        slot.request = None
        slot.last_used_ns = now_ns
        self._num_running -= 1

    def _admit(self, now_ns: int) -> None:
        """Gives free slots to those who wait, first come first served."""
        while self.waiting and self._num_running < len(self.slots):
            request = self.waiting.popleft()
            request.state = State.RUNNING
            request.slot_ns = now_ns
            self._fit_prompt(request)
            slot, shared = self._choose(request)
            # The last token of a prompt is computed in any case: it gives the first of the answer.
            request.num_cached = min(shared, request.num_prompt_tokens - 1)
            request.prompt_left = request.num_prompt_tokens - request.num_cached
            request.context = request.num_cached
            slot.request = request
            self._num_running += 1
            self._prefix_queries += request.num_prompt_tokens
            self._prefix_hits += request.num_cached

    def _fit_prompt(self, request: OllamaRequest) -> None:
        """Truncates a prompt that the slot's context cannot hold."""
        num_ctx, keep = self.config.placement.num_ctx, self.config.num_keep
        content = as_slices(request.prompt)
        if self.config.batching == "decode_first":
            # llama_server.go: as after a first shift, so that there is room for an answer.
            most, limit = num_ctx - 1, num_ctx - max((num_ctx - min(keep, num_ctx - 1)) // 2, 1)
        else:
            most = limit = num_ctx
        if request.num_prompt_tokens > most:
            request.num_truncated = request.num_prompt_tokens - limit
            content = truncated(content, limit, keep)
            request.num_prompt_tokens = limit
        request.content = content
        # An answer without an end is bounded all the same (llama_server.go).
        request.num_predict = min(request.num_predict, OPEN_ENDED_CONTEXTS * num_ctx)

    def _choose(self, request: OllamaRequest) -> tuple[Slot, int]:
        """Returns a free slot, and how many tokens of the prompt it holds already."""
        free = [slot for slot in self.slots if slot.request is None]
        shared = [common_prefix(slot.content, request.content) for slot in free]
        best = max(range(len(free)), key=lambda index: shared[index])  # the first of equals
        if self.config.batching == "decode_first":
            if shared[best] > SIMILAR * request.num_prompt_tokens:
                return free[best], shared[best]
            oldest = min(range(len(free)), key=lambda index: free[index].last_used_ns)
            return free[oldest], shared[oldest]
        if self.config.multiuser_cache:
            return self._fork(request, free)
        return free[best], shared[best]

    def _fork(self, request: OllamaRequest, free: list[Slot]) -> tuple[Slot, int]:
        """OLLAMA_MULTIUSER_CACHE (cache.go): goes on in a slot that the prompt holds whole, else copies the best prefix
        of any slot into the one that has been free for longest."""
        held = [slot.request.all_content() if slot.request is not None else slot.content for slot in self.slots]
        shared = [common_prefix(content, request.content) for content in held]
        best = max(range(len(self.slots)), key=lambda index: shared[index])
        slot = self.slots[best]
        if slot.request is None and shared[best] and shared[best] == sum(length for _, _, length in slot.content):
            return slot, shared[best]
        other = slot.request
        computed = shared[best] if other is None else min(shared[best], other.context)
        return min(free, key=lambda each: each.last_used_ns), computed

    def _make_room(self) -> None:
        """Shifts every context that has no room for the token it computes next."""
        num_ctx = self.config.placement.num_ctx
        for slot in self.slots:
            request = slot.request
            if request is not None and not request.prompt_left and request.context >= num_ctx:
                request.shift(self.config.num_keep, num_ctx)


def _computed(held: list[Slice], request: OllamaRequest) -> list[Slice]:
    """Returns the part of a prompt that had been computed when its request was cancelled."""
    return head(held, request.num_prompt_tokens - request.prompt_left)


def _composition(work: Work) -> Batch:
    """Returns what a step-time model looks at."""
    num_prefill_tokens = num_decodes = pairs = decode_context = chunk_context = 0
    chunks = []
    for request, tokens in work:
        context = request.context
        if tokens == 1:
            num_decodes += 1
            decode_context += context
        else:
            num_prefill_tokens += tokens
            pairs += tokens * context + tokens * (tokens + 1) // 2
            chunk_context += context
            chunks.append((tokens, context))
    return Batch(len(work), num_prefill_tokens, num_decodes, pairs, decode_context, chunk_context, tuple(chunks))
