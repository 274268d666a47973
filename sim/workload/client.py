"""What the engine's side knows of the clients: one request, and the protocol of the workload that sends it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from sim.records import Outcome, RequestRecord

Segment = tuple[int, int]
"""(stream, length): the first `length` tokens of an endless token sequence named by an int."""

Prompt = tuple[Segment, ...]
"""A prompt as its segments, in order. Two prompts share a prefix where their leading segments are equal."""


@dataclass(slots=True)
class ClientRequest:
    """One HTTP request as its client sends it.

    Attributes:
        request_id: counts up from 0 in the order of sending.
        prompt: the token streams it is made of; a follow-up turn repeats the former prompt and the former answer.
        num_prompt_tokens: Σ of the segment lengths.
        max_tokens: what the client asks for at most.
        output_tokens: how many tokens the model generates before its end-of-sequence token, ≤ max_tokens.
        output_stream: the stream whose first tokens are the answer.
        class_id: index into the workload's `class_names`.
        queued_ns: when the client wanted to send it (before its own semaphore).
        sent_ns: when it sends it; TTFT and E2E count from here.
        timeout_ns: how long after `sent_ns` the client gives up; None: never.
        user_id: the user, or -1 where nobody in particular sends it.
        turn: 0 for the first request of a conversation.
        priority: vLLM's: a lower value is served earlier.
        attempt: 0, or which retry this is.
    """

    request_id: int
    prompt: Prompt
    num_prompt_tokens: int
    max_tokens: int
    output_tokens: int
    output_stream: int
    class_id: int
    queued_ns: int
    sent_ns: int
    timeout_ns: int | None = None
    user_id: int = -1
    turn: int = 0
    priority: int = 0
    attempt: int = 0


def new_record(client: ClientRequest, arrival_ns: int, replica: int) -> RequestRecord:
    """Returns the record of a request that has just arrived."""
    return RequestRecord(
        request_id=client.request_id,
        class_id=client.class_id,
        user_id=client.user_id,
        turn=client.turn,
        replica=replica,
        queued_ns=client.queued_ns,
        sent_ns=client.sent_ns,
        num_prompt_tokens=client.num_prompt_tokens,
        max_tokens=client.max_tokens,
        arrival_ns=arrival_ns,
        attempt=client.attempt,
    )


class Workload(Protocol):
    """Sends requests and is told how each one ended. All times are nanoseconds since the start of the run."""

    @property
    def class_names(self) -> tuple[str, ...]:
        """The names of the request classes; `ClientRequest.class_id` counts in them."""

    @property
    def warnings(self) -> tuple[str, ...]:
        """What the reader of the results should know about this workload, one sentence each."""

    @property
    def arrivals_end_ns(self) -> int:
        """When new work stops; for a workload of a given number of requests, when its last event was so far."""

    def next_send_ns(self) -> int | None:
        """Returns when the next request known now is to be sent; None: none before some request ends, or ever."""

    def pop_due(self, now_ns: int) -> list[ClientRequest]:
        """Returns all requests with sent_ns ≤ now, in the order of (sent_ns, creation), and forgets them."""

    def on_done(self, request: ClientRequest, outcome: Outcome, num_output_tokens: int, now_ns: int) -> None:
        """Tells the client that its request ended: answered, refused, rejected or given up.

        Args:
            request: one that `pop_due` returned; told once.
            outcome: how it ended for the client.
            num_output_tokens: tokens the client got.
            now_ns: when the client knew; not before any earlier call's time.
        """


_WORTH_A_RETRY = (Outcome.TIMED_OUT, Outcome.REJECTED, Outcome.LOST)


@dataclass(frozen=True, slots=True)
class Retries:
    """What a client does about a request that timed out, met a full server (503), or lost its server.

    It sends the same prompt again after `backoff_ns`, twice that the next time, and so on, `max_retries` times. A
    refusal (400), or a request that can never fit, is not tried again: it would end the same way.
    """

    max_retries: int = 0
    backoff_ns: int = 0

    def delay_ns(self, request: ClientRequest, outcome: Outcome) -> int | None:
        """Returns how long after its end the request is sent again; None: it is given up."""
        if outcome not in _WORTH_A_RETRY:
            return None
        if request.attempt >= self.max_retries:
            return None
        return self.backoff_ns << request.attempt
