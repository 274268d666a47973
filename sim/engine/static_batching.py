"""Static batching: a batch is computed to the end of its longest answer before the next one is taken.

    seat 1  PPPP aaaaaaaa············   P prompt (padded to the longest), a answer,
    seat 2  PPPP aaaaaaaaaaaaaaaaaaaa   · computed for nobody: the seat is held until the batch is done
    seat 3  PPPP aaaa················

This is how servers worked before continuous batching (Orca, OSDI 2022), and what the articles compare vLLM with. The
KV cache was contiguous: a request reserved room for the longest answer it might give, of which vLLM's authors found 60
to 80 % wasted (SOSP 2023, figure 2); `reservation` chooses how much is reserved.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Literal

from sim.engine.step_time import Batch, StepTimeModel

Reservation = Literal["max_length", "pow2", "exact", "blocks"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticConfig:
    """How batches are made.

    Attributes:
        batch_size: most requests of a batch.
        max_wait_ns: how long the first request waits for others while nothing is computed.
        reservation: `max_length`: max_model_len tokens; `pow2`: the prompt and the next power of two of the answer;
            `exact`: prompt and answer, which nobody can know before; `blocks`: blocks, as they are filled.
        padding: prompts are padded to the longest of their batch.
        max_model_len: most tokens of a request.
        kv_tokens: tokens of the KV cache.
        block_size: tokens of a block.
    """

    batch_size: int
    max_wait_ns: int
    reservation: Reservation
    padding: bool
    max_model_len: int
    kv_tokens: int
    block_size: int

    def reserved(self, request: StaticRequest) -> int:
        """Returns the tokens that a request needs room for when its batch is made."""
        prompt, answer = request.num_prompt_tokens, request.answer_length
        match self.reservation:
            case "max_length":
                return self.max_model_len
            case "pow2":
                return min(self.max_model_len, prompt + (1 << (answer - 1).bit_length()))
            case "exact":
                return prompt + answer
            case "blocks":
                return _blocks(prompt + answer, self.block_size)


@dataclass(slots=True, eq=False)
class StaticRequest:
    """One request.

    Attributes:
        request_id: unique.
        num_prompt_tokens: of its prompt.
        answer_length: tokens it generates.
        class_id: for statistics.
        arrival_ns: when it came.
        num_generated: tokens generated.
        is_cancelled: its client has gone.
    """

    request_id: int
    num_prompt_tokens: int
    answer_length: int
    class_id: int
    arrival_ns: int
    num_generated: int = 0
    is_cancelled: bool = False

    @property
    def is_done(self) -> bool:
        """Whether nothing more is wanted of it."""
        return self.is_cancelled or self.num_generated >= self.answer_length


@dataclass(slots=True)
class StaticStep:
    """One pass over a batch: its prompts, or the next token of every seat.

    Attributes:
        start_ns: when it began.
        end_ns: when it ends.
        num_prefill_tokens: prompt tokens, padding included.
        num_seats: requests of the batch.
        num_running: of those, with an answer that goes on.
        num_waiting: requests that wait for the next batch.
        num_reserved: KV tokens reserved.
        num_used: KV tokens that an answer still needs.
    """

    start_ns: int
    end_ns: int
    num_prefill_tokens: int
    num_seats: int
    num_running: int
    num_waiting: int
    num_reserved: int
    num_used: int


@dataclass(slots=True)
class StaticResult:
    """What a pass gave.

    Attributes:
        started: requests that got their first token.
        gaps: class -> answers that got one more token; the gap is the pass itself.
        finished: answers that are complete.
        batch: all requests of the batch, when this was its last pass.
    """

    started: list[StaticRequest] = field(default_factory=list)
    gaps: dict[int, int] = field(default_factory=dict)
    finished: list[StaticRequest] = field(default_factory=list)
    batch: list[StaticRequest] | None = None


class StaticEngine:
    """Makes batches and computes them.

    Args:
        config: how batches are made.
        step_time_model: what a pass costs.
    """

    def __init__(self, config: StaticConfig, step_time_model: StepTimeModel) -> None:
        self.config = config
        self.step_time_model = step_time_model
        self.waiting: deque[StaticRequest] = deque()
        self.batch: list[StaticRequest] = []
        self.step: StaticStep | None = None
        self._num_reserved = 0
        self._prompt_length = 0  # of a seat: its own, or the longest of the batch
        self._num_passes = 0

    def submit(self, request: StaticRequest) -> None:
        """Takes a request."""
        self.waiting.append(request)

    def cancel(self, request: StaticRequest) -> None:
        """Lets go of a request whose client gave up; in a batch its seat stays taken."""
        request.is_cancelled = True
        if request in self.waiting:
            self.waiting.remove(request)

    def next_event_ns(self) -> int | None:
        """Returns when a pass ends, or the next batch has waited long enough."""
        if self.step is not None:
            return self.step.end_ns
        return self.waiting[0].arrival_ns + self.config.max_wait_ns if self.waiting else None

    def dispatch(self, now_ns: int) -> None:
        """Starts the next pass of the batch, or the next batch when it is time."""
        if self.step is not None:
            return
        if not self.batch and not self._take_batch(now_ns):
            return
        if self._num_passes == 0:
            lengths = [self._padded(request) for request in self.batch]
            batch = Batch.of(chunks=[(length, 0) for length in lengths])
            num_prefill_tokens = batch.num_prefill_tokens
        else:
            context = sum(self._padded(request) for request in self.batch)
            context += len(self.batch) * (self._num_passes - 1)
            batch = Batch(len(self.batch), 0, len(self.batch), 0, context, 0, ())
            num_prefill_tokens = 0
        running = [request for request in self.batch if not request.is_done]
        used = sum(request.num_prompt_tokens + request.num_generated for request in running)
        self.step = StaticStep(
            now_ns,
            now_ns + self.step_time_model.step_time(batch),
            num_prefill_tokens,
            len(self.batch),
            len(running),
            len(self.waiting),
            self._held(),
            used,
        )

    def complete(self) -> StaticResult:
        """Takes in the tokens of the pass, whose time is over."""
        assert self.step is not None, "no pass is under way"
        self.step = None
        result = StaticResult()
        for request in self.batch:
            if request.is_done:
                continue
            request.num_generated += 1
            if request.num_generated == 1:
                result.started.append(request)
            else:
                result.gaps[request.class_id] = result.gaps.get(request.class_id, 0) + 1
            if request.is_done:
                result.finished.append(request)
        self._num_passes += 1
        if all(request.is_done for request in self.batch):
            result.batch, self.batch = self.batch, []
        return result

    def _take_batch(self, now_ns: int) -> bool:
        """Makes a batch of those who wait, first come first served, as many as there are seats and memory for."""
        config = self.config
        if not self.waiting:
            return False
        is_late = now_ns >= self.waiting[0].arrival_ns + config.max_wait_ns
        if not is_late and len(self.waiting) < config.batch_size:
            return False
        self._num_reserved = 0
        while self.waiting and len(self.batch) < config.batch_size:
            reserved = config.reserved(self.waiting[0])
            if self.batch and self._num_reserved + reserved > config.kv_tokens:
                break
            self._num_reserved += reserved
            self.batch.append(self.waiting.popleft())
        self._prompt_length = max(request.num_prompt_tokens for request in self.batch) if config.padding else 0
        self._num_passes = 0
        return True

    def _padded(self, request: StaticRequest) -> int:
        return max(request.num_prompt_tokens, self._prompt_length)

    def _held(self) -> int:
        """Returns the KV tokens that nobody else can have."""
        if self.config.reservation != "blocks":
            return self._num_reserved
        # Blocks are given back as soon as an answer is complete: nothing is kept for a seat that computes for nobody.
        live = [request for request in self.batch if not request.is_done]
        return sum(_blocks(each.num_prompt_tokens + each.num_generated, self.config.block_size) for each in live)


def _blocks(num_tokens: int, block_size: int) -> int:
    return -(-num_tokens // block_size) * block_size
