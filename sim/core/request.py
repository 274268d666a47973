"""A request as the scheduler sees it, and the content of its blocks.

Tokens are never stored. A prompt is a run of segments `(stream, length)`: the first `length` tokens of the endless
token stream named `stream`. What the model generates is the stream `output_stream`. Two blocks hold the same tokens
exactly when they are the same slices of the same streams, so a block's hash is made from slices, chained to its
parent's as vLLM chains token hashes.
"""

from __future__ import annotations

from enum import IntEnum

Segment = tuple[int, int]


class RequestStatus(IntEnum):
    """Where a request is. Values from FINISHED_STOPPED on mean it is over."""

    WAITING = 0
    RUNNING = 1
    PREEMPTED = 2
    FINISHED_STOPPED = 3  # end-of-sequence token
    FINISHED_LENGTH_CAPPED = 4  # max_tokens or max_model_len
    FINISHED_ABORTED = 5  # the client gave up


class Request:
    """One request in the engine.

    Args:
        request_id: unique; the last tie-break in priority order.
        prompt: segments `(stream, length)`, at least one token in all.
        max_tokens: output tokens at most, as sent to the API.
        arrival_time: nanoseconds; orders requests of one priority.
        output_stream: names the stream of the tokens this request will generate; streams are numbered from 0.
        eos_tokens: outputs after which the model ends by itself; None: never before max_tokens.
        priority: lower goes first (policy `priority` only).
        class_id: the user class, for statistics; not vLLM's.
    """

    __slots__ = (
        "_hash_offset",
        "_hash_segment",
        "arrival_time",
        "block_hashes",
        "class_id",
        "eos_tokens",
        "last_token_ns",
        "max_tokens",
        "next_decode_eligible_step",
        "num_cached_tokens",
        "num_computed_tokens",
        "num_in_flight_tokens",
        "num_output_placeholders",
        "num_output_tokens",
        "num_preemptions",
        "num_prompt_tokens",
        "num_stale_output_tokens",
        "num_tokens",
        "output_stream",
        "priority",
        "prompt",
        "request_id",
        "running_order",
        "scheduled_ns",
        "shared_prefix_boundary",
        "status",
    )

    def __init__(
        self,
        request_id: int,
        prompt: tuple[Segment, ...],
        max_tokens: int,
        arrival_time: int,
        output_stream: int,
        *,
        eos_tokens: int | None = None,
        priority: int = 0,
        class_id: int = 0,
    ) -> None:
        # Python hashes -1 and -2 alike, so negative streams could make different blocks look equal.
        assert min(output_stream, *(stream for stream, _ in prompt)) >= 0, "token streams are numbered from 0"
        self.request_id = request_id
        self.prompt = prompt
        self.num_prompt_tokens = sum(length for _, length in prompt)
        self.max_tokens = max_tokens
        self.eos_tokens = max_tokens if eos_tokens is None else min(eos_tokens, max_tokens)
        self.arrival_time = arrival_time
        self.output_stream = output_stream
        self.priority = priority
        self.class_id = class_id

        self.status = RequestStatus.WAITING
        self.num_tokens = self.num_prompt_tokens  # prompt + outputs known so far
        self.num_output_tokens = 0
        self.num_computed_tokens = 0
        self.num_output_placeholders = 0  # asynchronous scheduling: tokens in flight, not yet known
        self.num_in_flight_tokens = 0
        self.num_stale_output_tokens = 0  # in flight when it was preempted
        self.num_preemptions = 0
        self.next_decode_eligible_step = 0  # asynchronous pipelines: which step may hold its next token
        self.running_order = 0  # which admission brought it into `running`, whose order this is
        self.shared_prefix_boundary = 0  # tokens others have cached that a sliding-window group has not; 0 for none

        self.num_cached_tokens = -1  # prefix hit at first admission; -1 before
        self.scheduled_ns = -1  # when it was first scheduled
        self.last_token_ns = -1  # when its latest token came out

        self.block_hashes: list[int] = []
        self._hash_segment = 0  # segment and offset in it where the next block to hash begins
        self._hash_offset = 0

    def __repr__(self) -> str:
        return (
            f"Request({self.request_id}, {self.status.name}, prompt={self.num_prompt_tokens}, "
            f"outputs={self.num_output_tokens}/{self.max_tokens}, computed={self.num_computed_tokens}"
            f"+{self.num_output_placeholders})"
        )

    @property
    def is_finished(self) -> bool:
        """Whether it is over, for whatever reason."""
        return self.status >= RequestStatus.FINISHED_STOPPED

    def append_output_token(self) -> None:
        """Takes in one generated token."""
        self.num_output_tokens += 1
        self.num_tokens += 1

    def continue_from(self, previous: Request, block_size: int) -> None:
        """Takes over the block hashes of an earlier request whose prompt and answer this prompt begins with.

        A shortcut for the next turn of a conversation: the hashes come out the same without it. Does nothing where the
        prompts do not agree.
        """
        num_segments = len(previous.prompt)
        if self.prompt[:num_segments] != previous.prompt:
            return
        num_tokens = previous.num_prompt_tokens
        if len(self.prompt) > num_segments and self.prompt[num_segments][0] == previous.output_stream:
            num_tokens += self.prompt[num_segments][1]
        hashes = previous.block_hashes
        num_shared = min(len(hashes), num_tokens // block_size)
        if not num_shared:
            return
        self.block_hashes = hashes[:num_shared]
        position = num_shared * block_size
        for segment, (_, length) in enumerate(self.prompt):
            if position < length:
                self._hash_segment, self._hash_offset = segment, position
                return
            position -= length
        self._hash_segment, self._hash_offset = len(self.prompt), position

    def hash_blocks(self, num_blocks: int, block_size: int) -> list[int]:
        """Returns the hashes of at least the first `num_blocks` blocks, computing what is missing.

        Hashes are 64-bit integers, equal for equal chains of content. Only blocks of known tokens may be asked for.
        """
        hashes = self.block_hashes
        while len(hashes) < num_blocks:
            parent = hashes[-1] if hashes else 0
            segment, offset = self._hash_segment, self._hash_offset
            if segment < len(self.prompt):
                stream, length = self.prompt[segment]
                if offset + block_size <= length:
                    hashes.append(hash((parent, stream, offset, block_size)))
                    self._hash_offset = offset + block_size
                else:
                    hashes.append(self._hash_across_segments(parent, block_size))
            else:
                hashes.append(hash((parent, self.output_stream, offset, block_size)))
                self._hash_offset = offset + block_size
        return hashes

    def _hash_across_segments(self, parent: int, block_size: int) -> int:
        """Hashes a block that spans more than one segment, and moves the cursor past it."""
        parts = [parent]
        missing = block_size
        while missing:
            if self._hash_segment < len(self.prompt):
                stream, length = self.prompt[self._hash_segment]
                taken = min(missing, length - self._hash_offset)
            else:
                stream, taken = self.output_stream, missing
            if taken:
                parts += (stream, self._hash_offset, taken)
                missing -= taken
                self._hash_offset += taken
            if missing:
                self._hash_segment += 1
                self._hash_offset = 0
        return hash(tuple(parts))
