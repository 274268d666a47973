"""A request in the Ollama engine, and what of a slot's content a new prompt finds there again.

Tokens are never stored. Content is a run of slices `(stream, start, length)` of endless token streams: a prompt of
segments `(stream, length)` begins every slice at 0; truncation and context shift cut pieces out of the middle.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

Segment = tuple[int, int]
Slice = tuple[int, int, int]


class State(IntEnum):
    """Where a request is."""

    QUEUED = 0  # before the scheduler has a runner for it
    WAITING = 1  # for one of the runner's slots
    RUNNING = 2
    FINISHED = 3
    CANCELLED = 4


@dataclass(slots=True, eq=False)
class OllamaRequest:
    """One request.

    Attributes:
        request_id: unique.
        model_id: index of the model that it asks for.
        prompt: segments, at least one token in all.
        num_prompt_tokens: tokens of the prompt as the runner takes it, after truncation.
        num_predict: most tokens generated.
        eos_tokens: tokens after which the model ends by itself.
        output_stream: names the stream of the tokens generated.
        class_id: for statistics.
        arrival_ns: when the server got it.
        runner_ns: when it had a runner (end of load_duration).
        slot_ns: when it had a slot.
        prompt_start_ns: start of the first batch with its prompt.
        first_token_ns: end of the batch with the last of its prompt.
        end_ns: end of its last batch.
        last_token_ns: when its latest token came out.
        num_cached: prompt tokens found in the slot.
        prompt_left: prompt tokens not yet computed.
        num_generated: tokens generated.
        context: tokens of its slot.
        num_shifts: context shifts.
        num_truncated: prompt tokens cut away before it began.
        state: where it is.
    """

    request_id: int
    model_id: int
    prompt: tuple[Segment, ...]
    num_prompt_tokens: int
    num_predict: int
    eos_tokens: int
    output_stream: int
    class_id: int = 0
    arrival_ns: int = 0
    runner_ns: int = -1
    slot_ns: int = -1
    prompt_start_ns: int = -1
    first_token_ns: int = -1
    end_ns: int = -1
    last_token_ns: int = -1
    num_cached: int = 0
    prompt_left: int = 0
    num_generated: int = 0
    context: int = 0
    num_shifts: int = 0
    num_truncated: int = 0
    state: State = State.QUEUED
    content: list[Slice] = field(default_factory=list)  # of the prompt, and of the answer up to the last shift
    num_kept: int = 0  # tokens of the answer that `content` accounts for, cut away or not

    @property
    def answer_length(self) -> int:
        """Tokens that it generates in all, if nothing cuts it short."""
        return min(self.eos_tokens, self.num_predict)

    def all_content(self) -> list[Slice]:
        """Returns what is in its slot now: all but the token generated last, which no batch has computed."""
        fed = max(0, self.num_generated - 1) - self.num_kept
        return [*self.content, (self.output_stream, self.num_kept, fed)] if fed > 0 else list(self.content)

    def shift(self, num_keep: int, num_ctx: int) -> int:
        """Drops the older half of a full context behind the first `num_keep` tokens; returns how many tokens."""
        content = self.all_content()
        num_keep = min(num_keep, self.context - 1)
        discard = max(1, (num_ctx - num_keep) // 2 - (num_ctx - self.context))
        self.content = [*head(content, num_keep), *tail(content, self.context - num_keep - discard)]
        self.num_kept = max(0, self.num_generated - 1)
        self.context -= discard
        self.num_shifts += 1
        return discard


def as_slices(prompt: Iterable[Segment]) -> list[Slice]:
    """Returns a prompt's segments as slices."""
    return [(stream, 0, length) for stream, length in prompt if length]


def truncated(content: Sequence[Slice], limit: int, num_keep: int) -> list[Slice]:
    """Returns the first `num_keep` and the last tokens of a prompt, `limit` in all (llama_server.go)."""
    num_keep = min(num_keep, limit)
    return [*head(content, num_keep), *tail(content, limit - num_keep)]


def head(content: Sequence[Slice], num_tokens: int) -> list[Slice]:
    """Returns the first tokens."""
    taken: list[Slice] = []
    for stream, start, length in content:
        if num_tokens <= 0:
            break
        taken.append((stream, start, min(length, num_tokens)))
        num_tokens -= length
    return taken


def tail(content: Sequence[Slice], num_tokens: int) -> list[Slice]:
    """Returns the last tokens."""
    taken: list[Slice] = []
    for stream, start, length in reversed(content):
        if num_tokens <= 0:
            break
        used = min(length, num_tokens)
        taken.append((stream, start + length - used, used))
        num_tokens -= length
    return taken[::-1]


def common_prefix(first: Sequence[Slice], second: Sequence[Slice]) -> int:
    """Returns how many tokens two contents begin with in common."""
    total = i = j = 0
    used_i = used_j = 0
    while i < len(first) and j < len(second):
        stream_i, start_i, length_i = first[i]
        stream_j, start_j, length_j = second[j]
        if stream_i != stream_j or start_i + used_i != start_j + used_j:
            break
        step = min(length_i - used_i, length_j - used_j)
        total, used_i, used_j = total + step, used_i + step, used_j + step
        if used_i == length_i:
            i, used_i = i + 1, 0
        if used_j == length_j:
            j, used_j = j + 1, 0
    return total
